import { type CallbackName, DelegatingBoundShim, DelegatingShim } from '../agent/delegating.js';
import type { ModelDelta, ModelRequest, RunResult } from '../agent/hooks.js';
import type { Message, ModelResponse } from '../agent/messages.js';
import type { RunState } from '../agent/run-state.js';
import type { RunScope } from '../agent/scope.js';
import type { Awaitable, BoundShim, NextModelCall, NextToolCall, Shim, ShimBindingContext } from '../agent/shim.js';
import type { RunContext } from '../agent/state-map.js';
import type { ToolOutcome } from '../agent/tools.js';
import type { GatedCall, PreparedTurn } from '../agent/turn.js';

/** One callback that a watched shim got. */
export interface WatchedCall {
  readonly callback: CallbackName;
  /** For `onRunEnd`: whether it got a result, or null. */
  readonly withResult?: boolean;
  /** What it threw, synchronously or later. */
  threw?: unknown;
}

/** Wraps a shim and writes down which callbacks its sessions got; `onCall` runs before each is passed on. */
export class WatchedShim extends DelegatingShim {
  readonly calls: WatchedCall[] = [];
  readonly sessions: BoundShim[] = [];
  readonly #onCall: (callback: CallbackName) => void;

  constructor(inner: Shim, onCall: (callback: CallbackName) => void = () => undefined) {
    super(inner);
    this.#onCall = onCall;
  }

  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    const session = await this.inner.bind(context);
    this.sessions.push(session);
    return new WatchedSession(session, (call) => {
      this.calls.push(call);
      this.#onCall(call.callback);
    });
  }

  /** The callbacks it got, in order, without the deltas, whose number is the model's. */
  get order(): readonly CallbackName[] {
    return this.calls.map((call) => call.callback).filter((name) => name !== 'transformDelta');
  }
  named(callback: CallbackName): readonly WatchedCall[] {
    return this.calls.filter((call) => call.callback === callback);
  }
}

class WatchedSession extends DelegatingBoundShim {
  readonly #write: (call: WatchedCall) => void;

  constructor(inner: BoundShim, write: (call: WatchedCall) => void) {
    super(inner);
    this.#write = write;
  }
  #watch<T>(call: WatchedCall, run: () => T): T {
    this.#write(call);
    try {
      const returned = run();
      if (returned instanceof Promise) {
        returned.catch((error: unknown) => {
          call.threw = error;
        });
      }
      return returned;
    } catch (error) {
      call.threw = error;
      throw error;
    }
  }
  override onRunStart(state: RunState, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.#watch({ callback: 'onRunStart' }, () => super.onRunStart(state, transientState, run));
  }
  override prepareTurn(turn: PreparedTurn): Awaitable<void> {
    return this.#watch({ callback: 'prepareTurn' }, () => super.prepareTurn(turn));
  }
  override transformMessages(turn: PreparedTurn, messages: Message[]): ReturnType<BoundShim['transformMessages']> {
    return this.#watch({ callback: 'transformMessages' }, () => super.transformMessages(turn, messages));
  }
  override onModelResponse(turn: PreparedTurn, response: ModelResponse): Awaitable<void> {
    return this.#watch({ callback: 'onModelResponse' }, () => super.onModelResponse(turn, response));
  }
  override onRunEnd(result: RunResult | null, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.#watch({ callback: 'onRunEnd', withResult: result !== null }, () =>
      super.onRunEnd(result, transientState, run),
    );
  }
  override wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    return this.#watch({ callback: 'wrapModelCall' }, () => super.wrapModelCall(turn, request, next));
  }
  override wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    return this.#watch({ callback: 'wrapToolCall' }, () => super.wrapToolCall(turn, call, next));
  }
  override transformDelta(turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    return this.#watch({ callback: 'transformDelta' }, () => super.transformDelta(turn, delta));
  }
  override onContextExceeded(turn: PreparedTurn, error: Error): Awaitable<boolean> {
    return this.#watch({ callback: 'onContextExceeded' }, () => super.onContextExceeded(turn, error));
  }
}
