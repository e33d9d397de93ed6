import type { AgentInstance, Attempt, Frame, SpawnParent } from './attempt.js';
import type { NamedShim } from './bound-shims.js';
import type { AgentDescriptor } from './descriptor.js';
import type { RunLimits } from './run.js';
import { ShimError } from './run-errors.js';
import type { SpawnRequest } from './scope.js';

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

/** @throws DelegationLimitError when one more child would be too deep, or too many at once */
export function assertDelegation(parent: SpawnParent, atWork: number): void {
  const { agentMaxDepth = DEFAULT_MAX_DEPTH, agentMaxThreads = DEFAULT_MAX_THREADS } = parent.limits;
  if (parent.depth + 1 > agentMaxDepth)
    throw new DelegationLimitError(`Agents may be nested ${agentMaxDepth} deep; this would be one more.`);
  if (atWork >= agentMaxThreads)
    throw new DelegationLimitError(`${agentMaxThreads} sub-agents of this run are at work already.`);
}

/**
 * Guards of the agents that had this conversation before, and of those above this run: delegating does not lose them, not even
 * where the agent has a shim of the same name (then the guard goes by `<name>@<its agent>`).
 */
export function guardsFor(attempt: Attempt, agent: AgentInstance): NamedShim[] {
  const names = new Set(agent.shims.map((named) => named.name));
  const guards: NamedShim[] = [];
  for (const owner of new Set([...(attempt.input.guards ?? []), ...attempt.position.seenAgents])) {
    if (owner === agent.descriptor.name) continue;
    for (const named of attempt.deps.agent(owner).shims) {
      const apart = `${named.name}@${owner}`;
      const here = agent.shims.some(
        ({ name, guardOf }) => guardOf === owner && (name === named.name || name === apart),
      );
      if (named.shim.inherit !== 'always' || here) continue;
      const name = names.has(named.name) ? apart : named.name;
      names.add(name);
      guards.push({ ...named, name, guardOf: owner });
    }
  }
  return guards;
}

/**
 * What a helper gets of its parent's shims: all that are inherited, with restricted sources where their sessions say so (R101).
 * @throws ShimError phase `inheritTools`
 */
export function inheritedShims(parent: SpawnParent, request: SpawnRequest): NamedShim[] {
  const allowed = request.tools === undefined ? undefined : new Set(request.tools);
  const names = new Set(
    parent.tools.map((tool) => tool.name).filter((name) => allowed === undefined || allowed.has(name)),
  );
  return parent.shims.sessions.flatMap(({ name, shim, named, bound }) => {
    if (shim.inherit === 'none') return [];
    try {
      const bindings = bound.inheritTools(names);
      if (bindings === null) return [named];
      // A guard that hands down no tools still guards.
      if (bindings.length === 0 && shim.inherit !== 'always') return [];
      return [{ ...named, bindings }];
    } catch (error) {
      throw new ShimError(name, 'inheritTools', error);
    }
  });
}

/** Depth and threads hold below the run too, and a child has no more tokens than its parent has left. */
export function childLimits(parent: SpawnParent, child: AgentDescriptor): Record<string, number> {
  const { maxTotalTokens } = parent.limits;
  const left = maxTotalTokens === undefined ? undefined : Math.max(1, maxTotalTokens - parent.totalTokens);
  const bounds = {
    agentMaxDepth: parent.limits.agentMaxDepth,
    agentMaxThreads: parent.limits.agentMaxThreads,
    maxTotalTokens: left,
  };
  const limits: Record<string, number> = {};
  for (const [name, bound] of Object.entries(bounds)) {
    if (bound !== undefined) limits[name] = Math.min(bound, child.limits[name as keyof RunLimits] ?? bound);
  }
  return limits;
}

/** The tools of a helper: never more than its parent may use. */
export function narrowed(
  wanted: readonly string[] | undefined,
  most: readonly string[] | undefined,
): readonly string[] | undefined {
  return most === undefined ? wanted : (wanted ?? most).filter((name) => most.includes(name));
}

/** Where an agent stands among those of this run and of the runs above it. */
export function placeOf(
  attempt: Attempt,
  frame: Frame,
  depth: number,
): { readonly agent: string; readonly parent: string | null; readonly root: string } {
  const lineage = [...(attempt.input.lineage ?? []), ...attempt.position.agents.slice(0, depth)];
  return { agent: frame.task.agent, parent: lineage.at(-1) ?? null, root: lineage[0] ?? frame.task.agent };
}
