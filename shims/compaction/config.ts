import { z } from 'shimline/shims';

/**
 * Tokens that go into one request, by the beginning of a model's id; the longest that fits counts. From the providers' own model
 * pages; where models of a family differ, the smaller one.
 */
const WINDOWS: Readonly<Record<string, number>> = {
  'anthropic/': 200_000,
  'google/': 1_000_000,
  'openai/': 128_000,
  'openai/gpt-4.1': 1_000_000,
  'openai/gpt-5': 272_000,
  'openai/o': 200_000,
  'openai-chat/gpt-4.1': 1_000_000,
  'openai-chat/gpt-5': 272_000,
  'openai-chat/o': 200_000,
};
const DEFAULT_WINDOW = 128_000;

const tokens = z.int().positive();

/** What an agent may write into the config of `compaction`. */
export const compactionConfig = z.strictObject({
  triggerTokens: tokens
    .optional()
    .meta({ description: 'Compact when the request reaches so many tokens; wins over triggerRatio.' }),
  triggerRatio: z
    .number()
    .positive()
    .max(1)
    .default(0.8)
    .meta({ description: 'Compact when the request reaches this part of the context window.' }),
  contextWindow: tokens
    .optional()
    .meta({ description: "The context window of the agent's model, in tokens; wins over contextWindows." }),
  contextWindows: z.record(z.string(), tokens).default({}).meta({
    description: 'Context windows by the beginning of model ids, in addition to the known ones; the longest that fits.',
  }),
  keepTokens: z.int().nonnegative().optional().meta({
    description: 'Tokens of recent history that stay as they are; a quarter of the trigger where nothing is said.',
  }),
  summaryTokens: tokens.default(4000).meta({ description: 'Tokens that a summary may have.' }),
  mediaTokens: tokens
    .default(1600)
    .meta({ description: 'Tokens that an image or a file counts for, whatever its size.' }),
  model: z
    .string()
    .optional()
    .meta({ description: "Id of the model that summarises; the agent's own where nothing is said." }),
  prompt: z
    .string()
    .min(1)
    .optional()
    .meta({ description: 'System prompt of the call that summarises, in place of the built-in one.' }),
  internalMessages: z.enum(['keep', 'drop']).default('keep').meta({
    description:
      'What becomes of older internal messages, which are never summarised; ephemeral ones stay in any case.',
  }),
  onFailure: z
    .enum(['raise', 'skip'])
    .default('skip')
    .meta({ description: 'When no summary can be made: fail the run, or go on with the history as it is.' }),
  maxAttempts: z
    .int()
    .positive()
    .default(3)
    .meta({ description: 'Compactions in a row that a run may try without getting below the trigger.' }),
  timeoutMs: z.int().positive().default(600_000).meta({ description: 'Milliseconds that one compaction may take.' }),
});

export type CompactionConfig = z.output<typeof compactionConfig>;

/** The context window of a model. */
export function windowOf(model: string, config: CompactionConfig): number {
  const table = { ...WINDOWS, ...config.contextWindows };
  const [longest] = Object.keys(table)
    .filter((prefix) => model.startsWith(prefix))
    .sort((a, b) => b.length - a.length);
  return longest === undefined ? DEFAULT_WINDOW : (table[longest] ?? DEFAULT_WINDOW);
}
