import type { LanguageModelV3 } from '@ai-sdk/provider';
import { z } from 'zod';
import type { ModelCallError } from './run-errors.js';

/** Tokens, summed over a run and all its model calls, failed ones and sub-agents included. */
export const UsageSchema = z.object({
  inputTokens: z.number(),
  outputTokens: z.number(),
  totalTokens: z.number(),
  cachedInputTokens: z.number(),
  reasoningTokens: z.number(),
});
export type Usage = z.infer<typeof UsageSchema>;

export const NO_USAGE: Usage = Object.freeze({ inputTokens: 0, outputTokens: 0, totalTokens: 0, cachedInputTokens: 0, reasoningTokens: 0 });

export function addUsage(a: Usage, b: Usage): Usage {
  return {
    inputTokens: a.inputTokens + b.inputTokens,
    outputTokens: a.outputTokens + b.outputTokens,
    totalTokens: a.totalTokens + b.totalTokens,
    cachedInputTokens: a.cachedInputTokens + b.cachedInputTokens,
    reasoningTokens: a.reasoningTokens + b.reasoningTokens,
  };
}

/** Why a model call ended, in words of our own; `refusal` covers a provider's content filter. */
export const FinishReasonSchema = z.enum(['stop', 'length', 'tool-calls', 'refusal', 'error', 'other']);
export type FinishReason = z.infer<typeof FinishReasonSchema>;

/**
 * What the loop needs from a provider: the AI SDK's `LanguageModelV3`, always streamed, and the typed reading of its errors.
 * A stream that ends without the provider's own end mark must error (never just end): the loop takes a `finish` part as the truth.
 */
export interface ModelHandle {
  /** The id agents use, e.g. `openai-compatible/qwen3`. */
  readonly id: string;
  readonly languageModel: LanguageModelV3;
  /** True where `responseFormat: { type: "json", schema }` is enforced by the provider itself. */
  readonly nativeStructuredOutput: boolean;
  /** Classifies whatever the call or its stream threw. Never throws; never lets a key into the message. */
  failureOf(thrown: unknown): ModelCallError;
}

/** Finds models by id. Throws `UnknownModelError` (from `src/models/`) naming what is configured. */
export interface ModelSource {
  resolve(id: string): ModelHandle;
}
