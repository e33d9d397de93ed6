import { type AgentInstance, Attempt, type AttemptInput, type Frame, type LoopDeps } from './attempt.js';
import { BoundShims } from './bound-shims.js';
import type { RunResult } from './hooks.js';
import { guardsFor, placeOf } from './inheritance.js';
import { type AttemptEnd, CancelledFirstError, copyPosition, type Settled } from './journal.js';
import { deepFreeze } from './json.js';
import {
  type HistoryItem,
  internalMessage,
  isEphemeral,
  type ModelResponse,
  textOf,
  withoutInternalInJson,
} from './messages.js';
import type { FinishReason } from './model.js';
import type { Cancellation, Interruption, RunLimits } from './run.js';
import {
  BudgetReachedError,
  failureProblem,
  findCancellation,
  HandedOverError,
  LimitExceededError,
  loggedError,
  RunCancelledError,
  RunError,
  runErrorData,
  ShimCleanupError,
  ShimError,
} from './run-errors.js';
import { RunStateView } from './run-state.js';
import { parseOutput } from './structured-output.js';
import { cancelRound, type RoundResult, ToolRound } from './tool-round.js';
import { assertLimits, modelStep, prepareTurn, visibleTools } from './turn-step.js';

/** What an attempt has come to, before and while it is cleaned up. */
type Outcome =
  | { readonly kind: 'completed'; readonly output: unknown; readonly finishReason: FinishReason }
  | { readonly kind: 'waiting'; readonly interruptions: readonly Interruption[]; readonly discards?: boolean }
  | { readonly kind: 'failed'; readonly error: unknown; readonly output?: unknown }
  | { readonly kind: 'cancelled'; readonly requestedAtMs: number | undefined }
  | { readonly kind: 'handedOver' };

type Step =
  | { readonly kind: 'next' }
  | { readonly kind: 'handoff'; readonly to: string }
  | Extract<Outcome, { kind: 'completed' | 'waiting' }>;

/**
 * Drives one attempt of a run to its end: bind, onRunStart, then turns until an answer, a wait, a failure or a stop, then the
 * clean-up of every started session. Everything that happened is in the journal; only what the journal cannot say is returned.
 *
 * @returns how the attempt ended; undefined when it was handed over and no end was written
 */
export async function runAttempt(input: AttemptInput, deps: LoopDeps): Promise<AttemptEnd | undefined> {
  const deadline = startDeadline(input, deps);
  try {
    return await drive(
      new Attempt({ ...input, signal: deadline.signal }, deps, () => {
        deadline.stop();
      }),
    );
  } finally {
    deadline.stop();
  }
}

/** The attempt's own signal: aborted with the caller's, or when `maxDurationMs` is over. */
function startDeadline(input: AttemptInput, deps: LoopDeps): { readonly signal: AbortSignal; stop(): void } {
  const controller = new AbortController();
  const onAbort = (): void => {
    controller.abort(input.signal.reason);
  };
  input.signal.addEventListener('abort', onAbort, { once: true });
  if (input.signal.aborted) onAbort();
  const { maxDurationMs } = { ...descriptorLimits(input, deps), ...input.limits };
  const cancelTimer =
    maxDurationMs === undefined
      ? (): void => undefined
      : deps.clock.after(maxDurationMs, () => {
          controller.abort(new LimitExceededError('maxDurationMs', maxDurationMs, maxDurationMs));
        });
  return {
    signal: controller.signal,
    stop: () => {
      cancelTimer();
      input.signal.removeEventListener('abort', onAbort);
    },
  };
}

function descriptorLimits(input: AttemptInput, deps: LoopDeps): RunLimits {
  try {
    return deps.agent(input.saved.position.agents.at(-1) ?? '').descriptor.limits;
  } catch {
    // An agent that cannot be made fails the attempt where it is opened, with a better error.
    return {};
  }
}

async function drive(attempt: Attempt): Promise<AttemptEnd | undefined> {
  const { input } = attempt;
  const opened: Frame[] = [];
  let outcome: Outcome;
  if (input.signal.aborted) {
    outcome = outcomeOfError(attempt, input.signal.reason);
    await closeStopped(attempt, outcome);
  } else {
    outcome = await runFrame(attempt, 0, opened);
  }
  return end(attempt, outcome, opened);
}

/** Runs one agent of the attempt, and inside it the agent that it hands over to; cleans its sessions up whatever happened. */
async function runFrame(attempt: Attempt, depth: number, opened: Frame[]): Promise<Outcome> {
  let frame: Frame | undefined;
  let outcome: Outcome;
  try {
    frame = await openFrame(attempt, depth);
    opened.push(frame);
    attempt.frame = frame;
    await startSessions(attempt, frame, depth);
    outcome =
      attempt.position.settled === undefined
        ? await runTurns(attempt, frame, depth, opened)
        : outcomeOfSettled(attempt.position.settled);
  } catch (error) {
    outcome = outcomeOfError(attempt, error);
  }
  // An agent that was handed to has settled its own end already.
  if (attempt.position.agents.length === depth + 1) outcome = await settle(attempt, outcome);
  if (frame === undefined) return outcome;
  attempt.frame = frame;
  await attempt.endChildren();
  const cleaned = await cleanUp(attempt, frame, outcome, depth);
  await attempt.endChildren();
  return cleaned;
}

async function openFrame(attempt: Attempt, depth: number): Promise<Frame> {
  const name = attempt.position.agents[depth] ?? '';
  const agent: AgentInstance = attempt.deps.agent(name);
  const { runId, parentRunId, depth: runDepth } = attempt.input;
  const task = Object.freeze({
    runId,
    agent: name,
    model: agent.descriptor.model,
    depth: runDepth,
    ...(parentRunId === undefined ? {} : { parentRunId }),
  });
  const named = [...guardsFor(attempt, agent), ...agent.shims];
  attempt.input.onBind?.(named);
  const shims = await BoundShims.bind(named, task, attempt, attempt.deps.hostHooks);
  return { agent, shims, task };
}

/** onRunStart of every session; what it writes counts only where the run start was not committed before (R86). */
async function startSessions(attempt: Attempt, frame: Frame, depth: number): Promise<void> {
  const { position } = attempt;
  const innermost = depth === position.agents.length - 1;
  const committed = !innermost || position.at !== 'start' || position.settled !== undefined;
  attempt.core = undefined;
  attempt.signal.throwIfAborted();
  attempt.event({ type: 'agent.started', ...placeOf(attempt, frame, depth) });
  await attempt.observe(frame, (hooks, task) =>
    hooks.onAgentStart?.(task, new RunStateView(attempt.working, refuseWrite, () => true)),
  );
  const start = async (): Promise<void> => {
    for (const session of frame.shims.sessions) {
      attempt.signal.throwIfAborted();
      session.started = true;
      if (!frame.shims.active('onRunStart').includes(session)) continue;
      await frame.shims.call(session, 'onRunStart', () =>
        session.bound.onRunStart(session.scope.runState, attempt.transientState, session.scope),
      );
    }
  };
  attempt.effects.rebase();
  if (!committed) {
    await start();
    position.at = 'turn';
    attempt.event(attempt.effects.snapshot('runStart'));
    attempt.checkpointLater();
    return;
  }
  await attempt.quietly(start);
  attempt.working.discard();
  for (const session of frame.shims.sessions) session.namespace?.reset();
  attempt.effects.rebase();
}

/** Hooks observe; they do not shape the run (R110). */
function refuseWrite(): never {
  throw new TypeError('Runner hooks may not write to the run state.');
}

async function runTurns(attempt: Attempt, frame: Frame, depth: number, opened: Frame[]): Promise<Outcome> {
  if (depth < attempt.position.agents.length - 1) return runFrame(attempt, depth + 1, opened);
  for (;;) {
    attempt.signal.throwIfAborted();
    const step = attempt.position.at === 'tools' ? await reenterRound(attempt, frame) : await runTurn(attempt, frame);
    if (step.kind === 'next') continue;
    if (step.kind !== 'handoff') return step;
    await handOff(attempt, frame, step.to);
    return runFrame(attempt, depth + 1, opened);
  }
}

async function runTurn(attempt: Attempt, frame: Frame): Promise<Step> {
  assertLimits(attempt);
  const { working, position } = attempt;
  working.turnCount += 1;
  position.runTurn += 1;
  const turn = working.turnCount;
  attempt.event({ type: 'turn.started', turn });
  const core = await prepareTurn(attempt, frame, false);
  const { response, round } = await modelStep(attempt, frame, core);
  if (round !== undefined) {
    const result = await round.run();
    endTurn(attempt, frame);
    // A verdict does not change when it is asked again: a refusal ends the run, whatever it had begun to call.
    if (response.finishReason === 'refusal' && result.kind === 'closed') return finalAnswer(attempt, frame, response);
    return afterRound(result);
  }
  const answer = finalAnswer(attempt, frame, response);
  endTurn(attempt, frame);
  attempt.event({ type: 'turn.completed', turn });
  if (answer.kind === 'next') await attempt.checkpoint({ turnEnd: true });
  return answer;
}

function endTurn(attempt: Attempt, frame: Frame): void {
  if (attempt.core !== undefined) attempt.core.over = true;
  frame.shims.endTurn();
}

function afterRound(result: RoundResult): Step {
  if (result.kind === 'waiting') return result;
  return result.handoffTo === undefined ? { kind: 'next' } : { kind: 'handoff', to: result.handoffTo };
}

/** A turn that is entered again inside its tool round: prepareTurn only rebuilds the tools and gates (R79a). */
async function reenterRound(attempt: Attempt, frame: Frame): Promise<Step> {
  const core = await prepareTurn(attempt, frame, true);
  const round = new ToolRound(attempt, frame, visibleTools(attempt, core, false, new Map()));
  core.frozen = true;
  await round.reopen();
  const result = await round.run();
  endTurn(attempt, frame);
  return afterRound(result);
}

/** The answer as the run's output; with an output schema it is checked, and the model gets one turn to repair it. @throws RunError */
function finalAnswer(attempt: Attempt, frame: Frame, response: ModelResponse): Step {
  const text = textOf(response);
  const schema = frame.agent.descriptor.output;
  if (schema === undefined || response.finishReason === 'refusal')
    return { kind: 'completed', output: text, finishReason: response.finishReason };
  const parsed = parseOutput(schema, text);
  if (parsed.faults.length === 0)
    return { kind: 'completed', output: parsed.value, finishReason: response.finishReason };
  if (attempt.position.outputRepaired) {
    throw new RunError('output_invalid', `The answer does not satisfy the output schema: ${parsed.faults.join('; ')}`, {
      details: { errors: parsed.faults },
    });
  }
  attempt.position.outputRepaired = true;
  attempt.working.history.push(
    internalMessage(
      {
        role: 'user',
        content: `This answer does not satisfy the output schema: ${parsed.faults.join('; ')}. Answer again with valid JSON only.`,
      },
      { origin: 'output' },
    ),
  );
  return { kind: 'next' };
}

/** History, responses, state and count go along; ephemeral messages do not (R94); the instructions become the child's (R96). */
async function handOff(attempt: Attempt, frame: Frame, to: string): Promise<void> {
  const { position, working } = attempt;
  const target = attempt.deps.agent(to);
  attempt.event({ type: 'handoff.started', turn: working.turnCount, from: frame.task.agent, to });
  working.stripEphemeral();
  working.instructions = target.descriptor.instructions;
  position.agents.push(to);
  position.at = 'start';
  attempt.event({ type: 'handoff.completed', turn: working.turnCount, from: frame.task.agent, to });
  await attempt.checkpoint();
}

/** Decides how the attempt ends, before the clean-up: from here on a cancel changes nothing (R68). */
async function settle(attempt: Attempt, outcome: Outcome): Promise<Outcome> {
  const { position, savedPosition } = attempt;
  if (position.settled !== undefined) return outcome;
  try {
    switch (outcome.kind) {
      case 'completed':
        position.settled = { status: 'completed', output: outcome.output, finishReason: outcome.finishReason };
        await attempt.checkpoint({ turnEnd: true, settles: true });
        attempt.onSettled();
        return outcome;
      case 'failed':
        backToCheckpoint(attempt);
        attempt.position = { ...attempt.position, settled: { status: 'failed', error: runErrorData(outcome.error) } };
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
    // What was shown is kept, although the answer came too late to be one.
    if (outcome.kind === 'completed') attempt.partialText = shownText(outcome.output);
    if (error instanceof CancelledFirstError) {
      attempt.savedPosition = savedPosition;
      attempt.working.takeBack();
    }
    const stopped = outcomeOfError(attempt, error);
    await closeStopped(attempt, stopped);
    return stopped;
  }
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
async function closeStopped(attempt: Attempt, outcome: Outcome): Promise<void> {
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
async function cleanUp(attempt: Attempt, frame: Frame, outcome: Outcome, depth: number): Promise<Outcome> {
  const failures: ShimError[] = [];
  attempt.core = undefined;
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
  attempt.event({ type: 'agent.completed', ...placeOf(attempt, frame, depth) });
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
async function end(attempt: Attempt, outcome: Outcome, opened: readonly Frame[]): Promise<AttemptEnd | undefined> {
  let written: AttemptEnd | undefined;
  try {
    written = await writeEnd(attempt, outcome);
  } catch (error) {
    if (error instanceof CancelledFirstError) {
      const stopped = outcomeOfError(attempt, error);
      await closeStopped(attempt, stopped);
      written = await writeEnd(attempt, stopped);
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
  attempt.event(attempt.effects.snapshot('runEnd'));
  const { type, fields } = endingEvent(attempt, endOf);
  await attempt.commit({
    events: [{ type, ...fields } as never],
    checkpoint: attempt.takeCheckpoint({ calls: attempt.calls }),
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
        error: failureProblem(runErrorData(outcome.error)),
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

function outcomeOfSettled(settled: Settled): Outcome {
  if (settled.status === 'completed')
    return { kind: 'completed', output: settled.output, finishReason: settled.finishReason };
  return {
    kind: 'failed',
    error: new RunError(settled.error.code, settled.error.message, { details: { ...settled.error } }),
  };
}

function budgetOf(error: unknown): BudgetReachedError | undefined {
  if (error instanceof BudgetReachedError) return error;
  return error instanceof ShimError && error.cause instanceof BudgetReachedError ? error.cause : undefined;
}

function budgetQuestion(attempt: Attempt, { message }: BudgetReachedError): Interruption {
  const responseSchema = { type: 'object', properties: { limits: { type: 'object' } }, required: ['limits'] };
  return {
    id: attempt.deps.newId(),
    reason: 'budget',
    toolCallId: null,
    tool: null,
    arguments: null,
    message,
    responseSchema,
    expiresAt: null,
  };
}

function outcomeOfError(attempt: Attempt, error: unknown): Outcome {
  const { signal } = attempt;
  const reason: unknown = signal.aborted ? signal.reason : error;
  if (reason instanceof HandedOverError) return { kind: 'handedOver' };
  if (error instanceof CancelledFirstError)
    return {
      kind: 'cancelled',
      requestedAtMs:
        signal.aborted && signal.reason instanceof RunCancelledError ? signal.reason.requestedAtMs : undefined,
    };
  if (reason instanceof RunCancelledError) return { kind: 'cancelled', requestedAtMs: reason.requestedAtMs };
  if (error instanceof HandedOverError) return { kind: 'handedOver' };
  const budget = budgetOf(error);
  if (budget !== undefined && !signal.aborted)
    return { kind: 'waiting', interruptions: [budgetQuestion(attempt, budget)], discards: true };
  return { kind: 'failed', error: signal.aborted ? reason : error };
}
