import { type AgentInstance, Attempt, type AttemptInput, type Frame, type LoopDeps } from './attempt.js';
import { cleanUp, closeStopped, end, settle } from './attempt-end.js';
import { BoundShims } from './bound-shims.js';
import { guardsFor, placeOf } from './inheritance.js';
import type { AttemptEnd } from './journal.js';
import { internalMessage, type ModelResponse, textOf } from './messages.js';
import { type Outcome, outcomeOfError, outcomeOfSettled } from './outcome.js';
import type { RunLimits } from './run.js';
import { LimitExceededError, RunError } from './run-errors.js';
import { RunStateView } from './run-state.js';
import { parseOutput } from './structured-output.js';
import { type RoundResult, ToolRound } from './tool-round.js';
import { assertLimits, modelStep, prepareTurn } from './turn-step.js';
import { visibleTools } from './visible-tools.js';

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
  await attempt.children.end();
  const cleaned = await cleanUp(attempt, frame, outcome, depth);
  await attempt.children.end();
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
    // Were it lost, the start would be made again, and nothing of it twice.
    attempt.checkpointLater({ unhurried: true });
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
  const round = new ToolRound(attempt, frame, await visibleTools(attempt, frame, core, false, new Map()));
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
