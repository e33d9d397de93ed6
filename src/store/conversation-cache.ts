import type { HistoryItem, ModelResponse } from '../agent/messages.js';

/** The beginning of a list that is only ever added to, as it was read. */
export interface ReadPart<T> {
  readonly all: readonly T[];
  /** The row of the last one; 0 where there is none. */
  readonly n: number;
  /** Length of their JSON texts. */
  readonly chars: number;
}

/** What is committed of a conversation and will not change. */
export interface ReadConversation {
  readonly run: number;
  /** The generation of the history: a rewritten one is another. */
  readonly gen: number;
  readonly history: ReadPart<HistoryItem>;
  readonly responses: ReadPart<ModelResponse>;
}

/** What short conversations cost to read is less than what it costs to keep them. */
const MIN_CHARS = 8192;
/** The JSON text that the kept conversations stand for, all together. */
const MAX_CHARS = 32 * 1024 * 1024;

/**
 * Conversations that were taken up lately, so that the next attempt reads only what came since, and meets the same frozen objects:
 * what was worked out about them (digests, renderings) still holds. Least recently used ones go first.
 */
export class ConversationCache {
  readonly #kept = new Map<number, ReadConversation>();
  #chars = 0;

  get(run: number): ReadConversation | undefined {
    return this.#kept.get(run);
  }

  /** Keeps what was read of a run, once the transaction that read it is committed. */
  keep(conversation: ReadConversation): void {
    this.drop(conversation.run);
    const chars = charsOf(conversation);
    if (chars < MIN_CHARS || chars > MAX_CHARS / 4) return;
    this.#kept.set(conversation.run, conversation);
    this.#chars += chars;
    for (const oldest of this.#kept.keys()) {
      if (this.#chars <= MAX_CHARS) return;
      this.drop(oldest);
    }
  }

  drop(run: number): void {
    const known = this.#kept.get(run);
    if (known === undefined) return;
    this.#chars -= charsOf(known);
    this.#kept.delete(run);
  }
}

function charsOf({ history, responses }: ReadConversation): number {
  return history.chars + responses.chars;
}
