import type { SpawnParent } from '../agent/attempt.js';
import type { NamedShim } from '../agent/bound-shims.js';
import { firstPosition } from '../agent/journal.js';
import { NO_USAGE, UsageSchema } from '../agent/model.js';
import { RunErrorDataSchema } from '../agent/run-errors.js';
import { TERMINAL_STATUSES } from '../agent/run.js';
import type { SpawnRequest, SpawnResult } from '../agent/scope.js';
import type { RequestDoc, RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';
import type { JsonValue } from '../agent/json.js';
import type { AgentRegistry } from './agent-registry.js';
import { itemsOf } from './input-items.js';
import { eventLine } from './run-journal.js';

/** Depth or number of sub-agents used up; the tool that asked answers its model with it (R100). */
export class DelegationLimitError extends Error {
  readonly kind = 'delegation_limit';
  constructor(message: string) {
    super(message);
    this.name = 'DelegationLimitError';
  }
}

const DEFAULT_MAX_DEPTH = 4;
const DEFAULT_MAX_THREADS = 8;

export interface DelegationDeps {
  readonly store: RunStore;
  readonly writer: Writer;
  readonly agents: AgentRegistry;
  readonly now: () => number;
  readonly newId: () => string;
  /** Drives a child that is not driven yet, outside the slots: its parent has one already. */
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
   * the child is cancelled first.
   * @throws DelegationLimitError, AgentNotFoundError
   */
  async spawn(parent: SpawnParent, request: SpawnRequest, signal: AbortSignal): Promise<SpawnResult> {
    const { store } = this.#deps;
    const known = store.findChild(parent.runId, request.toolCallId);
    const shims = request.agent === undefined ? inheritedShims(parent, request) : undefined;
    const row = known ?? (await this.#create(parent, request));
    if (!TERMINAL_STATUSES.has(row.status) && row.status !== 'waiting') await this.#deps.startChild(row, shims);
    await this.#deps.untilOver(row.id, signal);
    if (signal.aborted) {
      await this.#deps.cancel(row);
      await this.#deps.untilOver(row.id, new AbortController().signal);
    }
    return this.#resultOf(row.id);
  }

  async #create(parent: SpawnParent, request: SpawnRequest): Promise<RunRow> {
    const { store, writer, agents, now, newId } = this.#deps;
    const { agentMaxDepth = DEFAULT_MAX_DEPTH, agentMaxThreads = DEFAULT_MAX_THREADS } = parent.limits;
    if (parent.depth + 1 > agentMaxDepth) throw new DelegationLimitError(`Agents may be nested ${agentMaxDepth} deep; this would be one more.`);
    const name = request.agent ?? parent.agent.descriptor.name;
    const stored = agents.get(name);
    const id = newId();
    const nowMs = now();
    return writer.run(() => {
      const owner = store.find(parent.runId);
      if (owner === undefined) throw new Error(`The parent run ${parent.runId} is gone.`);
      if (store.unfinishedChildren(parent.runId) >= agentMaxThreads) throw new DelegationLimitError(`${agentMaxThreads} sub-agents of this run are at work already.`);
      const above = store.request(owner.n);
      const doc: RequestDoc = {
        input: request.input,
        metadata: above.metadata,
        values: above.values,
        limits: {},
        shims: request.agent === undefined ? above.shims : {},
        guards: [...new Set([...(above.guards ?? []), parent.agent.descriptor.name])],
        ...(request.agent === undefined ? { helper: { ...(request.instructions === undefined ? {} : { instructions: request.instructions }), ...(request.tools === undefined ? {} : { tools: [...request.tools] }) } } : {}),
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
    return {
      runId,
      status,
      output: JSON.parse(store.doc(row.n, 'output') ?? 'null') as JsonValue,
      usage: UsageSchema.parse(JSON.parse(row.usage)),
      ...(error === undefined ? {} : { error: RunErrorDataSchema.parse(JSON.parse(error)).message }),
    };
  }
}

/** What a helper gets of its parent's shims: all that are inherited, with restricted sources where their sessions say so (R101). */
export function inheritedShims(parent: SpawnParent, request: SpawnRequest): NamedShim[] {
  const allowed = request.tools === undefined ? undefined : new Set(request.tools);
  const names = new Set(parent.tools.map((tool) => tool.name).filter((name) => allowed === undefined || allowed.has(name)));
  return parent.shims.sessions.flatMap((session) => {
    const named = parent.agent.shims.find((each) => each.name === session.name) ?? { name: session.name, shim: session.shim, hash: '' };
    if (session.shim.inherit === 'none') return [];
    const bindings = session.bound.inheritTools(names);
    if (bindings === null) return [named];
    if (bindings.length === 0 && session.shim.inherit !== 'always') return [];
    return [{ ...named, bindings }];
  });
}
