import { TERMINAL_STATUSES } from '../agent/run.js';
import { messageOf } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';
import type { RunEnd, RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';

const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
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
  /** Newest finished runs that stay, however old the others are; undefined: all. */
  readonly runsCount: number | undefined;
  /** Newest finished runs whose events stay; undefined: with the run. */
  readonly eventsCount: number | undefined;
}

/** Prunes what is older, or more, than has to be kept: events first, then runs, in small transactions beside the serving. */
export class Retention {
  readonly #deps: RetentionDeps;
  #timer: NodeJS.Timeout | undefined;
  #working: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(deps: RetentionDeps) {
    this.#deps = deps;
  }

  start(): void {
    const { runsDays, eventsDays, runsCount, eventsCount } = this.#deps;
    if ([runsDays, eventsDays, runsCount, eventsCount].every((setting) => setting === undefined)) return;
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
          }, this.#everyMs).unref();
      });
  }

  /** A busy server makes many runs in an hour; a day is not over so soon. */
  get #everyMs(): number {
    const { runsCount, eventsCount } = this.#deps;
    return runsCount === undefined && eventsCount === undefined ? HOUR_MS : MINUTE_MS;
  }

  /** Prunes everything that is due now. @throws StorageUnavailableError */
  async prune(): Promise<void> {
    const { store, eventsDays, eventsCount, runsDays, runsCount } = this.#deps;
    for (const end of this.#due(eventsDays, eventsCount)) {
      await this.#batches(end, true, (n) => {
        store.pruneEvents(n);
      });
    }
    for (const end of this.#due(runsDays, runsCount)) {
      await this.#batches(end, false, (n) => {
        store.purge(n);
      });
    }
  }

  /** The ends up to which is pruned, by age and by count. */
  #due(days: number | undefined, count: number | undefined): RunEnd[] {
    const { store, now } = this.#deps;
    const beyond = count === undefined ? undefined : store.newestEndBeyond(count);
    return [
      ...(days === undefined ? [] : [{ finishedAt: now() - days * DAY_MS, n: 0 }]),
      ...(beyond === undefined ? [] : [beyond]),
    ];
  }

  async #batches(end: RunEnd, events: boolean, prune: (n: number) => void): Promise<void> {
    const { store, writer, log } = this.#deps;
    for (let pruned = 0; !this.#stopped; ) {
      const count = await writer.run(() => {
        const rows = store.endedUpTo(end, BATCH, events).filter((row) => TERMINAL_STATUSES.has(row.status));
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
