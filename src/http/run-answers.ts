import type { FastifyReply, FastifyRequest } from 'fastify';
import { ACTIVE_STATUSES, type Run, TERMINAL_STATUSES } from '../agent/run.js';
import type { AgentRuntime, RunChange } from '../runtime/agent-runtime.js';
import type { EventLog } from '../runtime/event-log.js';
import { callerOf } from './auth.js';
import type { OpenWaits } from './open-waits.js';
import { preferredWait, wantsEventStream } from './request-headers.js';
import { type StreamOptions, streamEvents } from './sse.js';

export interface RunAnswersDeps {
  readonly runtime: AgentRuntime;
  readonly eventLog: EventLog;
  readonly waits: OpenWaits;
}

interface Exchange {
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
}

/** The ways of asking for a run: at once, after a while (`Prefer: wait`), or as a stream of its events. */
export class RunAnswers {
  readonly #deps: RunAnswersDeps;

  constructor(deps: RunAnswersDeps) {
    this.#deps = deps;
  }

  /** After a start or resume: 202 at once; 200 when the attempt ended within the wait, or waits for someone; or its events. */
  async started(
    exchange: Exchange,
    change: RunChange,
    options: { readonly cancelWhenGone: boolean },
  ): Promise<unknown> {
    const { request, reply } = exchange;
    const onGone = options.cancelWhenGone ? this.#canceller(request, change.runId) : undefined;
    locate(reply, change.runId);
    if (wantsEventStream(request.headers.accept)) return this.#stream(exchange, change, onGone);
    const waited = await this.#waited(exchange, change.runId, onGone);
    reply.code(waited === undefined || ACTIVE_STATUSES.has(waited.status) ? 202 : 200);
    return waited ?? change.run;
  }

  /** After a cancel: 200 once the run is over, clean-up included, else 202; or its events from `run.cancelling` on. */
  async cancelled(exchange: Exchange, change: RunChange): Promise<unknown> {
    const { request, reply } = exchange;
    locate(reply, change.runId);
    if (wantsEventStream(request.headers.accept)) return this.#stream(exchange, change, undefined);
    const waited = await this.#waited(exchange, change.runId);
    const run = waited ?? change.run;
    const taken = waited === undefined && change.taken === true;
    reply.code(TERMINAL_STATUSES.has(run.status) && !taken ? 200 : 202);
    return run;
  }

  /** A run as it is, or as it is once its attempt ended or the wait was over. Always 200: it was asked for, not begun. */
  async current(exchange: Exchange, runId: string): Promise<FastifyReply> {
    const { request, reply } = exchange;
    const caller = callerOf(request);
    // Not found must be said at once, not after the wait.
    let current = await this.#deps.runtime.getRunJson(runId, caller);
    if ((await this.#waited(exchange, runId)) !== undefined)
      current = await this.#deps.runtime.getRunJson(runId, caller);
    // The text as it was read: whoever polls should not pay for parsing and printing it again.
    return reply.header('etag', `"${current.version}"`).type('application/json; charset=utf-8').send(current.json);
  }

  /** The run's events after a cursor, to the end of the run. */
  follow(exchange: Exchange, runId: string, after: number): FastifyReply {
    return this.#send(exchange, { runId, after, endsAt: 'run' });
  }

  #stream(exchange: Exchange, change: RunChange, onGone: (() => void) | undefined): FastifyReply {
    const options = { runId: change.runId, after: change.after, endsAt: 'attempt' } as const;
    return this.#send(exchange, onGone === undefined ? options : { ...options, onGone });
  }

  #send({ request, reply }: Exchange, options: StreamOptions): FastifyReply {
    streamEvents(request, reply, this.#deps.eventLog, options);
    return reply;
  }

  /** The run after `Prefer: wait`; `undefined` when no wait was asked for. */
  async #waited({ request, reply }: Exchange, runId: string, onGone?: () => void): Promise<Run | undefined> {
    const seconds = preferredWait(request.headers.prefer);
    if (seconds === undefined) return undefined;
    const { runtime, waits } = this.#deps;
    const caller = callerOf(request);
    const wait = waits.begin(reply, () => onGone?.());
    try {
      const run = await runtime.waitForRun(runId, caller, { timeoutMs: seconds * 1000, signal: wait.signal });
      reply.header('preference-applied', `wait=${seconds}`);
      return run;
    } catch (error) {
      // The client has gone or the server closes: no failure of the run.
      if (wait.signal.aborted) return runtime.getRun(runId, caller);
      throw error;
    } finally {
      wait.end();
    }
  }

  #canceller(request: FastifyRequest, runId: string): () => void {
    const caller = callerOf(request);
    return () => {
      this.#deps.runtime.cancelRun(runId, caller).catch((error: unknown) => {
        request.log.error({ err: error, runId }, 'cancel after disconnect failed');
      });
    };
  }
}

/** Where the run is, for whoever gets it in answer to something else than its own GET. */
export function locate(reply: FastifyReply, runId: string): void {
  const path = `/v1/runs/${runId}`;
  reply.header('location', path).header('content-location', path);
}
