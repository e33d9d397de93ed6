import { inTurn } from './fair-turns.js';

/** What an `AnswerBody` needs from its connection. */
export interface BodySource {
  /** Closes the connection at once. */
  abort(reason: unknown): void;
  /** Stops and restarts the reading of the socket. */
  pause(): void;
  resume(): void;
  /** The reader has all of the answer; what is left of the response, if anything, is of no interest. */
  finished(): void;
}

/** Turns the bytes of a response into those that a reader gets. Both may throw; what was complete before can still be taken. */
export interface BodyFilter {
  readonly ended: boolean;
  push(chunk: Buffer): void;
  take(): Buffer | undefined;
  end(): void;
}

interface Waiter {
  readonly resolve: (result: ReadResult) => void;
  readonly reject: (reason: unknown) => void;
}

type ReadResult =
  | { readonly done: false; readonly value: Uint8Array }
  | { readonly done: true; readonly value: undefined };

const DONE: ReadResult = Object.freeze({ done: true, value: undefined });
/** Unread bytes beyond which the socket is paused. */
const HIGH_WATER_BYTES = 1024 * 1024;

/**
 * The body of a streamed answer: the one method of a `ReadableStream` that the provider packages use, `getReader()`, over a filter.
 *
 * A stream of the platform would cost more than all that is done to the bytes here. A read gets everything that one turn of the event
 * loop brought, in one piece. A failure is reported after the bytes that came before it were read and had a turn to travel on: an errored
 * stream throws away what still stands in its queues.
 */
export class AnswerBody {
  readonly #filter: BodyFilter;
  readonly #source: BodySource;
  #waiter: Waiter | undefined;
  #delivering = false;
  #unreadBytes = 0;
  #paused = false;
  #state: 'open' | 'ended' | 'failed' | 'cancelled' = 'open';
  #failure: unknown;
  #handedOut = false;

  constructor(filter: BodyFilter, source: BodySource) {
    this.#filter = filter;
    this.#source = source;
  }

  /** For the connection: bytes arrived. */
  push(chunk: Buffer): void {
    if (this.#state !== 'open') return;
    try {
      this.#filter.push(chunk);
      if (this.#filter.ended) this.#state = 'ended';
    } catch (error) {
      this.fail(error);
      this.#source.abort(error);
      return;
    }
    this.#unreadBytes += chunk.length;
    // A waiting reader takes all there is, and what has no complete event yet cannot be taken: it must go on arriving.
    const full = this.#waiter === undefined && this.#unreadBytes > HIGH_WATER_BYTES;
    if (full && !this.#paused && this.#state === 'open') {
      this.#paused = true;
      this.#source.pause();
    }
    this.#wake();
  }

  /** For the connection: the response ended as HTTP wants it. */
  end(): void {
    if (this.#state !== 'open') return;
    try {
      this.#filter.end();
      this.#state = 'ended';
    } catch (error) {
      this.fail(error);
      return;
    }
    this.#wake();
  }

  /** For the connection: it broke, or the call was aborted. */
  fail(reason: unknown): void {
    if (this.#state !== 'open') return;
    this.#state = 'failed';
    this.#failure = reason;
    this.#wake();
  }

  getReader(): { read(): Promise<ReadResult>; releaseLock(): void; cancel(reason?: unknown): Promise<void> } {
    return {
      read: () => this.#read(),
      releaseLock: () => undefined,
      cancel: (reason) => this.cancel(reason),
    };
  }

  cancel(reason?: unknown): Promise<void> {
    if (this.#state === 'open') {
      this.#state = 'cancelled';
      this.#source.abort(reason);
    } else if (this.#state === 'ended') this.#source.finished();
    this.#waiter?.resolve(DONE);
    this.#waiter = undefined;
    return Promise.resolve();
  }

  #read(): Promise<ReadResult> {
    return new Promise((resolve, reject) => {
      this.#waiter = { resolve, reject };
      this.#deliver();
    });
  }

  /** Delivers after everything that this turn still brings: an HTTP parser calls once per chunk of one packet. */
  #wake(): void {
    if (this.#waiter === undefined || this.#delivering) return;
    this.#delivering = true;
    inTurn(() => {
      this.#delivering = false;
      this.#deliver();
    });
  }

  #deliver(): void {
    const waiter = this.#waiter;
    if (waiter === undefined) return;
    if (this.#state === 'cancelled') {
      this.#settle(waiter, DONE);
      return;
    }
    const value = this.#filter.take();
    this.#unreadBytes = 0;
    if (value !== undefined) {
      this.#handedOut = true;
      this.#settle(waiter, { done: false, value });
    }
    if (this.#paused) {
      this.#paused = false;
      this.#source.resume();
    }
    if (value !== undefined) return;
    switch (this.#state) {
      case 'open':
        return;
      case 'ended':
        this.#source.finished();
        this.#settle(waiter, DONE);
        return;
      case 'failed':
        this.#waiter = undefined;
        if (this.#handedOut) setImmediate(() => setImmediate(waiter.reject, this.#failure));
        else waiter.reject(this.#failure);
    }
  }

  #settle(waiter: Waiter, result: ReadResult): void {
    this.#waiter = undefined;
    waiter.resolve(result);
  }
}
