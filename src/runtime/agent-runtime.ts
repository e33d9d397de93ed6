import type { AgentDescriptor } from '../agent/descriptor.js';
import type { LifecycleEvent } from '../agent/events.js';
import type { DecisionScope } from '../agent/journal.js';
import type { JsonValue } from '../agent/json.js';
import type { HistoryItem } from '../agent/messages.js';
import type { Run, RunLimits, RunStatus } from '../agent/run.js';

/** Who asks: the name of the API key, or null where the server has none. Runs belong to it. */
export interface Caller {
  readonly key: string | null;
}

export interface StartRun {
  readonly agent: string;
  readonly input: JsonValue;
  readonly metadata: Readonly<Record<string, string>>;
  readonly values: Readonly<Record<string, JsonValue>>;
  readonly limits: RunLimits;
  readonly shims: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  readonly onDisconnect: 'continue' | 'cancel';
  readonly idempotencyKey?: string | undefined;
}

export interface ResumeRun {
  readonly input?: JsonValue | undefined;
  readonly limits?: RunLimits | undefined;
  readonly shims?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  readonly decisions?: readonly {
    readonly id: string;
    readonly decision: 'approve' | 'deny' | 'edit' | 'respond';
    readonly arguments?: Readonly<Record<string, JsonValue>> | undefined;
    readonly result?: JsonValue | undefined;
    readonly reason?: string | undefined;
    readonly scope?: DecisionScope | undefined;
  }[];
  readonly settle?: readonly {
    readonly toolCallId: string;
    readonly outcome: 'happened' | 'retry' | 'failed';
    readonly result?: JsonValue | undefined;
  }[];
  /** The version that `If-Match` names. */
  readonly ifMatch?: string | undefined;
}

export interface RunFilter {
  readonly agent?: string | undefined;
  readonly status?: RunStatus | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly createdAfter?: string | undefined;
  readonly createdBefore?: string | undefined;
  readonly parent?: string | undefined;
  readonly limit: number;
  readonly cursor?: string | undefined;
}

export interface Page<T> {
  readonly data: readonly T[];
  readonly nextCursor: string | null;
}

/** What a change of a run answers with, and the seq before its first event, from which its stream begins. */
export interface RunChange {
  readonly runId: string;
  /** The run as it is when it is asked for. */
  readonly run: Run;
  readonly after: number;
  /** A cancel was taken by a run that was not over yet, even if it is now, because nothing had to be cleaned up. */
  readonly taken?: boolean;
}

/** The one object that HTTP talks to. */
export interface AgentRuntime {
  /** @throws ValidationError, QueueFullError, DrainingError, IdempotencyMismatchError, StorageUnavailableError */
  startRun(request: StartRun, caller: Caller): Promise<RunChange & { readonly replayed: boolean }>;
  resumeRun(runId: string, request: ResumeRun, caller: Caller): Promise<RunChange>;
  cancelRun(runId: string, caller: Caller): Promise<RunChange>;
  forkRun(
    runId: string,
    request: {
      readonly turn?: number | undefined;
      readonly input?: JsonValue | undefined;
      readonly agent?: string | undefined;
    },
    caller: Caller,
  ): Promise<RunChange>;
  /** @throws StateConflictError while the run is active */
  purgeRun(runId: string, caller: Caller): Promise<void>;

  /** @throws RunNotFoundError, also for another key's run */
  getRun(runId: string, caller: Caller): Run;
  /** The same as JSON text, for those who only pass it on. */
  getRunJson(runId: string, caller: Caller): Promise<{ readonly json: string; readonly version: number }>;
  /** Waits until the attempt that is going on has ended (or waits), at most so long; the run goes on either way. */
  waitForRun(
    runId: string,
    caller: Caller,
    options: { readonly timeoutMs: number; readonly signal: AbortSignal },
  ): Promise<Run>;
  listRuns(filter: RunFilter, caller: Caller): Page<Run>;
  getState(
    runId: string,
    caller: Caller,
  ): {
    readonly instructions: unknown;
    readonly history: readonly HistoryItem[];
    readonly shimState: Readonly<Record<string, JsonValue>>;
    readonly turnCount: number;
    readonly responses: readonly unknown[];
  };
  listCheckpoints(
    runId: string,
    caller: Caller,
    page: { readonly limit: number; readonly cursor?: string | undefined },
  ): Page<{
    readonly turn: number;
    readonly seq: number;
    readonly at: string;
    readonly turnCount: number;
    readonly historyLength: number;
  }>;
  listEffects(
    runId: string,
    caller: Caller,
    page: { readonly limit: number; readonly cursor?: string | undefined },
  ): Page<{
    readonly turn: number | null;
    readonly shim: string;
    readonly callback: string;
    readonly changes: readonly unknown[];
    readonly ms: number;
  }>;
  /** @throws InvalidCursorError, CursorExpiredError */
  readEvents(
    runId: string,
    caller: Caller,
    page: { readonly after: number; readonly limit: number },
  ): { readonly data: readonly LifecycleEvent[]; readonly lastSeq: number };

  listAgents(): readonly (AgentDescriptor & { readonly version: number })[];
  getAgent(name: string): AgentDescriptor & { readonly version: number; readonly source: 'api' | 'file' | 'builtin' };
  /** @throws ValidationError with JSON pointers */
  saveAgent(
    name: string,
    descriptor: unknown,
  ): Promise<{ readonly agent: AgentDescriptor & { readonly version: number }; readonly created: boolean }>;
  deleteAgent(name: string): Promise<void>;
  previewAgent(name: string, input: JsonValue, caller: Caller): Promise<unknown>;
  listShims(): readonly unknown[];
  listModels(): readonly unknown[];

  /** Why the server is not ready; empty when it is. */
  readinessFaults(): readonly string[];
  readonly draining: boolean;
}
