import { onAbort } from './abort.js';

/** Time as the domain sees it; the real one is made in `app.ts`, tests bring their own. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Calls back once after so many milliseconds, unless the returned function was called before. */
  after(ms: number, callback: () => void): () => void;
}

/** A timer that is set to more fires at once. */
const LONGEST_TIMER_MS = 2_147_000_000;

export const systemClock: Clock = {
  now: () => Date.now(),
  after: (ms, callback) => {
    let timer: ReturnType<typeof setTimeout>;
    const wait = (leftMs: number): void => {
      if (leftMs <= LONGEST_TIMER_MS) timer = setTimeout(callback, leftMs);
      else timer = setTimeout(wait, LONGEST_TIMER_MS, leftMs - LONGEST_TIMER_MS);
    };
    wait(ms);
    return () => {
      clearTimeout(timer);
    };
  },
};

/** Resolves after so many milliseconds, or at once when the signal aborts. */
export async function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  await new Promise<void>((resolve) => {
    const done = (): void => {
      cancelTimer();
      unwatch();
      resolve();
    };
    const cancelTimer = clock.after(ms, done);
    const unwatch = onAbort(signal, done);
  });
}

export type Bounded<T> =
  | { readonly kind: 'value'; readonly value: T }
  | { readonly kind: 'error'; readonly error: unknown }
  /** The time was over. */
  | { readonly kind: 'timeout'; readonly ms: number }
  /** The signal aborted; `obeyed` says whether the promise settled within the grace, `ms` how long that took. */
  | { readonly kind: 'aborted'; readonly obeyed: boolean; readonly ms: number; readonly value?: T };

export interface Bounds {
  readonly clock: Clock;
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** How long after the abort a promise may still settle on its own. */
  readonly graceMs: number;
}

/**
 * Waits for a promise no longer than the bounds allow and never rejects. A promise that is given up is still observed, so
 * its later rejection is nobody's unhandled one; no timer or listener stays behind (R74).
 */
export async function within<T>(promise: PromiseLike<T>, bounds: Bounds): Promise<Bounded<T>> {
  const { clock, timeoutMs, signal, graceMs } = bounds;
  return new Promise<Bounded<T>>((resolve) => {
    let abortedAt: number | undefined;
    let cancelTimer = (): void => undefined;
    let unwatch = (): void => undefined;
    const finish = (outcome: Bounded<T>): void => {
      cancelTimer();
      unwatch();
      resolve(outcome);
    };
    const startGrace = (): void => {
      abortedAt = clock.now();
      cancelTimer();
      cancelTimer = clock.after(graceMs, () => {
        finish({ kind: 'aborted', obeyed: false, ms: graceMs });
      });
    };
    if (signal?.aborted === true) startGrace();
    else {
      if (signal !== undefined) unwatch = onAbort(signal, startGrace);
      if (timeoutMs !== undefined && Number.isFinite(timeoutMs)) {
        cancelTimer = clock.after(timeoutMs, () => {
          finish({ kind: 'timeout', ms: timeoutMs });
        });
      }
    }
    promise.then(
      (value) => {
        finish(
          abortedAt === undefined
            ? { kind: 'value', value }
            : { kind: 'aborted', obeyed: true, ms: clock.now() - abortedAt, value },
        );
      },
      (error: unknown) => {
        finish(
          abortedAt === undefined
            ? { kind: 'error', error }
            : { kind: 'aborted', obeyed: true, ms: clock.now() - abortedAt },
        );
      },
    );
  });
}
