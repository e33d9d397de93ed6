import type { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { HeadersHook } from './config.js';
import type { Secrets } from './secrets.js';

/** In a call's `_meta`: by it the request of a call is found again among all that is sent. */
const CALL_ID = 'shimline/call';

const RECONNECTS = 6;
/** The SDK reads what came before the end of a stream some ticks later than the end is seen here. */
const LAST_WORDS_MS = 500;
const KEPT_TOKENS = 1000;
/** Nothing that a model can use is longer. */
const MAX_ANSWER_BYTES = 64 * 1024 * 1024;

const BLANK_LINES = new TextEncoder().encode('\n\n');

/** The stream that was to bring an answer ended, and nothing can replay it: whether the call had an effect is not known. */
export class LostAnswerError extends Error {}

interface OpenCall {
  readonly signal: AbortSignal;
  readonly fail: (error: Error) => void;
  token: string | undefined;
  failedReplays: number;
  /** Undoes what ties its request to the transport. */
  unlink: () => void;
}

export interface HttpAddress {
  readonly name: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly hook: HeadersHook | undefined;
}

/**
 * What the SDK's transport sends, and what it does not look at: the tokens of a hook, a 401 that a fresh token cures, and calls
 * whose answer can no longer come. The replay of a broken stream by `Last-Event-ID` is the SDK's own.
 */
export class HttpLink {
  readonly #address: HttpAddress;
  readonly #secrets: Secrets;
  readonly #calls = new Map<number, OpenCall>();
  #count = 0;
  readonly #finishedTokens = new Set<string>();

  constructor(address: HttpAddress, secrets: Secrets) {
    this.#address = address;
    this.#secrets = secrets;
  }

  async transport(): Promise<StreamableHTTPClientTransport> {
    const { StreamableHTTPClientTransport: Sdk } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    return new Sdk(new URL(this.#address.url), {
      fetch: async (url, init) => this.#fetch(url, init ?? {}),
      reconnectionOptions: {
        initialReconnectionDelay: 100,
        maxReconnectionDelay: 5000,
        reconnectionDelayGrowFactor: 2,
        maxRetries: RECONNECTS,
      },
    });
  }

  /** Runs one call, whose request must carry the `_meta` that it is given, and fails it when an answer can no longer come. */
  async follow<T>(
    signal: AbortSignal,
    run: (meta: Readonly<Record<string, number>>, onToken: (token: string) => void) => Promise<T>,
  ): Promise<T> {
    this.#count += 1;
    const id = this.#count;
    let fail = (_error: Error): void => undefined;
    const failed = new Promise<never>((_resolve, reject) => (fail = reject));
    failed.catch(() => undefined);
    const call: OpenCall = { signal, fail, token: undefined, failedReplays: 0, unlink: () => undefined };
    this.#calls.set(id, call);
    try {
      return await Promise.race([run({ [CALL_ID]: id }, (token) => (call.token = token)), failed]);
    } finally {
      this.#calls.delete(id);
      call.unlink();
      if (call.token !== undefined) this.#finish(call.token);
    }
  }

  #finish(token: string): void {
    this.#finishedTokens.add(token);
    const [oldest] = this.#finishedTokens;
    if (this.#finishedTokens.size > KEPT_TOKENS && oldest !== undefined) this.#finishedTokens.delete(oldest);
  }

  async #fetch(url: string | URL, init: RequestInit): Promise<Response> {
    if (init.method === 'GET') return this.#replay(url, init);
    const id = typeof init.body === 'string' ? callIdIn(init.body) : undefined;
    const call = id === undefined ? undefined : this.#calls.get(id);
    if (call === undefined) return this.#send(url, init);
    const { signal, unlink } = linked(call.signal, init.signal ?? undefined);
    call.unlink = unlink;
    const response = await this.#send(url, { ...init, signal });
    if (!response.ok || response.body === null) return response;
    const isStream = response.headers.get('content-type')?.startsWith('text/event-stream') === true;
    return new Response(watched(response.body, this.#watch(call, isStream)), {
      status: response.status,
      headers: response.headers,
    });
  }

  #watch(call: OpenCall, isStream: boolean): BodyWatch {
    // The transport may still have to end a stream when the answer is there already.
    const { unlink } = call;
    if (isStream) call.unlink = () => undefined;
    return {
      tooLong: () => {
        call.fail(new LostAnswerError('the answer is too long'));
      },
      ended: () => {
        unlink();
        if (!isStream || call.token !== undefined) return;
        const late = setTimeout(() => {
          if (call.token === undefined) call.fail(new LostAnswerError('the connection ended before the answer'));
        }, LAST_WORDS_MS);
        late.unref();
      },
    };
  }

  /** A GET: the server's own stream, or the replay of a call's. */
  async #replay(url: string | URL, init: RequestInit): Promise<Response> {
    const token = new Headers(init.headers).get('last-event-id');
    if (token === null) return this.#send(url, init);
    // Nobody waits any more; 405 is what the SDK takes for "there is no stream".
    if (this.#finishedTokens.has(token)) return new Response(null, { status: 405 });
    const call = [...this.#calls.values()].find((each) => each.token === token);
    if (call === undefined) return this.#send(url, init);
    try {
      const response = await this.#send(url, init);
      if (response.ok) call.failedReplays = 0;
      else if (response.status === 404 || response.status === 405)
        call.fail(new LostAnswerError(`the server did not replay the answer (HTTP ${response.status})`));
      else throw new Error(`HTTP ${response.status}`);
      return response;
    } catch (error) {
      call.failedReplays += 1;
      if (call.failedReplays >= RECONNECTS)
        call.fail(new LostAnswerError('the connection ended before the answer and could not be taken up again'));
      throw error;
    }
  }

  async #send(url: string | URL, init: RequestInit): Promise<Response> {
    const response = await this.#sendOnce(url, init, false);
    if (response.status !== 401 || this.#address.hook === undefined) return response;
    // Refused before anything was done: the same request once more, with a token that is fresh.
    await response.body?.cancel();
    return this.#sendOnce(url, init, true);
  }

  async #sendOnce(url: string | URL, init: RequestInit, refresh: boolean): Promise<Response> {
    const { name, headers: fixed, hook, url: own } = this.#address;
    const headers = new Headers(init.headers);
    const given = hook === undefined ? {} : await hook({ server: name, url: own, refresh });
    for (const value of Object.values(given)) this.#secrets.addPassing(value);
    for (const [header, value] of Object.entries({ ...fixed, ...given })) headers.set(header, value);
    return fetch(url, { ...init, headers });
  }
}

function callIdIn(body: string): number | undefined {
  if (!body.includes(CALL_ID)) return undefined;
  const message = JSON.parse(body) as { readonly params?: { readonly _meta?: Readonly<Record<string, unknown>> } };
  const id = message.params?._meta?.[CALL_ID];
  return typeof id === 'number' ? id : undefined;
}

/** Aborts with either; what is long-lived does not hold on to what is not. */
function linked(call: AbortSignal, transport: AbortSignal | undefined): { signal: AbortSignal; unlink: () => void } {
  const own = new AbortController();
  const abort = (): void => {
    own.abort(call.aborted ? call.reason : transport?.reason);
  };
  if (call.aborted || transport?.aborted === true) abort();
  call.addEventListener('abort', abort, { once: true });
  transport?.addEventListener('abort', abort, { once: true });
  return { signal: own.signal, unlink: () => transport?.removeEventListener('abort', abort) };
}

interface BodyWatch {
  readonly ended: () => void;
  readonly tooLong: () => void;
}

/** The same bytes; `ended` is called when no more can come, whether well or not. */
function watched(body: ReadableStream<Uint8Array>, watch: BodyWatch): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  let bytes = 0;
  return new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (done) {
          // Some servers leave out the blank line that ends their last event.
          controller.enqueue(BLANK_LINES);
          controller.close();
          watch.ended();
          return;
        }
        bytes += value.byteLength;
        if (bytes > MAX_ANSWER_BYTES) {
          watch.tooLong();
          await reader.cancel();
          throw new LostAnswerError('the answer is too long');
        }
        controller.enqueue(value);
      } catch (error) {
        controller.error(error);
        watch.ended();
      }
    },
    async cancel(reason) {
      watch.ended();
      await reader.cancel(reason);
    },
  });
}
