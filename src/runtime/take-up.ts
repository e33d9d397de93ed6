import type { NamedShim } from '../agent/bound-shims.js';
import { framed } from '../agent/event-frames.js';
import type { SavedState } from '../agent/journal.js';
import { messageOf } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';
import type { RequestDoc, RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';
import type { AgentRegistry, AgentResolver } from './agent-registry.js';
import type { EventLog } from './event-log.js';
import type { Expiries } from './expiries.js';
import { interruptedModelCall, TAIL_ROWS } from './log-tail.js';
import { MAX_CRASHES } from './recovery.js';
import type { RunChanges, Written } from './run-changes.js';
import { type Ancestor, eventLine } from './run-journal.js';
import type { RunScheduler } from './run-scheduler.js';
import type { AttemptStart } from './run-worker.js';

/** What a claim found: the right to drive the run, and the events that say so. */
interface Claimed {
  readonly row: RunRow;
  readonly epoch: number;
  readonly written: Written;
}

export interface TakeUpDeps {
  readonly store: RunStore;
  readonly writer: Writer;
  readonly eventLog: EventLog;
  readonly changes: RunChanges;
  readonly scheduler: RunScheduler;
  readonly agents: AgentRegistry;
  readonly expiries: Expiries;
  readonly log: Logger;
  readonly now: () => number;
  readonly isDraining: () => boolean;
  readonly endOrphans: (runId: string) => void;
}

/** How a run gets an owner: queued ones are claimed, those of a dead process recovered; and how one ends that nobody owns. */
export class TakeUp {
  readonly #deps: TakeUpDeps;
  /** What helpers inherit from the runs that wait for them, by the helper's id: also for their attempts after a wait. */
  readonly #inherited = new Map<string, readonly NamedShim[]>();

  constructor(deps: TakeUpDeps) {
    this.#deps = deps;
  }

  /** The run is over: nothing of it is taken up again with what it inherited. */
  forget(runId: string): void {
    this.#inherited.delete(runId);
  }

  /** Makes a queued run a running one: inside a transaction. */
  #claim(runId: string): Claimed | undefined {
    const { store, now } = this.#deps;
    const row = store.find(runId);
    if (row?.status !== 'queued') return undefined;
    const nowMs = now();
    store.transition(row.n, 'running', nowMs);
    const { epoch } = store.takeLease(row.n, nowMs);
    const lines = row.attempt === 1 ? [eventLine({ type: 'run.started' }, row, nowMs)] : [];
    const batch = lines.length === 0 ? framed([], row.last_seq) : store.addEvents(row.n, lines, nowMs);
    return { row, epoch, written: { row, batch } };
  }

  async claimQueued(runId: string): Promise<AttemptStart | undefined> {
    const taken = await this.#takeUp(runId, () => this.claimLoaded(runId));
    if (taken === undefined) return undefined;
    this.publish(taken.written);
    return taken.start;
  }

  /** Claims a queued run and reads what its attempt begins with, in one transaction: a store that fails has then claimed nothing. */
  claimLoaded(runId: string): { readonly written: Written; readonly start: AttemptStart } | undefined {
    const claimed = this.#claim(runId);
    if (claimed === undefined) return undefined;
    return { written: claimed.written, start: this.#startLoaded(claimed) };
  }

  #startLoaded({ row, epoch }: Pick<Claimed, 'row' | 'epoch'>): AttemptStart {
    const { store, agents } = this.#deps;
    const saved = store.load(row.n);
    const request = store.request(row.n);
    const agent = withShims(
      agents.resolver({ agent: row.agent, version: row.agent_version }, request),
      row.agent,
      this.#inherited.get(row.id),
    );
    return this.startOf({ row, epoch }, { saved, request, recovered: saved.position.at === 'tools', agent });
  }

  /** Takes a run up in a transaction that waits for the storage; a run whose record cannot be read is failed, and it alone. */
  async #takeUp<T>(runId: string, claim: () => T): Promise<T | undefined> {
    const { writer, log } = this.#deps;
    try {
      return await writer.run(claim, { patient: true });
    } catch (error) {
      log.error({ runId, err: error }, 'a run could not be taken up');
      await this.endUnowned(runId, `The run could not be taken up: ${messageOf(error)}`);
      return undefined;
    }
  }

  /**
   * Ends a run that is active although nobody drives it: nothing is running without an owner.
   * @param epoch of the owner that left it; somebody else's is not touched
   */
  async endUnowned(runId: string, message: string, epoch?: number): Promise<void> {
    const { writer, store, changes, scheduler } = this.#deps;
    const written = await writer.run(
      () => {
        const row = store.find(runId);
        if (row === undefined || scheduler.worker(runId) !== undefined || row.epoch !== (epoch ?? row.epoch))
          return undefined;
        if (row.status === 'cancelling') return changes.endCancelled(row, false);
        return row.status === 'queued' || row.status === 'running'
          ? changes.endFailed(row, { code: 'internal', message })
          : undefined;
      },
      { patient: true },
    );
    if (written === undefined) return;
    this.publish(written);
    this.#deps.endOrphans(written.row.id);
  }

  startOf(
    { row, epoch }: Pick<Claimed, 'row' | 'epoch'>,
    options: {
      readonly saved: SavedState;
      readonly request: RequestDoc;
      readonly agent?: AgentResolver;
      readonly recovered?: boolean;
      readonly interruptedModelCallId?: string | undefined;
    },
  ): AttemptStart {
    const agent =
      options.agent ?? this.#deps.agents.resolver({ agent: row.agent, version: row.agent_version }, options.request);
    return {
      row,
      attempt: row.attempt,
      epoch,
      saved: options.saved,
      request: options.request,
      recovered: options.recovered ?? false,
      interruptedModelCallId: options.interruptedModelCallId,
      agent,
      ancestors: this.#ancestorsOf(row),
    };
  }

  /** Goes on with a run whose process died: a new epoch, `run.recovered`, and the loop from the last checkpoint. */
  async recover(runId: string, slot: 'reserved' | 'outside'): Promise<void> {
    const { store, changes, scheduler, now } = this.#deps;
    const taken = await this.#takeUp(runId, () => {
      const row = store.find(runId);
      // A cancel came before its recovery: nobody drives it any more.
      if (row?.status === 'cancelling') return { row, start: undefined, written: changes.endCancelled(row, false) };
      if (row?.status !== 'running') return undefined;
      if (row.crashes >= MAX_CRASHES) {
        const message = `The server died ${row.crashes} times on this run without progress; it was given up.`;
        return { row, start: undefined, written: changes.endFailed(row, { code: 'crash_loop', message }) };
      }
      const nowMs = now();
      const { epoch } = store.takeLease(row.n, nowMs);
      store.raiseRecoveries(row.n);
      const lines = [eventLine({ type: 'run.recovered' }, row, nowMs)];
      const interruptedModelCallId = interruptedModelCall(store.lastFrames(row.n, TAIL_ROWS));
      const start = { ...this.#startLoaded({ row, epoch }), recovered: true, interruptedModelCallId };
      return { row, start, written: { row, batch: store.addEvents(row.n, lines, nowMs) } };
    });
    if (taken === undefined) return;
    this.publish(taken.written);
    if (taken.start === undefined) this.#deps.endOrphans(taken.row.id);
    else scheduler.drive(taken.start, slot);
  }

  /** Drives a child run that nobody drives: a new one, or one that a crash or a wait had left. */
  async startChild(row: RunRow, shims: readonly NamedShim[] | undefined): Promise<void> {
    const { scheduler, expiries } = this.#deps;
    if (shims !== undefined) this.#inherited.set(row.id, shims);
    if (this.#deps.isDraining() || scheduler.worker(row.id) !== undefined) return;
    if (row.status === 'waiting') {
      expiries.watch(row.id);
      return;
    }
    if (row.status === 'running' || row.status === 'cancelling') return this.recover(row.id, 'outside');
    const taken = await this.#takeUp(row.id, () => this.claimLoaded(row.id));
    if (taken === undefined) return;
    this.publish(taken.written);
    scheduler.drive(taken.start, 'outside');
  }

  #ancestorsOf(row: RunRow): Ancestor[] {
    const ancestors: Ancestor[] = [];
    for (let parent = row.parent; parent !== null; ) {
      const above = this.#deps.store.find(parent);
      if (above === undefined) break;
      ancestors.push({
        n: above.n,
        id: above.id,
        attempt: above.attempt,
        agents: this.#deps.store.position(above.n).agents,
      });
      parent = above.parent;
    }
    return ancestors;
  }

  publish({ row, batch }: Written): void {
    this.#deps.eventLog.publish(row.id, batch);
  }
}

function withShims(resolver: AgentResolver, own: string, shims: readonly NamedShim[] | undefined): AgentResolver {
  if (shims === undefined) return resolver;
  return (name) => (name === own ? { ...resolver(name), shims } : resolver(name));
}
