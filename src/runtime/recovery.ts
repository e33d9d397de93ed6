import { setTimeout as sleep, setImmediate as turn } from 'node:timers/promises';
import { TERMINAL_STATUSES } from '../agent/run.js';
import { messageOf } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';
import { StorageUnavailableError } from '../errors.js';
import type { RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';
import type { EventLog } from './event-log.js';
import type { Expiries } from './expiries.js';
import type { RunChanges, Written } from './run-changes.js';
import type { RunScheduler } from './run-scheduler.js';
import { tryOneByOne } from './suspects.js';

/** How often a process may die on a run without progress before the run is given up. */
export const MAX_CRASHES = 3;

const TRY_AGAIN_MS = 500;
/** So many runs are taken up in one go; between two of these requests are served. */
const AT_ONCE = 32;

export interface RecoveryDeps {
  readonly store: RunStore;
  readonly writer: Writer;
  readonly eventLog: EventLog;
  readonly changes: RunChanges;
  readonly scheduler: RunScheduler;
  readonly expiries: Expiries;
  readonly log: Logger;
  recover(runId: string, slot: 'reserved' | 'outside'): Promise<void>;
  cancel(row: RunRow): Promise<void>;
}

/**
 * What a start finds unfinished goes on by the crash rules, all at once and beside the serving of requests: what was queued is
 * queued again, what was driven is recovered, what was being cancelled ends cancelled, what waited still waits.
 */
export class Recovery {
  readonly #deps: RecoveryDeps;
  readonly #tasks = new Set<Promise<void>>();
  readonly #closing = new AbortController();

  constructor(deps: RecoveryDeps) {
    this.#deps = deps;
  }

  /** Begins the recovery and returns; the server may listen meanwhile. */
  start(): void {
    const rows = this.#deps.store.unfinished();
    const driven = new Set(rows.map((row) => row.id));
    const suspects = rows.filter(
      (row) => row.parent === null && row.status === 'running' && row.crashes === MAX_CRASHES - 1,
    );
    this.#deps.log.info({ unfinished: rows.length, suspects: suspects.length }, 'recovery started');
    if (suspects.length > 0) this.#own('', async () => this.#try(suspects));
    // A sub-agent goes on when its parent's call asks for it again; without a parent at work nobody will.
    const others = rows.filter((row) => !suspects.includes(row) && (row.parent === null || !driven.has(row.parent)));
    this.#own('', async () => this.#takeUp(others));
  }

  async #takeUp(rows: readonly RunRow[]): Promise<void> {
    for (let index = 0; index < rows.length && !this.#closing.signal.aborted; index += AT_ONCE) {
      for (const row of rows.slice(index, index + AT_ONCE))
        this.#own(row.id, async () => (row.parent === null ? this.#one(row) : this.#deps.cancel(row)));
      await turn();
    }
  }

  async #try(suspects: readonly RunRow[]): Promise<void> {
    const { store, writer, log } = this.#deps;
    await tryOneByOne(suspects, {
      store,
      writer,
      signal: this.#closing.signal,
      recover: async (row) => {
        try {
          await this.#persist(async () => this.#one(row));
        } catch (error) {
          log.error({ runId: row.id, reason: messageOf(error) }, 'a run could not be recovered');
        }
      },
    });
  }

  /** Ends the children that a run which is over has left behind: nothing goes on without an owner. */
  endOrphans(runId: string): void {
    if (this.#deps.store.unfinishedChildren(runId) === 0) return;
    for (const child of this.#deps.store.descendants(runId)) {
      if (!TERMINAL_STATUSES.has(child.status)) this.#own(child.id, async () => this.#deps.cancel(child));
    }
  }

  async settled(): Promise<void> {
    this.#closing.abort();
    while (this.#tasks.size > 0) await Promise.all(this.#tasks);
  }

  #own(runId: string, work: () => Promise<void>): void {
    const task: Promise<void> = this.#persist(work)
      .catch((error: unknown) => {
        this.#deps.log.error({ runId, reason: messageOf(error) }, 'a run could not be recovered');
      })
      .finally(() => this.#tasks.delete(task));
    this.#tasks.add(task);
  }

  /** What the storage does not take now is tried again, until it does or the process ends. */
  async #persist(work: () => Promise<void>): Promise<void> {
    for (;;) {
      try {
        await work();
        return;
      } catch (error) {
        if (!(error instanceof StorageUnavailableError) || this.#closing.signal.aborted) throw error;
      }
      await sleep(TRY_AGAIN_MS, undefined, { signal: this.#closing.signal }).catch(() => undefined);
    }
  }

  async #one(row: RunRow): Promise<void> {
    const { writer, changes, scheduler, expiries } = this.#deps;
    switch (row.status) {
      case 'queued':
        scheduler.enqueue(row.id);
        return;
      case 'waiting':
        expiries.watch(row.id);
        return;
      case 'cancelling':
        this.#publish(await writer.run(() => changes.endCancelled(row, false), { patient: true }));
        this.endOrphans(row.id);
        return;
      case 'running':
        await this.#deps.recover(row.id, 'outside');
        return;
      case 'completed':
      case 'failed':
      case 'cancelled':
        return;
    }
  }

  #publish({ row, batch }: Written): void {
    this.#deps.eventLog.publish(row.id, batch);
  }
}
