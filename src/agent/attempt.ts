import { onAbort } from './abort.js';
import { type BoundShims, GRACE_MS, type NamedShim, type SessionHost } from './bound-shims.js';
import { Children } from './children.js';
import { type Clock, within } from './clock.js';
import type { AgentDescriptor } from './descriptor.js';
import { type Digest, EffectRecorder } from './effects.js';
import type { EventInput } from './events.js';
import type { AgentTask, ModelRequest, RunnerHooks } from './hooks.js';
import {
  type Checkpoint,
  copyPosition,
  type Journal,
  type JournalEntry,
  type Position,
  type SavedState,
  type ToolCallRecord,
} from './journal.js';
import { type JsonValue, strictStringify } from './json.js';
import { type ModelResponse, mayHoldInternal, omitInternal } from './messages.js';
import { addUsage, type ModelSource, type Usage } from './model.js';
import { callModel, type ModelCallOptions } from './model-call.js';
import { type RetryOptions, withRetries } from './retries.js';
import type { InFlight, RunLimits, UnknownToolCall } from './run.js';
import { HandedOverError, messageOf, type RunErrorData, runErrorData } from './run-errors.js';
import { WorkingState } from './run-state.js';
import type { AttemptPort, ShimModelRequest, SpawnRequest, SpawnResult } from './scope.js';
import { TransientState } from './state-map.js';
import type { Logger, Tool } from './tools.js';
import type { TurnCore } from './turn.js';
import { Watchers } from './watchers.js';

/** An agent with everything that runs it: what a descriptor names, made. */
export interface AgentInstance {
  readonly descriptor: AgentDescriptor;
  /** Tools of the agent itself; only an agent made in code has some. */
  readonly tools: readonly Tool[];
  readonly shims: readonly NamedShim[];
}

/** What the loop gets from outside: models, agents, time, ids. */
export interface LoopDeps {
  readonly models: ModelSource;
  readonly clock: Clock;
  readonly digest: Digest;
  readonly log: Logger;
  readonly hostHooks: readonly RunnerHooks[];
  readonly modelIdleTimeoutMs: number;
  readonly modelMaxRetries: number;
  newId(): string;
  /** Takes configured secrets out of what a tool or shim said when it failed. */
  readonly conceal?: (text: string) => string;
  /** Between 0 and 1, for jitter. */
  random(): number;
  /** An agent of this run by name, in the version that the run keeps. @throws where there is none any more */
  agent(name: string): AgentInstance;
  spawn(parent: SpawnParent, request: SpawnRequest, signal: AbortSignal): Promise<SpawnResult>;
}

/** How long an observer is waited for. */
const HOOK_TIMEOUT_MS = 30_000;

/** The run that spawns a child. */
export interface SpawnParent {
  readonly runId: string;
  readonly agent: AgentInstance;
  readonly shims: BoundShims;
  readonly tools: readonly Tool[];
  readonly depth: number;
  readonly limits: RunLimits;
  /** Tokens that the run has used so far. */
  readonly totalTokens: number;
  /** Agents whose guards hold for the child too: those of this run, and of the runs above it. */
  readonly guards: readonly string[];
  /** The agents above the child, outermost first. */
  readonly lineage: readonly string[];
  /** For a helper that spawns: the only tools that it may see. */
  readonly onlyTools: readonly string[] | undefined;
}

export interface AttemptInput {
  readonly runId: string;
  readonly parentRunId?: string | undefined;
  readonly depth: number;
  readonly metadata: Readonly<Record<string, string>>;
  readonly key: string | null;
  readonly dataDir: string;
  readonly limits: RunLimits;
  readonly saved: SavedState;
  /** Agents above this run whose guards (`inherit: "always"`) hold here too. */
  readonly guards?: readonly string[] | undefined;
  /** The agents of the runs above this one, outermost first. */
  readonly lineage?: readonly string[] | undefined;
  /** For a helper: the only tools that it may see. */
  readonly onlyTools?: readonly string[] | undefined;
  /** Told which shims each agent of the attempt is about to be bound with (R118). */
  readonly onBind?: ((shims: readonly NamedShim[]) => void) | undefined;
  /** The attempt goes on after a crash or a wait (R86). */
  readonly recovered: boolean;
  /** Aborted to stop the attempt; the reason is a RunCancelledError, a HandedOverError, or a LimitExceededError. */
  readonly signal: AbortSignal;
  readonly journal: Journal;
  /** A model call of this attempt that a crash interrupted after deltas had been sent. */
  readonly interruptedModelCallId?: string | undefined;
}

/** One agent of an attempt with its sessions; a handoff opens another inside. */
export interface Frame {
  readonly agent: AgentInstance;
  readonly shims: BoundShims;
  readonly task: AgentTask;
}

const CUSTOM_EVENT = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

/** What one attempt holds: the working state, its place in the loop, and everything it reports. */
export class Attempt implements AttemptPort, SessionHost {
  readonly input: AttemptInput;
  readonly deps: LoopDeps;
  readonly working: WorkingState;
  readonly effects: EffectRecorder;
  readonly transientState = new TransientState();
  readonly startedAtMs: number;
  position: Position;
  /** The place in the loop as of the last checkpoint. */
  savedPosition: Position;
  usage: Usage;
  calls: ToolCallRecord[];
  core: TurnCore | undefined;
  frame: Frame | undefined;
  ended = false;
  /** Tool calls that are being executed now. */
  callsRunning = 0;
  /** Text of the model call in progress, as it was shown. */
  partialText = '';
  /** The model call whose deltas were sent and that the next one replaces. */
  replaces: string | undefined;
  /** Models that have refused images and files in this attempt: from then on these stay behind. */
  readonly media = { refusedBy: new Set<string>() };
  readonly receipts: InFlight[] = [];
  readonly unknownCalls: UnknownToolCall[] = [];
  /** Told when the end is settled: from then on nothing stops the attempt any more (R68). */
  readonly onSettled: () => void;
  #held: EventInput[] | undefined;
  #quiet = false;
  #endWritten = false;
  readonly watchers = new Watchers(this);
  readonly children: Children;

  constructor(input: AttemptInput, deps: LoopDeps, onSettled: () => void) {
    this.input = input;
    this.deps = deps;
    this.onSettled = onSettled;
    this.children = new Children(input.signal);
    this.working = new WorkingState(input.saved);
    this.effects = new EffectRecorder(this.working, deps.digest);
    this.position = copyPosition(input.saved.position);
    this.savedPosition = input.saved.position;
    this.usage = input.saved.usage;
    this.calls = input.saved.toolCalls.map((call) => ({ ...call }));
    this.startedAtMs = deps.clock.now();
    this.replaces = input.interruptedModelCallId;
  }

  get runId(): string {
    return this.input.runId;
  }
  get agent(): string {
    return this.position.agents.at(-1) ?? '';
  }
  get signal(): AbortSignal {
    return this.input.signal;
  }
  get recovered(): boolean {
    return this.input.recovered;
  }
  get log(): Logger {
    return this.deps.log;
  }
  get metadata(): Readonly<Record<string, string>> {
    return this.input.metadata;
  }
  get key(): string | null {
    return this.input.key;
  }
  get dataDir(): string {
    return this.input.dataDir;
  }
  get limits(): RunLimits {
    return { ...this.frame?.agent.descriptor.limits, ...this.input.limits };
  }
  get clock(): Clock {
    return this.deps.clock;
  }
  get retries(): Pick<RetryOptions, 'clock' | 'maxRetries' | 'random'> {
    return { clock: this.clock, maxRetries: this.deps.modelMaxRetries, random: () => this.deps.random() };
  }
  get port(): AttemptPort {
    return this;
  }
  get turnNumber(): number | undefined {
    return this.working.turnCount === 0 || this.core === undefined ? undefined : this.working.turnCount;
  }

  /** Whether something comes between the answer and the end: a session's clean-up, or children that are still at work. */
  get cleansUp(): boolean {
    return (
      this.position.agents.length > 1 ||
      this.frame === undefined ||
      this.frame.shims.active('onRunEnd').length > 0 ||
      this.children.atWork
    );
  }

  event(event: EventInput): void {
    if (event.type === 'shim.failed')
      this.log.warn({ runId: this.runId, agent: this.agent, error: event.error }, 'a shim failed and was skipped');
    if (this.#endWritten || (this.#quiet && event.type === 'shim.effect')) return;
    this.watchers.tell(event);
    if (this.#held === undefined) this.input.journal.note(event);
    else this.#held.push(event);
  }

  /** From here on events wait for the next commit: they are in the transaction of the state they belong to. */
  hold(): void {
    this.#held ??= [];
  }

  /** Lets held events go without the state they were held for, because there will be none. */
  release(): void {
    const held = this.#held ?? [];
    this.#held = undefined;
    for (const event of held) this.input.journal.note(event);
  }

  /** While something is only rebuilt its effects are none: what it writes is discarded. */
  async quietly<T>(run: () => Promise<T>): Promise<T> {
    this.#quiet = true;
    try {
      return await run();
    } finally {
      this.#quiet = false;
    }
  }

  /** Commits what was written since the last checkpoint, with the events held for it. @throws CancelledFirstError */
  async checkpoint(
    options: {
      readonly turnEnd?: boolean;
      readonly settles?: boolean;
      readonly calls?: readonly ToolCallRecord[];
    } = {},
  ): Promise<void> {
    await this.commit({ events: [], checkpoint: this.takeCheckpoint(options) });
  }

  /**
   * Like `checkpoint` where nothing outside follows from it. The order of commits is the order of the calls; a commit that
   * cannot be made stops the attempt through its signal, so the rejection itself is nobody's business here.
   */
  checkpointLater(options: Parameters<Attempt['checkpoint']>[0] & { readonly unhurried?: boolean } = {}): void {
    const { unhurried, ...rest } = options;
    this.commit({ events: [], checkpoint: this.takeCheckpoint(rest), unhurried }).catch(() => undefined);
  }

  takeCheckpoint(
    options: {
      readonly turnEnd?: boolean;
      readonly settles?: boolean;
      readonly calls?: readonly ToolCallRecord[];
    } = {},
  ): Checkpoint {
    const position = copyPosition(this.position);
    this.savedPosition = position;
    return {
      ...this.working.takeDelta(),
      position,
      usage: this.usage,
      toolCalls: (options.calls ?? []).map((call) => ({ ...call })),
      unknownToolCalls: this.unknownCalls.splice(0),
      turnEnd: options.turnEnd,
      settles: options.settles,
      busy: this.callsRunning > 0,
    };
  }

  async commit(entry: JournalEntry): Promise<void> {
    const held = this.#held ?? [];
    this.#held = undefined;
    // Nothing follows the event that ends an attempt, whatever still goes on behind it.
    this.#endWritten = entry.end !== undefined;
    try {
      await this.input.journal.commit(held.length === 0 ? entry : { ...entry, events: [...held, ...entry.events] });
    } catch (error) {
      this.#endWritten = false;
      throw error;
    }
    for (const event of entry.events) this.watchers.tell(event);
  }

  /** The stored form of a failure, without the secrets that a shim may have put into what it threw. */
  errorData(thrown: unknown): RunErrorData {
    return runErrorData(thrown, this.deps.conceal);
  }

  inFlight(entry: InFlight): void {
    this.receipts.push(entry);
  }

  /** Calls every host's and shim's observer of one kind; a throw is logged and changes nothing (R110), and none is waited for without end. */
  async observe(
    frame: Frame,
    run: (hooks: RunnerHooks, task: AgentTask) => void | Promise<void> | undefined,
  ): Promise<void> {
    for (const hooks of frame.shims.hooks) {
      let reason: string | undefined;
      try {
        const observing = run(hooks, frame.task);
        if (observing === undefined) continue;
        const outcome = await within(Promise.resolve(observing), {
          clock: this.clock,
          timeoutMs: HOOK_TIMEOUT_MS,
          signal: this.ended ? undefined : this.signal,
          graceMs: GRACE_MS,
        });
        if (outcome.kind === 'error') reason = messageOf(outcome.error);
        if (outcome.kind === 'timeout') reason = `it did not settle within ${outcome.ms} ms`;
      } catch (error) {
        reason = messageOf(error);
      }
      if (reason !== undefined) this.log.warn({ runId: this.runId, reason }, 'a runner hook failed');
    }
  }

  emit(shim: string, name: string, data: JsonValue): void {
    if (!CUSTOM_EVENT.test(name))
      throw new TypeError(`An event's name is 1 to 64 letters, digits, _ . or -, not ${JSON.stringify(name)}.`);
    const json = strictStringify(data, 'data');
    const parsed = JSON.parse(json) as JsonValue;
    const copy = mayHoldInternal(json) ? omitInternal(parsed) : parsed;
    if (this.ended) return;
    const turn = this.turnNumber === undefined ? {} : { turn: this.turnNumber };
    if (name === 'plan.updated') this.event({ type: 'plan.updated', ...turn, shim, data: copy });
    else this.event({ type: `custom.${name}`, ...turn, shim, data: copy });
  }

  async callModel(
    shim: string,
    request: ShimModelRequest,
    purpose: string,
    signal: AbortSignal,
  ): Promise<ModelResponse> {
    if (this.ended) throw new Error('The run has ended.');
    const startedAt = this.clock.now();
    const model = request.model ?? this.frame?.agent.descriptor.model ?? '';
    const handle = this.deps.models.resolve(model);
    const messages =
      request.system === undefined
        ? request.messages
        : [{ role: 'system' as const, content: request.system }, ...request.messages];
    const full: ModelRequest = {
      model,
      messages,
      tools: request.tools === undefined || request.tools.length === 0 ? null : { tools: request.tools },
      modelArgs: request.modelArgs ?? null,
      output: request.output,
    };
    const options: ModelCallOptions = {
      clock: this.clock,
      signal,
      media: this.media,
      idleTimeoutMs: this.deps.modelIdleTimeoutMs,
      modelCallId: this.deps.newId(),
      transform: undefined,
      callIdFor: (id) => id,
      onDelta: () => undefined,
      onStart: () => undefined,
      onUsage: (usage) => {
        this.usage = addUsage(this.usage, usage);
      },
    };
    const { response } = await withRetries({ ...this.retries, signal, onRetry: () => undefined }, async () =>
      callModel(handle, full, options),
    );
    this.frame?.shims.recordEffect(
      shim,
      'callModel',
      { what: 'modelCall', purpose, model, usage: response.usage },
      this.clock.now() - startedAt,
    );
    return response;
  }

  async spawnAgent(request: SpawnRequest, signal: AbortSignal): Promise<SpawnResult> {
    const { frame } = this;
    if (frame === undefined || this.ended) throw new Error('No agent is running.');
    const stop = AbortSignal.any([
      signal,
      this.children.stop,
      ...(request.signal === undefined ? [] : [request.signal]),
    ]);
    stop.throwIfAborted();
    try {
      return await this.children.during(request.toolCallId, this.#spawn(frame, request, stop));
    } catch (error) {
      // The next start goes on with the child: whoever waits for it here gets no answer that could be taken for a result.
      if (error instanceof HandedOverError) return await new Promise<never>(() => undefined);
      throw error;
    }
  }

  async #spawn(frame: Frame, request: SpawnRequest, stop: AbortSignal): Promise<SpawnResult> {
    const { position, input } = this;
    const lineage = [...(input.lineage ?? []), ...position.agents];
    const parent: SpawnParent = {
      runId: this.runId,
      agent: frame.agent,
      shims: frame.shims,
      tools: this.core?.toolSet.offered ?? [],
      depth: input.depth,
      limits: this.limits,
      totalTokens: this.usage.totalTokens,
      guards: [...new Set([...(input.guards ?? []), ...position.seenAgents, ...position.agents])],
      lineage,
      onlyTools: input.onlyTools,
    };
    let abortedAt: number | undefined;
    const unwatch = onAbort(stop, () => {
      abortedAt = this.clock.now();
    });
    try {
      const result = await this.deps.spawn(parent, request, stop);
      this.usage = addUsage(this.usage, result.usage);
      // A child whose own time was over, or that only its call gave up, is on no receipt of this run's cancel.
      if (abortedAt !== undefined && this.signal.aborted) {
        const flown = result.cancellation?.inFlight ?? [];
        const sideEffects = flown.some((entry) => entry.sideEffects === 'unknown') ? 'unknown' : 'none';
        const obeyed = flown.every((entry) => entry.obeyed);
        this.inFlight({
          kind: 'agent',
          name: request.agent ?? frame.agent.descriptor.name,
          id: result.runId,
          obeyed,
          ms: this.clock.now() - abortedAt,
          sideEffects,
        });
      }
      return result;
    } finally {
      unwatch();
    }
  }
}
