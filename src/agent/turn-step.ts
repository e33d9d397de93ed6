import type { CompletedCall } from './answer-assembly.js';
import type { Attempt, Frame } from './attempt.js';
import type { ShimSession } from './bound-shims.js';
import type { ModelDelta, ModelRequest } from './hooks.js';
import { deepFreeze } from './json.js';
import { type Message, type ModelResponse, renderHistory, settleMessage, withoutInternalInJson } from './messages.js';
import { addUsage } from './model.js';
import { callModel } from './model-call.js';
import { withRetries } from './retries.js';
import { deferAppended } from './round-closing.js';
import { LimitExceededError, ModelCallError, RunCancelledError, RunError, ShimError } from './run-errors.js';
import { settleResponse } from './settle-response.js';
import type { NextModelCall } from './shim.js';
import { ToolRound } from './tool-round.js';
import { type ToolConfig, ToolSet } from './tool-set.js';
import { defineTool, type Tool } from './tools.js';
import type { TurnCore } from './turn.js';
import { discardWrites, visibleTools } from './visible-tools.js';

const DEFAULT_MAX_TURNS = 128;

/** Limits that hold before each model call (R14). @throws LimitExceededError */
export function assertLimits(attempt: Attempt): void {
  const { maxTurns = DEFAULT_MAX_TURNS, maxDurationMs, maxTotalTokens } = attempt.limits;
  if (attempt.position.runTurn >= maxTurns)
    throw new LimitExceededError('maxTurns', maxTurns, attempt.position.runTurn);
  const elapsedMs = attempt.clock.now() - attempt.startedAtMs;
  if (maxDurationMs !== undefined && elapsedMs >= maxDurationMs)
    throw new LimitExceededError('maxDurationMs', maxDurationMs, elapsedMs);
  if (maxTotalTokens !== undefined && attempt.usage.totalTokens >= maxTotalTokens) {
    throw new LimitExceededError('maxTotalTokens', maxTotalTokens, attempt.usage.totalTokens);
  }
}

function handoffTools(frame: Frame): Tool[] {
  return frame.agent.descriptor.handoffs.map((target) => ({
    ...defineTool({
      name: `handoff_to_${target}`.slice(0, 64),
      description: `Hand the conversation over to the agent ${target}, which goes on with it. It must be the only call of the answer.`,
      parameters: { type: 'object', properties: {}, additionalProperties: true },
      onCrash: 'retry',
      execute: () => `The conversation goes on with ${target}.`,
    }),
    handoffTo: target,
  }));
}

/** Makes the editable turn and has every shim prepare it. With `rebuild` only the tools and gates count (R79a). */
export async function prepareTurn(attempt: Attempt, frame: Frame, rebuild: boolean): Promise<TurnCore> {
  const { descriptor, tools } = frame.agent;
  const own = [...tools, ...handoffTools(frame)];
  const base: ToolConfig | null =
    own.length === 0 && Object.keys(descriptor.tools).length === 0 ? null : { ...descriptor.tools, tools: own };
  const openTurn = rebuild ? attempt.position.openTurn : undefined;
  const core: TurnCore = {
    working: attempt.working,
    toolSet: new ToolSet(base),
    transientState: attempt.transientState,
    runTurn: openTurn?.runTurn ?? attempt.position.runTurn,
    isFirstForThisAgent: openTurn?.isFirstForThisAgent ?? !attempt.position.seenAgents.includes(descriptor.name),
    gates: [],
    selections: [],
    owners: new Map(),
    modelArgs: Object.keys(descriptor.modelArgs).length === 0 ? {} : structuredClone(descriptor.modelArgs),
    frozen: false,
    openCallIds: new Set(),
    rebuilt: rebuild,
    over: false,
  };
  attempt.core = core;
  frame.shims.endTurn();
  attempt.effects.rebase(core);
  const prepare = async (): Promise<void> => {
    for (const session of frame.shims.active('prepareTurn')) {
      await frame.shims.call(session, 'prepareTurn', () => session.bound.prepareTurn(frame.shims.turnOf(session)));
    }
  };
  if (!rebuild) {
    await prepare();
    return core;
  }
  await attempt.quietly(prepare);
  discardWrites(attempt, frame, core);
  return core;
}

export interface Answered {
  readonly response: ModelResponse;
  readonly round: ToolRound | undefined;
}

/** One model call from the prepared turn to its committed response, with the tool round it opens. */
export async function modelStep(attempt: Attempt, frame: Frame, core: TurnCore): Promise<Answered> {
  const { maxToolRoundTrips } = core.toolSet.config ?? {};
  const spent = maxToolRoundTrips !== undefined && attempt.position.roundTrips >= maxToolRoundTrips;
  const config = await visibleTools(attempt, frame, core, spent, new Map(Object.entries(attempt.position.toolCalls)));
  core.frozen = true;
  if (core.modelArgs !== null) deepFreeze(core.modelArgs);
  const call = await mendableCall(attempt, frame, core, config);
  const { response } = call;
  attempt.hold();
  try {
    const answered = await takeResponse(attempt, frame, core, config, call);
    // What was shown is in the history from here on; an answer that was not taken stays the partial one.
    attempt.partialText = '';
    return answered;
  } catch (error) {
    attempt.release();
    throw error;
  } finally {
    attempt.replaces = undefined;
    await attempt.observe(frame, (hooks, task) => hooks.onLlmEnd?.(task, response));
  }
}

/** The call; once more when the context was exceeded and a shim has mended the history, with all that shims make of its request. */
async function mendableCall(
  attempt: Attempt,
  frame: Frame,
  core: TurnCore,
  tools: ToolConfig | null,
): Promise<CompletedCall> {
  const { model, output } = frame.agent.descriptor;
  for (let first = true; ; first = false) {
    const messages = await transformed(attempt, frame, core);
    if (first) attempt.event(attempt.effects.snapshot('turnPrepared', attempt.working.turnCount));
    try {
      return await wrappedCall(attempt, frame, { model, messages, tools, modelArgs: core.modelArgs, output });
    } catch (error) {
      if (!first || attempt.signal.aborted || !(error instanceof ModelCallError) || error.code !== 'context_exceeded')
        throw error;
      if (!(await contextMended(frame, error))) throw error;
    }
  }
}

async function takeResponse(
  attempt: Attempt,
  frame: Frame,
  core: TurnCore,
  config: ToolConfig | null,
  completed: CompletedCall,
): Promise<Answered> {
  const { response, brokenArguments, providerFinishReason } = completed;
  const { working, position } = attempt;
  const turn = working.turnCount;
  const { modelCallId, message, finishReason, usage } = response;
  const reason = providerFinishReason === undefined ? {} : { providerFinishReason };
  attempt.event({ type: 'model.completed', turn, modelCallId, message, finishReason, ...reason, usage });
  working.responses.push(response);
  working.history.push(response);
  attempt.effects.rebase();
  const calls = typeof message.content === 'string' ? [] : message.content.filter((part) => part.type === 'tool-call');
  core.openCallIds = new Set(calls.map((part) => part.toolCallId));
  for (const session of frame.shims.active('onModelResponse')) {
    await frame.shims.call(session, 'onModelResponse', () =>
      session.bound.onModelResponse(frame.shims.turnOf(session), response),
    );
  }
  frame.shims.flushStates();
  if (!position.seenAgents.includes(attempt.agent)) position.seenAgents.push(attempt.agent);
  if (calls.length === 0) return { response, round: undefined };
  position.openTurn = { runTurn: core.runTurn, isFirstForThisAgent: core.isFirstForThisAgent };
  deferAppended(attempt);
  attempt.effects.rebase();
  const round = new ToolRound(attempt, frame, config);
  await round.open(response, brokenArguments);
  await attempt.checkpoint({ calls: attempt.calls });
  round.assertBehaviour();
  return { response, round };
}

async function transformed(attempt: Attempt, frame: Frame, core: TurnCore): Promise<readonly Message[]> {
  let messages: readonly Message[] = renderHistory(attempt.working.instructions, attempt.working.history);
  for (const session of frame.shims.active('transformMessages')) {
    const given = messages;
    // A copy per shim: what it does to the list it got is nobody else's, and nothing is persisted (R47, R50).
    const copy = structuredClone(given) as Message[];
    const startedAt = attempt.clock.now();
    const returned = await frame.shims.call(session, 'transformMessages', async () =>
      settledList(await session.bound.transformMessages(frame.shims.turnOf(session), copy)),
    );
    if (returned === undefined) continue;
    frame.shims.recordEffect(
      session.name,
      'transformMessages',
      attempt.effects.messagesChange(given, returned),
      attempt.clock.now() - startedAt,
    );
    messages = returned;
  }
  if (core.working !== attempt.working) throw new Error('The turn belongs to another attempt.');
  return messages;
}

/** The list that a shim gave, so that nothing it does to it later reaches the call or a retry (R49). @throws TypeError, ZodError */
function settledList(messages: readonly Message[] | void): readonly Message[] | undefined {
  return Array.isArray(messages)
    ? (messages as readonly Message[]).map((message, index) => settleMessage(message, `messages[${index}]`))
    : undefined;
}

/** The onion of wrapModelCall around the call with its retries, first shim outermost. */
async function wrappedCall(attempt: Attempt, frame: Frame, request: ModelRequest): Promise<CompletedCall> {
  const completed = new Map<ModelResponse, CompletedCall>();
  const innermost: NextModelCall = async (inner) => {
    const call = await callWithRetries(attempt, frame, inner);
    completed.set(call.response, call);
    return call.response;
  };
  // What a wrap made of a response stays an answer of its call: broken arguments are still broken.
  const settle = (response: ModelResponse): ModelResponse => {
    if (completed.has(response)) return response;
    const settled = settleResponse(response, { modelId: request.model, newId: () => attempt.deps.newId() });
    const origin = [...completed.values()].find((call) => call.response.modelCallId === settled.modelCallId);
    completed.set(settled, {
      ...origin,
      response: settled,
      brokenArguments: origin?.brokenArguments ?? new Map<string, string>(),
    });
    return settled;
  };
  const chain = frame.shims.active('wrapModelCall').reduceRight<NextModelCall>(
    (next, session) => async (inner) => {
      let called: Promise<ModelResponse> | undefined;
      let undo = frame.shims.undoOf(session);
      try {
        const startedAt = attempt.clock.now();
        const record = (): void => {
          frame.shims.recordWrites(session, 'wrapModelCall', attempt.clock.now() - startedAt);
        };
        const response = await frame.shims.wrap(session, 'wrapModelCall', async () =>
          session.bound.wrapModelCall(frame.shims.turnOf(session), inner, async (changed) => {
            record();
            undo = undefined;
            called = next(changed);
            const answer = await called;
            undo = frame.shims.undoOf(session);
            return answer;
          }),
        );
        record();
        return settle(response);
      } catch (error) {
        if (error instanceof RunError || error instanceof RunCancelledError || attempt.signal.aborted) throw error;
        const failure = new ShimError(session.name, 'wrapModelCall', error);
        if (session.shim.onFailure !== 'skip') throw failure;
        undo?.();
        attempt.event({
          type: 'shim.failed',
          turn: attempt.working.turnCount,
          shim: session.name,
          callback: 'wrapModelCall',
          error: attempt.errorData(failure),
        });
        return called ?? next(inner);
      }
    },
    innermost,
  );
  const response = await chain(request);
  return completed.get(response) ?? { response, brokenArguments: new Map() };
}

async function callWithRetries(attempt: Attempt, frame: Frame, request: ModelRequest): Promise<CompletedCall> {
  let modelCallId = '';
  const { maxRetries = attempt.retries.maxRetries, longestPauseMs } = request.retry ?? {};
  return withRetries(
    {
      ...attempt.retries,
      maxRetries,
      longestPauseMs,
      signal: attempt.signal,
      onRetry: (error, delayMs, retry) => {
        attempt.event({
          type: 'model.retrying',
          turn: attempt.working.turnCount,
          modelCallId,
          error: error.toData(),
          delayMs,
          retry,
        });
      },
    },
    async () => {
      modelCallId = attempt.deps.newId();
      return callOnce(attempt, frame, request, modelCallId);
    },
  );
}

async function contextMended(frame: Frame, error: ModelCallError): Promise<boolean> {
  for (const session of frame.shims.active('onContextExceeded')) {
    const mended = await frame.shims.call(session, 'onContextExceeded', () =>
      session.bound.onContextExceeded(frame.shims.turnOf(session), error),
    );
    if (mended === true) return true;
  }
  return false;
}

async function callOnce(
  attempt: Attempt,
  frame: Frame,
  request: ModelRequest,
  modelCallId: string,
): Promise<CompletedCall> {
  const handle = attempt.deps.models.resolve(request.model);
  const turn = attempt.working.turnCount;
  await attempt.observe(frame, (hooks, task) => hooks.onLlmStart?.(task, requestSeen(request)));
  let shown = false;
  const used = usedCallIds(attempt);
  try {
    const call = await callModel(handle, request, {
      clock: attempt.clock,
      signal: attempt.signal,
      idleTimeoutMs: attempt.deps.modelIdleTimeoutMs,
      modelCallId,
      transform: deltaTransform(frame),
      callIdFor: (providerId) => uniqueCallId(providerId, used, () => attempt.deps.newId()),
      onDelta: (delta) => {
        attempt.replaces = modelCallId;
        if (delta.kind === 'flush') return;
        // The text of a call that was cut stays the partial one until the call that replaces it has some.
        if (delta.kind === 'text') attempt.partialText = shown ? attempt.partialText + delta.text : delta.text;
        shown ||= delta.kind === 'text';
        attempt.event({
          type: 'model.delta',
          turn,
          modelCallId,
          kind: delta.kind,
          text: delta.text,
          ...(delta.toolCallId === undefined ? {} : { toolCallId: delta.toolCallId }),
        });
      },
      onStart: (repairs) => {
        const { replaces } = attempt;
        const fields = {
          ...(replaces === undefined ? {} : { replaces }),
          ...(repairs.length === 0 ? {} : { repairs }),
        };
        attempt.event({ type: 'model.started', turn, modelCallId, model: handle.id, ...fields });
      },
      media: attempt.media,
      onUsage: (usage) => {
        attempt.usage = addUsage(attempt.usage, usage);
      },
    });
    return call;
  } catch (error) {
    if (attempt.signal.aborted && attempt.signal.reason instanceof RunCancelledError) {
      const ms = attempt.clock.now() - (attempt.signal.reason.requestedAtMs ?? attempt.clock.now());
      attempt.inFlight({ kind: 'model', name: handle.id, id: modelCallId, obeyed: true, ms, sideEffects: 'none' });
    }
    throw error;
  }
}

/** The request as observers get it: nothing of it can be changed (R110), and written as JSON it leaves internal messages out (R90). */
function requestSeen(request: ModelRequest): ModelRequest {
  const tools =
    request.tools === null ? null : Object.freeze({ ...request.tools, tools: Object.freeze([...request.tools.tools]) });
  return Object.freeze({
    ...request,
    tools,
    messages: withoutInternalInJson(request.messages.map((message) => deepFreeze(message))),
  });
}

function usedCallIds(attempt: Attempt): Set<string> {
  const used = new Set<string>();
  for (const response of attempt.working.responses) {
    if (typeof response.message.content === 'string') continue;
    for (const part of response.message.content) if (part.type === 'tool-call') used.add(part.toolCallId);
  }
  return used;
}

/** 40 characters: the shortest limit among the providers. */
const CALL_ID = /^[a-zA-Z0-9_-]{1,40}$/;

/** The provider's id where it is usable and new in this run; else one of ours, so that no two calls are ever taken for each other. */
function uniqueCallId(providerId: string, used: Set<string>, newId: () => string): string {
  const id =
    CALL_ID.test(providerId) && !used.has(providerId) ? providerId : `call_${newId().replace(/-/g, '')}`.slice(0, 40);
  used.add(id);
  return id;
}

/**
 * The shims' transforms, one after the other. The flush reaches each of them, whatever an earlier one made of it; what one gives
 * at the flush is a delta like any other for those behind it.
 */
function deltaTransform(frame: Frame): ((delta: ModelDelta) => readonly ModelDelta[]) | undefined {
  const sessions = frame.shims.active('transformDelta');
  if (sessions.length === 0) return undefined;
  return (delta) => {
    const flush = delta.kind === 'flush';
    let current: readonly ModelDelta[] = flush ? [] : [delta];
    for (const session of sessions) {
      const given = flush ? [...current, delta] : current;
      current = given.flatMap((each) => {
        const made = transformedDelta(frame, session, each);
        if (made === null) return [];
        return made.kind === 'flush' ? (made.text === '' ? [] : [{ ...made, kind: 'text' as const }]) : [made];
      });
    }
    return current;
  };
}

function transformedDelta(frame: Frame, session: ShimSession, delta: ModelDelta): ModelDelta | null {
  try {
    return session.bound.transformDelta(frame.shims.turnOf(session), delta);
  } catch (error) {
    // A redaction that fails must not show what it was to hide: the call fails, whatever the shim's onFailure says.
    throw new ShimError(session.name, 'transformDelta', error);
  }
}
