import { onAbort } from './abort.js';
import type { JsonValue } from './json.js';
import type { Message, ModelResponse } from './messages.js';
import type { Usage } from './model.js';
import type { Cancellation, RunLimits } from './run.js';
import { RunStateView, type WorkingState } from './run-state.js';
import type { ShimNamespace } from './shim-namespace.js';
import type { Logger, Tool } from './tools.js';

/** A model call that a shim makes for itself, e.g. to summarise. */
export interface ShimModelRequest {
  readonly messages: readonly Message[];
  readonly system?: string | undefined;
  readonly tools?: readonly Tool[] | undefined;
  /** Another model than the agent's, by id. */
  readonly model?: string | undefined;
  readonly modelArgs?: Readonly<Record<string, unknown>> | undefined;
  /** JSON Schema that the answer must satisfy. */
  readonly output?: Readonly<Record<string, unknown>> | undefined;
}

/** A run of another agent that a shim's tool starts as a child of this one. */
export interface SpawnRequest {
  /** A saved agent by name; without it a helper: this agent with a fresh state and re-bound copies of its shims (R100). */
  readonly agent?: string | undefined;
  readonly input: JsonValue;
  /** For a helper: its instructions in place of this agent's. */
  readonly instructions?: string | undefined;
  /** For a helper: the names of this agent's visible tools that it may use; all of them when absent (R101). */
  readonly tools?: readonly string[] | undefined;
  /** The call on whose behalf it runs; a recovery finds the child by it instead of starting a second one. */
  readonly toolCallId: string;
  /** Cancels the child; besides, it is cancelled with this run. */
  readonly signal?: AbortSignal | undefined;
}
export interface SpawnResult {
  readonly runId: string;
  readonly status: 'completed' | 'failed' | 'cancelled';
  readonly output: JsonValue;
  readonly usage: Usage;
  readonly error?: string | undefined;
  /** The receipt of a cancelled child. */
  readonly cancellation?: Cancellation | undefined;
}

/** An event of the run before it has its place in the log; the type tells which other fields there are. */
export interface RunEvent {
  readonly type: string;
  readonly turn?: number | undefined;
  readonly [field: string]: unknown;
}

/** What every callback knows of its run, beside what it is called with. */
export interface RunScope {
  readonly runId: string;
  readonly agent: string;
  /** Aborts when the run is cancelled or the callback's time is over. */
  readonly signal: AbortSignal;
  /** True when this attempt goes on after a crash or a wait (R86). */
  readonly recovered: boolean;
  readonly log: Logger;
  readonly metadata: Readonly<Record<string, string>>;
  /** Name of the API key that made the run; null without keys. */
  readonly key: string | null;
  /** Folder for files of a shim's own. */
  readonly dataDir: string;
  readonly limits: RunLimits;
  /** Tokens of the run so far: of all its model calls, hidden and failed ones included, and of its children that are over. */
  readonly usage: Usage;
  /** This shim's own namespace (R20a): an object of its schema's type, changed in place, checked at each commit. */
  readonly state: unknown;
  /** Writes the event `custom.<name>` (or `plan.updated`) into the run's log. */
  emit(name: string, data: JsonValue): void;
  /** Tells of each event of this agent's part of the run, from now on, as it is written. It only observes: a throw is logged. */
  watch(listener: (event: RunEvent) => void): void;
  /** A hidden model call: not in the `model.*` stream, counted in usage, shown as `shim.effect`. */
  callModel(request: ShimModelRequest, options: { readonly purpose: string }): Promise<ModelResponse>;
  /** Runs another agent as a child run and waits for its end. @throws DelegationLimitError when depth or threads are used up */
  spawnAgent(request: SpawnRequest): Promise<SpawnResult>;
}

/** What a scope needs of the attempt it belongs to. */
export interface AttemptPort {
  readonly runId: string;
  readonly agent: string;
  readonly signal: AbortSignal;
  readonly recovered: boolean;
  readonly log: Logger;
  readonly metadata: Readonly<Record<string, string>>;
  readonly key: string | null;
  readonly dataDir: string;
  readonly limits: RunLimits;
  readonly usage: Usage;
  readonly working: WorkingState;
  readonly watchers: { add(listener: (event: RunEvent) => void): void };
  emit(shim: string, name: string, data: JsonValue): void;
  callModel(shim: string, request: ShimModelRequest, purpose: string, signal: AbortSignal): Promise<ModelResponse>;
  spawnAgent(request: SpawnRequest, signal: AbortSignal): Promise<SpawnResult>;
}

/** A write through a scope that was closed because its callback did not stop in time (R78), or whose turn is over. */
export class ClosedScopeError extends Error {
  constructor(shim: string) {
    super(`The scope of shim ${JSON.stringify(shim)} is closed: its callback was given up or its turn is over.`);
    this.name = 'ClosedScopeError';
  }
}

/** One shim's scope in one attempt. Closed for good when a callback was given up; the clean-up then gets a fresh one. */
export class ShimScope implements RunScope {
  readonly shim: string;
  readonly #attempt: AttemptPort;
  readonly #agent: string;
  readonly #namespace: ShimNamespace | undefined;
  readonly #parentSignal: AbortSignal | undefined;
  #runState: RunStateView | undefined;
  #controller: AbortController | undefined;
  #unwatch = (): void => undefined;
  #closed = false;

  constructor(
    attempt: AttemptPort,
    shim: string,
    options: {
      readonly agent: string;
      readonly namespace: ShimNamespace | undefined;
      /** What the scope's own signal follows. */
      readonly signal: AbortSignal | undefined;
    },
  ) {
    this.#attempt = attempt;
    this.shim = shim;
    this.#agent = options.agent;
    this.#namespace = options.namespace;
    this.#parentSignal = options.signal;
  }
  /** Made on first use, like the signal: many callbacks look at neither. */
  get runState(): RunStateView {
    this.#runState ??= new RunStateView(
      this.#attempt.working,
      () => {
        this.assertOpen();
      },
      () => this.#closed,
    );
    return this.#runState;
  }
  get runId(): string {
    return this.#attempt.runId;
  }
  /** The agent that the session is bound to: after a handoff the run has gone on with another one. */
  get agent(): string {
    return this.#agent;
  }
  get recovered(): boolean {
    return this.#attempt.recovered;
  }
  get log(): Logger {
    return this.#attempt.log;
  }
  get metadata(): Readonly<Record<string, string>> {
    return this.#attempt.metadata;
  }
  get key(): string | null {
    return this.#attempt.key;
  }
  get dataDir(): string {
    return this.#attempt.dataDir;
  }
  get limits(): RunLimits {
    return this.#attempt.limits;
  }
  get usage(): Usage {
    return this.#attempt.usage;
  }
  get state(): unknown {
    this.assertOpen();
    return this.#namespace?.value;
  }
  get closed(): boolean {
    return this.#closed;
  }
  get signal(): AbortSignal {
    if (this.#controller !== undefined) return this.#controller.signal;
    const controller = new AbortController();
    this.#controller = controller;
    const parent = this.#parentSignal;
    if (parent?.aborted === true || this.#closed) controller.abort(parent?.reason);
    else if (parent !== undefined) {
      this.#unwatch = onAbort(parent, () => {
        controller.abort(parent.reason);
      });
    }
    return controller.signal;
  }

  emit(name: string, data: JsonValue): void {
    this.assertOpen();
    this.#attempt.emit(this.shim, name, data);
  }
  watch(listener: (event: RunEvent) => void): void {
    this.assertOpen();
    this.#attempt.watchers.add(listener);
  }
  async callModel(request: ShimModelRequest, options: { readonly purpose: string }): Promise<ModelResponse> {
    this.assertOpen();
    return this.#attempt.callModel(this.shim, request, options.purpose, this.signal);
  }
  async spawnAgent(request: SpawnRequest): Promise<SpawnResult> {
    this.assertOpen();
    return this.#attempt.spawnAgent(request, this.signal);
  }

  /** @throws ClosedScopeError */
  assertOpen(): void {
    if (!this.#closed) return;
    this.#attempt.log.warn({ runId: this.#attempt.runId, shim: this.shim }, 'write through a closed shim scope');
    throw new ClosedScopeError(this.shim);
  }
  close(): void {
    this.#closed = true;
    this.#unwatch();
    this.#controller?.abort(new ClosedScopeError(this.shim));
  }
}
