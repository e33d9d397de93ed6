import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ended, gate, type LoggedEvent, logOf, resume, WAIT } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { waitFor } from '../support/wait.js';
import { type Faults, MODELS, startFaults } from './faults.js';

/** Trims by position when the context was exceeded: to the last item, or, told so, without gaining anything, or in the wrong place. */
const SHIM = `
import { defineShim, defineTool, z } from 'shimline/shims';
export default defineShim({
  name: 'faults',
  config: z.strictObject({ mend: z.enum(['last', 'nothing', 'never', 'apart', 'summary']).default('never') }),
  async prepareTurn(turn) {
    if (this.config.mend === 'summary' && turn.isFirstOfRun && turn.runState.history.length > 2) {
      const asked = turn.runState.history.at(-1);
      const summary = await turn.callModel({ messages: [{ role: 'user', content: 'Summarise: ' + JSON.stringify(asked) }] }, { purpose: 'summary' });
      turn.replaceHistory([{ role: 'user', content: 'Summary: ' + summary.message.content }, asked]);
    }
    turn.addTools([defineTool({ name: 'big', description: 'Big.', parameters: z.object({ n: z.number() }), execute: ({ n }) => 'y'.repeat(n) })]);
  },
  onContextExceeded(turn, error) {
    turn.emit('exceeded', { code: error.code, provider: error.details.provider ?? null });
    const { history } = turn.runState;
    switch (this.config.mend) {
      case 'never':
      case 'summary': return false;
      case 'nothing': return true;
      case 'apart': turn.replaceHistory(history.slice(-1)); return true;
      case 'last': {
        const asked = history.filter((item) => item.role === 'user' || typeof item === 'string').at(-1);
        turn.replaceHistory([{ role: 'user', content: 'Summary: there was a lot.' }, asked]);
        return true;
      }
    }
  },
});`;

let faults: Faults;
beforeAll(async () => {
  faults = await startFaults({ shim: SHIM, env: { MODEL_MAX_RETRIES: '1' } });
});
afterAll(async () => {
  await faults.close();
});

const shims = (mend: string): JsonObject => ({ shims: [{ use: 'faults', config: { mend } }] });
const requestsOf = (input: string): readonly ReceivedRequest[] =>
  faults.model.requests.filter((each) => each.rawBody.includes(JSON.stringify(input)));
const eventsOf = (events: readonly LoggedEvent[], type: string): readonly LoggedEvent[] =>
  events.filter((each) => each.type === type);

/** The message of an overflow as providers and gateways word it, and where it comes. */
const OVERFLOWS: readonly (readonly [string, string, Reply])[] = [
  [
    'the code of OpenAI',
    'openai/gpt-test',
    {
      status: 400,
      errorBody: {
        error: {
          message: 'Your input exceeds the context window of this model.',
          type: 'invalid_request_error',
          code: 'context_length_exceeded',
        },
      },
    },
  ],
  [
    'the text of OpenAI',
    'openai-chat/gpt-test',
    {
      status: 400,
      errorBody: {
        error: {
          message:
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
          type: 'invalid_request_error',
          code: null,
        },
      },
    },
  ],
  [
    'the text of Anthropic',
    'anthropic/claude-sonnet-4-5',
    {
      status: 400,
      errorBody: {
        type: 'error',
        error: { type: 'invalid_request_error', message: 'prompt is too long: 210000 tokens > 200000 maximum' },
      },
    },
  ],
  [
    'the text of vLLM',
    'openai-compatible/m',
    {
      status: 400,
      errorBody: {
        object: 'error',
        message: "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        type: 'BadRequestError',
        code: 400,
      },
    },
  ],
  [
    'the text of llama.cpp',
    'openai-compatible/m',
    {
      status: 400,
      errorBody: {
        error: {
          code: 400,
          message: 'the request exceeds the available context size',
          type: 'exceed_context_size_error',
        },
      },
    },
  ],
  [
    'status 413',
    'openai-compatible/m',
    { status: 413, errorBody: '<html><title>413 Request Entity Too Large</title></html>' },
  ],
  [
    'an error inside a 200',
    'openai-compatible/m',
    { errorInStream: { after: 0, body: { error: { message: 'prompt is too long', type: 'invalid_request_error' } } } },
  ],
];

describe('M16', () => {
  it.each(OVERFLOWS)(
    '%s is one code, asked about once, and the mended call is made once',
    async (name, model, overflow) => {
      await faults.put(model, shims('last'));
      const input = faults.script(`M16 ${name}`, overflow, { text: 'fits' });
      const run = await faults.run([
        { role: 'user', content: 'long ago' },
        { role: 'assistant', content: 'yes' },
        input,
      ]);
      expect(run).toMatchObject({ status: 'completed', output: 'fits' });
      const requests = requestsOf(input);
      expect(requests).toHaveLength(2);
      expect(requests[0]?.rawBody).toContain('long ago');
      expect(requests[1]?.rawBody).not.toContain('long ago');
      expect(requests[1]?.rawBody).toContain('Summary: there was a lot.');
      const events = await logOf(faults, run.id);
      expect(eventsOf(events, 'custom.exceeded')).toMatchObject([
        { data: { code: 'context_exceeded', provider: model.slice(0, model.indexOf('/')) } },
      ]);
      expect(eventsOf(events, 'model.retrying')).toEqual([]);
      expect(eventsOf(events, 'model.started')).toHaveLength(2);
    },
  );

  it.each(OVERFLOWS)(
    '%s is a clear final error where nothing mends it, without asking again',
    async (name, model, overflow) => {
      await faults.put(model, shims('never'));
      const input = faults.script(`M16 final ${name}`, overflow);
      const run = await faults.run(input);
      expect(run).toMatchObject({
        status: 'failed',
        error: { code: 'context_exceeded', provider: model.slice(0, model.indexOf('/')) },
      });
      expect(requestsOf(input)).toHaveLength(1);
    },
  );
});

describe.each(MODELS)('M16 and P02 with a real limit: $model', ({ model }) => {
  it('a tool result that overflows in mid-turn is mended in mid-conversation, and the history stays paired', async () => {
    await faults.put(model, shims('last'));
    const big = (n: number): Reply => ({ toolCalls: [{ name: 'big', arguments: { n } }] });
    faults.model.contextLimitBytes = 30_000;
    const input = faults.script(`big ${model}`, big(16_000), big(16_000), { text: 'done' });
    const run = await faults.run(input);
    faults.model.contextLimitBytes = undefined;
    expect(run, JSON.stringify(run.error)).toMatchObject({ status: 'completed', output: 'done' });
    const refused = requestsOf(input).filter(({ accepted }) => !accepted);
    expect(refused).toHaveLength(1);
    const last = requestsOf(input).at(-1);
    expect([last?.accepted, last?.rawBody.includes('Summary: there was a lot.')]).toEqual([true, true]);
  });

  it('P02: a mending that gains nothing is not repeated, and the history stays as it was', async () => {
    await faults.put(model, shims('nothing'));
    faults.model.contextLimitBytes = 3_000;
    const long = `${model} ${'z'.repeat(5_000)}`;
    const run = await faults.run(long);
    faults.model.contextLimitBytes = undefined;
    expect(run).toMatchObject({ status: 'failed', error: { code: 'context_exceeded' } });
    expect(requestsOf(long)).toHaveLength(2);
    const state = await faults.server.json('GET', `/v1/runs/${String(run.id)}/state`);
    expect(JSON.stringify(state.body.history)).toContain(long);
    const input = faults.script(`after ${model}`, { text: 'fits now' });
    expect(await faults.resume(run.id, { input })).toMatchObject({ status: 'completed', output: 'fits now' });
  });
});

describe('P01', () => {
  it('a trim that separates a result from its call is refused, names its shim, and leaves the history whole', async () => {
    await faults.put('anthropic/claude-sonnet-4-5', shims('apart'));
    faults.model.contextLimitBytes = 10_000;
    const input = faults.script('P01', { toolCalls: [{ name: 'big', arguments: { n: 12_000 } }] });
    const run = await faults.run(input);
    faults.model.contextLimitBytes = undefined;
    expect(run).toMatchObject({
      status: 'failed',
      error: { code: 'shim_failed', shim: 'faults', phase: 'onContextExceeded' },
    });
    expect(JSON.stringify(run.error)).toContain('separates a tool call from its result');
    const next = faults.script('P01 next', { text: 'whole' });
    expect(await faults.resume(run.id, { input: next })).toMatchObject({ status: 'completed', output: 'whole' });
    expect(requestsOf(next).map(({ accepted }) => accepted)).toEqual([true]);
  });
});

describe('P04: while a slow summary is being made', () => {
  /** A conversation of two runs whose second one summarises before it goes on, and stands there. */
  async function summarising(
    name: string,
  ): Promise<{ readonly id: unknown; readonly asked: string; readonly open: () => void }> {
    await faults.put('anthropic/claude-sonnet-4-5', shims('summary'));
    const first = faults.script(`P04 ${name}`, { text: 'one' });
    const run = await faults.run(first);
    const asked = `P04 ${name}, then`;
    const held = gate();
    faults.script(`Summarise: ${JSON.stringify(asked)}`, { text: 'short', gate: held.gate }, { text: 'short again' });
    faults.script(asked, { text: 'two' });
    const { body } = await faults.server.json('POST', `/v1/runs/${String(run.id)}/resume`, { input: asked });
    expect(body.status).toBe('running');
    await waitFor(() =>
      faults.model.requests.some(({ rawBody }) =>
        rawBody.includes(`Summarise: ${JSON.stringify(JSON.stringify(asked)).slice(1, -1)}`),
      ),
    );
    return { id: run.id, asked, open: held.open };
  }
  const historyOf = async (id: unknown): Promise<string> =>
    JSON.stringify((await faults.server.json('GET', `/v1/runs/${String(id)}/state`)).body.history);

  it('another message is refused, and nothing is lost', async () => {
    const { id, asked, open } = await summarising('message');
    expect(await resume(faults, id, { input: 'meanwhile' }, {})).toMatchObject({
      status: 409,
      body: { code: 'run_active' },
    });
    open();
    expect(await ended(faults, id)).toMatchObject({ status: 'completed', output: 'two' });
    const request = requestsOf(asked).at(-1);
    expect([request?.accepted, request?.rawBody.includes('Summary: short')]).toEqual([true, true]);
    expect(await historyOf(id)).toContain('Summary: short');
    expect((await logOf(faults, id)).filter(({ type }) => type === 'model.started')).toHaveLength(2);
  });

  it('a cancel ends it within about a second, and the history is the old one', async () => {
    const { id } = await summarising('cancel');
    const at = performance.now();
    const answer = await faults.server.json('DELETE', `/v1/runs/${String(id)}`, undefined, WAIT);
    expect([answer.body.status, performance.now() - at < 1_500]).toEqual(['cancelled', true]);
    const history = await historyOf(id);
    expect([history.includes('"one"'), history.includes('Summary')]).toEqual([true, false]);
  });

  it('a crash leaves the old history, and the next start makes the new one', async () => {
    const { id, asked } = await summarising('crash');
    await faults.server.kill9();
    await faults.server.restart();
    expect(await ended(faults, id)).toMatchObject({ status: 'completed', output: 'two', recoveries: 1 });
    const history = await historyOf(id);
    expect([history.includes('"one"'), history.includes('Summary: short again')]).toEqual([false, true]);
    expect(requestsOf(asked).at(-1)?.accepted).toBe(true);
  });
});
