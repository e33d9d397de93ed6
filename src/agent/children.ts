import { onAbort } from './abort.js';
import { RunCancelledError } from './run-errors.js';

/** The children of an attempt that are at work, each with the call that it works for. */
export class Children {
  readonly #signal: AbortSignal;
  readonly #atWork = new Map<Promise<unknown>, string>();
  #stop = new AbortController();

  /** @param signal of the attempt */
  constructor(signal: AbortSignal) {
    this.#signal = signal;
  }

  /** Aborted when nobody waits for the children of now any more. */
  get stop(): AbortSignal {
    return this.#stop.signal;
  }

  get atWork(): boolean {
    return this.#atWork.size > 0;
  }

  async during<T>(toolCallId: string, child: Promise<T>): Promise<T> {
    this.#atWork.set(child, toolCallId);
    try {
      return await child;
    } finally {
      this.#atWork.delete(child);
    }
  }

  /** Stops the children that nobody waits for any more, and waits until they are over: their clean-up comes before this run's (R99). */
  async end(): Promise<void> {
    if (!this.atWork) return;
    const stop = this.#stop;
    this.#stop = new AbortController();
    stop.abort(this.#signal.aborted ? this.#signal.reason : new RunCancelledError());
    await Promise.allSettled(this.#atWork.keys());
  }

  /** The signal by which one tool call is given up: that of the attempt, but not before the children that work for the call are over. */
  stopOf(toolCallId: string): { readonly signal: AbortSignal; release(): void } {
    const signal = this.#signal;
    const controller = new AbortController();
    const release = onAbort(signal, () => {
      const mine = [...this.#atWork].flatMap(([child, call]) => (call.startsWith(toolCallId) ? [child] : []));
      const stop = (): void => {
        controller.abort(signal.reason);
      };
      if (mine.length === 0) stop();
      else Promise.allSettled(mine).then(stop, stop);
    });
    return { signal: controller.signal, release };
  }
}
