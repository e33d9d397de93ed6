import { once } from 'node:events';
import { Agent, request as httpRequest } from 'node:http';
import { connect } from 'node:net';
import { setTimeout } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { within } from '../support/wait.js';
import {
  calling,
  callOf,
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
beforeEach(async () => {
  lab = await startLab();
});
afterEach(async () => {
  await lab.close();
});

const never = new Promise<void>(() => {});

/** Waits until the server says that it drains, with the port open. */
async function draining(): Promise<void> {
  for (;;) {
    const { status, body, headers } = await lab.server.json('GET', '/readyz');
    if (status === 503) {
      expect([body.code, Number(headers['retry-after']) > 0]).toEqual(['draining', true]);
      return;
    }
  }
}

describe('SIGTERM', () => {
  it('keeps the port open while runs reach their next checkpoint, refuses new work, and hands the rest to the next start', async () => {
    const finished = await runToEnd(lab, {});
    const held = lab.ledger.blockAfter('unknown');
    lab.model.script(calling(callOf('unknown_tool', { n: 1 })), { text: 'on the other side' });
    const { body: run } = await startRun(lab, {});
    await held.reached;
    const over = lab.server.term();
    await draining();
    expect((await lab.server.json('GET', '/healthz')).status).toBe(200);
    const refused = [
      await startRun(lab, {}),
      await resume(lab, finished.id, { input: 'more' }),
      await lab.server.json('POST', `/v1/runs/${String(finished.id)}/fork`, { input: 'more' }),
    ];
    for (const { status, headers, body } of refused) {
      expect([status, body.code, body.status]).toEqual([503, 'draining', 503]);
      expect(headers['content-type']).toMatch(/^application\/problem\+json/);
      expect(Number(headers['retry-after'])).toBeGreaterThan(0);
    }
    expect((await getRun(lab, run.id)).status).toBe('running');
    held.release();
    expect(await over).toBe(0);

    await lab.server.restart();
    expect(await ended(lab, run.id)).toMatchObject({
      status: 'completed',
      output: 'on the other side',
      attempt: 1,
      unknownToolCalls: [],
    });
    expect(lab.ledger.count('unknown')).toBe(1);
    expect(typesOf(await logOf(lab, run.id))).not.toContain('run.failed');
    expect((await lab.server.json('GET', '/readyz')).status).toBe(200);
  });

  it('lets all calls of a round end before it hands the run over', async () => {
    const held = [lab.ledger.blockAfter('unknown'), lab.ledger.blockAfter('fail')];
    lab.model.script(calling(callOf('unknown_tool', { n: 1 }), callOf('fail_tool', { n: 2 })), { text: 'whole' });
    const { body: run } = await startRun(lab, {});
    await Promise.all(held.map(async ({ reached }) => reached));
    const over = lab.server.term();
    await draining();
    held[0]!.release();
    for (let seen = 0; seen < 1; )
      seen = typesOf(await logOf(lab, run.id)).filter((type) => type === 'tool.completed').length;
    held[1]!.release();
    expect(await over).toBe(0);
    await lab.server.restart();
    expect(await ended(lab, run.id)).toMatchObject({ status: 'completed', output: 'whole', unknownToolCalls: [] });
    expect(
      lab.ledger
        .entries()
        .map(({ n }) => n)
        .sort(),
    ).toEqual([1, 2]);
  });

  it('still takes cancels, also of a waiting run, and finishes them with their clean-up', async () => {
    lab.model.script(calling(callOf('gated')));
    const waiting = await runToEnd(lab, {});
    lab.model.script({ text: 'x', gate: never, gateAt: 'start' });
    const { body: run } = await startRun(lab, {});
    await lab.model.waitForRequest(2);
    const over = lab.server.term();
    await draining();
    expect(await lab.server.json('DELETE', `/v1/runs/${String(waiting.id)}`, undefined, WAIT)).toMatchObject({
      status: 200,
      body: { status: 'cancelled' },
    });
    expect(await lab.server.json('DELETE', `/v1/runs/${String(run.id)}`, undefined, WAIT)).toMatchObject({
      status: 200,
      body: { status: 'cancelled' },
    });
    expect(await over).toBe(0);
  });

  it('ends streams and waits of runs that are handed over, and the stream goes on after the restart by its cursor', async () => {
    await lab.server.restart({ env: { SHUTDOWN_GRACE_MS: '300' } });
    lab.model.script({ text: ['a', 'b'], gate: never, gateAt: 1 }, { text: 'again' });
    const stream = await follow(lab, '/v1/runs', { body: { agent: 'chat', input: 'hello' } });
    await stream.collect({ until: ({ event }) => event === 'model.delta' });
    const id = (stream.events[0]!.json as { runId: string }).runId;
    const wait = lab.server.json('GET', `/v1/runs/${id}`, undefined, WAIT);
    expect(await lab.server.term()).toBe(0);
    expect(await stream.ended).toEqual({ how: 'end' });
    expect(await wait).toMatchObject({ status: 200, body: { status: 'running' } });
    await lab.server.restart();
    const rest = await follow(lab, `/v1/runs/${id}/events`, { headers: { 'last-event-id': stream.lastEventId } });
    await rest.ended;
    const names = [...stream.events, ...rest.events].map(({ event }) => event);
    expect(names).toEqual(typesOf(await logOf(lab, id)));
    expect(names.filter((name) => name.startsWith('run.'))).toEqual([
      'run.created',
      'run.started',
      'run.recovered',
      'run.completed',
    ]);
    expect(await getRun(lab, id)).toMatchObject({ status: 'completed', output: 'again' });
  });

  it('is no crash: a run that is handed over ever so often is not given up', async () => {
    await lab.server.restart({ env: { SHUTDOWN_GRACE_MS: '0' } });
    lab.model.respondWith(() => ({ text: 'x', gate: never, gateAt: 'start' }));
    const { body: run } = await startRun(lab, {});
    for (let round = 1; round <= 4; round += 1) {
      await lab.model.waitForRequest(round);
      expect(await lab.server.term()).toBe(0);
      if (round === 4) lab.model.respondWith(() => ({ text: 'patience' }));
      await lab.server.restart();
    }
    expect(await ended(lab, run.id)).toMatchObject({ status: 'completed', output: 'patience', attempt: 1 });
  });

  it('with nothing to do ends at once, also with idle streams open', async () => {
    lab.model.script(calling(callOf('gated')));
    const run = await runToEnd(lab, {});
    const stream = await follow(lab, `/v1/runs/${String(run.id)}/events`);
    await stream.collect({ until: ({ event }) => event === 'run.waiting' });
    expect(await within(lab.server.term(), 5_000, 'the end')).toBe(0);
    expect(await stream.ended).toEqual({ how: 'end' });
  });

  it('does not wait for kept connections, whether idle, with a stream, with a wait or with half a request', async () => {
    await lab.server.restart({ env: { SHUTDOWN_GRACE_MS: '0' } });
    const agents = Array.from({ length: 4 }, () => new Agent({ keepAlive: true, maxSockets: 1 }));
    const [idle, streaming, waiting, sending] = agents as [Agent, Agent, Agent, Agent];
    const sockets: unknown[] = [];
    idle.on('free', (socket) => sockets.push(socket));
    lab.model.script({ text: 'a' }, { text: 'b' }, { text: 'c', gate: never, gateAt: 'start' });
    for (const input of ['first', 'second']) {
      const over = await follow(lab, '/v1/runs', { agent: idle, body: { agent: 'chat', input } });
      expect([(await over.ended).how, over.headers.connection]).toEqual(['end', 'keep-alive']);
    }
    expect(sockets[0]).toBe(sockets[1]);
    const open = await follow(lab, '/v1/runs', { agent: streaming, body: { agent: 'chat', input: 'third' } });
    await open.collect({ until: ({ event }) => event === 'model.started' });
    const id = (open.events[0]!.json as { runId: string }).runId;
    const wait = follow(lab, `/v1/runs/${id}`, { agent: waiting, headers: { accept: '*/*', ...WAIT } });
    const body = JSON.stringify({ agent: 'chat', input: 'late' });
    const headers = { 'content-type': 'application/json', 'content-length': body.length };
    const half = httpRequest(`${lab.server.url}/v1/runs`, { method: 'POST', agent: sending, headers });
    half.write(body.slice(0, 10));
    await lab.model.waitForRequest(3);
    await setTimeout(100);
    const over = lab.server.term();
    await open.ended;
    await setTimeout(100);
    half.end(body.slice(10));
    expect((await once(half, 'response'))[0]).toMatchObject({ statusCode: 503 });
    expect(await within(over, 5_000, 'the end')).toBe(0);
    expect(await open.ended).toEqual({ how: 'end' });
    expect((await wait).status).toBe(200);
    for (const agent of agents) agent.destroy();
  });
});

describe('SIGTERM beside connections that ask for nothing', () => {
  it.each([
    ['say nothing', ''],
    ['send half a head', 'POST /v1/runs HTTP/1.1\r\nhost: x\r\n'],
    [
      'send half a body',
      'POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{',
    ],
  ])('ends with 0 although they %s', async (_what, bytes) => {
    const { port } = new URL(lab.server.url);
    const socket = connect({ host: '127.0.0.1', port: Number(port) });
    socket.on('error', () => undefined);
    await once(socket, 'connect');
    socket.write(bytes);
    await setTimeout(100);
    expect(await within(lab.server.term(), 5_000, 'the end')).toBe(0);
    socket.destroy();
  });

  it('gives all answers of requests that were sent one behind the other, the last one as the last', async () => {
    const { port } = new URL(lab.server.url);
    lab.model.respondWith(() => ({ text: 'x', gate: never, gateAt: 'start' }));
    await lab.server.restart({ env: { SHUTDOWN_GRACE_MS: '0' } });
    const { body: run } = await startRun(lab, {});
    const socket = connect({ host: '127.0.0.1', port: Number(new URL(lab.server.url).port || port) });
    let got = '';
    socket.setEncoding('utf8').on('data', (text: string) => (got += text));
    const get = `GET /v1/runs/${String(run.id)} HTTP/1.1\r\nhost: x\r\nprefer: wait=20\r\n\r\n`;
    socket.write(get + get + get);
    await setTimeout(200);
    const closed = once(socket, 'close');
    expect(await within(lab.server.term(), 5_000, 'the end')).toBe(0);
    await closed;
    expect(got.match(/HTTP\/1\.1 200/g)).toHaveLength(3);
  });
});

describe('operations', () => {
  it('are healthz, readyz, metrics, the document and the docs, with request ids on every answer', async () => {
    for (const path of ['/healthz', '/readyz', '/openapi.json']) {
      const { status, headers } = await lab.server.json('GET', path);
      expect([path, status, headers['x-request-id'] !== undefined]).toEqual([path, 200, true]);
    }
    const metrics = await (await lab.server.fetch('/metrics')).text();
    expect(metrics).toMatch(/^# (HELP|TYPE) /m);
    expect((await lab.server.fetch('/docs', { redirect: 'follow' })).status).toBe(200);
    const { body } = await lab.server.json('GET', '/openapi.json');
    const paths = Object.keys(body.paths as JsonObject);
    for (const path of [
      '/v1/runs',
      '/v1/runs/{id}',
      '/v1/runs/{id}/resume',
      '/v1/runs/{id}/events',
      '/v1/agents/{name}',
      '/v1/shims',
    ]) {
      expect(paths).toContain(path);
    }
  });

  it('A02 logs neither keys nor message contents at info', async () => {
    lab.model.script(calling(callOf('echo', { secret: 'argument-canary' })), { text: 'answer-canary' });
    await runToEnd(lab, { input: 'input-canary' });
    lab.model.script({ status: 401, errorBody: { error: { message: 'no test-compatible-key' } } });
    await runToEnd(lab, {});
    await lab.server.term();
    const logs = lab.server.logs.join('\n') + lab.server.stderr;
    expect(logs).not.toMatch(/canary|test-(compatible|openai|anthropic)-key/);
  });

  it('keeps the agents, their versions and the runs over a restart', async () => {
    await putAgent(lab, 'chat', { instructions: 'Second.' });
    const before = await lab.server.json('GET', '/v1/agents/chat');
    expect(before.body.version).toBe(2);
    const run = await runToEnd(lab, {});
    await lab.server.restart();
    expect((await lab.server.json('GET', '/v1/agents/chat')).body).toEqual(before.body);
    expect(await getRun(lab, run.id)).toEqual(run);
  });
});

describe('the queue', () => {
  it('beyond MAX_QUEUED_RUNS answers 429 with Retry-After to starts, resumes and forks; cancels free it', async () => {
    const first = await runToEnd(lab, {});
    await lab.server.restart({ env: { MAX_CONCURRENT_RUNS: '1', MAX_QUEUED_RUNS: '2' } });
    const door = gate();
    lab.model.script({ text: 'one', gate: door.gate, gateAt: 'start' });
    const running = await startRun(lab, {});
    const queued = [await startRun(lab, {}), await startRun(lab, {})];
    expect([running, ...queued].map(({ status }) => status)).toEqual([202, 202, 202]);
    for (const { status, headers, body } of [
      await startRun(lab, {}),
      await resume(lab, first.id, { input: 'x' }, {}),
      await lab.server.json('POST', `/v1/runs/${String(first.id)}/fork`, { input: 'x' }),
    ]) {
      expect([status, body.code]).toEqual([429, 'queue_full']);
      expect(Number(headers['retry-after'])).toBeGreaterThan(0);
    }
    expect(await getRun(lab, first.id)).toMatchObject({ status: 'completed', attempt: 1 });
    expect(await lab.server.json('DELETE', `/v1/runs/${String(queued[0]!.body.id)}`, undefined, WAIT)).toMatchObject({
      status: 200,
      body: { status: 'cancelled', startedAt: null },
    });
    expect(typesOf(await logOf(lab, queued[0]!.body.id))).toEqual(['run.created', 'run.cancelling', 'run.cancelled']);
    const third = await startRun(lab, {});
    expect(third.status).toBe(202);
    door.open();
    for (const { body } of [running, queued[1]!, third])
      expect(await ended(lab, body.id)).toMatchObject({ status: 'completed' });
  });
});
