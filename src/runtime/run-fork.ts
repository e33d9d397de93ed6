import { firstPosition } from '../agent/journal.js';
import type { JsonValue } from '../agent/json.js';
import { NO_USAGE } from '../agent/model.js';
import { InputRequiredError, ValidationError } from '../errors.js';
import type { StoredAgent } from '../store/agent-store.js';
import type { RequestDoc, RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { AgentRegistry } from './agent-registry.js';
import { itemsOf, shownInput } from './input-items.js';
import { eventLine } from './run-journal.js';
import { shimHashes } from './run-request.js';

export interface ForkRequest {
  readonly turn?: number | undefined;
  readonly input?: JsonValue | undefined;
  readonly agent?: string | undefined;
}

export interface ForkDeps {
  readonly store: RunStore;
  readonly agents: AgentRegistry;
  readonly now: () => number;
  readonly newId: () => string;
}

/**
 * Checks a fork and says how it is made: a new run that carries what the source had at a checkpoint, and nothing later.
 * `create` is called inside a transaction.
 * @throws ValidationError, InputRequiredError
 */
export function planFork(
  deps: ForkDeps,
  source: RunRow,
  request: ForkRequest,
): { readonly id: string; create(): void } {
  const { store, agents, now, newId } = deps;
  const checkpoint = store.checkpointAt(source.n, request.turn);
  if (checkpoint === undefined) {
    throw new ValidationError(`Run ${source.id} has no checkpoint after turn ${String(request.turn)}.`, [
      { pointer: '/turn', message: 'no such model turn has ended' },
    ]);
  }
  const name = request.agent ?? checkpoint.agent;
  const stored = request.agent === undefined ? agentOf(agents, source, name) : agents.find(name);
  if (stored === undefined) {
    throw new ValidationError(`There is no agent ${JSON.stringify(name)}.`, [
      { pointer: '/agent', message: 'names no saved agent' },
    ]);
  }
  const items = request.input === undefined ? [] : itemsOf(request.input);
  if (items.length === 0 && !store.endsOpen(source.n, checkpoint)) {
    throw new InputRequiredError({
      detail: 'The history ends with an answer there: a fork needs an input.',
      errors: [{ pointer: '/input', message: 'required' }],
    });
  }
  const above = store.request(source.n);
  const doc: RequestDoc = {
    ...above,
    // Its configs are those of its own agent, whose guards the conversation keeps.
    ...(name === source.agent
      ? {}
      : {
          shims: agents.guardConfigs(stored.descriptor, above.guardedBy?.[name]?.shims ?? {}),
          guardedBy: { ...above.guardedBy, [source.agent]: { version: source.agent_version, shims: above.shims } },
        }),
    ...(request.input === undefined ? {} : { input: shownInput(request.input) }),
    helper: undefined,
  };
  const instance = agents.instance(stored.descriptor, doc);
  const id = newId();
  const create = (): void => {
    const nowMs = now();
    const lines = [eventLine({ type: 'run.created', agent: name }, { id, attempt: 1 }, nowMs)];
    const position = { ...firstPosition(name), seenAgents: JSON.parse(checkpoint.seen_agents) as string[] };
    const n = store.create({
      id,
      owner: source.owner,
      agent: name,
      agentVersion: stored.version,
      request: doc,
      instructions: instance.descriptor.instructions,
      items,
      position,
      usage: NO_USAGE,
      lines,
      nowMs,
      forkedFrom: { run: source, checkpoint },
    });
    store.putDoc(n, 'shims', shimHashes(instance.shims));
  };
  return { id, create };
}

/** The source's agent in the version that the source keeps; another one as it is now. */
function agentOf(agents: AgentRegistry, row: RunRow, name: string): StoredAgent | undefined {
  return name === row.agent ? agents.version(name, row.agent_version) : agents.find(name);
}
