import { defineShim, type Message, type ToolResultOutput, type ToolResultPart, z } from 'shimline/shims';

const NOTE = '[The old result of this call was cleared to save context. Call the tool again if you need it.]';

const config = z.strictObject({
  triggerTokens: z
    .int()
    .positive()
    .default(100_000)
    .meta({ description: 'Begin to clear when the messages of a request have more tokens than this, by an estimate.' }),
  keep: z.int().nonnegative().default(3).meta({ description: 'The last results that are never cleared.' }),
  clearAtLeastTokens: z
    .int()
    .nonnegative()
    .default(10_000)
    .meta({ description: 'Clear only where it frees so many tokens, since it costs what the provider has cached.' }),
  excludeTools: z
    .array(z.string().min(1))
    .default([])
    .meta({ description: 'Tools whose results are never cleared and do not count as kept.' }),
  note: z.string().min(1).default(NOTE).meta({ description: 'What stands in place of a cleared result.' }),
  mediaTokens: z
    .int()
    .positive()
    .default(1_600)
    .meta({ description: 'Tokens that an image or a file counts for, whatever its size.' }),
});
type Config = z.output<typeof config>;

/** A result in the request, with what it and the note in its place come to. */
interface Result {
  readonly part: ToolResultPart;
  readonly message: Extract<Message, { role: 'tool' }>;
  readonly tokens: number;
  readonly freed: number;
}

/**
 * Clears old tool results for the calls, not in the history. Up to which result was cleared is kept in the state and moves on
 * rarely and far, so that from one call to the next the request begins as the one before it did.
 */
export default defineShim({
  name: 'context-editing',
  description: 'Clears old tool results from what the model is sent, once the context gets long.',
  config,
  state: z.object({ upTo: z.string().nullable().default(null) }),
  transformMessages(turn, messages) {
    const results = resultsOf(messages, this.config);
    // After a replaced history the place may be gone: then nothing is cleared until it has to be.
    let cleared = results.findLastIndex(({ part }) => part.toolCallId === turn.state.upTo) + 1;
    const tokens = sum(messages, (message) => tokensOf(message, this.config)) - sum(results.slice(0, cleared), freed);
    if (tokens > this.config.triggerTokens) {
      const next = mayClear(messages, results, this.config.keep);
      const more = results.slice(cleared, next);
      const saved = sum(more, freed);
      if (saved > 0 && saved >= this.config.clearAtLeastTokens) {
        cleared = next;
        turn.state.upTo = results[next - 1]?.part.toolCallId ?? null;
        turn.emit('context.cleared', { results: more.filter((result) => result.freed > 0).length, tokens: saved });
      }
    }
    if (cleared === 0) {
      turn.state.upTo = null;
      return undefined;
    }
    return withoutResults(messages, results.slice(0, cleared), this.config.note);
  },
});

/** Results that may be cleared: from the first one on, up to those that are kept or that the model has not seen yet. */
function mayClear(messages: readonly Message[], results: readonly Result[], keep: number): number {
  const lastAnswer = messages.findLastIndex(({ role }) => role === 'assistant');
  const unseen = new Set(messages.slice(lastAnswer + 1));
  const seen = results.findIndex(({ message }) => unseen.has(message));
  return Math.max(0, Math.min(seen < 0 ? results.length : seen, results.length - keep));
}

function resultsOf(messages: readonly Message[], settings: Config): Result[] {
  const note = count(settings.note);
  return messages.flatMap((message) => {
    if (message.role !== 'tool') return [];
    return message.content
      .filter(({ toolName }) => !settings.excludeTools.includes(toolName))
      .map((part) => {
        const tokens = outputTokens(part.output, settings);
        return { part, message, tokens, freed: Math.max(0, tokens - note) };
      });
  });
}

/** The list with the note in place of these results; calls and results stay in pairs, and what is shorter than the note stays. */
function withoutResults(messages: Message[], results: readonly Result[], note: string): Message[] {
  const clear = new Set(results.filter((result) => result.freed > 0).map(({ part }) => part));
  return messages.map((message) =>
    message.role === 'tool' && message.content.some((part) => clear.has(part))
      ? {
          ...message,
          content: message.content.map((part) =>
            clear.has(part) ? { ...part, output: noted(part.output, note) } : part,
          ),
        }
      : message,
  );
}

function noted({ type }: ToolResultOutput, note: string): ToolResultOutput {
  return { type: type === 'error-text' || type === 'error-json' ? 'error-text' : 'text', value: note };
}

const freed = (result: Result): number => result.freed;

function sum<T>(items: readonly T[], valueOf: (item: T) => number): number {
  return items.reduce((total, item) => total + valueOf(item), 0);
}

function tokensOf({ content }: Message, settings: Config): number {
  if (typeof content === 'string') return count(content);
  return sum<Exclude<Message['content'], string>[number]>(content, (part) => {
    switch (part.type) {
      case 'text':
      case 'reasoning':
        return count(part.text);
      case 'image':
      case 'file':
        return settings.mediaTokens;
      case 'tool-call':
        return count(part.toolName) + count(JSON.stringify(part.input));
      case 'tool-result':
        return outputTokens(part.output, settings);
    }
  });
}

function outputTokens(output: ToolResultOutput, { mediaTokens }: Config): number {
  switch (output.type) {
    case 'text':
    case 'error-text':
      return count(output.value);
    case 'json':
    case 'error-json':
      return count(JSON.stringify(output.value));
    case 'content':
      return sum(output.value, (part) => (part.type === 'text' ? count(part.text) : mediaTokens));
  }
}

/** A token for four bytes: near enough to tell a long request from a short one, at no cost in each turn. */
function count(text: string): number {
  return Math.ceil(Buffer.byteLength(text) / 4);
}
