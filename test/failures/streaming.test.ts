import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  calling,
  callOf,
  ended,
  follow,
  gate,
  getRun,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startRun,
} from '../server/lab.js';
import { neverReads } from '../support/never-reads.js';
import { toolResultsOf } from '../support/request-view.js';
import { openStream, type SseStream } from '../support/sse-client.js';
import type { SseEvent } from '../support/sse-parser.js';
import { TcpProxy } from '../support/tcp-proxy.js';
import { waitFor } from '../support/wait.js';
import { decideAll, startTrial } from './trial.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startTrial({ env: { MODEL_MAX_RETRIES: '0' } });
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

const idsOf = (events: readonly SseEvent[]): number[] => events.map(({ id }) => Number(id));
const from = (first: number, count: number): number[] => Array.from({ length: count }, (_, at) => first + at);
const eventsOf = async (id: unknown, after?: number): Promise<SseStream> =>
  follow(lab, `/v1/runs/${String(id)}/events${after === undefined ? '' : `?after=${after}`}`);

function assertContiguous(events: readonly SseEvent[], after: number): void {
  expect(idsOf(events)).toEqual(from(after + 1, events.length));
}

describe('S01 nothing falls between replay and live', () => {
  it('S01 over connections opened and dropped at random while deltas stream', async () => {
    const text = Array.from({ length: 400 }, (_, n) => `w${n} `);
    lab.model.script({ text, tokenDelayMs: 4 });
    const { body } = await startRun(lab, {});
    const seen: SseEvent[] = [];
    let connections = 0;
    while (seen.at(-1)?.event !== 'run.completed') {
      const stream = await eventsOf(body.id, seen.length);
      connections += 1;
      if (connections < 60) await Promise.race([sleep(Math.random() * 30), stream.ended]);
      else await stream.ended;
      const got = [...stream.events];
      stream.close();
      assertContiguous(got, seen.length);
      seen.push(...got);
    }
    expect(connections).toBeGreaterThan(10);
    expect(seen.map(({ json }) => json)).toEqual(await logOf(lab, body.id));
    const deltas = seen
      .filter(({ event }) => event === 'model.delta')
      .map(({ json }) => (json as { text: string }).text);
    expect(deltas.join('')).toBe(text.join(''));
  });

  it('S01 when the request for approval is emitted while a long history is replayed', async () => {
    const door = gate();
    lab.model.script(calling(callOf('flood', { n: 4000 })), {
      ...calling(callOf('gated', { n: 1 })),
      gate: door.gate,
      gateAt: 'start',
    });
    const { body } = await startRun(lab, {});
    await waitFor(async () => Number((await getRun(lab, body.id)).lastSeq) > 4000, { what: 'the flood' });
    const streams = await Promise.all(Array.from({ length: 8 }, async () => eventsOf(body.id)));
    door.open();
    for (const stream of streams) {
      const events = await stream.collect({ until: ({ event }) => event === 'run.waiting' });
      assertContiguous(events, 0);
      expect(events.filter(({ event }) => event === 'tool.waiting')).toHaveLength(1);
      stream.close();
    }
  });
});

it('S02 twenty readers get the same bytes, and one that never reads takes nothing from them', async () => {
  const door = gate();
  lab.model.script({ text: ['a', 'b'], gate: door.gate, gateAt: 'start' });
  const { body } = await startRun(lab, {});
  const path = `/v1/runs/${String(body.id)}/events`;
  const zombie = await neverReads(`${lab.server.url}${path}`);
  const readers = await Promise.all(Array.from({ length: 20 }, async () => eventsOf(body.id)));
  door.open();
  await Promise.all(readers.map(async (reader) => reader.ended));
  const bytes = readers.map((reader) => reader.rawBytes().toString());
  expect(new Set(bytes).size).toBe(1);
  expect(readers[0]!.events.map(({ json }) => json)).toEqual(await logOf(lab, body.id));
  zombie.destroy();
});

it('S04 an old cursor gets everything after it: while the run goes on, after its end, and after a restart', async () => {
  const door = gate();
  lab.model.script(calling(callOf('flood', { n: 5000 })), { text: 'end', gate: door.gate, gateAt: 'start' });
  const { body } = await startRun(lab, {});
  await waitFor(async () => Number((await getRun(lab, body.id)).lastSeq) > 5000, { what: 'the flood' });
  const during = await eventsOf(body.id, 5);
  door.open();
  await ended(lab, body.id);
  await during.ended;
  const after = await eventsOf(body.id, 5);
  await after.ended;
  await lab.server.restart();
  const restarted = await eventsOf(body.id, 5);
  await restarted.ended;
  const log = (await logOf(lab, body.id)).slice(5);
  for (const stream of [during, after, restarted]) expect(stream.events.map(({ json }) => json)).toEqual(log);
});

describe('S06 a failure is one terminal event', () => {
  it.each([
    ['a 500', { status: 500 }],
    ['a 401', { status: 401 }],
    [
      'an error inside a 200',
      {
        text: ['a', 'b'],
        errorInStream: { after: 1, body: { error: { message: 'overloaded', type: 'server_error' } } },
      },
    ],
  ])('S06 %s on the second turn', async (_name, failure) => {
    lab.model.script(calling(callOf('effect', { n: 6 })), failure);
    const stream = await follow(lab, '/v1/runs', { body: { agent: 'chat', input: 'x' } });
    await stream.ended;
    const terminal = stream.events.filter(({ event }) => /^run\.(completed|failed|cancelled|waiting)$/.test(event));
    expect(terminal.map(({ event }) => event)).toEqual(['run.failed']);
    expect(stream.events.at(-1)?.event).toBe('run.failed');
    const run = await getRun(lab, (terminal[0]!.json as { runId: string }).runId);
    expect(run.status).toBe('failed');
    expect(run.error).toMatchObject({ code: expect.stringMatching(/^model_/) as string });
  });
});

it('S08 S16 a silent run keeps its stream alive through a proxy that cuts idle connections, and is not cancelled', async () => {
  const proxy = await TcpProxy.start(lab.server.url, { idleTimeoutMs: 17_000 });
  const door = gate();
  lab.model.script({ text: 'at last', gate: door.gate, gateAt: 'start' });
  const stream = await openStream(`${proxy.url}/v1/runs`, {
    body: { agent: 'chat', input: 'hello', onDisconnect: 'cancel' },
  });
  await waitFor(() => stream.comments.length > 0, { timeoutMs: 20_000, what: 'a heartbeat' });
  expect(stream.comments[0]?.text.trim()).toBe('hb');
  const cursor = stream.lastEventId;
  await sleep(2_500); // past the proxy's limit, had the heartbeat not come
  expect([proxy.idleCuts, stream.lastEventId]).toEqual([0, cursor]);
  door.open();
  await stream.ended;
  expect(stream.events.at(-1)).toMatchObject({ event: 'run.completed', json: { output: 'at last' } });
  await proxy.close();
}, 40_000);

it.each(['keep-alive', 'close'])(
  'S16 a real cut is noticed at once where the run asked for it, with connection: %s',
  async (connection) => {
    lab.model.script({ text: ['a', 'b'], gate: new Promise(() => undefined), gateAt: 1 });
    const stream = await follow(lab, '/v1/runs', {
      body: { agent: 'chat', input: 'hello', onDisconnect: 'cancel' },
      headers: { connection },
    });
    await stream.collect({ until: ({ event }) => event === 'model.delta' });
    const { runId } = stream.events[0]!.json as { runId: string };
    expect((await getRun(lab, runId)).status).toBe('running');
    stream.close();
    expect(await ended(lab, runId)).toMatchObject({ status: 'cancelled', partialOutput: 'a' });
  },
);

it('S10 text of models and tools cannot forge a frame', async () => {
  const forged = '\r\n\r\nid: 999\r\nevent: run.completed\r\ndata: {"forged":true}\r\n\r\n';
  const odd = `a\rb\nc\r\nd\u2028e\u2029f\u0000g${forged}: hb\n\nretry: 1\n`;
  lab.model.script({ text: [odd], ...calling(callOf('speak', { text: odd })) }, { text: [odd, forged] });
  const stream = await follow(lab, '/v1/runs', {
    body: { agent: 'chat', input: odd, metadata: { 'k\n\nevent: x': odd } },
  });
  await stream.ended;
  const { runId } = stream.events[0]!.json as { runId: string };
  const log = await logOf(lab, runId);
  expect(stream.events.map(({ json }) => json)).toEqual(log);
  expect(stream.retry).toBe(2000);
  assertContiguous(stream.events, 0);
  expect(log.find(({ type }) => type === 'tool.completed')).toMatchObject({ ok: true, result: odd });
  expect(await getRun(lab, runId)).toMatchObject({
    output: odd + forged,
    input: odd,
    metadata: { 'k\n\nevent: x': odd },
  });
  expect(toolResultsOf(lab.model.requests.at(-1)!)[0]?.text).toContain('forged');
  const badCursor = await follow(lab, `/v1/runs/${runId}/events`, { headers: { 'last-event-id': '5\u00e9\u00ff' } });
  expect(badCursor.status).toBe(422);
});

it('S12 a stream that was open at a wait shows what follows the approval, and so does a later one', async () => {
  lab.model.script(calling(callOf('gated', { n: 12 })), { text: 'approved' });
  const { body } = await startRun(lab, {});
  const open = await eventsOf(body.id);
  await open.collect({ until: ({ event }) => event === 'run.waiting' });
  const answer = await resume(lab, body.id, decideAll(await getRun(lab, body.id), 'approve'));
  expect(answer.body.status).toBe('completed');
  await open.ended;
  expect(open.events.at(-1)?.event).toBe('run.completed');
  const later = await eventsOf(body.id);
  await later.ended;
  expect(later.events.map(({ json }) => json)).toEqual(open.events.map(({ json }) => json));
});

it('S14 three approvals in sequence repeat no event and no token', async () => {
  const before = lab.model.usage;
  lab.model.script(...[1, 2, 3].map((n) => ({ text: `turn ${n} `, ...calling(callOf('gated', { n: 140 + n })) })), {
    text: 'done',
  });
  let run = await runToEnd(lab, {});
  const whole = await eventsOf(run.id);
  const opened: SseStream[] = [];
  for (let round = 0; round < 3; round += 1) {
    expect(run.status).toBe('waiting');
    opened.push(await eventsOf(run.id, Number(run.lastSeq)));
    run = (await resume(lab, run.id, decideAll(run, 'approve'))).body;
  }
  expect(run).toMatchObject({ status: 'completed', output: 'done', attempt: 4 });
  await whole.ended;
  assertContiguous(whole.events, 0);
  for (const stream of opened) {
    await stream.ended;
    assertContiguous(stream.events, Number(stream.events[0]!.id) - 1);
    expect(stream.events.at(-1)?.id).toBe(String(run.lastSeq));
  }
  const { usage } = lab.model;
  expect(run.usage).toMatchObject({
    inputTokens: usage.input - before.input,
    outputTokens: usage.output - before.output,
  });
  expect([141, 142, 143].map((n) => lab.ledger.count((effect) => effect.n === n))).toEqual([1, 1, 1]);
});
