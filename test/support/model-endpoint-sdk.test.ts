import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import type {
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3Content,
  LanguageModelV3Prompt,
  LanguageModelV3StreamPart,
} from '@ai-sdk/provider';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ModelEndpoint } from './model-endpoint.js';
import type { Framing } from './model-reply.js';
import { lastUserText, toolNamesOf, toolResultsOf } from './request-view.js';

let endpoint: ModelEndpoint;
beforeEach(async () => {
  endpoint = await ModelEndpoint.start();
});
afterEach(async () => {
  await endpoint.close();
});

const models: Readonly<Record<string, () => LanguageModelV3>> = {
  'openai-compatible': () =>
    createOpenAICompatible({ name: 'own', baseURL: `${endpoint.url}/v1`, includeUsage: true }).chatModel('m'),
  'openai chat': () => createOpenAI({ baseURL: `${endpoint.url}/v1`, apiKey: 'k' }).chat('gpt-4o'),
  'openai responses': () => createOpenAI({ baseURL: `${endpoint.url}/v1`, apiKey: 'k' }).responses('gpt-5'),
  anthropic: () => createAnthropic({ baseURL: `${endpoint.url}/v1`, apiKey: 'k' })('claude-sonnet-4-5'),
  google: () => createGoogleGenerativeAI({ baseURL: `${endpoint.url}/v1beta`, apiKey: 'k' })('gemini-2.5-flash'),
};

const user = (text: string): LanguageModelV3Prompt => [{ role: 'user', content: [{ type: 'text', text }] }];
const tools: LanguageModelV3CallOptions['tools'] = [
  {
    type: 'function',
    name: 'lookup',
    description: 'Looks a thing up.',
    inputSchema: {
      type: 'object',
      properties: { id: { type: 'string' } },
      required: ['id'],
      additionalProperties: false,
    },
  },
];

async function stream(
  model: LanguageModelV3,
  options: LanguageModelV3CallOptions,
): Promise<LanguageModelV3StreamPart[]> {
  const parts: LanguageModelV3StreamPart[] = [];
  const { stream: source } = await model.doStream(options);
  const reader = source.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) parts.push(next.value);
  return parts;
}

function summary(parts: readonly LanguageModelV3StreamPart[]): object {
  const finish = parts.find((part) => part.type === 'finish');
  return {
    text: parts.flatMap((part) => (part.type === 'text-delta' ? [part.delta] : [])).join(''),
    reasoning: parts.flatMap((part) => (part.type === 'reasoning-delta' ? [part.delta] : [])).join(''),
    calls: parts.flatMap((part) => (part.type === 'tool-call' ? [[part.toolName, JSON.parse(part.input)]] : [])),
    finish: finish?.finishReason.unified,
    input: finish?.usage.inputTokens.total,
    cached: finish?.usage.inputTokens.cacheRead,
    output: finish?.usage.outputTokens.total,
    reasoned: finish?.usage.outputTokens.reasoning,
    errors: parts.filter((part) => part.type === 'error').length,
  };
}

const usage = { input: 100, output: 40, cached: 30, reasoning: 7 };
const counted = { input: 100, cached: 30, output: 40, reasoned: 7, errors: 0 };

describe.each(Object.keys(models))('the SDK package for %s reads the endpoint', (name) => {
  const model = (): LanguageModelV3 => {
    const create = models[name];
    if (create === undefined) throw new Error(name);
    return create();
  };

  it('takes text, reasoning, finish reason and usage from a stream', async () => {
    endpoint.script({ text: ['Hel', 'lo 🙂'], reasoning: ['hm'], usage });
    const parts = await stream(model(), { prompt: user('hi'), maxOutputTokens: 2000 });
    // OpenAI's own Chat Completions shows no reasoning.
    const reasoning = name === 'openai chat' ? '' : 'hm';
    expect(summary(parts)).toEqual({ text: 'Hello 🙂', reasoning, calls: [], finish: 'stop', ...counted });
    expect(endpoint.usage).toEqual({ ...usage, total: 140 });
  });

  it('takes parallel tool calls, and the answered history passes the checks', async () => {
    endpoint.script({
      text: 'Looking.',
      toolCalls: [
        { name: 'lookup', arguments: { id: 'a🙂' }, argumentChunks: 3 },
        { name: 'lookup', arguments: { id: 'b' } },
      ],
      usage,
    });
    const parts = await stream(model(), { prompt: user('both'), tools, maxOutputTokens: 2000 });
    const calls = [
      ['lookup', { id: 'a🙂' }],
      ['lookup', { id: 'b' }],
    ];
    expect(summary(parts)).toEqual({ text: 'Looking.', reasoning: '', calls, finish: 'tool-calls', ...counted });
    const toolCalls = parts.filter((part) => part.type === 'tool-call');
    const prompt: LanguageModelV3Prompt = [
      ...user('both'),
      {
        role: 'assistant',
        content: [
          { type: 'text', text: 'Looking.' },
          ...toolCalls.map(({ toolCallId, toolName, input }) => ({
            type: 'tool-call' as const,
            toolCallId,
            toolName,
            input: JSON.parse(input) as unknown,
          })),
        ],
      },
      {
        role: 'tool',
        content: toolCalls.map(({ toolCallId, toolName }, index) => ({
          type: 'tool-result' as const,
          toolCallId,
          toolName,
          output: { type: 'text' as const, value: `result ${index}` },
        })),
      },
    ];
    expect(summary(await stream(model(), { prompt, tools, maxOutputTokens: 2000 }))).toMatchObject({ text: 'ok' });
    const second = await endpoint.waitForRequest(2);
    expect(second).toMatchObject({ accepted: true });
    expect(toolResultsOf(second).map(({ text }) => /result \d/.exec(text)?.[0])).toEqual(['result 0', 'result 1']);
    expect(lastUserText(second)).toBe('both');
    expect(toolNamesOf(second)).toEqual(['lookup']);
  });

  it('is given the same answer without streaming', async () => {
    endpoint.script({ text: 'whole', toolCalls: [{ name: 'lookup', arguments: { id: 'x' } }], usage });
    const answer = await model().doGenerate({ prompt: user('hi'), tools, maxOutputTokens: 2000 });
    const texts = answer.content.filter(
      (part): part is LanguageModelV3Content & { type: 'text' } => part.type === 'text',
    );
    expect(texts.map((part) => part.text)).toEqual(['whole']);
    expect(answer.content.filter((part) => part.type === 'tool-call')).toHaveLength(1);
    expect([answer.finishReason.unified, answer.usage.outputTokens.total]).toEqual(['tool-calls', 40]);
  });

  it.each([
    ['length', 'length'],
    ['content_filter', 'content-filter'],
  ])('finish %s is read as %s', async (finish, unified) => {
    endpoint.script({ text: 'cut', finish });
    const parts = await stream(model(), { prompt: user('hi'), maxOutputTokens: 2000 });
    expect(summary(parts)).toMatchObject({ text: 'cut', finish: unified });
  });

  const framings: readonly Framing[] = ['lf', 'crlf', 'comments', 'fields', 'nospace', 'multidata', 'bom'];
  it.each(framings)('the framing %s means the same', async (framing) => {
    endpoint.script({ text: ['a', 'é🙂'], framing, pieces: { bytes: 7, delayMs: 0 } });
    const parts = await stream(model(), { prompt: user('hi'), maxOutputTokens: 2000 });
    expect(summary(parts)).toMatchObject({ text: 'aé🙂', finish: 'stop', errors: 0 });
  });

  it('bare CR keeps every event, but the parser in the package may drop the last one', async () => {
    endpoint.script({ text: ['a', 'é🙂'], framing: 'cr' });
    const parts = await stream(model(), { prompt: user('hi'), maxOutputTokens: 2000 });
    // A CR at the very end might be half of a CRLF, and the parser never learns that it is not.
    const lastMatters = name === 'openai responses' || name === 'anthropic' || name === 'google';
    const finish = (summary(parts) as { finish?: string }).finish;
    expect([summary(parts), finish === 'stop']).toEqual([expect.objectContaining({ text: 'aé🙂' }), !lastMatters]);
  });

  it('a bad request is refused, and takes no reply from the queue', async () => {
    endpoint.script({ text: 'kept' });
    await expect(stream(model(), { prompt: user(' \n'), maxOutputTokens: 2000 })).rejects.toMatchObject({
      statusCode: 400,
    });
    expect(endpoint.requests.map((request) => request.accepted)).toEqual([false]);
    expect(endpoint.unusedReplies).toBe(1);
  });
});
