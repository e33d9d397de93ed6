import type { LanguageModelV3Message, LanguageModelV3Prompt } from '@ai-sdk/provider';
import { deepFreeze } from './json.js';
import type {
  AssistantMessage,
  AssistantPart,
  Message,
  ToolCallPart,
  ToolMessage,
  ToolResultPart,
  UserMessage,
} from './messages.js';
import type { PromptRules } from './model.js';
import { fitMessage, fitResult } from './prompt-fit.js';

/** What a provider takes, and in words what had to be mended to get there. */
export interface Sendable {
  readonly messages: readonly Message[];
  readonly repairs: readonly string[];
}

/** Letters that every provider takes in the id of a call, and the shortest limit among them. */
const CALL_ID = /^[a-zA-Z0-9_-]{1,40}$/;

/** Frozen messages are fitted once for each set of rules: a long conversation must not pay for its age on every call. */
const fitted = new WeakMap<object, WeakMap<object, Message | undefined>>();
const ANY = Object.freeze({});

/**
 * The sendable-history invariant, called before every model request. Whatever came into the history, what leaves has: each tool
 * call followed at once by its one result, no result without its call, no id twice, only ids and names that providers take,
 * arguments that are objects, no empty or blank text, no empty message, no lone surrogate, a user's message first, and nothing
 * that this provider's package refuses. Removes or fills in; never reorders what was said.
 */
export function sendable(messages: readonly Message[], rules?: PromptRules): Sendable {
  const repairs: string[] = [];
  const sending: Sending = { sent: [], usedIds: new Set(), repairs, rules, cache: cacheFor(rules) };
  const { sent } = sending;
  for (let index = 0; index < messages.length; index += 1) {
    const given = messages[index];
    const message = given === undefined ? undefined : fit(given, sending);
    if (message === undefined) continue;
    if (message.role === 'tool') {
      // Results are taken together with the calls before them; what is met here has none.
      for (const part of message.content)
        repairs.push(`a tool result without its call was left out (${part.toolCallId})`);
      continue;
    }
    if (message.role === 'system') {
      sent.push(
        rules?.systemAnywhere === false && sent.some(({ role }) => role !== 'system')
          ? { role: 'user', content: message.content }
          : message,
      );
      continue;
    }
    if (message.role === 'assistant' && sent.every(({ role }) => role === 'system')) {
      repairs.push('the history began with an assistant message; a user message was put before it');
      sent.push(OPENING);
    }
    const calls = callsIn(message);
    if (calls.length === 0) {
      sent.push(message);
      continue;
    }
    const results: ToolResultPart[] = [];
    for (let next = messages[index + 1]; next?.role === 'tool'; next = messages[index + 1]) {
      index += 1;
      const answer = fit(next, sending) as ToolMessage | undefined;
      if (answer !== undefined) results.push(...answer.content);
    }
    pushRound(message as AssistantMessage, calls, results, sending);
  }
  return { messages: sent, repairs };
}

const OPENING: UserMessage = Object.freeze({ role: 'user', content: '(The conversation goes on.)' });

interface Sending {
  readonly sent: Message[];
  readonly usedIds: Set<string>;
  readonly repairs: string[];
  readonly rules: PromptRules | undefined;
  readonly cache: WeakMap<object, Message | undefined>;
}

function cacheFor(rules: PromptRules | undefined): WeakMap<object, Message | undefined> {
  const key = rules ?? ANY;
  const known = fitted.get(key);
  if (known !== undefined) return known;
  const made = new WeakMap<object, Message | undefined>();
  fitted.set(key, made);
  return made;
}

function fit(message: Message, { cache, rules, repairs }: Sending): Message | undefined {
  if (cache.has(message)) return cache.get(message);
  const result = fitMessage(message, rules, (repair) => repairs.push(repair));
  if (Object.isFrozen(message)) cache.set(message, result === undefined ? undefined : deepFreeze(result));
  return result;
}

function pushRound(
  message: AssistantMessage,
  calls: readonly ToolCallPart[],
  results: readonly ToolResultPart[],
  sending: Sending,
): void {
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
    matched.push(
      result.toolCallId === id && result.toolName === call.toolName
        ? result
        : { ...result, toolCallId: id, toolName: call.toolName },
    );
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
  sent.push(...answersOf(matched, sending));
}

/** The same frozen messages for the same frozen results, so that their rendering is remembered. */
const answers = new WeakMap<
  object,
  WeakMap<ToolResultPart, { readonly results: readonly ToolResultPart[]; readonly messages: readonly Message[] }>
>();

/** The results of one round in one message, and after it the media that they cannot hold. */
function answersOf(results: readonly ToolResultPart[], { rules }: Sending): readonly Message[] {
  const key = rules ?? ANY;
  const cache =
    answers.get(key) ??
    new WeakMap<
      ToolResultPart,
      { readonly results: readonly ToolResultPart[]; readonly messages: readonly Message[] }
    >();
  answers.set(key, cache);
  const [first] = results;
  const known = first === undefined ? undefined : cache.get(first);
  if (known?.results.length === results.length && known.results.every((part, index) => part === results[index]))
    return known.messages;
  const fit = results.map((result) => fitResult(result, rules));
  const media = fit.flatMap((each) => each.media);
  const messages: readonly Message[] = deepFreeze([
    { role: 'tool' as const, content: fit.map((each) => each.result) },
    ...(media.length === 0 ? [] : [{ role: 'user' as const, content: media }]),
  ]);
  if (first !== undefined && Object.isFrozen(first)) cache.set(first, { results, messages });
  return messages;
}

export function callsIn(message: Message): ToolCallPart[] {
  if (message.role !== 'assistant' || typeof message.content === 'string') return [];
  return message.content.filter((part) => part.type === 'tool-call').filter((part) => part.providerExecuted !== true);
}

function usableId(id: string, used: Set<string>): string {
  const base = CALL_ID.test(id) ? id : `call_${id.replace(/[^a-zA-Z0-9_-]/g, '_').slice(0, 35)}`;
  let candidate = base;
  for (let number = 2; used.has(candidate); number += 1) candidate = `${base.slice(0, 32)}_${number}`;
  used.add(candidate);
  return candidate;
}

function interruptedResult(call: ToolCallPart): ToolResultPart {
  return {
    type: 'tool-result',
    toolCallId: call.toolCallId,
    toolName: call.toolName,
    output: {
      type: 'error-text',
      value: 'The call was interrupted before it gave a result; whether it had an effect is not known.',
    },
  };
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
  const options =
    message.providerOptions === undefined
      ? {}
      : { providerOptions: message.providerOptions as NonNullable<LanguageModelV3Message['providerOptions']> };
  switch (message.role) {
    case 'system':
      return { role: 'system', content: message.content, ...options };
    case 'user': {
      const parts =
        typeof message.content === 'string' ? [{ type: 'text' as const, text: message.content }] : message.content;
      return { role: 'user', content: parts.map(userPart), ...options } as LanguageModelV3Message;
    }
    case 'assistant': {
      const parts =
        typeof message.content === 'string' ? [{ type: 'text' as const, text: message.content }] : message.content;
      return {
        role: 'assistant',
        content: parts.map((part) => (part.type === 'file' ? filePart(part.data, part.mediaType, part) : part)),
        ...options,
      } as LanguageModelV3Message;
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
function filePart(
  data: string,
  mediaType: string,
  part: { readonly filename?: string | undefined; readonly providerOptions?: unknown },
): unknown {
  const extras = {
    ...(part.filename === undefined ? {} : { filename: part.filename }),
    ...(part.providerOptions === undefined ? {} : { providerOptions: part.providerOptions }),
  };
  const dataUrl = /^data:([^;,]+);base64,(.*)$/s.exec(data);
  if (dataUrl !== null) return { type: 'file', data: dataUrl[2], mediaType: dataUrl[1], ...extras };
  return { type: 'file', data: /^https?:\/\//.test(data) ? new URL(data) : data, mediaType, ...extras };
}
