import type { Usage } from '../agent/model.js';
import { type Dialect, parseLatin1 } from './dialect.js';

const HAS_COUNTS = /"(?:usage|usageMetadata)"\s*:\s*\{/;

/**
 * What a streamed answer tells of its cost. A provider package tells it with the end of the answer only, while an answer that is cut
 * or fails after its counts has been paid for all the same. Events are only kept here, and read when they are asked for.
 *
 * The counts at the opening of an Anthropic answer are no final ones and are left out.
 */
export class ToldUsage {
  readonly #dialect: Dialect;
  #last: string | undefined;

  constructor(dialect: Dialect) {
    this.#dialect = dialect;
  }

  /** Takes the data of one event, in Latin-1. */
  add(data: string): void {
    if (!HAS_COUNTS.test(data)) return;
    if (this.#dialect === 'anthropic' && !data.includes('"message_delta"')) return;
    this.#last = data;
  }

  /** The counts as they were told last. */
  read(): Usage | undefined {
    if (this.#last === undefined) return undefined;
    const event = parseLatin1(this.#last);
    switch (this.#dialect) {
      case 'chat': {
        const input = at(event, 'usage', 'prompt_tokens');
        const cached = at(event, 'usage', 'prompt_tokens_details', 'cached_tokens');
        const reasoning = at(event, 'usage', 'completion_tokens_details', 'reasoning_tokens');
        return usageOf(input, at(event, 'usage', 'completion_tokens'), cached, reasoning);
      }
      case 'responses': {
        const input = at(event, 'response', 'usage', 'input_tokens');
        const cached = at(event, 'response', 'usage', 'input_tokens_details', 'cached_tokens');
        const reasoning = at(event, 'response', 'usage', 'output_tokens_details', 'reasoning_tokens');
        return usageOf(input, at(event, 'response', 'usage', 'output_tokens'), cached, reasoning);
      }
      case 'anthropic': {
        const cached = at(event, 'usage', 'cache_read_input_tokens');
        const written = at(event, 'usage', 'cache_creation_input_tokens');
        const input = at(event, 'usage', 'input_tokens') + cached + written;
        const thinking = at(event, 'usage', 'output_tokens_details', 'thinking_tokens');
        return usageOf(input, at(event, 'usage', 'output_tokens'), cached, thinking);
      }
      case 'google': {
        const thoughts = at(event, 'usageMetadata', 'thoughtsTokenCount');
        const output = at(event, 'usageMetadata', 'candidatesTokenCount') + thoughts;
        const cached = at(event, 'usageMetadata', 'cachedContentTokenCount');
        return usageOf(at(event, 'usageMetadata', 'promptTokenCount'), output, cached, thoughts);
      }
    }
  }
}

function usageOf(inputTokens: number, outputTokens: number, cached: number, reasoning: number): Usage {
  const totalTokens = inputTokens + outputTokens;
  return { inputTokens, outputTokens, totalTokens, cachedInputTokens: cached, reasoningTokens: reasoning };
}

/** The count at a path; 0 where there is none. */
function at(event: unknown, ...path: readonly string[]): number {
  let value = event;
  for (const key of path)
    value = typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[key] : undefined;
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}
