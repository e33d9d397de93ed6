import type { Attempt, Frame } from './attempt.js';
import type { RunResult } from './hooks.js';
import { placeOf } from './inheritance.js';
import { type AttemptEnd, CancelledFirstError, copyPosition, type Position } from './journal.js';
import { deepFreeze } from './json.js';
import { type HistoryItem, isEphemeral, withoutInternalInJson } from './messages.js';
import { type Outcome, outcomeOfError } from './outcome.js';
import { cancelRound } from './round-closing.js';
import type { Cancellation } from './run.js';
import {
  failureProblem,
  findCancellation,
  HandedOverError,
  loggedError,
  ShimCleanupError,
  type ShimError,
} from './run-errors.js';

/**
 * Decides how the attempt ends, before the clean-up: from here on a cancel changes nothing (R68). Where nothing is to be cleaned up
 * the end itself, which comes at once, decides it: that is a commit less.
 */
export async function settle(attempt: Attempt, outcome: Outcome): Promise<Outcome> {
  const { position, savedPosition } = attempt;
  if (position.settled !== undefined) return outcome;
  try {
    switch (outcome.kind) {
      case 'completed':
        if (attempt.cleansUp) {
          position.settled = { status: 'completed', output: outcome.output, finishReason: outcome.finishReason };
          await attempt.checkpoint({ turnEnd: true, settles: true });
        }
        attempt.onSettled();
        return outcome;
      case 'failed':
        backToCheckpoint(attempt);
        attempt.position = {
          ...attempt.position,
          settled: { status: 'failed', error: attempt.errorData(outcome.error) },
        };
        await attempt.checkpoint({ settles: true });
        attempt.onSettled();
        return outcome;
      case 'cancelled':
      case 'handedOver':
        await closeStopped(attempt, outcome);
        return outcome;
      case 'waiting':
        if (outcome.discards === true) backToCheckpoint(attempt);
        return outcome;
    }
  } catch (error) {
    delete position.settled;
    delete attempt.position.settled;
    if (error instanceof CancelledFirstError) takeBack(attempt, savedPosition);
    return stop(attempt, outcome, error);
  }
}

/** The last checkpoint was refused: what it held is not saved. */
function takeBack(attempt: Attempt, savedPosition: Position): void {
  attempt.savedPosition = savedPosition;
  attempt.working.takeBack();
}

/** The attempt ends as stopped instead of as `outcome`. */
async function stop(attempt: Attempt, outcome: Outcome, error: unknown): Promise<Outcome> {
  // What was shown is kept, although the answer came too late to be one.
  if (outcome.kind === 'completed') attempt.partialText = shownText(outcome.output);
  const stopped = outcomeOfError(attempt, error);
  await closeStopped(attempt, stopped);
  return stopped;
}

/** What the turn had raised goes back with its state; the place in the loop is again that of the last checkpoint. */
function backToCheckpoint(attempt: Attempt): void {
  attempt.release();
  attempt.working.discard();
  for (const session of attempt.frame?.shims.sessions ?? []) session.namespace?.reset();
  attempt.effects.rebase();
  if (attempt.savedPosition.at !== 'tools') attempt.calls = [];
  attempt.position = copyPosition(attempt.savedPosition);
}

function shownText(output: unknown): string {
  return typeof output === 'string' ? output : JSON.stringify(output);
}

/** A stopped attempt keeps its last boundary; of a cancelled one the open tool round is closed, so the history can be sent (R79). */
export async function closeStopped(attempt: Attempt, outcome: Outcome): Promise<void> {
  attempt.release();
  attempt.working.discard();
  for (const session of attempt.frame?.shims.sessions ?? []) session.namespace?.reset();
  if (outcome.kind !== 'cancelled') return;
  attempt.position = copyPosition(attempt.savedPosition);
  if (attempt.position.at !== 'tools') {
    attempt.calls = [];
    return;
  }
  cancelRound(attempt);
  await attempt.checkpoint({ turnEnd: true });
}

/** onRunEnd of every started session, in order, whatever failed (R54-R59). */
export async function cleanUp(attempt: Attempt, frame: Frame, outcome: Outcome, depth: number): Promise<Outcome> {
  const failures: ShimError[] = [];
  attempt.core = undefined;
  // The conversation has gone on with another agent: what these sessions hold of their state is older than the state.
  if (attempt.position.agents.length > depth + 1)
    for (const session of frame.shims.sessions) session.namespace?.reset();
  // Made only for whoever looks at it: it copies the state.
  const answer = answerOf(outcome);
  const result =
    answer !== undefined && frame.shims.active('onRunEnd').length > 0 ? resultOf(attempt, answer.output) : null;
  attempt.effects.rebase();
  for (const session of frame.shims.sessions) {
    if (!session.started) continue;
    try {
      await frame.shims.cleanUp(session, result);
    } catch (error) {
      failures.push(error as ShimError);
      session.namespace?.reset();
    }
  }
  // An agent that is handed over has not completed: the next start goes on with it.
  if (outcome.kind !== 'handedOver') attempt.event({ type: 'agent.completed', ...placeOf(attempt, frame, depth) });
  // A failed or stopped run keeps its last boundary (R79): what its clean-up wrote is not of it.
  if (answer === undefined && outcome.kind !== 'waiting') attempt.working.discard();
  if (failures.length === 0 || (answer === undefined && outcome.kind !== 'waiting')) return outcome;
  const cancelled = failures.map((failure) => findCancellation(failure)).find((found) => found !== undefined);
  if (cancelled !== undefined) {
    if (outcome.kind === 'completed') attempt.partialText = shownText(outcome.output);
    return { kind: 'cancelled', requestedAtMs: cancelled.requestedAtMs };
  }
  const error = new ShimCleanupError([...(answer?.failures ?? []), ...failures]);
  return answer === undefined ? { kind: 'failed', error } : { kind: 'failed', error, output: answer.output };
}

/** The finished answer of a run that clean-up is all that is left of, with the clean-ups of agents further in that failed (R58). */
function answerOf(outcome: Outcome): { readonly output: unknown; readonly failures: readonly ShimError[] } | undefined {
  if (outcome.kind === 'completed') return { output: outcome.output, failures: [] };
  if (outcome.kind !== 'failed' || !(outcome.error instanceof ShimCleanupError) || outcome.output === undefined)
    return undefined;
  return { output: outcome.output, failures: outcome.error.errors };
}

function resultOf(attempt: Attempt, finalOutput: unknown): RunResult {
  const { instructions, history, responses, turnCount, live } = attempt.working;
  return deepFreeze({
    finalOutput: structuredClone(finalOutput),
    responses: [...responses],
    turnCount,
    runState: {
      instructions,
      history: withoutInternalInJson([...history]),
      responses: [...responses],
      turnCount,
      shimState: live.frozen(),
    },
  });
}

/** Writes the attempt's one end, then tells the observers (R60) and disposes of the sessions (R7). */
export async function end(
  attempt: Attempt,
  outcome: Outcome,
  opened: readonly Frame[],
): Promise<AttemptEnd | undefined> {
  let written: AttemptEnd | undefined;
  const { savedPosition } = attempt;
  try {
    written = await writeEnd(attempt, outcome);
  } catch (error) {
    if (error instanceof CancelledFirstError) {
      takeBack(attempt, savedPosition);
      written = await writeEnd(attempt, await stop(attempt, outcome, error));
    } else if (!(error instanceof HandedOverError)) throw error;
  } finally {
    attempt.ended = true;
    if (written?.status === 'failed')
      attempt.log.warn(
        { runId: attempt.runId, agent: attempt.agent, error: loggedError(written.error) },
        'the run failed',
      );
    const watched = opened.some((frame) => frame.shims.hooks.length > 0);
    const result = watched && written?.status === 'completed' ? resultOf(attempt, written.output) : null;
    for (const frame of opened.toReversed()) {
      await attempt.observe(frame, (hooks, task) => hooks.onAgentEnd?.(task, result));
      await frame.shims.dispose();
    }
  }
  return written;
}

async function writeEnd(attempt: Attempt, outcome: Outcome): Promise<AttemptEnd | undefined> {
  const { working, position } = attempt;
  if (outcome.kind === 'handedOver') return undefined;
  const endOf = attemptEnd(attempt, outcome);
  if (outcome.kind !== 'waiting') {
    working.stripEphemeral();
    attempt.position.deferred = attempt.position.deferred.filter(({ item }) => !isEphemeral(item as HistoryItem));
  }
  if (outcome.kind !== 'failed') delete position.settled;
  delete attempt.position.settled;
  const { type, fields } = endingEvent(attempt, endOf);
  await attempt.commit({
    events: [attempt.effects.snapshot('runEnd'), { type, ...fields } as never],
    checkpoint: attempt.takeCheckpoint({ calls: attempt.calls, turnEnd: outcome.kind === 'completed' }),
    end: endOf,
    usage: attempt.usage,
  });
  return endOf;
}

function attemptEnd(attempt: Attempt, outcome: Exclude<Outcome, { kind: 'handedOver' }>): AttemptEnd {
  const partialOutput = attempt.partialText === '' ? null : attempt.partialText;
  switch (outcome.kind) {
    case 'completed':
      return { status: 'completed', output: outcome.output, finishReason: outcome.finishReason };
    case 'waiting':
      return { status: 'waiting', interruptions: outcome.interruptions };
    case 'failed':
      return {
        status: 'failed',
        error: failureProblem(attempt.errorData(outcome.error)),
        thrown: outcome.error,
        partialOutput,
        ...(outcome.output === undefined ? {} : { output: outcome.output }),
      };
    case 'cancelled':
      return { status: 'cancelled', cancellation: receiptOf(attempt, outcome.requestedAtMs), partialOutput };
  }
}

function receiptOf(attempt: Attempt, requestedAtMs: number | undefined): Cancellation {
  const requested = requestedAtMs ?? attempt.clock.now();
  return {
    requestedAt: new Date(requested).toISOString(),
    inFlight: [...attempt.receipts],
    cleanupMs: attempt.clock.now() - requested,
  };
}

function endingEvent(attempt: Attempt, endOf: AttemptEnd): { readonly type: string; readonly fields: object } {
  switch (endOf.status) {
    case 'completed':
      return {
        type: 'run.completed',
        fields: {
          output: endOf.output,
          finishReason: endOf.finishReason,
          usage: attempt.usage,
          turnCount: attempt.working.turnCount,
        },
      };
    case 'failed':
      return {
        type: 'run.failed',
        fields: {
          error: endOf.error,
          partialOutput: endOf.partialOutput,
          ...(endOf.output === undefined ? {} : { output: endOf.output }),
        },
      };
    case 'cancelled':
      return {
        type: 'run.cancelled',
        fields: { cancellation: endOf.cancellation, partialOutput: endOf.partialOutput },
      };
    case 'waiting':
      return { type: 'run.waiting', fields: { interruptions: endOf.interruptions } };
  }
}
