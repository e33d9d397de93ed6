import { LLMock } from '@copilotkit/aimock';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { ModelRegistry } from '../../src/models/model-registry.js';
import { callModel, ECHO_TOOL, registryFor } from './model-call.js';

// The same dialects as in the other files, spoken by an endpoint that somebody else wrote.
const IDS = ['openai-compatible/m', 'openai-chat/gpt-4o', 'openai/gpt-4o', 'anthropic/claude-sonnet-4-5'];

// The names of every dialect at once; each takes its own.
const USAGE = { prompt_tokens: 12, completion_tokens: 34, total_tokens: 46, input_tokens: 12, output_tokens: 34 };

const mock = new LLMock({ port: 0 });
let registry: ModelRegistry;
beforeAll(async () => {
  await mock.start();
  registry = registryFor(mock.url);
});
afterEach(() => {
  mock.clearFixtures();
});
afterAll(async () => {
  await registry.close();
  await mock.stop();
});

describe.each(IDS)('%s', (id) => {
  it('gives a text and its end', async () => {
    const content = 'Grüße aus der Ferne 🎉, "quoted" and\nbroken. '.repeat(8);
    mock.onMessage('hello', { content, usage: USAGE });
    const { text, finish, failure, usage } = await callModel(registry.resolve(id));
    expect([failure, text, finish?.unified]).toEqual([undefined, content, 'stop']);
    expect([usage?.inputTokens.total, usage?.outputTokens.total]).toEqual([12, 34]);
  });

  it('gives tool calls', async () => {
    const toolCalls = [
      { name: 'echo', arguments: '{"x":1}', id: 'call_1' },
      { name: 'echo', arguments: '{"x":2}', id: 'call_2' },
    ];
    mock.onMessage('hello', { toolCalls });
    const { calls, finish } = await callModel(registry.resolve(id), { tools: [ECHO_TOOL] });
    expect(calls.map((call) => [call.name, call.input])).toEqual([
      ['echo', '{"x":1}'],
      ['echo', '{"x":2}'],
    ]);
    expect(finish?.unified).toBe('tool-calls');
  });

  it('M01 a truncated answer is a cut stream', async () => {
    mock.onMessage('hello', { content: 'x'.repeat(400) }, { chunkSize: 10, truncateAfterChunks: 5, latency: 5 });
    const { failure, finish } = await callModel(registry.resolve(id));
    expect(failure).toMatchObject({ code: 'model_stream_cut', retryable: true });
    expect(finish).toBeUndefined();
  });

  it('a failure keeps its message', async () => {
    mock.nextRequestError(429, { message: 'Slow down, please', type: 'rate_limit_error' });
    const { failure } = await callModel(registry.resolve(id));
    expect(failure).toMatchObject({ code: 'model_error', retryable: true, details: { status: 429 } });
    expect(failure?.message).toContain('Slow down, please');
  });
});
