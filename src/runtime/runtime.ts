import type { SavedState } from '../agent/journal.js';
import { firstPosition } from '../agent/journal.js';
import { newState } from '../agent/memory-journal.js';
import type { NamedShim } from '../agent/bound-shims.js';
import type { JsonValue } from '../agent/json.js';
import type { HistoryItem } from '../agent/messages.js';
import { NO_USAGE } from '../agent/model.js';
import { messageOf } from '../agent/run-errors.js';
import type { Run } from '../agent/run.js';
import type { Logger } from '../agent/tools.js';
import { DrainingError, IdempotencyMismatchError, InputRequiredError, QueueFullError, ValidationError } from '../errors.js';
import type { StoredAgent } from '../store/agent-store.js';
import type { RequestDoc, RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';
import { checkTemplateValues } from './agent-check.js';
import type { AgentRegistry, AgentResolver } from './agent-registry.js';
import type { AgentRuntime, Caller, ResumeRun, RunChange, StartRun } from './agent-runtime.js';
import type { EventLog } from './event-log.js';
import { itemsOf, shownInput } from './input-items.js';
import { previewAgent, type PreviewDeps } from './preview.js';
import type { RunChanges, Written } from './run-changes.js';
import { eventLine, withSeqs, type Ancestor } from './run-journal.js';
import type { RunScheduler } from './run-scheduler.js';
import { isOver, ownerOf, type RunViews } from './run-views.js';
import type { AttemptStart } from './run-worker.js';
import { interruptedModelCall, TAIL_ROWS } from './log-tail.js';
import { MAX_CRASHES, type Recovery } from './recovery.js';
import type { Expiries } from './expiries.js';
import type { ShimLoader } from './shim-loader.js';

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

/** What a claim found: the right to drive the run, and the events that say so. */
interface Claimed {
  readonly row: RunRow;
  readonly epoch: number;
  readonly written: Written;
}

/** The one object that HTTP talks to: it checks what is asked, makes each change in one transaction, and has runs driven. */
export class Runtime implements AgentRuntime {
  readonly #deps: RuntimeDeps;
  /** What helpers inherit from the runs that wait for them, by the helper's id: also for their attempts after a wait. */
  readonly #inherited = new Map<string, readonly NamedShim[]>();
  #draining = false;
  #recovery: Recovery | undefined;

  constructor(deps: RuntimeDeps) {
    this.#deps = deps;
    deps.scheduler.connect({
      claim: async (runId) => this.#claimQueued(runId),
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
    if (stored === undefined) throw new ValidationError(`There is no agent ${JSON.stringify(request.agent)}.`, [{ pointer: '/agent', message: 'names no saved agent' }]);
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
        if (found !== undefined) return { found, lines: [], claimed: undefined };
        const nowMs = now();
        const lines = [eventLine({ type: 'run.created', agent: request.agent }, { id, attempt: 1 }, nowMs)];
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
          idempotency: request.idempotencyKey === undefined ? undefined : { key: request.idempotencyKey, bodyHash: this.#bodyHash(request) },
        });
        store.putDoc(n, 'shims', shimHashes(instance.shims));
        return { found: undefined, lines, claimed: hasSlot ? this.#claim(id) : undefined };
      });
      if (made.found !== undefined) {
        if (hasSlot) scheduler.release();
        return this.#replay(made.found, owner, request);
      }
      this.#publish(id, 1, made.lines);
      if (made.claimed === undefined) scheduler.enqueue(id);
      else {
        const saved = newState(request.agent, instance.descriptor.instructions, items);
        const resolver = this.#deps.agents.resolver({ agent: request.agent, version: stored.version }, doc);
        this.#publishWritten(made.claimed.written);
        scheduler.drive(this.#startOf(made.claimed, { saved, request: doc, agent: (name) => (name === request.agent ? instance : resolver(name)) }), 'reserved');
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

  #replay(found: { readonly id: string; readonly bodyHash: string }, owner: string, request: StartRun): RunChange & { readonly replayed: boolean } {
    if (found.bodyHash !== this.#bodyHash(request)) throw new IdempotencyMismatchError();
    // From its first event on, or from the oldest that is kept.
    const after = (this.#deps.store.find(found.id)?.oldest_seq ?? 1) - 1;
    return Object.assign(this.#change(found.id, { key: owner === '' ? null : owner }, after), { replayed: true });
  }

  #bodyHash({ idempotencyKey: _key, ...body }: StartRun): string {
    return this.#deps.hash(JSON.stringify(body));
  }

  async resumeRun(runId: string, request: ResumeRun, caller: Caller): Promise<RunChange> {
    this.#deps.views.row(runId, caller);
    this.#assertTakingWork();
    const items = request.input === undefined ? undefined : itemsOf(request.input);
    return this.#resume(runId, ownerOf(caller), request, items);
  }

  async #resume(runId: string, owner: string, request: ResumeRun, items: readonly HistoryItem[] | undefined): Promise<RunChange> {
    const { writer, changes, scheduler } = this.#deps;
    const hasSlot = scheduler.reserve();
    // The worker of the attempt before may still be there, so it does not tell whether the slot was taken.
    let slotTaken = false;
    try {
      const { resumed, claimed } = await writer.run(() => {
        const taken = changes.resume(runId, owner, request, items);
        // Thrown inside the transaction: what was taken is undone.
        if (taken.starts) this.#assertRoom(hasSlot);
        return { resumed: taken, claimed: taken.starts && hasSlot ? this.#claimLoaded(runId) : undefined };
      });
      this.#publishWritten(resumed);
      if (claimed !== undefined) {
        this.#publishWritten(claimed.written);
        slotTaken = true;
        scheduler.drive(claimed.start, 'reserved');
      } else {
        slotTaken = true;
        if (hasSlot) scheduler.release();
        if (resumed.starts) scheduler.enqueue(runId);
      }
      // Where other decisions are still awaited no attempt begins: a stream then shows the wait itself.
      const after = resumed.starts ? resumed.lastSeq - resumed.lines.length : resumed.lastSeq - 1;
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
    this.#publishWritten(cancelled);
    if (isOver(cancelled.row)) scheduler.dequeue(runId);
    if (cancelled.tellWorker) await this.#stopWorker(runId);
    return Object.assign(this.#change(runId, caller, this.#cancelSeen(cancelled)), { taken: true });
  }

  /** The seq before the first event that a stream of a cancel shows: `run.cancelling`, also for one that comes second. */
  #cancelSeen({ row, lines, lastSeq }: Written): number {
    if (lines.length > 0) return lastSeq - lines.length;
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
    if (ended !== undefined) this.#publishWritten(ended);
  }

  async forkRun(runId: string, request: { readonly turn?: number | undefined; readonly input?: JsonValue | undefined; readonly agent?: string | undefined }, caller: Caller): Promise<RunChange> {
    const { writer, store, agents, views, scheduler, newId, now } = this.#deps;
    const source = views.row(runId, caller);
    this.#assertTakingWork();
    const checkpoint = store.checkpointAt(source.n, request.turn);
    if (checkpoint === undefined) throw new ValidationError(`Run ${runId} has no checkpoint after turn ${String(request.turn)}.`, [{ pointer: '/turn', message: 'no such model turn has ended' }]);
    const name = request.agent ?? checkpoint.agent;
    const stored = request.agent === undefined ? this.#agentOf(source, name) : agents.find(name);
    if (stored === undefined) throw new ValidationError(`There is no agent ${JSON.stringify(name)}.`, [{ pointer: '/agent', message: 'names no saved agent' }]);
    const doc: RequestDoc = { ...store.request(source.n), ...(request.input === undefined ? {} : { input: shownInput(request.input) }), helper: undefined };
    const items = request.input === undefined ? [] : itemsOf(request.input);
    if (items.length === 0 && !store.endsOpen(source.n, checkpoint)) {
      throw new InputRequiredError({ detail: 'The history ends with an answer there: a fork needs an input.', errors: [{ pointer: '/input', message: 'required' }] });
    }
    const instance = agents.instance(stored.descriptor, doc);
    const hasSlot = scheduler.reserve();
    if (hasSlot) scheduler.release();
    this.#assertRoom(hasSlot);
    const id = newId();
    const lines = await writer.run(() => {
      const nowMs = now();
      const created = [eventLine({ type: 'run.created', agent: name }, { id, attempt: 1 }, nowMs)];
      const position = { ...firstPosition(name), seenAgents: JSON.parse(checkpoint.seen_agents) as string[] };
      const n = store.create({
        id, owner: source.owner, agent: name, agentVersion: stored.version, request: doc, instructions: instance.descriptor.instructions,
        items, position, usage: NO_USAGE, lines: created, nowMs, forkedFrom: { run: source, checkpoint },
      });
      store.putDoc(n, 'shims', shimHashes(instance.shims));
      return created;
    });
    this.#publish(id, 1, lines);
    scheduler.enqueue(id);
    return this.#change(id, caller, 0);
  }

  #agentOf(row: RunRow, name: string): StoredAgent | undefined {
    return name === row.agent ? this.#deps.agents.version(name, row.agent_version) : this.#deps.agents.find(name);
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
  async waitForRun(runId: string, caller: Caller, options: { readonly timeoutMs: number; readonly signal: AbortSignal }): Promise<Run> {
    return this.#deps.views.wait(runId, caller, options);
  }
  listRuns: AgentRuntime['listRuns'] = (filter, caller) => this.#deps.views.list(filter, caller);
  getState: AgentRuntime['getState'] = (runId, caller) => this.#deps.views.state(runId, caller);
  listCheckpoints: AgentRuntime['listCheckpoints'] = (runId, caller, page) => this.#deps.views.checkpoints(runId, caller, page);
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

  /** Makes a queued run a running one: inside a transaction. */
  #claim(runId: string): Claimed | undefined {
    const { store, now } = this.#deps;
    const row = store.find(runId);
    if (row?.status !== 'queued') return undefined;
    const nowMs = now();
    store.transition(row.n, 'running', nowMs);
    const { epoch } = store.takeLease(row.n, nowMs);
    const lines = row.attempt === 1 ? [eventLine({ type: 'run.started' }, row, nowMs)] : [];
    const lastSeq = lines.length === 0 ? row.last_seq : store.addEvents(row.n, lines, nowMs);
    return { row, epoch, written: { row, lines, lastSeq } };
  }

  async #claimQueued(runId: string): Promise<AttemptStart | undefined> {
    const taken = await this.#takeUp(runId, () => this.#claimLoaded(runId));
    if (taken === undefined) return undefined;
    this.#publishWritten(taken.written);
    return taken.start;
  }

  /** Claims a queued run and reads what its attempt begins with, in one transaction: a store that fails has then claimed nothing. */
  #claimLoaded(runId: string): { readonly written: Written; readonly start: AttemptStart } | undefined {
    const claimed = this.#claim(runId);
    if (claimed === undefined) return undefined;
    return { written: claimed.written, start: this.#startLoaded(claimed) };
  }

  #startLoaded({ row, epoch }: Pick<Claimed, 'row' | 'epoch'>): AttemptStart {
    const { store, agents } = this.#deps;
    const saved = store.load(row.n);
    const request = store.request(row.n);
    const agent = withShims(agents.resolver({ agent: row.agent, version: row.agent_version }, request), row.agent, this.#inherited.get(row.id));
    return this.#startOf({ row, epoch }, { saved, request, recovered: saved.position.at === 'tools', agent });
  }

  /** Takes a run up in a transaction that waits for the storage; a run whose record cannot be read is failed, and it alone. */
  async #takeUp<T>(runId: string, claim: () => T): Promise<T | undefined> {
    const { writer, log } = this.#deps;
    try {
      return await writer.run(claim, { patient: true });
    } catch (error) {
      log.error({ runId, err: error }, 'a run could not be taken up');
      await this.#endUnowned(runId, `The run could not be taken up: ${messageOf(error)}`);
      return undefined;
    }
  }

  /**
   * Ends a run that is active although nobody drives it: nothing is running without an owner.
   * @param epoch of the owner that left it; somebody else's is not touched
   */
  async #endUnowned(runId: string, message: string, epoch?: number): Promise<void> {
    const { writer, store, changes, scheduler } = this.#deps;
    const written = await writer.run(
      () => {
        const row = store.find(runId);
        if (row === undefined || scheduler.worker(runId) !== undefined || row.epoch !== (epoch ?? row.epoch)) return undefined;
        if (row.status === 'cancelling') return changes.endCancelled(row, false);
        return row.status === 'queued' || row.status === 'running' ? changes.endFailed(row, { code: 'internal', message }) : undefined;
      },
      { patient: true },
    );
    if (written === undefined) return;
    this.#publishWritten(written);
    this.#recovery?.endOrphans(written.row);
  }

  #startOf(
    { row, epoch }: Pick<Claimed, 'row' | 'epoch'>,
    options: { readonly saved: SavedState; readonly request: RequestDoc; readonly agent?: AgentResolver; readonly recovered?: boolean; readonly interruptedModelCallId?: string | undefined },
  ): AttemptStart {
    const agent = options.agent ?? this.#deps.agents.resolver({ agent: row.agent, version: row.agent_version }, options.request);
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
      const interruptedModelCallId = interruptedModelCall(store.lastEventBodies(row.n, TAIL_ROWS));
      const start = { ...this.#startLoaded({ row, epoch }), recovered: true, interruptedModelCallId };
      return { row, start, written: { row, lines, lastSeq: store.addEvents(row.n, lines, nowMs) } };
    });
    if (taken === undefined) return;
    this.#publishWritten(taken.written);
    if (taken.start === undefined) this.#recovery?.endOrphans(taken.row);
    else scheduler.drive(taken.start, slot);
  }

  /** Drives a child run that nobody drives: a new one, or one that a crash or a wait had left. */
  async startChild(row: RunRow, shims: readonly NamedShim[] | undefined): Promise<void> {
    const { scheduler, expiries } = this.#deps;
    if (shims !== undefined) this.#inherited.set(row.id, shims);
    if (this.#draining || scheduler.worker(row.id) !== undefined) return;
    if (row.status === 'waiting') {
      expiries.watch(row.id);
      return;
    }
    if (row.status === 'running' || row.status === 'cancelling') return this.recover(row.id, 'outside');
    const taken = await this.#takeUp(row.id, () => this.#claimLoaded(row.id));
    if (taken === undefined) return;
    this.#publishWritten(taken.written);
    scheduler.drive(taken.start, 'outside');
  }

  #ancestorsOf(row: RunRow): Ancestor[] {
    const ancestors: Ancestor[] = [];
    for (let parent = row.parent; parent !== null; ) {
      const above = this.#deps.store.find(parent);
      if (above === undefined) break;
      ancestors.push({ n: above.n, id: above.id, attempt: above.attempt, agents: this.#deps.store.position(above.n).agents });
      parent = above.parent;
    }
    return ancestors;
  }

  #publishWritten(written: Written): void {
    this.#publish(written.row.id, written.lastSeq - written.lines.length + 1, written.lines);
  }
  #publish(runId: string, firstSeq: number, lines: readonly string[]): void {
    this.#deps.eventLog.publish(runId, { firstSeq, lines: withSeqs(lines, firstSeq + lines.length - 1) });
  }

  async #afterAttempt(runId: string, epoch: number): Promise<void> {
    // Patient, since what follows an attempt must follow it also where the storage fails just now.
    const row = await this.#deps.writer.run(() => this.#deps.store.find(runId), { patient: true });
    if (row?.status === 'waiting') this.#deps.expiries.watch(row.id);
    if (row === undefined) return;
    if (isOver(row)) this.#inherited.delete(runId);
    if (isOver(row)) this.#recovery?.endOrphans(row);
    else if ((!this.#draining || row.status === 'cancelling') && row.epoch === epoch) await this.#endUnowned(runId, 'The attempt broke off, and its end could not be written.', epoch);
  }

  /** Cancels a run whose parent is over; where nobody drives it nobody will, so it ends here. */
  async cancelOrphan(row: RunRow): Promise<void> {
    await this.cancelRun(row.id, { key: row.owner === '' ? null : row.owner });
    await this.#endUnowned(row.id, 'Its parent run is over.');
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

function withShims(resolver: AgentResolver, own: string, shims: readonly NamedShim[] | undefined): AgentResolver {
  if (shims === undefined) return resolver;
  return (name) => (name === own ? { ...resolver(name), shims } : resolver(name));
}

function requestDoc({ input, metadata, values, limits, shims }: StartRun): RequestDoc {
  return { input: shownInput(input), metadata: { ...metadata }, values: { ...values } as RequestDoc['values'], limits: { ...limits } as RequestDoc['limits'], shims: structuredClone(shims) };
}


function shimHashes(shims: readonly NamedShim[]): string {
  return JSON.stringify(shims.map(({ name, hash }) => ({ name, hash })));
}

function agentView({ descriptor, version }: StoredAgent): ReturnType<AgentRuntime['listAgents']>[number] {
  return { ...descriptor, version };
}

