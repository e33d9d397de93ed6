import { type Clock, pause } from './clock.js';
import { ModelCallError } from './run-errors.js';

const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 30_000;
const LONGEST_RETRY_AFTER_MS = 300_000;

export interface RetryOptions {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly maxRetries: number;
  /** A provider that asks for a longer pause is not waited for: the call fails and says so. */
  readonly longestPauseMs?: number | undefined;
  /** Between 0 and 1, for jitter. */
  random(): number;
  /** Another try follows after `delayMs`; `retry` counts them from 1. */
  onRetry(error: ModelCallError, delayMs: number, retry: number): void;
}

/** Makes a model call again after a passing failure, so many times at most. The pauses end at once when the signal aborts. */
export async function withRetries<T>(options: RetryOptions, call: () => Promise<T>): Promise<T> {
  const { clock, signal, maxRetries, longestPauseMs = LONGEST_RETRY_AFTER_MS } = options;
  for (let retry = 0; ; retry += 1) {
    try {
      return await call();
    } catch (error) {
      if (signal.aborted || !(error instanceof ModelCallError)) throw error;
      const delayMs = retryDelay(error, retry, options.random(), longestPauseMs);
      if (!error.retryable || retry >= maxRetries || delayMs === undefined) throw error;
      options.onRetry(error, delayMs, retry + 1);
      await pause(clock, delayMs, signal);
      signal.throwIfAborted();
    }
  }
}

/** Exponential back-off with jitter over its upper half; the provider's Retry-After wins. Undefined: not worth waiting for. */
function retryDelay(error: ModelCallError, retry: number, random: number, longestPauseMs: number): number | undefined {
  if (error.retryAfterMs !== undefined) return error.retryAfterMs > longestPauseMs ? undefined : error.retryAfterMs;
  const ceiling = Math.min(LONGEST_RETRY_MS, longestPauseMs, FIRST_RETRY_MS * 2 ** retry);
  return Math.round(ceiling / 2 + (random * ceiling) / 2);
}
