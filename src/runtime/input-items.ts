import { type JsonValue, wellFormed } from '../agent/json.js';
import {
  copyItem,
  type HistoryItem,
  internalMessage,
  type Message,
  MessageSchema,
  markAsContent,
} from '../agent/messages.js';

/**
 * The input of a run or resume as history items (R93, R95): a text, or a list of canonical messages, texts, JSON and
 * `{ internal: { message, origin, ephemeral } }`. An object with a valid role is a message; anything else is user-side content,
 * never a prompt spec or a model response.
 */
export function itemsOf(input: JsonValue): HistoryItem[] {
  const list = Array.isArray(input) ? (input as readonly JsonValue[]) : [input];
  return list.map((item) => itemOf(wellFormed(item)));
}

function itemOf(item: JsonValue): HistoryItem {
  if (typeof item !== 'object' || item === null || Array.isArray(item)) return copyItem(item);
  const fields = item as {
    readonly internal?: null | { readonly message?: unknown; readonly origin?: unknown; readonly ephemeral?: unknown };
  };
  if (typeof fields.internal === 'object' && fields.internal !== null) {
    const { message, origin, ephemeral } = fields.internal;
    const parsed = MessageSchema.safeParse(typeof message === 'string' ? { role: 'user', content: message } : message);
    if (parsed.success && typeof origin === 'string')
      return copyItem(internalMessage(parsed.data as Message, { origin, ephemeral: ephemeral === true }));
  }
  const message = MessageSchema.safeParse(item);
  if (message.success) return copyItem(message.data);
  const content = structuredClone(item) as HistoryItem;
  markAsContent(content);
  return copyItem(content);
}

/** An input as clients see it: without the host's internal messages (R90). */
export function shownInput(input: JsonValue): JsonValue {
  if (!Array.isArray(input)) return input;
  return (input as readonly JsonValue[]).filter((item) => {
    const fields = item as { readonly internal?: unknown } | null;
    return (
      typeof fields !== 'object' ||
      fields === null ||
      Array.isArray(item) ||
      typeof fields.internal !== 'object' ||
      fields.internal === null
    );
  });
}
