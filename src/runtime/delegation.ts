import type { SpawnParent } from '../agent/attempt.js';
import type { NamedShim } from '../agent/bound-shims.js';
import { assertDelegation, childLimits, inheritedShims, narrowed } from '../agent/inheritance.js';
import { firstPosition } from '../agent/journal.js';
import type { JsonValue } from '../agent/json.js';
import { NO_USAGE, UsageSchema } from '../agent/model.js';
import { CancellationSchema, TERMINAL_STATUSES } from '../agent/run.js';
import { HandedOverError, RunErrorDataSchema } from '../agent/run-errors.js';
import type { SpawnRequest, SpawnResult } from '../agent/scope.js';
import type { RequestDoc, RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';
import type { AgentRegistry } from './agent-registry.js';
import { itemsOf, shownInput } from './input-items.js';
import { eventLine } from './run-journal.js';

export interface DelegationDeps {
  readonly store: RunStore;
  readonly writer: Writer;
  readonly agents: AgentRegistry;
  readonly now: () => number;
  readonly newId: () => string;
  /** Has a child driven that nobody drives, outside the slots: its parent has one already. `shims` are what a helper inherits. */
  startChild(row: RunRow, shims: readonly NamedShim[] | undefined): Promise<void>;
  /** Resolves when the run has ended; a wait for a person is no end. */
  untilOver(runId: string, signal: AbortSignal): Promise<void>;
  cancel(row: RunRow): Promise<void>;
}

/** Runs that runs start: each has an id, a log and a lease of its own, and ends with its parent. */
export class Delegation {
  readonly #deps: DelegationDeps;

  constructor(deps: DelegationDeps) {
    this.#deps = deps;
  }

  /**
   * Starts a child run, or finds the one that this call started before a crash, and waits for its end. When the signal aborts
   * the child is cancelled first; where the parent is only handed over, the child is not touched: the next start goes on with both.
   * @throws DelegationLimitError, AgentNotFoundError, HandedOverError
   */
  async spawn(parent: SpawnParent, request: SpawnRequest, signal: AbortSignal): Promise<SpawnResult> {
    const { store } = this.#deps;
    const shims = request.agent === undefined ? inheritedShims(parent, request) : undefined;
    const row = store.findChild(parent.runId, request.toolCallId) ?? (await this.#create(parent, request));
    if (!TERMINAL_STATUSES.has(row.status)) await this.#deps.startChild(row, shims);
    await this.#deps.untilOver(row.id, signal);
    if (signal.aborted) {
      if (signal.reason instanceof HandedOverError) throw signal.reason;
      await this.#deps.cancel(row);
      await this.#deps.untilOver(row.id, new AbortController().signal);
    }
    return this.#resultOf(row.id);
  }

  async #create(parent: SpawnParent, request: SpawnRequest): Promise<RunRow> {
    const { store, writer, agents, now, newId } = this.#deps;
    const name = request.agent ?? parent.agent.descriptor.name;
    const id = newId();
    const nowMs = now();
    return writer.run(() => {
      const owner = store.find(parent.runId);
      if (owner === undefined) throw new Error(`The parent run ${parent.runId} is gone.`);
      assertDelegation(parent, store.unfinishedChildren(parent.runId));
      const above = store.request(owner.n);
      const guardedBy = { ...above.guardedBy, [owner.agent]: { version: owner.agent_version, shims: above.shims } };
      const helped = request.agent === undefined && name === owner.agent;
      const asAbove = guardedBy[name];
      const stored = (asAbove && agents.version(name, asAbove.version)) ?? agents.get(name);
      const doc: RequestDoc = {
        input: shownInput(request.input),
        metadata: above.metadata,
        values: above.values,
        limits: childLimits(parent, stored.descriptor),
        shims: helped ? above.shims : agents.guardConfigs(stored.descriptor, asAbove?.shims ?? {}),
        guards: [...parent.guards],
        guardedBy,
        ...(request.agent === undefined ? { helper: helperOf(request, above.helper) } : {}),
      };
      const instance = agents.instance(stored.descriptor, doc);
      store.create({
        id,
        owner: owner.owner,
        agent: name,
        agentVersion: stored.version,
        request: doc,
        instructions: instance.descriptor.instructions,
        items: itemsOf(request.input),
        position: firstPosition(name),
        usage: NO_USAGE,
        lines: [eventLine({ type: 'run.created', agent: name, parentRunId: parent.runId }, { id, attempt: 1 }, nowMs)],
        nowMs,
        parent: { runId: parent.runId, toolCallId: request.toolCallId, depth: parent.depth + 1 },
      });
      const row = store.find(id);
      if (row === undefined) throw new Error('The child run was not stored.');
      return row;
    });
  }

  #resultOf(runId: string): SpawnResult {
    const { store } = this.#deps;
    const row = store.find(runId);
    if (row === undefined) throw new Error(`The child run ${runId} is gone.`);
    const status = row.status === 'completed' || row.status === 'failed' ? row.status : 'cancelled';
    const error = store.doc(row.n, 'error');
    const cancellation = status === 'cancelled' ? store.doc(row.n, 'cancellation') : undefined;
    return {
      runId,
      status,
      output: JSON.parse(store.doc(row.n, 'output') ?? 'null') as JsonValue,
      usage: UsageSchema.parse(JSON.parse(row.usage)),
      ...(error === undefined ? {} : { error: RunErrorDataSchema.parse(JSON.parse(error)).message }),
      ...(cancellation === undefined ? {} : { cancellation: CancellationSchema.parse(JSON.parse(cancellation)) }),
    };
  }
}

/** What a helper was asked to be; a helper's helper gets no tool that its parent may not use. */
function helperOf(request: SpawnRequest, above: RequestDoc['helper']): NonNullable<RequestDoc['helper']> {
  const instructions = request.instructions ?? above?.instructions;
  const tools = narrowed(request.tools, above?.tools);
  return {
    ...(instructions === undefined ? {} : { instructions }),
    ...(tools === undefined ? {} : { tools: [...tools] }),
  };
}
