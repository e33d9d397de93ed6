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

/** An error in the words of each dialect. */
function errorBody(id: string, type: string, message: string): object {
  if (id.startsWith('anthropic/')) return { type: 'error', error: { type, message } };
  if (id.startsWith('google/')) return { error: { code: codeOf(type), message, status: type } };
  if (id.startsWith('openai/')) return { type: 'error', code: type, message, param: null, sequence_number: 3 };
  return { error: { message, type, code: null, param: null } };
}

function codeOf(type: string): number {
  return type.startsWith('invalid') ? 400 : 503;
}

const KINDS = [
  ['overloaded_error', 'Overloaded, try later', true],
  ['rate_limit_error', 'Slow down', true],
  ['invalid_request_error', 'This is wrong', false],
] as const;

describe.each(EVERY_ID)('M02 %s', (id) => {
  describe.each([0, 2])('after %i deltas', (after) => {
    it.each(KINDS)('an in-band %s keeps type and message', async (type, message, retryable) => {
      endpoint.script({ text: ['a', 'b', 'c', 'd'], errorInStream: { after, body: errorBody(id, type, message) } });
      const { failure, text, finish } = await callModel(registry.resolve(id));
      expect(failure).toMatchObject({ code: 'model_error', message, retryable, details: { providerCode: type } });
      expect([text, finish]).toEqual(['abcd'.slice(0, after), undefined]);
    });

    it('a bare JSON error outside of any frame is the same', async () => {
      const body = errorBody(id, 'overloaded_error', 'Overloaded, try later');
      endpoint.script({ text: ['a', 'b', 'c', 'd'], errorInStream: { after, body, bare: true } });
      const { failure, text } = await callModel(registry.resolve(id));
      expect(failure).toMatchObject({ code: 'model_error', message: 'Overloaded, try later', retryable: true });
      expect(text).toBe('abcd'.slice(0, after));
    });
  });

  it('an error after a finished tool call fails the call', async () => {
    const body = errorBody(id, 'overloaded_error', 'Overloaded');
    endpoint.script({ toolCalls: [{ name: 'echo', arguments: { x: 1 } }], errorInStream: { after: 1, body } });
    const { failure, finish } = await callModel(registry.resolve(id), { tools: [ECHO_TOOL] });
    expect(failure).toMatchObject({ code: 'model_error', message: 'Overloaded', retryable: true });
    expect(finish).toBeUndefined();
  });

  it('a JSON error with status 200 in place of a stream is the same', async () => {
    const headers = { 'content-type': 'application/json', 'x-request-id': 'req-7' };
    const raw = JSON.stringify(errorBody(id, 'overloaded_error', 'Overloaded'), null, 2);
    endpoint.script({ raw, headers });
    const { failure } = await callModel(registry.resolve(id));
    expect(failure).toMatchObject({ code: 'model_error', message: 'Overloaded', retryable: true });
    expect(failure?.details).toMatchObject({ requestId: 'req-7', provider: id.slice(0, id.indexOf('/')) });
  });
});

describe('M02 other spellings', () => {
  it.each([
    ['a text for an error', 'data: {"error":"no capacity left"}\n\n', 'no capacity left', true],
    ['an object that calls itself an error', 'data: {"object":"error","message":"bad","code":400}\n\n', 'bad', false],
    ['an error beside empty choices', 'data: {"choices":[],"error":{"message":"gone","code":502}}\n\n', 'gone', true],
    ['an error in the choice', 'data: {"choices":[{"error":{"message":"died","code":502}}]}\n\n', 'died', true],
    ['an event named error', 'event: error\ndata: the upstream said timeout\n\n', 'the upstream said timeout', true],
    ['an error without a message', 'data: {"error":{"reason":"x"}}\n\n', '{"reason":"x"}', true],
    ['a list with an error', '[{"error":{"code":429,"message":"many","status":"RESOURCE_EXHAUSTED"}}]', 'many', true],
  ])('%s', async (_name, body, message, retryable) => {
    const raw = await RawEndpoint.start((_request, response) => {
      response.writeHead(200, EVENT_STREAM).end(`${body.startsWith('[') ? '' : chatChunk({ content: 'a' })}${body}`);
    });
    const here = registryFor(raw.url);
    const { failure } = await callModel(here.resolve('openai-compatible/m'));
    expect(failure).toMatchObject({ code: 'model_error', message, retryable });
    await here.close();
    await raw.close();
  });

  it('a finish reason that is an error is one', async () => {
    const raw = await RawEndpoint.start((_request, response) => {
      response
        .writeHead(200, EVENT_STREAM)
        .end(`${chatChunk({ content: 'a' })}${chatChunk({}, 'error')}data: [DONE]\n\n`);
    });
    const here = registryFor(raw.url);
    const { failure, text } = await callModel(here.resolve('openai-compatible/m'));
    expect([failure?.code, failure?.retryable, text]).toEqual(['model_error', true, 'a']);
    await here.close();
    await raw.close();
  });

  it('a null error in every chunk, or the word in the text, is none', async () => {
    const chunk = JSON.stringify({ choices: [{ index: 0, delta: { content: '"error": ü' } }], error: null });
    const raw = await RawEndpoint.start((_request, response) => {
      response.writeHead(200, EVENT_STREAM).end(`data: ${chunk}\n\ndata: ${chunk}\n\n${CHAT_END}`);
    });
    const here = registryFor(raw.url);
    const { failure, text } = await callModel(here.resolve('openai-compatible/m'));
    expect([failure, text]).toEqual([undefined, '"error": ü"error": ü']);
    await here.close();
    await raw.close();
  });

  it('a whole answer as JSON where a stream was asked for is told plainly', async () => {
    const raw = await RawEndpoint.start((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"choices":[{"message":{"content":"hi"}}]}');
    });
    const here = registryFor(raw.url);
    const { failure } = await callModel(here.resolve('openai-compatible/m'));
    expect(failure).toMatchObject({ code: 'model_error', retryable: false });
    expect(failure?.message).toContain('one JSON document');
    await here.close();
    await raw.close();
  });
});
