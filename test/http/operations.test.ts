import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { describe, expect, it } from 'vitest';
import { testApp } from './fake-runtime.js';

describe('health', () => {
  it('is of the process', async () => {
    const { app, runtime } = await testApp();
    runtime.draining = true;
    const answer = await app.inject('/healthz');
    expect([answer.statusCode, answer.json()]).toEqual([200, { status: 'ok' }]);
  });

  it('is not readiness, which names what is missing', async () => {
    const { app, runtime } = await testApp();
    expect((await app.inject('/readyz')).statusCode).toBe(200);
    runtime.faults = ['the store is not writable'];
    const answer = await app.inject('/readyz');
    expect([answer.statusCode, answer.json()]).toMatchObject([
      503,
      { code: 'not_ready', faults: ['the store is not writable'] },
    ]);
    runtime.draining = true;
    const draining = await app.inject('/readyz');
    expect([draining.statusCode, draining.json<{ code: string }>().code, draining.headers['retry-after']]).toEqual([
      503,
      'draining',
      '5',
    ]);
  });
});

it('counts requests by route, never by path, and runs by status', async () => {
  const { app } = await testApp();
  await app.inject('/v1/runs/run-1');
  await app.inject('/v1/runs/secret-id');
  await app.inject('/nothing/here');
  const answer = await app.inject('/metrics');
  expect(answer.headers['content-type']).toMatch(/^text\/plain; version=/);
  expect(answer.body).toContain(
    'shimline_http_request_duration_seconds_count{method="GET",route="/v1/runs/:id",status="200"} 1',
  );
  expect(answer.body).toContain(
    'shimline_http_request_duration_seconds_count{method="GET",route="/v1/runs/:id",status="404"} 1',
  );
  expect(answer.body).toContain(
    'shimline_http_request_duration_seconds_count{method="GET",route="none",status="404"} 1',
  );
  expect(answer.body).toContain('shimline_runs{status="running"} 2');
  expect(answer.body).toContain('process_cpu_seconds_total');
  expect(answer.body).not.toContain('secret-id');
});

describe('request ids', () => {
  it.each(['abc', 'A-1_b.c:d', 'x'.repeat(128)])('%j is taken over', async (id) => {
    const { app } = await testApp();
    expect((await app.inject({ url: '/healthz', headers: { 'x-request-id': id } })).headers['x-request-id']).toBe(id);
  });

  it.each(['', 'a b', '"}', 'x'.repeat(129), 'ä'])('%j is replaced', async (id) => {
    const { app } = await testApp();
    const answer = await app.inject({ url: '/healthz', headers: { 'x-request-id': id } });
    expect(answer.headers['x-request-id']).toMatch(/^[0-9a-f-]{36}$/);
  });
});

describe('the docs', () => {
  it('load nothing from elsewhere', async () => {
    const { app } = await testApp();
    const page = await app.inject('/docs/');
    expect(page.statusCode).toBe(200);
    expect(page.headers['content-security-policy']).not.toMatch(/https?:|upgrade-insecure/);
    expect(page.body).not.toMatch(/(?:src|href)="(?:https?:)?\/\//);
    const assets = Array.from(
      page.body.matchAll(/(?:src|href)="([^"]+)"/g),
      ([, path = '']) => new URL(path, 'http://host/docs/').pathname,
    );
    expect(assets.length).toBeGreaterThan(3);
    for (const path of assets) expect([path, (await app.inject(path)).statusCode]).toEqual([path, 200]);
  });

  it('need no inline script', async () => {
    const { app } = await testApp();
    expect((await app.inject('/docs/')).body).not.toMatch(/<script(?![^>]*\bsrc=)[^>]*>/);
  });
});

it('sends headers that keep browsers from using its answers as pages', async () => {
  const { app } = await testApp();
  expect((await app.inject('/v1/runs/run-1')).headers).toMatchObject({
    'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
    'x-content-type-options': 'nosniff',
  });
});

describe('bytes that are no request', () => {
  async function send(bytes: string): Promise<{ readonly head: string; readonly problem: Record<string, unknown> }> {
    const { app } = await testApp();
    const url = new URL(await app.listen({ port: 0, host: '127.0.0.1' }));
    const socket = connect(Number(url.port), '127.0.0.1');
    socket.write(bytes);
    const [head = '', body = ''] = (await text(socket)).split('\r\n\r\n');
    return { head, problem: JSON.parse(body) as Record<string, unknown> };
  }

  it('are answered with 400 and a problem', async () => {
    const { head, problem } = await send('NONSENSE\r\n\r\n');
    expect(head.split('\r\n').slice(0, 2)).toEqual([
      'HTTP/1.1 400 Bad Request',
      'content-type: application/problem+json',
    ]);
    expect(problem).toMatchObject({ code: 'malformed_request', status: 400, requestId: expect.any(String) as string });
  });

  it('and headers that are too large with 431', async () => {
    const { head, problem } = await send(`GET / HTTP/1.1\r\nhost: x\r\nlong: ${'x'.repeat(20_000)}\r\n\r\n`);
    expect(head).toMatch(/^HTTP\/1\.1 431 /);
    expect(problem).toMatchObject({ code: 'headers_too_large', status: 431 });
  });
});
