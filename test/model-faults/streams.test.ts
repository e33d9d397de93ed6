import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ended, follow, logOf, startRun, typesOf } from '../server/lab.js';
import { type DialectName, inBandError } from '../support/dialects.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import type { CutPlace, Reply } from '../support/model-reply.js';
import { waitFor } from '../support/wait.js';
import { agentFor, type Faults, MODELS, startFaults, TWO_MODELS } from './faults.js';

let faults: Faults;
beforeAll(async () => {
  faults = await startFaults({ env: { MODEL_MAX_RETRIES: '1', MODEL_IDLE_TIMEOUT_MS: '600' } });
});
afterAll(async () => {
  await faults.close();
});

const FOUR = ['a', 'b', 'c', 'd'];
const TEXT_CUTS: readonly (readonly [CutPlace, string | null])[] = [
  ['headers', null],
  ['role', null],
  ['half-text', 'ab'],
  ['text', 'abcd'],
  ['finish', 'abcd'],
  ['before-done', 'abcd'],
];

describe.each(MODELS)('M01 $model', ({ model, dialect }) => {
  const agent = agentFor(model);
  const cuts = TEXT_CUTS.filter(([after]) => dialect !== 'openai-responses' || after !== 'finish');

  const trials = cuts.flatMap(([after, partial]) =>
    (['end', 'reset'] as const).map((how) => [after, how, partial] as const),
  );

  it.concurrent.each(trials)(
    'an answer cut after %s by %s is never an answer, and is asked for once more',
    async (after, how, partial) => {
      const cut: Reply = { text: FOUR, cut: { after, how } };
      const input = faults.script(`${model} ${after} ${how}`, cut, cut);
      const failed = await faults.run(input, { agent });
      expect(failed).toMatchObject({
        status: 'failed',
        output: null,
        partialOutput: partial,
        error: { code: 'model_stream_cut', provider: model.slice(0, model.indexOf('/')) },
      });
      faults.script(input, cut, { text: 'whole' });
      const run = await faults.run(input, { agent });
      expect(run).toMatchObject({ status: 'completed', output: 'whole', partialOutput: null, error: null });
      const events = await logOf(faults, run.id);
      const started = events.filter(({ type }) => type === 'model.started');
      expect(started.map(({ replaces }) => replaces)).toEqual([
        undefined,
        partial === null ? undefined : started[0]?.modelCallId,
      ]);
      const retrying = events.find(({ type }) => type === 'model.retrying');
      expect(retrying).toMatchObject({
        modelCallId: started[0]?.modelCallId,
        error: { code: 'model_stream_cut' },
        retry: 1,
      });
      expect(retrying?.delayMs).toBeGreaterThanOrEqual(250);
      expect(retrying?.delayMs).toBeLessThanOrEqual(500);
    },
  );

  it.concurrent.each(['half-tool', 'tool'] as const)('a call cut after %s is never run', async (after) => {
    const cut: Reply = { toolCalls: [{ name: 'echo', arguments: { x: 12345 } }], cut: { after, how: 'end' } };
    const input = faults.script(`${model} ${after}`, cut, cut);
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'model_stream_cut' } });
    expect(typesOf(await logOf(faults, run.id)).filter((type) => type.startsWith('tool.'))).toEqual([]);
    faults.script(input, { text: 'on we go' });
    expect(await faults.resume(run.id, {})).toMatchObject({ status: 'completed', output: 'on we go' });
  });
});

const KINDS = ['overloaded', 'rate_limit', 'server_error', 'invalid_request'] as const;
const LASTING = 'invalid_request';

describe.each(MODELS)('M02 $model', ({ model, dialect }) => {
  const agent = agentFor(model);
  const trials = KINDS.flatMap((kind) => [[kind, 0, null] as const, [kind, 2, 'ab'] as const]);

  it.concurrent.each(trials)(
    'an in-band %s after %i deltas is classified as its HTTP error would be',
    async (kind, after, partial) => {
      const body = inBandError(dialect, kind);
      const reply: Reply = { text: FOUR, errorInStream: { after, body } };
      const input = faults.script(`${model} ${kind} ${after}`, ...(kind === LASTING ? [reply] : [reply, reply]));
      const run = await faults.run(input, { agent });
      expect(run).toMatchObject({ status: 'failed', output: null, partialOutput: partial });
      expect(run.error).toMatchObject({ code: 'model_error', message: messageIn(body) });
      expect(JSON.stringify(run)).not.toContain('[object Object]');
      const types = typesOf(await logOf(faults, run.id));
      expect(types.filter((type) => type === 'model.retrying')).toHaveLength(kind === LASTING ? 0 : 1);
      expect(types.filter((type) => type.startsWith('run.'))).toEqual(['run.created', 'run.started', 'run.failed']);
    },
  );

  it.concurrent('bare JSON in the stream, and an error after a whole call, are the same', async () => {
    const body = inBandError(dialect, 'overloaded');
    const input = faults.script(
      `${model} bare`,
      { text: FOUR, errorInStream: { after: 2, body, bare: true } },
      { toolCalls: [{ name: 'echo', arguments: { x: 1 } }], errorInStream: { after: 1, body } },
    );
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'model_error', message: messageIn(body) } });
    expect(typesOf(await logOf(faults, run.id))).not.toContain('tool.started');
  });
});

function messageIn(body: object): string {
  const { error } = body as { readonly error: { readonly message: string } };
  return error.message;
}

describe.each(TWO_MODELS)('M04 $model', ({ model, dialect }) => {
  const silences = (name: DialectName): readonly (readonly [string, Reply, string | null])[] => [
    ['nothing at all', { gateAt: 'start', gate: new Promise(() => undefined) }, null],
    ['headers, then silence', { cut: { after: 'headers', how: 'stall' } }, null],
    ['some tokens, then silence', { text: FOUR, cut: { after: 'half-text', how: 'stall' } }, 'ab'],
    ['pings for ever', { text: FOUR, cut: { after: 'half-text', how: 'stall' }, pings: true, pingEveryMs: 40 }, 'ab'],
    ['a byte now and then', { raw: slowly(name), pieces: { bytes: 1, delayMs: 150 } }, null],
  ];

  it.concurrent.each(silences(dialect))(
    '%s ends the call as a silence, and the next one goes on',
    async (name, reply, partial) => {
      const input = faults.script(`${model} ${name}`, reply, { text: 'here' });
      const run = await faults.run(input, { agent: agentFor(model) });
      expect(run).toMatchObject({ status: 'completed', output: 'here' });
      const events = await logOf(faults, run.id);
      expect(events.find(({ type }) => type === 'model.retrying')).toMatchObject({
        error: { code: 'model_idle_timeout', provider: model.slice(0, model.indexOf('/')) },
      });
      const started = events.filter(({ type }) => type === 'model.started');
      expect(started[1]?.replaces).toBe(partial === null ? undefined : started[0]?.modelCallId);
      const silent = (): boolean =>
        faults.model.requests.some((request) => request.endedAt === undefined && request.rawBody.includes(input));
      await waitFor(() => !silent(), { what: 'the silent connection to be closed' });
    },
  );
});

/** An answer whose bytes come so slowly that no event of it is ever whole in time. */
function slowly(name: DialectName): string {
  const event = name === 'anthropic' ? 'event: message_start\n' : '';
  return `${event}data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"aaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}]}\n\n`;
}

describe('M04 and C06: a cancel ends', () => {
  const cases: readonly (readonly [string, Reply])[] = [
    ['a call that is never answered', { gateAt: 'start', gate: new Promise(() => undefined) }],
    ['headers, then silence', { cut: { after: 'headers', how: 'stall' } }],
    ['some tokens, then silence', { text: FOUR, cut: { after: 'half-text', how: 'stall' } }],
    ['pings for ever', { pings: true, pingEveryMs: 40 }],
    ['a byte now and then', { raw: 'x'.repeat(500), pieces: { bytes: 1, delayMs: 150 } }],
    ['the pause that Retry-After asked for', { status: 429, headers: { 'retry-after': '60' } }],
  ];

  let patient: Faults;
  beforeAll(async () => {
    patient = await startFaults();
  });
  afterAll(async () => {
    await patient.close();
  });

  it.concurrent.each(cases)('%s within about a second, and no further request follows', async (name, reply) => {
    const model = 'anthropic/claude-sonnet-4-5';
    const input = patient.script(name, reply);
    const { body } = await startRun(patient, { agent: agentFor(model), input });
    const mine = (): readonly ReceivedRequest[] =>
      patient.model.requests.filter((each) => each.rawBody.includes(input));
    await waitFor(() => mine().length === 1, { what: 'the model request' });
    const waits = reply.status === 429 ? 'model.retrying' : 'model.started';
    const stream = await follow(patient, `/v1/runs/${String(body.id)}/events`);
    await stream.collect({ until: ({ event }) => event === waits });
    const asked = performance.now();
    const answer = await patient.server.json('DELETE', `/v1/runs/${String(body.id)}`, undefined, { prefer: 'wait=10' });
    expect(performance.now() - asked).toBeLessThan(1_500);
    expect([answer.status, answer.body.status]).toEqual([200, 'cancelled']);
    const inFlight = reply.status === 429 ? [] : [{ kind: 'model', name: model, obeyed: true }];
    expect(answer.body.cancellation).toMatchObject({ inFlight });
    await waitFor(() => mine()[0]?.endedAt !== undefined, { what: 'the connection to be closed' });
    expect(mine()).toHaveLength(1);
    expect((await ended(patient, body.id)).status).toBe('cancelled');
  });
});

describe('retries', () => {
  it('wait as long as Retry-After asks, and are told with the error', async () => {
    await faults.put('openai-compatible/m');
    const limited = { error: { message: 'Slow down', type: 'requests', code: 'rate_limit_exceeded' } };
    const headers = { 'retry-after': '1', 'x-request-id': 'req-7' };
    faults.model.script({ status: 429, headers, errorBody: limited }, { text: 'fine' });
    const run = await faults.run('hello');
    expect(run).toMatchObject({ status: 'completed', output: 'fine' });
    const events = await logOf(faults, run.id);
    const retrying = events.find(({ type }) => type === 'model.retrying');
    expect(retrying).toEqual({
      seq: retrying?.seq,
      type: 'model.retrying',
      runId: run.id,
      attempt: 1,
      at: retrying?.at,
      turn: 1,
      modelCallId: events.find(({ type }) => type === 'model.started')?.modelCallId,
      error: {
        code: 'model_error',
        message: 'Slow down',
        provider: 'openai-compatible',
        status: 429,
        requestId: 'req-7',
        providerCode: 'rate_limit_exceeded',
      },
      delayMs: 1000,
      retry: 1,
    });
    const [first, second] = faults.model.requests.slice(-2);
    expect((second?.at ?? 0) - (first?.at ?? 0)).toBeGreaterThanOrEqual(1000);
    expect(second?.rawBody).toBe(first?.rawBody);
  });

  it('are bounded, and the failure names provider, status and request, and no key', async () => {
    await faults.put('anthropic/claude-sonnet-4-5');
    const broken: Reply = {
      status: 529,
      headers: { 'request-id': 'req-9' },
      errorBody: { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded for test-anthropic-key' } },
    };
    faults.model.script(broken, broken);
    const before = faults.model.requests.length;
    const run = await faults.run('hello');
    expect(run).toMatchObject({
      status: 'failed',
      error: {
        code: 'model_error',
        provider: 'anthropic',
        status: 529,
        requestId: 'req-9',
        providerCode: 'overloaded_error',
        message: 'Overloaded for [redacted]',
      },
    });
    expect(faults.model.requests.length - before).toBe(2);
    expect(JSON.stringify([run, await logOf(faults, run.id)])).not.toContain('test-anthropic-key');
  });

  it('are not made where asking again cannot help', async () => {
    await faults.put('openai/gpt-test');
    faults.model.script({ status: 401 });
    const run = await faults.run('hello');
    expect(run).toMatchObject({ status: 'failed', error: { code: 'model_error', status: 401 } });
    faults.model.script({ text: 'the key was changed' });
    expect(await faults.resume(run.id, {})).toMatchObject({ status: 'completed', output: 'the key was changed' });
  });
});

describe('usage', () => {
  it.each(MODELS)('is the sum that the endpoint told, cut and empty answers included: $model', async ({ model }) => {
    await faults.put(model);
    const before = faults.model.usage;
    const usage = { input: 100, output: 20, cached: 64, reasoning: 5 };
    faults.model.script(
      { text: 'cut', usage: { ...usage, input: 99 }, cut: { after: 'before-done', how: 'end' } },
      { toolCalls: [{ name: 'echo', arguments: { x: 1 } }], usage },
      { text: ' ', usage: { input: 130, output: 7, cached: 96, reasoning: 3 } },
      { text: 'done', usage: { input: 131, output: 8, cached: 96, reasoning: 2 } },
    );
    const run = await faults.run('hello');
    const after = faults.model.usage;
    expect(run).toMatchObject({ status: 'completed', output: 'done' });
    expect(run.usage).toEqual({
      inputTokens: after.input - before.input,
      outputTokens: after.output - before.output,
      totalTokens: after.total - before.total,
      cachedInputTokens: after.cached - before.cached,
      reasoningTokens: after.reasoning - before.reasoning,
    });
    const told = (await logOf(faults, run.id)).find(({ type }) => type === 'run.completed');
    expect(told?.usage).toEqual(run.usage);
  });
});
