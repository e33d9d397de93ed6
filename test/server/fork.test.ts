import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { messagesOf } from '../support/request-view.js';
import type { JsonAnswer } from '../support/server-process.js';
import {
  calling,
  callOf,
  DIALECTS,
  ended,
  getRun,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startLab,
  typesOf,
  WAIT,
} from './lab.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab();
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

const fork = async (id: unknown, body?: object): Promise<JsonAnswer> =>
  lab.server.json('POST', `/v1/runs/${String(id)}/fork`, body);
const stateOf = async (id: unknown): Promise<JsonObject> =>
  (await lab.server.json('GET', `/v1/runs/${String(id)}/state`)).body;

/** A run of three model turns, the first two of which call a tool. */
async function threeTurns(agent: string): Promise<JsonObject> {
  lab.model.script(calling(callOf('echo', { turn: 1 })), calling(callOf('echo', { turn: 2 })), { text: 'third' });
  const run = await runToEnd(lab, { agent, metadata: { origin: 'source' } });
  expect(run).toMatchObject({ status: 'completed', turnCount: 3 });
  return run;
}

describe.each(DIALECTS)('a fork over $dialect', ({ agent }) => {
  it('from an earlier turn is a new run that carries nothing later, and starts at once', async () => {
    const run = await threeTurns(agent);
    const before = [await getRun(lab, run.id), await stateOf(run.id), await logOf(lab, run.id)];
    lab.model.script({ text: 'another second' });
    const answer = await fork(run.id, { turn: 1 });
    expect(answer.status).toBe(201);
    expect(answer.headers.location).toBe(`/v1/runs/${String(answer.body.id)}`);
    expect(answer.body).toMatchObject({ agent, attempt: 1, forkedFrom: { runId: run.id, turn: 1 } });
    expect(answer.body.id).not.toBe(run.id);
    const forked = await ended(lab, answer.body.id);
    expect(forked).toMatchObject({ status: 'completed', output: 'another second', turnCount: 2 });
    const sent = JSON.stringify(messagesOf(lab.model.requests.at(-1)!));
    expect(sent).toMatch(/turn\\*":1/);
    expect(sent).not.toMatch(/turn\\*":2|third/);
    expect((await stateOf(forked.id)).responses).toHaveLength(2);
    expect(typesOf(await logOf(lab, forked.id)).slice(0, 2)).toEqual(['run.created', 'run.started']);
    expect([await getRun(lab, run.id), await stateOf(run.id), await logOf(lab, run.id)]).toEqual(before);
  });

  it('of the last turn by default goes on with its input, also under another agent', async () => {
    const run = await threeTurns(agent);
    const other = agent === 'chat' ? 'claude' : 'chat';
    lab.model.script({ text: 'from the other' });
    const answer = await fork(run.id, { input: 'and now?', agent: other });
    expect(answer).toMatchObject({
      status: 201,
      body: { agent: other, input: 'and now?', forkedFrom: { runId: run.id, turn: 3 } },
    });
    expect(await ended(lab, answer.body.id)).toMatchObject({
      status: 'completed',
      output: 'from the other',
      turnCount: 4,
    });
    const sent = lab.model.requests.at(-1)!;
    expect(sent.dialect).toBe(DIALECTS.find((each) => each.agent === other)?.dialect);
    expect(JSON.stringify(messagesOf(sent))).toMatch(/third.*and now\?/);
    lab.model.script({ text: 'the source goes on too' });
    expect((await resume(lab, run.id, { input: 'hm' })).body).toMatchObject({
      status: 'completed',
      output: 'the source goes on too',
    });
  });
});

describe('a fork that cannot be', () => {
  it('without input where the history ends with an answer is 422 at /input', async () => {
    const run = await runToEnd(lab, {});
    for (const body of [undefined, {}, { turn: 1 }]) {
      const answer = await fork(run.id, body);
      expect(answer.status).toBe(422);
      expect((answer.body.errors as JsonObject[])[0]?.pointer).toBe('/input');
    }
  });

  it.each([
    [{ turn: 9, input: 'x' }, '/turn'],
    [{ turn: -1, input: 'x' }, '/turn'],
    [{ turn: 1.5, input: 'x' }, '/turn'],
    [{ agent: 'nobody', input: 'x' }, '/agent'],
    [{ input: ' ' }, '/input'],
    [{ bogus: 1 }, '/bogus'],
  ])('%j is 422 at %s', async (body, pointer) => {
    const run = await runToEnd(lab, {});
    const answer = await fork(run.id, body);
    expect([answer.status, (answer.body.errors as JsonObject[])[0]?.pointer]).toEqual([422, pointer]);
  });

  it('is 404 for a run that is not there', async () => {
    expect(await fork('nobody', { input: 'x' })).toMatchObject({ status: 404, body: { code: 'run_not_found' } });
  });
});

it('of a run that failed, waits or was purged since stands on its own', async () => {
  lab.model.script(calling(callOf('echo', { turn: 1 })), { status: 400 });
  const failed = await runToEnd(lab, {});
  lab.model.script({ text: 'forked' });
  const { body } = await fork(failed.id, {});
  expect(await ended(lab, body.id)).toMatchObject({
    status: 'completed',
    output: 'forked',
    forkedFrom: { runId: failed.id, turn: 1 },
  });
  expect((await lab.server.json('DELETE', `/v1/runs/${String(failed.id)}?purge=true`)).status).toBe(204);
  expect(await getRun(lab, body.id)).toMatchObject({ status: 'completed', forkedFrom: { runId: failed.id, turn: 1 } });

  lab.model.script(calling(callOf('echo', { turn: 1 })), calling(callOf('gated')));
  const waiting = await runToEnd(lab, {});
  lab.model.script({ text: 'instead' });
  const other = await fork(waiting.id, { input: 'do something else' });
  expect(await ended(lab, other.body.id)).toMatchObject({ status: 'completed', output: 'instead', interruptions: [] });
  expect((await getRun(lab, waiting.id)).status).toBe('waiting');
});

it('carries the state of the shims as it was then', async () => {
  const shims = { lab: { ledger: lab.ledger.url, mark: 'first' } };
  const run = await runToEnd(lab, { shims });
  const { body } = await fork(run.id, { input: 'go' });
  await ended(lab, body.id);
  expect(JSON.stringify((await stateOf(body.id)).shimState)).toContain('first');
});

it('begins from what the clean-up of the turn left, as a resume does, whether the turn is named or not', async () => {
  const shims = { lab: { ledger: lab.ledger.url, mark: 'left' } };
  const run = await runToEnd(lab, { shims });
  expect((await stateOf(run.id)).shimState).toMatchObject({ 'lab:ended': 'left' });
  for (const turn of [undefined, 1]) {
    lab.model.script({ text: 'x', gate: new Promise(() => undefined), gateAt: 'start' });
    const { body } = await fork(run.id, { input: 'go', turn });
    expect((await stateOf(body.id)).shimState).toMatchObject({ 'lab:ended': 'left' });
    await lab.server.json('DELETE', `/v1/runs/${String(body.id)}`, undefined, WAIT);
  }
  const { body } = await lab.server.json('GET', `/v1/runs/${String(run.id)}/checkpoints`);
  expect(body.data).toMatchObject([{ turn: 0 }, { turn: 1, seq: run.lastSeq }]);
});

it('sends nothing that either endpoint refuses', () => {
  expect(lab.model.refusedRequests.map(({ problem }) => problem)).toEqual([]);
});
