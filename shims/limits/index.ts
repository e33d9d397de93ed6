import {
  BoundShim,
  BudgetReachedError,
  defineShim,
  type GatedCall,
  LimitExceededError,
  type ModelRequest,
  type ModelResponse,
  type NextModelCall,
  type NextToolCall,
  type PreparedTurn,
  type RunContext,
  type RunnerHooks,
  type RunResult,
  type RunScope,
  type RunState,
  Shim,
  type ShimBindingContext,
  type ToolOutcome,
  z,
} from 'shimline/shims';
import {
  type Budget,
  type CallKind,
  configSchema,
  costOf,
  increase,
  type LimitsConfig,
  type Reached,
  reachedIn,
  tokensOf,
} from './config.js';
import { type Account, type Estimate, Ledger } from './ledger.js';

const count = z.int().nonnegative().default(0);
const tokensSchema = z.object({ input: count, cached: count, output: count });

const stateSchema = z.object({
  /** The run that this was counted for: a fork counts its own. */
  runId: z.string().default(''),
  modelCalls: count,
  toolCalls: count,
  cost: z.number().default(0),
  wallTimeMs: count,
  /** The tokens of the run that are in the cost. */
  priced: tokensSchema.default({ input: 0, cached: 0, output: 0 }),
  /** The run's own limit of tokens when it began; a higher one later was meant to raise ours too. */
  startTokens: z.number().nullable().default(null),
});
type Counts = z.output<typeof stateSchema>;

/** Tokens that an answer without a bound counts for while it is under way. */
const USUAL_OUTPUT = 1000;

/** Not held twice for one call by two instances of the shim, e.g. an agent's own and the guard of the one before it. */
const heldKey = (shim: string, call: string): string => `${shim}:held:${call}`;

class LimitsSession extends BoundShim {
  readonly #shim: string;
  readonly #config: LimitsConfig;
  readonly #task: ShimBindingContext['task'];
  readonly #perDay: boolean;
  readonly #held = new Set<string>();
  #ledger: Ledger | undefined;
  #counts: Counts = stateSchema.parse({});
  /** When this attempt began, and how long the earlier ones were at work. */
  #startedAt = 0;
  #earlierMs = 0;
  /** Requests to a model so far, whoever had them made. */
  #requests = 0;
  /** The model that was asked last, and the turn while a call of it is under way. */
  #model: string;
  #turn: PreparedTurn | undefined;

  constructor(shim: string, config: LimitsConfig, task: ShimBindingContext['task']) {
    super();
    this.#shim = shim;
    this.#config = config;
    this.#task = task;
    this.#model = task.model;
    this.#perDay = Object.keys(config.perDay).length > 0;
  }

  override runnerHooks(): readonly RunnerHooks[] {
    return [
      {
        onLlmStart: (_task, { model }) => {
          this.#requests += 1;
          // What the request before this one came to is known by now, and may have been another model's.
          if (this.#turn !== undefined) this.#spend(this.#turn, undefined, NONE);
          this.#model = model;
        },
      },
    ];
  }

  override onRunStart(_state: RunState, _transientState: RunContext, run: RunScope): void {
    const saved = stateSchema.parse(run.state);
    const own = saved.runId === run.runId;
    this.#counts = own
      ? saved
      : { ...stateSchema.parse({}), runId: run.runId, startTokens: run.limits.maxTotalTokens ?? null };
    this.#startedAt = Date.now();
    this.#earlierMs = this.#counts.wallTimeMs;
    this.#keep(run);
    if (!this.#perDay) return;
    this.#ledger = Ledger.in(run.dataDir);
    const { runId: id, usage } = run;
    this.#ledger.begin(this.#shim, { id, parent: this.#task.parentRunId, used: tokensOf(usage) });
  }

  override async wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    const estimate = this.#estimate(request);
    this.#model = this.#task.model;
    this.#spend(turn, undefined, NONE);
    const call = this.#begin(turn, estimate, 'model');
    const before = this.#requests;
    this.#turn = turn;
    try {
      return await next(request);
    } finally {
      this.#turn = undefined;
      const modelCalls = this.#requests - before;
      this.#counts.modelCalls += modelCalls;
      this.#end(turn, call, { modelCalls, toolCalls: 0 });
      this.#keep(turn);
    }
  }

  override async wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    const held = this.#begin(turn, { kind: 'tool', tokens: 0, cost: 0, bounded: true }, call.toolCallId);
    this.#counts.toolCalls += 1;
    this.#keep(turn);
    try {
      return await next(call);
    } finally {
      this.#end(turn, held, { modelCalls: 0, toolCalls: 1 });
    }
  }

  override onRunEnd(_result: RunResult | null, _transientState: RunContext, run: RunScope): void {
    this.#takeUp(run);
    this.#spend(run, undefined, NONE);
    this.#keep(run);
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    this.#ledger?.release(this.#held);
  }

  /** @throws BudgetReachedError, LimitExceededError, by the config */
  #begin(turn: PreparedTurn, estimate: Estimate, call: string): Held {
    this.#assertLeft(turn, estimate.kind);
    const key = heldKey(this.#shim, call);
    const other = turn.transientState.get<string>(key);
    if (this.#ledger === undefined) return { key, id: undefined, held: false };
    const { id, reached } = this.#ledger.reserve(this.#account(turn), turn.runId, estimate, this.#config.perDay, other);
    if (reached !== undefined) throw this.#stop('perDay', reached);
    if (id === undefined) return { key, id, held: true };
    this.#held.add(id);
    turn.transientState.set(key, id);
    return { key, id, held: false };
  }

  #end(turn: PreparedTurn, { key, id, held }: Held, calls: Calls): void {
    this.#spend(turn, id, held ? NONE : calls);
    if (id === undefined) return;
    this.#held.delete(id);
    turn.transientState.delete(key);
  }

  /** Books what was used since the last look, by the model that was asked last. */
  #spend(run: RunScope, id: string | undefined, calls: Calls): void {
    const model = this.#model;
    const used = tokensOf(run.usage);
    this.#ledger?.settle(this.#account(run), { id: run.runId, used }, id, calls, (tokens) =>
      costOf(tokens, model, this.#config),
    );
    this.#counts.cost += costOf(increase(used, this.#counts.priced), model, this.#config);
    this.#counts.priced = used;
  }

  #account({ key }: RunScope): Account {
    return { shim: this.#shim, key: key ?? '' };
  }

  /**
   * A quarter of a token per character of what is sent, and all of the answer that was asked for. How long one without such a bound
   * gets nobody knows: it counts for a usual one, and for no less than the ledger has seen today.
   *
   * @throws Error for a model without a price
   */
  #estimate({ model, messages, tools, modelArgs }: ModelRequest): Estimate {
    const { perDay } = this.#config;
    const counted = perDay.tokens !== undefined || perDay.cost !== undefined;
    const sent = counted ? JSON.stringify([messages, tools?.tools]).length : 0;
    const most = modelArgs?.maxOutputTokens;
    const bounded = typeof most === 'number';
    const input = Math.ceil(sent / 4);
    const output = counted ? (bounded ? most : USUAL_OUTPUT) : 0;
    const cost = costOf({ input, cached: 0, output }, model, this.#config);
    return { kind: 'model', tokens: input + output, cost, bounded };
  }

  #assertLeft(turn: PreparedTurn, kind: CallKind): void {
    const { modelCalls, toolCalls, cost } = this.#counts;
    const used = { modelCalls, toolCalls, cost, tokens: turn.usage.totalTokens, wallTimeMs: this.#atWorkMs() };
    const reached = reachedIn(used, kind, this.#limits(turn));
    if (reached !== undefined) throw this.#stop('perRun', reached);
  }

  /** Our limits, with more tokens where a resume has raised the run's own limit of them. */
  #limits(turn: PreparedTurn): Budget {
    const { perRun } = this.#config;
    const { maxTotalTokens } = turn.limits;
    if (perRun.tokens === undefined || maxTotalTokens === undefined) return perRun;
    const raised = maxTotalTokens > (this.#counts.startTokens ?? 0);
    return raised ? { ...perRun, tokens: Math.max(perRun.tokens, maxTotalTokens) } : perRun;
  }

  #stop(of: 'perRun' | 'perDay', { measure, allowed, used }: Reached): Error {
    const limit = `${of}.${measure}`;
    if (this.#config.onReached === 'fail') return new LimitExceededError(limit, allowed, used);
    const whose = of === 'perRun' ? 'The run has' : 'The runs of this key have today (UTC)';
    return new BudgetReachedError(
      `${whose} reached the limit ${limit} of the shim ${this.#shim}: ${used} of ${allowed} used. Resume it with a raised limit${of === 'perDay' ? ', or tomorrow' : ''}.`,
    );
  }

  #atWorkMs(): number {
    return this.#config.perRun.wallTimeMs === undefined ? 0 : this.#earlierMs + Date.now() - this.#startedAt;
  }

  /** After a handoff another session has gone on counting. */
  #takeUp(run: RunScope): void {
    const saved = stateSchema.parse(run.state);
    const mine = this.#counts;
    if (saved.runId !== run.runId || saved.modelCalls + saved.toolCalls <= mine.modelCalls + mine.toolCalls) return;
    this.#counts = { ...saved, wallTimeMs: mine.wallTimeMs };
  }

  /** The session's counts are the truth while it lasts, also where a turn's writes are discarded. */
  #keep(run: RunScope): void {
    this.#counts.wallTimeMs = this.#atWorkMs();
    Object.assign(run.state as Counts, structuredClone(this.#counts));
  }
}

interface Held {
  readonly key: string;
  readonly id: string | undefined;
  /** Another instance of the shim holds it. */
  readonly held: boolean;
}
interface Calls {
  readonly modelCalls: number;
  readonly toolCalls: number;
}

const NONE: Calls = { modelCalls: 0, toolCalls: 0 };

class Limits extends Shim {
  readonly name: string;
  readonly config: LimitsConfig;

  constructor(config: LimitsConfig, name: string) {
    super();
    this.name = name;
    this.config = config;
  }

  override bind(context: ShimBindingContext): BoundShim | Promise<BoundShim> {
    const { task, toolSourceBindings } = context;
    const own = toolSourceBindings.find(({ source }) => source === this);
    if (own !== undefined) return own.bind(context);
    return toolSourceBindings.length > 0 ? new BoundShim() : new LimitsSession(this.name, this.config, task);
  }
}

export default defineShim({
  name: 'limits',
  description: "Limits what a run, and what a key's runs in a day, may use of calls, tokens, money and time.",
  config: configSchema,
  state: stateSchema,
  // A guard: what an agent hands on is limited too.
  inherit: 'always',
  create: (config, { name }) => new Limits(config, name),
});
