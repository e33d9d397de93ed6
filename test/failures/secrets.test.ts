import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bearer, calling, callOf, type Lab } from '../server/lab.js';
import { isObject, type JsonObject, listOf } from '../support/json-path.js';
import type { Reply } from '../support/model-reply.js';
import { toolResultsOf } from '../support/request-view.js';
import { type JsonAnswer } from '../support/server-process.js';
import { openStream } from '../support/sse-client.js';
import { decideAll, startTrial } from './trial.js';

const CANARIES = {
  OPENAI_COMPATIBLE_API_KEY: 'canary-compatible-3f9a7c21',
  ANTHROPIC_API_KEY: 'canary-anthropic-8d02be44',
  OPENAI_API_KEY: 'canary-openai-51c7e9d0',
};
const ALICE = 'alice-key-0123456789abcdef';
const BOB = 'bob-key-0123456789abcdef00';
const PROMPT = 'prompt-canary-77aa';
const RESULT = 'result-canary-88bb';

/** Throws the keys of its environment in the callback that its config names. */
const LEAKY_SHIM = `
import { BoundShim, Shim, defineShim, defineTool, z } from 'shimline/shims';

const leak = () => {
  throw new Error('cannot call with ' + process.env.OPENAI_COMPATIBLE_API_KEY, { cause: process.env.ANTHROPIC_API_KEY });
};

class Leaky extends Shim {
  name = 'leaky';
  constructor({ at, skip }) {
    super();
    if (at === 'create') leak();
    this.onFailure = skip ? 'skip' : 'fail';
    for (const callback of ['onRunStart', 'transformMessages', 'onModelResponse', 'onRunEnd', 'wrapModelCall', 'wrapToolCall', 'transformDelta'])
      if (callback === at) this[callback] = leak;
    this.at = at;
  }
  bind(context) {
    if (this.at === 'bind') leak();
    return super.bind(context);
  }
  prepareTurn(turn) {
    turn.log.info({ key: process.env.OPENAI_API_KEY }, 'a line of the shim itself');
    if (this.at === 'prepareTurn') leak();
    const tool = (needsApproval) => defineTool({ name: 'leak', description: 'x', parameters: z.object({}), needsApproval, execute: () => 'done' });
    turn.addTools([tool(this.at === 'needsApproval' ? leak : false)]);
    if (this.at !== 'background') return;
    void (async () => leak())();
    return new Promise((resolve) => setTimeout(resolve, 50));
  }
  runnerHooks() {
    return this.at === 'hooks' ? [{ onLlmStart: leak, onToolStart: leak }] : [];
  }
}

export default defineShim({
  name: 'leaky',
  config: z.strictObject({ at: z.string(), skip: z.boolean().default(false) }),
  create: (config) => new Leaky(config),
});
`;
const LEAKY_CALLBACKS = [
  'bind',
  'onRunStart',
  'prepareTurn',
  'transformMessages',
  'onModelResponse',
  'onRunEnd',
  'wrapModelCall',
  'wrapToolCall',
  'transformDelta',
] as const;
const SKIPPABLE = [
  'onRunStart',
  'prepareTurn',
  'onModelResponse',
  'onRunEnd',
  'wrapModelCall',
  'wrapToolCall',
] as const;

let lab: Lab;
beforeAll(async () => {
  lab = await startTrial({
    shims: { 'leaky.mjs': LEAKY_SHIM, 'broken.mjs': 'throw new Error(`no ${process.env.OPENAI_API_KEY}`);\n' },
    env: { ...CANARIES, API_KEYS: `alice:${ALICE},bob:${BOB}`, MODEL_MAX_RETRIES: '0', MAX_BODY_BYTES: '200000' },
  });
});
afterAll(async () => {
  await lab.close();
});

const as = async (
  key: string,
  method: string,
  path: string,
  body?: unknown,
  more: Record<string, string> = {},
): Promise<JsonAnswer> => lab.server.json(method, path, body, { ...bearer(key), ...more });
const run = async (body: JsonObject): Promise<JsonObject> =>
  (await as(ALICE, 'POST', '/v1/runs', { agent: 'chat', input: PROMPT, ...body }, { prefer: 'wait=20' })).body;

/** Everything that leaves the process, or stays behind it: answers, events, logs, the files of the data folder. */
async function everything(ids: readonly unknown[]): Promise<string> {
  const texts = [lab.server.logs.join('\n'), lab.server.stderr];
  for (const id of ids) {
    for (const part of ['', '/events', '/state', '/effects', '/checkpoints']) {
      texts.push(await (await lab.server.fetch(`/v1/runs/${String(id)}${part}`, { headers: bearer(ALICE) })).text());
    }
  }
  texts.push(await (await lab.server.fetch('/metrics')).text());
  for (const file of readdirSync(lab.server.dataDir))
    texts.push(readFileSync(join(lab.server.dataDir, file), 'latin1'));
  return texts.join('\n');
}

describe('A02 keys of providers', () => {
  it('A02 come out nowhere, whatever a provider or a tool puts them into', async () => {
    const keys = Object.values(CANARIES);
    const echo = { error: { message: `bad key: authorization: Bearer ${keys.join(' ')}`, type: 'x', param: keys } };
    const replies: readonly Reply[] = [
      { status: 400, errorBody: echo },
      { status: 401, errorBody: echo },
      { status: 500, errorBody: echo },
      { text: ['a', 'b'], errorInStream: { after: 1, body: echo } },
      { text: ['a', 'b'], errorInStream: { after: 1, body: echo, bare: true } },
      { raw: `data: {"error": "${keys.join()}"` },
    ];
    const ids: unknown[] = [];
    for (const agent of ['chat', 'claude']) {
      for (const reply of replies) {
        lab.model.script(reply);
        const failed = await run({ agent });
        expect(failed.status, JSON.stringify(failed)).toBe('failed');
        ids.push(failed.id);
      }
    }
    lab.model.script(calling(callOf('throw_secrets')), { text: 'told' });
    const told = await run({});
    expect(told.status).toBe('completed');
    const text = await everything([...ids, told.id]);
    for (const canary of [...keys, ALICE, BOB]) expect(text.includes(canary), canary).toBe(false);
    expect(JSON.stringify(lab.model.requests.at(-1)?.body)).not.toContain(CANARIES.OPENAI_COMPATIBLE_API_KEY);
  });
});

describe('A02 what a shim throws', () => {
  it('A02 shows no key in the run, its events, the log, the answer to a bad agent, or the list of shims', async () => {
    const keys = [...Object.values(CANARIES), ALICE, BOB];
    const ids: unknown[] = [];
    const leaky = async (config: JsonObject, expected: string): Promise<void> => {
      const saved = await as(ALICE, 'PUT', '/v1/agents/leaky', {
        name: 'leaky',
        model: 'openai-compatible/m',
        instructions: 'x',
        shims: [{ use: 'leaky', config }],
      });
      expect(saved.status, JSON.stringify(saved.body)).toBeLessThan(300);
      lab.model.respondWith((request) =>
        toolResultsOf(request).length > 0 ? { text: 'done' } : calling(callOf('leak')),
      );
      const { id, status, error } = await run({ agent: 'leaky' });
      expect([config, status, JSON.stringify(error)]).toEqual([config, expected, expect.any(String)]);
      if (expected === 'failed') expect(JSON.stringify(error)).toContain('cannot call with [redacted]');
      ids.push(id);
      const preview = await as(ALICE, 'POST', '/v1/agents/leaky/preview', { input: 'x' });
      for (const key of keys) expect(JSON.stringify(preview.body)).not.toContain(key);
    };
    for (const at of [...LEAKY_CALLBACKS, 'background']) await leaky({ at }, 'failed');
    for (const at of SKIPPABLE) await leaky({ at, skip: true }, 'completed');
    // A gate that cannot be judged stays closed.
    await leaky({ at: 'needsApproval' }, 'waiting');
    await leaky({ at: 'hooks' }, 'completed');
    lab.model.respondWith(undefined);
    const refused = await as(ALICE, 'PUT', '/v1/agents/leaky', {
      name: 'leaky',
      model: 'openai-compatible/m',
      instructions: 'x',
      shims: [{ use: 'leaky', config: { at: 'create' } }],
    });
    expect(refused.status).toBe(422);
    expect(JSON.stringify(refused.body)).toContain('cannot call with [redacted]');
    const shims = await as(ALICE, 'GET', '/v1/shims');
    expect(JSON.stringify(shims.body)).toContain('no [redacted]');
    const text = `${await everything(ids)}${JSON.stringify([refused.body, shims.body])}`;
    for (const key of keys) expect(text.includes(key), key).toBe(false);
    expect(lab.server.logs.some((line) => line.includes('a line of the shim itself'))).toBe(true);
  });
});

describe('logs at info', () => {
  it('hold no prompt, no answer, no tool result, and no line that a text has forged', async () => {
    const line = '\n{"level":60,"msg":"forged-line"}\n';
    lab.model.script(calling(callOf('speak', { text: RESULT + line })), { text: `answer-canary-99cc${line}` });
    expect((await run({ metadata: { note: line }, input: PROMPT + line })).status).toBe('completed');
    lab.model.script({ status: 400, errorBody: { error: { message: `no: ${PROMPT}${line}` } } });
    await run({});
    await as(ALICE, 'POST', '/v1/runs', { agent: 'chat', input: PROMPT, unknown: line });
    await as(ALICE, 'GET', `/v1/runs/${encodeURIComponent(line)}`, undefined, {});
    for (const canary of [PROMPT, RESULT, 'answer-canary-99cc', ALICE])
      expect(lab.server.logs.filter((line) => line.includes(canary))).toEqual([]);
    for (const each of lab.server.logs) expect(JSON.parse(each)).not.toMatchObject({ msg: 'forged-line' });
  });
});

describe("another key's run", () => {
  it('is a 404 on every route, for a run that is over and for one that waits, and is in no list', async () => {
    lab.model.script({ text: 'mine' }, calling(callOf('gated', { n: 404 })));
    const done = await run({});
    const waits = await run({});
    expect([done.status, waits.status]).toEqual(['completed', 'waiting']);
    const document = (await lab.server.json('GET', '/openapi.json')).body;
    const routes = Object.entries(document.paths as Record<string, JsonObject>).flatMap(([path, methods]) =>
      path.startsWith('/v1/runs/{')
        ? Object.keys(methods)
            .filter((method) => method !== 'parameters')
            .map((method) => ({ path, method }))
        : [],
    );
    expect(routes.length).toBeGreaterThanOrEqual(9);
    for (const { id, ...of } of [done, waits]) {
      for (const { path, method } of routes) {
        const bodies: Record<string, JsonObject> = {
          resume: of.status === 'waiting' ? decideAll(of, 'approve') : { input: 'x' },
          fork: { input: 'x' },
        };
        const body = bodies[path.split('/').at(-1) ?? ''];
        const url = path.replace(/\{\w+\}/, String(id));
        const answer = await as(BOB, method.toUpperCase(), url, body);
        const mine = `There is no run ${JSON.stringify(id)}.`;
        expect([method, path, answer.status, answer.body.detail]).toEqual([method, path, 404, mine]);
        const none = await as(BOB, method.toUpperCase(), path.replace(/\{\w+\}/, 'none'), body);
        expect([none.status, none.body.code]).toEqual([404, answer.body.code]);
      }
      expect((await as(BOB, 'DELETE', `/v1/runs/${String(id)}?purge=true`)).status).toBe(404);
      const stream = await openStream(`${lab.server.url}/v1/runs/${String(id)}/events`, { headers: bearer(BOB) });
      expect(stream.status).toBe(404);
    }
    const list = (await as(BOB, 'GET', '/v1/runs?limit=1000')).body;
    expect(
      listOf(list.data)
        .filter(isObject)
        .map((each) => each.id),
    ).not.toContain(done.id);
    expect((await as(ALICE, 'GET', `/v1/runs/${String(waits.id)}`)).body).toEqual(waits);
    expect(lab.ledger.count(({ n }) => n === 404)).toBe(0);
  });

  it('is not found by its idempotency key either', async () => {
    lab.model.respondWith(() => ({ text: 'k' }));
    const key = { 'idempotency-key': 'shared' };
    const first = await as(ALICE, 'POST', '/v1/runs', { agent: 'chat', input: 'a' }, key);
    const second = await as(BOB, 'POST', '/v1/runs', { agent: 'chat', input: 'b' }, key);
    expect([first.status, second.status]).toEqual([202, 202]);
    expect(second.body.id).not.toBe(first.body.id);
    lab.model.respondWith(undefined);
  });
});

it('limits of size: a body, a header, and a path that are too large are refused, and the server goes on', async () => {
  expect((await as(ALICE, 'POST', '/v1/runs', { agent: 'chat', input: 'x'.repeat(200_001) })).status).toBe(413);
  expect((await as(ALICE, 'GET', '/v1/runs', undefined, { 'x-long': 'h'.repeat(20_000) })).status).toBe(431);
  expect([400, 404, 414, 431]).toContain((await as(ALICE, 'GET', `/v1/runs/${'p'.repeat(10_000)}`)).status);
  expect((await lab.server.json('GET', '/readyz')).status).toBe(200);
});
