import {
  BoundShim,
  type HistoryItem,
  isInternalMessage,
  kindOf,
  type ModelResponse,
  type PreparedTurn,
  type RunContext,
  type RunScope,
  type RunState,
  renderItem,
  Shim,
  type ShimBindingContext,
  type ToolResultPart,
  z,
} from 'shimline/shims';
import { type Bounds, boundsOf, limitIn } from './bounds.js';
import { type Compactor, modelCompactor } from './compactor.js';
import { type CompactionConfig, compactionConfig } from './config.js';
import { Meter } from './meter.js';
import { digestOf, outputText, shortened, summaryItem, summaryText } from './summary.js';
import { type Cut, cutHistory, pairedItems, trimResults, type Unit, unitsOf } from './units.js';

const stateSchema = z.object({
  /** Digest of the summary that stands in the history. */
  summary: z.string().default(''),
  /** Compactions in a row of this run after which the request was still not below the trigger. */
  attempts: z.int().default(0),
  /** Whether this run was told already that nothing can be gained. */
  told: z.boolean().default(false),
  /** How many responses there were at the last compaction: the usage of older ones is that of a longer history. */
  responses: z.int().default(0),
  /** Context windows that providers have named when they were exceeded, by model. */
  windows: z.record(z.string(), z.int().positive()).default({}),
});
type CompactionState = z.output<typeof stateSchema>;

/** No summary could be made, or none that helps, and the config says that the run fails then. */
export class CompactionError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'CompactionError';
  }
}

/** Replaces the older part of a history by a summary before a request gets too long, or when the provider says that it was. */
export class CompactionShim extends Shim {
  readonly name: string;
  readonly config: CompactionConfig;
  readonly compactor: Compactor;
  override readonly stateDefinition = { schema: stateSchema, version: 1 };

  /** @param options.compactor makes the summaries, in place of a call of `config.model` with `config.prompt` */
  constructor(
    config: z.input<typeof compactionConfig> = {},
    options: { readonly name?: string; readonly compactor?: Compactor } = {},
  ) {
    super();
    this.name = options.name ?? 'compaction';
    this.config = compactionConfig.parse(config);
    this.compactor = options.compactor ?? modelCompactor(this.config);
    const { timeoutMs } = this.config;
    this.timeouts = { prepareTurn: timeoutMs, onContextExceeded: timeoutMs };
  }

  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    const bound = await super.bind(context);
    return context.toolSourceBindings.length > 0 ? bound : new CompactionSession(this, context.task.model);
  }
}

type Trigger = 'tokens' | 'ratio' | 'context_exceeded';

/** How long the request is, and what that is known from. */
interface Measure {
  readonly tokens: number;
  readonly source: 'usage' | 'estimate';
}

/** A request in numbers: what it is to be brought below, and what of it no compaction can change. */
interface Plan {
  readonly trigger: Trigger;
  readonly bounds: Bounds;
  readonly before: Measure;
  /** Tokens that the request should have at most. */
  readonly target: number;
  /** Instructions and tools. */
  readonly overhead: number;
  /** Tokens that the folded part must have for a summary to be worth its call. */
  readonly worth: number;
  readonly keepTokens: number;
  readonly requestTokens: number;
  /** Tool results are shortened where the request would have more tokens than this, and none to less than `smallestResult`. */
  readonly limit: number;
  readonly smallestResult: number;
}

/** A tool result is not cut to less than this. */
const SMALLEST_RESULT = 200;
/** A usage below this part of what we estimate is not that of the whole request. */
const BELIEVABLE = 0.25;

class CompactionSession extends BoundShim {
  readonly #shim: CompactionShim;
  readonly #model: string;
  #meter: Promise<Meter> | undefined;

  constructor(shim: CompactionShim, model: string) {
    super();
    this.#shim = shim;
    this.#model = model;
  }

  override onRunStart(_state: RunState, _transientState: RunContext, run: RunScope): void {
    const state = run.state as CompactionState;
    if (state.attempts > 0) state.attempts = 0;
    if (state.told) state.told = false;
  }

  override async prepareTurn(turn: PreparedTurn): Promise<void> {
    if (turn.isRebuilt) return;
    const meter = await this.#loadMeter();
    const before = measure(turn, meter);
    const bounds = this.#bounds(turn);
    const { threshold } = bounds;
    if (before.tokens < threshold) return;
    const { triggerTokens, keepTokens } = this.#shim.config;
    await this.#compact(turn, meter, {
      trigger: triggerTokens === undefined ? 'ratio' : 'tokens',
      bounds,
      before,
      target: threshold,
      overhead: overheadTokens(turn, meter),
      worth: Math.max(1, Math.floor(threshold * 0.05)),
      keepTokens: keepTokens ?? Math.floor(threshold / 4),
      requestTokens: bounds.requestTokens,
      limit: Math.floor(bounds.window * 0.95),
      smallestResult: Math.max(SMALLEST_RESULT, Math.floor(threshold * 0.05)),
    });
  }

  override async onContextExceeded(turn: PreparedTurn, error: Error): Promise<boolean> {
    const meter = await this.#loadMeter();
    const named = limitIn(error.message);
    if (named !== undefined) (turn.state as CompactionState).windows[this.#model] = named;
    const bounds = this.#bounds(turn);
    const overhead = overheadTokens(turn, meter);
    const history = meter.items(turn.runState.history);
    const target = Math.floor(Math.min(bounds.threshold, overhead + history * 0.5));
    return this.#compact(turn, meter, {
      trigger: 'context_exceeded',
      bounds,
      before: measure(turn, meter),
      target,
      overhead,
      worth: 1,
      // Whatever the window is said to be, this was too much: less than half of it stays.
      keepTokens: Math.floor(Math.min(this.#shim.config.keepTokens ?? Infinity, history * 0.3)),
      requestTokens: Math.min(bounds.requestTokens, Math.floor((overhead + history) * 0.6)),
      limit: target,
      smallestResult: SMALLEST_RESULT,
    });
  }

  override onModelResponse(turn: PreparedTurn, response: ModelResponse): Promise<void> | void {
    const state = turn.state as CompactionState;
    if (state.attempts > 0) return this.#judge(turn, state, response);
  }

  /** Whether the request of this turn was below the trigger after all: then the compactions before it have helped. */
  async #judge(turn: PreparedTurn, state: CompactionState, response: ModelResponse): Promise<void> {
    const meter = await this.#loadMeter();
    const sent = overheadTokens(turn, meter) + meter.items(turn.runState.history) - meter.message(response.message);
    const { inputTokens } = response.usage;
    if ((inputTokens >= sent * BELIEVABLE ? inputTokens : sent) < this.#bounds(turn).threshold) state.attempts = 0;
  }

  #bounds(turn: PreparedTurn): Bounds {
    return boundsOf(this.#model, this.#shim.config, (turn.state as CompactionState).windows[this.#model]);
  }

  /** One for the session: what it has counted it need not count again. */
  async #loadMeter(): Promise<Meter> {
    this.#meter ??= Meter.load(this.#shim.config.mediaTokens);
    return this.#meter;
  }

  /** @returns whether the history is shorter now @throws CompactionError where the config says so */
  async #compact(turn: PreparedTurn, meter: Meter, plan: Plan): Promise<boolean> {
    const state = turn.state as CompactionState;
    const { history } = turn.runState;
    const units = unitsOf(history, (item) => isOwnSummary(item, state));
    const tokensOf = (unit: Unit): number => meter.items(unit.items);
    const { internalMessages, maxAttempts } = this.#shim.config;
    const room = plan.target - plan.overhead - plan.bounds.summaryTokens;
    const keepTokens = Math.max(0, Math.min(plan.keepTokens, room));
    const cut = cutHistory(units, { keepTokens, tokensOf, internalMessages });
    const folded = cut.folded.reduce((sum, unit) => sum + tokensOf(unit), 0);
    if (folded < plan.worth) {
      if (this.#trimOnly(turn, meter, plan)) return true;
      this.#tell(turn, state, plan, 'there is nothing older that a summary would make shorter');
      return false;
    }
    if (state.attempts >= maxAttempts) {
      const reason = `${state.attempts} compactions in a row did not bring the request below ${plan.bounds.threshold} tokens`;
      this.#tell(turn, state, plan, reason);
      if (plan.trigger === 'context_exceeded') return this.#trimOnly(turn, meter, plan);
      if (this.#raises) throw new CompactionError(`${reason}.`);
      return false;
    }
    state.attempts += 1;
    const summary = await this.#summarise(turn, meter, plan, cut, folded);
    if (summary === undefined) return this.#trimOnly(turn, meter, plan);
    const item = summaryItem(summary);
    const recent = this.#trimmed(meter, plan, [item, ...cut.spared], cut.recent);
    const items = [item, ...cut.spared, ...recent.items];
    turn.replaceHistory(items);
    state.summary = digestOf(item.content as string);
    this.#done(turn, meter, plan, {
      foldedMessages: cut.folded.length,
      keptMessages: items.length - 1,
      trimmedResults: recent.trimmed,
    });
    return true;
  }

  /** Makes the summary; undefined where none could be made that helps, and the run goes on without. */
  async #summarise(
    turn: PreparedTurn,
    meter: Meter,
    plan: Plan,
    cut: Cut,
    folded: number,
  ): Promise<string | undefined> {
    const previous = cut.previous === undefined ? undefined : summaryText(cut.previous);
    const tokensOf = (text: string): number => meter.text(text);
    const compactor = turn.transientState.get<Compactor>(`${this.#shim.name}:compactor`) ?? this.#shim.compactor;
    try {
      const summary = await compactor({
        messages: cut.folded.flatMap(({ items }) =>
          items.filter((each) => !isInternalMessage(each)).flatMap((each) => renderItem(each)),
        ),
        previous,
        summaryTokens: plan.bounds.summaryTokens,
        requestTokens: Math.max(256, plan.requestTokens),
        signal: turn.signal,
        tokensOf,
        callModel: async (request) => turn.callModel(request, { purpose: 'compaction' }),
      });
      if (typeof summary !== 'string' || summary.trim() === '') throw new CompactionError('The summary is empty.');
      const size = tokensOf(summary);
      const gained = folded + (previous === undefined ? 0 : tokensOf(previous)) - size;
      if (gained < folded * 0.1 || size > plan.bounds.summaryTokens * 2)
        throw new CompactionError(
          `The summary has ${size} tokens in place of ${folded}, where ${plan.bounds.summaryTokens} were asked for: that is none.`,
        );
      return summary.trim().toWellFormed();
    } catch (error) {
      if (turn.signal.aborted) throw error;
      const { attempts } = turn.state as CompactionState;
      const reason = error instanceof Error ? error.message : String(error);
      turn.emit('compaction.failed', { trigger: plan.trigger, attempt: attempts, before: plan.before.tokens, reason });
      turn.log.warn({ runId: turn.runId, trigger: plan.trigger, attempt: attempts, reason }, 'compaction failed');
      if (plan.trigger !== 'context_exceeded' && this.#raises)
        throw new CompactionError(`The history could not be compacted: ${reason}`, { cause: error });
      return undefined;
    }
  }

  get #raises(): boolean {
    return this.#shim.config.onFailure === 'raise';
  }

  /** Where there is nothing to fold, a tool result that alone is too big can still be shortened. */
  #trimOnly(turn: PreparedTurn, meter: Meter, plan: Plan): boolean {
    const units = unitsOf(turn.runState.history, () => false);
    const { items, trimmed } = this.#trimmed(meter, plan, [], units.flatMap(pairedItems));
    if (trimmed === 0) return false;
    turn.replaceHistory(items);
    this.#done(turn, meter, plan, { foldedMessages: 0, keptMessages: items.length, trimmedResults: trimmed });
    return true;
  }

  #trimmed(
    meter: Meter,
    plan: Plan,
    head: readonly HistoryItem[],
    items: readonly HistoryItem[],
  ): { readonly items: readonly HistoryItem[]; readonly trimmed: number } {
    const rest = plan.limit - plan.overhead - meter.items(head);
    const tokensOf = (result: ToolResultPart): number => meter.message({ role: 'tool', content: [result] });
    const fits = (list: readonly HistoryItem[]): boolean => meter.items(list) <= rest;
    const trimmed = trimResults(items, {
      fits,
      tokensOf,
      shorten: (result, tokens) => shortenedResult(result, tokens, (text) => meter.text(text)),
      floor: plan.smallestResult,
    });
    // Where no provider has complained yet, nothing is lost for a gain that would not be enough.
    const enough = plan.trigger === 'context_exceeded' || fits(trimmed.items);
    return enough ? trimmed : { items, trimmed: 0 };
  }

  #done(turn: PreparedTurn, meter: Meter, plan: Plan, counts: Readonly<Record<string, number>>): void {
    const state = turn.state as CompactionState;
    state.responses = turn.runState.responses.length;
    const after = plan.overhead + meter.items(turn.runState.history);
    const { tokens, source } = plan.before;
    const facts = {
      trigger: plan.trigger,
      threshold: plan.bounds.threshold,
      contextWindow: plan.bounds.window,
      before: tokens,
      beforeSource: source,
      after,
      ...counts,
    };
    turn.emit('compaction', facts);
    turn.log.info({ runId: turn.runId, model: this.#model, ...facts }, 'history compacted');
  }

  /** Says once a run why nothing is done. */
  #tell(turn: PreparedTurn, state: CompactionState, plan: Plan, reason: string): void {
    if (state.told) return;
    state.told = true;
    turn.emit('compaction.skipped', {
      trigger: plan.trigger,
      threshold: plan.bounds.threshold,
      contextWindow: plan.bounds.window,
      before: plan.before.tokens,
      overhead: plan.overhead,
      reason,
    });
    turn.log.warn(
      { runId: turn.runId, trigger: plan.trigger, before: plan.before.tokens, reason },
      'compaction skipped',
    );
  }
}

function isOwnSummary(item: HistoryItem, state: CompactionState): boolean {
  if (state.summary === '' || summaryText(item) === undefined) return false;
  const [message] = renderItem(item);
  return typeof message?.content === 'string' && digestOf(message.content) === state.summary;
}

function overheadTokens(turn: PreparedTurn, meter: Meter): number {
  return meter.instructions(turn.runState.instructions) + meter.tools(turn.tools);
}

/** The provider's usage of the last response and an estimate of what came since; where there is none, an estimate of it all. */
function measure(turn: PreparedTurn, meter: Meter): Measure {
  const { history, responses } = turn.runState;
  const estimate = overheadTokens(turn, meter) + meter.items(history);
  const last = responses.at(-1);
  if (last === undefined || responses.length <= (turn.state as CompactionState).responses)
    return { tokens: estimate, source: 'estimate' };
  const index = history.findLastIndex(
    (item) => kindOf(item) === 'response' && (item as ModelResponse).modelCallId === last.modelCallId,
  );
  if (index < 0) return { tokens: estimate, source: 'estimate' };
  const since = meter.items(history.slice(index + 1));
  const { inputTokens, outputTokens, reasoningTokens } = last.usage;
  // A test double's or a gateway's made-up figure must not keep a full context from being seen.
  const sent = estimate - meter.items(history.slice(index));
  if (inputTokens <= 0 || inputTokens < sent * BELIEVABLE) return { tokens: estimate, source: 'estimate' };
  return { tokens: inputTokens + Math.max(0, outputTokens - reasoningTokens) + since, source: 'usage' };
}

/** A result of about so many tokens: its text cut in the middle, its media named only. */
function shortenedResult(result: ToolResultPart, tokens: number, tokensOf: (text: string) => number): ToolResultPart {
  const value = shortened(outputText(result.output), tokens, tokensOf);
  const type = result.output.type.startsWith('error') ? 'error-text' : 'text';
  return { ...result, output: { type, value } };
}
