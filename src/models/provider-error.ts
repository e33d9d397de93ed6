import {
  APICallError,
  EmptyResponseBodyError,
  InvalidResponseDataError,
  JSONParseError,
  TypeValidationError,
} from '@ai-sdk/provider';
import type { Usage } from '../agent/model.js';
import { ModelCallError, messageOf } from '../agent/run-errors.js';
import { meansContextExceeded } from './context-exceeded.js';
import { inBandErrorOf } from './dialect.js';
import type { TextCleaner } from './error-text.js';
import { type InBandError, InBandStreamError, NotAStreamError, StreamCutError } from './stream-errors.js';

export interface FailureContext {
  /** The name of the provider, e.g. `openai-compatible`. */
  readonly provider: string;
  readonly clean: TextCleaner;
}

/** What is known of a failure before it is judged. */
interface Finding {
  readonly message: string;
  readonly code?: 'model_error' | 'model_stream_cut';
  readonly status?: number | undefined;
  readonly providerCode?: string | undefined;
  readonly requestId?: string | undefined;
  readonly usage?: Usage | undefined;
  readonly retryAfterMs?: number | undefined;
  /** Set where the kind of the failure decides; else status and provider code do. */
  readonly retryable?: boolean | undefined;
}

type Headers = Readonly<Record<string, string | undefined>>;

/**
 * Reads whatever a model call or its stream threw, or carried in an `error` part, as one typed failure. Never throws.
 * Message, code and request id are the provider's own, without secrets; the raw error, which holds the whole request, is not kept.
 */
export function failureOf(thrown: unknown, context: FailureContext): ModelCallError {
  if (thrown instanceof ModelCallError) return thrown;
  let finding: Finding;
  try {
    finding = findingOf(thrown);
  } catch {
    finding = { message: messageOf(thrown) };
  }
  const { clean } = context;
  const status = finding.status;
  const message = clean(finding.message.trim() === '' ? emptyMessage(status) : finding.message);
  const providerCode = finding.providerCode === undefined ? undefined : clean(finding.providerCode).slice(0, 100);
  const common = {
    message,
    provider: context.provider,
    status,
    providerCode,
    usage: finding.usage,
    requestId: finding.requestId === undefined ? undefined : clean(finding.requestId).slice(0, 200),
  };
  const cause = new Error(message);
  cause.name = thrown instanceof Error ? clean(thrown.name).slice(0, 100) : 'ProviderError';
  if (
    finding.code !== 'model_stream_cut' &&
    meansContextExceeded({ status, providerCode: finding.providerCode, message: finding.message })
  ) {
    return new ModelCallError({ ...common, code: 'context_exceeded', retryable: false }, cause);
  }
  const retryable = finding.retryable ?? passes(status, finding.providerCode, finding.message);
  return new ModelCallError(
    {
      ...common,
      code: finding.code ?? 'model_error',
      retryable,
      retryAfterMs: retryable ? finding.retryAfterMs : undefined,
    },
    cause,
  );
}

function findingOf(thrown: unknown): Finding {
  const chain = causesOf(thrown);
  for (const error of chain) {
    if (error instanceof StreamCutError)
      return {
        message: error.message,
        code: 'model_stream_cut',
        requestId: error.requestId ?? requestIdIn(chain),
        usage: error.usage,
        retryable: true,
      };
    if (error instanceof InBandStreamError)
      return { ...ofInBand(error), requestId: error.requestId, usage: error.usage };
    if (error instanceof NotAStreamError)
      return { message: error.message, requestId: error.requestId, retryable: false };
  }
  for (const error of chain) {
    if (APICallError.isInstance(error)) return ofApiCall(error, chain);
    // Without a finish reason the answer may lack anything; the other faults of this class are garbled streams.
    if (InvalidResponseDataError.isInstance(error)) {
      return {
        message: error.message,
        code: error.message.includes('finish reason') ? 'model_stream_cut' : 'model_error',
        retryable: true,
      };
    }
    if (JSONParseError.isInstance(error))
      return {
        message: `The provider's stream had an event that is not JSON: ${error.text.slice(0, 500)}`,
        retryable: true,
      };
    if (TypeValidationError.isInstance(error))
      return {
        message: `The provider's stream had an event of an unknown shape: ${messageOf(error.value).slice(0, 500)}`,
        retryable: false,
      };
    if (EmptyResponseBodyError.isInstance(error))
      return { message: error.message, code: 'model_stream_cut', retryable: true };
  }
  const network = chain.find(isNetworkError);
  if (network !== undefined)
    return { message: `The connection to the provider failed: ${network.message}`, retryable: true };
  if (thrown instanceof Error) return { message: messageOf(thrown), retryable: false };
  return ofPlain(thrown);
}

/** An HTTP answer that is no success, or none at all. */
function ofApiCall(error: APICallError, chain: readonly unknown[]): Finding {
  const headers: Headers = error.responseHeaders ?? {};
  const network = chain.find(isNetworkError);
  if (error.statusCode === undefined && network !== undefined) {
    const reason = network.message === '' ? network.code : network.message;
    return { message: `The connection to the provider failed: ${reason}`, providerCode: network.code, retryable: true };
  }
  // An answer that had begun well and could not be read on: the reason is below.
  const succeeded = error.statusCode !== undefined && error.statusCode < 300;
  if (succeeded && error.responseBody === undefined && error.cause instanceof Error)
    return { message: messageOf(error.cause), retryable: network !== undefined };
  const document = parsed(error.responseBody);
  const told = inBandErrorOf(document) ?? loose(document);
  const message = told?.message ?? bodyText(error.responseBody) ?? error.message;
  const status = error.statusCode;
  const known = {
    message,
    status,
    providerCode: told?.providerCode,
    requestId: requestIdOf(headers),
    retryAfterMs: retryAfterMs(headers, document),
  };
  const advice = headers['x-should-retry'];
  if (advice === 'true' || advice === 'false') return { ...known, retryable: advice === 'true' };
  return known;
}

/** An `error` part carries what the stream said, as it is: the OpenAI packages flatten it and keep the event in `data`. */
function ofPlain(thrown: unknown): Finding {
  if (typeof thrown !== 'object' || thrown === null) return { message: messageOf(thrown) };
  const told = inBandErrorOf(thrown) ?? inBandErrorOf({ error: thrown });
  const status = 'statusCode' in thrown && typeof thrown.statusCode === 'number' ? thrown.statusCode : undefined;
  return told === undefined ? { message: messageOf(thrown) } : { ...ofInBand(told), status: told.status ?? status };
}

function ofInBand(error: InBandError): Finding {
  return { message: error.message, providerCode: error.providerCode, status: error.status };
}

const PASSING_WORDS =
  /overloaded|rate.?limit|too.?many.?requests|timeout|timed.?out|unavailable|server.?error|internal|api_error|exhausted|capacity|deadline|aborted/i;
const LASTING_WORDS =
  /invalid|bad.?request|authentication|unauthorized|unauthenticated|permission|forbidden|not.?found|not.?supported|unsupported|quota|billing|credit|payment|policy|content.?filter|safety/i;

/** Whether the same call may succeed when it is made again. */
function passes(status: number | undefined, providerCode: string | undefined, message: string): boolean {
  // An empty account answers 429 as well, but does not fill up by waiting.
  if (providerCode !== undefined && /insufficient_quota|billing/i.test(providerCode)) return false;
  if (status !== undefined)
    return (
      status === 408 ||
      status === 409 ||
      status === 425 ||
      status === 429 ||
      (status >= 500 && status !== 501 && status !== 505)
    );
  if (providerCode !== undefined) {
    if (PASSING_WORDS.test(providerCode)) return true;
    if (LASTING_WORDS.test(providerCode)) return false;
  }
  // Without status or known word: a fault inside a stream that had been accepted is mostly the server's.
  return !LASTING_WORDS.test(message) || PASSING_WORDS.test(message);
}

/** `retry-after-ms`, `Retry-After` in seconds or as a date, or Google's `retryDelay`, in milliseconds. */
function retryAfterMs(headers: Headers, document: unknown): number | undefined {
  const exact = Number.parseFloat(headers['retry-after-ms'] ?? '');
  if (Number.isFinite(exact) && exact >= 0) return Math.ceil(exact);
  const header = headers['retry-after'];
  if (header !== undefined) {
    const seconds = Number(header);
    if (header.trim() !== '' && Number.isFinite(seconds)) return seconds >= 0 ? Math.ceil(seconds * 1000) : undefined;
    const date = Date.parse(header);
    if (!Number.isNaN(date)) return Math.max(0, date - Date.now());
  }
  const delay = /"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"/.exec(document === undefined ? '' : messageOf(document));
  return delay === null ? undefined : Math.ceil(Number(delay[1]) * 1000);
}

/** Error bodies without an `error`: FastAPI's `detail`, or a bare `message`. */
function loose(document: unknown): InBandError | undefined {
  if (typeof document !== 'object' || document === null || Array.isArray(document)) return undefined;
  const { message, detail } = document as { readonly message?: unknown; readonly detail?: unknown };
  const value = message ?? detail;
  if (value === undefined || value === null) return undefined;
  return typeof value === 'string'
    ? inBandErrorOf({ error: { ...document, message: value } })
    : { message: messageOf(value), providerCode: undefined, status: undefined };
}

/** A body that is no JSON, when a person can read it: an HTML page of a proxy is reduced to its title. */
function bodyText(body: string | undefined): string | undefined {
  const text = (body ?? '').trim();
  if (text === '') return undefined;
  if (!text.startsWith('<')) return text;
  return /<title[^>]*>([^<]{1,200})<\/title>/i.exec(text)?.[1]?.trim();
}

function emptyMessage(status: number | undefined): string {
  return status === undefined
    ? 'The provider failed and gave no reason.'
    : `The provider answered with status ${status} and gave no reason.`;
}

function requestIdIn(chain: readonly unknown[]): string | undefined {
  const call = chain.find((error) => APICallError.isInstance(error));
  return call === undefined ? undefined : requestIdOf(call.responseHeaders ?? {});
}

function requestIdOf(headers: Headers): string | undefined {
  return headers['x-request-id'] ?? headers['request-id'] ?? headers['x-goog-request-id'];
}

/** The error and its causes, outermost first. */
function causesOf(thrown: unknown): unknown[] {
  const chain: unknown[] = [];
  for (let error = thrown; chain.length < 8 && error !== undefined && error !== null && !chain.includes(error); ) {
    chain.push(error);
    error = error instanceof Error ? error.cause : undefined;
  }
  return chain;
}

function isNetworkError(error: unknown): error is Error & { readonly code: string } {
  return (
    error instanceof Error &&
    'code' in error &&
    typeof error.code === 'string' &&
    /^(?:E[A-Z]{3,}|UND_ERR_|CERT_|ERR_TLS|ERR_SSL)/.test(error.code)
  );
}

function parsed(body: string | undefined): unknown {
  if (body === undefined) return undefined;
  try {
    return JSON.parse(body) as unknown;
  } catch {
    return undefined;
  }
}
