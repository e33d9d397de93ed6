import { afterEach, describe, expect, it } from 'vitest';
import type { ModelRegistry } from '../../src/models/model-registry.js';
import { ProviderTransport } from '../../src/models/provider-fetch.js';
import { type CallResult, callModel, HELLO, registryFor } from './model-call.js';
import { CHAT_END, chatChunk, EVENT_STREAM, RawEndpoint } from './raw-endpoint.js';

let endpoint: RawEndpoint;
let registry: ModelRegistry;
type Answer = Parameters<typeof RawEndpoint.start>[0];

async function start(answer: Answer): Promise<void> {
  endpoint = await RawEndpoint.start(answer);
  registry = registryFor(endpoint.url);
}

afterEach(async () => {
  await registry.close();
  await endpoint.close();
});

const answerWell: Answer = (_request, response) =>
  response.writeHead(200, EVENT_STREAM).end(chatChunk({ content: 'hi' }) + CHAT_END);
async function call(): Promise<CallResult> {
  const result = await callModel(registry.resolve('openai-compatible/m'));
  // The client lends a connection again only in the next turn of the event loop.
  await new Promise((resolve) => setImmediate(resolve));
  return result;
}

describe('connections', () => {
  it('are kept and used again', async () => {
    await start(answerWell);
    for (let n = 0; n < 5; n += 1) expect((await call()).text).toBe('hi');
    expect(endpoint.requests.map((request) => request.onConnection)).toEqual([1, 2, 3, 4, 5]);
  });

  it('are as many as there are calls', async () => {
    let waiting: (() => void)[] = [];
    await start((request, response) => {
      waiting.push(() => answerWell(request, response, 0));
      if (waiting.length === 64) for (const go of waiting) go();
      if (waiting.length === 64) waiting = [];
    });
    const results = await Promise.all(Array.from({ length: 64 }, call));
    expect(results.filter((result) => result.text === 'hi')).toHaveLength(64);
  });

  it('a request that a dead kept connection lost is sent again, on a new one', async () => {
    await start((request, response, index) => {
      if (request.onConnection === 2) request.socket.resetAndDestroy();
      else answerWell(request, response, index);
    });
    expect((await call()).text).toBe('hi');
    const second = await call();
    expect([second.text, second.failure]).toEqual(['hi', undefined]);
    expect(endpoint.requests.map((request) => request.onConnection)).toEqual([1, 2, 1]);
    expect(endpoint.requests[2]?.body).toBe(endpoint.requests[1]?.body);
  });

  it('it is sent again when the other side closed quietly, but only once', async () => {
    await start((request, response, index) => {
      if (index > 0) request.socket.end();
      else answerWell(request, response, index);
    });
    expect((await call()).text).toBe('hi');
    const { failure } = await call();
    expect(failure).toMatchObject({ code: 'model_error', retryable: true });
    expect(endpoint.requests).toHaveLength(3);
  });

  it('a request that failed on a new connection is not sent again here', async () => {
    await start((request) => request.socket.resetAndDestroy());
    const { failure } = await call();
    expect(failure).toMatchObject({ code: 'model_error', retryable: true, details: { providerCode: 'ECONNRESET' } });
    expect(endpoint.requests).toHaveLength(1);
  });

  it('nor one whose answer had begun', async () => {
    await start((request, response, index) => {
      if (index === 0) {
        answerWell(request, response, index);
        return;
      }
      response.writeHead(200, EVENT_STREAM).write(chatChunk({ content: 'half' }));
      setImmediate(() => request.socket.resetAndDestroy());
    });
    await call();
    const { failure } = await call();
    expect(failure).toMatchObject({ code: 'model_stream_cut', retryable: true });
    expect(endpoint.requests).toHaveLength(2);
  });

  it('nobody listening is a passing failure', async () => {
    await start(answerWell);
    const { url } = endpoint;
    await endpoint.close();
    const here = registryFor(url);
    const { failure } = await callModel(here.resolve('openai-compatible/m'));
    expect(failure).toMatchObject({ code: 'model_error', retryable: true, details: { providerCode: 'ECONNREFUSED' } });
    await here.close();
  });
});

describe('M04 an abort', () => {
  it.each([
    ['before the headers', () => undefined],
    ['after the headers', (_request, response) => response.writeHead(200, EVENT_STREAM).flushHeaders()],
    ['amid the text', (_request, response) => response.writeHead(200, EVENT_STREAM).write(chatChunk({ content: 'a' }))],
  ] satisfies readonly (readonly [string, Answer])[])(
    '%s ends call and connection within a second',
    async (_name, answer) => {
      await start(answer);
      const abort = new AbortController();
      const running = callModel(registry.resolve('openai-compatible/m'), { abortSignal: abort.signal });
      await expect.poll(() => endpoint.requests.length).toBe(1);
      await new Promise((resolve) => setTimeout(resolve, 50));
      const at = performance.now();
      abort.abort(new Error('stop now'));
      const { failure } = await running;
      expect(failure?.message).toContain('stop now');
      await expect.poll(() => endpoint.sockets.size, { interval: 5 }).toBe(0);
      expect(performance.now() - at).toBeLessThan(1_000);
    },
  );

  it('that came before the call sends nothing', async () => {
    await start(answerWell);
    const { failure } = await callModel(registry.resolve('openai-compatible/m'), {
      abortSignal: AbortSignal.abort(new Error('no')),
    });
    expect(failure?.message).toBe('no');
    expect(endpoint.requests).toHaveLength(0);
  });

  it('leaves no listener on the signal', async () => {
    await start(answerWell);
    const abort = new AbortController();
    let listeners = 0;
    const add = abort.signal.addEventListener.bind(abort.signal);
    const remove = abort.signal.removeEventListener.bind(abort.signal);
    abort.signal.addEventListener = (...args: Parameters<typeof add>): void => {
      listeners += 1;
      add(...args);
    };
    abort.signal.removeEventListener = (...args: Parameters<typeof remove>): void => {
      listeners -= 1;
      remove(...args);
    };
    for (let n = 0; n < 3; n += 1)
      await callModel(registry.resolve('openai-compatible/m'), { abortSignal: abort.signal });
    expect(listeners).toBe(0);
  });

  it('dropping the stream closes the connection as well', async () => {
    await start((_request, response) => response.writeHead(200, EVENT_STREAM).write(chatChunk({ content: 'a' })));
    const { stream } = await registry.resolve('openai-compatible/m').languageModel.doStream({ prompt: HELLO });
    const reader = stream.getReader();
    await reader.read();
    await reader.cancel();
    await expect.poll(() => endpoint.sockets.size).toBe(0);
  });
});

describe('bodies', () => {
  it('a reader that does not read stops the sender', async () => {
    let sent = 0;
    await start((_request, response) => {
      response.writeHead(200, EVENT_STREAM);
      const chunk = chatChunk({ content: 'x'.repeat(60_000) });
      const more = (): void => {
        let room = true;
        while (room && sent < 2_000) {
          room = response.write(chunk);
          sent += 1;
        }
        if (sent < 2_000) response.once('drain', more);
        else response.end(CHAT_END);
      };
      more();
    });
    const transport = new ProviderTransport({ connectTimeoutMs: 1_000 });
    const response = await transport.fetchFor('chat')(`${endpoint.url}/v1/chat/completions`, {
      method: 'POST',
      body: '{"stream":true}',
    });
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(sent).toBeLessThan(500);
    const reader: ReadableStreamDefaultReader<Uint8Array> | undefined = response.body?.getReader();
    let bytes = 0;
    for (let next = await reader?.read(); next?.done === false; next = await reader?.read()) bytes += next.value.length;
    expect(bytes).toBeGreaterThan(2_000 * 60_000);
    await transport.close();
  });

  it('an encoding that nobody asked for is told', async () => {
    await start((_request, response) =>
      response.writeHead(200, { ...EVENT_STREAM, 'content-encoding': 'br' }).end('x'),
    );
    const { failure } = await call();
    expect(failure).toMatchObject({ code: 'model_error', retryable: false });
    expect(failure?.message).toContain('encoding br');
  });

  it('a call that is not streamed gets its JSON', async () => {
    await start((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end('{"choices":[{"message":{"role":"assistant","content":"whole"},"finish_reason":"stop"}]}');
    });
    const { content } = await registry.resolve('openai-compatible/m').languageModel.doGenerate({ prompt: HELLO });
    expect(content).toEqual([{ type: 'text', text: 'whole' }]);
  });
});
