import { setTimeout as sleep } from 'node:timers/promises';
import {
  BoundShim,
  defineShim,
  ModelCallError,
  type ModelDelta,
  type ModelRequest,
  type ModelResponse,
  type NextModelCall,
  type PreparedTurn,
  RunCancelledError,
  type RunContext,
  type RunScope,
  type RunState,
  Shim,
  type ShimBindingContext,
  ShimError,
  z,
} from 'shimline/shims';

const CODES = [
  'model_error',
  'model_stream_cut',
  'model_idle_timeout',
  'context_exceeded',
  'output_limit',
  'model_behaviour',
] as const;

// A timer that is set to more fires at once.
const milliseconds = z.int().nonnegative().max(2_147_000_000);
const config = z.strictObject({
  models: z
    .array(
      z.union([
        z.string().min(1),
        z.strictObject({
          model: z.string().min(1),
          modelArgs: z
            .record(z.string(), z.json())
            .meta({ description: "Arguments of its calls, in place of the agent's." }),
        }),
      ]),
    )
    .default([])
    .meta({ description: "Ids of the models that take over, in this order after the agent's own; of any provider." }),
  codes: z
    .array(z.enum(CODES))
    .min(1)
    .default(['model_error', 'model_stream_cut', 'model_idle_timeout'])
    .meta({ description: 'The failures that another model takes over after.' }),
  statuses: z
    .array(z.int().min(400).max(599))
    .optional()
    .meta({ description: 'Of the failures with an HTTP status, only those with one of these.' }),
  afterDeltas: z.boolean().default(false).meta({
    description: 'Take over also where part of an answer was shown already; clients are told that it is replaced.',
  }),
  retries: z.int().nonnegative().max(10).default(1).meta({
    description:
      'Further tries of one model after a passing failure, before the next one; in place of the server setting.',
  }),
  longestPauseMs: milliseconds
    .default(10_000)
    .meta({ description: 'A model that asks for a longer pause is not waited for: the next one takes over at once.' }),
  rounds: z.int().positive().max(10).default(1).meta({ description: 'How often the whole list is tried.' }),
  roundPauseMs: milliseconds
    .default(2_000)
    .meta({ description: 'Pause before the second round, with jitter; it doubles from round to round.' }),
  longestRoundPauseMs: milliseconds
    .default(60_000)
    .meta({ description: 'The longest pause between rounds; if every model asks for a longer one, the call fails.' }),
  sticky: z.boolean().default(false).meta({
    description: 'Stay with the model that took over for the rest of the run; else each call begins with the own one.',
  }),
});
type Config = z.output<typeof config>;

interface Choice {
  readonly model: string;
  readonly modelArgs?: Readonly<Record<string, unknown>>;
}

interface Failed {
  readonly choice: Choice;
  readonly failure: ModelCallError;
}

const state = z.object({ model: z.string().nullable().default(null) });
type State = z.output<typeof state>;

/** Lets other models take over where the agent's fails. Each takeover is a call of its own in the events. */
export default defineShim({
  name: 'retry-fallback',
  description: 'Has other models take over when a model call fails.',
  config,
  state,
  create: (settings, { name }) => new RetryFallbackShim(name, settings),
});

class RetryFallbackShim extends Shim {
  readonly name: string;
  readonly #config: Config;

  constructor(name: string, settings: Config) {
    super();
    this.name = name;
    this.#config = settings;
  }

  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    const bound = await super.bind(context);
    return context.toolSourceBindings.length > 0 ? bound : new FallbackSession(this.#config);
  }
}

class FallbackSession extends BoundShim {
  readonly #config: Config;
  /** Whether something of the call in progress was shown. */
  #shown = false;

  constructor(settings: Config) {
    super();
    this.#config = settings;
  }

  override onRunStart(_state: RunState, _transientState: RunContext, run: RunScope): void {
    // After a crash or a wait it is still the same run.
    if (!run.recovered) (run.state as State).model = null;
  }

  override transformDelta(_turn: PreparedTurn, delta: ModelDelta): ModelDelta {
    this.#shown ||= delta.text !== '';
    return delta;
  }

  override async wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    const { retries: maxRetries, longestPauseMs } = this.#config;
    const kept = turn.state as State;
    this.#shown = false;
    let choices = this.#choices(request.model, kept.model);
    let failed: ModelCallError | undefined;
    for (let round = 1; ; round += 1) {
      const passing: Failed[] = [];
      for (const [index, choice] of choices.entries()) {
        try {
          const response = await next({ ...request, ...choice, retry: { maxRetries, longestPauseMs } });
          this.#answered(turn, request.model, choice.model);
          return response;
        } catch (error) {
          const failure = this.#judge(turn, error, choice.model === request.model);
          if (failure?.retryable === true) passing.push({ choice, failure });
          failed = failure ?? failed;
          const to = choices[index + 1]?.model;
          if (to !== undefined) this.#tell(turn, { from: choice.model, to, error });
        }
      }
      const pauseMs = this.#pause(round, passing);
      if (pauseMs === undefined) throw failed ?? new Error('None of the models is there.');
      choices = passing.map(({ choice }) => choice);
      this.#tell(turn, { from: request.model, to: choices[0]?.model ?? '', error: failed, pauseMs });
      await sleep(pauseMs, undefined, { signal: turn.signal });
    }
  }

  /** The agent's own model and those that may take over; from the one on that was stayed with. */
  #choices(own: string, stayed: string | null): readonly Choice[] {
    const others = this.#config.models.map((entry) => (typeof entry === 'string' ? { model: entry } : entry));
    const all = [{ model: own }, ...others].filter(
      ({ model }, index, list) => list.findIndex((each) => each.model === model) === index,
    );
    const from = this.#config.sticky
      ? Math.max(
          0,
          all.findIndex(({ model }) => model === stayed),
        )
      : 0;
    return [...all.slice(from), ...all.slice(0, from)];
  }

  /**
   * What another model may take over after; a fallback that is not there is passed over.
   * @throws the error itself where no other model helps, above all when the run was stopped
   */
  #judge(turn: PreparedTurn, error: unknown, own: boolean): ModelCallError | undefined {
    if (turn.signal.aborted || error instanceof RunCancelledError || error instanceof ShimError) throw error;
    if (!(error instanceof ModelCallError)) {
      if (own) throw error;
      return undefined;
    }
    const { codes, statuses, afterDeltas } = this.#config;
    const { status } = error.details;
    const wanted = codes.some((code) => code === error.code);
    const ofStatus = statuses === undefined || typeof status !== 'number' || statuses.includes(status);
    if (!wanted || !ofStatus || (this.#shown && !afterDeltas)) throw error;
    return error;
  }

  /** Back-off with jitter over its upper half, and no sooner than the first of the models asked for. Undefined: no other round. */
  #pause(round: number, passing: readonly Failed[]): number | undefined {
    const { rounds, roundPauseMs, longestRoundPauseMs } = this.#config;
    if (round >= rounds || passing.length === 0) return undefined;
    const asked = Math.min(...passing.map(({ failure }) => failure.retryAfterMs ?? 0));
    if (asked > longestRoundPauseMs) return undefined;
    const ceiling = Math.min(longestRoundPauseMs, roundPauseMs * 2 ** (round - 1));
    return Math.max(asked, Math.round(ceiling / 2 + (Math.random() * ceiling) / 2));
  }

  #answered(turn: PreparedTurn, own: string, model: string): void {
    const kept = turn.state as State;
    if (this.#config.sticky) kept.model = model === own ? null : model;
    if (model !== own) turn.emit('fallback.answered', { model, insteadOf: own });
  }

  #tell(
    turn: PreparedTurn,
    {
      from,
      to,
      error,
      pauseMs,
    }: { readonly from: string; readonly to: string; readonly error: unknown; readonly pauseMs?: number },
  ): void {
    const { code, details } = (error ?? {}) as {
      readonly code?: unknown;
      readonly details?: { readonly status?: unknown };
    };
    const facts = {
      from,
      to,
      code: typeof code === 'string' ? code : 'error',
      ...(typeof details?.status === 'number' ? { status: details.status } : {}),
      ...(pauseMs === undefined ? {} : { pauseMs }),
    };
    turn.emit('fallback.switched', { ...facts, afterDeltas: this.#shown });
    turn.log.warn(facts, 'another model takes over');
  }
}
