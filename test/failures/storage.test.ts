import { execFile } from 'node:child_process';
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { calling, callOf, ended, follow, gate, getRun, type Lab, resume, runToEnd, startRun } from '../server/lab.js';
import { editDatabase, integrityOf, rowCounts } from '../support/database-check.js';
import type { JsonObject } from '../support/json-path.js';
import { neverReads } from '../support/never-reads.js';
import { temporaryFolder, waitFor } from '../support/wait.js';
import { cancel, decideAll, putTrialAgent, startTrial } from './trial.js';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../..', import.meta.url));

/** One shim for each kind of state that there is, and for each kind that cannot be kept. */
const STATE_SHIM = `
import { defineShim, z } from 'shimline/shims';
const kinds = {
  map: () => new Map([[1, 2]]),
  set: () => new Set([1]),
  date: () => new Date(0),
  function: () => () => 1,
  nan: () => ({ deep: [NaN] }),
  cycle: () => { const a = {}; a.a = a; return a; },
  bigint: () => 1n,
};
export default defineShim({
  name: 'states',
  version: 1,
  config: z.strictObject({ bad: z.string().default('') }),
  state: z.object({ turns: z.number().default(0), big: z.string().default('') }),
  onRunStart(state) {
    if (this.config.bad !== '') state.shimState.set('states:bad', kinds[this.config.bad]());
    state.shimState.set('states:list', [1, { two: [3, null, 'é\\u2028'] }]);
  },
  prepareTurn(turn) {
    turn.state.turns += 1;
    turn.state.big = 'x'.repeat(1_000_000);
  },
});
`;

let lab: Lab;
beforeAll(async () => {
  lab = await startTrial({
    shims: { 'states.mjs': STATE_SHIM },
    env: { RETAIN_EVENTS_DAYS: '5', RETAIN_RUNS_DAYS: '10' },
  });
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

const walSize = (): number => {
  const file = join(lab.server.dataDir, 'shimline.db-wal');
  return existsSync(file) ? statSync(file).size : 0;
};

it('D06 the first fifty requests to a fresh database are all taken, also fifty for one conversation', async () => {
  lab.model.respondWith(() => ({ text: 'hi' }));
  const fresh = await startTrial();
  fresh.model.respondWith(() => ({ text: 'hi' }));
  const answers = await Promise.all(
    Array.from({ length: 50 }, async (_, at) => startRun(fresh, { input: `first ${at}` })),
  );
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
  const runs = await Promise.all(answers.map(async ({ body }) => ended(fresh, body.id)));
  expect(runs.map(({ status, input }) => [status, input])).toEqual(
    answers.map((_, at) => ['completed', `first ${at}`]),
  );
  // The one that is taken does not end before the others have come.
  const door = gate();
  fresh.model.respondWith(() => ({ text: 'hi', gate: door.gate, gateAt: 'start' }));
  const one = await Promise.all(
    Array.from({ length: 50 }, async (_, at) => resume(fresh, runs[0]?.id, { input: `more ${at}` }, {})),
  );
  expect(one.filter(({ status }) => status === 202)).toHaveLength(1);
  expect(new Set(one.filter(({ status }) => status !== 202).map(({ body }) => body.code))).toEqual(
    new Set(['run_active']),
  );
  door.open();
  await fresh.close();
});

describe('D02 the write-ahead log', () => {
  it('D02 stays bounded while long histories are replayed back to back and runs write, and a paused reader holds nothing', async () => {
    lab.model.script(calling(callOf('flood', { n: 6000 })), { text: 'long' });
    const long = await runToEnd(lab, {});
    const path = `/v1/runs/${String(long.id)}/events`;
    const paused = await neverReads(`${lab.server.url}${path}`);
    lab.model.respondWith(({ rawBody }) =>
      rawBody.includes('flooded') ? { text: 'written' } : calling(callOf('flood', { n: 1500 })),
    );
    let writing = true;
    let largest = 0;
    const replay = async (): Promise<number> => {
      let times = 0;
      for (; writing; times += 1) {
        const stream = await follow(lab, path);
        await stream.ended;
        expect(stream.events.at(-1)?.event).toBe('run.completed');
        largest = Math.max(largest, walSize());
      }
      return times;
    };
    const readers = Array.from({ length: 4 }, replay);
    for (let round = 0; round < 4; round += 1) {
      const runs = await Promise.all(Array.from({ length: 10 }, async () => runToEnd(lab, {})));
      for (const each of runs) expect(each.status).toBe('completed');
      largest = Math.max(largest, walSize());
    }
    writing = false;
    expect(Math.min(...(await Promise.all(readers)))).toBeGreaterThan(0);
    paused.destroy();
    expect(largest).toBeLessThan(64 * 1024 * 1024);
    expect(integrityOf(lab.server.dataDir)).toBe('ok');
  }, 60_000);
});

it('D04 a client that stops reading in the middle of a list or a history blocks no writer', async () => {
  lab.model.respondWith(() => ({ text: 'x' }));
  await Promise.all(Array.from({ length: 20 }, async () => runToEnd(lab, { input: 'y'.repeat(100_000) })));
  const list = await neverReads(`${lab.server.url}/v1/runs?limit=1000`, { accept: 'application/json' });
  const lock = await Promise.all(Array.from({ length: 10 }, async () => runToEnd(lab, {})));
  expect(new Set(lock.map(({ status }) => status))).toEqual(new Set(['completed']));
  list.destroy();
});

it('D08 a purge leaves no row behind, refuses while anything is active, and a new run starts empty', async () => {
  lab.model.script({ text: 'kept' });
  await runToEnd(lab, { metadata: { a: 'b' } });
  const before = rowCounts(lab.server.dataDir);
  const door = gate();
  lab.model.script(calling(callOf('count'), callOf('flood', { n: 500 }), callOf('gated', { n: 1 })), {
    text: 'a',
    gate: door.gate,
    gateAt: 'start',
  });
  const { body } = await startRun(lab, { metadata: { a: 'b', c: 'd' } }, { 'idempotency-key': 'purged' });
  const purge = async (): Promise<number> =>
    (await lab.server.json('DELETE', `/v1/runs/${String(body.id)}?purge=true`)).status;
  const waits = await ended(lab, body.id);
  expect(waits.status).toBe('waiting');
  expect(await purge()).toBe(409);
  await resume(lab, body.id, decideAll(waits, 'deny'), {});
  expect(await purge()).toBe(409);
  door.open();
  expect(await ended(lab, body.id)).toMatchObject({ status: 'completed' });
  expect(await purge()).toBe(204);
  expect(rowCounts(lab.server.dataDir)).toEqual(before);
  expect((await lab.server.json('GET', `/v1/runs/${String(body.id)}`)).status).toBe(404);
  lab.model.script({ text: 'new' });
  const again = await startRun(lab, {}, { 'idempotency-key': 'purged', prefer: 'wait=20' });
  expect(again.headers['idempotency-replayed']).toBeUndefined();
  expect(again.body).toMatchObject({ output: 'new', turnCount: 1 });
  expect(again.body.id).not.toBe(body.id);
});

describe('D10 state of every kind', () => {
  const stateOf = async (id: unknown): Promise<JsonObject> =>
    (await lab.server.json('GET', `/v1/runs/${String(id)}/state`)).body.shimState as JsonObject;

  it('D10 is equal before and after kill -9, and goes on from there', async () => {
    await putTrialAgent(lab, 'states', { more: [{ use: 'states' }] });
    lab.model.script(calling(callOf('count'), callOf('gated', { n: 1 })));
    const waits = await runToEnd(lab, { agent: 'states', metadata: { marker: 'm' } });
    expect(waits.status).toBe('waiting');
    const before = await stateOf(waits.id);
    expect(before).toMatchObject({
      'trial:count': 1,
      'trial:marker': 'm',
      'states:list': [1, { two: [3, null, 'é\u2028'] }],
    });
    expect(JSON.stringify(before).length).toBeGreaterThan(1_000_000);
    await lab.server.kill9();
    await lab.server.restart();
    expect(await stateOf(waits.id)).toEqual(before);
    lab.model.script(calling(callOf('count')), { text: 'ok' });
    const done = (await resume(lab, waits.id, decideAll(waits, 'approve'))).body;
    expect(done).toMatchObject({ status: 'completed', turnCount: 3 });
    const after = await stateOf(waits.id);
    expect(after).toMatchObject({ 'trial:count': 2 });
    expect(JSON.stringify(after)).toContain('"turns":3');
  });

  it.each(['map', 'set', 'date', 'function', 'nan', 'cycle', 'bigint'])(
    'D10 refuses a %s in the state with the name of the shim, and keeps no empty shell',
    async (bad) => {
      await putTrialAgent(lab, 'bad-states', { more: [{ use: 'states', config: { bad } }] });
      const failed = await runToEnd(lab, { agent: 'bad-states' });
      expect(failed).toMatchObject({ status: 'failed', error: { code: 'shim_failed' } });
      expect(JSON.stringify(failed.error)).toContain('states');
      expect(await stateOf(failed.id)).toEqual({});
    },
  );
});

it('makes a consistent copy while it serves, and never over a file that is there', async () => {
  lab.model.respondWith(() => ({ text: 'saved' }));
  const first = await runToEnd(lab, {});
  const target = join(temporaryFolder('backup-'), 'shimline.db');
  const backup = async (): Promise<{ stdout: string }> =>
    run(process.execPath, [join(root, 'dist/src/backup.js'), target], {
      env: { ...process.env, DATA_DIR: lab.server.dataDir, NODE_ENV: 'production' },
    });
  const [made] = await Promise.all([backup(), ...Array.from({ length: 20 }, async () => runToEnd(lab, {}))]);
  expect(made.stdout).toMatch(/bytes/);
  await expect(backup()).rejects.toThrow(/exists; a backup does not overwrite it/);
  await lab.server.restart();
  const dataDir = join(target, '..');
  expect(integrityOf(dataDir)).toBe('ok');
  const restored = await startTrial({ dataDir });
  expect(await getRun(restored, first.id)).toEqual(await getRun(lab, first.id));
  await restored.close();
});

it('prunes by age while it serves: events first, which is a 410 with the oldest seq, then the runs', async () => {
  lab.model.respondWith(() => ({ text: 'old' }));
  const [young, middle, old] = await Promise.all([runToEnd(lab, {}), runToEnd(lab, {}), runToEnd(lab, {})]);
  await lab.server.term();
  const day = 86_400_000;
  for (const [id, days] of [
    [middle.id, 6],
    [old.id, 11],
  ] as const) {
    editDatabase(lab.server.dataDir, 'UPDATE runs SET finished_at = ? WHERE id = ?', Date.now() - days * day, id);
  }
  await lab.server.restart();
  await waitFor(async () => (await lab.server.json('GET', `/v1/runs/${String(old.id)}`)).status === 404, {
    timeoutMs: 10_000,
    what: 'the old run to be pruned',
  });
  const path = `/v1/runs/${String(middle.id)}`;
  expect(await getRun(lab, middle.id)).toMatchObject({ status: 'completed', output: 'old' });
  expect(await lab.server.json('GET', `${path}/events`)).toMatchObject({
    status: 410,
    body: { code: 'cursor_expired', oldestSeq: middle.lastSeq },
  });
  expect((await follow(lab, `${path}/events`)).status).toBe(410);
  expect((await follow(lab, `${path}/events?after=${String(middle.lastSeq)}`)).status).toBe(204);
  expect((await lab.server.json('GET', `/v1/runs/${String(young.id)}/events`)).status).toBe(200);
  expect(await resume(lab, middle.id, { input: 'on' })).toMatchObject({
    status: 200,
    body: { status: 'completed', attempt: 2 },
  });
  await cancel(lab, young.id);
});
