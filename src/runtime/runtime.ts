import type { AgentInstance } from '../agent/attempt.js';
import type { NamedShim } from '../agent/bound-shims.js';
import type { EventInput } from '../agent/events.js';
import { firstPosition } from '../agent/journal.js';
import { newState } from '../agent/memory-journal.js';
import type { HistoryItem } from '../agent/messages.js';
import { NO_USAGE } from '../agent/model.js';
import type { Run } from '../agent/run.js';
import type { Logger } from '../agent/tools.js';
import { DrainingError, IdempotencyMismatchError, QueueFullError, ValidationError } from '../errors.js';
import type { StoredAgent } from '../store/agent-store.js';
import type { RunRow } from '../store/run-rows.js';
import { FIRST_EPOCH, type RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';
import { checkTemplateValues } from './agent-check.js';
import type { AgentRegistry } from './agent-registry.js';
import type { AgentRuntime, Caller, ResumeRun, RunChange, StartRun } from './agent-runtime.js';
import type { EventLog } from './event-log.js';
import type { Expiries } from './expiries.js';
import { itemsOf } from './input-items.js';
import { type PreviewDeps, previewAgent } from './preview.js';
import type { Recovery } from './recovery.js';
import type { RunChanges, Written } from './run-changes.js';
import { type ForkRequest, planFork } from './run-fork.js';
import { eventLine } from './run-journal.js';
import { requestDoc, shimHashes } from './run-request.js';
import type { RunScheduler } from './run-scheduler.js';
import { isOver, ownerOf, type RunViews } from './run-views.js';
import type { ShimLoader } from './shim-loader.js';
import { TakeUp } from './take-up.js';

export interface RuntimeDeps {
  readonly store: RunStore;
  readonly writer: Writer;
  readonly eventLog: EventLog;
  readonly views: RunViews;
  readonly changes: RunChanges;
  readonly scheduler: RunScheduler;
  readonly agents: AgentRegistry;
  readonly shims: ShimLoader;
  readonly models: { list(): readonly unknown[] };
  readonly preview: PreviewDeps;
  readonly expiries: Expiries;
  readonly log: Logger;
  readonly maxQueuedRuns: number;
  readonly now: () => number;
  readonly newId: () => string;
  readonly hash: (text: string) => string;
}

/** The one object that HTTP talks to: it checks what is asked, makes each change in one transaction, and has runs driven. */
export class Runtime implements AgentRuntime {
  readonly #deps: RuntimeDeps;
  readonly #runs: TakeUp;
  #draining = false;
  #recovery: Recovery | undefined;

  constructor(deps: RuntimeDeps) {
    this.#deps = deps;
    this.#runs = new TakeUp({
      ...deps,
      isDraining: () => this.#draining,
      endOrphans: (runId) => this.#recovery?.endOrphans(runId),
    });
    deps.scheduler.connect({
      claim: async (runId) => this.#runs.claimQueued(runId),
      onDone: (runId, epoch) => {
        this.#afterAttempt(runId, epoch).catch((error: unknown) => {
          deps.log.error({ runId, err: error }, 'what follows an attempt failed');
        });
      },
    });
  }

  get draining(): boolean {
    return this.#draining;
  }

  /** Who goes on with what an earlier process left; it is told when an attempt is over. */
  attach(recovery: Recovery): void {
    this.#recovery = recovery;
  }

  async startRun(request: StartRun, caller: Caller): Promise<RunChange & { readonly replayed: boolean }> {
    const { writer, store, agents, scheduler, newId, now } = this.#deps;
    const owner = ownerOf(caller);
    const replay = this.#replayOf(owner, request);
    if (replay !== undefined) return replay;
    this.#assertTakingWork();
    const stored = agents.find(request.agent);
    if (stored === undefined)
      throw new ValidationError(`There is no agent ${JSON.stringify(request.agent)}.`, [
        { pointer: '/agent', message: 'names no saved agent' },
      ]);
    checkTemplateValues(stored.descriptor, request.values);
    const doc = requestDoc(request);
    const instance = agents.instance(stored.descriptor, doc);
    const items = itemsOf(request.input);
    const id = newId();
    const hasSlot = scheduler.reserve();
    try {
      this.#assertRoom(hasSlot);
      const made = await writer.run(() => {
        const found = request.idempotencyKey === undefined ? undefined : store.findByKey(owner, request.idempotencyKey);
        if (found !== undefined) return { found, row: undefined };
        const nowMs = now();
        const first: EventInput[] = [
          { type: 'run.created', agent: request.agent },
          ...(hasSlot ? [{ type: 'run.started' } as const] : []),
        ];
        const lines = first.map((event) => eventLine(event, { id, attempt: 1 }, nowMs));
        const n = store.create({
          id,
          owner,
          agent: request.agent,
          agentVersion: stored.version,
          request: doc,
          instructions: instance.descriptor.instructions,
          items,
          position: firstPosition(request.agent),
          usage: NO_USAGE,
          lines,
          nowMs,
          idempotency:
            request.idempotencyKey === undefined
              ? undefined
              : { key: request.idempotencyKey, bodyHash: this.#bodyHash(request) },
          running: hasSlot,
        });
        store.putDoc(n, 'shims', shimHashes(instance.shims));
        return { found: undefined, row: hasSlot ? store.find(id) : undefined };
      });
      if (made.found !== undefined) {
        if (hasSlot) scheduler.release();
        return this.#replay(made.found, owner, request);
      }
      if (made.row === undefined) scheduler.enqueue(id);
      else {
        const saved = newState(request.agent, instance.descriptor.instructions, items);
        const resolver = this.#deps.agents.resolver({ agent: request.agent, version: stored.version }, doc);
        const agent = (name: string): AgentInstance => (name === request.agent ? instance : resolver(name));
        const owned = { row: made.row, epoch: FIRST_EPOCH };
        scheduler.drive(this.#runs.startOf(owned, { saved, request: doc, agent }), 'reserved');
      }
      return Object.assign(this.#change(id, caller, 0), { replayed: false });
    } catch (error) {
      if (hasSlot && scheduler.worker(id) === undefined) scheduler.release();
      throw error;
    }
  }

  #replayOf(owner: string, request: StartRun): ReturnType<typeof this.startRun> | undefined {
    if (request.idempotencyKey === undefined) return undefined;
    const found = this.#deps.store.findByKey(owner, request.idempotencyKey);
    return found === undefined ? undefined : Promise.resolve(this.#replay(found, owner, request));
  }

  #replay(
    found: { readonly id: string; readonly bodyHash: string },
    owner: string,
    request: StartRun,
  ): RunChange & { readonly replayed: boolean } {
    if (found.bodyHash !== this.#bodyHash(request)) throw new IdempotencyMismatchError();
    // From its first event on, or from the oldest that is kept.
    const after = (this.#deps.store.find(found.id)?.oldest_seq ?? 1) - 1;
    return Object.assign(this.#change(found.id, { key: owner === '' ? null : owner }, after), { replayed: true });
  }

  #bodyHash({ idempotencyKey: _key, ...body }: StartRun): string {
    return this.#deps.hash(JSON.stringify(body));
  }

  async resumeRun(runId: string, request: ResumeRun, caller: Caller): Promise<RunChange> {
    const row = this.#deps.views.row(runId, caller);
    this.#assertTakingWork();
    if (request.shims !== undefined) this.#assertConfigs(row, request.shims);
    const items = request.input === undefined ? undefined : itemsOf(request.input);
    return this.#resume(runId, ownerOf(caller), request, items);
  }

  /** @throws ValidationError for a config that the agent's shims do not take */
  #assertConfigs(row: RunRow, shims: NonNullable<ResumeRun['shims']>): void {
    const { agents, store } = this.#deps;
    const stored = agents.version(row.agent, row.agent_version);
    if (stored === undefined) return;
    const request = store.request(row.n);
    agents.instance(stored.descriptor, { ...request, shims: { ...request.shims, ...shims } });
  }

  async #resume(
    runId: string,
    owner: string,
    request: ResumeRun,
    items: readonly HistoryItem[] | undefined,
  ): Promise<RunChange> {
    const { writer, changes, scheduler } = this.#deps;
    const hasSlot = scheduler.reserve();
    // The worker of the attempt before may still be there, so it does not tell whether the slot was taken.
    let slotTaken = false;
    try {
      const { resumed, claimed } = await writer.run(() => {
        const taken = changes.resume(runId, owner, request, items);
        // Thrown inside the transaction: what was taken is undone.
        if (taken.starts) this.#assertRoom(hasSlot);
        return { resumed: taken, claimed: taken.starts && hasSlot ? this.#runs.claimLoaded(runId) : undefined };
      });
      this.#runs.publish(resumed);
      if (claimed !== undefined) {
        this.#runs.publish(claimed.written);
        slotTaken = true;
        scheduler.drive(claimed.start, 'reserved');
      } else {
        slotTaken = true;
        if (hasSlot) scheduler.release();
        if (resumed.starts) scheduler.enqueue(runId);
      }
      // Where other decisions are still awaited no attempt begins: a stream then shows the wait itself.
      const after = resumed.starts ? resumed.batch.firstSeq - 1 : resumed.batch.lastSeq - 1;
      return this.#change(runId, { key: owner === '' ? null : owner }, after);
    } catch (error) {
      if (hasSlot && !slotTaken) scheduler.release();
      throw error;
    }
  }

  async cancelRun(runId: string, caller: Caller): Promise<RunChange> {
    const { writer, changes, scheduler } = this.#deps;
    const before = this.#deps.views.row(runId, caller);
    if (isOver(before)) return this.#change(runId, caller, before.last_seq - 1);
    const cancelled = await writer.run(() => changes.cancel(runId, ownerOf(caller)));
    this.#runs.publish(cancelled);
    if (isOver(cancelled.row)) scheduler.dequeue(runId);
    if (cancelled.tellWorker) await this.#stopWorker(runId);
    // Where nothing was written and no cancel came before, the run's own end had come first.
    const { status } = cancelled.row;
    const taken = cancelled.batch.frames !== '' || status === 'cancelling' || status === 'cancelled';
    return Object.assign(this.#change(runId, caller, this.#cancelSeen(cancelled)), { taken });
  }

  /** The seq before the first event that a stream of a cancel shows: `run.cancelling`, also for one that comes second. */
  #cancelSeen({ row, batch: { firstSeq, lastSeq, frames } }: Written): number {
    if (frames !== '') return firstSeq - 1;
    if (isOver(row)) return lastSeq - 1;
    const announced = row.status === 'cancelling' ? this.#deps.eventLog.lastSeqOf(row.id, 'run.cancelling') : undefined;
    return announced === undefined ? lastSeq : announced - 1;
  }

  /** Whoever is about to drive the run finds it cancelled; while the server drains nobody will, so it ends here. */
  async #stopWorker(runId: string): Promise<void> {
    const { writer, store, changes, scheduler, now } = this.#deps;
    const worker = scheduler.worker(runId);
    if (worker !== undefined) worker.cancel(now());
    if (worker !== undefined || !this.#draining) return;
    const ended = await writer.run(() => {
      const row = store.find(runId);
      return row?.status === 'cancelling' ? changes.endCancelled(row, false) : undefined;
    });
    if (ended !== undefined) this.#runs.publish(ended);
  }

  async forkRun(runId: string, request: ForkRequest, caller: Caller): Promise<RunChange> {
    const { writer, views, scheduler } = this.#deps;
    const source = views.row(runId, caller);
    this.#assertTakingWork();
    const fork = planFork(this.#deps, source, request);
    const hasSlot = scheduler.reserve();
    if (hasSlot) scheduler.release();
    this.#assertRoom(hasSlot);
    await writer.run(() => {
      fork.create();
    });
    scheduler.enqueue(fork.id);
    return this.#change(fork.id, caller, 0);
  }

  async purgeRun(runId: string, caller: Caller): Promise<void> {
    this.#deps.views.row(runId, caller);
    await this.#deps.writer.run(() => {
      this.#deps.changes.purge(runId, ownerOf(caller));
    });
  }

  /** The answer to a change; the run is read only if somebody looks at it (a stream does not). */
  #change(runId: string, caller: Caller, after: number): RunChange {
    const read = (): Run => this.getRun(runId, caller);
    return {
      runId,
      after,
      get run() {
        return read();
      },
    };
  }

  getRunJson: AgentRuntime['getRunJson'] = (runId, caller) => this.#deps.views.json(runId, caller);
  getRun(runId: string, caller: Caller): Run {
    return this.#deps.views.run(runId, caller);
  }
  async waitForRun(
    runId: string,
    caller: Caller,
    options: { readonly timeoutMs: number; readonly signal: AbortSignal },
  ): Promise<Run> {
    return this.#deps.views.wait(runId, caller, options);
  }
  listRuns: AgentRuntime['listRuns'] = (filter, caller) => this.#deps.views.list(filter, caller);
  getState: AgentRuntime['getState'] = (runId, caller) => this.#deps.views.state(runId, caller);
  listCheckpoints: AgentRuntime['listCheckpoints'] = (runId, caller, page) =>
    this.#deps.views.checkpoints(runId, caller, page);
  listEffects: AgentRuntime['listEffects'] = (runId, caller, page) => this.#deps.views.effects(runId, caller, page);
  readEvents: AgentRuntime['readEvents'] = (runId, caller, page) => this.#deps.views.events(runId, caller, page);

  listAgents: AgentRuntime['listAgents'] = () => this.#deps.agents.list().map(agentView);
  getAgent: AgentRuntime['getAgent'] = (name) => {
    const agent = this.#deps.agents.get(name);
    return { ...agentView(agent), source: agent.source };
  };
  saveAgent: AgentRuntime['saveAgent'] = async (name, descriptor) => {
    const { agent, created } = await this.#deps.agents.save(name, descriptor);
    return { agent: agentView(agent), created };
  };
  async deleteAgent(name: string): Promise<void> {
    await this.#deps.agents.remove(name);
  }
  previewAgent: AgentRuntime['previewAgent'] = async (name, input, caller) => {
    const { descriptor } = this.#deps.agents.get(name);
    checkTemplateValues(descriptor, {});
    const request = { values: {}, shims: {} };
    const resolver = this.#deps.agents.resolver({ agent: name, version: this.#deps.agents.get(name).version }, request);
    return previewAgent(this.#deps.preview, { name, resolver, items: itemsOf(input), key: caller.key });
  };
  listShims: AgentRuntime['listShims'] = () => this.#deps.shims.list();
  listModels: AgentRuntime['listModels'] = () => this.#deps.models.list();

  readinessFaults(): readonly string[] {
    const faults: string[] = [];
    if (this.#draining) faults.push('draining');
    if (this.#deps.writer.fault !== undefined) faults.push('the store takes no writes now');
    return faults;
  }

  #assertTakingWork(): void {
    if (this.#draining) throw new DrainingError();
  }

  /** @throws QueueFullError */
  #assertRoom(hasSlot: boolean): void {
    const { queuedCount } = this.#deps.scheduler;
    if (!hasSlot && queuedCount >= this.#deps.maxQueuedRuns) throw new QueueFullError(queuedCount);
  }

  /** Goes on with a run whose process died: a new epoch, `run.recovered`, and the loop from the last checkpoint. */
  async recover(runId: string, slot: 'reserved' | 'outside'): Promise<void> {
    await this.#runs.recover(runId, slot);
  }
  /** Drives a child run that nobody drives: a new one, or one that a crash or a wait had left. */
  async startChild(row: RunRow, shims: readonly NamedShim[] | undefined): Promise<void> {
    await this.#runs.startChild(row, shims);
  }

  async #afterAttempt(runId: string, epoch: number): Promise<void> {
    // Patient, since what follows an attempt must follow it also where the storage fails just now.
    const row = await this.#deps.writer.read(() => this.#deps.store.standing(runId));
    if (row?.status === 'waiting') this.#deps.expiries.watch(runId);
    if (row === undefined) return;
    if (isOver(row)) this.#runs.forget(runId);
    if (isOver(row)) this.#recovery?.endOrphans(runId);
    else if ((!this.#draining || row.status === 'cancelling') && row.epoch === epoch)
      await this.#runs.endUnowned(runId, 'The attempt broke off, and its end could not be written.', epoch);
  }

  /** Cancels a run whose parent is over; where nobody drives it nobody will, so it ends here. */
  async cancelOrphan(row: RunRow): Promise<void> {
    await this.cancelRun(row.id, { key: row.owner === '' ? null : row.owner });
    await this.#runs.endUnowned(row.id, 'Its parent run is over.');
  }

  /** Answers for calls that nobody decided in time: denied with the reason `expired`. */
  async expire(runId: string, decisions: NonNullable<ResumeRun['decisions']>): Promise<void> {
    const row = this.#deps.store.find(runId);
    if (row?.status !== 'waiting' || this.#draining) return;
    await this.#resume(runId, row.owner, { decisions }, undefined);
  }

  /** Takes no more work; each run stops at its next checkpoint, or when the grace is over. The next start goes on with them. */
  async drain(graceMs: number): Promise<void> {
    if (this.#draining) return;
    this.#draining = true;
    const { scheduler, expiries } = this.#deps;
    expiries.stop();
    await scheduler.stop();
    await this.#recovery?.settled();
    const workers = scheduler.workers();
    for (const worker of workers) worker.handOver('atCheckpoint');
    const done = Promise.all(workers.map(async (worker) => worker.done));
    const grace = setTimeout(() => {
      for (const worker of workers) worker.handOver('now');
    }, graceMs);
    await done;
    clearTimeout(grace);
  }
}

function agentView({ descriptor, version }: StoredAgent): ReturnType<AgentRuntime['listAgents']>[number] {
  return { ...descriptor, version };
}
