import type { LanguageModelV3 } from '@ai-sdk/provider';
import { z } from 'zod';
import type { JsonValue } from './json.js';
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

export const NO_USAGE: Usage = Object.freeze({
  inputTokens: 0,
  outputTokens: 0,
  totalTokens: 0,
  cachedInputTokens: 0,
  reasoningTokens: 0,
});

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

/** Options for one provider each, by the provider's key: what a message or part carries as `providerOptions`. */
export type ProviderOptions = Readonly<Record<string, Readonly<Record<string, JsonValue>>>>;

/**
 * What a provider's package takes in a prompt, where they differ. A history may hold what another provider said or was given,
 * so the prompt is fitted to these rules; the history itself is not touched.
 */
export interface PromptRules {
  /** What of the options is this provider's own, in the spelling that its package reads; undefined when nothing is. */
  ownOptions(options: ProviderOptions): ProviderOptions | undefined;
  /** Whether a reasoning part with these options can be sent back. */
  takesReasoning(options: ProviderOptions | undefined): boolean;
  /** Whether a user's message may hold such a file; `url` is set where it is a web address. */
  takesFile(mediaType: string, url: string | undefined): boolean;
  /** Whether a tool result may hold such media; else they follow the round in a user's message. */
  takesInResults(mediaType: string): boolean;
  /** Whether files that the assistant made can be sent back. */
  readonly assistantFiles: boolean;
  /** Whether tool results are marked as errors on the wire; else the text says it. */
  readonly marksErrors: boolean;
  /** Whether system messages may stand anywhere; else those after the first other message are sent as a user's. */
  readonly systemAnywhere: boolean;
}

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
  /** Left out where the model takes everything. */
  readonly promptRules?: PromptRules | undefined;
  /** Classifies whatever the call or its stream threw. Never throws; never lets a key into the message. */
  failureOf(thrown: unknown): ModelCallError;
}

/** Finds models by id. Throws `UnknownModelError` (from `src/models/`) naming what is configured. */
export interface ModelSource {
  resolve(id: string): ModelHandle;
}
