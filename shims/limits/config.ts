import { type Usage, z } from 'shimline/shims';

const count = z.int().nonnegative().optional();

const budgetSchema = z.strictObject({
  modelCalls: count.meta({ description: 'Model calls, tries after a passing failure included.' }),
  toolCalls: count.meta({ description: 'Tool calls.' }),
  tokens: count.meta({ description: 'Tokens in and out, of hidden model calls and of child runs too.' }),
  cost: z.number().nonnegative().optional().meta({ description: 'Cost by the price table, in its currency.' }),
  wallTimeMs: count.meta({ description: 'Milliseconds at work; waiting for people and for a free place is none.' }),
});
export type Budget = z.output<typeof budgetSchema>;
type Measure = keyof Budget;
/** What was used of each. */
export type Sums = Readonly<Record<Measure, number>>;
export type CallKind = 'model' | 'tool';

/** A limit that leaves no room for one more call. */
export interface Reached {
  readonly measure: Measure;
  readonly allowed: number;
  readonly used: number;
}

const COUNTS: Readonly<Record<CallKind, readonly Measure[]>> = {
  model: ['modelCalls', 'tokens', 'cost', 'wallTimeMs'],
  tool: ['toolCalls', 'wallTimeMs'],
};

/** The first limit that one more call of this kind would go beyond, or that is used up. */
export function reachedIn(used: Sums, kind: CallKind, limits: Budget): Reached | undefined {
  for (const measure of COUNTS[kind]) {
    const allowed = limits[measure];
    if (allowed !== undefined && used[measure] >= allowed) return { measure, allowed, used: used[measure] };
  }
  return undefined;
}

const price = z.number().nonnegative();
const priceSchema = z.strictObject({
  input: price.meta({ description: 'Per million input tokens.' }),
  cachedInput: price
    .optional()
    .meta({ description: 'Per million of them that came from a cache; as `input` by default.' }),
  output: price.meta({ description: 'Per million output tokens, reasoning included.' }),
});
type Price = z.output<typeof priceSchema>;

export const configSchema = z.strictObject({
  perRun: budgetSchema.default({}).meta({ description: 'What one run may use, over all its attempts.' }),
  perDay: budgetSchema.default({}).meta({
    description: 'What the runs under one API key may use in one day (UTC), together.',
  }),
  prices: z
    .record(z.string(), priceSchema)
    .default({})
    .meta({ description: 'Prices by the beginning of a model’s id, e.g. `anthropic/claude-`; the longest counts.' }),
  onReached: z.enum(['wait', 'fail']).default('wait').meta({
    description: 'Whether a run then waits (reason `budget`) or fails (`limit_exceeded`); both can be resumed.',
  }),
});
export type LimitsConfig = z.output<typeof configSchema>;

/** The kinds of tokens that have prices; `cached` is part of `input`. */
export interface Tokens {
  readonly input: number;
  readonly cached: number;
  readonly output: number;
}

export function tokensOf({ inputTokens, cachedInputTokens, outputTokens }: Usage): Tokens {
  return { input: inputTokens, cached: cachedInputTokens, output: outputTokens };
}

/** What is in `now` and was not in `before`, by kind; never less than nothing. */
export function increase(now: Tokens, before: Tokens): Tokens {
  return {
    input: Math.max(0, now.input - before.input),
    cached: Math.max(0, now.cached - before.cached),
    output: Math.max(0, now.output - before.output),
  };
}

/** @throws Error where a cost is limited and the model has no price: it would go uncounted */
export function costOf(tokens: Tokens, model: string, config: LimitsConfig): number {
  const found = priceOf(model, config);
  if (found === undefined) {
    if (config.perRun.cost === undefined && config.perDay.cost === undefined) return 0;
    throw new Error(`A cost is limited, and the config has no price for the model ${model}.`);
  }
  const { input, output, cachedInput = input } = found;
  return ((tokens.input - tokens.cached) * input + tokens.cached * cachedInput + tokens.output * output) / 1_000_000;
}

function priceOf(model: string, { prices }: LimitsConfig): Price | undefined {
  const prefixes = Object.keys(prices).filter((prefix) => model.startsWith(prefix));
  const [longest] = prefixes.sort((a, b) => b.length - a.length);
  return longest === undefined ? undefined : prices[longest];
}
