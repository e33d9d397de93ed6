import { onAbort } from './abort.js';
import type { Attempt, Frame } from './attempt.js';
import { GRACE_MS, type ShimSession } from './bound-shims.js';
import { pause, within } from './clock.js';
import type { ToolCallRecord } from './journal.js';
import { deepFreeze, type JsonValue } from './json.js';
import { LimitExceededError, ShimError } from './run-errors.js';
import { ReadOnlyState } from './state-map.js';
import { failureOf, outcomeOf, type Tool, type ToolContext, type ToolOutcome } from './tools.js';
import type { GatedCall } from './turn.js';

/** What a tool may take when neither it nor the agent says otherwise. */
const DEFAULT_TOOL_TIMEOUT_MS = 60_000;
const RETRY_PAUSE_MS = 200;
/** Where the names of active skills stand in the state; a second shim of skills has them under its own name and this. */
const SKILLS_KEY = 'skills:active';

export function toolContext(
  attempt: Attempt,
  call: Pick<ToolCallRecord, 'toolCallId' | 'idempotencyKey' | 'decision'>,
  signal: AbortSignal,
): ToolContext {
  const shimState = new ReadOnlyState(() => attempt.working.live);
  return Object.freeze({
    runId: attempt.runId,
    agent: attempt.agent,
    toolCallId: call.toolCallId,
    idempotencyKey: call.idempotencyKey,
    signal,
    log: attempt.log,
    approved: call.decision?.decision === 'approve' || call.decision?.decision === 'edit',
    shimState,
    progress: (data: JsonValue) => {
      const outcome = outcomeOf(data);
      const shown = outcome.ok ? outcome.result : null;
      if (!attempt.ended && !signal.aborted)
        attempt.event({
          type: 'tool.progress',
          turn: attempt.working.turnCount,
          toolCallId: call.toolCallId,
          data: shown,
        });
    },
    get activeSkillNames() {
      const keys = [...shimState.keys()].filter((key) => key === SKILLS_KEY || key.endsWith(`:${SKILLS_KEY}`)).sort();
      return Object.freeze([...new Set(keys.flatMap((key) => stringsIn(shimState.get(key))))]);
    },
  });
}

function stringsIn(value: unknown): readonly string[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === 'string') : [];
}

/** Faults of a call's arguments as the text of its error result. */
export function argumentFaults(tool: Tool, faults: readonly string[]): ToolOutcome {
  return {
    ok: false,
    error: { message: `The arguments of ${tool.name} are refused: ${faults.join('; ')}`, kind: 'invalid_arguments' },
  };
}

/**
 * Runs one tool call through the shims' wraps, with its timeout, retries and cancel. Never throws for what the tool does.
 * @throws ShimError when a wrap failed
 */
export async function runToolCall(
  attempt: Attempt,
  frame: Frame,
  tool: Tool,
  record: ToolCallRecord,
): Promise<ToolOutcome> {
  const parsed = tool.parse(record.arguments);
  if (!parsed.ok) return argumentFaults(tool, parsed.faults);
  const call: GatedCall = Object.freeze({
    toolCallId: record.toolCallId,
    name: record.name,
    arguments: deepFreeze(record.arguments),
  });
  await attempt.observe(frame, (hooks, task) => hooks.onToolStart?.(task, call));
  const stop = attempt.children.stopOf(record.toolCallId);
  const running: RunningCall = { attempt, frame, tool, record, stop: stop.signal };
  let outcome: ToolOutcome;
  try {
    outcome = await wrapped(running, call, (inner) => execute(running, inner.arguments));
  } finally {
    stop.release();
  }
  await attempt.observe(frame, (hooks, task) => hooks.onToolEnd?.(task, call, deepFreeze(structuredClone(outcome))));
  return outcome;
}

interface RunningCall {
  readonly attempt: Attempt;
  readonly frame: Frame;
  readonly tool: Tool;
  readonly record: ToolCallRecord;
  /** Aborts when the call is to be given up, with the attempt or after the children that work for it. */
  readonly stop: AbortSignal;
}

type Next = (call: GatedCall) => Promise<ToolOutcome>;

async function wrapped(running: RunningCall, call: GatedCall, innermost: Next): Promise<ToolOutcome> {
  const sessions = running.frame.shims.active('wrapToolCall');
  const chain = sessions.reduceRight<Next>(
    (next, session) => async (inner) => wrapOne(running, session, inner, next),
    innermost,
  );
  return chain(call);
}

async function wrapOne(
  { attempt, frame, stop }: RunningCall,
  session: ShimSession,
  call: GatedCall,
  next: Next,
): Promise<ToolOutcome> {
  let inner: Promise<ToolOutcome> | undefined;
  // Where other calls run beside it, what they write must stay.
  const isAlone = attempt.calls.filter(({ state }) => state === 'pending' || state === 'started').length <= 1;
  const undoOf = (): (() => void) | undefined => (isAlone ? frame.shims.undoOf(session) : undefined);
  let undo = undoOf();
  const wrap = async (): Promise<ToolOutcome> =>
    session.bound.wrapToolCall(frame.shims.turnOf(session), call, async (changed) => {
      undo = undefined;
      inner = next(changed);
      const outcome = await inner;
      undo = undoOf();
      return outcome;
    });
  try {
    const outcome = await frame.shims.wrap(session, 'wrapToolCall', wrap, stop);
    return outcome.ok ? { ok: true, result: resultOf(outcome.result) } : { ok: false, error: { ...outcome.error } };
  } catch (error) {
    if (error instanceof ShimError || error instanceof LimitExceededError) throw error;
    // A cancel took the wrap: what had come from inside it counts, else the call was cancelled.
    if (attempt.signal.aborted) return inner === undefined ? CANCELLED : settledOrCancelled(inner);
    const failure = new ShimError(session.name, 'wrapToolCall', error);
    if (session.shim.onFailure !== 'skip') throw failure;
    undo?.();
    attempt.event({
      type: 'shim.failed',
      turn: attempt.working.turnCount,
      shim: session.name,
      callback: 'wrapToolCall',
      error: attempt.errorData(failure),
    });
    return inner ?? next(call);
  }
}

async function settledOrCancelled(inner: Promise<ToolOutcome>): Promise<ToolOutcome> {
  inner.catch(() => undefined);
  return Promise.race([inner.catch(() => CANCELLED), Promise.resolve().then(() => CANCELLED)]);
}

/** A wrap may put anything into an outcome; what is kept must be what JSON holds. */
function resultOf(result: unknown): unknown {
  const outcome = outcomeOf(result);
  return outcome.ok ? outcome.result : outcome.error.message;
}

/** Calls that came as far as their tool in this attempt. */
const reached = new WeakSet<ToolCallRecord>();

export function hasReachedTool(record: ToolCallRecord): boolean {
  return reached.has(record);
}

async function execute(running: RunningCall, args: unknown): Promise<ToolOutcome> {
  const { attempt, frame, tool, record } = running;
  reached.add(record);
  const parsed = tool.parse(args);
  if (!parsed.ok) return argumentFaults(tool, parsed.faults);
  const settings = attempt.core?.toolSet.config ?? frame.agent.descriptor.tools;
  const timeoutMs = tool.timeoutMs ?? settings.toolCallTimeoutMs ?? DEFAULT_TOOL_TIMEOUT_MS;
  const maxRetries = tool.maxRetries ?? settings.toolCallMaxRetries ?? 0;
  for (let tries = 0; ; tries += 1) {
    const { outcome, again } = await tryOnce(running, parsed.args, timeoutMs);
    if (!again || tries >= maxRetries) return outcome;
    await pause(attempt.clock, RETRY_PAUSE_MS * 2 ** tries, attempt.signal);
    if (attempt.signal.aborted) return outcome;
  }
}

/** Calls that were stopped before they gave a result; whatever a wrap made of that, they have none. */
const interrupted = new WeakSet<ToolCallRecord>();

export function wasInterrupted(record: ToolCallRecord): boolean {
  return interrupted.has(record);
}

async function tryOnce(
  { attempt, frame, tool, record, stop }: RunningCall,
  args: unknown,
  timeoutMs: number,
): Promise<{ outcome: ToolOutcome; again: boolean }> {
  const controller = new AbortController();
  const unwatch = onAbort(attempt.signal, () => {
    controller.abort(attempt.signal.reason);
  });
  try {
    const context = toolContext(attempt, record, controller.signal);
    const running = invoke(tool, args, context);
    const outcome = await within(running, { clock: attempt.clock, timeoutMs, signal: stop, graceMs: GRACE_MS });
    switch (outcome.kind) {
      case 'value':
        return { outcome: outcomeOf(outcome.value), again: false };
      case 'error':
        return { outcome: concealed(attempt, failureOf(outcome.error)), again: true };
      case 'timeout':
        controller.abort(new DOMException(`The tool ${tool.name} took longer than ${timeoutMs} ms.`, 'TimeoutError'));
        return {
          outcome: {
            ok: false,
            error: {
              message: `The tool did not finish within ${timeoutMs} ms; whether it had an effect is not known.`,
              kind: 'timeout',
            },
          },
          again: true,
        };
      case 'aborted': {
        const finished = 'value' in outcome;
        if (!finished) interrupted.add(record);
        if (!outcome.obeyed) frame.shims.giveUpTool(attempt.core?.owners.get(record.name) ?? '');
        attempt.inFlight({
          kind: 'tool',
          name: record.name,
          id: record.toolCallId,
          obeyed: outcome.obeyed,
          ms: outcome.ms,
          sideEffects: finished || tool.onCrash === 'retry' ? 'none' : 'unknown',
        });
        return { outcome: finished ? outcomeOf(outcome.value) : CANCELLED, again: false };
      }
    }
  } finally {
    unwatch();
  }
}

/** A thrown message may hold whatever the tool had at hand, a key of the environment for one. */
function concealed({ deps }: Attempt, outcome: ToolOutcome): ToolOutcome {
  if (outcome.ok || deps.conceal === undefined) return outcome;
  return { ok: false, error: { ...outcome.error, message: deps.conceal(outcome.error.message) } };
}

/** A tool that throws at once, before any promise, is a tool that failed. */
async function invoke(tool: Tool, args: unknown, context: ToolContext): Promise<unknown> {
  return tool.execute(args, context);
}

export const CANCELLED: ToolOutcome = {
  ok: false,
  error: { message: 'The call was cancelled before it gave a result.', kind: 'cancelled' },
};
