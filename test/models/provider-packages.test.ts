import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ModelRegistry } from '../../src/models/model-registry.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { callModel, ECHO_TOOL, EVERY_ID, registryFor } from './model-call.js';

let endpoint: ModelEndpoint;
let registry: ModelRegistry;
beforeAll(async () => {
  endpoint = await ModelEndpoint.start();
  registry = registryFor(endpoint.url);
});
afterAll(async () => {
  await registry.close();
  await endpoint.close();
});

describe.each(EVERY_ID)('%s', (id) => {
  it('gives text, reasoning and usage with its cached and reasoning tokens', async () => {
    endpoint.script({
      reasoning: ['Let me ', 'see.'],
      text: ['Hel', 'lo ', 'wörld 🎉', '"\\\n'],
      usage: { input: 100, output: 20, cached: 40, reasoning: 5 },
    });
    const { text, reasoning, finish, usage, failure } = await callModel(registry.resolve(id));
    expect({ text, reasoning, unified: finish?.unified, failure }).toEqual({
      text: 'Hello wörld 🎉"\\\n',
      // Chat Completions of OpenAI itself carry no reasoning.
      reasoning: id.startsWith('openai-chat') ? '' : 'Let me see.',
      unified: 'stop',
      failure: undefined,
    });
    expect(usage?.inputTokens).toMatchObject({ total: 100, noCache: 60, cacheRead: 40 });
    expect(usage?.outputTokens).toMatchObject({ total: 20, reasoning: 5 });
  });

  it('gives parallel tool calls in order, broken arguments as the text that they are', async () => {
    endpoint.script({
      toolCalls: [
        { id: 'call_a', name: 'echo', arguments: { x: 1, s: 'a"b\\' }, argumentChunks: 5 },
        { id: 'call_b', name: 'echo', arguments: '{"x":' },
      ],
    });
    const { calls, finish } = await callModel(registry.resolve(id), { tools: [ECHO_TOOL] });
    expect(calls).toEqual([
      { id: 'call_a', name: 'echo', input: '{"x":1,"s":"a\\"b\\\\"}' },
      { id: 'call_b', name: 'echo', input: '{"x":' },
    ]);
    expect(finish?.unified).toBe('tool-calls');
  });

  it.each([
    ['stop', 'stop'],
    ['length', 'length'],
    ['content_filter', 'content-filter'],
    ['refusal', 'content-filter'],
    ['some_new_reason', 'other'],
  ])('M12 tells the finish reason %s as %s', async (finish, unified) => {
    endpoint.script({ text: 'abc', finish });
    const result = await callModel(registry.resolve(id));
    expect([result.text, result.finish?.unified, result.failure]).toEqual(['abc', unified, undefined]);
    if (unified === 'other') expect(result.finish?.raw).toBe(finish);
  });

  it('sends the configured key and gives the same handle again', async () => {
    endpoint.script({ text: 'ok' });
    const before = endpoint.requests.length;
    await callModel(registry.resolve(id));
    const headers = endpoint.requests[before]?.headers ?? {};
    const sent = headers.authorization ?? headers['x-api-key'] ?? headers['x-goog-api-key'];
    expect(sent).toMatch(/^(?:Bearer )?canary(?:Openai|Anthropic|Google|Compatible)000\d$/);
    expect(registry.resolve(id)).toBe(registry.resolve(id));
  });
});

it('leaves nothing of a Responses conversation with the provider', async () => {
  endpoint.script({ text: 'ok' });
  const before = endpoint.requests.length;
  await callModel(registry.resolve('openai/gpt-test'));
  expect(endpoint.requests[before]?.body.store).toBe(false);
});
