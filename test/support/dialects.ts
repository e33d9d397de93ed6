import { messagesFrames, messagesJson } from './anthropic-answers.js';
import { contentFrames, contentJson } from './google-answers.js';
import type { JsonObject } from './json-path.js';
import type { Frame, PlannedReply } from './model-reply.js';
import { type AnswerContext, chatFrames, chatJson } from './openai-answers.js';
import { responsesFrames, responsesItems, responsesJson } from './responses-answers.js';
import { checkMessages } from './strict-anthropic.js';
import type { CheckedRequest, Problem } from './strict-checks.js';
import { checkGenerateContent } from './strict-google.js';
import { checkChatCompletions } from './strict-openai.js';
import { checkResponses } from './strict-responses.js';

export type DialectName = 'openai-chat' | 'openai-responses' | 'anthropic' | 'google';

export interface Dialect {
  readonly name: DialectName;
  readonly idPrefix: string;
  /** The event name of an in-band error, where the dialect names its events. */
  readonly errorEvent?: string;
  readonly ping: string;
  check(request: CheckedRequest): void;
  frames(reply: PlannedReply, context: AnswerContext): Frame[];
  json(reply: PlannedReply, context: AnswerContext): object;
  errorBody(problem: Problem): object;
  overflow(bytes: number, limit: number): Problem;
  /** The answer went out whole, so the provider has stored it. */
  remember?(reply: PlannedReply, context: AnswerContext): void;
}

const openAiTypes: Readonly<Record<number, string>> = { 429: 'requests', 500: 'server_error', 503: 'server_error' };
const openAiCodes: Readonly<Record<number, string>> = { 401: 'invalid_api_key', 429: 'rate_limit_exceeded' };

function openAiError({ message, status = 400, type, code, param }: Problem): object {
  return {
    error: {
      message,
      type: type ?? openAiTypes[status] ?? 'invalid_request_error',
      param: param ?? null,
      code: code ?? openAiCodes[status] ?? null,
    },
  };
}

function openAiOverflow(bytes: number, limit: number): Problem {
  const rule = `This model's maximum context length is ${limit} tokens.`;
  const message = `${rule} However, your messages resulted in ${bytes} tokens. Please reduce the length of the messages.`;
  return { message, code: 'context_length_exceeded', param: 'messages' };
}

const anthropicTypes: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  500: 'api_error',
  529: 'overloaded_error',
};

function anthropicError({ message, status = 400, type }: Problem): object {
  const error = { type: type ?? anthropicTypes[status] ?? 'invalid_request_error', message };
  return { type: 'error', error, request_id: 'req_0' };
}

const googleStatus: Readonly<Record<number, string>> = {
  401: 'UNAUTHENTICATED',
  403: 'PERMISSION_DENIED',
  404: 'NOT_FOUND',
  429: 'RESOURCE_EXHAUSTED',
  500: 'INTERNAL',
  503: 'UNAVAILABLE',
};

function googleError({ message, status = 400, type }: Problem): object {
  return { error: { code: status, message, status: type ?? googleStatus[status] ?? 'INVALID_ARGUMENT' } };
}

const comment = ': ping\n\n';

/** One set per endpoint, since the Responses API remembers what it answered. */
export function createDialects(): Readonly<Record<DialectName, Dialect>> {
  const items = new Map<string, JsonObject>();
  const responses = new Map<string, readonly JsonObject[]>();
  const stored = { item: (id: string) => items.get(id), response: (id: string) => responses.get(id) };
  return {
    'openai-chat': {
      name: 'openai-chat',
      idPrefix: 'chatcmpl-',
      ping: comment,
      check: checkChatCompletions,
      frames: chatFrames,
      json: chatJson,
      errorBody: openAiError,
      overflow: openAiOverflow,
    },
    'openai-responses': {
      name: 'openai-responses',
      idPrefix: 'resp_',
      errorEvent: 'error',
      ping: comment,
      check: (request) => {
        checkResponses(request, stored);
      },
      frames: responsesFrames,
      json: responsesJson,
      errorBody: openAiError,
      overflow: openAiOverflow,
      remember: (reply, context) => {
        const output = responsesItems(reply, context);
        for (const item of output) items.set(String(item.id), item);
        responses.set(context.id, output);
      },
    },
    anthropic: {
      name: 'anthropic',
      idPrefix: 'msg_',
      errorEvent: 'error',
      ping: 'event: ping\ndata: {"type":"ping"}\n\n',
      check: checkMessages,
      frames: messagesFrames,
      json: messagesJson,
      errorBody: anthropicError,
      overflow: (bytes, limit) => ({ message: `prompt is too long: ${bytes} tokens > ${limit} maximum` }),
    },
    google: {
      name: 'google',
      idPrefix: 'gen_',
      ping: comment,
      check: checkGenerateContent,
      frames: contentFrames,
      json: contentJson,
      errorBody: googleError,
      overflow: (bytes, limit) => {
        const message = `The input token count (${bytes}) exceeds the maximum number of tokens allowed (${limit}).`;
        return { message };
      },
    },
  };
}

const kinds = {
  overloaded: { status: 503, anthropic: 529, message: 'Overloaded' },
  rate_limit: { status: 429, anthropic: 429, message: 'Rate limit reached' },
  invalid_request: { status: 400, anthropic: 400, message: 'Invalid request' },
  server_error: { status: 500, anthropic: 500, message: 'Internal error' },
} as const;

/** The body that a provider puts into an open stream for such a failure; for `errorInStream`. */
export function inBandError(dialect: DialectName, kind: keyof typeof kinds): object {
  const { status, anthropic, message } = kinds[kind];
  switch (dialect) {
    case 'anthropic':
      return anthropicError({ message, status: anthropic });
    case 'google':
      return googleError({ message, status });
    case 'openai-chat':
      return openAiError({ message, status });
    case 'openai-responses':
      return { type: 'error', sequence_number: 0, ...openAiError({ message, status }) };
  }
}
