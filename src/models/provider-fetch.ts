import { Agent, Client, type Dispatcher, Pool } from 'undici';
import { AnswerBody, type BodySource } from './answer-body.js';
import type { Dialect } from './dialect.js';
import { inTurn } from './fair-turns.js';
import { SseScanner } from './sse-scanner.js';
import { NotAStreamError, StreamCutError } from './stream-errors.js';

export interface ProviderTransportOptions {
  /** Silence after which a new connection is given up, in milliseconds. */
  readonly connectTimeoutMs: number;
}

/** How long an idle connection is kept for the next call, where the provider does not ask for less. */
const KEEP_ALIVE_MS = 60_000;
/** A kept connection that has died says so at once; one that worked on the request longer than this failed for another reason. */
const STALE_WITHIN_MS = 1_000;
/** How long a response may go on after its end mark before its connection is dropped instead of kept. */
const DRAIN_MS = 1_000;
/** What is read of a response that is no stream. */
const MAX_DOCUMENT_BYTES = 64 * 1024 * 1024;

const STALE_CODES: ReadonlySet<string> = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED', 'UND_ERR_SOCKET']);

/**
 * The connections to model providers, and the `fetch` over them that the provider packages are given.
 *
 * That `fetch` proves the end of every streamed answer (`StreamCutError`), finds errors inside answers (`InBandStreamError`), sends a
 * request again, once and on a new connection, when its kept connection turned out dead, and closes the connection at once on an abort.
 * It has no timeout of its own but that of connecting: silence is judged by the caller.
 */
export class ProviderTransport {
  readonly #kept: Agent;
  readonly #fresh: Agent;

  constructor(options: ProviderTransportOptions) {
    const common = { bodyTimeout: 0, headersTimeout: 0, connectTimeout: options.connectTimeoutMs };
    this.#kept = new Agent({
      ...common,
      keepAliveTimeout: KEEP_ALIVE_MS,
      factory: (origin, agentOptions: object) =>
        new Pool(origin, { ...agentOptions, factory: (url, poolOptions) => new TellingClient(url, poolOptions) }),
    });
    this.#fresh = new Agent({ ...common, pipelining: 0 });
  }

  /** The `fetch` for one provider package; streamed answers are read in the given dialect. */
  fetchFor(dialect: Dialect): typeof globalThis.fetch {
    return (input, init) => {
      const url = new URL(typeof input === 'string' || input instanceof URL ? input : input.url);
      return new Promise((resolve, reject) => {
        new Exchange({ url, init: init ?? {}, dialect, kept: this.#kept, fresh: this.#fresh, resolve, reject }).start();
      });
    };
  }

  /** Ends every connection; calls that are under way fail. */
  async close(): Promise<void> {
    await Promise.all([this.#kept.destroy(), this.#fresh.destroy()]);
  }
}

interface ExchangeOptions {
  readonly url: URL;
  readonly init: RequestInit;
  readonly dialect: Dialect;
  readonly kept: Dispatcher;
  readonly fresh: Dispatcher;
  readonly resolve: (response: Response) => void;
  readonly reject: (reason: unknown) => void;
}

interface ExchangeDispatchOptions extends Dispatcher.DispatchOptions {
  readonly exchange: Exchange;
}

/** Tells an exchange whether its request goes out on a connection that has served before. */
class TellingClient extends Client {
  override dispatch(options: Dispatcher.DispatchOptions, handler: Dispatcher.DispatchHandler): boolean {
    if ('exchange' in options && options.exchange instanceof Exchange) options.exchange.reused = this.stats.connected;
    return super.dispatch(options, handler);
  }
}

/** One request and its response. */
class Exchange implements Dispatcher.DispatchHandler, BodySource {
  /** Set by the connection that the request was given to. */
  reused = false;
  readonly #options: ExchangeOptions;
  readonly #streamed: boolean;
  #sentAt = 0;
  #again = false;
  #controller: Dispatcher.DispatchController | undefined;
  #body: AnswerBody | undefined;
  #scanner: SseScanner | undefined;
  #document:
    | {
        readonly status: number;
        readonly statusText: string;
        readonly headers: Map<string, string>;
        readonly chunks: Buffer[];
        bytes: number;
      }
    | undefined;
  #aborted: { readonly reason: unknown } | undefined;
  #over = false;
  #drain: NodeJS.Timeout | undefined;

  constructor(options: ExchangeOptions) {
    this.#options = options;
    const { body } = options.init;
    this.#streamed =
      (typeof body === 'string' && body.includes('"stream":true')) ||
      options.url.pathname.endsWith(':streamGenerateContent');
  }

  start(): void {
    const signal = this.#options.init.signal ?? undefined;
    if (signal?.aborted === true) {
      this.#options.reject(signal.reason);
      return;
    }
    signal?.addEventListener('abort', this.#onAbort);
    this.#dispatch(this.#options.kept);
  }

  // The connection's side.

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    if (this.#aborted !== undefined) controller.abort(asError(this.#aborted.reason));
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    rawHeaders: Record<string, string | string[] | undefined>,
    statusText = '',
  ): void {
    if (status < 200) return;
    const headers = new Map<string, string>();
    for (const name in rawHeaders) {
      const value = rawHeaders[name];
      if (value !== undefined) headers.set(name, typeof value === 'string' ? value : value.join(', '));
    }
    const encoding = headers.get('content-encoding') ?? 'identity';
    if (encoding !== 'identity')
      throw new NotAStreamError(
        `The provider answered in the encoding ${encoding}, which was not asked for.`,
        requestIdOf(headers),
      );
    if (status > 299 || !this.#streamed) {
      this.#document = { status, statusText, headers, chunks: [], bytes: 0 };
      return;
    }
    this.#scanner = new SseScanner(this.#options.dialect, {
      requestId: requestIdOf(headers),
      contentType: headers.get('content-type') ?? 'none',
    });
    this.#body = new AnswerBody(this.#scanner, this);
    // The packages read these members and no others; a Response of the platform would wrap the body in streams that cost more than the reading.
    const response = { ok: true, status, statusText, headers, body: this.#body, url: this.#options.url.href };
    inTurn(() => {
      this.#options.resolve(response as unknown as Response);
    });
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#body !== undefined) {
      this.#body.push(chunk);
      return;
    }
    if (this.#document === undefined) return;
    this.#document.bytes += chunk.length;
    this.#document.chunks.push(chunk);
    if (this.#document.bytes > MAX_DOCUMENT_BYTES)
      controller.abort(new NotAStreamError(`The provider answered with more than ${MAX_DOCUMENT_BYTES} bytes.`));
  }

  onResponseEnd(): void {
    this.#close();
    this.#body?.end();
    if (this.#document === undefined) return;
    const { status, statusText, headers, chunks } = this.#document;
    const bodiless = status === 204 || status === 205 || status === 304;
    this.#options.resolve(
      new Response(bodiless ? null : Buffer.concat(chunks), { status, statusText, headers: [...headers] }),
    );
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    if (this.#over) return;
    if (this.#aborted !== undefined) {
      this.#fail(this.#aborted.reason);
      return;
    }
    if (this.#body !== undefined) {
      this.#fail(
        new StreamCutError(`The connection broke before the answer ended: ${error.message}`, {
          ...this.#scanner?.facts,
          cause: error,
        }),
      );
      return;
    }
    if (this.#staleConnection(error)) {
      this.#again = true;
      this.#controller = undefined;
      this.#dispatch(this.#options.fresh);
      return;
    }
    // The spelling of the platform's fetch, by which the packages know a failed connection.
    this.#fail(error instanceof NotAStreamError ? error : new TypeError('fetch failed', { cause: error }));
  }

  // The body's side.

  abort(reason: unknown): void {
    this.#aborted ??= { reason };
    this.#close();
    this.#controller?.abort(asError(reason));
  }

  pause(): void {
    this.#controller?.pause();
  }

  resume(): void {
    this.#controller?.resume();
  }

  finished(): void {
    if (this.#over) return;
    this.#drain ??= setTimeout(() => {
      this.#close();
      this.#controller?.abort(new Error('The response went on after its end mark.'));
    }, DRAIN_MS).unref();
  }

  readonly #onAbort = (): void => {
    this.#aborted = { reason: this.#options.init.signal?.reason };
    this.#fail(this.#aborted.reason);
    this.#controller?.abort(asError(this.#aborted.reason));
  };

  #dispatch(dispatcher: Dispatcher): void {
    const { url, init } = this.#options;
    this.#sentAt = performance.now();
    const request: ExchangeDispatchOptions = {
      origin: url.origin,
      path: url.pathname + url.search,
      method: init.method ?? 'GET',
      headers: headersOf(init.headers),
      body: (init.body ?? null) as string | null,
      exchange: this,
    };
    dispatcher.dispatch(request, this);
  }

  #staleConnection(error: Error): boolean {
    if (
      this.#again ||
      !this.reused ||
      this.#document !== undefined ||
      performance.now() - this.#sentAt > STALE_WITHIN_MS
    )
      return false;
    return 'code' in error && typeof error.code === 'string' && STALE_CODES.has(error.code);
  }

  #fail(reason: unknown): void {
    this.#close();
    if (this.#body === undefined) this.#options.reject(reason);
    else this.#body.fail(reason);
  }

  #close(): void {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#drain);
    this.#options.init.signal?.removeEventListener('abort', this.#onAbort);
  }
}

/** The id by which a provider finds a request in its own logs. */
function requestIdOf(headers: ReadonlyMap<string, string>): string | undefined {
  return headers.get('x-request-id') ?? headers.get('request-id') ?? headers.get('x-goog-request-id');
}

/** The packages pass a plain record; the other forms of `fetch` are read as well. */
function headersOf(headers: RequestInit['headers']): Record<string, string> {
  if (headers === undefined) return {};
  const plain = !(headers instanceof Headers) && !Array.isArray(headers);
  return plain ? (headers as Record<string, string>) : Object.fromEntries(new Headers(headers).entries());
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error('The call was aborted.', { cause: reason });
}
