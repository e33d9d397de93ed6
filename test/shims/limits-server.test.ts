import { join } from 'node:path';
import Database from 'better-sqlite3';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { bearer, calling, callOf, gate, type Lab, startLab } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { toolResultsOf } from '../support/request-view.js';

const ALICE = bearer('a-key-of-alice');
const BOB = bearer('a-key-of-bob');
const DO = 'unknown_tool';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab({ env: { API_KEYS: 'alice:a-key-of-alice,bob:a-key-of-bob' } });
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

let unique = 0;
const fresh = (): number => (unique += 1);
const effects = (n: number): number => lab.ledger.count((effect) => effect.n === n);

/** Saves an agent; each has limits of its own name, so its day is its own. */
async function agent(name: string, config: JsonObject, use = name): Promise<void> {
  const shims = [
    { use: 'limits', as: use, config },
    { use: 'lab', config: { ledger: lab.ledger.url } },
  ];
  const body = { model: 'openai-compatible/m', instructions: 'Test.', shims, tools: { parallelToolCalls: 2 } };
  const answer = await lab.server.json('PUT', `/v1/agents/${name}`, body, ALICE);
  expect(answer.body, JSON.stringify(answer.body)).toMatchObject({ name });
}
const waited = (headers: Record<string, string>) => ({ ...headers, prefer: 'wait=20' });
async function start(name: string, headers = ALICE): Promise<JsonObject> {
  const answer = await lab.server.json('POST', '/v1/runs', { agent: name, input: 'go' }, waited(headers));
  expect(answer.status, JSON.stringify(answer.body)).toBe(200);
  return answer.body;
}
const resume = async (run: JsonObject, body: JsonObject) =>
  lab.server.json('POST', `/v1/runs/${String(run.id)}/resume`, body, waited(ALICE));
const ended = async (id: unknown): Promise<JsonObject> =>
  (await lab.server.json('GET', `/v1/runs/${String(id)}`, undefined, waited(ALICE))).body;
const budget = (run: JsonObject): unknown => {
  const [only] = run.interruptions as readonly JsonObject[];
  return {
    status: run.status,
    reason: only?.reason,
    message: only?.message,
    open: (run.interruptions as unknown[]).length,
  };
};
const usage = { input: 6, output: 4 };

describe('a run that has reached a limit', () => {
  it('tool calls: it waits, and after a resume with more the calls run, each exactly once', async () => {
    await agent('tooled', { perRun: { toolCalls: 2 } });
    const ns = [fresh(), fresh(), fresh(), fresh()];
    lab.model.script(calling(...ns.map((n) => callOf(DO, { n }))), { text: 'all' });
    const run = await start('tooled');
    expect(budget(run)).toEqual({
      status: 'waiting',
      reason: 'budget',
      message:
        'The run has reached the limit perRun.toolCalls of the shim tooled: 2 of 2 used. Resume it with a raised limit.',
      open: 1,
    });
    expect(ns.map(effects)).toEqual([1, 1, 0, 0]);
    expect((await resume(run, {})).status).toBe(409);
    await lab.server.restart();
    expect(budget((await resume(run, { limits: {} })).body)).toMatchObject({ status: 'waiting', reason: 'budget' });
    const more = await resume(run, { shims: { tooled: { perRun: { toolCalls: 4 } } } });
    expect(more.body).toMatchObject({ status: 'completed', output: 'all', unknownToolCalls: [] });
    expect(ns.map(effects)).toEqual([1, 1, 1, 1]);
    expect(toolResultsOf(lab.model.requests.at(-1)!).map(({ text }) => text.includes('rror'))).toEqual(
      ns.map(() => false),
    );
  });

  it('beside a call that a person is asked about: both are told, and each answer counts', async () => {
    await agent('both', { perRun: { toolCalls: 0 } });
    const [a, b] = [fresh(), fresh()];
    lab.model.script(calling(callOf('gated', { n: a }), callOf(DO, { n: b })), { text: 'both' });
    const run = await start('both');
    const open = run.interruptions as readonly JsonObject[];
    expect(open.map(({ reason, tool }) => [reason, tool])).toEqual([
      ['budget', null],
      ['approval', 'gated'],
    ]);
    const raised = await resume(run, { shims: { both: { perRun: { toolCalls: 2 } } } });
    expect(raised.body).toMatchObject({ status: 'waiting', attempt: 1, interruptions: [{ reason: 'approval' }] });
    const done = await resume(run, { decisions: [{ id: open[1]?.id ?? '', decision: 'approve' }] });
    expect(done.body).toMatchObject({ status: 'completed', output: 'both', unknownToolCalls: [] });
    expect([effects(a), effects(b)]).toEqual([1, 1]);
  });

  it('tokens: a raised maxTotalTokens raises them too', async () => {
    await agent('tokens', { perRun: { tokens: 20 } });
    const again = { ...calling(callOf('echo', {})), usage };
    lab.model.script(again, again, again, { text: 'fine', usage });
    const run = await start('tokens');
    expect(budget(run)).toMatchObject({ status: 'waiting', reason: 'budget' });
    expect(run.turnCount).toBe(2);
    expect(budget((await resume(run, { limits: { maxTurns: 50 } })).body)).toMatchObject({ status: 'waiting' });
    const more = await resume(run, { limits: { maxTotalTokens: 50 } });
    expect(more.body).toMatchObject({ status: 'completed', output: 'fine', turnCount: 4, usage: { totalTokens: 40 } });
  });

  it('a config that the shim does not take is refused, and the run waits on', async () => {
    await agent('strict', { perRun: { modelCalls: 0 } });
    const run = await start('strict');
    for (const [shims, pointer] of [
      [{ strict: { perRun: { modelCalls: -1 } } }, '/shims/strict/perRun/modelCalls'],
      [{ nobody: {} }, '/shims/nobody'],
    ] as const) {
      const refused = await resume(run, { shims });
      expect(refused).toMatchObject({ status: 422, body: { errors: [{ pointer }] } });
    }
    lab.model.script({ text: 'yes' });
    expect((await resume(run, { shims: { strict: { perRun: { modelCalls: 1 } } } })).body).toMatchObject({
      status: 'completed',
      output: 'yes',
    });
  });

  it('may fail instead, and go on from there with more', async () => {
    await agent('failing', { perRun: { toolCalls: 1 }, onReached: 'fail' });
    const [a, b] = [fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n: a }), callOf(DO, { n: b })), { text: 'both' });
    const run = await start('failing');
    expect(run).toMatchObject({
      status: 'failed',
      error: { code: 'limit_exceeded', limit: 'perRun.toolCalls', allowed: 1, reached: 1 },
    });
    const more = await resume(run, { shims: { failing: { perRun: { toolCalls: 2 } } } });
    expect(more.body).toMatchObject({ status: 'completed', output: 'both', unknownToolCalls: [] });
    expect([effects(a), effects(b)]).toEqual([1, 1]);
  });
});

describe('the day of a key', () => {
  it('of twenty runs at once as many get a model call as there are left; another key has its own', async () => {
    await agent('daily', { perDay: { modelCalls: 3 } });
    lab.model.respondWith(() => ({ text: 'served' }));
    const before = lab.model.requests.length;
    const runs = await Promise.all(Array.from({ length: 20 }, async () => start('daily')));
    expect(lab.model.requests.length - before).toBe(3);
    expect(runs.filter(({ status }) => status === 'completed')).toHaveLength(3);
    expect(runs.filter(({ status }) => status === 'waiting')).toHaveLength(17);
    expect(await start('daily', BOB)).toMatchObject({ status: 'completed', output: 'served' });
  });

  it('a run that stopped for what another had reserved goes on when that is over', async () => {
    await agent('reserved', { perDay: { tokens: 500 } });
    const held = gate();
    lab.model.script({ text: 'first', usage, gate: held.gate });
    const before = lab.model.requests.length;
    const { body } = await lab.server.json('POST', '/v1/runs', { agent: 'reserved', input: 'go' }, ALICE);
    await lab.model.waitForRequest(before + 1);
    const second = await start('reserved');
    expect(budget(second)).toMatchObject({ status: 'waiting', reason: 'budget' });
    held.open();
    expect(await ended(body.id)).toMatchObject({ status: 'completed', output: 'first' });
    lab.model.script({ text: 'second', usage });
    expect((await resume(second, { limits: {} })).body).toMatchObject({ status: 'completed', output: 'second' });
  });

  it('killed between reserving and settling: the unit is not lost, and not had twice', async () => {
    await agent('killed', { perDay: { modelCalls: 1 } });
    const held = gate();
    lab.model.script({ text: 'never heard', gate: held.gate });
    const before = lab.model.requests.length;
    const { body } = await lab.server.json('POST', '/v1/runs', { agent: 'killed', input: 'go' }, ALICE);
    await lab.model.waitForRequest(before + 1);
    expect(reservations()).toBe(1);
    await lab.server.kill9();
    expect(reservations()).toBe(1);
    lab.model.script({ text: 'heard' });
    await lab.server.restart();
    held.open();
    expect(await ended(body.id)).toMatchObject({ status: 'completed', output: 'heard', recoveries: 1 });
    expect(reservations()).toBe(0);
    expect(budget(await start('killed'))).toEqual({
      status: 'waiting',
      reason: 'budget',
      message:
        'The runs of this key have today (UTC) reached the limit perDay.modelCalls of the shim killed: 1 of 1 used. Resume it with a raised limit, or tomorrow.',
      open: 1,
    });
  });

  it('a cancelled call counts, and holds nothing', async () => {
    await agent('orphan', { perDay: { modelCalls: 1 } });
    const held = gate();
    lab.model.script({ text: 'never heard', gate: held.gate });
    const before = lab.model.requests.length;
    const { body } = await lab.server.json('POST', '/v1/runs', { agent: 'orphan', input: 'go' }, ALICE);
    await lab.model.waitForRequest(before + 1);
    await lab.server.json('DELETE', `/v1/runs/${String(body.id)}`, undefined, waited(ALICE));
    held.open();
    expect(reservations()).toBe(0);
    expect(budget(await start('orphan'))).toMatchObject({ status: 'waiting' });
  });
});

function reservations(): number {
  const database = new Database(join(lab.server.dataDir, 'limits.db'));
  try {
    const row = database.prepare('SELECT count(*) AS n FROM reservations').get() as { readonly n: number };
    return row.n;
  } finally {
    database.close();
  }
}
