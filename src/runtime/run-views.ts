import type { LifecycleEvent } from '../agent/events.js';
import type { JsonValue } from '../agent/json.js';
import { type HistoryItem, isInternalMessage } from '../agent/messages.js';
import { type Run, TERMINAL_STATUSES } from '../agent/run.js';
import { CursorExpiredError, InvalidCursorError, RunNotFoundError, ValidationError } from '../errors.js';
import type { PolledRun, RunReader } from '../store/run-reader.js';
import type { RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { AgentRuntime, Caller, Page, RunFilter } from './agent-runtime.js';
import type { EventLog } from './event-log.js';

export interface RunViewsDeps {
  readonly reader: RunReader;
  readonly store: RunStore;
  readonly eventLog: EventLog;
}

/** When a store that could not be read is tried again, in milliseconds. */
const LOOK_AGAIN_MS = 250;

/** Runs as their owners see them: rows, state, checkpoints, effects, events. Another key's run is not found. */
export class RunViews {
  readonly #deps: RunViewsDeps;

  constructor(deps: RunViewsDeps) {
    this.#deps = deps;
  }

  /** @throws RunNotFoundError */
  row(runId: string, caller: Caller): RunRow {
    const row = this.#deps.reader.row(runId, ownerOf(caller));
    if (row === undefined) throw new RunNotFoundError(runId);
    return row;
  }

  run(runId: string, caller: Caller): Run {
    return this.#deps.reader.run(this.row(runId, caller));
  }

  /** @throws RunNotFoundError */
  async json(runId: string, caller: Caller): Promise<PolledRun> {
    const polled = await this.#deps.reader.polled(runId, ownerOf(caller));
    if (polled === undefined) throw new RunNotFoundError(runId);
    return polled;
  }

  /** Resolves when the run is neither queued nor driven, or after the time; rejects when the signal aborts. */
  async wait(
    runId: string,
    caller: Caller,
    options: { readonly timeoutMs: number; readonly signal: AbortSignal },
  ): Promise<Run> {
    await this.until(runId, () => !isActive(this.row(runId, caller)), options);
    return this.run(runId, caller);
  }

  async until(
    runId: string,
    holds: () => boolean,
    { timeoutMs, signal }: { readonly timeoutMs?: number; readonly signal: AbortSignal },
  ): Promise<void> {
    if (holds()) return;
    await new Promise<void>((resolve) => {
      let again: NodeJS.Timeout | undefined;
      const finish = (): void => {
        unwatch();
        clearTimeout(timer);
        clearTimeout(again);
        signal.removeEventListener('abort', finish);
        resolve();
      };
      const unwatch = this.#deps.eventLog.watch(runId, {
        onBatch: () => {
          if (holds()) finish();
        },
        // The store cannot be read now, and there may be no further batch to look again at.
        onFault: () => {
          clearTimeout(again);
          again = setTimeout(look, LOOK_AGAIN_MS);
        },
      });
      const look = (): void => {
        try {
          if (holds()) finish();
        } catch {
          again = setTimeout(look, LOOK_AGAIN_MS);
        }
      };
      const timer = timeoutMs === undefined ? undefined : setTimeout(finish, timeoutMs);
      signal.addEventListener('abort', finish, { once: true });
      if (signal.aborted) finish();
      else look();
    });
  }

  list(filter: RunFilter, caller: Caller): Page<Run> {
    const { reader } = this.#deps;
    const rows = reader.list({
      owner: ownerOf(caller),
      agent: filter.agent,
      status: filter.status,
      metadata: filter.metadata,
      createdAfterMs: timeOf(filter.createdAfter, '/query/createdAfter'),
      createdBeforeMs: timeOf(filter.createdBefore, '/query/createdBefore'),
      parent: filter.parent,
      before: cursorOf(filter.cursor),
      limit: filter.limit + 1,
    });
    return pageOf(
      rows,
      filter.limit,
      (row) => row.n,
      (row) => reader.run(row),
    );
  }

  state(runId: string, caller: Caller): ReturnType<AgentRuntime['getState']> {
    const saved = this.#deps.store.load(this.row(runId, caller).n);
    const shimState = Object.fromEntries([...saved.state].map(([key, json]) => [key, JSON.parse(json) as JsonValue]));
    return {
      instructions: saved.instructions,
      history: saved.history.filter((item: HistoryItem) => !isInternalMessage(item)),
      shimState,
      turnCount: saved.turnCount,
      responses: saved.responses,
    };
  }

  checkpoints(
    runId: string,
    caller: Caller,
    page: { readonly limit: number; readonly cursor?: string | undefined },
  ): ReturnType<AgentRuntime['listCheckpoints']> {
    const rows = this.#deps.reader.checkpoints(this.row(runId, caller).n, cursorOf(page.cursor) ?? 0, page.limit + 1);
    return pageOf(
      rows,
      page.limit,
      (row) => row.n,
      ({ turn, seq, at, turn_count, history_length }) => ({
        turn,
        seq,
        at: new Date(at).toISOString(),
        turnCount: turn_count,
        historyLength: history_length,
      }),
    );
  }

  /** What shims did, from the log itself (R116). */
  effects(
    runId: string,
    caller: Caller,
    page: { readonly limit: number; readonly cursor?: string | undefined },
  ): ReturnType<AgentRuntime['listEffects']> {
    this.row(runId, caller);
    const data: { turn: number | null; shim: string; callback: string; changes: readonly unknown[]; ms: number }[] = [];
    let cursor = cursorOf(page.cursor) ?? 0;
    for (const { type, json } of this.#deps.eventLog.stored(runId, cursor)) {
      cursor += 1;
      if (type !== 'shim.effect') continue;
      const { turn, shim, callback, changes, ms, childRunId } = JSON.parse(json) as {
        turn?: number;
        shim: string;
        callback: string;
        changes: unknown[];
        ms: number;
        childRunId?: string;
      };
      // What shims did in a sub-agent is among the effects of its own run.
      if (childRunId !== undefined) continue;
      data.push({ turn: turn ?? null, shim, callback, changes, ms });
      if (data.length === page.limit) return { data, nextCursor: String(cursor) };
    }
    return { data, nextCursor: null };
  }

  /** @throws InvalidCursorError beyond the last seq, CursorExpiredError before the oldest that is kept */
  events(
    runId: string,
    caller: Caller,
    page: { readonly after: number; readonly limit: number },
  ): { readonly data: readonly LifecycleEvent[]; readonly lastSeq: number } {
    const row = this.row(runId, caller);
    if (page.after > row.last_seq) {
      throw new InvalidCursorError({
        detail: `The cursor ${page.after} is beyond the run's last seq ${row.last_seq}.`,
        errors: [{ pointer: '/query/after', message: `at most ${row.last_seq}` }],
      });
    }
    if (page.after + 1 < row.oldest_seq) throw new CursorExpiredError(row.oldest_seq);
    return {
      data: page.limit === 0 ? [] : this.#deps.eventLog.readEvents(runId, page.after, page.limit),
      lastSeq: row.last_seq,
    };
  }
}

export function ownerOf(caller: Caller): string {
  return caller.key ?? '';
}

export function isOver(row: Pick<RunRow, 'status'>): boolean {
  return TERMINAL_STATUSES.has(row.status);
}

function isActive(row: RunRow): boolean {
  return row.status !== 'waiting' && !isOver(row);
}

function pageOf<R, T>(rows: readonly R[], limit: number, keyOf: (row: R) => number, view: (row: R) => T): Page<T> {
  const shown = rows.slice(0, limit);
  const last = shown.at(-1);
  return { data: shown.map(view), nextCursor: rows.length > limit && last !== undefined ? String(keyOf(last)) : null };
}

function cursorOf(cursor: string | undefined): number | undefined {
  if (cursor === undefined) return undefined;
  if (!/^\d{1,15}$/.test(cursor))
    throw new InvalidCursorError({
      detail: `The cursor ${JSON.stringify(cursor)} is none of ours.`,
      errors: [{ pointer: '/query/cursor', message: 'take it from nextCursor' }],
    });
  return Number(cursor);
}

function timeOf(text: string | undefined, pointer: string): number | undefined {
  if (text === undefined) return undefined;
  const ms = Date.parse(text);
  if (Number.isNaN(ms))
    throw new ValidationError('A time could not be read.', [{ pointer, message: 'an ISO 8601 time' }]);
  return ms;
}
