import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  calling,
  callOf,
  DIALECTS,
  ended,
  follow,
  gate,
  getRun,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startRun,
  WAIT,
} from '../server/lab.js';
import { toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';
import { cancel, decideAll, nextTurnWorks, putTrialAgent, startTrial } from './trial.js';

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

let unique = 1000;
const fresh = (): number => (unique += 1);
const has = (n: number) => (effect: { readonly n?: unknown }) => effect.n === n;

describe.each(DIALECTS)('C01 a stopped tool round over $dialect', ({ agent }) => {
  it.each([1, 3])('C01 of %i call(s) stopped by DELETE leaves a history that can be sent', async (calls) => {
    const n = fresh();
    lab.model.script(calling(...Array.from({ length: calls }, () => callOf('nap', { n, ms: 60_000 }))));
    const { body } = await startRun(lab, { agent });
    await lab.ledger.waitForCount(has(n), calls);
    expect(await cancel(lab, body.id, WAIT)).toMatchObject({ status: 'cancelled' });
    await nextTurnWorks(lab, body.id);
    const results = toolResultsOf(lab.model.requests.at(-1)!);
    expect(results).toHaveLength(calls);
    for (const { text } of results) expect(text).toMatch(/cancelled/i);
  });

  it('C01 stopped by kill -9, by a client that leaves, and by a timeout of the tool, leaves one too', async () => {
    const killed = fresh();
    lab.model.script(calling(callOf('nap', { n: killed, ms: 60_000 }), callOf('nap', { n: killed, ms: 60_000 })));
    const run = (await startRun(lab, { agent })).body;
    await lab.ledger.waitForCount(has(killed), 2);
    await lab.server.kill9();
    lab.model.script({ text: 'recovered' });
    await lab.server.restart();
    expect(await ended(lab, run.id)).toMatchObject({ status: 'completed', output: 'recovered' });
    await nextTurnWorks(lab, run.id);

    const left = fresh();
    lab.model.script(calling(callOf('nap', { n: left, ms: 60_000 })));
    const stream = await follow(lab, '/v1/runs', { body: { agent, input: 'x', onDisconnect: 'cancel' } });
    await lab.ledger.waitForCount(has(left), 1);
    stream.close();
    const { runId } = stream.events[0]!.json as { runId: string };
    expect(await ended(lab, runId)).toMatchObject({ status: 'cancelled' });
    await nextTurnWorks(lab, runId);

    await putTrialAgent(lab, `hasty-${agent}`, {
      tools: { toolCallTimeoutMs: 100 },
      ...(agent === 'claude' ? { model: 'anthropic/claude-sonnet-4-5' } : {}),
    });
    lab.model.script(calling(callOf('nap', { n: fresh(), ms: 60_000 })), { text: 'too slow' });
    const slow = await runToEnd(lab, { agent: `hasty-${agent}` });
    expect(slow).toMatchObject({ status: 'completed', output: 'too slow' });
    await nextTurnWorks(lab, slow.id);
  });
});

it('C02 calls of a batch that had finished keep their results when it is cancelled', async () => {
  const n = fresh();
  lab.model.script(
    calling(callOf('nap', { n, ms: 10 }), callOf('nap', { n: n + 0.5, ms: 10 }), callOf('nap', { n, ms: 60_000 })),
  );
  const { body } = await startRun(lab, {});
  await waitFor(async () => (await logOf(lab, body.id)).filter(({ type }) => type === 'tool.completed').length === 2);
  expect(await cancel(lab, body.id, WAIT)).toMatchObject({
    status: 'cancelled',
    cancellation: { inFlight: [{ kind: 'tool', name: 'nap', obeyed: true, sideEffects: 'unknown' }] },
  });
  await nextTurnWorks(lab, body.id);
  const results = toolResultsOf(lab.model.requests.at(-1)!).map(({ text }) => text);
  expect(results.slice(0, 2)).toEqual([`slept ${n}`, `slept ${n + 0.5}`]);
  expect(results[2]).toMatch(/cancelled/i);
});

describe('C03 a cancel against a completion that is in flight', () => {
  const STATUSES = ['completed', 'cancelled'];

  it('C03 ends in one state, the same everywhere, whichever came first', async () => {
    const before = await lab.server.json('GET', '/v1/runs?limit=1');
    expect(before.status).toBe(200);
    const found: Record<string, number> = {};
    const ids: string[] = [];
    const round = async (at: number): Promise<void> => {
      const door = gate();
      const tool = at % 3 === 0;
      const marker = `c03-${at}`;
      lab.model.respondWith(({ rawBody }) => {
        const mine = /c03-\d+/.exec(rawBody)?.[0] ?? '';
        const turn = rawBody.includes('slept') ? 'last' : mine === '' ? 'other' : 'first';
        if (turn === 'first' && Number(mine.slice(4)) % 3 === 0) return calling(callOf('nap', { n: fresh(), ms: 5 }));
        return { text: ['al', 'most'], gate: mine === marker ? door.gate : Promise.resolve(), gateAt: 'last-delta' };
      });
      const { body } = await startRun(lab, { input: marker });
      const id = String(body.id);
      ids.push(id);
      const seen = await follow(lab, `/v1/runs/${id}/events`);
      if (tool) await seen.collect({ until: ({ event }) => event === 'tool.started' });
      else await seen.collect({ until: ({ event }) => event === 'model.delta' });
      const opening = sleep(Math.random() * 10).then(door.open);
      await sleep(Math.random() * 10);
      const answer = await lab.server.json('DELETE', `/v1/runs/${id}`, undefined, at % 2 === 0 ? WAIT : {});
      await opening;
      await seen.ended;
      const run = await ended(lab, id);
      expect(STATUSES).toContain(run.status);
      if (answer.status === 200) expect(answer.body.status).toBe(run.status);
      expect(seen.events.at(-1)?.event).toBe(`run.${String(run.status)}`);
      found[String(run.status)] = (found[String(run.status)] ?? 0) + 1;
    };
    for (let at = 1; at <= 60; at += 1) await round(at);
    const logs = new Map(await Promise.all(ids.map(async (id) => [id, await logOf(lab, id)] as const)));
    await lab.server.restart();
    for (const id of ids) {
      const log = await logOf(lab, id);
      expect(log).toEqual(logs.get(id));
      const run = await getRun(lab, id);
      expect(log.at(-1)?.type).toBe(`run.${String(run.status)}`);
      expect(log.filter(({ type }) => /^run\.(completed|cancelled|failed)$/.test(type))).toHaveLength(1);
    }
    const list = await lab.server.json('GET', '/v1/runs?limit=1000');
    for (const run of (list.body.data as { id: string; status: string }[]).filter(({ id }) => ids.includes(id))) {
      expect(`run.${run.status}`).toBe(logs.get(run.id)?.at(-1)?.type);
    }
    // A trial in which one side always wins would show nothing.
    expect(found).toMatchObject({ cancelled: expect.any(Number) as number });
  }, 60_000);

  it('C03 a tool that ignores the signal and returns later changes nothing any more', async () => {
    const n = fresh();
    lab.model.script(calling(callOf('deaf', { n, ms: 2500 })));
    const { body } = await startRun(lab, {});
    await lab.ledger.waitForCount(has(n), 1);
    const startedAt = performance.now();
    const run = await cancel(lab, body.id, WAIT);
    expect(performance.now() - startedAt).toBeLessThan(2400);
    expect(run).toMatchObject({
      status: 'cancelled',
      cancellation: { inFlight: [{ name: 'deaf', obeyed: false, sideEffects: 'unknown' }] },
    });
    const log = await logOf(lab, body.id);
    await sleep(2500);
    expect([await getRun(lab, body.id), await logOf(lab, body.id)]).toEqual([run, log]);
  });
});

it('C04 says cancelling until the clean-up is over; the end is the last thing that is written', async () => {
  await putTrialAgent(lab, 'tidy', { trial: { endMs: 400 } });
  const n = fresh();
  lab.model.script(calling(callOf('nap', { n, ms: 60_000 })));
  const { body } = await startRun(lab, { agent: 'tidy' });
  await lab.ledger.waitForCount(has(n), 1);
  expect(await cancel(lab, body.id)).toMatchObject({ status: 'cancelling' });
  const seen: unknown[] = [];
  const ownEnd = (effect: { readonly runId?: unknown; readonly name?: unknown }): boolean =>
    effect.name === 'onRunEnd' && effect.runId === body.id;
  const last = await waitFor(async () => {
    const run = await getRun(lab, body.id);
    seen.push(run.status);
    if (run.status === 'cancelled') expect(lab.ledger.count(ownEnd)).toBe(1);
    return run.status === 'cancelled' ? run : undefined;
  });
  expect(seen[0]).toBe('cancelling');
  const log = await logOf(lab, body.id);
  expect(log.at(-1)?.type).toBe('run.cancelled');
  expect(last.lastSeq).toBe(log.length);
  await sleep(300);
  expect(await getRun(lab, body.id)).toEqual(last);
});

describe('C05 a request for approval that is pending at the stop', () => {
  const pending = async (): Promise<{ readonly run: Record<string, unknown>; readonly n: number }> => {
    const n = fresh();
    lab.model.script(calling(callOf('gated', { n }), callOf('effect', { n: n + 0.5 })));
    const run = await runToEnd(lab, {});
    expect(run.status).toBe('waiting');
    return { run, n };
  };

  it('C05 is closed by DELETE, the next message runs, and the late approval is a 409 that executes nothing', async () => {
    const { run, n } = await pending();
    expect(await cancel(lab, run.id)).toMatchObject({ status: 'cancelled', interruptions: [] });
    expect(await resume(lab, run.id, decideAll(run, 'approve'))).toMatchObject({
      status: 409,
      body: { code: 'stale_interruption' },
    });
    await nextTurnWorks(lab, run.id);
    expect(await resume(lab, run.id, decideAll(run, 'approve'))).toMatchObject({ status: 409 });
    expect(lab.ledger.count(has(n))).toBe(0);
  });

  it('C05 is closed by DELETE after kill -9 and a restart', async () => {
    const { run, n } = await pending();
    await lab.server.kill9();
    await lab.server.restart();
    expect(await getRun(lab, run.id)).toMatchObject({ status: 'waiting', interruptions: run.interruptions });
    expect(await cancel(lab, run.id)).toMatchObject({ status: 'cancelled', interruptions: [] });
    await nextTurnWorks(lab, run.id);
    expect(lab.ledger.count(has(n))).toBe(0);
  });

  it('C05 executes nothing and frees the conversation when the tool is gone from the agent', async () => {
    const { run, n } = await pending();
    await lab.server.json('DELETE', '/v1/agents/chat');
    await putTrialAgent(lab, 'chat', { shims: [] });
    await lab.server.restart();
    lab.model.script({ text: 'moved on' });
    // The run keeps the agent that it started with, so its tool is still there: approved, it runs once.
    expect((await resume(lab, run.id, decideAll(run, 'approve'))).body).toMatchObject({
      status: 'completed',
      output: 'moved on',
    });
    expect(lab.ledger.count(has(n))).toBe(1);
    expect(await resume(lab, run.id, decideAll(run, 'approve'))).toMatchObject({ status: 409 });
    await putTrialAgent(lab, 'chat');
  });
});

it('C06 a wait in the back-off of a retry ends with the cancel, and no further request is made', async () => {
  lab.model.script({ status: 429, headers: { 'retry-after': '5' } });
  const before = lab.model.requests.length;
  const { body } = await startRun(lab, {});
  await waitFor(async () => (await logOf(lab, body.id)).some(({ type }) => type === 'model.retrying'));
  const startedAt = performance.now();
  expect(await cancel(lab, body.id, WAIT)).toMatchObject({ status: 'cancelled' });
  expect(performance.now() - startedAt).toBeLessThan(1000);
  await sleep(5200);
  expect(lab.model.requests.length - before).toBe(1);
});

it('C08 a late stop for one run never touches another, and of a finished run it changes nothing', async () => {
  lab.model.script({ text: 'A' });
  const a = await runToEnd(lab, {});
  const door = gate();
  lab.model.script({ text: 'B', gate: door.gate, gateAt: 'start' });
  const resumed = await resume(lab, a.id, { input: 'again' }, {});
  const fork = await lab.server.json('POST', `/v1/runs/${String(a.id)}/fork`, { input: 'other line' });
  expect([resumed.status, fork.status]).toEqual([202, 201]);
  await ended(lab, fork.body.id);
  expect(await lab.server.json('DELETE', `/v1/runs/${String(fork.body.id)}`)).toMatchObject({
    status: 200,
    body: { status: 'completed' },
  });
  expect((await getRun(lab, a.id)).status).toBe('running');
  door.open();
  const done = await ended(lab, a.id);
  expect(done).toMatchObject({ status: 'completed', output: 'B', attempt: 2 });
  const log = await logOf(lab, a.id);
  for (let round = 0; round < 2; round += 1) {
    expect(await lab.server.json('DELETE', `/v1/runs/${String(a.id)}`)).toMatchObject({
      status: 200,
      body: { status: 'completed', version: done.version },
    });
  }
  expect(await logOf(lab, a.id)).toEqual(log);
});

describe('C10 text that was seen is kept', () => {
  const words = Array.from({ length: 50 }, (_, n) => `t${n} `);
  const untilHalf = async (
    body: object,
  ): Promise<{ readonly id: string; readonly text: string; readonly close: () => void }> => {
    lab.model.script({ text: words, gate: new Promise(() => undefined), gateAt: 30 });
    const stream = await follow(lab, '/v1/runs', { body: { agent: 'chat', input: 'tell', ...body } });
    let text = '';
    await stream.collect({
      until: ({ event, json }) => {
        if (event === 'model.delta') text += (json as { text: string }).text;
        return text.endsWith('t29 ');
      },
    });
    const { runId } = stream.events[0]!.json as { runId: string };
    return {
      id: runId,
      text,
      close: () => {
        stream.close();
      },
    };
  };

  it('C10 after DELETE, and the next turn is valid', async () => {
    const { id, text } = await untilHalf({});
    expect(await cancel(lab, id, WAIT)).toMatchObject({ status: 'cancelled', partialOutput: text, output: null });
    await nextTurnWorks(lab, id);
  });

  it('C10 after the client went, where that means cancel', async () => {
    const { id, text, close } = await untilHalf({ onDisconnect: 'cancel' });
    close();
    expect(await ended(lab, id)).toMatchObject({ status: 'cancelled', partialOutput: text });
  });

  it('C10 after kill -9: the log has it, and the call that replaces it says so', async () => {
    const { id, text } = await untilHalf({});
    await lab.server.kill9();
    lab.model.script({ text: 'whole' });
    await lab.server.restart();
    expect(await ended(lab, id)).toMatchObject({ status: 'completed', output: 'whole' });
    const log = await logOf(lab, id);
    const calls = log.filter(({ type }) => type === 'model.started');
    const first = log.filter(
      ({ type, modelCallId }) => type === 'model.delta' && modelCallId === calls[0]?.modelCallId,
    );
    expect(first.map((delta) => String(delta.text)).join('')).toBe(text);
    expect(calls[1]).toMatchObject({ replaces: calls[0]?.modelCallId });
  });
});
