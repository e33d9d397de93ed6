import type { Attempt, Frame } from './attempt.js';
import { GRACE_MS } from './bound-shims.js';
import { within } from './clock.js';
import type { Decision, DecisionScope, ToolCallRecord } from './journal.js';
import type { Interruption } from './run.js';
import { RunCancelledError, ShimError } from './run-errors.js';
import { toolContext } from './tool-run.js';
import type { Tool } from './tools.js';
import type { ApprovalGate, GatedCall } from './turn.js';

/** How long a tool's own judgement of whether it needs approval may take. */
const JUDGE_TIMEOUT_MS = 30_000;

/** What a person is asked about a call, but for the call itself. */
export type Question = Pick<Interruption, 'reason' | 'message' | 'responseSchema' | 'expiresAt'>;

/** JSON Schema of a decision about a call of this tool. */
function approvalSchema(tool: Tool, scopes: readonly DecisionScope[]): Record<string, unknown> {
  return {
    type: 'object',
    properties: {
      decision: { enum: ['approve', 'deny', 'edit', 'respond'] },
      arguments: tool.inputSchema,
      result: {},
      reason: { type: 'string' },
      ...(scopes.length === 0 ? {} : { scope: { enum: [...scopes] } }),
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
function failClosed(judge: () => boolean): boolean {
  try {
    return judge();
  } catch {
    return true;
  }
}

/**
 * Whether a person must approve a call, and what is asked; notes on the record which shims' gates asked.
 * @throws RunCancelledError
 */
export async function approvalQuestion(
  attempt: Attempt,
  tool: Tool,
  record: ToolCallRecord,
): Promise<Question | undefined> {
  const gates = gatesOn(attempt, record, record.arguments);
  const asked = gates.length > 0 || (await toolAsks(attempt, tool, record));
  return asked ? questionOf(attempt, tool, record, gates) : undefined;
}

/**
 * What an edit raises anew: gates that had nothing to say about the call as it was, and have about what a person made of it.
 * @throws RunCancelledError
 */
export async function editQuestion(
  attempt: Attempt,
  tool: Tool,
  record: ToolCallRecord,
  edited: unknown,
): Promise<Question | undefined> {
  const before = gatesOn(attempt, record, record.arguments);
  const gates = gatesOn(attempt, record, edited).filter((gate) => !before.includes(gate));
  const asked =
    gates.length > 0 ||
    ((await toolAsks(attempt, tool, { ...record, arguments: edited })) && !(await toolAsks(attempt, tool, record)));
  return asked ? questionOf(attempt, tool, record, gates) : undefined;
}

function gatesOn(attempt: Attempt, { toolCallId, name }: ToolCallRecord, args: unknown): ApprovalGate[] {
  const call: GatedCall = { toolCallId, name, arguments: args };
  return (attempt.core?.gates ?? []).filter((gate) => failClosed(() => gate.matches(call)));
}

function questionOf(attempt: Attempt, tool: Tool, record: ToolCallRecord, gates: readonly ApprovalGate[]): Question {
  record.askedBy = [...new Set([...(record.askedBy ?? []), ...gates.map(({ shim }) => shim)])];
  const expiries = gates.flatMap((gate) => (gate.expiresInMs === undefined ? [] : [gate.expiresInMs]));
  const expiresInMs = expiries.length === 0 ? undefined : Math.min(...expiries);
  return {
    reason: 'approval',
    message: gates.find((gate) => gate.message !== undefined)?.message ?? null,
    responseSchema: approvalSchema(tool, [...new Set(gates.flatMap(({ scopes }) => scopes))]),
    expiresAt: expiresInMs === undefined ? null : new Date(attempt.clock.now() + expiresInMs).toISOString(),
  };
}

/** Tells the shims that asked about a call what was decided; one that has no gate any more is not told. @throws ShimError */
export function tellDecision(attempt: Attempt, frame: Frame, record: ToolCallRecord, decision: Decision): void {
  const { toolCallId, name, askedBy = [] } = record;
  const call: GatedCall = Object.freeze({ toolCallId, name, arguments: structuredClone(record.arguments) });
  for (const shim of askedBy) {
    const own = (attempt.core?.gates ?? []).filter((gate) => gate.shim === shim);
    const session = frame.shims.sessions.find((each) => each.name === shim);
    try {
      for (const tell of new Set(own.map(({ onDecision }) => onDecision))) tell?.(call, decision);
      if (session !== undefined) frame.shims.recordWrites(session, 'onDecision', 0);
    } catch (error) {
      throw error instanceof ShimError ? error : new ShimError(shim, 'onDecision', error);
    }
  }
}

/** Whether the tool itself asks for a person. A gate that cannot be judged stays closed. @throws RunCancelledError */
async function toolAsks(attempt: Attempt, tool: Tool, record: ToolCallRecord): Promise<boolean> {
  const parsed = tool.parse(record.arguments);
  if (!parsed.ok) return false;
  const { signal, clock } = attempt;
  const asked = (async () => tool.needsApproval(parsed.args, toolContext(attempt, record, signal)))();
  const outcome = await within(asked, { clock, timeoutMs: JUDGE_TIMEOUT_MS, signal, graceMs: GRACE_MS });
  if (outcome.kind === 'aborted') throw new RunCancelledError();
  return outcome.kind === 'value' ? outcome.value : true;
}
