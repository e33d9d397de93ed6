import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ModelRegistry } from '../../src/models/model-registry.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { callModel, ECHO_TOOL, EVERY_ID, registryFor } from './model-call.js';
import { CHAT_END, chatChunk, EVENT_STREAM, RawEndpoint } from './raw-endpoint.js';

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

const FRAMINGS = ['lf', 'crlf', 'cr', 'comments', 'fields', 'nospace', 'multidata', 'bom', 'no-final-blank'] as const;
const TEXT = ['Grüße ', '🎉 "quoted" \\ back', 'line\nbreak ', '\u2028 end'];

describe.each(EVERY_ID)('M14 %s', (id) => {
  it.each(FRAMINGS.flatMap((framing) => [1, 3, 0].map((bytes) => [framing, bytes] as const)))(
    'reads the framing %s in pieces of %i bytes',
    async (framing, bytes) => {
      const pieces = bytes === 0 ? {} : { pieces: { bytes, delayMs: 0 } };
      endpoint.script({ text: TEXT, framing, ...pieces });
      const { text, finish, failure } = await callModel(registry.resolve(id));
      expect([failure, text, finish?.unified]).toEqual([undefined, TEXT.join(''), 'stop']);
    },
  );

  it('reads tool calls in mixed framings', async () => {
    endpoint.script({ toolCalls: [{ name: 'echo', arguments: { x: 7 }, argumentChunks: 4 }], framing: 'crlf' });
    const { calls } = await callModel(registry.resolve(id), { tools: [ECHO_TOOL] });
    expect(calls.map((call) => call.input)).toEqual(['{"x":7}']);
  });

  it('reads one line of a megabyte', async () => {
    const long = 'ä1'.repeat(400_000);
    endpoint.script({ text: [long, 'b'] });
    const { text, failure } = await callModel(registry.resolve(id));
    expect(failure).toBeUndefined();
    expect(text === `${long}b`).toBe(true);
  });
});

describe('M14 joining of deltas', () => {
  async function answer(body: string): Promise<{ text: string; reasoning: string; deltas: string[]; input: string }> {
    const raw = await RawEndpoint.start((_request, response) => response.writeHead(200, EVENT_STREAM).end(body));
    const here = registryFor(raw.url);
    const { text, reasoning, parts, calls, failure } = await callModel(here.resolve('openai-compatible/m'));
    await here.close();
    await raw.close();
    expect(failure).toBeUndefined();
    const deltas = parts.map((part) => (part.type === 'text-delta' ? part.delta : '')).filter((delta) => delta !== '');
    return { text, reasoning, deltas, input: calls[0]?.input ?? '' };
  }

  it('joins what arrived together and keeps escapes and halves of characters right', async () => {
    const emoji = ['"\\ud83d', '\\ude00\\\\"', '"\\""', '"\\n\\\\"'].map((text) => text.replaceAll(/^"|"$/g, ''));
    const body = emoji.map((text) => chatChunk({ content: '@' }).replace('@', text)).join('');
    expect(await answer(body + CHAT_END)).toMatchObject({ text: '😀\\"\n\\', deltas: ['😀\\"\n\\'] });
  });

  it('does not join across kinds, choices or fields that differ', async () => {
    const body = [
      chatChunk({ reasoning_content: 'r1 ' }),
      chatChunk({ reasoning_content: 'r2 ' }),
      chatChunk({ content: 'a' }),
      chatChunk({ content: 'b' }).replace('"id":"c"', '"id":"d"'),
      chatChunk({ content: 'c', reasoning_content: 'r3' }),
      chatChunk({ content: 'c', reasoning_content: 'r3' }),
    ].join('');
    expect(await answer(body + CHAT_END)).toMatchObject({
      text: 'abcc',
      reasoning: 'r1 r2 r3r3',
      deltas: ['a', 'b', 'c', 'c'],
    });
  });

  it('joins pieces of tool arguments, in JSON with spaces too', async () => {
    const call = (fields: object): string => chatChunk({ tool_calls: [{ index: 0, ...fields }] });
    const pieces = ['{"x"', ':1', '}'].map((piece) => call({ function: { arguments: piece } }));
    const body = call({ id: 'c1', type: 'function', function: { name: 'echo', arguments: '' } }) + pieces.join('');
    expect((await answer(body + chatChunk({}, 'tool_calls') + 'data: [DONE]\n\n')).input).toBe('{"x":1}');
    const spaced = body.replaceAll('":', '": ').replaceAll(',"', ', "');
    expect((await answer(spaced + chatChunk({}, 'tool_calls') + 'data: [DONE]\n\n')).input).not.toBe('');
  });
});
