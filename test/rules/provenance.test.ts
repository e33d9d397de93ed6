import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { calling, callOf, ended, interruptionIds, logOf, resume, runToEnd, startRun, typesOf } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { waitFor } from '../support/wait.js';
import { putAgent, type Seam, startSeam, textsOf, writeShim } from './seam.js';

const SHIMS = {
  works: `export default defineShim({
    name: 'works',
    state: z.object({ n: z.number().default(0) }),
    onRunStart(state) {
      state.history.push(internalMessage({ role: 'user', content: 'TOP-SECRET' }, { origin: 'works', ephemeral: true }));
    },
    prepareTurn(turn) {
      turn.appendSystemInstruction('Be brief.');
      turn.addTools([tool('fast', () => 'real'), tool('gone', () => 'real')]);
      turn.excludeTools(['gone']);
      turn.appendHistoryItem('a note');
      turn.modelArgs = { ...turn.modelArgs, temperature: 0.5 };
      turn.state.n += 1;
    },
    transformMessages: (turn, messages) => [...messages, { role: 'user', content: 'for one call' }],
    onModelResponse(turn) { if (turn.turnCount === 2) turn.replaceHistory(turn.runState.history.slice(-1)); },
  });`,
  'calls-model': `export default defineShim({
    name: 'calls-model',
    prepareTurn: (turn) => turn.callModel({ messages: [{ role: 'user', content: 'sum up' }] }, { purpose: 'summary' }).then(() => undefined),
  });`,
  throws: `export default defineShim({ name: 'throws', prepareTurn() { throw new Error('as asked'); } });`,
  stays: `export default defineShim({ name: 'stays', prepareTurn(turn) { turn.addTools([tool('gated', () => 'real', { needsApproval: true })]); } });`,
};
const versioned = (mark: string): string => `export default defineShim({
  name: 'versioned', description: '${mark}',
  async prepareTurn(turn) {
    turn.setSystemInstruction('${mark}');
    turn.addTools([tool('slow', () => tell('slow').then(() => '${mark}'), { onCrash: 'retry' })]);
  },
});`;

let seam: Seam;
beforeAll(async () => {
  seam = await startSeam(
    { ...SHIMS, versioned: versioned('one'), broken: versioned('fine').replace("'versioned'", "'broken'") },
    { env: { SHIMS_WATCH: 'true' } },
  );
  await putAgent(seam, 'plain');
  await putAgent(seam, 'works', { shims: ['works'], instructions: 'You are kind.' });
  await putAgent(seam, 'calls-model', { shims: ['works', 'calls-model'] });
  await putAgent(seam, 'throws', { shims: ['works', 'throws'] });
  await putAgent(seam, 'versioned', { shims: ['stays', { use: 'versioned', as: 'mine' }] });
  await putAgent(seam, 'broken', { shims: ['broken'] });
  await putAgent(seam, 'hands-over', { shims: ['stays'], handoffs: ['works'] });
});
afterAll(async () => {
  await seam.close();
});
beforeEach(() => {
  seam.model.respondWith(undefined);
});

const effectsOf = async (id: unknown, query = ''): Promise<JsonObject> =>
  (await seam.server.json('GET', `/v1/runs/${String(id)}/effects${query}`)).body;
const preview = async (agent: string, input: unknown = 'hello'): Promise<JsonObject> => {
  const { status, body } = await seam.server.json('POST', `/v1/agents/${agent}/preview`, { input });
  expect(status, JSON.stringify(body)).toBe(200);
  return body;
};
const shimNamed = async (name: string): Promise<JsonObject> => {
  const { body } = await seam.server.json('GET', '/v1/shims');
  return (body.data as JsonObject[]).find((shim) => shim.name === name) ?? {};
};

/** What the works shim does in its first turn, in order. */
const FIRST_TURN = [
  { turn: null, callback: 'onRunStart', what: ['history+'] },
  { turn: 1, callback: 'prepareTurn', what: ['instructions', 'history+', 'tools+', 'modelArgs', 'state', 'state'] },
  { turn: 1, callback: 'transformMessages', what: ['messages'] },
];
const summaryOf = (effects: unknown): unknown[] =>
  (effects as { turn: number | null; callback: string; changes: { what: string }[] }[]).map(
    ({ turn, callback, changes }) => ({
      turn,
      callback,
      what: changes.map(({ what }) => what),
    }),
  );

describe('effects', () => {
  it('R115 R116 the effects of a run say per turn which shim changed what, and are the events of its log', async () => {
    seam.model.script(calling(callOf('fast')), { text: 'done' });
    const run = await runToEnd(seam, { agent: 'works' });
    const { data, nextCursor } = await effectsOf(run.id);
    expect(nextCursor).toBeNull();
    expect(summaryOf(data)).toEqual([
      ...FIRST_TURN,
      { turn: 2, callback: 'prepareTurn', what: ['instructions', 'history+', 'tools+', 'modelArgs', 'state'] },
      { turn: 2, callback: 'transformMessages', what: ['messages'] },
      { turn: 2, callback: 'onModelResponse', what: ['history='] },
    ]);
    const logged = (await logOf(seam, run.id)).filter(({ type }) => type === 'shim.effect');
    expect(data).toEqual(
      logged.map(({ turn, shim, callback, changes, ms }) => ({ turn: turn ?? null, shim, callback, changes, ms })),
    );
    for (const effect of data as JsonObject[])
      expect(effect).toMatchObject({ shim: 'works', ms: expect.any(Number) as number });
    const [, prepared] = data as { changes: JsonObject[] }[];
    expect(prepared?.changes[0]).toMatchObject({
      before: { size: 13, digest: expect.stringMatching(/^[0-9a-f]{16}$/) as string },
      after: { size: 24 },
      diff: { at: 13, removed: '', added: '\n\nBe brief.' },
    });
    expect(JSON.stringify(data)).not.toMatch(/TOP-SECRET|a note|for one call/);
  });

  it('R116 pages go on where the one before ended', async () => {
    const run = await runToEnd(seam, { agent: 'works' });
    const whole = (await effectsOf(run.id)).data as unknown[];
    const paged: unknown[] = [];
    let cursor: string | null = '';
    for (let page = 0; cursor !== null && page < 20; page += 1) {
      const answer = await effectsOf(run.id, `?limit=1${cursor === '' ? '' : `&cursor=${cursor}`}`);
      paged.push(...(answer.data as unknown[]));
      cursor = answer.nextCursor as string | null;
    }
    expect(paged).toEqual(whole);
    expect(whole).toHaveLength(3);
  });
});

describe('POST /v1/agents/{name}/preview', () => {
  it('R115 R116 shows the first request and who changed what, and calls no model and stores no run', async () => {
    const requests = seam.model.requests.length;
    const runs = async (): Promise<unknown> => (await seam.server.json('GET', '/v1/runs')).body.data;
    const before = await runs();
    const hidden = { internal: { message: { role: 'user', content: 'HOST-SECRET' }, origin: 'host', ephemeral: true } };
    const body = await preview('works', ['hello', hidden]);
    expect(body).toMatchObject({
      request: {
        model: 'openai-compatible/m',
        messages: [
          { role: 'system', content: 'You are kind.\n\nBe brief.' },
          { role: 'user', content: 'hello' },
          { role: 'user', content: 'a note' },
          { role: 'user', content: 'for one call' },
        ],
        internalMessages: 2,
        tools: [{ name: 'fast', description: 'fast', inputSchema: { type: 'object' } }],
        modelArgs: { temperature: 0.5 },
      },
      error: null,
    });
    expect(summaryOf(body.effects)).toEqual(FIRST_TURN);
    expect(JSON.stringify(body)).not.toMatch(/SECRET/);
    expect(seam.model.requests).toHaveLength(requests);
    expect(await runs()).toEqual(before);
  });

  it('R116 is what a run then sends', async () => {
    const { request } = (await preview('works')) as { request: { messages: { role: string; content: string }[] } };
    await runToEnd(seam, { agent: 'works' });
    const sent = textsOf(seam.model.requests.at(-1) ?? { body: {} }).filter((text) => !text.includes('TOP-SECRET'));
    expect(request.messages.map(({ role, content }) => `${role}: ${content}`)).toEqual(sent);
  });

  it('R116 says why there would be no request, and does not take a shim’s own model call for it', async () => {
    expect(await preview('throws')).toMatchObject({
      request: null,
      error: { code: 'shim_failed', shim: 'throws', phase: 'prepareTurn' },
    });
    const body = await preview('calls-model');
    expect(body).toMatchObject({ request: null, error: { shim: 'calls-model' } });
    expect(JSON.stringify(body)).not.toContain('sum up');
  });

  it('R116 of an agent that is not there is 404, and a blank input 422', async () => {
    expect((await seam.server.json('POST', '/v1/agents/nobody/preview', { input: 'x' })).status).toBe(404);
    expect((await seam.server.json('POST', '/v1/agents/works/preview', { input: ' ' })).status).toBe(422);
  });
});

describe('hot reload', () => {
  it('R117 a changed file serves new runs; a running one keeps what it started with; R118 a resume with it says so', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(calling(callOf('slow')));
    const { body } = await startRun(seam, { agent: 'versioned' });
    await block.reached;
    const one = await shimNamed('versioned');
    writeShim(seam, 'versioned', versioned('two'));
    const two = await waitFor(async () => {
      const now = await shimNamed('versioned');
      return now.description === 'two' && now;
    });
    expect(two).toMatchObject({ state: 'loaded' });
    expect(two.hash).not.toBe(one.hash);
    const fresh = await runToEnd(seam, { agent: 'versioned' });
    expect(textsOf(seam.model.requests.at(-1) ?? { body: {} })[0]).toBe('system: two');
    expect(fresh.shims).toMatchObject([{ name: 'stays' }, { name: 'mine', hash: two.hash }]);
    block.release();
    const run = await ended(seam, body.id);
    // Its tool, and its next turn, were of the version that it began with.
    expect(textsOf(seam.model.requests.at(-1) ?? { body: {} })).toMatchObject([
      'system: one',
      'user: hello',
      expect.anything(),
      'tool: one',
    ]);
    expect(run.shims).toMatchObject([{ name: 'stays' }, { name: 'mine', hash: one.hash }]);
    expect(typesOf(await logOf(seam, body.id))).not.toContain('shim.changed');

    const { body: resumed } = await resume(seam, body.id, { input: 'more' });
    expect(textsOf(seam.model.requests.at(-1) ?? { body: {} })[0]).toBe('system: two');
    expect(resumed.shims).toMatchObject([{ name: 'stays' }, { name: 'mine', hash: two.hash }]);
    const changed = (await logOf(seam, body.id)).filter(({ type }) => type === 'shim.changed');
    expect(changed).toMatchObject([{ attempt: 2, shim: 'mine', before: one.hash, after: two.hash }]);
    // A second resume on the same version has nothing to say.
    await resume(seam, body.id, { input: 'and more' });
    expect((await logOf(seam, body.id)).filter(({ type }) => type === 'shim.changed')).toHaveLength(1);
  });

  it('R118 a wait that is answered with another version says so', async () => {
    writeShim(seam, 'versioned', versioned('three'));
    await waitFor(async () => (await shimNamed('versioned')).description === 'three');
    seam.model.script(calling(callOf('gated')), { text: 'done' });
    const waiting = await runToEnd(seam, { agent: 'versioned' });
    writeShim(seam, 'versioned', versioned('four'));
    await waitFor(async () => (await shimNamed('versioned')).description === 'four');
    const { body: run } = await resume(seam, waiting.id, {
      decisions: interruptionIds(waiting).map((id) => ({ id, decision: 'approve' })),
    });
    expect(run).toMatchObject({ status: 'completed', output: 'done' });
    const log = await logOf(seam, run.id);
    expect(log.filter(({ type }) => type === 'shim.changed')).toMatchObject([{ attempt: 2, shim: 'mine' }]);
    const at = (type: string): number => log.findIndex((event) => event.type === type);
    expect(at('shim.changed')).toBe(at('run.resumed') + 1);
  });

  it('R118 R97 the shims of an agent that was handed to are recorded too', async () => {
    seam.model.script(calling(callOf('handoff_to_works')), { text: 'done' });
    const run = await runToEnd(seam, { agent: 'hands-over' });
    expect(run.shims).toMatchObject([{ name: 'stays' }, { name: 'works', hash: (await shimNamed('works')).hash }]);
    const { body: resumed } = await resume(seam, run.id, { input: 'more' });
    expect(resumed.shims).toEqual(run.shims);
  });

  it('R117 a broken file keeps the old version serving, and is reported with file, line and message', async () => {
    const before = await shimNamed('broken');
    writeShim(seam, 'broken', 'export default defineShim({\n  name: ]\n});');
    const broken = await waitFor(async () => {
      const now = await shimNamed('broken');
      return now.state === 'stale' && now;
    });
    expect(broken).toMatchObject({
      hash: before.hash,
      file: expect.stringContaining('broken.mjs') as string,
      error: { line: 8, message: expect.any(String) as string },
    });
    expect(await runToEnd(seam, { agent: 'broken' })).toMatchObject({
      status: 'completed',
      shims: [{ name: 'broken', hash: before.hash }],
    });
    expect(textsOf(seam.model.requests.at(-1) ?? { body: {} })[0]).toBe('system: fine');
    rmSync(join(seam.shimsDir, 'broken.mjs'));
  });
});

it.each([
  ['no shims', 'plain'],
  ['shims that change everything', 'works'],
])('R119 idempotency, resume, queueing and cancel are the same with %s', async (_with, agent) => {
  const key = { 'idempotency-key': `key-${agent}` };
  const first = await startRun(seam, { agent }, key);
  const again = await startRun(seam, { agent }, key);
  const other = await startRun(seam, { agent, input: 'other' }, key);
  expect([first.status, again.body.id, again.headers['idempotency-replayed']]).toEqual([202, first.body.id, 'true']);
  expect([other.status, other.body.code]).toEqual([422, 'idempotency_mismatch']);
  await ended(seam, first.body.id);
  seam.model.respondWith(() => ({ text: ['a', 'b'], gate: new Promise(() => undefined), gateAt: 1 }));
  const resumes = await Promise.all([1, 2, 3].map(async (n) => resume(seam, first.body.id, { input: `${n}` }, {})));
  expect(resumes.map(({ status }) => status).sort()).toEqual([202, 409, 409]);
  const requests = seam.model.requests.length;
  await waitFor(() => seam.model.openRequests > 0 || seam.model.requests.length > requests);
  await waitFor(async () => typesOf(await logOf(seam, first.body.id)).at(-1) === 'model.delta');
  const cancels = await Promise.all(
    [1, 2].map(async () => seam.server.json('DELETE', `/v1/runs/${String(first.body.id)}`)),
  );
  // The second one is taken too, or comes when the run is over.
  expect(cancels.map(({ status }) => status).sort()).toEqual([expect.toBeOneOf([200, 202]), 202]);
  const run = await ended(seam, first.body.id);
  expect(run).toMatchObject({ status: 'cancelled', attempt: 2, partialOutput: 'a' });
  const log = await logOf(seam, first.body.id);
  expect(log.filter(({ type }) => type.startsWith('run.')).map(({ type }) => type)).toEqual([
    'run.created',
    'run.started',
    'run.completed',
    'run.resumed',
    'run.cancelling',
    'run.cancelled',
  ]);
});
