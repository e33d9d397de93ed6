import { connect } from 'node:net';
import { gzipSync } from 'node:zlib';
import { expect, it } from 'vitest';
import { QueueFullError } from '../../src/errors.js';
import { testApp } from './fake-runtime.js';

const JSON_TYPE = { 'content-type': 'application/json' };

it('answers an unknown route with a complete problem object, without the query', async () => {
  const { app } = await testApp();
  const answer = await app.inject({ url: '/v1/nothing?token=secret', headers: { 'x-request-id': 'req-1' } });
  expect(answer.statusCode).toBe(404);
  expect(answer.headers['content-type']).toBe('application/problem+json');
  expect(answer.headers['x-request-id']).toBe('req-1');
  expect(answer.json()).toEqual({
    type: 'urn:shimline:error:route_not_found',
    title: 'Route not found',
    status: 404,
    detail: 'There is no route GET /v1/nothing.',
    instance: '/v1/nothing',
    code: 'route_not_found',
    requestId: 'req-1',
  });
});

it.each([
  ['a method that a route does not have', { method: 'PATCH', url: '/v1/runs' }, 404, 'route_not_found'],
  ['a path that cannot be decoded', { method: 'GET', url: '/v1/runs/%E0%A4%A' }, 400, 'malformed_request'],
  [
    'a path parameter of unreasonable length',
    { method: 'GET', url: `/v1/runs/${'x'.repeat(8000)}` },
    400,
    'malformed_request',
  ],
  [
    'broken JSON',
    { method: 'POST', url: '/v1/runs', headers: JSON_TYPE, payload: '{"agent":' },
    400,
    'malformed_request',
  ],
  [
    'an empty JSON body',
    { method: 'POST', url: '/v1/runs', headers: JSON_TYPE, payload: '' },
    400,
    'malformed_request',
  ],
  [
    'a forbidden key',
    { method: 'POST', url: '/v1/runs', headers: JSON_TYPE, payload: '{"__proto__":{}}' },
    400,
    'malformed_request',
  ],
  [
    'a body nested too deep',
    { method: 'POST', url: '/v1/runs', headers: JSON_TYPE, payload: `{"agent":"a","input":${'['.repeat(50_000)}` },
    400,
    'malformed_request',
  ],
  [
    'a body that is too large',
    { method: 'POST', url: '/v1/runs', headers: JSON_TYPE, payload: `"${'x'.repeat(2000)}"` },
    413,
    'payload_too_large',
  ],
  [
    'a form',
    {
      method: 'POST',
      url: '/v1/runs',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      payload: 'a=b',
    },
    415,
    'unsupported_media_type',
  ],
  [
    'plain text',
    { method: 'POST', url: '/v1/runs', headers: { 'content-type': 'text/plain' }, payload: 'hello' },
    415,
    'unsupported_media_type',
  ],
  [
    'a content type that is none',
    { method: 'POST', url: '/v1/runs', headers: { 'content-type': 'json' }, payload: '{}' },
    415,
    'unsupported_media_type',
  ],
  [
    'a body that is compressed',
    {
      method: 'POST',
      url: '/v1/runs',
      headers: { ...JSON_TYPE, 'content-encoding': 'gzip' },
      payload: gzipSync('{"agent":"a","input":"x"}'),
    },
    415,
    'unsupported_media_type',
  ],
  [
    'a body in another charset',
    {
      method: 'POST',
      url: '/v1/runs',
      headers: { 'content-type': 'application/json; charset=ISO-8859-1' },
      payload: Buffer.from('{"agent":"a","input":"\xe9"}', 'latin1'),
    },
    415,
    'unsupported_media_type',
  ],
  [
    'a body whose bytes are no UTF-8',
    {
      method: 'POST',
      url: '/v1/runs',
      headers: JSON_TYPE,
      payload: Buffer.from('{"agent":"a","input":"\xe9"}', 'latin1'),
    },
    400,
    'malformed_request',
  ],
  ['no body', { method: 'POST', url: '/v1/runs' }, 422, 'validation_failed'],
  [
    'a body that is no object',
    { method: 'POST', url: '/v1/runs', headers: JSON_TYPE, payload: '[]' },
    422,
    'validation_failed',
  ],
  ['an unknown run', { method: 'GET', url: '/v1/runs/other' }, 404, 'run_not_found'],
] as const)('answers %s with a problem', async (_what, request, status, code) => {
  const { app } = await testApp({
    MAX_BODY_BYTES:
      request.url.length > 1000 || ('payload' in request && request.payload.length > 10_000) ? '100000' : '1000',
  });
  const answer = await app.inject(request);
  expect([answer.statusCode, answer.json<{ code: string }>().code]).toEqual([status, code]);
  expect(answer.headers['content-type']).toBe('application/problem+json');
});

it('says what was wrong with a path or a body, and nothing else', async () => {
  const { app } = await testApp();
  const long = await app.inject(`/v1/runs/${'x'.repeat(8000)}`);
  expect(long.json()).toMatchObject({ detail: 'A part of the path of the request is too long.' });
  const key = await app.inject({ method: 'POST', url: '/v1/runs', headers: JSON_TYPE, payload: '{"__proto__":{}}' });
  expect(key.json()).toMatchObject({ detail: 'The body is not valid JSON, or has a key "__proto__".' });
});

it('says nothing of what an unknown failure was, and logs all of it', async () => {
  const { app, runtime, logged } = await testApp();
  runtime.failure = new Error('SQLITE_IOERR at /secret/path');
  const answer = await app.inject({ method: 'POST', url: '/v1/runs', payload: { agent: 'a', input: 'x' } });
  expect(answer.statusCode).toBe(500);
  expect(answer.body).not.toMatch(/SQLITE|secret/);
  expect(answer.json()).toMatchObject({ code: 'internal_error', status: 500 });
  const line = logged.find((entry) => entry.msg === 'request failed');
  expect(line).toMatchObject({
    requestId: answer.headers['x-request-id'],
    err: { message: 'SQLITE_IOERR at /secret/path' },
  });
});

it.each([['a text'], [undefined], [null], [{ statusCode: 404, message: 'sneaky' }]])(
  'answers 500 when something that is no error is thrown: %j',
  async (thrown) => {
    const { app, runtime } = await testApp();
    // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- shims and tools throw such things
    runtime.startRun = async () => Promise.reject(thrown);
    const answer = await app.inject({ method: 'POST', url: '/v1/runs', payload: { agent: 'a', input: 'x' } });
    expect([answer.statusCode, answer.json<{ code: string }>().code]).toEqual([500, 'internal_error']);
  },
);

it('adds Retry-After, and the members that a code has of its own', async () => {
  const { app, runtime } = await testApp();
  runtime.failure = new QueueFullError(10);
  const answer = await app.inject({ method: 'POST', url: '/v1/runs', payload: { agent: 'a', input: 'x' } });
  expect([answer.statusCode, answer.headers['retry-after']]).toEqual([429, '1']);
});

it('limits the requests of each key and says when to come back', async () => {
  const { app } = await testApp({ API_KEYS: 'alice:key-a,bob:key-b', RATE_LIMIT_PER_MINUTE: '2' });
  const ask = async (key: string) => app.inject({ url: '/v1/agents', headers: { authorization: `Bearer ${key}` } });
  expect([(await ask('key-a')).statusCode, (await ask('key-a')).statusCode]).toEqual([200, 200]);
  const refused = await ask('key-a');
  expect([refused.statusCode, refused.json<{ code: string }>().code]).toEqual([429, 'rate_limited']);
  expect(Number(refused.headers['retry-after'])).toBeGreaterThan(0);
  expect((await ask('key-b')).statusCode).toBe(200);
  expect((await app.inject('/healthz')).statusCode).toBe(200);
});

it('mends lone surrogates, which no model takes', async () => {
  const { app, runtime } = await testApp();
  await app.inject({
    method: 'POST',
    url: '/v1/runs',
    headers: JSON_TYPE,
    payload: '{"agent":"a","input":"x\\ud83d y\\ud83d\\ude00"}',
  });
  expect(runtime.calls[0]?.[1]).toMatchObject({ input: 'x\ufffd y\u{1f600}' });
});

it.each([
  ['identity', 'application/json; charset=utf-8'],
  ['Identity', 'application/json;charset="UTF-8"'],
  [undefined, 'application/json; charset=utf8'],
])('reads a body of encoding %s and type %s', async (encoding, type) => {
  const { app } = await testApp();
  const headers = { 'content-type': type, ...(encoding === undefined ? {} : { 'content-encoding': encoding }) };
  const answer = await app.inject({ method: 'POST', url: '/v1/runs', headers, payload: '{"agent":"a","input":"x"}' });
  expect(answer.statusCode).toBe(202);
});

it.each(['application/x-www-form-urlencoded', 'text/plain', 'application/json'])(
  'takes a cancel whose body is empty, although a type is named: %s',
  async (type) => {
    const { app, runtime } = await testApp();
    const headers = { 'content-type': type, 'content-length': '0' };
    await app.inject({ method: 'POST', url: '/v1/runs/run-1/cancel', headers });
    await app.inject({ method: 'DELETE', url: '/v1/runs/run-1', headers: { 'content-type': type } });
    expect(runtime.calls.map(([what]) => what)).toEqual(['cancelRun', 'cancelRun']);
    const start = await app.inject({ method: 'POST', url: '/v1/runs', headers });
    expect([400, 415]).toContain(start.statusCode);
  },
);

it.each([
  ['no Host', 'GET /healthz HTTP/1.1\r\n\r\n', 400, 'malformed_request'],
  ['no Host and a key that is missing', 'GET /v1/runs HTTP/1.1\r\n\r\n', 400, 'malformed_request'],
  [
    'another Expect',
    'POST /v1/runs HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\n{}',
    417,
    'expectation_failed',
  ],
  ['no request line', 'GET\r\n\r\n', 400, 'malformed_request'],
  ['a method that is none', 'BREW /v1/runs HTTP/1.1\r\nHost: a\r\n\r\n', 400, 'malformed_request'],
  ['another version', 'GET / HTTP/3.7\r\nHost: a\r\n\r\n', 400, 'malformed_request'],
  ['a header that is none', 'GET / HTTP/1.1\r\nHost: a\r\nbad header: x\r\n\r\n', 400, 'malformed_request'],
  [
    'two lengths',
    'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}',
    400,
    'malformed_request',
  ],
  ['a call of a proxy', 'CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n', 400, 'malformed_request'],
  ['the greeting of TLS', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', 400, 'malformed_request'],
])('answers %s, where Node would by itself, with a problem, and closes', async (_what, bytes, status, code) => {
  const { app } = await testApp();
  const { port, hostname } = new URL(await app.listen({ port: 0, host: '127.0.0.1' }));
  const socket = connect(Number(port), hostname);
  socket.write(bytes, 'latin1');
  const chunks: Buffer[] = [];
  for await (const chunk of socket) chunks.push(chunk as Buffer);
  const [head = '', body = ''] = Buffer.concat(chunks).toString().split('\r\n\r\n');
  expect(head).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
  expect(head).toMatch(/^content-type: application\/problem\+json\r?$/im);
  expect(JSON.parse(body)).toMatchObject({ status, code, requestId: /^x-request-id: (\S+)/im.exec(head)?.[1] });
});

it('lets a client of HTTP/1.0 do without Host, and one that expects 100-continue go on', async () => {
  const { app } = await testApp();
  const { port, hostname } = new URL(await app.listen({ port: 0, host: '127.0.0.1' }));
  for (const [bytes, begins] of [
    ['GET /healthz HTTP/1.0\r\n\r\n', 'HTTP/1.1 200 OK'],
    [
      'POST /v1/runs HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}',
      'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 422 ',
    ],
  ] as const) {
    const socket = connect(Number(port), hostname);
    socket.write(bytes);
    const chunks: Buffer[] = [];
    for await (const chunk of socket) chunks.push(chunk as Buffer);
    expect(Buffer.concat(chunks).toString().startsWith(begins)).toBe(true);
  }
});

it.each([
  ['a body that is too large', 'Connection: close\r\n', 413, 'payload_too_large'],
  ['one over a connection that is kept', '', 413, 'payload_too_large'],
  ['a large body without a key', 'Authorization: Bearer none\r\nConnection: close\r\n', 401, 'unauthorized'],
])('answers %s to a client that reads only after it has sent everything', async (_what, headers, status, code) => {
  const { app } = await testApp({ MAX_BODY_BYTES: '100000', ...(status === 401 ? { API_KEYS: 'alice:key-a' } : {}) });
  const { port, hostname } = new URL(await app.listen({ port: 0, host: '127.0.0.1' }));
  const body = Buffer.alloc(32 * 1024 * 1024, 'x');
  const socket = connect(Number(port), hostname).pause();
  const head = `POST /v1/runs HTTP/1.1\r\nHost: a\r\n${headers}Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
  socket.write(head);
  await new Promise<void>((resolve, reject) => {
    socket.once('error', reject);
    socket.write(body, () => {
      resolve();
    });
  });
  let answer = '';
  for await (const chunk of socket) {
    answer += String(chunk);
    if (answer.includes(`"code":"${code}"`)) break;
  }
  expect(answer).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
});
