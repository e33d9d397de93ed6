import type { AgentInstance, LoopDeps, SpawnParent } from './attempt.js';
import type { EventInput, LifecycleEvent } from './events.js';
import { assertDelegation, childLimits, inheritedShims, narrowed } from './inheritance.js';
import type { AttemptEnd } from './journal.js';
import type { JsonValue } from './json.js';
import { runAttempt } from './loop.js';
import { MemoryJournal, newState } from './memory-journal.js';
import { copyItem, type HistoryItem } from './messages.js';
import { boundAnew } from './once-per-agent.js';
import { RunCancelledError } from './run-errors.js';
import type { SpawnRequest, SpawnResult } from './scope.js';

export interface LocalDelegationDeps {
  readonly loop: Omit<LoopDeps, 'spawn'>;
  readonly metadata: Readonly<Record<string, string>>;
  readonly dataDir: string;
  /** Shows what a child does in the stream of the run that it began with. */
  note(event: EventInput): void;
}

/** The children of one run of an agent in code: runs of their own in memory, with sessions of their own, ended with their parent. */
export class LocalDelegation {
  readonly #deps: LocalDelegationDeps;
  readonly #atWork = new Map<string, number>();

  constructor(deps: LocalDelegationDeps) {
    this.#deps = deps;
  }

  /** @throws DelegationLimitError */
  async spawn(parent: SpawnParent, request: SpawnRequest, signal: AbortSignal): Promise<SpawnResult> {
    const before = this.#atWork.get(parent.runId) ?? 0;
    assertDelegation(parent, before);
    const instance = this.#instanceOf(parent, request);
    this.#atWork.set(parent.runId, before + 1);
    try {
      return await this.#run(parent, request, instance, signal);
    } finally {
      this.#atWork.set(parent.runId, (this.#atWork.get(parent.runId) ?? 1) - 1);
    }
  }

  #instanceOf(parent: SpawnParent, request: SpawnRequest): AgentInstance {
    if (request.agent !== undefined) {
      const found = this.#deps.loop.agent(request.agent);
      return { ...found, shims: found.shims.map(boundAnew) };
    }
    const { descriptor, tools } = parent.agent;
    const instructions = request.instructions ?? descriptor.instructions;
    return {
      descriptor: { ...descriptor, instructions },
      tools,
      shims: inheritedShims(parent, request).map(boundAnew),
    };
  }

  async #run(
    parent: SpawnParent,
    request: SpawnRequest,
    instance: AgentInstance,
    signal: AbortSignal,
  ): Promise<SpawnResult> {
    const { loop, metadata, dataDir } = this.#deps;
    const { name, instructions } = instance.descriptor;
    const runId = loop.newId();
    const controller = new AbortController();
    const onAbort = (): void => {
      controller.abort(new RunCancelledError('The parent run was stopped.', loop.clock.now()));
    };
    signal.addEventListener('abort', onAbort, { once: true });
    const saved = newState(name, instructions, itemsOf(request.input));
    const onEvent = (event: LifecycleEvent): void => {
      if (!event.type.startsWith('run.')) this.#deps.note({ childRunId: runId, ...event } as unknown as EventInput);
    };
    const journal = new MemoryJournal({
      runId,
      saved,
      now: () => loop.clock.now(),
      signal: controller.signal,
      onEvent,
    });
    const attempt = {
      runId,
      parentRunId: parent.runId,
      depth: parent.depth + 1,
      metadata,
      key: null,
      dataDir,
      limits: childLimits(parent, instance.descriptor),
      saved,
      guards: parent.guards,
      lineage: parent.lineage,
      onlyTools: request.agent === undefined ? narrowed(request.tools, parent.onlyTools) : undefined,
      recovered: false,
      signal: controller.signal,
      journal,
    };
    const agent = (wanted: string): AgentInstance => (wanted === name ? instance : this.#anew(wanted));
    try {
      const end = await runAttempt(attempt, {
        ...loop,
        agent,
        spawn: async (from, asked, stop) => this.spawn(from, asked, stop),
      });
      return { runId, usage: journal.saved.usage, ...outcomeOf(end) };
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }

  #anew(name: string): AgentInstance {
    const found = this.#deps.loop.agent(name);
    return { ...found, shims: found.shims.map(boundAnew) };
  }
}

function outcomeOf(end: AttemptEnd | undefined): Pick<SpawnResult, 'status' | 'output' | 'error' | 'cancellation'> {
  switch (end?.status) {
    case 'completed':
      return { status: 'completed', output: end.output as JsonValue };
    case 'failed':
      return { status: 'failed', output: (end.output ?? null) as JsonValue, error: end.error.message };
    case 'waiting':
      return { status: 'failed', output: null, error: 'It waits for a decision; an agent in code has nobody to ask.' };
    case 'cancelled':
      return { status: 'cancelled', output: null, cancellation: end.cancellation };
    case undefined:
      return { status: 'cancelled', output: null };
  }
}

function itemsOf(input: JsonValue): HistoryItem[] {
  return (Array.isArray(input) ? (input as readonly JsonValue[]) : [input]).map((item) =>
    copyItem(item as HistoryItem, 'input'),
  );
}
