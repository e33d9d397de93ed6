import { z } from 'zod';

/** Why a run failed: the value of `error.code` on a failed run. */
export const RunErrorCodeSchema = z.enum([
  'model_error',
  'model_stream_cut',
  'model_idle_timeout',
  'context_exceeded',
  'output_limit',
  'model_behaviour',
  'shim_failed',
  'shim_timeout',
  'shim_cleanup_failed',
  'limit_exceeded',
  'output_invalid',
  'tool_outcome',
  'crash_loop',
  'internal',
]);
export type RunErrorCode = z.infer<typeof RunErrorCodeSchema>;

/** The stored form of a failure: what the run's `error` and the event `run.failed` carry. */
export const RunErrorDataSchema = z.looseObject({ code: RunErrorCodeSchema, message: z.string() });
export type RunErrorData = z.infer<typeof RunErrorDataSchema>;

/** An error that ends an attempt as `failed`, with a code that clients can act on. */
export class RunError extends Error {
  readonly code: RunErrorCode;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(
    code: RunErrorCode,
    message: string,
    options: { readonly details?: Readonly<Record<string, unknown>>; readonly cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.name = new.target.name;
    this.code = code;
    this.details = options.details ?? {};
  }

  toData(): RunErrorData {
    return { code: this.code, message: this.message, ...this.details };
  }
}

/** The fields of a run's usage. */
type ToldTokens = Readonly<
  Record<'inputTokens' | 'outputTokens' | 'totalTokens' | 'cachedInputTokens' | 'reasoningTokens', number>
>;

export interface ModelFailure {
  readonly code:
    | 'model_error'
    | 'model_stream_cut'
    | 'model_idle_timeout'
    | 'context_exceeded'
    | 'output_limit'
    | 'model_behaviour';
  readonly message: string;
  /** True for a passing fault (429, 5xx, reset, cut, silence): the same call may succeed when made again. */
  readonly retryable: boolean;
  readonly provider?: string | undefined;
  /** HTTP status of the provider's answer, where there was one. */
  readonly status?: number | undefined;
  readonly requestId?: string | undefined;
  /** The provider's own error type or code, e.g. `overloaded_error`. */
  readonly providerCode?: string | undefined;
  /** What `Retry-After` asked for, in milliseconds. */
  readonly retryAfterMs?: number | undefined;
  /** What the provider had told of its cost before it failed. */
  readonly usage?: ToldTokens | undefined;
}

/** A model call that did not give a complete answer. */
export class ModelCallError extends RunError {
  readonly retryable: boolean;
  readonly retryAfterMs: number | undefined;
  readonly usage: ToldTokens | undefined;
  readonly #failure: ModelFailure;

  constructor(failure: ModelFailure, cause?: unknown) {
    const details: Record<string, unknown> = {};
    for (const name of ['provider', 'status', 'requestId', 'providerCode'] as const) {
      if (failure[name] !== undefined) details[name] = failure[name];
    }
    super(failure.code, failure.message, { details, cause });
    this.retryable = failure.retryable;
    this.retryAfterMs = failure.retryAfterMs;
    this.usage = failure.usage;
    this.#failure = failure;
  }

  /** The same failure, where the next try will be another one. */
  asRetryable(): ModelCallError {
    return new ModelCallError({ ...this.#failure, retryable: true }, this.cause);
  }
}

/** The run was cancelled (R69). Only this class means a cancel; a shim's own `AbortError` is a failure. */
export class RunCancelledError extends Error {
  /** When the cancel was asked for, in milliseconds since the epoch; unknown where a callback threw it. */
  readonly requestedAtMs: number | undefined;
  constructor(message = 'The run was cancelled.', requestedAtMs?: number) {
    super(message);
    this.name = 'RunCancelledError';
    this.requestedAtMs = requestedAtMs;
  }
}

/** The attempt stops here without an end: the process is going down, or another one has the run. Recovery goes on with it. */
export class HandedOverError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'HandedOverError';
  }
}

/**
 * Thrown by a shim to have the run wait for a bigger budget (reason `budget`) instead of failing: the turn's writes are
 * discarded, and a resume with raised `limits` goes on from the last checkpoint.
 */
export class BudgetReachedError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'BudgetReachedError';
  }
}

/** Which limit stopped the run, what it was and what was reached. Resumable with a raised limit. */
export class LimitExceededError extends RunError {
  constructor(limit: string, allowed: number, reached: number) {
    super('limit_exceeded', `The run reached its limit ${limit} (${allowed}).`, {
      details: { limit, allowed, reached },
    });
  }
}

/** The one shape of a shim's failure (R62): which shim, in which callback, and why. */
export class ShimError extends RunError {
  readonly shim: string;
  readonly phase: string;

  constructor(shim: string, phase: string, cause: unknown, code: 'shim_failed' | 'shim_timeout' = 'shim_failed') {
    super(code, `Shim ${JSON.stringify(shim)} failed in ${phase}: ${messageOf(cause)}`, {
      details: { shim, phase, cause: messageOf(cause) },
      cause,
    });
    this.shim = shim;
    this.phase = phase;
  }
}

/** The failures of `onRunEnd` callbacks, when nothing else had failed (R58). */
export class ShimCleanupError extends AggregateError {
  declare readonly errors: ShimError[];

  constructor(errors: readonly ShimError[]) {
    super([...errors], `${errors.length} shim(s) failed in onRunEnd: ${errors.map((error) => error.shim).join(', ')}`);
    this.name = 'ShimCleanupError';
  }

  toData(): RunErrorData {
    return { code: 'shim_cleanup_failed', message: this.message, errors: this.errors.map((error) => error.toData()) };
  }
}

/** Two definitions of one tool name where one asked for a unique name (R38). */
export class ToolNameCollisionError extends Error {
  readonly toolName: string;
  constructor(toolName: string) {
    super(`The tool name ${JSON.stringify(toolName)} is taken or reserved in this turn.`);
    this.name = 'ToolNameCollisionError';
    this.toolName = toolName;
  }
}

/** A readable sentence for whatever was thrown: Errors, strings, and things with hostile getters. */
export function messageOf(thrown: unknown): string {
  try {
    if (thrown instanceof Error) return thrown.message === '' ? thrown.name : thrown.message;
    if (typeof thrown === 'string') return thrown;
    const text = JSON.stringify(thrown) as string | undefined;
    return text ?? String(thrown);
  } catch {
    return 'something that cannot be printed was thrown';
  }
}

/** Finds a cancellation in an error, its causes and the members of aggregates (R69). */
export function findCancellation(thrown: unknown, depth = 0): RunCancelledError | undefined {
  if (thrown instanceof RunCancelledError) return thrown;
  if (!(thrown instanceof Error) || depth > 8) return undefined;
  const nested = thrown instanceof AggregateError ? [...(thrown.errors as unknown[]), thrown.cause] : [thrown.cause];
  for (const inner of nested) {
    const found = findCancellation(inner, depth + 1);
    if (found !== undefined) return found;
  }
  return undefined;
}

const MODEL_CODES: ReadonlySet<RunErrorCode> = new Set([
  'model_error',
  'model_stream_cut',
  'model_idle_timeout',
  'context_exceeded',
  'output_limit',
  'model_behaviour',
]);

/**
 * A run's failure as the problem object that HTTP would have given (RFC 9457): what is stored as `error` and sent with
 * `run.failed`. `status` is the provider's own where it answered with one.
 */
export function failureProblem(data: RunErrorData): RunErrorData {
  const words = data.code.replaceAll('_', ' ');
  return {
    type: `urn:shimline:error:${data.code}`,
    title: words.charAt(0).toUpperCase() + words.slice(1),
    status: MODEL_CODES.has(data.code) ? 502 : 500,
    detail: data.message,
    ...data,
  };
}

/**
 * What a log may say of a failure: all of a shim's (R62), of others the code and the facts around it, since their message may quote
 * what the model or a user said.
 */
export function loggedError(error: RunErrorData): Readonly<Record<string, unknown>> {
  if (error.code.startsWith('shim_') || error.code === 'internal') return error;
  const { message: _message, detail: _detail, errors: _errors, ...facts } = error;
  return facts;
}

/**
 * The stored form of anything that ended an attempt.
 * @param conceal cleans every text of it, since what was thrown may quote whatever its thrower had at hand
 */
export function runErrorData(thrown: unknown, conceal?: (text: string) => string): RunErrorData {
  const data: RunErrorData =
    thrown instanceof RunError || thrown instanceof ShimCleanupError
      ? thrown.toData()
      : { code: 'internal', message: messageOf(thrown) };
  return conceal === undefined ? data : { ...(concealed(data, conceal) as RunErrorData), code: data.code };
}

function concealed(value: unknown, conceal: (text: string) => string): unknown {
  if (typeof value === 'string') return conceal(value);
  if (Array.isArray(value)) return value.map((inner) => concealed(inner, conceal));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, concealed(inner, conceal)]));
}
