import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { messagesOf } from '../support/request-view.js';
import {
  calling,
  callOf,
  DIALECTS,
  ended,
  follow,
  gate,
  getRun,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startLab,
  startRun,
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

describe.each(DIALECTS)('a resume over $dialect', ({ agent }) => {
  it('R81 of a completed run goes on with the conversation, in the same run', async () => {
    lab.model.script(calling(callOf('echo', { a: 1 })), { text: 'one' }, { text: 'two' });
    const run = await runToEnd(lab, { agent });
    const answer = await resume(lab, run.id, { input: 'and then?' });
    expect(answer).toMatchObject({
      status: 200,
      body: { id: run.id, status: 'completed', output: 'two', attempt: 2, turnCount: 3, input: 'hello' },
    });
    const sent = messagesOf(lab.model.requests.at(-1)!);
    expect(JSON.stringify(sent)).toMatch(/hello.*"?a\\?"?.*one.*and then\?/);
    expect((answer.body.usage as { totalTokens: number }).totalTokens).toBeGreaterThan(
      (run.usage as { totalTokens: number }).totalTokens,
    );
    const events = await logOf(lab, run.id);
    expect(events[Number(run.lastSeq)]).toMatchObject({ type: 'run.resumed', attempt: 2 });
  });

  it('R79 of a failed run without input goes on from its last checkpoint', async () => {
    lab.model.script(calling(callOf('retry_tool', { n: agent.length })), { status: 400 }, { text: 'mended' });
    const run = await runToEnd(lab, { agent });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'model_error' } });
    const answer = await resume(lab, run.id, {});
    expect(answer).toMatchObject({
      status: 200,
      body: { status: 'completed', output: 'mended', attempt: 2, error: null },
    });
    // The finished call of the first attempt is history: it is not run again.
    expect(lab.ledger.count(({ n, runId }) => n === agent.length && runId === run.id)).toBe(1);
  });

  it('R79 of a failed run with input sends a history that is valid', async () => {
    lab.model.script({ status: 400 }, { text: 'better' });
    const run = await runToEnd(lab, { agent });
    expect(await resume(lab, run.id, { input: 'try again' })).toMatchObject({
      body: { status: 'completed', output: 'better' },
    });
  });

  it('R79 of a cancelled run goes on, its interrupted calls closed with error results', async () => {
    const held = lab.ledger.blockBefore('unknown');
    lab.model.script(calling(callOf('unknown_tool', { n: 1 }), callOf('echo', { b: 2 })), { text: 'after' });
    const { body } = await startRun(lab, { agent });
    await held.reached;
    const cancelled = await lab.server.json('DELETE', `/v1/runs/${String(body.id)}`, undefined, WAIT);
    expect(cancelled).toMatchObject({ status: 200, body: { status: 'cancelled' } });
    held.release();
    expect(await resume(lab, body.id, { input: 'go on' })).toMatchObject({
      body: { status: 'completed', output: 'after', cancellation: expect.anything() as unknown },
    });
  });

  it('C01 of a run that was cancelled in mid-answer goes on without the half answer in its history', async () => {
    lab.model.script({ text: ['half ', 'more'], gate: new Promise(() => {}), gateAt: 1 }, { text: 'whole' });
    const stream = await follow(lab, '/v1/runs', { body: { agent, input: 'hello' } });
    await stream.collect({ until: ({ event }) => event === 'model.delta' });
    const id = (stream.events[0]!.json as { runId: string }).runId;
    await lab.server.json('DELETE', `/v1/runs/${id}`, undefined, WAIT);
    expect(await getRun(lab, id)).toMatchObject({ status: 'cancelled', partialOutput: 'half ', output: null });
    const answer = await resume(lab, id, { input: 'go on' });
    expect(answer.body).toMatchObject({ status: 'completed', output: 'whole', partialOutput: null });
    expect(JSON.stringify(messagesOf(lab.model.requests.at(-1)!))).not.toContain('half');
  });
});

describe('a resume without input', () => {
  it.each(['completed', 'cancelled'])('of a %s run is 422 at /input', async (status) => {
    const run = await runToEnd(lab, {});
    if (status === 'cancelled') {
      lab.model.script({ text: 'x', gate: new Promise(() => {}), gateAt: 'start' });
      const requests = lab.model.requests.length;
      await resume(lab, run.id, { input: 'more' }, {});
      // Cancelled before its request, the run would leave its reply to the next test.
      await lab.model.waitForRequest(requests + 1);
      await lab.server.json('DELETE', `/v1/runs/${String(run.id)}`, undefined, WAIT);
    }
    const answer = await resume(lab, run.id, {});
    expect(answer.status).toBe(422);
    expect((answer.body.errors as JsonObject[])[0]?.pointer).toBe('/input');
    expect((await getRun(lab, run.id)).status).toBe(status);
  });

  it('may have no body at all', async () => {
    lab.model.script({ status: 400 }, { text: 'ok now' });
    const run = await runToEnd(lab, {});
    const answer = await lab.server.json('POST', `/v1/runs/${String(run.id)}/resume`, undefined, WAIT);
    expect(answer).toMatchObject({ status: 200, body: { status: 'completed', output: 'ok now' } });
  });
});

describe('the ways of asking', () => {
  it('are 202 with the location, a wait, and a stream that begins with the first event of the attempt', async () => {
    const run = await runToEnd(lab, {});
    const at = await resume(lab, run.id, { input: '1' }, {});
    expect(at).toMatchObject({
      status: 202,
      headers: { location: `/v1/runs/${String(run.id)}`, 'content-location': `/v1/runs/${String(run.id)}` },
    });
    await ended(lab, run.id);
    lab.model.script({ text: 'slow', delayMs: 1200 });
    expect(await resume(lab, run.id, { input: '2' }, { prefer: 'wait=1' })).toMatchObject({
      status: 202,
      body: { status: 'running', attempt: 3 },
    });
    const before = await ended(lab, run.id);
    const stream = await follow(lab, `/v1/runs/${String(run.id)}/resume`, { body: { input: '3' } });
    expect(await stream.ended).toEqual({ how: 'end' });
    expect(stream.events[0]).toMatchObject({
      event: 'run.resumed',
      id: String(Number(before.lastSeq) + 1),
      json: { attempt: 4 },
    });
    expect(stream.events.at(-1)?.event).toBe('run.completed');
    expect(typesOf(await logOf(lab, run.id)).filter((type) => type === 'run.started')).toHaveLength(1);
  });
});

describe('N01 a resume is a compare-and-set', () => {
  it('lets one of twenty win; the others get 409 run_active naming the attempt', async () => {
    const run = await runToEnd(lab, {});
    const door = gate();
    lab.model.script({ text: 'won', gate: door.gate, gateAt: 'start' });
    const answers = await Promise.all(
      Array.from({ length: 20 }, async (_, n) => resume(lab, run.id, { input: `try ${n}` }, {})),
    );
    expect(answers.filter(({ status }) => status === 202)).toHaveLength(1);
    for (const { status, body } of answers.filter((answer) => answer.status !== 202)) {
      expect([status, body.code, body.attempt]).toEqual([409, 'run_active', 2]);
      expect(body.detail).toContain('2');
    }
    door.open();
    expect(await ended(lab, run.id)).toMatchObject({ status: 'completed', output: 'won', attempt: 2 });
  });

  it('honours If-Match', async () => {
    const run = await runToEnd(lab, {});
    const read = await lab.server.json('GET', `/v1/runs/${String(run.id)}`);
    expect(read.headers.etag).toBe(`"${String(run.version)}"`);
    const wrong = await resume(lab, run.id, { input: 'x' }, { 'if-match': `"${Number(run.version) + 7}"` });
    expect(wrong).toMatchObject({ status: 412, body: { code: 'version_mismatch', status: 412 } });
    expect((await getRun(lab, run.id)).attempt).toBe(1);
    const right = await resume(lab, run.id, { input: 'x' }, { 'if-match': String(read.headers.etag), ...WAIT });
    expect(right).toMatchObject({ status: 200, body: { attempt: 2 } });
    expect(Number(right.body.version)).toBeGreaterThan(Number(run.version));
    expect((await resume(lab, run.id, { input: 'x' }, { 'if-match': String(read.headers.etag) })).status).toBe(412);
  });

  it('of a queued or running run is 409 run_active', async () => {
    const door = gate();
    lab.model.script({ text: 'x', gate: door.gate, gateAt: 'start' });
    const { body } = await startRun(lab, {});
    expect(await resume(lab, body.id, { input: 'now' }, {})).toMatchObject({
      status: 409,
      body: { code: 'run_active', attempt: 1 },
    });
    door.open();
    await ended(lab, body.id);
  });
});

describe('a resume that cannot be', () => {
  it.each([
    [{ input: '  ' }, '/input'],
    [{ decisions: [] }, '/decisions'],
    [{ decisions: [{ id: 'a', decision: 'maybe' }] }, '/decisions/0/decision'],
    [{ decisions: [{ id: 'a', decision: 'edit' }] }, '/decisions/0/arguments'],
    [{ settle: [{ toolCallId: 'a', outcome: 'lost' }] }, '/settle/0/outcome'],
    [{ limits: { maxTurns: -1 } }, '/limits/maxTurns'],
    [{ bogus: 1 }, '/bogus'],
  ])('%j is 422 at %s', async (body, pointer) => {
    const run = await runToEnd(lab, {});
    const answer = await resume(lab, run.id, body);
    expect(answer.status).toBe(422);
    expect((answer.body.errors as JsonObject[]).map((error) => error.pointer)).toContain(pointer);
  });

  it('is 404 for a run that is not there', async () => {
    expect(await resume(lab, 'nobody', { input: 'x' })).toMatchObject({ status: 404, body: { code: 'run_not_found' } });
  });

  it('answers decisions and settlements that nothing waits for with 409', async () => {
    const run = await runToEnd(lab, {});
    expect(await resume(lab, run.id, { decisions: [{ id: 'x', decision: 'approve' }] })).toMatchObject({
      status: 409,
      body: { code: 'stale_interruption' },
    });
    expect((await resume(lab, run.id, { settle: [{ toolCallId: 'x', outcome: 'happened' }] })).status).toBe(409);
  });
});

it('R12 R14 counts turns over the conversation, and limits them per attempt', async () => {
  const run = await runToEnd(lab, { limits: { maxTurns: 1 } });
  for (let attempt = 2; attempt <= 4; attempt += 1) {
    expect((await resume(lab, run.id, { input: `turn ${attempt}` })).body).toMatchObject({
      status: 'completed',
      turnCount: attempt,
      attempt,
    });
  }
});

it('sends nothing that either endpoint refuses', () => {
  expect(lab.model.refusedRequests.map(({ problem }) => problem)).toEqual([]);
});
