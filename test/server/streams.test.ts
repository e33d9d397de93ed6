import { once } from 'node:events';
import { connect } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { neverReads } from '../support/never-reads.js';
import type { SseStream } from '../support/sse-client.js';
import type { SseEvent } from '../support/sse-parser.js';
import { waitFor } from '../support/wait.js';
import {
  calling,
  callOf,
  DIALECTS,
  ended,
  follow,
  gate,
  getRun,
  interruptionIds,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startLab,
  startRun,
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

const namesOf = (events: readonly SseEvent[]): string[] => events.map(({ event }) => event);
const idsOf = (events: readonly SseEvent[]): number[] => events.map(({ id }) => Number(id));
const range = (first: number, last: number): number[] =>
  Array.from({ length: last - first + 1 }, (_, at) => first + at);

async function post(body: object, headers: Record<string, string> = {}): Promise<SseStream> {
  return follow(lab, '/v1/runs', { body: { agent: 'chat', input: 'hello', ...body }, headers });
}

/** What holds for every stream of ours. */
function assertFrames(stream: SseStream, firstSeq: number): void {
  expect(stream.status).toBe(200);
  expect(stream.headers).toMatchObject({
    'content-type': expect.stringMatching(/^text\/event-stream/) as string,
    'cache-control': 'no-store, no-transform',
    'x-accel-buffering': 'no',
  });
  expect(stream.rawBytes().toString().startsWith('retry: 2000\n')).toBe(true);
  expect(stream.retry).toBe(2000);
  expect(idsOf(stream.events)).toEqual(range(firstSeq, firstSeq + stream.events.length - 1));
  for (const { id, event, json } of stream.events) expect(json).toMatchObject({ seq: Number(id), type: event });
}

describe.each(DIALECTS)('POST /v1/runs as a stream over $dialect', ({ agent }) => {
  it("sends the run's events from the first, and closes after the one that ends the attempt", async () => {
    lab.model.script({ text: ['one ', 'two'] });
    const stream = await post({ agent });
    expect(await stream.ended).toEqual({ how: 'end' });
    assertFrames(stream, 1);
    expect(namesOf(stream.events).slice(0, 2)).toEqual(['run.created', 'run.started']);
    expect(stream.events.at(-1)).toMatchObject({ event: 'run.completed', json: { output: 'one two' } });
    const id = (stream.events[0]!.json as { runId: string }).runId;
    expect(stream.headers.location).toBe(`/v1/runs/${id}`);
    expect(stream.events.map(({ json }) => json)).toEqual(await logOf(lab, id));
  });

  it('closes after run.waiting too', async () => {
    lab.model.script(calling(callOf('gated')));
    const stream = await post({ agent });
    expect(await stream.ended).toEqual({ how: 'end' });
    expect(namesOf(stream.events).slice(-1)).toEqual(['run.waiting']);
    expect(namesOf(stream.events)).toContain('tool.waiting');
  });

  it('sends deltas as they come, each after its commit', async () => {
    const door = gate();
    lab.model.script({ text: ['early ', 'late'], gate: door.gate, gateAt: 1 });
    const stream = await post({ agent });
    await stream.collect({ until: ({ event }) => event === 'model.delta' });
    const id = (stream.events[0]!.json as { runId: string }).runId;
    const stored = await logOf(lab, id);
    expect(stored.at(-1)).toMatchObject({ type: 'model.delta', kind: 'text', text: 'early ' });
    door.open();
    await stream.ended;
    expect(stream.events.at(-1)).toMatchObject({ event: 'run.completed', json: { output: 'early late' } });
  });

  it('ends a failure in mid-stream with run.failed and the error', async () => {
    lab.model.script({ status: 400 });
    const stream = await post({ agent });
    await stream.ended;
    const last = stream.events.at(-1)!;
    expect(last).toMatchObject({ event: 'run.failed', json: { error: { code: 'model_error' }, partialOutput: null } });
    expect((last.json as { error: unknown }).error).toEqual(
      (await getRun(lab, (last.json as { runId: string }).runId)).error,
    );
  });
});

it('an error before the stream is a problem object, not a stream', async () => {
  const stream = await post({ agent: 'nobody' });
  expect(stream.status).toBe(422);
  expect(stream.headers['content-type']).toMatch(/^application\/problem\+json/);
  expect(JSON.parse(await stream.text())).toMatchObject({ status: 422, errors: [{ pointer: '/agent' }] });
});

describe('GET …/events', () => {
  it('is a JSON page of the same log, with limit, after and the last seq', async () => {
    const run = await runToEnd(lab, {});
    const path = `/v1/runs/${String(run.id)}/events`;
    const { body } = await lab.server.json('GET', `${path}?after=2&limit=3`);
    expect((body.data as { seq: number }[]).map(({ seq }) => seq)).toEqual([3, 4, 5]);
    expect(body.lastSeq).toBe(run.lastSeq);
    const atEnd = await lab.server.json('GET', `${path}?after=${String(run.lastSeq)}`);
    expect(atEnd).toMatchObject({ status: 200, body: { data: [], lastSeq: run.lastSeq } });
  });

  it('goes on after a cursor, the header winning, and ends with the run', async () => {
    const run = await runToEnd(lab, {});
    const last = Number(run.lastSeq);
    const path = `/v1/runs/${String(run.id)}/events`;
    const byQuery = await follow(lab, `${path}?after=4`);
    await byQuery.ended;
    assertFrames(byQuery, 5);
    expect(idsOf(byQuery.events)).toEqual(range(5, last));
    const byHeader = await follow(lab, `${path}?after=1`, { headers: { 'last-event-id': String(last - 1) } });
    await byHeader.ended;
    expect(idsOf(byHeader.events)).toEqual([last]);
    expect(byHeader.events[0]?.event).toBe('run.completed');
  });

  it('answers 204 at the last seq of a run that is over', async () => {
    const run = await runToEnd(lab, {});
    const stream = await follow(lab, `/v1/runs/${String(run.id)}/events`, {
      headers: { 'last-event-id': String(run.lastSeq) },
    });
    expect([stream.status, await stream.text()]).toEqual([204, '']);
  });

  it.each(['x', '1.5', '-1', '1e1', ' ', '99999', '0x1'])(
    'refuses the cursor %j with 422 invalid_cursor, as a page and as a stream',
    async (cursor) => {
      const run = await runToEnd(lab, {});
      const path = `/v1/runs/${String(run.id)}/events`;
      const page = await lab.server.json('GET', `${path}?after=${encodeURIComponent(cursor)}`);
      expect(page).toMatchObject({ status: 422, body: { code: 'invalid_cursor' } });
      const stream = await follow(lab, `${path}?after=${encodeURIComponent(cursor)}`);
      expect([stream.status, (JSON.parse(await stream.text()) as { code: string }).code]).toEqual([
        422,
        'invalid_cursor',
      ]);
      if (cursor.trim() === '') return;
      const header = await follow(lab, path, { headers: { 'last-event-id': cursor } });
      expect([header.status, (JSON.parse(await header.text()) as { code: string }).code]).toEqual([
        422,
        'invalid_cursor',
      ]);
    },
  );

  it('stays open while a run waits, carries on with its next attempt, and ends with the run', async () => {
    lab.model.script(calling(callOf('gated')), { text: 'went on' });
    const run = await runToEnd(lab, {});
    expect(run.status).toBe('waiting');
    const stream = await follow(lab, `/v1/runs/${String(run.id)}/events`);
    await stream.collect({ until: ({ event }) => event === 'run.waiting' });
    const other = await follow(lab, `/v1/runs/${String(run.id)}/events?after=${String(run.lastSeq)}`);
    expect(other.status).toBe(200);
    await resume(lab, run.id, { decisions: [{ id: interruptionIds(run)[0], decision: 'approve' }] });
    expect(await stream.ended).toEqual({ how: 'end' });
    expect(await other.ended).toEqual({ how: 'end' });
    assertFrames(stream, 1);
    assertFrames(other, Number(run.lastSeq) + 1);
    expect(namesOf(other.events)[0]).toBe('run.resumed');
    expect(namesOf(stream.events).slice(-1)).toEqual(['run.completed']);
  });

  it('shows all attempts of a run that was resumed, and ends only at the newest end', async () => {
    const first = await runToEnd(lab, {});
    const door = gate();
    lab.model.script({ text: 'second', gate: door.gate, gateAt: 'start' });
    await resume(lab, first.id, { input: 'again' }, {});
    const stream = await follow(lab, `/v1/runs/${String(first.id)}/events`);
    await stream.collect({ until: ({ event }) => event === 'run.resumed' });
    door.open();
    await stream.ended;
    assertFrames(stream, 1);
    expect(namesOf(stream.events).filter((name) => name === 'run.completed')).toHaveLength(2);
  });

  it('R49 shows two readers at different cursors the same log', async () => {
    lab.model.script({ text: Array.from({ length: 60 }, (_, n) => `${n} `), tokenDelayMs: 3 });
    const { body: run } = await startRun(lab, {});
    const path = `/v1/runs/${String(run.id)}/events`;
    const one = await follow(lab, path);
    await one.collect({ until: ({ id }) => Number(id) >= 12 });
    const two = await follow(lab, `${path}?after=5`);
    await Promise.all([one.ended, two.ended]);
    assertFrames(one, 1);
    assertFrames(two, 6);
    expect(two.events.map(({ data }) => data)).toEqual(one.events.slice(5).map(({ data }) => data));
  });
});

describe('a disconnect', () => {
  it('never touches the run', async () => {
    const door = gate();
    lab.model.script({ text: ['a', 'b'], gate: door.gate, gateAt: 1 });
    const stream = await post({});
    await stream.collect({ until: ({ event }) => event === 'model.delta' });
    const id = (stream.events[0]!.json as { runId: string }).runId;
    stream.close();
    await stream.ended;
    door.open();
    expect(await ended(lab, id)).toMatchObject({ status: 'completed', output: 'ab' });
  });

  it('cancels the run when onDisconnect says so, as a stream and as a wait', async () => {
    lab.model.script({ text: ['a', 'b'], gate: new Promise(() => {}), gateAt: 1 });
    const stream = await post({ onDisconnect: 'cancel' });
    await stream.collect({ until: ({ event }) => event === 'model.delta' });
    const id = (stream.events[0]!.json as { runId: string }).runId;
    stream.close();
    expect(await ended(lab, id)).toMatchObject({ status: 'cancelled', partialOutput: 'a' });

    lab.model.script({ text: ['a', 'b'], gate: new Promise(() => {}), gateAt: 1 });
    const requests = lab.model.requests.length;
    const gone = new AbortController();
    const waiting = lab.server
      .fetch('/v1/runs', {
        method: 'POST',
        body: JSON.stringify({ agent: 'chat', input: 'hello', onDisconnect: 'cancel', metadata: { gone: 'wait' } }),
        headers: { 'content-type': 'application/json', prefer: 'wait=30' },
        signal: gone.signal,
      })
      .catch(() => undefined);
    await lab.model.waitForRequest(requests + 1);
    gone.abort();
    await waiting;
    const { body } = await lab.server.json('GET', '/v1/runs?metadata.gone=wait');
    expect(await ended(lab, (body.data as { id: string }[])[0]!.id)).toMatchObject({ status: 'cancelled' });
  });

  it('of a client that is gone before it is answered cancels too', async () => {
    lab.model.respondWith(() => ({ text: 'x', gate: new Promise(() => {}), gateAt: 'start' }));
    const { port } = new URL(lab.server.url);
    for (const accept of ['accept: text/event-stream', 'prefer: wait=30']) {
      const metadata = { gone: accept.slice(0, 6) };
      const body = JSON.stringify({ agent: 'chat', input: 'hello', onDisconnect: 'cancel', metadata });
      for (let round = 0; round < 5; round += 1) {
        const socket = connect({ host: '127.0.0.1', port: Number(port) });
        await once(socket, 'connect');
        const head = `POST /v1/runs HTTP/1.1\r\nhost: x\r\n${accept}\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n`;
        socket.write(head + body, () => socket.destroy());
      }
      const statuses = async (): Promise<unknown[]> => {
        const { body: page } = await lab.server.json('GET', `/v1/runs?metadata.gone=${metadata.gone}`);
        return (page.data as { status: string }[]).map(({ status }) => status);
      };
      await waitFor(async () => (await statuses()).filter((status) => status === 'cancelled').length === 5);
    }
  });

  it('of a client that has sent its request behind another one on the same connection cancels too', async () => {
    lab.model.respondWith(() => ({ text: 'x', gate: new Promise(() => {}), gateAt: 'start' }));
    const { port } = new URL(lab.server.url);
    const socket = connect({ host: '127.0.0.1', port: Number(port) });
    await once(socket, 'connect');
    for (const accept of ['accept: text/event-stream', 'accept: text/event-stream', 'prefer: wait=30']) {
      const metadata = { gone: 'behind' };
      const body = JSON.stringify({ agent: 'chat', input: 'hello', onDisconnect: 'cancel', metadata });
      socket.write(
        `POST /v1/runs HTTP/1.1\r\nhost: x\r\n${accept}\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
      );
    }
    const statuses = async (): Promise<unknown[]> => {
      const { body: page } = await lab.server.json('GET', '/v1/runs?metadata.gone=behind');
      return (page.data as { status: string }[]).map(({ status }) => status);
    };
    await waitFor(async () => (await statuses()).filter((status) => status === 'running').length === 3);
    socket.destroy();
    await waitFor(async () => (await statuses()).filter((status) => status === 'cancelled').length === 3);
  });

  it('of a reader that reads nothing drops it at 1 MiB of backlog; it comes back with its cursor', async () => {
    const door = gate();
    const text = Array.from({ length: 400 }, () => 'x'.repeat(32_768));
    lab.model.script({ text, gate: door.gate, gateAt: 1 });
    const { body: run } = await startRun(lab, {});
    const path = `/v1/runs/${String(run.id)}/events`;
    const deaf = await neverReads(`${lab.server.url}${path}`);
    await waitFor(async () => (await getRun(lab, run.id)).lastSeq !== undefined);
    door.open();
    await deaf.closed;
    const part = (await deaf.resume()).toString();
    const seen = Math.max(0, ...[...part.matchAll(/^id: (\d+)$/gm)].map(([, id]) => Number(id)));
    expect(await ended(lab, run.id)).toMatchObject({ status: 'completed' });
    const whole = await follow(lab, `${path}?after=${Math.max(0, seen - 1)}`);
    await whole.ended;
    assertFrames(whole, Math.max(0, seen - 1) + 1);
    expect(whole.events.at(-1)?.event).toBe('run.completed');
  });
});

it('sends a heartbeat of exactly ": hb" and one newline every 15 s', async () => {
  const door = gate();
  lab.model.script({ text: 'x', gate: door.gate, gateAt: 'start' });
  const stream = await post({});
  await stream.collect({ until: ({ event }) => event === 'model.started' });
  const before = stream.rawBytes().length;
  const openedAt = Date.now();
  await waitFor(() => stream.comments.length > 0, { timeoutMs: 18_000, everyMs: 50 });
  expect(stream.rawBytes().subarray(before).toString()).toBe(': hb\n');
  expect(stream.comments[0]!.at - openedAt).toBeGreaterThan(13_000);
  door.open();
  await stream.ended;
  expect(stream.events.at(-1)?.event).toBe('run.completed');
});
