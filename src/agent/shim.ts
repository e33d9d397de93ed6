import type { AgentTask, ModelDelta, ModelRequest, RunnerHooks, RunResult } from './hooks.js';
import type { Message, ModelResponse } from './messages.js';
import type { RunState } from './run-state.js';
import type { RunScope } from './scope.js';
import type { NamespaceDefinition } from './shim-namespace.js';
import type { RunContext } from './state-map.js';
import type { ToolOutcome } from './tools.js';
import type { GatedCall, PreparedTurn } from './turn.js';

export type Awaitable<T> = T | Promise<T>;

/** A shim definition with its sources restricted, for a child agent (R101-R105). `source` is matched by identity. */
export interface ToolSourceBinding {
  readonly source: Shim;
  bind(context: ShimBindingContext): Promise<BoundShim>;
}

export interface ShimBindingContext {
  readonly task: AgentTask;
  readonly toolSourceBindings: readonly ToolSourceBinding[];
}

export type NextModelCall = (request: ModelRequest) => Promise<ModelResponse>;
export type NextToolCall = (call: GatedCall) => Promise<ToolOutcome>;

/**
 * The callbacks of a shim, in the order in which a run meets them. All are optional to override. The shims of an agent are
 * called in list order for every callback, clean-up included (R1); a later shim sees what the earlier ones did.
 *
 * A throw fails the run with `ShimError { shim, phase, cause }` and the turn's writes are not saved (R61), unless the shim's
 * `onFailure` is `"skip"`: then the callback's writes are undone and the run goes on. Each callback but the two wraps has a
 * timeout (default 30 s). When the run is cancelled, `run.signal` aborts; a callback that does not settle within 1 s is given up
 * and its scope closed (R78).
 */
export interface ShimCallbacks {
  /** Once per attempt before the first turn. After a crash or a wait it comes again with `run.recovered`; what it then writes to `state` is discarded (R86). */
  onRunStart(state: RunState, transientState: RunContext, run: RunScope): Awaitable<void>;
  /** Before each model call, to edit the turn. Repeated only to rebuild tools when a tool round is entered again (R79a). */
  prepareTurn(turn: PreparedTurn): Awaitable<void>;
  /** Gets a deep copy of the rendered request messages; a returned list replaces them for this call only (R47). */
  transformMessages(turn: PreparedTurn, messages: Message[]): Awaitable<Message[] | void>;
  /** Once per completed model call, before any tool runs (R51). Items appended here follow the tool results (R30). */
  onModelResponse(turn: PreparedTurn, response: ModelResponse): Awaitable<void>;
  /** Exactly once per started session, whatever happened (R54); `result` is null unless the run completed, and frozen (R80). Not interrupted by a cancel (R67). */
  onRunEnd(result: RunResult | null, transientState: RunContext, run: RunScope): Awaitable<void>;
  /** Around each model call, first shim outermost. `next` may be called again: each time is a new, marked call. */
  wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse>;
  /** Around each tool call, first shim outermost. Not calling `next` means that the tool does not run. */
  wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome>;
  /** Before a delta is stored or shown; null holds it back. A last `{ kind: "flush" }` comes at the end of the call. */
  transformDelta(turn: PreparedTurn, delta: ModelDelta): ModelDelta | null;
  /** When the provider says that the context is exceeded: true after `replaceHistory` has the call made once more. */
  onContextExceeded(turn: PreparedTurn, error: Error): Awaitable<boolean>;
  /** Observers of this agent instance; read once at bind (R109). They do not shape the turn (R110). */
  runnerHooks(): readonly RunnerHooks[];
}

/** Milliseconds each callback may take, by name; 30,000 where nothing is said. */
export type ShimTimeouts = Partial<
  Record<
    'onRunStart' | 'prepareTurn' | 'transformMessages' | 'onModelResponse' | 'onRunEnd' | 'onContextExceeded',
    number
  >
>;

/** A definition: shared by many agents and runs, so it holds no run state (R6). */
export abstract class Shim implements ShimCallbacks {
  abstract readonly name: string;
  /** `"skip"` undoes what a failing callback wrote and goes on; `"fail"` (default) fails the run. */
  declare onFailure?: 'fail' | 'skip';
  declare timeouts?: ShimTimeouts;
  /** Whether children get it: `"children"` (default) when they are helpers of this agent, `"always"` cannot be lost by delegating, `"none"` never. */
  declare inherit?: 'none' | 'children' | 'always';
  /** The shim's own versioned state (R20a); `defineShim` sets it. */
  declare stateDefinition?: NamespaceDefinition;

  /**
   * One session per concrete agent instance (R4). The default forwards to this definition's callbacks (R5), and obeys restricted
   * sources: its own binding makes the session, bindings for others leave it inactive (R103). A throw fails the run before any callback (R7).
   */
  bind(context: ShimBindingContext): Awaitable<BoundShim> {
    const { toolSourceBindings } = context;
    const own = toolSourceBindings.find((binding) => binding.source === this);
    if (own !== undefined) return own.bind(context);
    return toolSourceBindings.length > 0 ? new BoundShim() : new ForwardingBoundShim(this);
  }
  onRunStart(_state: RunState, _transientState: RunContext, _run: RunScope): Awaitable<void> {}
  prepareTurn(_turn: PreparedTurn): Awaitable<void> {}
  transformMessages(_turn: PreparedTurn, _messages: Message[]): Awaitable<Message[] | void> {}
  onModelResponse(_turn: PreparedTurn, _response: ModelResponse): Awaitable<void> {}
  onRunEnd(_result: RunResult | null, _transientState: RunContext, _run: RunScope): Awaitable<void> {}
  wrapModelCall(_turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    return next(request);
  }
  wrapToolCall(_turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    return next(call);
  }
  transformDelta(_turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    return delta;
  }
  onContextExceeded(_turn: PreparedTurn, _error: Error): Awaitable<boolean> {
    return false;
  }
  runnerHooks(): readonly RunnerHooks[] {
    return [];
  }
}

/** A session: one per concrete agent instance. Its memory is a cache, never a promise (R8). */
export class BoundShim implements ShimCallbacks {
  onRunStart(_state: RunState, _transientState: RunContext, _run: RunScope): Awaitable<void> {}
  prepareTurn(_turn: PreparedTurn): Awaitable<void> {}
  transformMessages(_turn: PreparedTurn, _messages: Message[]): Awaitable<Message[] | void> {}
  onModelResponse(_turn: PreparedTurn, _response: ModelResponse): Awaitable<void> {}
  onRunEnd(_result: RunResult | null, _transientState: RunContext, _run: RunScope): Awaitable<void> {}
  wrapModelCall(_turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    return next(request);
  }
  wrapToolCall(_turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    return next(call);
  }
  transformDelta(_turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    return delta;
  }
  onContextExceeded(_turn: PreparedTurn, _error: Error): Awaitable<boolean> {
    return false;
  }
  runnerHooks(): readonly RunnerHooks[] {
    return [];
  }
  /** For a child: restricted bindings, `[]` for none, `null` for normal inheritance (R101). */
  inheritTools(_names: ReadonlySet<string>): readonly ToolSourceBinding[] | null {
    return null;
  }
  /** Called when the attempt ends (R7). */
  async [Symbol.asyncDispose](): Promise<void> {}
}

/** The session of a shim that needs none: forwards to the definition. */
export class ForwardingBoundShim extends BoundShim {
  readonly definition: Shim;
  constructor(definition: Shim) {
    super();
    this.definition = definition;
  }
  override onRunStart(state: RunState, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.definition.onRunStart(state, transientState, run);
  }
  override prepareTurn(turn: PreparedTurn): Awaitable<void> {
    return this.definition.prepareTurn(turn);
  }
  override transformMessages(turn: PreparedTurn, messages: Message[]): Awaitable<Message[] | void> {
    return this.definition.transformMessages(turn, messages);
  }
  override onModelResponse(turn: PreparedTurn, response: ModelResponse): Awaitable<void> {
    return this.definition.onModelResponse(turn, response);
  }
  override onRunEnd(result: RunResult | null, transientState: RunContext, run: RunScope): Awaitable<void> {
    return this.definition.onRunEnd(result, transientState, run);
  }
  override wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    return this.definition.wrapModelCall(turn, request, next);
  }
  override wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    return this.definition.wrapToolCall(turn, call, next);
  }
  override transformDelta(turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    return this.definition.transformDelta(turn, delta);
  }
  override onContextExceeded(turn: PreparedTurn, error: Error): Awaitable<boolean> {
    return this.definition.onContextExceeded(turn, error);
  }
  override runnerHooks(): readonly RunnerHooks[] {
    return this.definition.runnerHooks();
  }
}
