import type { LanguageModelV3 } from '@ai-sdk/provider';
import type { AgentInstance, LoopDeps } from './attempt.js';
import { type Clock, systemClock } from './clock.js';
import { assertGuard, InvalidShimError, ShimDefinition } from './define-shim.js';
import { type AgentDescriptor, AgentDescriptorSchema } from './descriptor.js';
import type { Digest } from './effects.js';
import type { LifecycleEvent } from './events.js';
import type { RunnerHooks, RunResult } from './hooks.js';
import type { AttemptEnd, SavedState } from './journal.js';
import { LocalDelegation } from './local-delegation.js';
import { runAttempt } from './loop.js';
import { MemoryJournal, newState, withCheckpoint } from './memory-journal.js';
import { copyItem, type HistoryItem, withoutInternalInJson } from './messages.js';
import type { ModelHandle, ModelSource } from './model.js';
import { OncePerAgent } from './once-per-agent.js';
import { closingItems } from './round-closing.js';
import { ModelCallError, messageOf, RunCancelledError, RunError, ShimCleanupError } from './run-errors.js';
import type { RunState } from './run-state.js';
import type { Shim } from './shim.js';
import { LiveState } from './state-map.js';
import type { PromptSpec } from './template.js';
import type { Logger, Tool } from './tools.js';

export interface DefaultAgentOptions {
  readonly name?: string;
  /** A model of the AI SDK's `LanguageModelV3`, a handle, or an id that `models` resolves. */
  readonly model: LanguageModelV3 | ModelHandle | string;
  readonly models?: ModelSource;
  readonly instructions?: string | PromptSpec;
  readonly tools?: readonly Tool[];
  readonly toolSettings?: AgentDescriptor['tools'];
  readonly shims?: readonly (Shim | ShimDefinition)[];
  readonly modelArgs?: AgentDescriptor['modelArgs'];
  readonly output?: AgentDescriptor['output'];
  readonly limits?: AgentDescriptor['limits'];
  readonly handoffs?: readonly DefaultAgent[];
  /** Agents that a shim's tool may run by name, beside those that this one hands over to. */
  readonly agents?: readonly DefaultAgent[];
  readonly hooks?: readonly RunnerHooks[];
  readonly metadata?: Readonly<Record<string, string>>;
  readonly dataDir?: string;
  readonly log?: Logger;
  readonly clock?: Clock;
  readonly modelIdleTimeoutMs?: number;
  readonly modelMaxRetries?: number;
}

const silentLog: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
};

/** FNV-1a in 64 bits of two halves: short, stable, enough to tell whether something changed. Source: the FNV reference by Fowler, Noll and Vo. */
const fnvDigest: Digest = (text) => {
  let [a, b] = [0x811c9dc5, 0xcbf29ce4];
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index);
    a = Math.imul(a ^ unit, 0x01000193);
    b = Math.imul(b ^ (unit + index), 0x01000193);
  }
  return (a >>> 0).toString(16).padStart(8, '0') + (b >>> 0).toString(16).padStart(8, '0');
};

/**
 * An agent in code: the same loop as the server's, with its state in memory. Runs of one agent object are one conversation and
 * go one after the other (R82); its shims are bound once (R4) and disposed of with it.
 */
export class DefaultAgent {
  readonly #options: DefaultAgentOptions;
  readonly #instance: AgentInstance;
  readonly #shims: readonly OncePerAgent[];
  #saved: SavedState;
  #queue: Promise<unknown> = Promise.resolve();
  #runs = 0;

  constructor(options: DefaultAgentOptions) {
    this.#options = options;
    const model = typeof options.model === 'string' ? options.model : `in-code/${options.name ?? 'agent'}`;
    const descriptor = AgentDescriptorSchema.parse({
      name: options.name ?? 'agent',
      model,
      instructions: options.instructions ?? '',
      tools: options.toolSettings ?? {},
      modelArgs: options.modelArgs ?? {},
      output: options.output,
      limits: options.limits ?? {},
      handoffs: options.handoffs?.map((agent) => agent.name) ?? [],
    });
    const shims = (options.shims ?? []).map((shim) => (shim instanceof ShimDefinition ? shim.create() : shim));
    shims.forEach(assertGuard);
    assertOwnNames(shims);
    this.#shims = shims.map((shim) => new OncePerAgent(shim, async () => this.#disposeSessions()));
    this.#instance = {
      descriptor,
      tools: options.tools ?? [],
      shims: this.#shims.map((shim) => ({ name: shim.name, shim, hash: '' })),
    };
    this.#saved = newState(descriptor.name, descriptor.instructions);
  }

  get name(): string {
    return this.#instance.descriptor.name;
  }

  /** A copy of the saved state: that of the last boundary, never of a failed turn. */
  get runState(): RunState {
    const { instructions, history, responses, state, turnCount } = this.#saved;
    return {
      instructions,
      history: [...history],
      responses: [...responses],
      shimState: new LiveState(state),
      turnCount,
    };
  }

  /**
   * Runs the agent on an input: a text, or a list of items (messages, content, internal messages).
   * @throws what failed the run: ShimError, ShimCleanupError, ModelCallError, LimitExceededError or another RunError (each has `toData()`,
   * what a server would have stored); RunCancelledError
   */
  async run(
    input: HistoryItem | readonly HistoryItem[],
    options: { readonly signal?: AbortSignal } = {},
  ): Promise<RunResult> {
    return this.runStream(input, options).result;
  }

  /** The same, watched: iterate over the events; `result` settles when the run has ended. */
  runStream(
    input: HistoryItem | readonly HistoryItem[],
    options: { readonly signal?: AbortSignal } = {},
  ): AsyncIterable<LifecycleEvent> & { readonly result: Promise<RunResult> } {
    const buffer: LifecycleEvent[] = [];
    let wake = (): void => undefined;
    let over = false;
    const items = (Array.isArray(input) ? (input as readonly HistoryItem[]) : [input as HistoryItem]).map((item) =>
      copyItem(item, 'input'),
    );
    const result = this.#serially(async () =>
      this.#attempt(items, options.signal, (event) => {
        buffer.push(event);
        wake();
      }),
    ).finally(() => {
      over = true;
      wake();
    });
    result.catch(() => undefined);
    return {
      result,
      async *[Symbol.asyncIterator]() {
        for (let next = 0; ; ) {
          const event = buffer[next];
          if (event !== undefined) {
            next += 1;
            yield event;
            continue;
          }
          if (over) return;
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      },
    };
  }

  /** A new agent that goes on from a copy of this one's state; its shims are bound anew. */
  fork(): DefaultAgent {
    const fork = new DefaultAgent(this.#options);
    fork.#saved = this.#saved;
    return fork;
  }

  /** Back to the first message. */
  reset(): void {
    const { name, instructions } = this.#instance.descriptor;
    this.#saved = newState(name, instructions);
  }

  /** Disposes of the shims' sessions, after the runs that were asked for. @throws the first failure, when all were disposed of */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#queue;
    const failures = await this.#disposeSessions();
    if (failures.length > 0) throw failures[0];
  }

  async #disposeSessions(): Promise<unknown[]> {
    const failures: unknown[] = [];
    for (const shim of this.#shims) {
      try {
        await shim.dispose();
      } catch (error) {
        failures.push(error);
      }
    }
    return failures;
  }

  async #serially<T>(run: () => Promise<T>): Promise<T> {
    const turn = this.#queue.then(run, run);
    this.#queue = turn.catch(() => undefined);
    return turn;
  }

  async #attempt(
    items: readonly HistoryItem[],
    given: AbortSignal | undefined,
    onEvent: (event: LifecycleEvent) => void,
  ): Promise<RunResult> {
    const controller = new AbortController();
    const onAbort = (): void => {
      controller.abort(new RunCancelledError('The run was cancelled.', this.#clock.now()));
    };
    given?.addEventListener('abort', onAbort, { once: true });
    if (given?.aborted === true) onAbort();
    this.#runs += 1;
    const runId = `${this.name}-${this.#runs}`;
    const saved = this.#takeUp(items);
    const journal = new MemoryJournal({
      runId,
      saved,
      now: () => this.#clock.now(),
      signal: controller.signal,
      onEvent,
    });
    try {
      const end = await runAttempt(
        {
          runId,
          depth: 0,
          metadata: this.#options.metadata ?? {},
          key: null,
          dataDir: this.#options.dataDir ?? '.',
          limits: {},
          saved,
          recovered: false,
          signal: controller.signal,
          journal,
        },
        this.#deps(journal),
      );
      this.#saved = journal.saved;
      return this.#resultOf(end);
    } finally {
      given?.removeEventListener('abort', onAbort);
    }
  }

  /** The saved state with the new input: a checkpoint of its own (R79). What a failed run had left open is closed first. */
  #takeUp(items: readonly HistoryItem[]): SavedState {
    const open = this.#saved.position.at === 'tools' ? closingItems(this.#saved.toolCalls, this.#saved.position) : [];
    const agent = this.#saved.position.agents.at(-1) ?? this.name;
    const start = newState(agent, '').position;
    const saved = withCheckpoint(this.#saved, {
      position: { ...start, seenAgents: this.#saved.position.seenAgents },
      turnCount: this.#saved.turnCount,
      state: [],
      responses: [],
      usage: this.#saved.usage,
      toolCalls: [],
      history: { mode: 'append', items: [...open, ...items], dropEphemeral: false },
    });
    this.#saved = saved;
    return saved;
  }

  #resultOf(end: AttemptEnd | undefined): RunResult {
    const { instructions, history, responses, state, turnCount } = this.#saved;
    switch (end?.status) {
      case 'completed':
        return {
          finalOutput: end.output,
          responses: [...responses],
          turnCount,
          runState: {
            instructions,
            history: withoutInternalInJson([...history]),
            responses: [...responses],
            turnCount,
            shimState: new LiveState(state).frozen(),
          },
        };
      case 'failed':
        if (end.thrown instanceof RunError || end.thrown instanceof ShimCleanupError) throw end.thrown;
        throw new RunError(end.error.code, end.error.message, { details: end.error, cause: end.thrown });
      case 'waiting':
        throw new RunError(
          'tool_outcome',
          'The run waits for a decision; an agent in code has nobody to ask. Use the server, or do not gate its tools.',
        );
      case 'cancelled':
      case undefined:
        throw new RunCancelledError();
    }
  }

  get #clock(): Clock {
    return this.#options.clock ?? systemClock;
  }

  #deps(journal: MemoryJournal): LoopDeps {
    let ids = 0;
    const prefix = `${this.name}-${this.#runs}-${Math.random().toString(36).slice(2, 8)}`;
    const loop = {
      models: { resolve: (id: string) => this.#model(id) },
      clock: this.#clock,
      digest: fnvDigest,
      log: this.#options.log ?? silentLog,
      hostHooks: this.#options.hooks ?? [],
      modelIdleTimeoutMs: this.#options.modelIdleTimeoutMs ?? 60_000,
      modelMaxRetries: this.#options.modelMaxRetries ?? 2,
      newId: () => `${prefix}-${(ids += 1)}`,
      random: Math.random,
      agent: (name: string) => this.#find(name),
    };
    const { metadata = {}, dataDir = '.' } = this.#options;
    const delegation = new LocalDelegation({
      loop,
      metadata,
      dataDir,
      note: (event) => {
        journal.note(event);
      },
    });
    return { ...loop, spawn: async (parent, request, signal) => delegation.spawn(parent, request, signal) };
  }

  /** This agent and all that it can hand over to or run, directly or not. */
  #family(seen = new Set<DefaultAgent>()): Set<DefaultAgent> {
    if (seen.has(this)) return seen;
    seen.add(this);
    for (const agent of [...(this.#options.handoffs ?? []), ...(this.#options.agents ?? [])]) agent.#family(seen);
    return seen;
  }

  #find(name: string): AgentInstance {
    for (const agent of this.#family()) if (agent.name === name) return agent.#instance;
    throw new RunError('internal', `There is no agent ${JSON.stringify(name)} to hand over to.`);
  }

  #model(id: string): ModelHandle {
    for (const agent of this.#family()) {
      const { model, models } = agent.#options;
      if (typeof model === 'string') {
        if (models !== undefined && model === id) return models.resolve(id);
      } else if (agent.#instance.descriptor.model === id) return 'failureOf' in model ? model : handleOf(model);
    }
    if (this.#options.models !== undefined) return this.#options.models.resolve(id);
    throw new RunError('model_error', `No model source was given to resolve ${JSON.stringify(id)}.`);
  }
}

/** A bare language model as a handle: its errors are taken as they come. */
export function handleOf(
  languageModel: LanguageModelV3,
  id = `${languageModel.provider}/${languageModel.modelId}`,
): ModelHandle {
  return {
    id,
    languageModel,
    nativeStructuredOutput: false,
    failureOf: (thrown) =>
      thrown instanceof ModelCallError
        ? thrown
        : new ModelCallError(
            { code: 'model_error', message: messageOf(thrown), retryable: false, provider: languageModel.provider },
            thrown,
          ),
  };
}

/** Two shims of one name would share their state (R3). @throws InvalidShimError naming both positions */
function assertOwnNames(shims: readonly Shim[]): void {
  shims.forEach(({ name }, index) => {
    const first = shims.findIndex((shim) => shim.name === name);
    if (first < index)
      throw new InvalidShimError(
        `The shims at positions ${first} and ${index} have the same name ${JSON.stringify(name)}; create one of them with another.`,
      );
  });
}
