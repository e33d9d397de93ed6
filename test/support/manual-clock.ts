import { setImmediate as turn } from 'node:timers/promises';
import type { Clock } from '../../src/agent/clock.js';

interface Timer {
  readonly at: number;
  readonly callback: () => void;
}

/** A clock that stands still until it is advanced. */
export class ManualClock implements Clock {
  #now = Date.UTC(2030, 0, 1);
  readonly #timers = new Set<Timer>();

  now = (): number => this.#now;

  after = (ms: number, callback: () => void): (() => void) => {
    const timer = { at: this.#now + ms, callback };
    this.#timers.add(timer);
    return () => {
      this.#timers.delete(timer);
    };
  };

  /** Timers that are neither over nor cancelled. */
  get pending(): number {
    return this.#timers.size;
  }

  /** Goes on by so much, timer by timer, each with all that follows from it. */
  async advance(ms: number): Promise<void> {
    const end = this.#now + ms;
    await settle();
    for (;;) {
      const [next] = [...this.#timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at);
      if (next === undefined) break;
      this.#timers.delete(next);
      this.#now = next.at;
      next.callback();
      await settle();
    }
    this.#now = end;
  }
}

/** Lets everything go on that waits for no timer and no socket. */
export async function settle(): Promise<void> {
  for (let round = 0; round < 5; round += 1) await turn();
}
