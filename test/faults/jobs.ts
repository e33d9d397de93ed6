import { codingJob } from '../presets/coding-job.js';
import { researchJob } from '../presets/research-job.js';
import { type FinishedJob, type LongJob, runLongJob } from './long-job.js';

export interface JobsResult {
  readonly jobs: number;
  readonly kills: number;
  readonly violations: readonly string[];
}

/** The jobs of the ready agents, ten turns each, with a kill -9 in every turn. */
export async function killedJobs(): Promise<JobsResult> {
  const jobs = [codingJob().job, researchJob()];
  const finished: FinishedJob[] = [];
  const violations: string[] = [];
  for (const job of jobs) {
    try {
      const done = await runLongJob(job, { kill: true });
      finished.push(done);
      violations.push(...violationsOf(job, done, { kill: true }).map((violation) => `${job.agent}: ${violation}`));
    } catch (error) {
      violations.push(`${job.agent}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  return { jobs: jobs.length, kills: finished.reduce((sum, { kills }) => sum + kills, 0), violations };
}

/** What a job must have come to, killed in each turn or not: every call that the model made was made once, and went well. */
export function violationsOf(
  job: LongJob,
  { run, events, requests, kills }: FinishedJob,
  { kill }: { readonly kill: boolean },
): string[] {
  const violations: string[] = [];
  const same = (what: string, found: unknown, expected: unknown): void => {
    const [is, should] = [JSON.stringify(found), JSON.stringify(expected)];
    if (is !== should) violations.push(`${what} is ${is}, not ${should}`);
  };
  const turns = job.replies.length;
  same('the status', run.status, 'completed');
  same('the output', run.output, job.replies.at(-1)?.text);
  same('the count of turns', run.turnCount, turns);
  same('the count of kills', kills, kill ? turns : 0);
  same('the count of answered requests', requests.length, turns);
  const completed = events.filter(({ type, childRunId }) => type === 'tool.completed' && childRunId === undefined);
  same(
    'what the tools did',
    completed.map(({ name, ok }) => (ok === true ? name : `${String(name)} failed`)).toSorted(),
    job.replies.flatMap(({ toolCalls = [] }) => toolCalls.map(({ name }) => name)).toSorted(),
  );
  return violations;
}
