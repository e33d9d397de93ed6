import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { getRun, type LoggedEvent, logOf, typesOf } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { listOf, pick } from '../support/json-path.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import type { Framing, Reply, ReplyToolCall } from '../support/model-reply.js';
import { toolResultsOf } from '../support/request-view.js';
import { agentFor, type Faults, MODELS, startFaults, wire } from './faults.js';

let faults: Faults;
beforeAll(async () => {
  faults = await startFaults({ env: { MODEL_MAX_RETRIES: '1' } });
});
afterAll(async () => {
  await faults.close();
});

const requestsOf = (input: string): readonly ReceivedRequest[] =>
  faults.model.requests.filter((each) => each.rawBody.includes(JSON.stringify(input)));

function secondOf(input: string): ReceivedRequest {
  const request = requestsOf(input)[1];
  if (request === undefined) throw new Error(`there was no second request for ${input}`);
  return request;
}

/** Every request of these trials has to be one that the strict endpoint takes. */
function expectAllAccepted(input: string): void {
  expect(requestsOf(input).map(({ problem }) => problem)).toEqual(requestsOf(input).map(() => undefined));
}

const echo = (x: number, id?: string | null): ReplyToolCall =>
  id === undefined ? { name: 'echo', arguments: { x } } : { name: 'echo', arguments: { x }, id };

const completedTools = (events: readonly LoggedEvent[]): readonly LoggedEvent[] =>
  events.filter(({ type }) => type === 'tool.completed');

describe.each(MODELS)('M06 $model', ({ model }) => {
  const agent = agentFor(model);
  const cutCalls: readonly (readonly [string, readonly ReplyToolCall[]])[] = [
    ['one with unparsable arguments', [{ name: 'other', arguments: '{"text":"half a sen' }]],
    ['one whose arguments happen to parse', [echo(1)]],
    ['a whole one and a cut one', [echo(1), { name: 'other', arguments: '{"text":"half a sen' }]],
  ];

  it.concurrent.each(cutCalls)(
    'calls of an answer that the output limit cut are not run, and twice is the end: %s',
    async (name, toolCalls) => {
      const reply: Reply = { toolCalls, finish: 'length' };
      const input = faults.script(`M06 ${model} ${name}`, reply, reply);
      const run = await faults.run(input, { agent });
      expect(run).toMatchObject({ status: 'failed', error: { code: 'output_limit' } });
      expect(requestsOf(input)).toHaveLength(2);
      expectAllAccepted(input);
      const events = await logOf(faults, run.id);
      expect(typesOf(events)).not.toContain('tool.started');
      const completed = completedTools(events);
      expect(completed.length).toBeGreaterThanOrEqual(2);
      for (const event of completed) expect(event).toMatchObject({ ok: false, error: { kind: 'output_limit' } });
      const told = toolResultsOf(secondOf(input));
      expect(told).toHaveLength(toolCalls.length);
      for (const result of told) expect(result.text).toContain('cut off by the output limit');
      faults.script(input, { text: 'shorter' });
      expect(await faults.resume(run.id, {})).toMatchObject({ status: 'completed', output: 'shorter' });
      expectAllAccepted(input);
    },
  );

  it.concurrent('a text that the output limit cut completes the run, and says so', async () => {
    const input = faults.script(`M06 text ${model}`, { text: 'half a', finish: 'length' });
    expect(await faults.run(input, { agent })).toMatchObject({
      status: 'completed',
      output: 'half a',
      finishReason: 'length',
    });
  });
});

describe.each(MODELS)('M08 $model', ({ model, dialect }) => {
  const agent = agentFor(model);
  const ids: readonly (readonly [string, string | null])[] = [
    ['the same id in every turn', 'call_0'],
    ['an empty id', ''],
    ['no id', null],
    ['an id of 500 characters', 'x'.repeat(500)],
    ['an id with spaces and a colon', 'functions.echo : 0'],
  ];

  it.concurrent.each(ids)('%s: every call runs once and gets its own result', async (name, id) => {
    const turns = [1, 2, 3].map((x): Reply => ({ toolCalls: [echo(x, id)] }));
    const input = faults.script(`M08 ${model} ${name}`, ...turns, { text: 'done' });
    const run = await faults.run(input, { agent });
    expect(run, JSON.stringify(run.error)).toMatchObject({ status: 'completed', output: 'done' });
    expectAllAccepted(input);
    const completed = completedTools(await logOf(faults, run.id));
    expect(completed.map((event) => pick(event, 'result.x'))).toEqual([1, 2, 3]);
    expect(new Set(completed.map(({ toolCallId }) => toolCallId)).size).toBe(3);
  });

  it.concurrent('the same id twice in one turn: both run and are paired', async () => {
    const input = faults.script(
      `M08 twice ${model}`,
      { toolCalls: [echo(1, 'call_0'), echo(2, 'call_0')] },
      { text: 'done' },
    );
    const run = await faults.run(input, { agent });
    expect(run, JSON.stringify(run.error)).toMatchObject({ status: 'completed', output: 'done' });
    expectAllAccepted(input);
    const results = toolResultsOf(secondOf(input));
    expect(results.map(({ text }) => text)).toEqual(['{"x":1}', '{"x":2}']);
    if (dialect !== 'google') expect(new Set(results.map(({ id }) => id)).size).toBe(2);
  });
});

describe.each(MODELS)('M10 $model', ({ model }) => {
  const agent = agentFor(model);
  const blanks: readonly (readonly [string, Reply])[] = [
    ['nothing', {}],
    ['an empty text', { text: '' }],
    ['one space', { text: ' ' }],
    ['line breaks', { text: ['\n', '\n'] }],
    ['reasoning only', { reasoning: 'hm' }],
    ['a finish for calls without any', { text: ' ', finish: 'tool_calls' }],
  ];

  it.concurrent.each(blanks)(
    '%s is no answer: asked again once, then reported, and the history stays usable',
    async (name, blank) => {
      const input = faults.script(`M10 ${model} ${name}`, blank, { text: 'better' });
      expect(await faults.run(input, { agent })).toMatchObject({ status: 'completed', output: 'better' });
      faults.script(input, blank, blank);
      const run = await faults.run(input, { agent });
      expect(run).toMatchObject({ status: 'failed', error: { code: 'model_behaviour' } });
      const next = faults.script(`M10 next ${model} ${name}`, { text: 'fine' });
      expect(await faults.resume(run.id, { input: next })).toMatchObject({ status: 'completed', output: 'fine' });
      expectAllAccepted(input);
    },
  );

  it.concurrent('reasoning alone that the limit cut is sent in no later request', async () => {
    const input = faults.script(`M10 cut ${model}`, { reasoning: 'so much to think', finish: 'length' });
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'completed', output: '', finishReason: 'length' });
    const next = faults.script(`M10 cut next ${model}`, { text: 'fine' });
    expect(await faults.resume(run.id, { input: next })).toMatchObject({ status: 'completed', output: 'fine' });
    expectAllAccepted(next);
  });

  it.concurrent('calls with blank text before them go back without it', async () => {
    const input = faults.script(`M10 calls ${model}`, { text: '\n', toolCalls: [echo(1)] }, { text: 'done' });
    expect(await faults.run(input, { agent })).toMatchObject({ status: 'completed', output: 'done' });
    expectAllAccepted(input);
  });
});

it('M10: a blank user message is refused at the door', async () => {
  const answer = await faults.server.json('POST', '/v1/runs', {
    agent: agentFor('anthropic/claude-sonnet-4-5'),
    input: '  \n',
  });
  expect(answer.status).toBe(422);
});

describe.each(MODELS)('M12 $model', ({ model, dialect }) => {
  const agent = agentFor(model);
  const verdicts: readonly (readonly [string, Reply, string])[] = [
    ['a refusal in words', { text: 'I cannot help with that.', finish: 'refusal' }, 'I cannot help with that.'],
    ['a filter after some text', { text: 'The first st', finish: 'content_filter' }, 'The first st'],
    ['a filter before any text', { finish: 'content_filter' }, ''],
    ['a filter after reasoning', { reasoning: 'hm', finish: 'content_filter' }, ''],
  ];

  it.concurrent.each(verdicts)(
    '%s completes the run as a refusal, and is not asked again',
    async (name, reply, output) => {
      const input = faults.script(`M12 ${model} ${name}`, reply);
      const run = await faults.run(input, { agent });
      expect(run).toMatchObject({ status: 'completed', output, finishReason: 'refusal' });
      expect(requestsOf(input)).toHaveLength(1);
      const next = faults.script(`M12 next ${model} ${name}`, { text: 'fine' });
      expect(await faults.resume(run.id, { input: next })).toMatchObject({ status: 'completed', output: 'fine' });
      expectAllAccepted(next);
    },
  );

  it.concurrent('a refusal with calls runs none of them and ends the run', async () => {
    const input = faults.script(`M12 calls ${model}`, { text: 'No.', toolCalls: [echo(1)], finish: 'content_filter' });
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'completed', output: 'No.', finishReason: 'refusal' });
    expect(typesOf(await logOf(faults, run.id))).not.toContain('tool.started');
    const next = faults.script(`M12 calls next ${model}`, { text: 'fine' });
    expect(await faults.resume(run.id, { input: next })).toMatchObject({ status: 'completed', output: 'fine' });
    expectAllAccepted(next);
  });

  const strange = { 'openai-responses': [], anthropic: ['eos_by_accident', 'pause_turn'] }[dialect as string] ?? [
    'eos_by_accident',
  ];
  it.concurrent.each(strange)('the unknown end %s fails the run and is named', async (finish) => {
    const input = faults.script(`M12 ${model} ${finish}`, { text: 'partly', finish });
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({
      status: 'failed',
      partialOutput: 'partly',
      error: { code: 'model_error', providerCode: finish },
    });
    expect(requestsOf(input)).toHaveLength(1);
  });

  it.runIf(dialect !== 'openai-responses')('no reason at all is a cut answer', async () => {
    const input = faults.script(
      `M12 null ${model}`,
      { text: 'partly', finish: null },
      { text: 'partly', finish: null },
    );
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'failed', partialOutput: 'partly', error: { code: 'model_stream_cut' } });
  });

  it.runIf(dialect === 'anthropic')('a full context is its own failure', async () => {
    const input = faults.script(`M12 full ${model}`, { text: 'partly', finish: 'model_context_window_exceeded' });
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'failed', partialOutput: 'partly', error: { code: 'context_exceeded' } });
  });

  it.concurrent('the reason in the words of the provider stands in the event', async () => {
    const input = faults.script(`M12 words ${model}`, { text: 'x', finish: 'length' });
    const run = await faults.run(input, { agent });
    const completed = (await logOf(faults, run.id)).find(({ type }) => type === 'model.completed');
    expect(completed).toMatchObject({ finishReason: 'length', providerFinishReason: expect.any(String) as unknown });
  });
});

describe.each(MODELS)('M14 $model', ({ model }) => {
  const framings: readonly Framing[] = [
    'crlf',
    'cr',
    'comments',
    'fields',
    'nospace',
    'multidata',
    'bom',
    'no-final-blank',
  ];

  it.concurrent('the same answer comes out of every framing', async () => {
    const text = ['Grüße ', '🎉 ', 'a\r\nb\u2028c'];
    const outputs = await Promise.all(
      framings.map(async (framing) => {
        const input = faults.script(`M14 ${model} ${framing}`, { toolCalls: [echo(3)], framing }, { text, framing });
        const run = await faults.run(input, { agent: agentFor(model) });
        return run.output;
      }),
    );
    expect(outputs).toEqual(framings.map(() => text.join('')));
  });
});

describe('arguments and names', () => {
  const agent = agentFor('anthropic/claude-sonnet-4-5');
  const chat = agentFor('openai-compatible/m');

  it('broken JSON, a failing schema and unknown names become results that the model can act on', async () => {
    const input = faults.script(
      'bad calls',
      {
        toolCalls: [
          { name: 'echo', arguments: '{"x": 1' },
          { name: 'echo', arguments: '[1]' },
          { name: 'echo', arguments: { x: 'one' } },
          { name: 'nobody', arguments: {} },
          echo(5),
        ],
      },
      { text: 'done' },
    );
    const run = await faults.run(input, { agent: chat });
    expect(run).toMatchObject({ status: 'completed', output: 'done' });
    expectAllAccepted(input);
    const completed = completedTools(await logOf(faults, run.id));
    expect(completed.map(({ error }) => pick(error, 'kind'))).toEqual([
      'invalid_arguments',
      'invalid_arguments',
      'invalid_arguments',
      'unknown_tool',
      undefined,
    ]);
    const texts = toolResultsOf(secondOf(input)).map(({ text }) => text);
    expect(texts[0]).toBe('Error: The arguments were no JSON object: {"x": 1');
    expect(texts[2]).toContain('/x');
    expect(texts[3]).toBe('Error: There is no tool "nobody". The tools are: echo, other.');
    expect(texts[4]).toBe('{"x":5}');
  });

  it('a name that no provider would take back goes back in letters that it takes', async () => {
    const toolCalls = ['functions.echo:1', 'x'.repeat(90), 'naïve tool'].map((name) => ({ name, arguments: {} }));
    for (const each of [chat, agent, agentFor('openai/gpt-test')]) {
      const input = faults.script(`names ${each}`, { toolCalls }, { text: 'done' });
      const run = await faults.run(input, { agent: each });
      expect(run).toMatchObject({ status: 'completed', output: 'done' });
      expectAllAccepted(input);
      const [, second] = (await logOf(faults, run.id)).filter(({ type }) => type === 'model.started');
      expect(listOf(second?.repairs)).toHaveLength(3);
    }
  });

  it('unknown tools three times in a row are the end', async () => {
    const reply: Reply = { toolCalls: [{ name: 'nobody', arguments: {} }] };
    const input = faults.script('three unknown', reply, reply, reply);
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'model_behaviour' } });
    expect(requestsOf(input)).toHaveLength(3);
  });

  it('M15: lone surrogates of the model are stored and sent well-formed', async () => {
    const input = faults.script(
      'M15 model',
      {
        text: 'half \ud83d',
        toolCalls: [{ name: 'other', arguments: '{"a\\ud800":"\\udfff","n":{"deep":["\\ud83d\\ude00\\ud83d"]}}' }],
      },
      { text: ['\ud83d', '\ude00 whole, half \ud83d', ' end'] },
    );
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'completed', output: '😀 whole, half \ufffd end' });
    expectAllAccepted(input);
    const events = await logOf(faults, run.id);
    const deltas = events.filter(({ type, kind, turn }) => type === 'model.delta' && kind === 'text' && turn === 2);
    expect(deltas.map(({ text }) => text).join('')).toBe(run.output);
    expect(completedTools(events)[0]?.result).toEqual({ 'a\ufffd': '\ufffd', n: { deep: ['😀\ufffd'] } });
    const next = faults.script('M15 next', { text: 'fine' });
    expect(await faults.resume(run.id, { input: next })).toMatchObject({ status: 'completed' });
    expect(wire(requestsOf(next)[0]?.body ?? {})).not.toMatch(/\\ud[89a-f]/i);
  });

  it('M15: lone surrogates in what a client sends are mended', async () => {
    const body = '{"agent":"anthropic-claude-sonnet-4-5","input":[{"role":"user","content":"M15 client \\ud83d"}]}';
    const answer = await faults.server.json('POST', '/v1/runs', body, { prefer: 'wait=20' });
    expect([answer.status, answer.body.status]).toEqual([200, 'completed']);
    expect(faults.model.requests.at(-1)).toMatchObject({ accepted: true });
    expect((await getRun(faults, answer.body.id)).input).toBeDefined();
  });
});

describe('models', () => {
  it('GET /v1/models lists providers and which are configured', async () => {
    const { body } = await faults.server.json('GET', '/v1/models');
    const configured = (body.data as JsonObject[])
      .filter((each) => each.configured === true)
      .map(({ provider }) => provider);
    expect(configured).toEqual(['openai', 'openai-chat', 'anthropic', 'openai-compatible', 'scripted']);
    expect(JSON.stringify(body)).not.toContain('test-');
  });

  it.each(['nobody/x', 'google/gemini-3-pro', 'scripted/other', 'gpt-5', 'openai/'])(
    'the unknown model %s is a 422 at the saving',
    async (model) => {
      const answer = await faults.server.json('PUT', '/v1/agents/bad', { model, instructions: 'x' });
      expect(answer.status).toBe(422);
      expect(answer.body.errors).toEqual([{ pointer: '/model', message: expect.any(String) as unknown }]);
    },
  );
});
