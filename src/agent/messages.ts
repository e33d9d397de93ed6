import { z } from 'zod';
import { checkJson, deepFreeze, frozenCopy, isDeepFrozen, type JsonValue } from './json.js';
import type { FinishReason, Usage } from './model.js';
import { type PromptSpec, renderTemplate } from './template.js';

const providerOptions = z.record(z.string(), z.record(z.string(), z.json())).optional();

const TextPartSchema = z.strictObject({ type: z.literal('text'), text: z.string(), providerOptions });
const ImagePartSchema = z.strictObject({
  type: z.literal('image'),
  image: z.string(),
  mediaType: z.string().optional(),
  providerOptions,
});
const FilePartSchema = z.strictObject({
  type: z.literal('file'),
  data: z.string(),
  mediaType: z.string(),
  filename: z.string().optional(),
  providerOptions,
});
const ReasoningPartSchema = z.strictObject({ type: z.literal('reasoning'), text: z.string(), providerOptions });
const ToolCallPartSchema = z.strictObject({
  type: z.literal('tool-call'),
  toolCallId: z.string().min(1),
  toolName: z.string().min(1),
  input: z.json(),
  providerExecuted: z.boolean().optional(),
  providerOptions,
});
const ToolResultOutputSchema = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('text'), value: z.string(), providerOptions }),
  z.strictObject({ type: z.literal('json'), value: z.json(), providerOptions }),
  z.strictObject({ type: z.literal('error-text'), value: z.string(), providerOptions }),
  z.strictObject({ type: z.literal('error-json'), value: z.json(), providerOptions }),
  z.strictObject({
    type: z.literal('content'),
    value: z.array(
      z.discriminatedUnion('type', [
        z.strictObject({ type: z.literal('text'), text: z.string(), providerOptions }),
        z.strictObject({ type: z.literal('image-data'), data: z.string(), mediaType: z.string(), providerOptions }),
        z.strictObject({
          type: z.literal('file-data'),
          data: z.string(),
          mediaType: z.string(),
          filename: z.string().optional(),
          providerOptions,
        }),
      ]),
    ),
    providerOptions,
  }),
]);
const ToolResultPartSchema = z.strictObject({
  type: z.literal('tool-result'),
  toolCallId: z.string().min(1),
  toolName: z.string().min(1),
  output: ToolResultOutputSchema,
  providerOptions,
});

/**
 * A canonical message: the AI SDK's `ModelMessage`. Images and files are base64 text, `data:` URLs or `https:` URLs.
 * Source of the shapes: the AI SDK's documented `ModelMessage` type.
 */
export const MessageSchema = z.discriminatedUnion('role', [
  z.strictObject({ role: z.literal('system'), content: z.string(), providerOptions }),
  z.strictObject({
    role: z.literal('user'),
    content: z.union([
      z.string(),
      z.array(z.discriminatedUnion('type', [TextPartSchema, ImagePartSchema, FilePartSchema])).min(1),
    ]),
    providerOptions,
  }),
  z.strictObject({
    role: z.literal('assistant'),
    content: z.union([
      z.string(),
      z.array(z.discriminatedUnion('type', [TextPartSchema, FilePartSchema, ReasoningPartSchema, ToolCallPartSchema])),
    ]),
    providerOptions,
  }),
  z.strictObject({ role: z.literal('tool'), content: z.array(ToolResultPartSchema).min(1), providerOptions }),
]);

/** Marks a message as the host's or a shim's own: seen by the model, never by clients (R87-R90). */
export interface InternalMark {
  readonly origin: string;
  /** Sent on every model call of the run, absent from the state that the run leaves behind (R92). */
  readonly ephemeral: boolean;
}
interface Marked {
  readonly metadata?: { readonly internal?: InternalMark } | undefined;
}

type BareMessage = z.infer<typeof MessageSchema>;
export type SystemMessage = Extract<BareMessage, { role: 'system' }> & Marked;
export type UserMessage = Extract<BareMessage, { role: 'user' }> & Marked;
export type AssistantMessage = Extract<BareMessage, { role: 'assistant' }> & Marked;
export type ToolMessage = Extract<BareMessage, { role: 'tool' }> & Marked;
export type Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage;
export type ToolCallPart = z.infer<typeof ToolCallPartSchema>;
export type ToolResultPart = z.infer<typeof ToolResultPartSchema>;
export type ToolResultOutput = z.infer<typeof ToolResultOutputSchema>;
export type ReasoningPart = z.infer<typeof ReasoningPartSchema>;
export type TextPart = z.infer<typeof TextPartSchema>;
export type FilePart = z.infer<typeof FilePartSchema>;
export type AssistantPart = TextPart | FilePart | ReasoningPart | ToolCallPart;

/** One completed model call, as the run keeps it. */
export interface ModelResponse {
  /** The provider's id of the response, or the model call's id where it gave none. */
  readonly id: string;
  readonly modelCallId: string;
  /** The model that answered, e.g. `openai-compatible/qwen3`. */
  readonly modelId: string;
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  readonly usage: Usage;
  readonly providerMetadata?: Readonly<Record<string, JsonValue>> | undefined;
}

/** The text of a response: its text parts, joined. */
export function textOf(response: ModelResponse): string {
  const { content } = response.message;
  if (typeof content === 'string') return content;
  return content.map((part) => (part.type === 'text' ? part.text : '')).join('');
}

/** What a history holds (R26): canonical messages, prior model responses, prompt specs, and user-side content. */
export type HistoryItem = Message | ModelResponse | PromptSpec | JsonValue;

/** The kind that a stored item carries (R95), so that user content can never pose as something else. */
export const ItemKindSchema = z.enum(['message', 'response', 'prompt', 'content']);
export type ItemKind = z.infer<typeof ItemKindSchema>;

/** Objects that are user content although they look like another kind: they came over HTTP. */
const contentObjects = new WeakSet<object>();

const ROLES = new Set<unknown>(['system', 'user', 'assistant', 'tool']);

/** Which kind a history item is of. An object that came over HTTP is `message` or `content`, whatever else it looks like (R95). */
export function kindOf(item: HistoryItem): ItemKind {
  if (typeof item !== 'object' || item === null || Array.isArray(item) || contentObjects.has(item)) return 'content';
  const fields = item as Record<string, unknown>;
  if (ROLES.has(fields.role) && 'content' in fields) return 'message';
  if (typeof fields.modelCallId === 'string' && typeof fields.message === 'object') return 'response';
  if ('template' in fields && typeof fields.values === 'object') return 'prompt';
  return 'content';
}

/**
 * A frozen copy of an item that keeps its kind (R25).
 * @throws NotJsonError for what JSON cannot hold; ZodError for a message or prompt spec of the wrong shape
 */
export function copyItem(item: HistoryItem, root = 'item'): HistoryItem {
  const kind = kindOf(item);
  const copy = frozenCopy(item, root);
  checkShape(kind, copy);
  if (kind === 'content') markAsContent(copy);
  return settled(copy);
}

function checkShape(kind: ItemKind, item: HistoryItem): void {
  if (kind === 'message') MessageSchema.parse(withoutMetadata(item as Message));
  if (kind === 'prompt') renderTemplate(item as PromptSpec);
}

/** Frozen items that were copied or checked once: whatever stands in a history is one of these. */
const settledItems = new WeakSet<object>();

function settled(item: HistoryItem): HistoryItem {
  if (typeof item === 'object' && item !== null) settledItems.add(item);
  return item;
}

/** The item itself where nothing in it can change any more, else a frozen copy. @throws NotJsonError, ZodError */
export function settleItem(item: HistoryItem, root = 'item'): HistoryItem {
  if (typeof item === 'object' && item !== null && settledItems.has(item)) return item;
  if (!isDeepFrozen(item)) return copyItem(item, root);
  checkJson(item, root);
  checkShape(kindOf(item), item);
  return settled(item);
}

/** The same for a list that has to be of messages, such as a request. @throws TypeError, NotJsonError, ZodError */
export function settleMessage(item: Message, root: string): Message {
  if (kindOf(item) !== 'message') throw new TypeError(`${root} is no message: it needs a role and a content.`);
  return settleItem(item, root) as Message;
}

/** A frozen item read back from the store with the kind it was stored with. */
export function reviveItem(kind: ItemKind, body: string): HistoryItem {
  const item = deepFreeze(JSON.parse(body) as HistoryItem);
  if (kind === 'content') markAsContent(item);
  return settled(item);
}

/** Marks an object as user-side content whatever it looks like (R95). */
export function markAsContent(item: HistoryItem): void {
  if (typeof item === 'object' && item !== null) contentObjects.add(item);
}

/**
 * Marks a message as internal, by metadata of ours and never by provider fields. Injects nothing and deduplicates nothing (R87).
 * @param options.origin who added it, e.g. the shim's name
 * @param options.ephemeral true: sent on every call of the run and gone when the run ends
 */
export function internalMessage<M extends Message>(
  message: M,
  options: { readonly origin: string; readonly ephemeral?: boolean },
): M {
  return {
    ...message,
    metadata: { ...message.metadata, internal: { origin: options.origin, ephemeral: options.ephemeral ?? false } },
  };
}

/** Whether a history item is an internal message, of one origin where it is given. */
export function isInternalMessage(item: unknown, filter: { readonly origin?: string } = {}): boolean {
  const mark = internalMarkOf(item);
  return mark !== undefined && (filter.origin === undefined || mark.origin === filter.origin);
}

export function internalMarkOf(item: unknown): InternalMark | undefined {
  if (typeof item !== 'object' || item === null || contentObjects.has(item)) return undefined;
  const { role, metadata } = item as { role?: unknown; metadata?: { internal?: InternalMark } };
  return ROLES.has(role) ? metadata?.internal : undefined;
}

export function isEphemeral(item: HistoryItem): boolean {
  return internalMarkOf(item)?.ephemeral === true;
}

function withoutMetadata(message: Message): Message {
  if (message.metadata === undefined) return message;
  const { metadata: _metadata, ...bare } = message;
  return deepFreeze(bare);
}

const rendered = new WeakMap<object, readonly Message[]>();

/** A list that, written as JSON, leaves its internal messages out (R90); in memory it holds them all. The list itself. */
export function withoutInternalInJson<T extends readonly unknown[]>(list: T): T {
  if (!Object.isFrozen(list))
    Object.defineProperty(list, 'toJSON', {
      value: () => list.filter((item) => !isInternalMessage(item)),
      enumerable: false,
    });
  return Object.freeze(list);
}

/**
 * JSON without the internal messages anywhere in it (R90): what a shim or tool puts into an event or a result may hold a history.
 * The value itself where there is none.
 */
export function omitInternal(value: JsonValue): JsonValue {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    const list = value as readonly JsonValue[];
    return list.filter((item) => !isInternalMessage(item)).map(omitInternal);
  }
  const entries = Object.entries(value).filter(([, child]) => child !== undefined && !isInternalMessage(child));
  return Object.fromEntries(entries.map(([key, child]) => [key, omitInternal(child as JsonValue)]));
}

/** Whether a JSON text could hold an internal message at all: the walk is for the few that could. */
export function mayHoldInternal(json: string): boolean {
  return json.includes('"internal":');
}

/**
 * An item as messages, raw content as a user message (R26). Internal messages keep their mark for whoever looks at the request
 * on its way (R89); what is made of them for the provider has no metadata (R88).
 * Frozen items are rendered once, so a long conversation does not pay for its age on every turn.
 */
export function renderItem(item: HistoryItem): readonly Message[] {
  if (typeof item === 'string') return renderText(item);
  if (typeof item !== 'object' || item === null) return [renderContent(item)];
  const known = rendered.get(item);
  if (known !== undefined) return known;
  const messages = deepFreeze(renderObject(item));
  if (Object.isFrozen(item)) rendered.set(item, messages);
  return messages;
}

/** Texts cannot be keys of a weak map: so the short ones that were rendered lately are kept by their value. */
const renderedTexts = new Map<string, readonly Message[]>();
const MAX_TEXTS = 4096;
const MAX_TEXT_LENGTH = 2000;

function renderText(text: string): readonly Message[] {
  const known = renderedTexts.get(text);
  if (known !== undefined) return known;
  const messages = Object.freeze([renderContent(text)]);
  if (text.length > MAX_TEXT_LENGTH) return messages;
  if (renderedTexts.size >= MAX_TEXTS) {
    const [oldest] = renderedTexts.keys();
    if (oldest !== undefined) renderedTexts.delete(oldest);
  }
  renderedTexts.set(text, messages);
  return messages;
}

function renderObject(item: object): readonly Message[] {
  switch (kindOf(item as HistoryItem)) {
    case 'message':
      return [item as Message];
    case 'response':
      return [(item as ModelResponse).message];
    case 'prompt':
      return renderTemplate(item as PromptSpec);
    case 'content':
      return [renderContent(item as JsonValue)];
  }
}

function renderContent(content: JsonValue): Message {
  return Object.freeze({ role: 'user', content: typeof content === 'string' ? content : JSON.stringify(content) });
}

/** The whole list that a model call starts from: the system message first, unless the instructions are empty. */
export function renderHistory(instructions: string | PromptSpec, history: readonly HistoryItem[]): Message[] {
  const messages: Message[] = [];
  if (typeof instructions === 'string') {
    if (instructions !== '') messages.push({ role: 'system', content: instructions });
  } else {
    messages.push(...renderTemplate(instructions, 'system'));
  }
  for (const item of history) for (const message of renderItem(item)) messages.push(message);
  return messages;
}
