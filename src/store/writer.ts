import type { Database, Statement } from 'better-sqlite3';
import { StorageUnavailableError } from '../errors.js';
import { isStorageFault } from './database.js';

/** Something that has facts to write. It may be asked again after a rollback, so it must not change itself before `committed`. */
export interface WriteSource {
  /** Runs inside the transaction. A throw that is no storage fault is a refusal and concerns this source only. */
  write(): void;
  committed(): void;
  /** The write was refused, or (one-off operations only) the storage cannot take it now. */
  failed(error: unknown): void;
  /** True: a storage fault is waited out and the write made again. False: it is reported at once. */
  readonly patient: boolean;
}

const FIRST_PAUSE_MS = 20;
const LONGEST_PAUSE_MS = 1000;

/**
 * Groups the commits of all runs: everything that became due in one turn of the event loop goes into one transaction, so an
 * fsync is paid once for many runs. Nothing is told to anybody before its commit.
 *
 * It writes on the main thread: a source decides by what it reads inside the same transaction (compare-and-set on status and
 * epoch), and a group that fails is taken apart and written again source by source, which a worker thread could do only by
 * owning all of that. Measured on both (`test/bench/RESULTS.md`): with little other work the main thread makes up to a third more
 * steps with fsync, and three times as many without, since nothing goes to and fro; with much of it both do the same. On a
 * machine whose disk is slow or busy a worker makes up to 2.5 times the steps of 1 to 16 runs, since the loop does not wait for the disk.
 *
 * Urgent sources are committed at the end of the present turn of the event loop. Lazy ones (streamed deltas) may wait for a
 * multiple of what the last commit took, so a flood of small pieces cannot spend the process's time on fsyncs.
 */
export class Writer {
  readonly #database: Database;
  readonly #begin: Statement;
  readonly #commit: Statement;
  readonly #onError: (error: unknown) => void;
  #due = new Set<WriteSource>();
  #lazy = new Set<WriteSource>();
  #immediate: NodeJS.Immediate | undefined;
  #timer: NodeJS.Timeout | undefined;
  #pauseMs = 0;
  #lastCommitMs = 0;
  #fault: unknown;
  #closed = false;
  readonly #onDue = (): void => {
    this.#flush();
  };

  /** @param onError told of what is nobody's: a source that throws when it hears of its commit */
  constructor(database: Database, onError: (error: unknown) => void) {
    this.#database = database;
    this.#begin = database.prepare('BEGIN IMMEDIATE');
    this.#commit = database.prepare('COMMIT');
    this.#onError = onError;
  }

  /** The storage fault that writes are waiting out; undefined while all is well. */
  get fault(): unknown {
    return this.#fault;
  }

  /** Has a source written at the end of this turn of the event loop. */
  urgent(source: WriteSource): void {
    this.#lazy.delete(source);
    this.#due.add(source);
    if (this.#pauseMs === 0) this.#immediate ??= setImmediate(this.#onDue);
  }

  /** Has a source written soon: with the next commit, or a few milliseconds from now. */
  lazy(source: WriteSource): void {
    if (this.#due.has(source)) return;
    this.#lazy.add(source);
    if (this.#immediate !== undefined || this.#timer !== undefined || this.#pauseMs > 0) return;
    const waitMs = Math.min(25, Math.round(this.#lastCommitMs * 4));
    if (waitMs <= 1) this.#immediate = setImmediate(this.#onDue);
    else this.#timer = setTimeout(this.#onDue, waitMs);
  }

  /**
   * Runs an operation in the next group and resolves with its result once it is durable. A patient one waits for the storage;
   * it may be run again after a rollback.
   * @throws StorageUnavailableError unless patient, and whatever the operation throws
   */
  async run<T>(operation: () => T, { patient = false }: { readonly patient?: boolean } = {}): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      let result: T;
      this.urgent({
        patient,
        write: () => {
          result = operation();
        },
        committed: () => {
          resolve(result);
        },
        failed: reject,
      });
    });
  }

  /** Reads what is committed: now, or where the storage fails just now with the first group that it takes. @throws whatever the operation throws */
  async read<T>(operation: () => T): Promise<T> {
    try {
      return operation();
    } catch (error) {
      if (!isStorageFault(error)) throw error;
      return this.run(operation, { patient: true });
    }
  }

  /** Writes what is due, now. */
  flush(): void {
    this.#flush();
  }

  close(): void {
    this.#flush();
    this.#closed = true;
    clearImmediate(this.#immediate);
    clearTimeout(this.#timer);
  }

  #flush(): void {
    clearImmediate(this.#immediate);
    clearTimeout(this.#timer);
    this.#immediate = undefined;
    this.#timer = undefined;
    if (this.#closed) return;
    const group = [...this.#due, ...this.#lazy];
    this.#due = new Set();
    this.#lazy = new Set();
    if (group.length === 0) {
      if (this.#fault !== undefined) this.#probe();
      return;
    }
    const startedAt = performance.now();
    try {
      this.#transaction(group);
    } catch {
      // Whoever was at fault must not take the others along: each gets a transaction of its own.
      this.#alone(group);
      return;
    }
    this.#lastCommitMs = performance.now() - startedAt;
    this.#healed();
    for (const source of group) this.#tell(source);
  }

  /** What one source makes of its commit must not keep the others from hearing of theirs. */
  #tell(source: WriteSource): void {
    try {
      source.committed();
    } catch (error) {
      this.#onError(error);
    }
  }

  /** While nobody has anything to write the storage is tried all the same, so that its healing is seen. */
  #probe(): void {
    try {
      const version = this.#database.pragma('user_version', { simple: true }) as number;
      this.#database.exec('BEGIN IMMEDIATE');
      this.#database.pragma(`user_version = ${version}`);
      this.#database.exec('COMMIT');
    } catch (error) {
      this.#rollBack();
      this.#waitOut([], error);
      return;
    }
    this.#healed();
  }

  #transaction(group: readonly WriteSource[]): void {
    this.#begin.run();
    try {
      for (const source of group) source.write();
      this.#commit.run();
    } catch (error) {
      this.#rollBack();
      throw error;
    }
  }

  /** Some faults (a full disk) have rolled back already. */
  #rollBack(): void {
    try {
      if (this.#database.inTransaction) this.#database.exec('ROLLBACK');
    } catch (error) {
      this.#onError(error);
    }
  }

  #alone(group: readonly WriteSource[]): void {
    const waiting: WriteSource[] = [];
    let fault: unknown;
    for (const source of group) {
      if (fault !== undefined && source.patient) {
        waiting.push(source);
        continue;
      }
      try {
        this.#transaction([source]);
      } catch (error) {
        if (!isStorageFault(error)) source.failed(error);
        else {
          fault = error;
          if (source.patient) waiting.push(source);
          else source.failed(new StorageUnavailableError(error));
        }
        continue;
      }
      this.#tell(source);
    }
    if (fault === undefined) this.#healed();
    else this.#waitOut(waiting, fault);
  }

  /** Keeps what must not be lost and tries again, ever more slowly; runs pause meanwhile because their commits do not resolve. */
  #waitOut(waiting: readonly WriteSource[], fault: unknown): void {
    this.#fault = fault;
    for (const source of waiting) this.#due.add(source);
    this.#pauseMs = Math.min(LONGEST_PAUSE_MS, Math.max(FIRST_PAUSE_MS, this.#pauseMs * 2));
    this.#timer = setTimeout(this.#onDue, this.#pauseMs);
  }

  #healed(): void {
    this.#fault = undefined;
    this.#pauseMs = 0;
  }
}
