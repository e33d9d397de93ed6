import { cpSync } from 'node:fs';
import { basename, join } from 'node:path';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { ServerProcess } from '../support/server-process.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

/** A job of a ready agent: what the model answers, turn by turn, and what the world around it is. */
export interface LongJob {
  /** The agent's file, in the form of `AGENTS_DIR`. */
  readonly preset: string;
  readonly agent: string;
  readonly input: string;
  /** Other configs for this run, by shim. */
  readonly shims: JsonObject;
  readonly replies: readonly Reply[];
  readonly metadata?: Readonly<Record<string, string>>;
  /** What is answered to calls of the model that belong to no turn: a summary, a child's answer. `undefined`: it is the next turn. */
  readonly aside?: (body: JsonObject) => Reply | undefined;
}

export interface FinishedJob {
  readonly run: JsonObject;
  readonly events: readonly JsonObject[];
  /** The requests of the turns that were answered, in order. */
  readonly requests: readonly JsonObject[];
  readonly kills: number;
  /** How often a person was asked. */
  readonly approvals: number;
}

/**
 * Runs a job through the real server. With `kill` the server is killed with -9 in each turn while the model is being waited for, and
 * started again: the turn's call is made anew, and nothing that was done before is done twice.
 */
export async function runLongJob(job: LongJob, { kill }: { readonly kill: boolean }): Promise<FinishedJob> {
  const agents = temporaryFolder('agents-');
  cpSync(job.preset, join(agents, basename(job.preset)));
  const model = await ModelEndpoint.start();
  const server = await ServerProcess.start({ env: { ...model.environment }, agents });
  const requests: JsonObject[] = [];
  let answered = 0;
  let kills = 0;
  /** The turn that waits for a kill. */
  let doomed = -1;
  const never = new Promise<never>(() => undefined);
  model.respondWith(async (request) => {
    const aside = job.aside?.(request.body);
    if (aside !== undefined) return aside;
    if (kill && kills <= answered) {
      doomed = answered;
      return never;
    }
    const reply = job.replies[answered];
    if (reply === undefined) throw new Error(`the model was asked ${answered + 1} times`);
    requests.push(request.body);
    answered += 1;
    return reply;
  });
  try {
    const { agent, input, shims, metadata = {} } = job;
    const started = await server.json('POST', '/v1/runs', { agent, input, shims, metadata });
    if (started.status !== 202) throw new Error(`${started.status}: ${JSON.stringify(started.body)}`);
    const path = `/v1/runs/${String(started.body.id)}`;
    let approvals = 0;
    for (;;) {
      const run = await waitFor(
        async () => {
          if (doomed === kills) return 'doomed';
          const { body } = await server.json('GET', path);
          return body.status === 'running' || body.status === 'queued' ? undefined : body;
        },
        { timeoutMs: 60_000, what: 'the job to go on' },
      );
      if (run === 'doomed') {
        await server.kill9();
        kills += 1;
        await server.restart();
        continue;
      }
      if (run.status !== 'waiting') {
        const events = await allEvents(server, path);
        return { run, events, requests, kills, approvals };
      }
      const interruptions = run.interruptions as readonly { readonly id: string }[];
      approvals += interruptions.length;
      const decisions = interruptions.map(({ id }) => ({ id, decision: 'approve' }));
      const resumed = await server.json('POST', `${path}/resume`, { decisions });
      if (resumed.status !== 202) throw new Error(`${resumed.status}: ${JSON.stringify(resumed.body)}`);
    }
  } finally {
    await server.stop();
    await model.close();
  }
}

async function allEvents(server: ServerProcess, path: string): Promise<JsonObject[]> {
  const events: JsonObject[] = [];
  for (;;) {
    const { body } = await server.json('GET', `${path}/events?after=${events.length}`);
    events.push(...(body.data as JsonObject[]));
    if (events.length >= Number(body.lastSeq)) return events;
  }
}
