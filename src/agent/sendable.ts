import type { LanguageModelV3Message, LanguageModelV3Prompt } from '@ai-sdk/provider';
import { deepFreeze, wellFormed, type JsonValue } from './json.js';
import type { AssistantMessage, AssistantPart, Message, ToolCallPart, ToolMessage, ToolResultPart, UserMessage } from './messages.js';

/** What a provider takes, and in words what had to be mended to get there. */
export interface Sendable {
  readonly messages: readonly Message[];
  readonly repairs: readonly string[];
}

const PROVIDER_CALL_ID = /^[a-zA-Z0-9_-]{1,64}$/;

/** Messages whose text and parts were looked at before: frozen ones need it once. */
const clean = new WeakMap<object, Message | undefined>();

/**
 * The sendable-history invariant, called before every model request. Whatever came into the history, what leaves has: each tool
 * call followed at once by its one result, no result without its call, no id twice, only ids that providers take, arguments
 * that are objects, no empty or blank text, no empty message, no lone surrogate. Removes or fills in; never reorders what the user said.
 */
export function sendable(messages: readonly Message[]): Sendable {
  const repairs: string[] = [];
  const sent: Message[] = [];
  const usedIds = new Set<string>();
  for (let index = 0; index < messages.length; index += 1) {
    const message = cleaned(messages[index] as Message, repairs);
    if (message === undefined) continue;
    if (message.role === 'tool') {
      // Results are taken together with the calls before them; what is met here has none.
      repairs.push(`a tool result without its call was left out (${message.content.map((part) => part.toolCallId).join(', ')})`);
      continue;
    }
    const calls = message.role === 'assistant' ? callsIn(message) : [];
    if (calls.length === 0) {
      sent.push(message);
      continue;
    }
    const results: ToolResultPart[] = [];
    while (messages[index + 1]?.role === 'tool') {
      index += 1;
      const results_ = cleaned(messages[index] as Message, repairs) as ToolMessage | undefined;
      if (results_ !== undefined) results.push(...results_.content);
    }
    pushRound(message as AssistantMessage, calls, results, { sent, usedIds, repairs });
  }
  return { messages: sent, repairs };
}

interface Sending {
  readonly sent: Message[];
  readonly usedIds: Set<string>;
  readonly repairs: string[];
}

function pushRound(message: AssistantMessage, calls: readonly ToolCallPart[], results: readonly ToolResultPart[], sending: Sending): void {
  const { sent, usedIds, repairs } = sending;
  const left = [...results];
  const matched: ToolResultPart[] = [];
  const renamed = new Map<ToolCallPart, string>();
  for (const call of calls) {
    const position = left.findIndex((result) => result.toolCallId === call.toolCallId);
    const [found] = position < 0 ? [] : left.splice(position, 1);
    const id = usableId(call.toolCallId, usedIds);
    if (id !== call.toolCallId) {
      renamed.set(call, id);
      repairs.push(`tool call id ${JSON.stringify(call.toolCallId)} was sent as ${JSON.stringify(id)}`);
    }
    if (found === undefined) repairs.push(`tool call ${call.toolCallId} had no result; it was closed as interrupted`);
    const result = found ?? interruptedResult(call);
    matched.push(result.toolCallId === id ? result : { ...result, toolCallId: id });
  }
  for (const stray of left) repairs.push(`a tool result without its call was left out (${stray.toolCallId})`);
  if (renamed.size === 0) sent.push(message);
  else {
    const content = (message.content as readonly AssistantPart[]).map((part) => {
      const id = part.type === 'tool-call' ? renamed.get(part) : undefined;
      return id === undefined ? part : { ...(part as ToolCallPart), toolCallId: id };
    });
    sent.push({ ...message, content });
  }
  const unchanged = matched.length === results.length && matched.every((part, index) => part === results[index]);
  sent.push(unchanged ? toolMessageOf(results) : { role: 'tool', content: matched });
}

const toolMessages = new WeakMap<ToolResultPart, ToolMessage>();

/** The same frozen message for the same frozen results, so that its rendering is remembered. */
function toolMessageOf(results: readonly ToolResultPart[]): ToolMessage {
  const [first] = results;
  if (first === undefined) return { role: 'tool', content: [] };
  const known = toolMessages.get(first);
  if (known?.content.length === results.length && known.content.every((part, index) => part === results[index])) return known;
  const message: ToolMessage = deepFreeze({ role: 'tool', content: [...results] });
  toolMessages.set(first, message);
  return message;
}

export function callsIn(message: Message): ToolCallPart[] {
  if (message.role !== 'assistant' || typeof message.content === 'string') return [];
  return message.content.filter((part) => part.type === 'tool-call').filter((part) => part.providerExecuted !== true);
}

function usableId(id: string, used: Set<string>): string {
  const base = PROVIDER_CALL_ID.test(id) ? id : `call_${id.replace(/[^a-zA-Z0-9_-]/g, '_').slice(0, 40)}`;
  let candidate = base;
  for (let number = 2; used.has(candidate); number += 1) candidate = `${base.slice(0, 56)}_${number}`;
  used.add(candidate);
  return candidate;
}

function interruptedResult(call: ToolCallPart): ToolResultPart {
  return {
    type: 'tool-result',
    toolCallId: call.toolCallId,
    toolName: call.toolName,
    output: { type: 'error-text', value: 'The call was interrupted before it gave a result; whether it had an effect is not known.' },
  };
}

function cleaned(message: Message, repairs: string[]): Message | undefined {
  if (clean.has(message)) return clean.get(message);
  const result = cleanMessage(message, repairs);
  if (Object.isFrozen(message)) clean.set(message, result);
  return result;
}

function blank(text: string): boolean {
  return text.trim() === '';
}

function cleanMessage(message: Message, repairs: string[]): Message | undefined {
  const mended = wellFormed(message as unknown as JsonValue) as unknown as Message;
  if (mended !== message) repairs.push('a lone surrogate in a text was replaced');
  if (mended.role === 'tool') return mended.content.length === 0 ? undefined : mended;
  if (typeof mended.content === 'string') {
    if (!blank(mended.content)) return mended;
    repairs.push(`an empty ${mended.role} message was left out`);
    return undefined;
  }
  const parts = mended.content as readonly (AssistantPart | Exclude<UserMessage['content'], string>[number])[];
  const kept = parts.filter((part) => part.type !== 'text' || !blank(part.text)).map((part) => (part.type === 'tool-call' ? objectInput(part) : part));
  const worthSending = kept.some((part) => part.type !== 'reasoning');
  if (!worthSending) {
    repairs.push(`an empty ${mended.role} message was left out`);
    return undefined;
  }
  if (kept.length === parts.length && kept.every((part, index) => part === parts[index])) return mended;
  return deepFreeze({ ...mended, content: kept } as Message);
}

function objectInput(part: ToolCallPart): ToolCallPart {
  const { input } = part;
  return typeof input === 'object' && input !== null && !Array.isArray(input) ? part : { ...part, input: {} };
}

const prompts = new WeakMap<object, LanguageModelV3Message>();

/** Sendable messages in the provider interface's form; frozen ones are turned once. */
export function toPrompt(messages: readonly Message[]): LanguageModelV3Prompt {
  return messages.map((message) => {
    const known = prompts.get(message);
    if (known !== undefined) return known;
    const converted = convert(message);
    if (Object.isFrozen(message)) prompts.set(message, converted);
    return converted;
  });
}

function convert(message: Message): LanguageModelV3Message {
  const options = message.providerOptions === undefined ? {} : { providerOptions: message.providerOptions as NonNullable<LanguageModelV3Message['providerOptions']> };
  switch (message.role) {
    case 'system':
      return { role: 'system', content: message.content, ...options };
    case 'user': {
      const parts = typeof message.content === 'string' ? [{ type: 'text' as const, text: message.content }] : message.content;
      return { role: 'user', content: parts.map(userPart), ...options } as LanguageModelV3Message;
    }
    case 'assistant': {
      const parts = typeof message.content === 'string' ? [{ type: 'text' as const, text: message.content }] : message.content;
      return { role: 'assistant', content: parts.map((part) => (part.type === 'file' ? filePart(part.data, part.mediaType, part) : part)), ...options } as LanguageModelV3Message;
    }
    case 'tool':
      return { role: 'tool', content: message.content, ...options } as LanguageModelV3Message;
  }
}

type UserPart = Exclude<UserMessage['content'], string>[number];

function userPart(part: UserPart): unknown {
  switch (part.type) {
    case 'text':
      return part;
    case 'image':
      return filePart(part.image, part.mediaType ?? 'image/*', part);
    case 'file':
      return filePart(part.data, part.mediaType, part);
  }
}

/** Base64 text as it is, `data:` URLs taken apart, other URLs as URLs: what the provider interface calls data content. */
function filePart(data: string, mediaType: string, part: { readonly filename?: string | undefined; readonly providerOptions?: unknown }): unknown {
  const extras = { ...(part.filename === undefined ? {} : { filename: part.filename }), ...(part.providerOptions === undefined ? {} : { providerOptions: part.providerOptions }) };
  const dataUrl = /^data:([^;,]+);base64,(.*)$/s.exec(data);
  if (dataUrl !== null) return { type: 'file', data: dataUrl[2], mediaType: dataUrl[1], ...extras };
  return { type: 'file', data: /^https?:\/\//.test(data) ? new URL(data) : data, mediaType, ...extras };
}
