import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import retryFallback from '../../shims/retry-fallback.js';
import { handleOf } from '../../src/agent/default-agent.js';
import { DefaultAgent, type DefaultAgentOptions } from '../../src/index.js';
import { defineTool, RunCancelledError, z } from '../../src/shims.js';
import { type ScriptedAnswer, type ScriptedFailure, ScriptedModel } from '../../src/testing.js';
import { putAgent, type Seam, startSeam } from '../rules/seam.js';
import { calling, callOf, ended, gate, logOf, runToEnd, startRun } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import type { Reply } from '../support/model-reply.js';
import { toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';

type Config = Parameters<typeof retryFallback.create>[0];
interface Tried {
  readonly output: unknown;
  readonly error: unknown;
  readonly events: readonly JsonObject[];
  /** How many requests each model got. */
  readonly requests: Readonly<Record<string, number>>;
  readonly models: Readonly<Record<string, ScriptedModel>>;
  readonly agent: DefaultAgent;
  again(): Promise<Tried>;
}

const fails = (failure: ScriptedFailure = {}): ScriptedAnswer => ({ error: { message: 'down', ...failure } });
const passing = fails({ retryable: true });
const tool = defineTool({
  name: 'look',
  description: '',
  parameters: z.object({}),
  onCrash: 'retry',
  execute: () => 'seen',
});

/** An agent of the model `a`, with the shim and scripted models by their ids. */
async function tried(
  scripts: Readonly<Record<string, readonly ScriptedAnswer[]>>,
  config: Config,
  options: Partial<DefaultAgentOptions> & { readonly signal?: AbortSignal } = {},
): Promise<Tried> {
  const models = Object.fromEntries(Object.entries(scripts).map(([id, script]) => [id, new ScriptedModel(script)]));
  const { signal, ...rest } = options;
  const agent = new DefaultAgent({
    model: 'a',
    models: {
      resolve: (id) => {
        const model = models[id];
        if (model === undefined) throw new Error(`There is no model ${id}.`);
        return { ...handleOf(model), id };
      },
    },
    modelMaxRetries: 7,
    shims: [retryFallback.create(config)],
    ...rest,
  });
  const once = async (): Promise<Tried> => {
    const events: JsonObject[] = [];
    const run = agent.runStream('hello', signal === undefined ? {} : { signal });
    for await (const event of run) events.push(event);
    const [settled] = await Promise.allSettled([run.result]);
    return {
      output: settled.status === 'fulfilled' ? settled.value.finalOutput : undefined,
      error: settled.status === 'rejected' ? settled.reason : undefined,
      events,
      requests: Object.fromEntries(Object.entries(models).map(([id, model]) => [id, model.requests.length])),
      models,
      agent,
      again: once,
    };
  };
  return once();
}
const told = ({ events }: Tried): JsonObject[] =>
  events.filter(({ type }) => String(type).startsWith('custom.fallback')).map(({ data }) => data as JsonObject);
const started = ({ events }: Tried): unknown[] =>
  events.filter(({ type }) => type === 'model.started').map(({ model }) => model);

describe('another model takes over', () => {
  it('after a failure, in the order of the list, each call marked in the events', async () => {
    const run = await tried(
      { a: [fails({ status: 500 })], b: [fails()], c: ['from c'] },
      { models: ['b', 'a', 'c'], retries: 0 },
    );
    expect([run.output, run.requests]).toEqual(['from c', { a: 1, b: 1, c: 1 }]);
    expect(started(run)).toEqual(['a', 'b', 'c']);
    expect(run.events.filter(({ type, replaces }) => type === 'model.started' && replaces !== undefined)).toEqual([]);
    expect(told(run)).toEqual([
      { from: 'a', to: 'b', code: 'model_error', status: 500, afterDeltas: false },
      { from: 'b', to: 'c', code: 'model_error', afterDeltas: false },
      { model: 'c', insteadOf: 'a' },
    ]);
    expect(run.agent.runState.responses.map(({ modelId }) => modelId)).toEqual(['c']);
  });

  it('with arguments of its own', async () => {
    const run = await tried(
      { a: [fails()], b: ['ok'] },
      { models: [{ model: 'b', modelArgs: { topK: 3 } }], retries: 0 },
      { modelArgs: { temperature: 0.5 } },
    );
    expect(run.models.a?.requests[0]?.options).toMatchObject({ temperature: 0.5 });
    expect(run.models.b?.requests[0]?.options).toMatchObject({ topK: 3 });
    expect(run.models.b?.requests[0]?.options.temperature).toBeUndefined();
  });

  it('and where none is left the last failure is that of the run; one that is not there is passed over', async () => {
    const none = await tried(
      { a: [fails({ message: 'first' })], b: [fails({ message: 'second' })] },
      { models: ['b', 'gone'], retries: 0 },
    );
    expect(none.error).toMatchObject({ code: 'model_error', message: 'second' });
    const passed = await tried({ a: [fails()], b: ['ok'] }, { models: ['gone', 'b'], retries: 0 });
    expect([passed.output, told(passed).map(({ from, to }) => [from, to])]).toEqual([
      'ok',
      [
        ['a', 'gone'],
        ['gone', 'b'],
        [undefined, undefined],
      ],
    ]);
  });

  it.each([
    ['another code', fails({ code: 'context_exceeded' }), {}, 0],
    ['a code that is asked for', fails({ code: 'context_exceeded' }), { codes: ['context_exceeded'] }, 1],
    ['another status', fails({ status: 400 }), { statuses: [401, 429] }, 0],
    ['a status that is asked for', fails({ status: 401 }), { statuses: [401, 429] }, 1],
    ['no status where some are asked for', fails(), { statuses: [401] }, 1],
    ['a cut stream without text', { ends: 'cut' }, { codes: ['model_stream_cut'] }, 1],
    ['an error after text was shown', { text: 'half', error: { message: 'x' } }, {}, 0],
    ['an error after a reasoning was shown', { reasoning: 'hm', error: { message: 'x' } }, {}, 0],
    ['an error of no model', new RangeError('a bug'), { codes: ['model_idle_timeout'] }, 0],
  ] as const)('after %s: %#', async (_what, answer, config, requests) => {
    const run = await tried({ a: [answer], b: ['ok'] }, { models: ['b'], retries: 0, ...config } as Config);
    expect(run.requests.b).toBe(requests);
    expect(run.output === undefined).toBe(requests === 0);
  });

  it('R49 after text was shown only where it may, as a marked call whose text replaces the other', async () => {
    const run = await tried(
      { a: [{ text: ['half of'], error: { message: 'x' } }], b: ['whole'] },
      { models: ['b'], retries: 0, afterDeltas: true },
    );
    const [first, second] = run.events.filter(({ type }) => type === 'model.started');
    expect(second).toMatchObject({ model: 'b', replaces: first?.modelCallId });
    expect(told(run)).toEqual([
      { from: 'a', to: 'b', code: 'model_error', afterDeltas: true },
      { model: 'b', insteadOf: 'a' },
    ]);
    expect([run.output, run.agent.runState.responses.length]).toEqual(['whole', 1]);
  });

  it('begins each call with the agent’s own model, or stays with the other for the rest of the run', async () => {
    const look: ScriptedAnswer = { toolCalls: [{ toolName: 'look' }] };
    const scripts = { a: [fails(), 'from a', 'again from a'], b: [look, 'from b'] };
    const own = await tried(scripts, { models: ['b'], retries: 0 }, { tools: [tool] });
    expect([own.output, started(own)]).toEqual(['from a', ['a', 'b', 'a']]);
    expect(own.agent.runState.shimState.toJSON()).toEqual({});
    const sticky = await tried(
      { a: [fails(), 'next run'], b: [look, 'from b'] },
      { models: ['b'], retries: 0, sticky: true },
      { tools: [tool] },
    );
    expect([sticky.output, started(sticky)]).toEqual(['from b', ['a', 'b', 'b']]);
    expect(sticky.agent.runState.shimState.get('retry-fallback')).toEqual({ model: 'b' });
    const next = await sticky.again();
    expect([next.output, started(next)]).toEqual(['next run', ['a']]);
  });

  it('goes back to the agent’s own where the one it stayed with fails', async () => {
    const look: ScriptedAnswer = { toolCalls: [{ toolName: 'look' }] };
    const run = await tried(
      { a: [fails(), 'from a'], b: [look, fails()] },
      { models: ['b'], retries: 0, sticky: true },
      { tools: [tool] },
    );
    expect([run.output, started(run)]).toEqual(['from a', ['a', 'b', 'b', 'a']]);
    expect(run.agent.runState.shimState.get('retry-fallback')).toEqual({ model: null });
  });
});

describe('retries', () => {
  it('are so many for each model, and only after a passing failure', async () => {
    const run = await tried(
      { a: [passing, passing, passing], b: [fails(), 'never'], c: ['ok'] },
      { models: ['b', 'c'], retries: 2 },
    );
    expect([run.output, run.requests]).toEqual(['ok', { a: 3, b: 1, c: 1 }]);
    expect(run.events.filter(({ type }) => type === 'model.retrying').map(({ retry }) => retry)).toEqual([1, 2]);
  });

  it('wait as long as the model asks for, but not longer than they may', async () => {
    const asks = (ms: number): ScriptedAnswer => fails({ retryable: true, retryAfterMs: ms });
    const patient = await tried({ a: [asks(20), 'ok'], b: ['never'] }, { models: ['b'], longestPauseMs: 20 });
    expect([patient.output, patient.events.find(({ type }) => type === 'model.retrying')]).toMatchObject([
      'ok',
      { delayMs: 20 },
    ]);
    const not = await tried({ a: [asks(21), 'late'], b: ['ok'] }, { models: ['b'], longestPauseMs: 20 });
    expect([not.output, not.requests]).toEqual(['ok', { a: 1, b: 1 }]);
  });

  it('go round the list again after a pause, without the models that failed for good', async () => {
    const run = await tried(
      { a: [passing, passing, 'ok'], b: [fails()], c: [passing, passing] },
      { models: ['b', 'c'], retries: 0, rounds: 3, roundPauseMs: 8 },
    );
    expect([run.output, run.requests]).toEqual(['ok', { a: 3, b: 1, c: 2 }]);
    const pauses = told(run).flatMap(({ pauseMs }) => (pauseMs === undefined ? [] : [Number(pauseMs)]));
    expect(pauses).toHaveLength(2);
    // Jitter over the upper half of a back-off that doubles.
    expect(pauses.map((ms, round) => ms >= 4 * 2 ** round && ms <= 8 * 2 ** round)).toEqual([true, true]);
  });

  it.each([
    [50, 'ok'],
    [51, undefined],
  ])('a pause between rounds is that which the first of the models asks for: %i ms of 50', async (asked, output) => {
    const asks = (retryAfterMs: number): ScriptedAnswer => fails({ retryable: true, retryAfterMs });
    const run = await tried(
      { a: [asks(asked), 'ok'], b: [asks(asked + 100)] },
      { models: ['b'], retries: 0, rounds: 2, roundPauseMs: 0, longestRoundPauseMs: 50 },
    );
    expect(run.output).toBe(output);
    if (output !== undefined) expect(told(run).at(-1)).toMatchObject({ pauseMs: 50, to: 'a' });
  });

  it('failure C06 a cancel in a pause between rounds ends it, and in a call it is never repeated', async () => {
    const controller = new AbortController();
    const inPause = tried(
      { a: [passing, 'never'], b: ['never'] },
      { models: [], retries: 0, rounds: 2, roundPauseMs: 60_000 },
      {
        signal: controller.signal,
        hooks: [],
        log: {
          ...silent,
          warn: () =>
            setImmediate(() => {
              controller.abort();
            }),
        },
      },
    );
    expect(await inPause).toMatchObject({ error: expect.any(RunCancelledError) as object, requests: { a: 1 } });
    const other = new AbortController();
    const inCall = await tried(
      {
        a: [
          () => {
            setImmediate(() => {
              other.abort();
            });
            return { ends: 'never' };
          },
        ],
        b: ['never'],
      },
      { models: ['b'], rounds: 2 },
      { signal: other.signal },
    );
    expect(inCall).toMatchObject({ error: expect.any(RunCancelledError) as object, requests: { a: 1, b: 0 } });
  });
});

const silent = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };

describe('in the server', () => {
  let seam: Seam;
  beforeAll(async () => {
    seam = await startSeam({}, { env: { MODEL_MAX_RETRIES: '2' } });
  });
  afterEach(() => {
    seam.model.respondWith(undefined);
    expect(seam.model.refusedRequests).toEqual([]);
    expect(seam.model.unusedReplies).toBe(0);
  });
  afterAll(async () => {
    await seam.close();
  });
  const agentWith = async (name: string, config: JsonObject, more: JsonObject = {}): Promise<void> =>
    putAgent(seam, name, { shims: [{ use: 'retry-fallback', config }, 'clock'], ...more });

  it('R49 failure M02 models of any provider take over in the middle of a conversation, each given a history that it takes', async () => {
    await agentWith('portable', {
      models: ['anthropic/claude-sonnet-4-5', 'openai/gpt-5', 'openai-chat/gpt-4o'],
      retries: 0,
      afterDeltas: true,
    });
    const ask: Reply = calling(callOf('clock', { zone: 'UTC' }));
    const overloaded: Reply = { status: 529 };
    // One turn after the other is answered by another model, with the calls, results and reasoning of those before it.
    seam.model.script(
      { reasoning: 'Hm.', ...ask },
      { status: 503 },
      { reasoning: 'Well.', ...ask },
      { status: 429, headers: { 'retry-after': '120' } },
      overloaded,
      { reasoning: 'So.', ...ask },
    );
    seam.model.script(
      { text: ['cut', ' off'], cut: { after: 'text', how: 'reset' } },
      overloaded,
      { status: 500 },
      { text: 'It is late.' },
    );
    const run = await runToEnd(seam, { agent: 'portable' });
    expect(run).toMatchObject({ status: 'completed', output: 'It is late.', turnCount: 4, partialOutput: null });
    const log = await logOf(seam, run.id);
    expect(
      log
        .filter(({ type }) => type === 'custom.fallback.answered')
        .map(({ turn, data }) => [turn, (data as JsonObject).model]),
    ).toEqual([
      [2, 'anthropic/claude-sonnet-4-5'],
      [3, 'openai/gpt-5'],
      [4, 'openai-chat/gpt-4o'],
    ]);
    const calls = log.filter(({ type, turn }) => type === 'model.started' && turn === 4);
    expect(calls.map(({ model, replaces }) => [model, replaces])).toEqual([
      ['openai-compatible/m', undefined],
      ['anthropic/claude-sonnet-4-5', calls[0]?.modelCallId],
      ['openai/gpt-5', calls[0]?.modelCallId],
      ['openai-chat/gpt-4o', calls[0]?.modelCallId],
    ]);
    expect(toolResultsOf(seam.model.requests.at(-1)!)).toHaveLength(3);
    // The 429 asked for two minutes: it was not waited for.
    expect(log.filter(({ type }) => type === 'model.retrying')).toEqual([]);
  });

  it('failure K01 stays with the other model after kill -9, and the call that was cut is made again there', async () => {
    await agentWith('sticky', { models: ['anthropic/claude-sonnet-4-5'], retries: 0, sticky: true });
    const held = gate();
    seam.model.script({ status: 500 }, calling(callOf('clock')), { text: 'lost', gate: held.gate });
    const { body } = await startRun(seam, { agent: 'sticky' });
    const before = seam.model.requests.length;
    await waitFor(() => seam.model.unusedReplies === 0 && seam.model.openRequests === 1);
    await seam.server.kill9();
    held.open();
    seam.model.script({ text: 'kept' });
    await seam.server.restart();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'kept', recoveries: 1 });
    expect(seam.model.requests.slice(before).at(-1)?.dialect).toBe('anthropic');
    const models = (await logOf(seam, body.id))
      .filter(({ type }) => type === 'model.started')
      .map(({ model }) => model);
    expect(models).toEqual(['openai-compatible/m', ...Array<string>(3).fill('anthropic/claude-sonnet-4-5')]);
  });

  it('before prompt-cache each model gets what its own provider takes', async () => {
    const models = ['anthropic/claude-sonnet-4-5', 'openai-compatible/m'];
    await putAgent(seam, 'cached', {
      model: 'openai/gpt-5',
      shims: [{ use: 'retry-fallback', config: { models, retries: 0 } }, 'clock', 'prompt-cache'],
    });
    seam.model.script({ status: 500 }, { status: 500 }, { text: 'done' });
    const run = await runToEnd(seam, { agent: 'cached' });
    expect(run).toMatchObject({ status: 'completed', output: 'done' });
    const sent = seam.model.requests
      .slice(-3)
      .map(({ rawBody }) => [/prompt_?cache_?key/i.test(rawBody), rawBody.includes('cache_control')]);
    expect(sent).toEqual([
      [true, false],
      [false, true],
      [false, false],
    ]);
    const told = (await logOf(seam, run.id)).filter(({ type }) => type === 'custom.cache.prefix_changed');
    expect(told.map(({ data }) => (data as JsonObject).changed)).toEqual([['model'], ['model']]);
  });

  it('an image that one model refuses is given to the next', async () => {
    await agentWith('seeing', { models: ['anthropic/claude-sonnet-4-5'], retries: 0 });
    const refusal: Reply = {
      status: 400,
      errorBody: { error: { message: 'This model takes no image input.', type: 'invalid_request_error' } },
    };
    seam.model.script(refusal, { text: 'A cat.' });
    const image = {
      role: 'user',
      content: [
        { type: 'text', text: 'What is it?' },
        { type: 'image', image: 'aGk=', mediaType: 'image/png' },
      ],
    };
    expect(await runToEnd(seam, { agent: 'seeing', input: [image] })).toMatchObject({
      status: 'completed',
      output: 'A cat.',
    });
    expect(seam.model.requests.slice(-2).map(({ rawBody }) => rawBody.includes('aGk='))).toEqual([true, true]);
  });

  it('a stop of the server in a pause hands the run over, and the next start goes on with it', async () => {
    await agentWith('patient', { models: [], retries: 0, rounds: 2, roundPauseMs: 60_000 });
    await seam.server.restart({ env: { SHUTDOWN_GRACE_MS: '200' } });
    seam.model.script({ status: 500 });
    const { body } = await startRun(seam, { agent: 'patient' });
    await waitFor(async () => (await logOf(seam, body.id)).some(({ type }) => type === 'custom.fallback.switched'));
    expect(await seam.server.term()).toBe(0);
    seam.model.script({ text: 'done' });
    await seam.server.restart();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done', recoveries: 1 });
  });

  it('failure C06 a cancel in a pause ends the run at once, and no model is asked again', async () => {
    await agentWith('rounds', { models: ['anthropic/claude-sonnet-4-5'], retries: 0, rounds: 5, roundPauseMs: 60_000 });
    seam.model.script({ status: 500 }, { status: 500 });
    const { body } = await startRun(seam, { agent: 'rounds' });
    await waitFor(async () =>
      (await logOf(seam, body.id)).some(({ data }) => (data as JsonObject | undefined)?.pauseMs !== undefined),
    );
    const asked = seam.model.requests.length;
    await seam.server.json('DELETE', `/v1/runs/${String(body.id)}`);
    expect(await ended(seam, body.id)).toMatchObject({ status: 'cancelled' });
    expect(seam.model.requests).toHaveLength(asked);
  });
});
