import { type HistoryItem, isInternalMessage, type JsonValue, type Message } from 'shimline/shims';
import type { Redactor } from './redactor.js';

type Blocked = (entities: readonly string[]) => void;

export interface MessageOptions {
  readonly redactor: Redactor;
  /** Texts of the model itself. */
  readonly answers: boolean;
  /** Arguments of tool calls. */
  readonly toolArguments: boolean;
  /** Told what of a user's message is blocked; in other messages it is masked. */
  readonly blocked: Blocked;
}

const INPUT = 'The input';
const ignore = (): void => undefined;

/** The message with its texts redacted; itself where there was nothing to do. Bytes of images and files are not looked into. */
export function redactMessage(message: Message, options: MessageOptions): Message {
  const { role, content } = message;
  // What other shims add is not the client's: it is masked.
  const blocked = role === 'user' && !isInternalMessage(message) ? options.blocked : ignore;
  if (role === 'system' || (role === 'assistant' && !options.answers && !options.toolArguments)) return message;
  if (typeof content === 'string') {
    if (role === 'assistant' && !options.answers) return message;
    const text = options.redactor.text(INPUT, content, blocked);
    return text === content ? message : ({ ...message, content: text } as Message);
  }
  const parts = (content as readonly Part[]).map((part) => redactPart(part, options, blocked));
  return parts.every((part, index) => part === content[index]) ? message : ({ ...message, content: parts } as Message);
}

type Part = Exclude<Message['content'], string>[number];

function redactPart(part: Part, options: MessageOptions, blocked: Blocked): Part {
  const { redactor } = options;
  switch (part.type) {
    case 'text': {
      const text = redactor.text(INPUT, part.text, blocked);
      return text === part.text ? part : { ...part, text };
    }
    case 'tool-call': {
      if (!options.toolArguments) return part;
      const input = redactor.json(INPUT, part.input, blocked);
      return same(input, part.input) ? part : ({ ...part, input } as Part);
    }
    case 'tool-result': {
      const output = redactOutput(part.output, redactor);
      return same(output, part.output) ? part : { ...part, output: output as unknown as typeof part.output };
    }
    case 'file': {
      const filename = part.filename === undefined ? undefined : redactor.text(INPUT, part.filename, blocked);
      return filename === part.filename ? part : { ...part, filename };
    }
    case 'reasoning':
    case 'image':
      return part;
  }
}

interface Output {
  readonly type: string;
  readonly value: JsonValue;
}

function redactOutput(output: Output, redactor: Redactor): Output {
  if (output.type !== 'content' || !Array.isArray(output.value))
    return { ...output, value: redactor.json(INPUT, output.value, ignore) };
  const value = (output.value as readonly { readonly type: string; readonly text: string }[]).map((part) =>
    part.type === 'text' ? { ...part, text: redactor.text(INPUT, part.text, ignore) } : part,
  );
  return { ...output, value: value };
}

const ROLES: ReadonlySet<unknown> = new Set(['user', 'assistant', 'tool']);

/**
 * A history item redacted; itself where there was nothing to do. Answers of the model were redacted as they came, and stay what
 * they are; JSON content becomes the text that it is sent as.
 */
export function redactItem(item: HistoryItem, options: MessageOptions): HistoryItem {
  if (typeof item === 'string') return options.redactor.text(INPUT, item, options.blocked);
  if (typeof item !== 'object' || item === null) return options.redactor.json(INPUT, item, options.blocked);
  const fields = item as Readonly<Record<string, unknown>>;
  if ('modelCallId' in fields || 'template' in fields) return item;
  if (ROLES.has(fields.role)) return isMessage(fields) ? redactMessage(item as Message, options) : item;
  const redacted = options.redactor.json(INPUT, item as JsonValue, options.blocked);
  return same(redacted, item) ? item : JSON.stringify(redacted);
}

/** What only looks like one is content of a client; it is redacted when the request is made. */
function isMessage({ content }: Readonly<Record<string, unknown>>): boolean {
  return (
    typeof content === 'string' ||
    (Array.isArray(content) &&
      content.every(
        (part) => typeof part === 'object' && part !== null && PART_TYPES.has((part as { type?: unknown }).type),
      ))
  );
}
const PART_TYPES: ReadonlySet<unknown> = new Set(['text', 'image', 'file', 'reasoning', 'tool-call', 'tool-result']);

export function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}
