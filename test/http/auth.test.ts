import { expect, it } from 'vitest';
import { testApp } from './fake-runtime.js';

const KEYS = { API_KEYS: 'alice:key-a,bob:key-b' };

it('lets everyone in where there are no keys', async () => {
  const { app } = await testApp();
  expect((await app.inject('/v1/runs/run-1')).statusCode).toBe(200);
});

it.each([
  undefined,
  '',
  'key-a',
  'Bearer',
  'Bearer ',
  'Bearer key-c',
  'Bearer key-',
  'Bearer key-aa',
  'Bearer alice:key-a',
  'Basic key-a',
  'Bearer key-a key-b',
  'Bearer alice',
])('refuses the authorization %j', async (authorization) => {
  const { app, runtime } = await testApp(KEYS);
  const answer = await app.inject({ url: '/v1/runs', headers: authorization === undefined ? {} : { authorization } });
  expect([answer.statusCode, answer.headers['www-authenticate'], answer.json<{ code: string }>().code]).toEqual([
    401,
    'Bearer',
    'unauthorized',
  ]);
  expect(runtime.calls).toEqual([]);
});

it.each(['Bearer key-a', 'bearer key-a', 'BEARER  key-a'])('takes %j', async (authorization) => {
  const { app } = await testApp(KEYS);
  expect((await app.inject({ url: '/v1/runs', headers: { authorization } })).statusCode).toBe(200);
});

it('tells the runtime whose key it was', async () => {
  const { app, runtime } = await testApp(KEYS);
  const callers: unknown[] = [];
  runtime.getRunJson = async (...args: readonly unknown[]) => {
    callers.push(args[1]);
    return { json: '{}', version: 1 };
  };
  for (const key of ['key-a', 'key-b'])
    await app.inject({ url: '/v1/runs/run-1', headers: { authorization: `Bearer ${key}` } });
  expect(callers).toEqual([{ key: 'alice' }, { key: 'bob' }]);
});

it('wants a key for every route under /v1 that the document names, and for no other', async () => {
  const { app } = await testApp(KEYS);
  const document = (await app.inject('/openapi.json')).json<{
    paths: Record<string, Record<string, { security?: unknown[] }>>;
  }>();
  const routes = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { security }]) => ({ path, method, open: security?.length === 0 })),
  );
  expect(routes.length).toBeGreaterThan(15);
  for (const { path, method, open } of routes) {
    const answer = await app.inject({
      method: method.toUpperCase() as 'GET',
      url: path.replaceAll(/\{\w+\}/g, 'run-1'),
    });
    expect({ path, method, open, refused: answer.statusCode === 401 }).toEqual({
      path,
      method,
      open,
      refused: path.startsWith('/v1/'),
    });
    expect(open).toBe(!path.startsWith('/v1/'));
  }
});

it.each(['/healthz', '/readyz', '/metrics', '/openapi.json', '/docs'])('wants no key for %s', async (url) => {
  const { app } = await testApp(KEYS);
  expect((await app.inject(url)).statusCode).toBeLessThan(400);
});

it('never logs a key', async () => {
  const { app, logged } = await testApp(KEYS);
  await app.inject({ url: '/v1/runs', headers: { authorization: 'Bearer key-a' } });
  await app.inject({ url: '/v1/runs', headers: { authorization: 'Bearer key-wrong' } });
  expect(JSON.stringify(logged)).not.toContain('key-');
});
