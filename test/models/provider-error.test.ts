import { APICallError } from '@ai-sdk/provider';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ModelCallError } from '../../src/agent/run-errors.js';
import { MAX_MESSAGE_LENGTH, textCleaner } from '../../src/models/error-text.js';
import type { ModelRegistry } from '../../src/models/model-registry.js';
import { failureOf } from '../../src/models/provider-error.js';
import { callModel, EVERY_ID, KEYS, registryFor } from './model-call.js';
import { EVENT_STREAM, RawEndpoint, type RawRequest } from './raw-endpoint.js';

interface Scripted {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | ((request: RawRequest) => string);
}

let endpoint: RawEndpoint;
let registry: ModelRegistry;
let scripted: Scripted = { status: 500, body: '' };
beforeAll(async () => {
  endpoint = await RawEndpoint.start((request, response) => {
    const { status, headers, body } = scripted;
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(typeof body === 'string' ? body : body(request));
  });
  registry = registryFor(endpoint.url);
});
afterAll(async () => {
  await registry.close();
  await endpoint.close();
});

async function failureFor(answer: Scripted, id = 'openai-compatible/m'): Promise<ModelCallError> {
  scripted = answer;
  const { failure } = await callModel(registry.resolve(id));
  if (failure === undefined) throw new Error('the call did not fail');
  return failure;
}

const openAi = (message: string, type = 'x', code: string | null = null): string =>
  JSON.stringify({ error: { message, type, code, param: null } });
const context = { provider: 'test', clean: textCleaner([]) };

describe('HTTP failures', () => {
  it.each([
    [400, false],
    [401, false],
    [403, false],
    [404, false],
    [408, true],
    [409, true],
    [422, false],
    [429, true],
    [500, true],
    [501, false],
    [502, true],
    [503, true],
    [504, true],
    [529, true],
  ])('status %i: retryable is %s, for every provider', async (status, retryable) => {
    for (const id of EVERY_ID) {
      const failure = await failureFor(
        { status, body: openAi('told so', 'some_type'), headers: { 'x-request-id': 'req-1' } },
        id,
      );
      expect(failure).toMatchObject({ code: 'model_error', message: 'told so', retryable });
      expect(failure.details).toEqual({
        provider: id.split('/')[0],
        status,
        requestId: 'req-1',
        providerCode: 'some_type',
      });
    }
  });

  it('an empty account is not worth a retry though it answers 429', async () => {
    const failure = await failureFor({
      status: 429,
      body: openAi('You exceeded your quota', 'insufficient_quota', 'insufficient_quota'),
    });
    expect(failure).toMatchObject({ retryable: false, details: { providerCode: 'insufficient_quota' } });
  });

  it('the provider may say itself whether to retry', async () => {
    expect((await failureFor({ status: 500, body: '', headers: { 'x-should-retry': 'false' } })).retryable).toBe(false);
    expect((await failureFor({ status: 400, body: '', headers: { 'x-should-retry': 'true' } })).retryable).toBe(true);
  });

  it.each([
    ['seconds', { 'retry-after': '7' }, 7_000],
    ['a part of a second', { 'retry-after': '0.25' }, 250],
    ['milliseconds, which win', { 'retry-after-ms': '1500', 'retry-after': '9' }, 1_500],
    ['a date gone by', { 'retry-after': 'Wed, 21 Oct 2015 07:28:00 GMT' }, 0],
    ['nothing that can be read', { 'retry-after': 'soon' }, undefined],
    ['a negative number', { 'retry-after': '-3' }, undefined],
  ])('Retry-After as %s', async (_name, headers, expected) => {
    expect((await failureFor({ status: 429, body: openAi('slow'), headers })).retryAfterMs).toBe(expected);
  });

  it('Retry-After as a date to come', async () => {
    const date = new Date(Date.now() + 60_000).toUTCString();
    const { retryAfterMs = 0 } = await failureFor({ status: 503, body: '', headers: { 'retry-after': date } });
    expect(Math.abs(retryAfterMs - 60_000)).toBeLessThan(2_000);
  });

  it("reads Google's retry delay", async () => {
    const details = [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '34.5s' }];
    const body = JSON.stringify({ error: { code: 429, message: 'quota', status: 'RESOURCE_EXHAUSTED', details } });
    const failure = await failureFor({ status: 429, body }, 'google/gemini-test');
    expect(failure).toMatchObject({ retryAfterMs: 34_500, details: { providerCode: 'RESOURCE_EXHAUSTED' } });
  });

  it.each([
    ['FastAPI, a text', '{"detail":"Model not loaded"}', 'Model not loaded'],
    ['FastAPI, a list', '{"detail":[{"loc":["body"],"msg":"bad"}]}', '[{"loc":["body"],"msg":"bad"}]'],
    ['a bare message', '{"message":"nope"}', 'nope'],
    ['a text as error', '{"error":"nope"}', 'nope'],
    ['plain text', 'upstream connect error', 'upstream connect error'],
    ['a page', '<html><head><title>502 Bad Gateway</title></head></html>', '502 Bad Gateway'],
    ['nothing', '', 'Bad Gateway'],
  ])('the message of a body that is %s', async (_name, body, message) => {
    expect((await failureFor({ status: 502, body, headers: { 'content-type': 'text/plain' } })).message).toBe(message);
  });
});

describe('M16 an exceeded context', () => {
  it.each([
    ['OpenAI, by code', 400, openAi('Too much.', 'invalid_request_error', 'context_length_exceeded')],
    [
      'OpenAI Responses',
      400,
      openAi('Your input exceeds the context window of this model. Please adjust your input and try again.'),
    ],
    [
      'Anthropic',
      400,
      '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}',
    ],
    [
      'Anthropic, input and output',
      400,
      openAi('input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000'),
    ],
    [
      'vLLM',
      400,
      '{"object":"error","message":"This model\'s maximum context length is 8192 tokens. However, you requested 9000 tokens","type":"BadRequestError","code":400}',
    ],
    [
      'newer vLLM',
      400,
      openAi("You passed 9000 input tokens. However, the model's context length is only 8192 tokens"),
    ],
    [
      'llama.cpp',
      400,
      '{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error"}}',
    ],
    [
      'OpenRouter',
      400,
      '{"error":{"message":"This endpoint\'s maximum context length is 32768 tokens. However, you requested about 40000 tokens","code":400}}',
    ],
    [
      'Google',
      400,
      '{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}',
    ],
    ['SGLang', 400, openAi("The input (9000 tokens) is longer than the model's context length (8192 tokens).")],
    ['HTTP 413', 413, ''],
    ['Bedrock behind a gateway', 400, openAi('Input is too long for requested model.')],
    ['xAI', 400, openAi("This model's maximum prompt length is 131072 but the request contains 200000 tokens.")],
    [
      'in-band with status 200',
      200,
      openAi("This model's maximum context length is 8192 tokens.", 'invalid_request_error'),
    ],
  ])('%s', async (_name, status, body) => {
    expect(await failureFor({ status, body })).toMatchObject({ code: 'context_exceeded', retryable: false });
  });

  it('in-band within the stream, Anthropic', async () => {
    const error = {
      type: 'error',
      error: { type: 'invalid_request_error', message: 'prompt is too long: 3 tokens > 2 maximum' },
    };
    const body = `event: error\ndata: ${JSON.stringify(error)}\n\n`;
    const failure = await failureFor({ status: 200, headers: EVENT_STREAM, body }, 'anthropic/claude-test');
    expect(failure).toMatchObject({ code: 'context_exceeded', retryable: false });
  });

  it.each([
    [
      429,
      openAi(
        'Request too large for gpt on tokens per min (TPM): Limit 30000, Requested 40000.',
        'tokens',
        'rate_limit_exceeded',
      ),
    ],
    [400, openAi('max_tokens is too large: 99999. This model supports at most 16384 completion tokens.')],
    [400, openAi('temperature must be at most 2')],
  ])('is not what status %i with %s says', async (status, body) => {
    expect((await failureFor({ status, body })).code).toBe('model_error');
  });
});

describe('A02 secrets', () => {
  const echoed = ({ request, body }: RawRequest): string =>
    JSON.stringify({
      error: {
        message: `Bad: ${Object.values(request.headers).join(' ')} ${JSON.stringify(request.headers)} at ${request.url ?? ''}?key=AIzaCANARYCANARYCANARYCANARY ${body}`,
        type: 'bad',
      },
    });
  const canaries = new RegExp(`${Object.values(KEYS).join('|')}|CANARY`);
  const everything = (error: unknown): string => {
    const seen: unknown[] = [];
    for (let at = error; at instanceof Error; at = at.cause)
      seen.push(at.name, at.message, at.stack, Object.entries(at));
    return JSON.stringify(seen);
  };

  it.each(EVERY_ID)('%s: no key comes out of an error that echoes the request', async (id) => {
    for (const status of [400, 401, 500, 200]) {
      const failure = await failureFor({ status, body: echoed }, id);
      expect(failure.message).toContain('[redacted]');
      expect(everything(failure)).not.toMatch(canaries);
    }
    const body = ({ request }: RawRequest): string =>
      `data: ${JSON.stringify({ error: { message: JSON.stringify(request.headers), code: 500 } })}\n\n`;
    const failure = await failureFor({ status: 200, headers: EVENT_STREAM, body }, id);
    expect(failure.message).toContain('[redacted]');
    expect(everything(failure)).not.toMatch(canaries);
  });

  it.each([
    ['Authorization: Bearer abc.DEF-123', 'Authorization: Bearer [redacted]'],
    ['Incorrect API key provided: sk-proj-abc***xyz.', 'Incorrect API key provided: [redacted].'],
    ['GET https://host/v1?x=1&key=secret123&y=2', 'GET https://host/v1?x=1&key=[redacted]&y=2'],
    ['{"x-api-key":"abc123"}', '{"x-api-key":"[redacted]"}'],
    ['task-based work is fine, monkey=1 too', 'task-based work is fine, monkey=1 too'],
  ])('what looks like a key is replaced: %s', (text, expected) => {
    expect(textCleaner([])(text)).toBe(expected);
  });

  it('a configured key is replaced before the text is cut', () => {
    const clean = textCleaner(['canary-key-value']);
    for (let before = MAX_MESSAGE_LENGTH - 20; before < MAX_MESSAGE_LENGTH + 2; before += 1) {
      expect(clean(`${'.'.repeat(before)}canary-key-value`)).not.toContain('can');
    }
  });
});

describe('the text of a failure', () => {
  it('M15 is cut between characters and well-formed', () => {
    const clean = textCleaner([]);
    for (let before = MAX_MESSAGE_LENGTH - 5; before <= MAX_MESSAGE_LENGTH; before += 1) {
      const text = clean(`${'x'.repeat(before)}${'😀'.repeat(5)}`);
      expect(text.length).toBeLessThanOrEqual(MAX_MESSAGE_LENGTH);
      expect(text).not.toMatch(/\p{Surrogate}/u);
    }
    expect(clean('a\ud800b')).toBe('a\ufffdb');
  });

  it.each([
    [
      'a failure',
      new ModelCallError({ code: 'output_limit', message: 'mine', retryable: false }),
      'output_limit',
      'mine',
      false,
    ],
    ['an error', new Error('boom'), 'model_error', 'boom', false],
    ['a text', 'boom', 'model_error', 'boom', true],
    ['an object', { message: 'busy', type: 'overloaded_error' }, 'model_error', 'busy', true],
    ['an object without a message', { reason: 'x' }, 'model_error', '{"reason":"x"}', true],
    ['undefined', undefined, 'model_error', 'undefined', true],
    [
      'a failed socket',
      Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' }),
      'model_error',
      'The connection to the provider failed: read ECONNRESET',
      true,
    ],
  ])('is made of %s', (_name, thrown, code, message, retryable) => {
    expect(failureOf(thrown, context)).toMatchObject({ code, message, retryable });
  });

  it('survives things that cannot be read', () => {
    const hostile = new Proxy(
      {},
      {
        get: () => {
          throw new Error('no');
        },
        has: () => true,
      },
    );
    expect(failureOf(hostile, context)).toBeInstanceOf(ModelCallError);
    const circular = new APICallError({
      message: 'm',
      url: 'u',
      requestBodyValues: {},
      responseBody: '{"error":{}}',
      statusCode: 500,
    });
    Object.assign(circular, { cause: circular });
    expect(failureOf(circular, context)).toMatchObject({ code: 'model_error', retryable: true });
  });
});
