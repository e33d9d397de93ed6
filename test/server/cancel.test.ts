import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { waitFor } from '../support/wait.js';
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
  putAgent,
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
  await putAgent(lab, 'slow-end', { labConfig: { hold: ['onRunEnd'] } });
  await putAgent(lab, 'slow-start', { labConfig: { hold: ['onRunStart'] } });
  await lab.server.json('PUT', '/v1/agents/quick', { model: 'scripted/demo' });
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

const never = new Promise<void>(() => {});

/** A run whose model call is under way. */
async function inModelCall(agent = 'chat'): Promise<string> {
  const requests = lab.model.requests.length;
  lab.model.script({ text: ['some ', 'more'], gate: never, gateAt: 1 });
  const { body } = await startRun(lab, { agent });
  await lab.model.waitForRequest(requests + 1);
  return String(body.id);
}

const cancel = async (id: unknown, headers: Record<string, string> = {}): ReturnType<typeof startRun> =>
  lab.server.json('DELETE', `/v1/runs/${String(id)}`, undefined, headers);

describe.each(DIALECTS)('a cancel over $dialect', ({ agent }) => {
  it('C01 reaches the model connection, keeps the partial text, and gives a receipt', async () => {
    const id = await inModelCall(agent);
    await waitFor(async () => typesOf(await logOf(lab, id)).includes('model.delta'));
    const aborted = lab.model.abortedRequests;
    const answer = await cancel(id);
    expect(answer).toMatchObject({
      status: 202,
      body: { id, status: 'cancelling' },
      headers: { location: `/v1/runs/${id}` },
    });
    const run = await ended(lab, id);
    expect(run).toMatchObject({
      status: 'cancelled',
      partialOutput: 'some ',
      output: null,
      error: null,
      cancellation: {
        requestedAt: expect.stringMatching(/Z$/) as string,
        inFlight: [
          {
            kind: 'model',
            name: expect.any(String) as string,
            id: expect.any(String) as string,
            obeyed: true,
            ms: expect.any(Number) as number,
            sideEffects: 'none',
          },
        ],
        cleanupMs: expect.any(Number) as number,
      },
    });
    await waitFor(() => lab.model.abortedRequests === aborted + 1);
    const events = await logOf(lab, id);
    expect(typesOf(events).filter((type) => type.startsWith('run.'))).toEqual([
      'run.created',
      'run.started',
      'run.cancelling',
      'run.cancelled',
    ]);
    expect(events.at(-1)).toMatchObject({ cancellation: run.cancellation, partialOutput: 'some ' });
  });
});

describe('the ways of asking for a cancel', () => {
  it('DELETE and POST …/cancel are the same, and waiting answers 200 once clean-up is over', async () => {
    const id = await inModelCall('slow-end');
    const held = lab.ledger.blockBefore('onRunEnd');
    const first = await lab.server.json('POST', `/v1/runs/${id}/cancel`);
    expect(first).toMatchObject({ status: 202, body: { status: 'cancelling' } });
    await held.reached;
    expect(await cancel(id, { prefer: 'wait=1' })).toMatchObject({ status: 202, body: { status: 'cancelling' } });
    const waited = cancel(id, WAIT);
    held.release();
    expect(await waited).toMatchObject({ status: 200, body: { status: 'cancelled' } });
    expect(lab.ledger.count(({ name, runId }) => name === 'onRunEnd' && runId === id)).toBe(1);
  });

  it('as a stream are the events from run.cancelling to the end, clean-up included; also for one that comes second', async () => {
    const id = await inModelCall('slow-end');
    const held = lab.ledger.blockBefore('onRunEnd');
    const stream = await follow(lab, `/v1/runs/${id}`, { method: 'DELETE' });
    await held.reached;
    const second = await follow(lab, `/v1/runs/${id}/cancel`, { method: 'POST' });
    await second.collect({ until: ({ event }) => event === 'run.cancelling' });
    held.release();
    await Promise.all([stream.ended, second.ended]);
    const names = stream.events.map(({ event }) => event);
    expect([names[0], names.at(-1)]).toEqual(['run.cancelling', 'run.cancelled']);
    expect(second.events.map(({ id: seq }) => seq)).toEqual(stream.events.map(({ id: seq }) => seq));
  });

  it('of a run that is over are 200 and no change; the stream is its last event', async () => {
    const run = await runToEnd(lab, {});
    for (const headers of [{}, WAIT]) expect(await cancel(run.id, headers)).toMatchObject({ status: 200, body: run });
    const stream = await follow(lab, `/v1/runs/${String(run.id)}`, { method: 'DELETE' });
    await stream.ended;
    expect(stream.events.map(({ id, event }) => [Number(id), event])).toEqual([[run.lastSeq, 'run.completed']]);
    expect(await getRun(lab, run.id)).toEqual(run);
  });

  it('of a run that is not there are 404', async () => {
    expect(await cancel('nobody')).toMatchObject({ status: 404, body: { code: 'run_not_found' } });
    expect((await lab.server.json('POST', '/v1/runs/nobody/cancel')).status).toBe(404);
  });

  it.each(['', WAIT.prefer, 'stream'])('of a waiting run end it at once (%s)', async (how) => {
    lab.model.script(calling(callOf('gated')));
    const run = await runToEnd(lab, {});
    if (how === 'stream') {
      const stream = await follow(lab, `/v1/runs/${String(run.id)}`, { method: 'DELETE' });
      await stream.ended;
      expect(stream.events.map(({ event }) => event)).toEqual(['run.cancelling', 'tool.completed', 'run.cancelled']);
    } else {
      const answer = await cancel(run.id, how === '' ? {} : { prefer: how });
      // Nothing is left to clean up, so the answer shows it cancelled already; the status is that of a cancel taken.
      expect(answer).toMatchObject({ status: how === '' ? 202 : 200, body: { status: 'cancelled' } });
    }
    expect(await getRun(lab, run.id)).toMatchObject({
      status: 'cancelled',
      interruptions: [],
      finishedAt: expect.any(String) as string,
    });
  });
});

describe('a cancel in a tool round', () => {
  it('tells the receipt which calls obeyed, and the effects they may have had', async () => {
    const held = [lab.ledger.blockBefore('unknown'), lab.ledger.blockBefore('deaf'), lab.ledger.blockBefore('retry')];
    lab.model.script(
      calling(
        callOf('unknown_tool', { n: 1 }),
        callOf('deaf', { n: 2 }),
        callOf('retry_tool', { n: 3 }),
        callOf('echo', { done: true }),
      ),
    );
    const { body } = await startRun(lab, {});
    await Promise.all(held.map(async ({ reached }) => reached));
    const answer = await cancel(body.id, WAIT);
    for (const block of held) block.release();
    expect(answer).toMatchObject({ status: 200, body: { status: 'cancelled' } });
    const { inFlight } = answer.body.cancellation as { inFlight: JsonObject[] };
    expect(
      Object.fromEntries(inFlight.map((entry) => [entry.name, [entry.kind, entry.obeyed, entry.sideEffects]])),
    ).toEqual({
      unknown_tool: ['tool', true, 'unknown'],
      deaf: ['tool', false, 'unknown'],
      retry_tool: ['tool', true, 'none'],
    });
    const events = await logOf(lab, body.id);
    const completed = events.filter(({ type }) => type === 'tool.completed');
    expect(Object.fromEntries(completed.map(({ name, ok }) => [name, ok]))).toEqual({
      unknown_tool: false,
      deaf: false,
      retry_tool: false,
      echo: true,
    });
    lab.model.script({ text: 'went on' });
    expect((await resume(lab, body.id, { input: 'go on' })).body).toMatchObject({
      status: 'completed',
      output: 'went on',
    });
  });
});

describe('a cancel of a run that has not begun', () => {
  it('R64 R65 interrupts an awaited onRunStart, and the model is not called', async () => {
    const held = lab.ledger.blockBefore('onRunStart');
    const requests = lab.model.requests.length;
    const { body } = await startRun(lab, { agent: 'slow-start' });
    await held.reached;
    expect(await cancel(body.id, WAIT)).toMatchObject({ status: 200, body: { status: 'cancelled', turnCount: 0 } });
    held.release();
    expect(lab.model.requests.length).toBe(requests);
  });
});

describe('R68 a cancel in the clean-up of a finished run', () => {
  it('changes nothing: 202 with the status as it is, no run.cancelling, and the run ends completed', async () => {
    const held = lab.ledger.blockBefore('onRunEnd');
    lab.model.script({ text: 'kept' });
    const { body } = await startRun(lab, { agent: 'slow-end' });
    await held.reached;
    expect(await cancel(body.id)).toMatchObject({ status: 202, body: { status: 'running' } });
    held.release();
    expect(await ended(lab, body.id)).toMatchObject({ status: 'completed', output: 'kept', cancellation: null });
    expect(typesOf(await logOf(lab, body.id))).not.toContain('run.cancelling');
  });
});

it('twenty cancels at once make one run.cancelling and one end', async () => {
  const id = await inModelCall();
  const answers = await Promise.all(Array.from({ length: 20 }, async () => cancel(id)));
  for (const { status } of answers) expect([200, 202]).toContain(status);
  await ended(lab, id);
  expect(typesOf(await logOf(lab, id)).filter((type) => type.startsWith('run.cancel'))).toEqual([
    'run.cancelling',
    'run.cancelled',
  ]);
});

it('a cancel and the end of a run at once leave one end and an answer that is true', async () => {
  for (let round = 0; round < 30; round += 1) {
    const door = gate();
    const requests = lab.model.requests.length;
    lab.model.script({ text: 'finished', gate: door.gate, gateAt: 'finish' });
    const { body } = await startRun(lab, {});
    await lab.model.waitForRequest(requests + 1);
    door.open();
    if (round % 3 > 0) await new Promise((resolve) => setTimeout(resolve, round % 7));
    const answer = await cancel(body.id, WAIT);
    const run = await getRun(lab, body.id);
    expect(answer.body.status).toBe(run.status);
    const ends = typesOf(await logOf(lab, body.id)).filter((type) => /^run\.(completed|failed|cancelled)$/.test(type));
    expect(ends).toEqual([`run.${String(run.status)}`]);
  }
});

it('C03 a cancel that came after the end is never answered as one that was taken', async () => {
  const seen: string[] = [];
  for (let round = 0; round < 15; round += 1) {
    const one = async (delay: number): Promise<void> => {
      const { body } = await startRun(lab, { agent: 'quick' });
      await new Promise((resolve) => setTimeout(resolve, delay));
      const answer = await cancel(body.id);
      seen.push(`${answer.status} ${String(answer.body.status)}`);
      await ended(lab, body.id);
    };
    await Promise.all(Array.from({ length: 20 }, async (_, delay) => one(delay)));
  }
  expect(seen.filter((answer) => answer === '202 completed')).toEqual([]);
});

describe('purge', () => {
  it('deletes the record of a run that is over, and only then', async () => {
    lab.model.script({ text: 'bye' });
    const run = await runToEnd(lab, { metadata: { purge: 'me' } });
    const path = `/v1/runs/${String(run.id)}`;
    expect((await lab.server.json('DELETE', path)).status).toBe(200);
    expect((await getRun(lab, run.id)).status).toBe('completed');
    const answer = await lab.server.json('DELETE', `${path}?purge=true`);
    expect([answer.status, answer.body]).toEqual([204, {}]);
    for (const part of ['', '/state', '/events', '/checkpoints', '/effects'])
      expect((await lab.server.json('GET', path + part)).status).toBe(404);
    expect((await lab.server.json('GET', '/v1/runs?metadata.purge=me')).body.data).toEqual([]);
    expect((await lab.server.json('DELETE', `${path}?purge=true`)).status).toBe(404);
  });

  it('of an active run is 409, and it goes on', async () => {
    const id = await inModelCall();
    const answer = await lab.server.json('DELETE', `/v1/runs/${id}?purge=true`);
    expect([answer.status, answer.body.status]).toEqual([409, 409]);
    expect((await getRun(lab, id)).status).toBe('running');
    await cancel(id, WAIT);
    expect((await lab.server.json('DELETE', `/v1/runs/${id}?purge=true`)).status).toBe(204);
  });

  it('reads its flag strictly', async () => {
    const run = await runToEnd(lab, {});
    for (const flag of ['1', 'TRUE', 'yes', '']) {
      expect((await lab.server.json('DELETE', `/v1/runs/${String(run.id)}?purge=${flag}`)).status).toBe(422);
    }
    expect((await getRun(lab, run.id)).status).toBe('completed');
  });
});
