import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  calling,
  callOf,
  ended,
  follow,
  gate,
  getRun,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startRun,
} from '../server/lab.js';
import { lockFromOutside } from '../support/outside-lock.js';
import { lastUserText, messagesOf, toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';
import { cancel, putTrialAgent, startTrial } from './trial.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startTrial();
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

const INPUT = /input-\d+/g;

describe('N01 several messages to one conversation at once', () => {
  it('N01 one wins and the others get a 409; the history is that of a serial order, without the losers', async () => {
    let door = gate();
    door.open();
    lab.model.respondWith((request) => ({
      text: `answer to ${lastUserText(request)}`,
      gate: door.gate,
      gateAt: 'start',
    }));
    const run = await runToEnd(lab, { input: 'input-0' });
    const won = ['input-0'];
    for (let round = 1; round <= 8; round += 1) {
      door = gate();
      const inputs = Array.from({ length: 20 }, (_, at) => `input-${round * 100 + at}`);
      const answers = await Promise.all(
        inputs.map(async (input) => ({ input, answer: await resume(lab, run.id, { input }, {}) })),
      );
      const taken = answers.filter(({ answer }) => answer.status === 202);
      expect(taken).toHaveLength(1);
      door.open();
      for (const { answer } of answers.filter((each) => !taken.includes(each))) {
        expect(answer).toMatchObject({ status: 409, body: { code: 'run_active', attempt: round + 1 } });
      }
      won.push(taken[0]!.input);
      expect(await ended(lab, run.id)).toMatchObject({
        status: 'completed',
        attempt: round + 1,
        output: `answer to ${taken[0]!.input}`,
      });
    }
    const { history } = (await lab.server.json('GET', `/v1/runs/${String(run.id)}/state`)).body;
    const seen = [...new Set(JSON.stringify(history).match(INPUT))];
    expect(seen).toEqual(won);
    expect(lab.model.refusedRequests).toEqual([]);
    await logOf(lab, run.id);
  });

  it('N01 a message while a cancel is cleaned up is refused, and none is lost', async () => {
    await putTrialAgent(lab, 'slow-end', { trial: { endMs: 300 } });
    lab.model.script({ text: ['a', 'b'], gate: new Promise(() => undefined), gateAt: 1 });
    const { body } = await startRun(lab, { agent: 'slow-end' });
    await waitFor(async () => (await logOf(lab, body.id)).some(({ type }) => type === 'model.delta'));
    await cancel(lab, body.id);
    const during = await resume(lab, body.id, { input: 'too early' }, {});
    expect(during).toMatchObject({ status: 409, body: { code: 'run_active' } });
    expect(await ended(lab, body.id)).toMatchObject({ status: 'cancelled' });
    lab.model.script({ text: 'heard' });
    expect((await resume(lab, body.id, { input: 'in time' })).body).toMatchObject({
      status: 'completed',
      output: 'heard',
    });
    expect(JSON.stringify(messagesOf(lab.model.requests.at(-1)!))).not.toContain('too early');
  });
});

it('N02 the next message of a conversation sees the whole turn before it', async () => {
  const block = lab.ledger.blockBefore(({ n }) => n === 2.2);
  lab.model.script(calling(callOf('effect', { n: 2.2 })), { text: 'first answer' });
  const { body } = await startRun(lab, { input: 'first' });
  await block.reached;
  expect((await resume(lab, body.id, { input: 'second' }, {})).status).toBe(409);
  block.release();
  await ended(lab, body.id);
  lab.model.script({ text: 'second answer' });
  await resume(lab, body.id, { input: 'second' });
  const request = lab.model.requests.at(-1)!;
  expect(toolResultsOf(request)).toHaveLength(1);
  expect(JSON.stringify(messagesOf(request))).toMatch(/first.*first answer.*second/);
});

it('N04 runs of one agent never see each other', async () => {
  lab.model.respondWith((request) => {
    const [marker = ''] = /mark-\d+-x/.exec(request.rawBody) ?? [];
    const done = toolResultsOf(request).length;
    if (done >= 2) return { text: [`said `, marker], tokenDelayMs: Math.random() * 5 };
    return { ...calling(callOf('marker', { marker }), callOf('count')), delayMs: Math.random() * 20 };
  });
  const before = lab.model.requests.length;
  const runs = await Promise.all(
    Array.from({ length: 120 }, async (_, at) => {
      const marker = `mark-${at}-x`;
      return { marker, run: await runToEnd(lab, { input: marker, metadata: { marker } }) };
    }),
  );
  const only = (text: string, marker: string): void => {
    expect(new Set(text.match(/mark-\d+-x/g))).toEqual(new Set([marker]));
  };
  for (const { marker, run } of runs) {
    expect(run).toMatchObject({ status: 'completed', output: `said ${marker}` });
    only(JSON.stringify(run), marker);
    only(JSON.stringify(await logOf(lab, run.id)), marker);
    const { body } = await lab.server.json('GET', `/v1/runs/${String(run.id)}/state`);
    expect(body.shimState).toMatchObject({ 'trial:marker': marker, 'trial:count': 1 });
    only(JSON.stringify(body), marker);
  }
  for (const { rawBody } of lab.model.requests.slice(before))
    expect(new Set(rawBody.match(/mark-\d+-x/g)).size).toBe(1);
  expect(lab.ledger.count('foreign')).toBe(0);
});

describe('N06 V02 a key that the client chose', () => {
  it('N06 makes one run of a request that is repeated after kill -9 and a restart', async () => {
    for (let round = 0; round < 3; round += 1) {
      const body = { agent: 'chat', input: `once ${round}` };
      const headers = { 'idempotency-key': `crash-${round}` };
      lab.model.respondWith(() => ({ text: 'done' }));
      const first = lab.server.json('POST', '/v1/runs', body, headers).catch(() => undefined);
      await new Promise((resolve) => setTimeout(resolve, round * 8));
      await lab.server.kill9();
      const told = await first;
      await lab.server.restart();
      const again = await lab.server.json('POST', '/v1/runs', body, headers);
      expect(again.status).toBe(202);
      if (told !== undefined) expect(again.body.id).toBe(told.body.id);
      const list = await lab.server.json('GET', '/v1/runs?limit=1000');
      const made = (list.body.data as { input: unknown }[]).filter(({ input }) => input === `once ${round}`);
      expect(made).toHaveLength(1);
      expect(await ended(lab, again.body.id)).toMatchObject({ status: 'completed', output: 'done' });
    }
  });

  it('V02 used for something else is a 422, and the first run is recovered as if nothing had been', async () => {
    lab.model.script({ text: ['a', 'b'], gate: new Promise(() => undefined), gateAt: 1 });
    const requests = lab.model.requests.length;
    const { body } = await startRun(lab, {}, { 'idempotency-key': 'clash' });
    await lab.model.waitForRequest(requests + 1);
    for (const other of [{ input: 'else' }, { agent: 'claude' }, { metadata: { a: 'b' } }]) {
      expect(await startRun(lab, other, { 'idempotency-key': 'clash' })).toMatchObject({
        status: 422,
        body: { code: 'idempotency_mismatch' },
      });
    }
    expect(await startRun(lab, { id: body.id })).toMatchObject({
      status: 422,
      body: { code: 'validation_failed' },
    });
    await lab.server.kill9();
    lab.model.script({ text: 'recovered' });
    await lab.server.restart();
    expect(await ended(lab, body.id)).toMatchObject({ status: 'completed', output: 'recovered', recoveries: 1 });
    expect(await startRun(lab, { input: 'else' }, { 'idempotency-key': 'clash' })).toMatchObject({ status: 422 });
  });
});

const metric = async (name: string): Promise<number> => {
  const text = await (await lab.server.fetch('/metrics')).text();
  return Number(new RegExp(`^${name} (.+)$`, 'm').exec(text)?.[1]);
};

it('L02 a run of many steps with much state each keeps its memory, also where the storage is slow at times', async () => {
  const steps = 120;
  lab.model.respondWith((request) => {
    const done = toolResultsOf(request).length;
    return done < steps ? calling(callOf('bulk', { n: done })) : { text: 'all steps' };
  });
  await putTrialAgent(lab, 'long', { limits: { maxTurns: 1000 } });
  const { body } = await startRun(lab, { agent: 'long' });
  const used: number[] = [];
  const turns = async (): Promise<number> => Number((await getRun(lab, body.id)).turnCount);
  for (const mark of [30, 60, 90]) {
    await waitFor(async () => (await turns()) >= mark, { timeoutMs: 30_000, what: `turn ${mark}` });
    const lock = await lockFromOutside(lab.server.dataDir);
    await new Promise((resolve) => setTimeout(resolve, 200));
    await lock.release();
    used.push(await metric('nodejs_external_memory_bytes'), await metric('nodejs_heap_size_used_bytes'));
  }
  expect(await ended(lab, body.id)).toMatchObject({ status: 'completed', output: 'all steps' });
  // 120 versions of 20 kB would be 2.4 MB, each held by every later one 140 MB.
  expect(Math.max(...used)).toBeLessThan(150 * 1024 * 1024);
  expect((await lab.server.json('GET', `/v1/runs/${String(body.id)}/state`)).body.shimState).toMatchObject({
    'trial:bulk': `${'x'.repeat(20_000)}119`,
  });
}, 60_000);

it('O02 a wedged run is told from a slow one: last progress, phase, attempt and recoveries, and a metric', async () => {
  lab.model.script({ text: ['a', 'b'], gate: new Promise(() => undefined), gateAt: 1 });
  const { body } = await startRun(lab, {});
  const path = `/v1/runs/${String(body.id)}/events`;
  await waitFor(async () => (await logOf(lab, body.id)).some(({ type }) => type === 'model.delta'));
  const still = await getRun(lab, body.id);
  const phase = async (): Promise<unknown> =>
    (await lab.server.json('GET', `${path}?after=${Number(still.lastSeq) - 1}`)).body.data;
  expect(await phase()).toMatchObject([{ type: 'model.delta', turn: 1 }]);
  await waitFor(async () => (await metric('shimline_run_silence_seconds')) > 0.5, { what: 'the metric to show it' });
  expect(await getRun(lab, body.id)).toEqual(still);
  expect(Date.now() - Date.parse(String(still.updatedAt))).toBeGreaterThan(500);
  await lab.server.kill9();
  lab.model.script({ text: 'on' });
  await lab.server.restart();
  expect(await ended(lab, body.id)).toMatchObject({ attempt: 1, recoveries: 1, status: 'completed' });
  const stream = await follow(lab, path);
  await stream.ended;
  expect(stream.events.map(({ event }) => event)).toContain('run.recovered');
  expect(await metric('shimline_run_silence_seconds')).toBe(0);
});
