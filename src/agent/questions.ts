import type { Attempt } from './attempt.js';
import { GRACE_MS } from './bound-shims.js';
import { within } from './clock.js';
import type { ToolCallRecord } from './journal.js';
import { RunCancelledError } from './run-errors.js';
import { toolContext } from './tool-run.js';
import type { Tool } from './tools.js';

/** How long a tool's own judgement of whether it needs approval may take. */
const JUDGE_TIMEOUT_MS = 30_000;

/** JSON Schema of a decision about a call of this tool. */
export function approvalSchema(tool: Tool): Record<string, unknown> {
  return {
    type: 'object',
    properties: {
      decision: { enum: ['approve', 'deny', 'edit', 'respond'] },
      arguments: tool.inputSchema,
      result: {},
      reason: { type: 'string' },
    },
    required: ['decision'],
  };
}

/** JSON Schema of what settles a call whose outcome is not known. */
export const OUTCOME_SCHEMA = {
  type: 'object',
  properties: { outcome: { enum: ['happened', 'retry', 'failed'] }, result: {} },
  required: ['outcome'],
};

/** A gate that throws stays closed. */
export function failClosed(judge: () => boolean): boolean {
  try {
    return judge();
  } catch {
    return true;
  }
}

/** Whether the tool itself asks for a person. A gate that cannot be judged stays closed. @throws RunCancelledError */
export async function toolAsks(attempt: Attempt, tool: Tool, record: ToolCallRecord): Promise<boolean> {
  const parsed = tool.parse(record.arguments);
  if (!parsed.ok) return false;
  const { signal, clock } = attempt;
  const asked = (async () => tool.needsApproval(parsed.args, toolContext(attempt, record, signal)))();
  const outcome = await within(asked, { clock, timeoutMs: JUDGE_TIMEOUT_MS, signal, graceMs: GRACE_MS });
  if (outcome.kind === 'aborted') throw new RunCancelledError();
  return outcome.kind === 'value' ? outcome.value : true;
}
