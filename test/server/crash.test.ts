import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import type { ReplyToolCall } from '../support/model-reply.js';
import { toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';
import {
  calling,
  callOf,
  DIALECTS,
  ended,
  follow,
  getRun,
  type Lab,
  logOf,
  putAgent,
  resume,
  runToEnd,
  startLab,
  startRun,
  typesOf,
} from './lab.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab();
  await putAgent(lab, 'slow-end', { labConfig: { hold: ['onRunEnd'] } });
  await putAgent(lab, 'poison', { labConfig: { die: 'prepareTurn' } });
});
afterAll(async () => {
  await lab.close();
});
beforeEach(async () => {
  lab.model.respondWith(undefined);
  if (!lab.server.isRunning) await lab.server.restart();
});

const never = new Promise<void>(() => {});
const kill = async (): Promise<void> => {
  await lab.server.kill9();
};
const lastResults = (): string[] => toolResultsOf(lab.model.requests.at(-1)!).map(({ text }) => text);
const effects = (name: string, run: JsonObject): number =>
  lab.ledger.count((entry) => entry.name === name && entry.runId === run.id);

/** Starts a run that calls tools, and kills the server while one of them stands at the ledger: before or after its effect. */
async function killedInTool(
  calls: readonly ReplyToolCall[],
  name: string,
  where: 'before' | 'after',
  agent = 'chat',
): Promise<JsonObject> {
  const held = where === 'before' ? lab.ledger.blockBefore(name) : lab.ledger.blockAfter(name);
  lab.model.script(calling(...calls));
  const { body } = await startRun(lab, { agent });
  await held.reached;
  await kill();
  held.release();
  return body;
}

describe.each(DIALECTS)('killed in the middle of a model call over $dialect', ({ agent }) => {
  it('C01 makes the call again from the last checkpoint; the same stream goes on by its cursor, and the new call says what it replaces', async () => {
    lab.model.script(
      calling(callOf('unknown_tool', { n: 1 })),
      { text: ['half ', 'never'], gate: never, gateAt: 1 },
      { text: 'whole answer' },
    );
    const stream = await follow(lab, '/v1/runs', { body: { agent, input: 'hello' } });
    await stream.collect({
      until: ({ event, json }) => event === 'model.delta' && (json as JsonObject).kind === 'text',
    });
    const id = (stream.events[0]!.json as { runId: string }).runId;
    await kill();
    await stream.ended;
    await lab.server.restart();
    const rest = await follow(lab, `/v1/runs/${id}/events`, { headers: { 'last-event-id': stream.lastEventId } });
    await rest.ended;
    const seen = [...stream.events, ...rest.events].map(({ json }) => json as JsonObject & { type: string });
    expect(seen).toEqual(await logOf(lab, id));
    const rows = seen.map(({ type }) => type);
    expect(rows.filter((type) => type.startsWith('run.'))).toEqual([
      'run.created',
      'run.started',
      'run.recovered',
      'run.completed',
    ]);
    const calls = seen.filter(({ type }) => type === 'model.started');
    expect(calls).toHaveLength(3);
    expect(calls[2]?.replaces).toBe(calls[1]?.modelCallId);
    expect([calls[0]?.replaces, calls[1]?.replaces]).toEqual([undefined, undefined]);
    const run = await getRun(lab, id);
    expect(run).toMatchObject({
      status: 'completed',
      output: 'whole answer',
      attempt: 1,
      recoveries: 1,
      turnCount: 2,
      partialOutput: null,
    });
    expect(effects('unknown', run)).toBe(1);
    expect(run.unknownToolCalls).toEqual([]);
  });
});

describe('killed in the middle of a tool call', () => {
  it.each(['before', 'after'] as const)(
    'retry: it is called again with the same key (%s its effect)',
    async (where) => {
      const run = await killedInTool([callOf('retry_tool', { n: 1 })], 'retry', where);
      lab.model.script({ text: 'retried' });
      await lab.server.restart();
      expect(await ended(lab, run.id)).toMatchObject({
        status: 'completed',
        output: 'retried',
        recoveries: 1,
        unknownToolCalls: [],
      });
      const entries = lab.ledger.entries((entry) => entry.name === 'retry' && entry.runId === run.id);
      expect(entries.map(({ key }) => key)).toEqual(
        Array.from({ length: where === 'before' ? 1 : 2 }, () => entries[0]?.key),
      );
      const started = (await logOf(lab, run.id)).filter(({ type }) => type === 'tool.started');
      expect(new Set(started.map(({ idempotencyKey }) => idempotencyKey))).toEqual(new Set([entries[0]?.key]));
    },
  );

  it.each(['before', 'after'] as const)(
    'unknown: it is not called again, the model is told, and it is listed (%s its effect)',
    async (where) => {
      const run = await killedInTool([callOf('unknown_tool', { n: 7 })], 'unknown', where);
      lab.model.script({ text: 'I see' });
      await lab.server.restart();
      const over = await ended(lab, run.id);
      expect(over).toMatchObject({ status: 'completed', output: 'I see', recoveries: 1 });
      const started = (await logOf(lab, run.id)).find(({ type }) => type === 'tool.started');
      expect(over.unknownToolCalls).toEqual([
        {
          toolCallId: started?.toolCallId,
          tool: 'unknown_tool',
          arguments: { n: 7 },
          startedAt: expect.stringMatching(/Z$/) as string,
          idempotencyKey: started?.idempotencyKey,
        },
      ]);
      expect(effects('unknown', run)).toBe(where === 'before' ? 0 : 1);
      expect(lastResults()[0]).toMatch(/unknown|not known/);
      expect((await logOf(lab, run.id)).find(({ type }) => type === 'tool.completed')).toMatchObject({ ok: false });
    },
  );

  it('ask: the run waits for a settlement, and its call is not made meanwhile', async () => {
    const run = await killedInTool([callOf('ask_tool', { n: 3 })], 'ask', 'after');
    await lab.server.restart();
    const waiting = await ended(lab, run.id);
    expect(waiting).toMatchObject({
      status: 'waiting',
      interruptions: [{ reason: 'outcome', tool: 'ask_tool', arguments: { n: 3 } }],
    });
    const [asked] = waiting.interruptions as { toolCallId: string }[];
    await kill();
    await lab.server.restart();
    expect((await getRun(lab, run.id)).interruptions).toEqual(waiting.interruptions);
    lab.model.script({ text: 'fine' });
    const settle = [{ toolCallId: asked?.toolCallId, outcome: 'happened', result: 'paid' }];
    expect((await resume(lab, run.id, { settle })).body).toMatchObject({
      status: 'completed',
      output: 'fine',
      attempt: 2,
    });
    expect(effects('ask', run)).toBe(1);
    expect(lastResults()[0]).toContain('paid');
  });

  it('fail: the run fails with tool_outcome, and can be resumed', async () => {
    const run = await killedInTool([callOf('fail_tool', { n: 4 })], 'fail', 'after');
    await lab.server.restart();
    expect(await ended(lab, run.id)).toMatchObject({
      status: 'failed',
      error: { code: 'tool_outcome' },
      unknownToolCalls: [{ tool: 'fail_tool' }],
    });
    lab.model.script({ text: 'after all' });
    expect((await resume(lab, run.id, { input: 'It was paid.' })).body).toMatchObject({
      status: 'completed',
      output: 'after all',
    });
    expect(effects('fail', run)).toBe(1);
  });

  it('never runs finished calls of the same round again, and every call has its own rule', async () => {
    const held = [lab.ledger.blockAfter('retry'), lab.ledger.blockAfter('ask')];
    lab.model.script(
      calling(
        callOf('unknown_tool', { n: 1 }),
        callOf('retry_tool', { n: 2 }),
        callOf('ask_tool', { n: 3 }),
        callOf('echo', { n: 4 }),
      ),
    );
    const { body: run } = await startRun(lab, {});
    await Promise.all(held.map(async ({ reached }) => reached));
    await waitFor(async () => (await logOf(lab, run.id)).filter(({ type }) => type === 'tool.completed').length === 2);
    await kill();
    for (const block of held) block.release();
    await lab.server.restart();
    const waiting = await ended(lab, run.id);
    expect(waiting).toMatchObject({
      status: 'waiting',
      interruptions: [{ reason: 'outcome', tool: 'ask_tool' }],
      unknownToolCalls: [],
    });
    expect([effects('unknown', run), effects('retry', run), effects('ask', run)]).toEqual([1, 2, 1]);
    lab.model.script({ text: 'whole round' });
    const settle = [
      { toolCallId: (waiting.interruptions as { toolCallId: string }[])[0]?.toolCallId, outcome: 'failed' },
    ];
    expect((await resume(lab, run.id, { settle })).body).toMatchObject({ status: 'completed', output: 'whole round' });
    expect(lastResults()).toHaveLength(4);
    expect([effects('unknown', run), effects('retry', run), effects('ask', run)]).toEqual([1, 2, 1]);
  });

  it('runs the calls of a round that had not begun', async () => {
    await putAgent(lab, 'serial', { tools: { parallelToolCalls: false } });
    const run = await killedInTool(
      [callOf('unknown_tool', { n: 1 }), callOf('unknown_tool', { n: 2 }), callOf('retry_tool', { n: 3 })],
      'unknown',
      'after',
      'serial',
    );
    lab.model.script({ text: 'done' });
    await lab.server.restart();
    expect(await ended(lab, run.id)).toMatchObject({
      status: 'completed',
      unknownToolCalls: [{ arguments: { n: 1 } }],
    });
    expect(lab.ledger.entries((entry) => entry.runId === run.id).map(({ n }) => n)).toEqual([1, 2, 3]);
  });
});

describe('killed in clean-up', () => {
  it('of a cancel: the run ends cancelled', async () => {
    const held = lab.ledger.blockBefore('onRunEnd');
    const requests = lab.model.requests.length;
    lab.model.script({ text: ['shown ', 'x'], gate: never, gateAt: 1 });
    const { body: run } = await startRun(lab, { agent: 'slow-end' });
    await lab.model.waitForRequest(requests + 1);
    await waitFor(async () => typesOf(await logOf(lab, run.id)).includes('model.delta'));
    await lab.server.json('DELETE', `/v1/runs/${String(run.id)}`);
    await held.reached;
    await kill();
    held.release();
    await lab.server.restart();
    expect(await ended(lab, run.id)).toMatchObject({
      status: 'cancelled',
      partialOutput: 'shown ',
      cancellation: {
        inFlight: [{ kind: 'model', name: 'openai-compatible/m', obeyed: false, sideEffects: 'none' }],
      },
    });
    const log = await logOf(lab, run.id);
    // The receipt tells when the cancel was asked for, not when the server was there again.
    const asked = log.find(({ type }) => type === 'run.cancelling')?.at;
    const { body: cancelled } = await lab.server.json('GET', `/v1/runs/${String(run.id)}`);
    expect((cancelled.cancellation as { requestedAt?: unknown }).requestedAt).toBe(asked);
    const types = typesOf(log);
    expect(types.filter((type) => type.startsWith('run.cancel'))).toEqual(['run.cancelling', 'run.cancelled']);
    lab.model.script({ text: 'on' });
    const again = resume(lab, run.id, { input: 'go on' });
    expect((await again).body).toMatchObject({ status: 'completed', output: 'on' });
  });

  it('of a finished run: it ends completed with the same output, and the model is not called again', async () => {
    const held = lab.ledger.blockBefore('onRunEnd');
    lab.model.script({ text: 'the answer' });
    const { body: run } = await startRun(lab, { agent: 'slow-end' });
    await held.reached;
    const requests = lab.model.requests.length;
    await kill();
    held.release();
    await lab.server.restart();
    expect(await ended(lab, run.id)).toMatchObject({
      status: 'completed',
      output: 'the answer',
      finishReason: 'stop',
      turnCount: 1,
      recoveries: 1,
    });
    expect(lab.model.requests.length).toBe(requests);
    expect(lab.ledger.entries((entry) => entry.name === 'onRunEnd' && entry.runId === run.id)).toMatchObject([
      { output: 'the answer' },
    ]);
  });

  it('of a finished run ever again: it is given up, and the answer is kept', async () => {
    lab.model.script({ text: 'the answer' });
    const held = lab.ledger.blockBefore('onRunEnd');
    const { body: run } = await startRun(lab, { agent: 'slow-end' });
    await held.reached;
    held.release();
    for (let death = 1; death <= 3; death += 1) {
      const again = lab.ledger.blockBefore('onRunEnd');
      await kill();
      await lab.server.restart();
      if (death < 3) await again.reached;
      again.release();
    }
    const failed = { error: { code: 'crash_loop' }, output: 'the answer' };
    expect(await ended(lab, run.id)).toMatchObject({ status: 'failed', ...failed });
    expect((await logOf(lab, run.id)).at(-1)).toMatchObject({ type: 'run.failed', ...failed });
  });
});

it('waiting for approval: still waiting after three restarts, with the same interruption ids', async () => {
  lab.model.script(calling(callOf('gated', { n: 9 })));
  const run = await runToEnd(lab, {});
  for (let round = 0; round < 3; round += 1) {
    await kill();
    await lab.server.restart();
    expect(await getRun(lab, run.id)).toEqual(run);
  }
});

it('a poison run fails with crash_loop after three deaths; the server comes up, and runs beside it are served', async () => {
  lab.model.script({ text: 'slow', gate: never, gateAt: 'start' });
  const requests = lab.model.requests.length;
  const { body: beside } = await startRun(lab, { agent: 'chat' });
  await lab.model.waitForRequest(requests + 1);
  // Whoever asks is cut off by the death of the server, but the run was stored before it was executed.
  await startRun(lab, { agent: 'poison', metadata: { kind: 'poison' } }).catch(() => undefined);
  await lab.server.exited;
  for (let death = 2; death <= 3; death += 1) {
    lab.model.respondWith(() => ({ text: 'slow', gate: never, gateAt: 'start' }));
    await lab.server.restart().catch(() => undefined);
    await lab.server.exited;
  }
  lab.model.respondWith(() => ({ text: 'served' }));
  await lab.server.restart();
  const { body } = await lab.server.json('GET', '/v1/runs?metadata.kind=poison');
  const [poison] = body.data as JsonObject[];
  expect(await ended(lab, poison?.id)).toMatchObject({ status: 'failed', error: { code: 'crash_loop' } });
  expect((await logOf(lab, poison?.id)).at(-1)).toMatchObject({ type: 'run.failed', error: { code: 'crash_loop' } });
  expect(await ended(lab, beside.id)).toMatchObject({ status: 'completed', output: 'served' });
  expect(await runToEnd(lab, {})).toMatchObject({ status: 'completed', output: 'served' });
});

it('a run that was only queued is started, not recovered', async () => {
  await kill();
  await lab.server.restart({ env: { MAX_CONCURRENT_RUNS: '1' } });
  const requests = lab.model.requests.length;
  lab.model.script({ text: 'first', gate: never, gateAt: 'start' });
  await startRun(lab, {});
  await lab.model.waitForRequest(requests + 1);
  const { body: queued } = await startRun(lab, {});
  expect((await getRun(lab, queued.id)).status).toBe('queued');
  await kill();
  await lab.server.restart({ env: { MAX_CONCURRENT_RUNS: '256' } });
  expect(await ended(lab, queued.id)).toMatchObject({ status: 'completed', recoveries: 0, attempt: 1 });
  expect(typesOf(await logOf(lab, queued.id)).slice(0, 2)).toEqual(['run.created', 'run.started']);
});

it('many unfinished runs go on at once, and none holds up the server or another', async () => {
  const requests = lab.model.requests.length;
  lab.model.respondWith(() => ({ text: ['x', 'y'], gate: never, gateAt: 1 }));
  const ids = await Promise.all(Array.from({ length: 40 }, async () => (await startRun(lab, {})).body.id));
  await lab.model.waitForRequest(requests + 40);
  await kill();
  let answered = 0;
  // Every second recovered run hangs again in its model call; the others are answered.
  lab.model.respondWith(() =>
    answered++ % 2 === 0 ? { text: 'x', gate: never, gateAt: 'start' } : { text: 'recovered' },
  );
  await lab.server.restart();
  await waitFor(
    async () =>
      (await Promise.all(ids.map(async (id) => getRun(lab, id)))).filter(({ status }) => status === 'completed')
        .length === 20,
    { timeoutMs: 15_000 },
  );
  for (const id of ids) {
    const run = await getRun(lab, id);
    expect(run).toMatchObject({ recoveries: 1, attempt: 1 });
    if (run.status === 'running') await lab.server.json('DELETE', `/v1/runs/${String(id)}`);
  }
  expect((await lab.server.json('GET', '/healthz')).status).toBe(200);
});

it('sends nothing that either endpoint refuses', () => {
  expect(lab.model.refusedRequests.map(({ problem }) => problem)).toEqual([]);
});
