import { type Agent, request as httpRequest, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { type SseEvent, SseParser } from './sse-parser.js';
import { within } from './wait.js';

export interface OpenOptions {
  readonly headers?: Readonly<Record<string, string>>;
  /** POST when there is a body, else GET. */
  readonly method?: string;
  /** A string is sent as it is, anything else as JSON. */
  readonly body?: unknown;
  /** Where connections are kept; without one the stream has a connection of its own, which ends with it. */
  readonly agent?: Agent;
}

export interface StreamEnd {
  /** `end`: the server ended it; `reset`: the connection broke; `closed`: by our own `close()`. */
  readonly how: 'end' | 'reset' | 'closed';
  readonly error?: Error;
}

/**
 * Opens a stream. Resolves with the headers, whatever the status is.
 * @param url of the stream, or of the request that answers with one
 */
export async function openStream(url: string, options: OpenOptions = {}): Promise<SseStream> {
  const { body } = options;
  const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
  const headers = {
    accept: 'text/event-stream',
    ...(text === undefined
      ? {}
      : { 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(text)) }),
    ...options.headers,
  };
  const method = options.method ?? (text === undefined ? 'GET' : 'POST');
  return new Promise((resolve, reject) => {
    const request = httpRequest(url, { method, headers, agent: options.agent ?? false });
    request.once('response', (response) => {
      resolve(new SseStream(response));
    });
    request.on('error', reject);
    request.end(text);
  });
}

/** One open event stream. Iteration and `collect` read on from where the last of them stopped. */
export class SseStream implements AsyncIterable<SseEvent> {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  /** Everything that has arrived, whether read or not. */
  readonly events: SseEvent[] = [];
  readonly comments: { readonly text: string; readonly at: number }[] = [];
  readonly ended: Promise<StreamEnd>;
  retry: number | undefined;
  readonly #response: IncomingMessage;
  readonly #bytes: Buffer[] = [];
  #read = 0;
  #over = false;
  #closedByUs = false;
  #wake: (() => void)[] = [];

  constructor(response: IncomingMessage) {
    this.#response = response;
    this.status = response.statusCode ?? 0;
    this.headers = response.headers;
    const parser = new SseParser({
      onEvent: (event) => this.events.push(event),
      onComment: (text) => this.comments.push({ text, at: Date.now() }),
      onRetry: (ms) => {
        this.retry = ms;
      },
    });
    response.on('data', (chunk: Buffer) => {
      this.#bytes.push(chunk);
      parser.push(chunk);
      this.#wakeAll();
    });
    this.ended = new Promise((resolve) => {
      const end = (how: StreamEnd): void => {
        this.#over = true;
        resolve(how);
        this.#wakeAll();
      };
      response.once('end', () => {
        end({ how: 'end' });
      });
      response.once('error', (error) => {
        end(this.#closedByUs ? { how: 'closed' } : { how: 'reset', error });
      });
      response.once('close', () => {
        end({ how: this.#closedByUs ? 'closed' : response.complete ? 'end' : 'reset' });
      });
    });
  }

  get lastEventId(): string {
    return this.events.at(-1)?.id ?? '';
  }

  /** The next event, or undefined when the stream is over. */
  async next(): Promise<SseEvent | undefined> {
    for (;;) {
      await this.#arrival();
      const event = this.#take();
      if (event !== undefined || this.#over) return event;
    }
  }

  /** Leaving the loop does not close the stream. */
  async *[Symbol.asyncIterator](): AsyncGenerator<SseEvent, void, void> {
    for (let event = await this.next(); event !== undefined; event = await this.next()) yield event;
  }

  /** Reads to the first event for which `until` holds (inclusive), or to the end of the stream. */
  async collect(
    options: { readonly until?: (event: SseEvent) => boolean; readonly timeoutMs?: number } = {},
  ): Promise<SseEvent[]> {
    const { until, timeoutMs = 10_000 } = options;
    const deadline = performance.now() + timeoutMs;
    const found: SseEvent[] = [];
    for (;;) {
      const left = deadline - performance.now();
      // Waits without taking, so that a wait that ends too late takes no event from the next reader.
      const inTime = left > 0 && (await this.#arrivesWithin(left));
      if (!inTime) {
        const seen = found.map((event) => `${event.id}:${event.event}`).slice(-30);
        throw new Error(
          `after ${timeoutMs} ms the stream was still open, with ${found.length} events: ${seen.join(' ')}`,
        );
      }
      const event = this.#take();
      if (event === undefined) return found;
      found.push(event);
      if (until?.(event) === true) return found;
    }
  }

  rawBytes(): Buffer {
    return Buffer.concat(this.#bytes);
  }

  /** The whole body once it has ended; for answers that are no event stream. */
  async text(): Promise<string> {
    await this.ended;
    return this.rawBytes().toString();
  }

  /** Destroys the socket, as a client does that goes away. */
  close(): void {
    if (this.#over) return;
    this.#closedByUs = true;
    this.#response.destroy();
  }

  #take(): SseEvent | undefined {
    const event = this.events[this.#read];
    if (event !== undefined) this.#read += 1;
    return event;
  }

  /** Resolves once there is an event to take, or the stream is over. */
  async #arrival(): Promise<void> {
    while (this.#read >= this.events.length && !this.#over) {
      await new Promise<void>((resolve) => this.#wake.push(resolve));
    }
  }

  async #arrivesWithin(ms: number): Promise<boolean> {
    if (this.#read < this.events.length || this.#over) return true;
    return within(
      this.#arrival().then(() => true),
      ms,
      'an event',
    ).catch(() => false);
  }

  #wakeAll(): void {
    const waiting = this.#wake;
    this.#wake = [];
    for (const wake of waiting) wake();
  }
}
