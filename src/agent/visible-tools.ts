import type { Attempt, Frame } from './attempt.js';
import type { ToolConfig } from './tool-set.js';
import type { TurnCore } from './turn.js';

/**
 * The tools of the turn after all rules; a helper sees those that its parent gave it, at most (R101). What a shim wants to select
 * it selects from what exclusions have left, in list order.
 */
export async function visibleTools(
  attempt: Attempt,
  frame: Frame,
  core: TurnCore,
  spent: boolean,
  used: ReadonlyMap<string, number>,
): Promise<ToolConfig | null> {
  const { onlyTools } = attempt.input;
  if (onlyTools !== undefined)
    core.toolSet.exclude(
      (core.toolSet.config?.tools ?? []).map((tool) => tool.name).filter((name) => !onlyTools.includes(name)),
    );
  if (core.selections.length > 0) {
    attempt.effects.rebase(core);
    if (core.rebuilt) await attempt.quietly(async () => selectTools(frame, core));
    else await selectTools(frame, core);
    if (core.rebuilt) discardWrites(attempt, frame, core);
  }
  return core.toolSet.finish(spent, used);
}

async function selectTools(frame: Frame, core: TurnCore): Promise<void> {
  for (const { shim, select } of core.selections) {
    const session = frame.shims.sessions.find(({ name }) => name === shim);
    if (session === undefined) continue;
    await frame.shims.call(session, 'prepareTurn', async () => {
      core.toolSet.select(await select(core.toolSet.left));
    });
  }
}

/** What is written while something is only rebuilt does not count (R79a). */
export function discardWrites(attempt: Attempt, frame: Frame, core: TurnCore): void {
  attempt.working.discard();
  for (const session of frame.shims.sessions) session.namespace?.reset();
  attempt.effects.rebase(core);
}
