import { messageOf } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';
import { type AttemptStart, RunWorker, type WorkerDeps } from './run-worker.js';

/**
 * Which runs are driven now: at most so many at once, the others in order. It owns the workers, so everything that runs in
 * the background is known here and is waited for.
 */
export class RunScheduler {
  readonly #deps: WorkerDeps;
  readonly #maxConcurrent: number;
  readonly #log: Logger;
  readonly #workers = new Map<string, RunWorker>();
  readonly #queue = new Set<string>();
  readonly #claiming = new Set<Promise<void>>();
  #claim: (runId: string) => Promise<AttemptStart | undefined> = async () => Promise.resolve(undefined);
  #onDone: (runId: string, epoch: number) => void = () => undefined;
  #reserved = 0;
  #outside = 0;
  #stopped = false;

  constructor(deps: WorkerDeps, options: { readonly maxConcurrent: number }) {
    this.#deps = deps;
    this.#maxConcurrent = options.maxConcurrent;
    this.#log = deps.loop.log;
  }

  /** Who makes a queued run a running one, and who is told that an attempt is over. */
  connect(options: {
    readonly claim: (runId: string) => Promise<AttemptStart | undefined>;
    readonly onDone: (runId: string, epoch: number) => void;
  }): void {
    this.#claim = options.claim;
    this.#onDone = options.onDone;
  }

  get activeCount(): number {
    return this.#workers.size;
  }
  get queuedCount(): number {
    return this.#queue.size;
  }
  worker(runId: string): RunWorker | undefined {
    return this.#workers.get(runId);
  }
  workers(): readonly RunWorker[] {
    return [...this.#workers.values()];
  }

  /** Takes a free slot, if there is one and nobody waits for it. The taker must call `drive` or `release`. */
  reserve(): boolean {
    if (this.#stopped || this.#queue.size > 0 || this.#busy >= this.#maxConcurrent) return false;
    this.#reserved += 1;
    return true;
  }
  release(): void {
    this.#reserved -= 1;
    this.#pump();
  }
  get #busy(): number {
    return this.#workers.size - this.#outside + this.#reserved;
  }

  /** Drives an attempt on a reserved slot, or (a sub-agent, whose parent has a slot already) outside of the count. */
  drive(start: AttemptStart, slot: 'reserved' | 'outside'): RunWorker {
    if (slot === 'reserved') this.#reserved -= 1;
    else this.#outside += 1;
    // What the claim read is committed by now.
    this.#deps.store.keep(start.saved);
    const worker = new RunWorker(this.#deps, start);
    this.#workers.set(worker.runId, worker);
    // A cancel that was committed between the claim and this moment found no worker to tell.
    if (this.#deps.store.isCancelling(start.row.n)) worker.cancel(this.#deps.now());
    worker.done.then(
      () => {
        if (slot === 'outside') this.#outside -= 1;
        // A resume may have begun the next attempt while this one's sessions were disposed of.
        if (this.#workers.get(worker.runId) === worker) this.#workers.delete(worker.runId);
        this.#onDone(worker.runId, start.epoch);
        this.#pump();
      },
      (error: unknown) => {
        this.#log.error({ runId: worker.runId, reason: messageOf(error) }, 'a worker rejected');
      },
    );
    return worker;
  }

  enqueue(runId: string): void {
    this.#queue.add(runId);
    this.#pump();
  }
  dequeue(runId: string): void {
    this.#queue.delete(runId);
  }

  /** No new attempts from now on. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#claiming);
  }

  #pump(): void {
    while (!this.#stopped && this.#busy < this.#maxConcurrent) {
      const [runId] = this.#queue;
      if (runId === undefined) return;
      this.#queue.delete(runId);
      this.#reserved += 1;
      const claiming: Promise<void> = this.#take(runId).finally(() => this.#claiming.delete(claiming));
      this.#claiming.add(claiming);
    }
  }

  async #take(runId: string): Promise<void> {
    try {
      const start = await this.#claim(runId);
      if (start !== undefined) {
        this.drive(start, 'reserved');
        return;
      }
    } catch (error) {
      // The storage does not take it now: the run stays queued and is tried again with the next pump.
      this.#log.warn({ runId, reason: messageOf(error) }, 'a queued run could not be started yet');
      setTimeout(() => {
        if (!this.#stopped) this.enqueue(runId);
      }, 500).unref();
    }
    this.#reserved -= 1;
    this.#pump();
  }
}
