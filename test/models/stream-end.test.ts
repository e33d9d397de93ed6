import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ModelRegistry } from '../../src/models/model-registry.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import type { CutPlace } from '../support/model-reply.js';
import { callModel, ECHO_TOOL, EVERY_ID, registryFor } from './model-call.js';
import { chatChunk, EVENT_STREAM, RawEndpoint } from './raw-endpoint.js';

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

const TEXT_CUTS: readonly (readonly [CutPlace, string])[] = [
  ['headers', ''],
  ['role', ''],
  ['half-text', 'ab'],
  ['text', 'abcd'],
  ['before-done', 'abcd'],
];

describe.each(EVERY_ID)('M01 %s', (id) => {
  describe.each(['end', 'reset'] as const)('cut by %s', (how) => {
    it.each(TEXT_CUTS)('after %s is a cut stream, with the text before it', async (after, text) => {
      endpoint.script({ text: ['a', 'b', 'c', 'd'], cut: { after, how } });
      const result = await callModel(registry.resolve(id));
      expect(result.failure).toMatchObject({ code: 'model_stream_cut', retryable: true });
      expect([result.text, result.finish]).toEqual([text, undefined]);
    });

    it.each(['half-tool', 'tool'] as const)('after %s is a cut stream that never finishes', async (after) => {
      endpoint.script({ toolCalls: [{ name: 'echo', arguments: { x: 12345 } }], cut: { after, how } });
      const result = await callModel(registry.resolve(id), { tools: [ECHO_TOOL] });
      expect(result.failure).toMatchObject({ code: 'model_stream_cut', retryable: true });
      expect(result.finish).toBeUndefined();
    });
  });
});

describe('M01 Chat Completions', () => {
  it('an end mark inside the text of the answer proves nothing', async () => {
    const text = 'data: [DONE]\n\n"type":"message_stop" {"finish_reason":"stop"}';
    endpoint.script({ text: [text, text], cut: { after: 'text', how: 'end' } });
    const { failure, text: got } = await callModel(registry.resolve('openai-compatible/m'));
    expect(failure?.code).toBe('model_stream_cut');
    expect(got).toBe(text + text);
  });

  it('ends with the end mark, whether or not the connection does', async () => {
    const raw = await RawEndpoint.start((_request, response) => {
      response.writeHead(200, EVENT_STREAM).write(`${chatChunk({ content: 'hi' }, 'stop')}data: [DONE]\n\n`);
    });
    const here = registryFor(raw.url);
    const started = performance.now();
    const { text, failure } = await callModel(here.resolve('openai-compatible/m'));
    expect([text, failure]).toEqual(['hi', undefined]);
    expect(performance.now() - started).toBeLessThan(900);
    await expect.poll(() => raw.sockets.size, { timeout: 3_000 }).toBe(0);
    await here.close();
    await raw.close();
  });

  it.each([
    ['an empty body', '', 'text/event-stream'],
    ['a page of a proxy', '<html><body>sign in</body></html>', 'text/html'],
  ])('%s with status 200 is a cut stream', async (_name, body, type) => {
    const raw = await RawEndpoint.start((_request, response) => {
      response.writeHead(200, { 'content-type': type }).end(body);
    });
    const here = registryFor(raw.url);
    const { failure } = await callModel(here.resolve('openai-compatible/m'));
    expect(failure).toMatchObject({ code: 'model_stream_cut', retryable: true });
    expect(failure?.message).toContain(type);
    await here.close();
    await raw.close();
  });
});
