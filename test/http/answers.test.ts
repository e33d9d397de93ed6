import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, it } from 'vitest';
import { RUN, testApp } from './fake-runtime.js';

const START = { method: 'POST', url: '/v1/runs', payload: { agent: 'a', input: 'x' } } as const;
const finished = { ...RUN, status: 'completed', version: 9 } as const;

describe('a start', () => {
  it('is answered at once with 202, the run and where it is', async () => {
    const { app } = await testApp();
    const answer = await app.inject(START);
    expect(answer.statusCode).toBe(202);
    expect(answer.json()).toEqual(RUN);
    expect(answer.headers).toMatchObject({
      'content-type': 'application/json; charset=utf-8',
      location: '/v1/runs/run-1',
      'content-location': '/v1/runs/run-1',
    });
    expect(answer.headers['preference-applied']).toBeUndefined();
  });

  it.each([
    ['completed', 200],
    ['waiting', 200],
    ['failed', 200],
    ['running', 202],
    ['queued', 202],
    ['cancelling', 202],
  ] as const)('that waits and finds the run %s is answered with %s', async (status, code) => {
    const { app, runtime } = await testApp();
    runtime.waited = async () => ({ ...RUN, status });
    const answer = await app.inject({ ...START, headers: { prefer: 'respond-async, wait="3"' } });
    expect([answer.statusCode, answer.json<{ status: string }>().status, answer.headers['preference-applied']]).toEqual(
      [code, status, 'wait=3'],
    );
    expect(runtime.calls[1]).toEqual(['waitForRun', 'run-1', 3000]);
  });

  it('that repeats a key says so', async () => {
    const { app, runtime } = await testApp();
    expect((await app.inject(START)).headers['idempotency-replayed']).toBeUndefined();
    runtime.replayed = true;
    expect((await app.inject(START)).headers['idempotency-replayed']).toBe('true');
  });
});

describe('a read', () => {
  it('has the version as its ETag', async () => {
    const { app } = await testApp();
    const answer = await app.inject('/v1/runs/run-1');
    expect([answer.statusCode, answer.headers.etag, answer.headers['content-type']]).toEqual([
      200,
      '"7"',
      'application/json; charset=utf-8',
    ]);
    expect(answer.json()).toEqual(RUN);
  });

  it('waits when that is preferred, and says the version that it found then', async () => {
    const { app, runtime } = await testApp();
    runtime.waited = async () => finished;
    const answer = await app.inject({ url: '/v1/runs/run-1', headers: { prefer: 'wait=1' } });
    expect([answer.statusCode, answer.headers.etag, answer.headers['preference-applied']]).toEqual([
      200,
      '"9"',
      'wait=1',
    ]);
  });
});

describe('a cancel', () => {
  it.each([
    ['DELETE', '/v1/runs/run-1'],
    ['POST', '/v1/runs/run-1/cancel'],
  ] as const)('by %s %s is 202 while it goes on, 200 on a run that is over', async (method, url) => {
    const { app, runtime } = await testApp();
    runtime.run = { ...RUN, status: 'cancelling' };
    expect((await app.inject({ method, url })).statusCode).toBe(202);
    expect((await app.inject({ method, url, headers: { prefer: 'wait=1' } })).statusCode).toBe(202);
    runtime.waited = async () => ({ ...RUN, status: 'cancelled' });
    const waited = await app.inject({ method, url, headers: { prefer: 'wait=1' } });
    expect([waited.statusCode, waited.headers['content-location']]).toEqual([200, '/v1/runs/run-1']);
    runtime.run = finished;
    expect((await app.inject({ method, url })).statusCode).toBe(200);
  });

  it('never deletes, unless purge=true says so', async () => {
    const { app, runtime } = await testApp();
    await app.inject({ method: 'DELETE', url: '/v1/runs/run-1?purge=false' });
    const purged = await app.inject({ method: 'DELETE', url: '/v1/runs/run-1?purge=true' });
    expect([purged.statusCode, purged.body]).toEqual([204, '']);
    expect(runtime.calls).toEqual([
      ['cancelRun', 'run-1'],
      ['purgeRun', 'run-1'],
    ]);
  });
});

it('answers a fork with 201 and where the new run is', async () => {
  const { app } = await testApp();
  const answer = await app.inject({ method: 'POST', url: '/v1/runs/run-1/fork', payload: { turn: 2 } });
  expect([answer.statusCode, answer.headers.location, answer.json<{ id: string }>().id]).toEqual([
    201,
    '/v1/runs/run-2',
    'run-2',
  ]);
});

describe('events', () => {
  const STREAM = { accept: 'text/event-stream' };

  it('are a page unless a stream is asked for, the header winning over ?after=', async () => {
    const { app, runtime } = await testApp();
    expect((await app.inject('/v1/runs/run-1/events?after=2&limit=10')).json()).toEqual({ data: [], lastSeq: 3 });
    await app.inject({ url: '/v1/runs/run-1/events?after=2', headers: { 'last-event-id': '1' } });
    expect(runtime.calls).toEqual([
      ['readEvents', { after: 2, limit: 10 }],
      ['readEvents', { after: 1, limit: 1000 }],
    ]);
  });

  it('stop an EventSource with 204 at the last seq of a run that is over, and only there', async () => {
    const { app, runtime } = await testApp();
    runtime.run = finished;
    const last = await app.inject({ url: '/v1/runs/run-1/events', headers: { ...STREAM, 'last-event-id': '3' } });
    expect([last.statusCode, last.body]).toEqual([204, '']);
    expect((await app.inject('/v1/runs/run-1/events?after=3')).statusCode).toBe(200);
    expect((await app.inject({ url: '/v1/runs/other/events', headers: STREAM })).statusCode).toBe(404);
  });

  it('refuse a cursor that is none', async () => {
    const { app } = await testApp();
    for (const headers of [{}, STREAM]) {
      const answer = await app.inject({ url: '/v1/runs/run-1/events?after=abc', headers });
      expect([answer.statusCode, answer.json<{ code: string }>().code]).toEqual([422, 'invalid_cursor']);
    }
  });
});

describe('a client that waits and goes', () => {
  async function startAndGo(onDisconnect: string): Promise<readonly string[]> {
    const { app, runtime } = await testApp();
    await app.listen({ port: 0, host: '127.0.0.1' });
    const gone = new Promise<void>((resolve) => {
      runtime.waited = async (signal) => {
        signal.addEventListener('abort', () => {
          resolve();
        });
        client.destroy();
        return new Promise((_resolve, reject) => {
          signal.addEventListener('abort', () => reject(signal.reason as Error));
        });
      };
    });
    const { port } = app.server.address() as AddressInfo;
    const headers = { 'content-type': 'application/json', prefer: 'wait=30' };
    const client = httpRequest({ port, host: '127.0.0.1', path: '/v1/runs', method: 'POST', headers });
    client.on('error', () => undefined);
    client.end(JSON.stringify({ agent: 'a', input: 'x', onDisconnect }));
    await gone;
    return runtime.calls.map(([method]) => method);
  }

  it('leaves the run alone', async () => {
    expect(await startAndGo('continue')).toEqual(['startRun', 'waitForRun']);
  });

  it('takes the run with it when it said so', async () => {
    expect(await startAndGo('cancel')).toEqual(['startRun', 'waitForRun', 'cancelRun']);
  });
});

it('answers whoever waits when the server closes, and closes at once', async () => {
  const { app, runtime } = await testApp();
  const url = await app.listen({ port: 0, host: '127.0.0.1' });
  let waiting: () => void = () => undefined;
  const begun = new Promise<void>((resolve) => {
    waiting = resolve;
  });
  runtime.waited = async (signal) => {
    waiting();
    await once(signal, 'abort');
    return Promise.reject(signal.reason as Error);
  };
  const answer = fetch(`${url}/v1/runs/run-1`, { headers: { prefer: 'wait=600' } });
  await begun;
  const closed = app.close();
  expect((await answer).status).toBe(200);
  await closed;
});
