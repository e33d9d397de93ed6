import type { EventInput } from './events.js';
import { deepFreeze } from './json.js';
import { messageOf } from './run-errors.js';
import type { RunEvent } from './scope.js';
import type { Logger } from './tools.js';

interface Watched {
  /** The agent at work; only whether it is the same one matters. */
  readonly frame: object | undefined;
  readonly log: Logger;
}

/** The shims that watch one attempt, each while its own agent is at work. */
export class Watchers {
  readonly #attempt: Watched;
  readonly #watching: { readonly frame: object | undefined; readonly listener: (event: RunEvent) => void }[] = [];

  constructor(attempt: Watched) {
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
