import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bearer, calling, callOf, follow, type Lab, startLab, WAIT } from './lab.js';

const ALICE = 'alice-key-0123456789';
const BOB = 'bob-key-0123456789';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab({ env: { API_KEYS: `alice:${ALICE},bob:${BOB}`, RATE_LIMIT_PER_MINUTE: '400' } });
});
afterAll(async () => {
  await lab.close();
});

const routesOf = (id: string): readonly (readonly [string, string, object?])[] => [
  ['GET', `/v1/runs/${id}`],
  ['GET', `/v1/runs/${id}/state`],
  ['GET', `/v1/runs/${id}/checkpoints`],
  ['GET', `/v1/runs/${id}/effects`],
  ['GET', `/v1/runs/${id}/events`],
  ['POST', `/v1/runs/${id}/resume`, { input: 'x' }],
  ['POST', `/v1/runs/${id}/resume`, { decisions: [{ id: 'x', decision: 'approve' }] }],
  ['POST', `/v1/runs/${id}/cancel`],
  ['POST', `/v1/runs/${id}/fork`, { input: 'x' }],
  ['DELETE', `/v1/runs/${id}`],
  ['DELETE', `/v1/runs/${id}?purge=true`],
];

describe('API_KEYS', () => {
  it.each([
    ['no key', {}],
    ['a wrong key', bearer('nobody')],
    ['a key with a prefix missing', { authorization: ALICE }],
    ['another scheme', { authorization: `Basic ${ALICE}` }],
    ['the name instead of the key', bearer('alice')],
    ['both', bearer(`alice:${ALICE}`)],
  ])('answer 401 to %s, on every route', async (_, headers) => {
    for (const [method, path, body] of [
      ['GET', '/v1/agents'],
      ['GET', '/v1/shims'],
      ['GET', '/v1/runs'],
      ['POST', '/v1/runs', { agent: 'chat', input: 'x' }],
      ...routesOf('x'),
    ] as const) {
      const answer = await lab.server.json(method, path, body, headers);
      expect([path, answer.status, answer.body.code]).toEqual([path, 401, 'unauthorized']);
      expect(answer.headers['www-authenticate']).toBe('Bearer');
    }
  });

  it('are not wanted by what an orchestrator asks', async () => {
    for (const path of ['/healthz', '/readyz']) expect((await lab.server.json('GET', path)).status).toBe(200);
  });

  it("make another key's run not found on every route, and touch it in none", async () => {
    lab.model.script(calling(callOf('gated')));
    const started = await lab.server.json(
      'POST',
      '/v1/runs',
      { agent: 'chat', input: 'mine' },
      { ...bearer(ALICE), ...WAIT },
    );
    expect(started.body.status).toBe('waiting');
    const id = String(started.body.id);
    for (const [method, path, body] of routesOf(id)) {
      const answer = await lab.server.json(method, path, body, bearer(BOB));
      expect([method, path, answer.status, answer.body.code]).toEqual([method, path, 404, 'run_not_found']);
      // What is told of it is what is told of a run that is not there.
      const nobody = await lab.server.json(method, path.replace(id, 'nobody'), body, bearer(BOB));
      expect(String(nobody.body.detail).replace('nobody', id)).toBe(answer.body.detail);
    }
    for (const [method, path] of [
      ['GET', `/v1/runs/${id}/events`],
      ['DELETE', `/v1/runs/${id}`],
    ] as const) {
      const stream = await follow(lab, path, { method, headers: bearer(BOB) });
      expect(stream.status).toBe(404);
    }
    const lists = await Promise.all(
      [BOB, ALICE].map(async (key) => lab.server.json('GET', '/v1/runs', undefined, bearer(key))),
    );
    expect(lists.map(({ body }) => (body.data as { id: string }[]).some((run) => run.id === id))).toEqual([
      false,
      true,
    ]);
    expect((await lab.server.json('GET', `/v1/runs/${id}`, undefined, bearer(ALICE))).body).toEqual(started.body);
  });

  it('keep idempotency keys apart', async () => {
    const post = async (key: string): ReturnType<typeof lab.server.json> =>
      lab.server.json(
        'POST',
        '/v1/runs',
        { agent: 'chat', input: 'same' },
        { ...bearer(key), 'idempotency-key': 'one' },
      );
    const [alice, bob] = [await post(ALICE), await post(BOB)];
    expect([alice.status, bob.status]).toEqual([202, 202]);
    expect(bob.body.id).not.toBe(alice.body.id);
  });

  it('are limited one by one with 429 and Retry-After', async () => {
    let limited: Awaited<ReturnType<typeof lab.server.json>> | undefined;
    for (let round = 0; limited === undefined && round < 500; round += 1) {
      const answer = await lab.server.json('GET', '/v1/agents', undefined, bearer(BOB));
      if (answer.status !== 200) limited = answer;
    }
    expect(limited).toMatchObject({ status: 429, body: { status: 429, code: 'rate_limited' } });
    expect(Number(limited?.headers['retry-after'])).toBeGreaterThan(0);
    expect((await lab.server.json('GET', '/v1/agents', undefined, bearer(ALICE))).status).toBe(200);
  });
});
