import type { ModelDelta, ModelRequest, RunnerHooks, RunResult } from './hooks.js';
import type { Message, ModelResponse } from './messages.js';
import type { RunState } from './run-state.js';
import type { RunScope } from './scope.js';
import {
  type Awaitable,
  BoundShim,
  ForwardingBoundShim,
  type NextModelCall,
  type NextToolCall,
  Shim,
  type ShimBindingContext,
  type ShimCallbacks,
  type ToolSourceBinding,
} from './shim.js';
import type { RunContext } from './state-map.js';
import type { ToolOutcome } from './tools.js';
import type { GatedCall, PreparedTurn } from './turn.js';

/** Wraps a session: forwards every callback; override what you change, `this.inner` is the wrapped one (R106). */
export class DelegatingBoundShim extends BoundShim {
  readonly inner: BoundShim;
  constructor(inner: BoundShim) {
    super();
    this.inner = inner;
  }
  override onRunStart(state: RunState, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.inner.onRunStart(state, transientState, run);
  }
  override prepareTurn(turn: PreparedTurn): Awaitable<void> {
    return this.inner.prepareTurn(turn);
  }
  override transformMessages(turn: PreparedTurn, messages: Message[]): Awaitable<Message[] | void> {
    return this.inner.transformMessages(turn, messages);
  }
  override onModelResponse(turn: PreparedTurn, response: ModelResponse): Awaitable<void> {
    return this.inner.onModelResponse(turn, response);
  }
  override onRunEnd(result: RunResult | null, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.inner.onRunEnd(result, transientState, run);
  }
  override wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    return this.inner.wrapModelCall(turn, request, next);
  }
  override wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    return this.inner.wrapToolCall(turn, call, next);
  }
  override transformDelta(turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    return this.inner.transformDelta(turn, delta);
  }
  override onContextExceeded(turn: PreparedTurn, error: Error): Awaitable<boolean> {
    return this.inner.onContextExceeded(turn, error);
  }
  override runnerHooks(): readonly RunnerHooks[] {
    return this.inner.runnerHooks();
  }
  override inheritTools(names: ReadonlySet<string>): readonly ToolSourceBinding[] | null {
    return this.inner.inheritTools(names);
  }
  override async [Symbol.asyncDispose](): Promise<void> {
    await this.inner[Symbol.asyncDispose]();
  }
}

/**
 * Wraps a definition. `bind` gives the inner session with whatever this class overrides on top (R107), so a callback that is
 * overridden here takes effect without overriding `bind`, and its `super.callback(…)` reaches the inner session of that run.
 */
export class DelegatingShim extends Shim {
  readonly inner: Shim;
  readonly name: string;
  /** The inner session that belongs to what a callback was called with: a run's scope or a turn. */
  readonly #sessions = new WeakMap<object, BoundShim>();

  constructor(inner: Shim) {
    super();
    this.inner = inner;
    this.name = inner.name;
    if (inner.onFailure !== undefined) this.onFailure = inner.onFailure;
    if (inner.timeouts !== undefined) this.timeouts = inner.timeouts;
    if (inner.inherit !== undefined) this.inherit = inner.inherit;
    if (inner.stateDefinition !== undefined) this.stateDefinition = inner.stateDefinition;
  }

  /** Forwards the whole context (R9). */
  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    const session = await this.inner.bind(context);
    const overridden = CALLBACK_NAMES.some((name) => this[name] !== DelegatingShim.prototype[name]);
    return overridden ? new DefinitionOverSession(this, session, this.#sessions) : session;
  }
  override onRunStart(state: RunState, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.#innerOf(run).onRunStart(state, transientState, run);
  }
  override prepareTurn(turn: PreparedTurn): Awaitable<void> {
    return this.#innerOf(turn).prepareTurn(turn);
  }
  override transformMessages(turn: PreparedTurn, messages: Message[]): Awaitable<Message[] | void> {
    return this.#innerOf(turn).transformMessages(turn, messages);
  }
  override onModelResponse(turn: PreparedTurn, response: ModelResponse): Awaitable<void> {
    return this.#innerOf(turn).onModelResponse(turn, response);
  }
  override onRunEnd(result: RunResult | null, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.#innerOf(run).onRunEnd(result, transientState, run);
  }
  override wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    return this.#innerOf(turn).wrapModelCall(turn, request, next);
  }
  override wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    return this.#innerOf(turn).wrapToolCall(turn, call, next);
  }
  override transformDelta(turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    return this.#innerOf(turn).transformDelta(turn, delta);
  }
  override onContextExceeded(turn: PreparedTurn, error: Error): Awaitable<boolean> {
    return this.#innerOf(turn).onContextExceeded(turn, error);
  }
  override runnerHooks(): readonly RunnerHooks[] {
    return this.inner.runnerHooks();
  }

  #innerOf(key: object): ShimCallbacks {
    return this.#sessions.get(key) ?? this.inner;
  }
}

/** The callbacks, by name; `runnerHooks` is read from the session at bind. */
export const CALLBACK_NAMES = [
  'onRunStart',
  'prepareTurn',
  'transformMessages',
  'onModelResponse',
  'onRunEnd',
  'wrapModelCall',
  'wrapToolCall',
  'transformDelta',
  'onContextExceeded',
  'runnerHooks',
] as const satisfies readonly (keyof ShimCallbacks)[];
export type CallbackName = (typeof CALLBACK_NAMES)[number];

/** A session whose callbacks go through a delegating definition; what that forwards reaches the wrapped session. */
class DefinitionOverSession extends DelegatingBoundShim {
  readonly definition: DelegatingShim;
  readonly #sessions: WeakMap<object, BoundShim>;
  constructor(definition: DelegatingShim, inner: BoundShim, sessions: WeakMap<object, BoundShim>) {
    super(inner);
    this.definition = definition;
    this.#sessions = sessions;
  }
  #through(key: object): DelegatingShim {
    this.#sessions.set(key, this.inner);
    return this.definition;
  }
  override onRunStart(state: RunState, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.#through(run).onRunStart(state, transientState, run);
  }
  override prepareTurn(turn: PreparedTurn): Awaitable<void> {
    return this.#through(turn).prepareTurn(turn);
  }
  override transformMessages(turn: PreparedTurn, messages: Message[]): Awaitable<Message[] | void> {
    return this.#through(turn).transformMessages(turn, messages);
  }
  override onModelResponse(turn: PreparedTurn, response: ModelResponse): Awaitable<void> {
    return this.#through(turn).onModelResponse(turn, response);
  }
  override onRunEnd(result: RunResult | null, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.#through(run).onRunEnd(result, transientState, run);
  }
  override wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    return this.#through(turn).wrapModelCall(turn, request, next);
  }
  override wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    return this.#through(turn).wrapToolCall(turn, call, next);
  }
  override transformDelta(turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    return this.#through(turn).transformDelta(turn, delta);
  }
  override onContextExceeded(turn: PreparedTurn, error: Error): Awaitable<boolean> {
    return this.#through(turn).onContextExceeded(turn, error);
  }
  override runnerHooks(): readonly RunnerHooks[] {
    return this.definition.runnerHooks === DelegatingShim.prototype.runnerHooks
      ? this.inner.runnerHooks()
      : this.definition.runnerHooks();
  }
}

/** Whether a session really does something in a callback; what it does not, is never called and costs nothing. */
export function implementsCallback(session: BoundShim, name: CallbackName): boolean {
  // eslint-disable-next-line @typescript-eslint/unbound-method -- compared, never called
  const own: unknown = session[name];
  if (own === BoundShim.prototype[name]) return false;
  if (session instanceof DefinitionOverSession && own === DefinitionOverSession.prototype[name]) {
    return session.definition[name] !== DelegatingShim.prototype[name] || implementsCallback(session.inner, name);
  }
  if (session instanceof DelegatingBoundShim && own === DelegatingBoundShim.prototype[name])
    return implementsCallback(session.inner, name);
  if (session instanceof ForwardingBoundShim && own === ForwardingBoundShim.prototype[name])
    return definitionImplements(session.definition, name);
  return true;
}

function definitionImplements(definition: Shim, name: CallbackName): boolean {
  // eslint-disable-next-line @typescript-eslint/unbound-method -- compared, never called
  const own: unknown = definition[name];
  if (own === Shim.prototype[name]) return false;
  return definition instanceof DelegatingShim && own === DelegatingShim.prototype[name]
    ? definitionImplements(definition.inner, name)
    : true;
}
