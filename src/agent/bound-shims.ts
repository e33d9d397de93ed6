import { type Clock, within } from './clock.js';
import { type CallbackName, implementsCallback } from './delegating.js';
import type { EffectRecorder } from './effects.js';
import type { Change, EventInput } from './events.js';
import type { AgentTask, RunnerHooks, RunResult } from './hooks.js';
import type { InFlight } from './run.js';
import { findCancellation, messageOf, RunCancelledError, type RunErrorData, ShimError } from './run-errors.js';
import { type AttemptPort, ShimScope } from './scope.js';
import { BoundShim, type Shim, type ShimTimeouts, type ToolSourceBinding } from './shim.js';
import { ShimNamespace } from './shim-namespace.js';
import type { TransientState } from './state-map.js';
import { PreparedTurn, type TurnCore } from './turn.js';

/** An agent's shim under the name that errors, events, effects and state keys use. */
export interface NamedShim {
  readonly name: string;
  readonly shim: Shim;
  /** Content hash of the file it came from (R118); empty for a shim made in code. */
  readonly hash: string;
  /** For a child agent: the restricted sources that the parent's session hands down (R101). */
  readonly bindings?: readonly ToolSourceBinding[];
  /** For a guard that holds in another agent: the agent it belongs to. */
  readonly guardOf?: string;
}

const DEFAULT_TIMEOUT_MS = 30_000;
/** How long a callback may still settle after the run was cancelled (R78). */
export const GRACE_MS = 1000;
/** A wrap outlasts what it wraps, so that a deaf tool is not taken for a deaf wrap. */
const WRAP_GRACE_MS = GRACE_MS + 100;

/** One shim's session in one attempt. */
export interface ShimSession {
  readonly name: string;
  readonly agent: string;
  readonly shim: Shim;
  readonly named: NamedShim;
  readonly bound: BoundShim;
  readonly namespace: ShimNamespace | undefined;
  readonly signal: AbortSignal;
  scope: ShimScope;
  started: boolean;
  turn: PreparedTurn | undefined;
}

/** What the sessions need of the attempt they serve. */
export interface SessionHost {
  readonly port: AttemptPort;
  readonly clock: Clock;
  readonly effects: EffectRecorder;
  readonly transientState: TransientState;
  /** Whether the attempt may still write events. */
  readonly ended: boolean;
  readonly turnNumber: number | undefined;
  /** The turn whose writes can be undone when a callback is skipped. */
  readonly core: TurnCore | undefined;
  event(event: EventInput): void;
  /** The stored form of a failure, without secrets. */
  errorData(thrown: unknown): RunErrorData;
  inFlight(entry: InFlight): void;
}

type Phase = CallbackName | 'bind' | 'dispose' | 'state';

/** An agent's shims, bound for one attempt: called in list order, cleaned up in list order, each failure named. */
export class BoundShims {
  readonly sessions: readonly ShimSession[];
  readonly hooks: readonly RunnerHooks[];
  readonly #host: SessionHost;
  readonly #active = new Map<CallbackName, readonly ShimSession[]>();

  private constructor(host: SessionHost, sessions: readonly ShimSession[], hooks: readonly RunnerHooks[]) {
    this.#host = host;
    this.sessions = sessions;
    this.hooks = hooks;
  }

  /**
   * Binds one session per shim, in order. A throw disposes those that were bound (R7).
   * @throws ShimError phase `bind`, or `state` when a saved state cannot be taken up
   */
  static async bind(
    shims: readonly NamedShim[],
    task: AgentTask,
    host: SessionHost,
    hostHooks: readonly RunnerHooks[],
  ): Promise<BoundShims> {
    const sessions: ShimSession[] = [];
    const hooks: RunnerHooks[] = [...hostHooks];
    try {
      for (const named of shims) {
        const { name, shim } = named;
        const bound = await bindOne(named, task, host);
        const namespace =
          shim.stateDefinition === undefined
            ? undefined
            : new ShimNamespace(name, shim.stateDefinition, host.port.working);
        const signal = host.port.signal;
        sessions.push({
          name,
          agent: task.agent,
          shim,
          named,
          bound,
          namespace,
          signal,
          scope: new ShimScope(host.port, name, { agent: task.agent, namespace, signal }),
          started: false,
          turn: undefined,
        });
        guardSync(name, 'state', () => namespace?.load());
        hooks.push(...guardSync(name, 'runnerHooks', () => bound.runnerHooks()));
      }
    } catch (error) {
      await disposeAll(sessions, host);
      throw error;
    }
    return new BoundShims(host, sessions, hooks);
  }

  /** The sessions that do something in a callback. */
  active(callback: CallbackName): readonly ShimSession[] {
    const known = this.#active.get(callback);
    if (known !== undefined) return known;
    const sessions = this.sessions.filter((session) => implementsCallback(session.bound, callback));
    this.#active.set(callback, sessions);
    return sessions;
  }

  /** The view of the turn in progress that belongs to one session. */
  turnOf(session: ShimSession): PreparedTurn {
    const core = this.#host.core;
    if (core === undefined) throw new Error('No turn is in progress.');
    session.turn ??= new PreparedTurn(core, session.scope);
    return session.turn;
  }

  endTurn(): void {
    for (const session of this.sessions) session.turn = undefined;
  }

  /**
   * Runs one callback of one session within its bounds: timeout, cancel with a grace, undo where the shim may skip, effects.
   * @returns what it returned; undefined when it was skipped
   * @throws ShimError, RunCancelledError
   */
  async call<T>(
    session: ShimSession,
    callback: keyof ShimTimeouts,
    run: () => T | PromiseLike<T>,
  ): Promise<T | undefined> {
    const host = this.#host;
    if (host.port.signal.aborted) throw new RunCancelledError();
    const startedAt = host.clock.now();
    const undo = session.shim.onFailure === 'skip' ? this.#snapshot() : undefined;
    try {
      const returned = run();
      const value = isPromise(returned) ? await this.#bounded(session, callback, returned) : returned;
      session.namespace?.flush();
      this.#recordEffects(session.name, callback, this.#takeWrites(), host.clock.now() - startedAt);
      return value;
    } catch (error) {
      if (error instanceof RunCancelledError) throw error;
      const failure = error instanceof ShimError ? error : new ShimError(session.name, callback, error);
      if (undo === undefined) throw failure;
      undo();
      this.#recordFailure(session.name, callback, failure);
      return undefined;
    }
  }

  /**
   * Runs one wrap of one session: it has no time of its own, since what it wraps has; a cancel bounds it like every callback.
   * @throws RunCancelledError, or whatever it threw
   */
  async wrap<T>(
    session: ShimSession,
    callback: 'wrapModelCall' | 'wrapToolCall',
    run: () => Promise<T>,
    signal = this.#host.port.signal,
  ): Promise<T> {
    const host = this.#host;
    const outcome = await within(invoke(run), { clock: host.clock, signal, graceMs: WRAP_GRACE_MS });
    switch (outcome.kind) {
      case 'value':
        return outcome.value;
      case 'error':
        throw outcome.error;
      case 'timeout':
        throw new Error('A wrap has no timeout.');
      case 'aborted':
        // What came back in time is the truth, e.g. the result of a tool that had finished.
        if ('value' in outcome) return outcome.value;
        if (!outcome.obeyed) this.#abandon(session, callback, outcome);
        throw new RunCancelledError();
    }
  }

  /** Takes back all that is written from now on, where the shim may skip: for a wrap, which writes before and after what it wraps. */
  undoOf(session: ShimSession): (() => void) | undefined {
    return session.shim.onFailure === 'skip' ? this.#snapshot() : undefined;
  }

  /** What was written since the last look; a key that is some shim's namespace must fit that shim's schema (R20a). @throws InvalidStateError */
  #takeWrites(): Change[] {
    const changes = this.#host.effects.take();
    for (const change of changes) {
      if (change.what === 'state') this.sessions.find((each) => each.name === change.key)?.namespace?.recheck();
    }
    return changes;
  }

  #recordFailure(shim: string, callback: string, failure: ShimError): void {
    this.#host.event({ type: 'shim.failed', ...this.#turn(), shim, callback, error: this.#host.errorData(failure) });
  }

  /** Closes the scope of the shim whose tool did not stop: what the tool still writes through its turn throws. */
  giveUpTool(shim: string): void {
    const session = this.sessions.find((each) => each.name === shim);
    if (session !== undefined) this.#giveUp(session);
  }

  /**
   * Like `call` for the clean-up: the run's signal does not interrupt it (R67), neither that of the callback nor its scope's; its own
   * time does.
   */
  async cleanUp(session: ShimSession, result: RunResult | null): Promise<void> {
    if (!implementsCallback(session.bound, 'onRunEnd')) return;
    const host = this.#host;
    session.scope = new ShimScope(host.port, session.name, {
      agent: session.agent,
      namespace: session.namespace,
      signal: undefined,
    });
    const startedAt = host.clock.now();
    try {
      const returned = session.bound.onRunEnd(result, host.transientState, session.scope);
      if (isPromise(returned)) await this.#bounded(session, 'onRunEnd', returned, { cleaningUp: true });
      if (result !== null) session.namespace?.flush();
      this.#recordEffects(session.name, 'onRunEnd', host.effects.take(), host.clock.now() - startedAt);
    } catch (error) {
      const failure = error instanceof ShimError ? error : new ShimError(session.name, 'onRunEnd', error);
      session.namespace?.reset();
      if (session.shim.onFailure !== 'skip' || findCancellation(failure) !== undefined) throw failure;
      this.#recordFailure(session.name, 'onRunEnd', failure);
    }
  }

  /** Keeps what a session has written so far where no `call` does it: in the middle of a wrap and at its end. @throws InvalidStateError, NotJsonError */
  recordWrites(session: ShimSession, callback: string, ms: number): void {
    session.namespace?.flush();
    this.#recordEffects(session.name, callback, this.#takeWrites(), ms);
  }

  /** Checks and keeps what was written outside of the bounded callbacks: in wraps, in tools, by deltas (R20a). @throws ShimError phase `state` */
  flushStates(): void {
    for (const session of this.sessions) guardSync(session.name, 'state', () => session.namespace?.flush());
  }

  async dispose(): Promise<void> {
    await disposeAll(this.sessions, this.#host);
  }

  recordEffect(shim: string, callback: string, change: Change | undefined, ms: number): void {
    if (change !== undefined) this.#recordEffects(shim, callback, [change], ms);
  }

  #recordEffects(shim: string, callback: string, changes: readonly Change[], ms: number): void {
    if (changes.length > 0) this.#host.event({ type: 'shim.effect', ...this.#turn(), shim, callback, changes, ms });
  }

  #turn(): { readonly turn?: number } {
    return this.#host.turnNumber === undefined ? {} : { turn: this.#host.turnNumber };
  }

  #snapshot(): () => void {
    const { core, port, effects } = this.#host;
    const undoState = port.working.snapshot();
    const undoTools = core?.toolSet.snapshot();
    const undoTransient = this.#host.transientState.snapshot();
    const modelArgs = core === undefined ? null : structuredClone(core.modelArgs);
    const gates = core?.gates.length ?? 0;
    const selections = core?.selections.length ?? 0;
    return () => {
      undoState();
      undoTools?.();
      undoTransient();
      if (core !== undefined) {
        if (!core.frozen) core.modelArgs = modelArgs;
        core.gates.length = gates;
        core.selections.length = selections;
      }
      for (const session of this.sessions) session.namespace?.reset();
      effects.rebase(core);
    };
  }

  async #bounded<T>(
    session: ShimSession,
    callback: keyof ShimTimeouts,
    promise: PromiseLike<T>,
    { cleaningUp = false }: { readonly cleaningUp?: boolean } = {},
  ): Promise<T> {
    const host = this.#host;
    const timeoutMs = session.shim.timeouts?.[callback] ?? DEFAULT_TIMEOUT_MS;
    const signal = cleaningUp ? undefined : host.port.signal;
    const outcome = await within(promise, { clock: host.clock, timeoutMs, signal, graceMs: GRACE_MS });
    switch (outcome.kind) {
      case 'value':
        return outcome.value;
      case 'error':
        throw outcome.error;
      case 'timeout':
        this.#giveUp(session);
        host.event({ type: 'shim.timeout', ...this.#turn(), shim: session.name, callback, ms: outcome.ms });
        throw new ShimError(
          session.name,
          callback,
          new Error(`it did not settle within ${outcome.ms} ms`),
          'shim_timeout',
        );
      case 'aborted':
        this.#abandon(session, callback, outcome);
        throw new RunCancelledError();
    }
  }

  #abandon(
    session: ShimSession,
    callback: CallbackName,
    { obeyed, ms }: { readonly obeyed: boolean; readonly ms: number },
  ): void {
    const host = this.#host;
    host.inFlight({
      kind: 'shim',
      name: session.name,
      id: callback,
      obeyed,
      ms,
      sideEffects: obeyed ? 'none' : 'unknown',
    });
    if (obeyed) return;
    this.#giveUp(session);
    host.event({ type: 'shim.orphaned', ...this.#turn(), shim: session.name, callback, ms });
  }

  /** Closes the scope of a callback that did not stop: later writes through it throw, arrays it holds are detached. */
  #giveUp(session: ShimSession): void {
    session.scope.close();
    const { working } = this.#host.port;
    const held = working.history;
    working.history = [...held];
    Object.freeze(held);
    session.scope = new ShimScope(this.#host.port, session.name, {
      agent: session.agent,
      namespace: session.namespace,
      signal: session.signal,
    });
    session.turn = undefined;
  }
}

async function bindOne(
  { name, shim, bindings = [] }: NamedShim,
  task: AgentTask,
  host: SessionHost,
): Promise<BoundShim> {
  if (host.port.signal.aborted) throw new RunCancelledError();
  try {
    const binding = shim.bind({ task, toolSourceBindings: bindings });
    if (!isPromise(binding)) return assertSession(binding);
    const outcome = await within(binding, {
      clock: host.clock,
      timeoutMs: DEFAULT_TIMEOUT_MS,
      signal: host.port.signal,
      graceMs: GRACE_MS,
    });
    switch (outcome.kind) {
      case 'value':
        return assertSession(outcome.value);
      case 'error':
        throw outcome.error;
      case 'timeout':
        disposeWhenBound(binding, name, host);
        host.event({ type: 'shim.timeout', shim: name, callback: 'bind', ms: outcome.ms });
        throw new ShimError(name, 'bind', new Error(`it did not settle within ${outcome.ms} ms`), 'shim_timeout');
      case 'aborted':
        disposeWhenBound(binding, name, host);
        host.inFlight({
          kind: 'shim',
          name,
          id: 'bind',
          obeyed: outcome.obeyed,
          ms: outcome.ms,
          sideEffects: outcome.obeyed ? 'none' : 'unknown',
        });
        if (!outcome.obeyed) host.event({ type: 'shim.orphaned', shim: name, callback: 'bind', ms: outcome.ms });
        throw new RunCancelledError();
    }
  } catch (error) {
    if (error instanceof ShimError || error instanceof RunCancelledError) throw error;
    throw new ShimError(name, 'bind', error);
  }
}

function assertSession(bound: unknown): BoundShim {
  if (!(bound instanceof BoundShim)) throw new TypeError('bind gave no BoundShim');
  return bound;
}

function guardSync<T>(shim: string, phase: Phase, run: () => T): T {
  try {
    return run();
  } catch (error) {
    throw new ShimError(shim, phase, error);
  }
}

async function disposeAll(sessions: readonly ShimSession[], host: SessionHost): Promise<void> {
  for (const session of sessions) await disposeOf(session.bound, session.name, host);
}

async function disposeOf(bound: BoundShim, shim: string, host: SessionHost): Promise<void> {
  if (bound[Symbol.asyncDispose] === BoundShim.prototype[Symbol.asyncDispose]) return;
  const outcome = await within(
    invoke(async () => bound[Symbol.asyncDispose]()),
    { clock: host.clock, timeoutMs: DEFAULT_TIMEOUT_MS, graceMs: 0 },
  );
  if (outcome.kind === 'value') return;
  const reason = outcome.kind === 'error' ? messageOf(outcome.error) : `it did not settle within ${outcome.ms} ms`;
  host.port.log.warn({ runId: host.port.runId, shim, reason }, 'disposing of a shim session failed');
}

/** A session that came when nobody waited for it any more is not left open. */
function disposeWhenBound(promise: Promise<BoundShim>, shim: string, host: SessionHost): void {
  promise.then(
    async (bound) => (bound instanceof BoundShim ? disposeOf(bound, shim, host) : undefined),
    () => undefined,
  );
}

/** A throw before any promise is a rejection like every other. */
async function invoke<T>(run: () => Promise<T>): Promise<T> {
  return run();
}

function isPromise<T>(value: T | PromiseLike<T>): value is PromiseLike<T> {
  return typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';
}
