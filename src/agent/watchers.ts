import type { Frame } from './attempt.js';
import type { EventInput } from './events.js';
import { deepFreeze } from './json.js';
import { messageOf } from './run-errors.js';
import type { RunEvent } from './scope.js';
import type { Logger } from './tools.js';

/** The shims that watch one attempt, each while its own agent is at work. */
export class Watchers {
  readonly #attempt: { readonly frame: Frame | undefined; readonly log: Logger };
  readonly #watching: { readonly frame: Frame | undefined; readonly listener: (event: RunEvent) => void }[] = [];

  constructor(attempt: { readonly frame: Frame | undefined; readonly log: Logger }) {
    this.#attempt = attempt;
  }

  add(listener: (event: RunEvent) => void): void {
    this.#watching.push({ frame: this.#attempt.frame, listener });
  }

  /** Nothing of the event can be changed, and a throw changes nothing (R110). */
  tell(event: EventInput): void {
    for (const { frame, listener } of this.#watching) {
      if (frame !== this.#attempt.frame) continue;
      try {
        listener(deepFreeze(event));
      } catch (error) {
        this.#attempt.log.warn({ reason: messageOf(error) }, 'a shim that watches the run failed');
      }
    }
  }
}
