import { TERMINAL_STATUSES } from '../agent/run.js';
import { messageOf } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';

const DAY_MS = 86_400_000;
const EVERY_MS = 3_600_000;
const FIRST_AFTER_MS = 1000;
/** Runs pruned in one transaction: small, so that serving goes on between two of them. */
const BATCH = 20;

export interface RetentionDeps {
  readonly store: RunStore;
  readonly writer: Writer;
  readonly log: Logger;
  readonly now: () => number;
  /** Days after which a finished run goes; undefined: never. */
  readonly runsDays: number | undefined;
  /** Days after which its events go before it; undefined: with the run. */
  readonly eventsDays: number | undefined;
}

/** Prunes what is older than it has to be kept: events first, then runs, in small transactions beside the serving. */
export class Retention {
  readonly #deps: RetentionDeps;
  #timer: NodeJS.Timeout | undefined;
  #working: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(deps: RetentionDeps) {
    this.#deps = deps;
  }

  start(): void {
    const { runsDays, eventsDays } = this.#deps;
    if (runsDays === undefined && eventsDays === undefined) return;
    this.#timer = setTimeout(() => {
      this.#tick();
    }, FIRST_AFTER_MS).unref();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#working;
  }

  #tick(): void {
    this.#working = this.prune()
      .catch((error: unknown) => {
        this.#deps.log.warn({ reason: messageOf(error) }, 'pruning failed and is tried again later');
      })
      .then(() => {
        if (!this.#stopped)
          this.#timer = setTimeout(() => {
            this.#tick();
          }, EVERY_MS).unref();
      });
  }

  /** Prunes everything that is due now. @throws StorageUnavailableError */
  async prune(): Promise<void> {
    const { store, eventsDays, runsDays, now } = this.#deps;
    if (eventsDays !== undefined) {
      await this.#batches(now() - eventsDays * DAY_MS, true, (n) => {
        store.pruneEvents(n);
      });
    }
    if (runsDays !== undefined) {
      await this.#batches(now() - runsDays * DAY_MS, false, (n) => {
        store.purge(n);
      });
    }
  }

  async #batches(beforeMs: number, events: boolean, prune: (n: number) => void): Promise<void> {
    const { store, writer, log } = this.#deps;
    for (let pruned = 0; !this.#stopped; ) {
      const count = await writer.run(() => {
        const rows = store.endedBefore(beforeMs, BATCH, events).filter((row) => TERMINAL_STATUSES.has(row.status));
        for (const row of rows) prune(row.n);
        return rows.length;
      });
      pruned += count;
      if (count < BATCH) {
        if (pruned > 0) log.info({ runs: pruned, events }, 'pruned');
        return;
      }
    }
  }
}
