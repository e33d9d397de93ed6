import type { AgentInstance, LoopDeps } from '../agent/attempt.js';
import type { NamedShim } from '../agent/bound-shims.js';
import type { SavedState } from '../agent/journal.js';
import { runAttempt } from '../agent/loop.js';
import {
  failureProblem,
  HandedOverError,
  messageOf,
  RunCancelledError,
  type RunError,
  runErrorData,
} from '../agent/run-errors.js';
import type { RequestDoc, RunRow } from '../store/run-rows.js';
import { type Ancestor, RunJournal, type RunJournalDeps } from './run-journal.js';
import type { StrayErrors } from './stray-errors.js';

/** An attempt that is to be driven: the right to it, and everything that it begins with. */
export interface AttemptStart {
  readonly row: RunRow;
  readonly attempt: number;
  readonly epoch: number;
  readonly saved: SavedState;
  readonly request: RequestDoc;
  readonly recovered: boolean;
  readonly interruptedModelCallId?: string | undefined;
  /** Finds the agents of this run, in the versions and with the shims that this attempt keeps. */
  readonly agent: (name: string) => AgentInstance;
  /** The runs in whose streams this one's events are shown too, nearest first. */
  readonly ancestors: readonly Ancestor[];
}

export interface WorkerDeps extends RunJournalDeps {
  readonly loop: Omit<LoopDeps, 'agent'>;
  readonly dataDir: string;
  readonly strays?: StrayErrors;
}

interface ShimHash {
  readonly name: string;
  readonly hash: string;
}

/** Drives one attempt of one run, and is the one place through which it can be stopped. */
export class RunWorker {
  readonly runId: string;
  /** Settles when the attempt has ended and everything of it is written; never rejects. */
  readonly done: Promise<void>;
  readonly #deps: WorkerDeps;
  readonly #start: AttemptStart;
  readonly #controller = new AbortController();
  readonly #journal: RunJournal;
  /** Names of the shims that this attempt was bound with so far. */
  readonly #noted = new Set<string>();

  constructor(deps: WorkerDeps, start: AttemptStart) {
    this.#deps = deps;
    this.#start = start;
    this.runId = start.row.id;
    const run = { n: start.row.n, id: start.row.id, attempt: start.attempt, epoch: start.epoch };
    this.#journal = new RunJournal(deps, run, {
      ancestors: start.ancestors,
      responseIds: start.saved.responses.map((response) => response.modelCallId),
      onLost: (error) => {
        this.#deps.loop.log.warn({ runId: this.runId, reason: error.message }, 'the run was lost to another owner');
        this.#controller.abort(error);
      },
    });
    this.done = deps.strays === undefined ? this.#drive() : deps.strays.within(this.runId, async () => this.#drive());
  }

  /** Stops the attempt: model connection, tools, waits; then its clean-up runs and it ends as cancelled. */
  cancel(requestedAtMs: number): void {
    this.#controller.abort(new RunCancelledError('The run was cancelled.', requestedAtMs));
  }

  /** Ends the attempt as failed, for what was thrown where nobody could catch it; once its end is settled, that stands. */
  fail(error: RunError): void {
    this.#controller.abort(error);
  }

  /** Gives the run to the next start: at its next checkpoint, or at once. */
  handOver(when: 'atCheckpoint' | 'now'): void {
    const stop = (): void => {
      this.#controller.abort(new HandedOverError('the server is shutting down'));
    };
    if (when === 'now') stop();
    else this.#journal.onCheckpoint = stop;
  }

  async #drive(): Promise<void> {
    const { row, saved, request, recovered, interruptedModelCallId } = this.#start;
    try {
      await runAttempt(
        {
          runId: row.id,
          parentRunId: row.parent ?? undefined,
          depth: row.depth,
          metadata: request.metadata,
          key: row.owner === '' ? null : row.owner,
          dataDir: this.#deps.dataDir,
          limits: request.limits,
          guards: request.guards,
          lineage: this.#start.ancestors.toReversed().flatMap((ancestor) => ancestor.agents),
          onlyTools: request.helper?.tools,
          onBind: (shims) => {
            this.#noteShims(shims);
          },
          saved,
          recovered,
          signal: this.#controller.signal,
          journal: this.#journal,
          interruptedModelCallId,
        },
        { ...this.#deps.loop, agent: this.#start.agent },
      );
    } catch (error) {
      await this.#failed(error);
    } finally {
      await this.#release();
    }
  }

  /** A run records the content hash of each shim it ran with; an attempt with another one says so (R118). */
  #noteShims(bound: readonly NamedShim[]): void {
    const { row } = this.#start;
    const { store, writer } = this.#deps;
    const known = new Map(
      (JSON.parse(store.doc(row.n, 'shims') ?? '[]') as ShimHash[]).map(({ name, hash }) => [name, hash]),
    );
    const fresh = bound.filter(({ name, hash }) => !this.#noted.has(name) && known.get(name) !== hash);
    for (const { name } of bound) this.#noted.add(name);
    if (fresh.length === 0) return;
    for (const { name, hash } of fresh) {
      const before = known.get(name);
      if (before !== undefined) this.#journal.note({ type: 'shim.changed', shim: name, before, after: hash });
      known.set(name, hash);
    }
    const body = JSON.stringify([...known].map(([name, hash]) => ({ name, hash })));
    writer
      .run(
        () => {
          store.putDoc(row.n, 'shims', body);
        },
        { patient: true },
      )
      .catch((error: unknown) => {
        this.#deps.loop.log.warn(
          { runId: row.id, reason: messageOf(error) },
          'the hashes of the shims were not stored',
        );
      });
  }

  /** A fault of ours in the loop: it concerns this run only, and is said plainly in the log. */
  async #failed(error: unknown): Promise<void> {
    if (error instanceof HandedOverError) return;
    this.#deps.loop.log.error({ runId: this.runId, err: error }, 'the attempt broke off');
    const data = failureProblem(runErrorData(error, this.#deps.loop.conceal));
    try {
      await this.#journal.commit({
        events: [{ type: 'run.failed', error: data, partialOutput: null }],
        end: { status: 'failed', error: data, partialOutput: null },
      });
    } catch (second) {
      this.#deps.loop.log.error({ runId: this.runId, err: second }, 'the failure could not be written');
    }
  }

  async #release(): Promise<void> {
    if (!(this.#controller.signal.reason instanceof HandedOverError)) return;
    try {
      await this.#journal.settled();
      await this.#deps.writer.run(() => {
        this.#deps.store.releaseLease(this.#start.row.n, this.#start.epoch);
      });
    } catch (error) {
      this.#deps.loop.log.warn({ runId: this.runId, reason: messageOf(error) }, 'the lease could not be released');
    }
  }
}
