import type { InBandError } from './stream-errors.js';

/** The wire formats that are spoken: `chat` is OpenAI's Chat Completions and everything compatible with it. */
export type Dialect = 'chat' | 'responses' | 'anthropic' | 'google';

/** What one event of a stream means for its end; `undefined` for an ordinary event. */
export type EventVerdict =
  /** The end mark: nothing of the answer follows. */
  | { readonly kind: 'end' }
  /** The answer is whole, but events with its usage may still follow until the body ends. */
  | { readonly kind: 'whole' }
  | { readonly kind: 'error'; readonly error: InBandError }
  /** The event has to be read in this other spelling, because the provider package misreads the one that was sent. */
  | { readonly kind: 'rewrite'; readonly data: string };

type JsonObject = Readonly<Record<string, unknown>>;

const RESPONSES_SIGNAL = /"type"\s*:\s*"(?:error|function_call|response\.(?:completed|incomplete|failed))"/;
/** The id of a call that its provider gave none; the loop sees to it that no two calls of a run are named alike. */
const NAMELESS = 'call';

/**
 * Judges the data of one event. Called for every event, so it only parses the few whose text has one of the words it looks for;
 * the parsed object decides, so that the same words inside an answer's text or a tool's arguments mean nothing.
 *
 * @param data the event's data as Latin-1 text of its UTF-8 bytes
 */
export function judgeEvent(dialect: Dialect, data: string): EventVerdict | undefined {
  switch (dialect) {
    case 'chat':
      if (data === '[DONE]') return { kind: 'end' };
      return data.includes('"error"') ? judgeChat(data) : undefined;
    case 'anthropic':
      return data.includes('"message_stop"') || data.includes('"error"') || data.includes('"tool_use"')
        ? judgeAnthropic(data)
        : undefined;
    case 'responses':
      return RESPONSES_SIGNAL.test(data) || data.startsWith('{"error"') ? judgeResponses(data) : undefined;
    case 'google':
      return data.includes('"finishReason"') || data.includes('"blockReason"') || data.includes('"error"')
        ? judgeGoogle(data)
        : undefined;
  }
}

/** Reads an error out of a JSON document in any of the shapes that providers and gateways use; `undefined` when it has none. */
export function inBandErrorOf(document: unknown): InBandError | undefined {
  // Google sends its errors as a list of one where a stream was asked for without server-sent events.
  const top: unknown = Array.isArray(document) ? document[0] : document;
  if (!isObject(top)) return undefined;
  const inner = top.error;
  if (typeof inner === 'string' && inner !== '') return { message: inner, ...named(top) };
  if (isObject(inner) && Object.keys(inner).length > 0) return describe(inner, top);
  if (top.object === 'error' || top.type === 'error') return describe(top, {});
  return undefined;
}

/** The object that Latin-1 text of UTF-8 bytes spells, or `undefined`. */
export function parseLatin1(text: string): unknown {
  try {
    return JSON.parse(Buffer.from(text, 'latin1').toString('utf8')) as unknown;
  } catch {
    return undefined;
  }
}

function judgeChat(data: string): EventVerdict | undefined {
  const event = parseLatin1(data);
  if (!isObject(event)) return undefined;
  const error = inBandErrorOf(event);
  if (error !== undefined) return { kind: 'error', error };
  const choice: unknown = Array.isArray(event.choices) ? event.choices[0] : undefined;
  if (isObject(choice)) {
    const chosen = inBandErrorOf({ error: choice.error });
    if (chosen !== undefined) return { kind: 'error', error: chosen };
    if (choice.finish_reason === 'error') {
      return {
        kind: 'error',
        error: {
          message: 'The provider ended the answer with an error and gave no reason.',
          providerCode: 'error',
          status: undefined,
        },
      };
    }
  }
  if ('error' in event) {
    // The package takes the mere presence of the key for a failure, while some gateways send `"error": null` in every chunk.
    return rewrite({ ...event, error: undefined });
  }
  return undefined;
}

function rewrite(event: JsonObject): EventVerdict {
  return { kind: 'rewrite', data: Buffer.from(JSON.stringify(event), 'utf8').toString('latin1') };
}

function judgeAnthropic(data: string): EventVerdict | undefined {
  const event = parseLatin1(data);
  if (!isObject(event)) return undefined;
  if (event.type === 'message_stop') return { kind: 'end' };
  const block = event.content_block;
  if (isObject(block) && block.type === 'tool_use' && typeof block.id !== 'string') {
    return rewrite({ ...event, content_block: { ...block, id: NAMELESS } });
  }
  if (event.type === 'error' || event.type === undefined) {
    const error = inBandErrorOf(event);
    return error === undefined ? undefined : { kind: 'error', error };
  }
  return undefined;
}

function judgeResponses(data: string): EventVerdict | undefined {
  const event = parseLatin1(data);
  if (!isObject(event)) return undefined;
  const { item } = event;
  if (isObject(item) && item.type === 'function_call' && typeof item.call_id !== 'string') {
    return rewrite({ ...event, item: { ...item, call_id: text(item.id) ?? NAMELESS } });
  }
  switch (event.type) {
    case 'response.completed':
    case 'response.incomplete':
      return { kind: 'end' };
    case 'response.failed': {
      const response = isObject(event.response) ? event.response : {};
      return { kind: 'error', error: inBandErrorOf({ error: response.error }) ?? UNEXPLAINED };
    }
    case 'error':
    case undefined: {
      const error = inBandErrorOf(event);
      return error === undefined ? undefined : { kind: 'error', error };
    }
  }
  return undefined;
}

function judgeGoogle(data: string): EventVerdict | undefined {
  const event = parseLatin1(data);
  if (!isObject(event)) return undefined;
  const error = inBandErrorOf(event);
  if (error !== undefined) return { kind: 'error', error };
  const candidate: unknown = Array.isArray(event.candidates) ? event.candidates[0] : undefined;
  if (isObject(candidate) && typeof candidate.finishReason === 'string') return { kind: 'whole' };
  const feedback = event.promptFeedback;
  if (isObject(feedback) && typeof feedback.blockReason === 'string') return { kind: 'whole' };
  return undefined;
}

const UNEXPLAINED: InBandError = {
  message: 'The provider failed the answer and gave no reason.',
  providerCode: 'server_error',
  status: undefined,
};

function describe(error: JsonObject, around: JsonObject): InBandError {
  const message = text(error.message) ?? text(error.detail) ?? text(error.msg) ?? JSON.stringify(error);
  const own = named(error);
  const outer = named(around);
  return { message, providerCode: own.providerCode ?? outer.providerCode, status: own.status ?? outer.status };
}

/** The provider's word for the error, and the HTTP status where a number in the HTTP range stands in its place. */
function named(error: JsonObject): { readonly providerCode: string | undefined; readonly status: number | undefined } {
  const words = [error.code, error.type, error.status];
  const status = [error.status, error.status_code, error.code].map(httpStatus).find((value) => value !== undefined);
  const word = words
    .map(text)
    .find((value) => value !== undefined && value !== 'error' && httpStatus(value) === undefined);
  return { providerCode: word, status };
}

function httpStatus(value: unknown): number | undefined {
  const number = typeof value === 'string' && /^\d{3}$/.test(value) ? Number(value) : value;
  return typeof number === 'number' && Number.isInteger(number) && number >= 400 && number <= 599 ? number : undefined;
}

function text(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
