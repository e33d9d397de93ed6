import { expect, it } from 'vitest';
import { violationsOf } from '../faults/jobs.js';
import { runLongJob } from '../faults/long-job.js';
import { researchJob } from './research-job.js';

it.each([
  { what: 'does a job of ten turns', kill: false },
  { what: 'does it although the server is killed with -9 in each turn', kill: true },
])(
  'the research assistant $what',
  async ({ kill }) => {
    const job = researchJob();
    const finished = await runLongJob(job, { kill });
    expect(violationsOf(job, finished, { kill })).toEqual([]);
    const own = finished.events.filter(({ childRunId }) => childRunId === undefined);
    expect(own.filter(({ type }) => type === 'plan.updated')).toHaveLength(3);
    const sent = JSON.stringify(finished.requests.at(-1));
    for (const text of [
      'The moon was full on the 3rd.',
      'Two days after the full moon.',
      'The user asks about spring tides.',
    ])
      expect(sent).toContain(text);
  },
  120_000,
);
