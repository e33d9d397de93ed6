import { messageOf } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';
import type { RunStore } from '../store/run-store.js';
import type { ResumeRun } from './agent-runtime.js';

/** The longest that one timer of Node holds; a later expiry is looked at again then. */
const LONGEST_TIMER_MS = 2_147_000_000;

export interface ExpiriesDeps {
  readonly store: RunStore;
  readonly now: () => number;
  readonly log: Logger;
}

/** Watches over questions that expire: past `expiresAt` a call is denied, as a decision would. */
export class Expiries {
  readonly #deps: ExpiriesDeps;
  readonly #timers = new Map<string, NodeJS.Timeout>();
  #expire: (runId: string, decisions: NonNullable<ResumeRun['decisions']>) => Promise<void> = async () =>
    Promise.resolve();
  #stopped = false;

  constructor(deps: ExpiriesDeps) {
    this.#deps = deps;
  }

  connect(expire: (runId: string, decisions: NonNullable<ResumeRun['decisions']>) => Promise<void>): void {
    this.#expire = expire;
  }

  /** Looks at a waiting run now, and again when its next question expires. */
  watch(runId: string): void {
    clearTimeout(this.#timers.get(runId));
    this.#timers.delete(runId);
    const row = this.#deps.store.find(runId);
    if (this.#stopped || row?.status !== 'waiting') return;
    const open = this.#deps.store
      .calls(row.n)
      .flatMap(({ interruption, decision }) =>
        interruption?.expiresAt === undefined || interruption.expiresAt === null || decision !== undefined
          ? []
          : [{ id: interruption.id, atMs: Date.parse(interruption.expiresAt) }],
      );
    const nowMs = this.#deps.now();
    const due = open.filter((question) => question.atMs <= nowMs);
    if (due.length > 0) {
      this.#deny(
        runId,
        due.map(({ id }) => id),
      );
      return;
    }
    const next = Math.min(...open.map((question) => question.atMs));
    if (!Number.isFinite(next)) return;
    this.#timers.set(
      runId,
      setTimeout(
        () => {
          this.watch(runId);
        },
        Math.min(next - nowMs, LONGEST_TIMER_MS),
      ),
    );
  }

  stop(): void {
    this.#stopped = true;
    for (const timer of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
  }

  #deny(runId: string, ids: readonly string[]): void {
    const decisions = ids.map((id) => ({ id, decision: 'deny' as const, reason: 'expired' }));
    this.#expire(runId, decisions).then(
      () => {
        this.watch(runId);
      },
      (error: unknown) => {
        // Somebody decided in the meantime, or the storage does not take it now.
        this.#deps.log.warn({ runId, reason: messageOf(error) }, 'an expired question could not be closed');
        if (!this.#stopped)
          this.#timers.set(
            runId,
            setTimeout(() => {
              this.watch(runId);
            }, 1000),
          );
      },
    );
  }
}
