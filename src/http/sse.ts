import type { Socket } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type EventBatch, lastTypeOf } from '../agent/event-frames.js';
import { type EventLog, endsAfter } from '../runtime/event-log.js';

export interface StreamOptions {
  readonly runId: string;
  /** Events after this seq. */
  readonly after: number;
  /** Whether the stream ends with the attempt (`run.waiting` included) or with the run. */
  readonly endsAt: 'attempt' | 'run';
  readonly headers?: Readonly<Record<string, string>>;
  /** The client went away before the stream had ended. */
  readonly onGone?: () => void;
}

/** Source of the rules: WHATWG HTML, 9.2 "Server-sent events"; the comment has ONE newline, since some clients take a blank line for an event. */
const HEARTBEAT = ': hb\n';
const HEARTBEAT_MS = 15_000;
const SWEEP_MS = 1000;
/** What a reader that does not read may miss before it is dropped; it can come back with its cursor. */
const MAX_BACKLOG_CHARS = 1_048_576;
/** What is written at once at most of what comes live, so that a socket that takes nothing holds no more than this. */
const MAX_WRITE_CHARS = 262_144;
/** How long a reader may take nothing while more than the backlog waits for it. */
const PATIENCE_MS = 5000;
/** How long a socket may take nothing at all. */
const STALL_MS = 60_000;

/**
 * Answers with a run's events as server-sent events, from a cursor, until the attempt or the run has ended. The reply is taken
 * over; each stream reads with its own cursor and waits for its own socket.
 */
export function streamEvents(
  request: FastifyRequest,
  reply: FastifyReply,
  eventLog: EventLog,
  options: StreamOptions,
): void {
  reply.hijack();
  // Fastify's headers (request id, security) are not written by a hijacked reply.
  const headers = { ...reply.getHeaders(), ...options.headers };
  new EventStream(request, reply, eventLog, { ...options, headers: headers as Record<string, string> });
}

const open = new Set<EventStream>();
let sweep: NodeJS.Timeout | undefined;

/** Ends all streams, so that clients reconnect elsewhere; the server can close at once. */
export function closeAllStreams(): void {
  for (const stream of [...open]) stream.finish();
}

class EventStream {
  readonly #raw: FastifyReply['raw'];
  readonly #socket: Socket;
  readonly #eventLog: EventLog;
  readonly #options: StreamOptions;
  readonly #unwatch: () => void;
  #cursor: number;
  #blockedSince: number | undefined;
  #backlog = 0;
  #lastWriteMs = Date.now();
  #over = false;

  constructor(request: FastifyRequest, reply: FastifyReply, eventLog: EventLog, options: StreamOptions) {
    this.#raw = reply.raw;
    this.#eventLog = eventLog;
    this.#options = options;
    this.#cursor = options.after;
    open.add(this);
    sweep ??= setInterval(sweepStreams, SWEEP_MS).unref();
    // The socket's, since a response that still waits for the one before it on its connection hears of no close.
    this.#socket = request.raw.socket;
    this.#socket.on('close', this.#onClose);
    this.#raw.on('error', this.#onClose);
    this.#raw.on('drain', this.#onDrain);
    this.#socket.setNoDelay(true);
    this.#raw.writeHead(200, {
      ...options.headers,
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-store, no-transform',
      'x-accel-buffering': 'no',
    });
    // Subscribed first, read second: an event can come twice this way, never not at all, and the cursor drops the repeat.
    this.#unwatch = eventLog.watch(options.runId, { onBatch: this.#onBatch, onFault: this.#onFault });
    this.#write('retry: 2000\n\n');
    // The client may have gone while the change that it asked for was made; then nothing is emitted any more.
    if (this.#socket.destroyed) this.#onClose();
    else {
      this.#unlessFaulty(() => {
        this.#catchUp();
      });
    }
  }

  /** The log cannot be read now: the client comes back with its cursor. */
  readonly #onFault = (): void => {
    if (!this.#over) this.#drop();
  };

  #unlessFaulty(read: () => void): void {
    try {
      read();
    } catch {
      this.#onFault();
    }
  }

  readonly #onBatch = (batch: EventBatch): void => {
    if (this.#over) return;
    if (this.#blockedSince !== undefined) {
      this.#backlog += batch.frames.length;
      if (this.#backlog > MAX_BACKLOG_CHARS) this.#drop();
      return;
    }
    // What is too big for one write is read from the log, page by page as the socket takes it.
    if (batch.firstSeq === this.#cursor + 1 && batch.frames.length <= MAX_WRITE_CHARS)
      this.#send(batch, lastTypeOf(batch.frames));
    else if (batch.lastSeq > this.#cursor) this.#catchUp();
  };

  /** Goes on in another turn: a socket that takes everything at once would else keep all others waiting until the log is at its end. */
  readonly #onDrain = (): void => {
    if (this.#blockedSince !== undefined) setImmediate(this.#goOn);
  };

  readonly #goOn = (): void => {
    if (this.#over || this.#blockedSince === undefined || this.#raw.writableNeedDrain) return;
    this.#blockedSince = undefined;
    this.#backlog = 0;
    this.#unlessFaulty(() => {
      this.#catchUp();
    });
  };

  readonly #onClose = (): void => {
    if (this.#over) return;
    this.#stop();
    this.#options.onGone?.();
  };

  /** Reads the log from the cursor until it is at its end or the socket has enough. */
  #catchUp(): void {
    while (!this.#over && this.#blockedSince === undefined) {
      const page = this.#eventLog.page(this.#options.runId, this.#cursor);
      if (page === undefined) return;
      // What it was about to read has been pruned meanwhile: it comes back with its cursor and is told so.
      if (page.firstSeq !== this.#cursor + 1) this.#drop();
      else this.#send(page, page.lastType);
    }
  }

  /** An event that ends an attempt is the last of its batch and of its page. */
  #send({ frames, lastSeq }: { readonly frames: string | Buffer; readonly lastSeq: number }, lastType: string): void {
    this.#cursor = lastSeq;
    this.#write(frames);
    const { runId, endsAt } = this.#options;
    // An earlier attempt's end is in the middle of the log: the run is over only where nothing follows.
    if (endsAfter(lastType, endsAt) && (endsAt === 'attempt' || this.#eventLog.page(runId, this.#cursor) === undefined))
      this.finish();
  }

  #write(frames: string | Buffer): void {
    this.#lastWriteMs = Date.now();
    if (!this.#raw.write(frames)) this.#blockedSince ??= Date.now();
  }

  /** Once a second: a heartbeat where nothing was written, an end to a socket that takes nothing. */
  tick(nowMs: number): void {
    if (this.#blockedSince !== undefined) {
      const blockedMs = nowMs - this.#blockedSince;
      if (blockedMs > STALL_MS || (blockedMs > PATIENCE_MS && this.#backlog > MAX_BACKLOG_CHARS)) this.#drop();
    } else if (nowMs - this.#lastWriteMs >= HEARTBEAT_MS) this.#write(HEARTBEAT);
  }

  finish(): void {
    if (this.#over) return;
    this.#stop();
    this.#raw.end();
  }

  #drop(): void {
    this.#stop();
    this.#raw.destroy();
  }

  #stop(): void {
    this.#over = true;
    this.#unwatch();
    open.delete(this);
    if (open.size === 0) {
      clearInterval(sweep);
      sweep = undefined;
    }
    this.#socket.off('close', this.#onClose);
    this.#raw.off('drain', this.#onDrain);
  }
}

function sweepStreams(): void {
  const nowMs = Date.now();
  for (const stream of [...open]) stream.tick(nowMs);
}
