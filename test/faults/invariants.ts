import { isDeepStrictEqual } from 'node:util';
import { integrityOf } from '../support/database-check.js';
import { isObject, type JsonObject, listOf, pick } from '../support/json-path.js';
import { openStream } from '../support/sse-client.js';
import type { FaultCase } from './points.js';
import type { Witness } from './run-case.js';
import { persistently, type Stage } from './stage.js';

interface Finished {
  readonly id: string;
  readonly marker: string;
  readonly witness: Witness;
  readonly faultCase: FaultCase;
  readonly reached: boolean;
}

const TERMINAL = new Set(['run.completed', 'run.failed', 'run.cancelled']);

/** Checks the invariants after a case; gives what does not hold. */
export async function checkCase(stage: Stage, finished: Finished): Promise<string[]> {
  const { id, marker, witness, faultCase } = finished;
  const faults: string[] = [...witness.conflicts];
  const check = (holds: boolean, text: string): void => {
    if (!holds) faults.push(text);
  };
  const run = (await persistently(stage, 'GET', `/v1/runs/${id}`)).body;
  const log = await logOf(stage, id);
  const effects = stage.ledger.entries(({ marker: its }) => its === marker);

  // 1 effects at most once, by the ledger
  for (const n of [1, 2, 3]) {
    const count = effects.filter((effect) => effect.n === n).length;
    check(count <= 1, `1: effect ${n} happened ${count} times`);
  }
  // 2 exactly one end, the last event, agreeing with the run
  const ends = log.filter(({ type }) => TERMINAL.has(String(type)));
  check(
    ends.length === 1 && log.at(-1) === ends[0] && ends[0]?.type === `run.${String(run.status)}`,
    `2: the ends are ${ends.map(({ type }) => String(type)).join()} of ${String(run.status)}`,
  );
  for (const attempt of new Set(log.map((event) => event.attempt))) {
    const waits = log.filter((event) => event.attempt === attempt && event.type === 'run.waiting').length;
    check(waits <= 1, `2: attempt ${String(attempt)} waited ${waits} times`);
  }
  // 3 contiguous ids, equal suffixes for any cursor
  check(log.every((event, at) => event.seq === at + 1) && run.lastSeq === log.length, '3: the seqs have holes');
  const cursor = Math.floor(log.length / 2);
  const stream = await openStream(`${stage.server.url}/v1/runs/${id}/events?after=${cursor}`);
  await stream.ended;
  check(
    isDeepStrictEqual(
      stream.events.map(({ json }) => json),
      log.slice(cursor),
    ),
    `3: the stream from ${cursor} is not the suffix of the log`,
  );
  // 4 whatever a client was told survives
  for (const [seq, data] of witness.events)
    check(isDeepStrictEqual(JSON.parse(data), log[seq - 1]), `4: event ${seq} is not what a client saw`);
  // 6 folded deltas equal the stored text
  checkDeltas(log, check);
  // 7 a serial history, each call with its one result
  const state = (await persistently(stage, 'GET', `/v1/runs/${id}/state`)).body;
  checkHistory(state, check);
  // 8 nothing active without an owner: this run has ended and no other is there
  for (const status of ['queued', 'running', 'cancelling']) {
    const list = await persistently(stage, 'GET', `/v1/runs?status=${status}`);
    check(listOf(list.body.data).length === 0, `8: a run is ${status} although nobody drives any`);
  }
  // 9 no execution without its approval
  const gated = effects.some((effect) => effect.n === 3);
  check(!gated || log.some(({ type }) => type === 'run.resumed'), '9: the gated tool ran without its approval');
  // 10 no marker of another run anywhere
  const markers = new Set(JSON.stringify([run, log, state]).match(/case-\d+-/g));
  check(isDeepStrictEqual([...markers], [marker]), `10: found the markers ${[...markers].join()}`);
  // 12 shim state: begun once, and neither lost nor written twice
  const shimState = isObject(state.shimState) ? state.shimState : {};
  if (run.status === 'completed') {
    check(
      shimState['reference:starts'] === 1 &&
        shimState['reference:turns'] === 2 &&
        shimState['reference:compacted'] === true,
      `12: the shim's state is ${JSON.stringify(shimState)}`,
    );
    check(run.output === `All done for ${marker}`, `12: the output is ${JSON.stringify(run.output)}`);
  }
  check(
    run.status === 'completed' || (faultCase.fault === 'delete' && run.status === 'cancelled'),
    `15: it ended ${String(run.status)}: ${JSON.stringify(run.error)}`,
  );
  // 13 the process is alive and nothing went astray in it
  check((await persistently(stage, 'GET', '/healthz')).status === 200, '13: the process does not answer');
  check(
    !stage.server.logs.some((line) => /unhandled rejection|uncaught exception/.test(line)),
    '13: an error went astray in the process',
  );
  // 14 the store is clean
  const integrity = integrityOf(stage.server.dataDir);
  check(integrity === 'ok', `14: ${integrity}`);
  // 11 nothing is written after the stop
  check(
    isDeepStrictEqual([run, log], [(await persistently(stage, 'GET', `/v1/runs/${id}`)).body, await logOf(stage, id)]),
    '11: something was written after the end',
  );
  // 5 the history is accepted by the strict model
  const refused = stage.model.refusedRequests.length;
  await persistently(
    stage,
    'POST',
    `/v1/runs/${id}/resume`,
    { input: 'one more' },
    { 'if-match': `"${String(run.version)}"` },
  );
  const next = (await persistently(stage, 'GET', `/v1/runs/${id}`, undefined, { prefer: 'wait=20' })).body;
  check(
    next.status === 'completed' && stage.model.refusedRequests.length === refused,
    `5: the next turn ended ${String(next.status)}: ${stage.model.refusedRequests
      .slice(refused)
      .map(({ problem }) => problem)
      .join()}`,
  );
  return faults;
}

async function logOf(stage: Stage, id: string): Promise<JsonObject[]> {
  const log: JsonObject[] = [];
  for (;;) {
    const { body } = await persistently(stage, 'GET', `/v1/runs/${id}/events?after=${log.length}`);
    const page = listOf(body.data).filter(isObject);
    log.push(...page);
    if (page.length === 0 || log.length >= Number(body.lastSeq)) return log;
  }
}

type Check = (holds: boolean, text: string) => void;

function checkDeltas(log: readonly JsonObject[], check: Check): void {
  for (const completed of log.filter(({ type }) => type === 'model.completed')) {
    const deltas = log.filter(
      ({ type, kind, modelCallId }) =>
        type === 'model.delta' && kind === 'text' && modelCallId === completed.modelCallId,
    );
    const folded = deltas.map(({ text }) => String(text)).join('');
    const content = pick(completed, 'message.content');
    const parts = listOf(content).filter(isObject);
    const stored =
      typeof content === 'string'
        ? content
        : parts.map(({ type, text }) => (type === 'text' ? String(text) : '')).join('');
    check(folded === stored, `6: deltas say ${JSON.stringify(folded)}, stored is ${JSON.stringify(stored)}`);
  }
}

function checkHistory(state: JsonObject, check: Check): void {
  const text = JSON.stringify(state.history);
  const calls = new Map<string, number>();
  const results = new Map<string, number>();
  for (const item of listOf(state.history)) {
    const content = listOf(pick(item, 'message.content') ?? pick(item, 'content')).filter(isObject);
    for (const part of content) {
      const id = String(part.toolCallId);
      if (part.type === 'tool-call') calls.set(id, (calls.get(id) ?? 0) + 1);
      if (part.type === 'tool-result') results.set(id, (results.get(id) ?? 0) + 1);
    }
  }
  check(
    [...calls.values(), ...results.values()].every((count) => count === 1),
    `7: a call or result stands in the history twice: ${text}`,
  );
  check(
    isDeepStrictEqual([...calls.keys()].sort(), [...results.keys()].sort()),
    `7: calls and results of the history do not match: ${text}`,
  );
}
