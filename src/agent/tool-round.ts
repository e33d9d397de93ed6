import type { BrokenArguments } from './answer-assembly.js';
import type { Attempt, Frame } from './attempt.js';
import { toolCompleted } from './events.js';
import type { Decision, ToolCallRecord } from './journal.js';
import { cutText } from './json.js';
import type { ModelResponse } from './messages.js';
import { isUsedUp, openQuestions } from './outcome.js';
import { approvalQuestion, editQuestion, OUTCOME_SCHEMA, type Question, tellDecision } from './questions.js';
import { appendedAt, closeRound, deferAppended } from './round-closing.js';
import type { Interruption } from './run.js';
import { HandedOverError, RunError, ShimError } from './run-errors.js';
import { callsIn } from './sendable.js';
import { argumentFaults, CANCELLED, hasReachedTool, runToolCall, wasInterrupted } from './tool-run.js';
import type { ToolConfig } from './tool-set.js';
import type { Tool, ToolOutcome } from './tools.js';

export type RoundResult =
  | { readonly kind: 'closed'; readonly handoffTo?: string | undefined }
  | { readonly kind: 'waiting'; readonly interruptions: readonly Interruption[] };

const DEFAULT_PARALLEL = 8;

/** One round of tool calls: judged, gated, run so many at a time, each outcome committed as it ends, closed in the order of the calls. */
export class ToolRound {
  readonly #attempt: Attempt;
  readonly #frame: Frame;
  readonly #config: ToolConfig | null;
  readonly #tools: ReadonlyMap<string, Tool>;
  readonly #ran = new Set<ToolCallRecord>();

  constructor(attempt: Attempt, frame: Frame, config: ToolConfig | null) {
    this.#attempt = attempt;
    this.#frame = frame;
    this.#config = config;
    this.#tools = new Map(config?.tools.map((tool) => [tool.name, tool]));
  }

  get #turn(): number {
    return this.#attempt.working.turnCount;
  }

  /**
   * Judges the calls of a response and makes their records; the events are held for the commit of the response, so that a
   * call is known to have begun before it can have an effect. @throws RunError `model_behaviour`, `output_limit`
   */
  async open(response: ModelResponse, broken: BrokenArguments): Promise<void> {
    const calls = callsIn(response.message);
    const { position } = this.#attempt;
    const cut = response.finishReason === 'length';
    const refused = response.finishReason === 'refusal';
    position.cutInARow = cut ? position.cutInARow + 1 : 0;
    position.unknownInARow = calls.some((call) => !this.#tools.has(call.toolName)) ? position.unknownInARow + 1 : 0;
    const handoff = calls.length > 1 && calls.some((call) => this.#tools.get(call.toolName)?.handoffTo !== undefined);
    const records: ToolCallRecord[] = [];
    for (const [index, call] of calls.entries()) {
      const record: ToolCallRecord = {
        toolCallId: call.toolCallId,
        turn: this.#turn,
        index,
        name: call.toolName,
        arguments: call.input,
        idempotencyKey: this.#attempt.deps.newId(),
        onCrash: this.#tools.get(call.toolName)?.onCrash ?? 'unknown',
        state: 'pending',
      };
      records.push(record);
      const refusal = this.#refuse(record, { cut, refused, handoff, broken: broken.get(call.toolCallId) });
      if (refusal === undefined) await this.#gate(record);
      else this.#settle(record, refusal, 0);
    }
    this.#attempt.calls = records;
    position.at = 'tools';
    let free = this.#parallel;
    for (const record of records) if (record.state === 'pending' && free-- > 0) this.#begin(record);
  }

  /** After the commit of the response: what the calls came to that ends the run. @throws RunError */
  assertBehaviour(): void {
    const { position } = this.#attempt;
    if (position.cutInARow >= 2)
      throw new RunError('output_limit', 'The output limit cut the model off inside a tool call twice in a row.');
    if (position.unknownInARow >= 3)
      throw new RunError('model_behaviour', 'The model called tools that it was not given, three times in a row.');
  }

  get #parallel(): number {
    const setting = this.#config?.parallelToolCalls ?? true;
    return typeof setting === 'number' ? setting : setting ? DEFAULT_PARALLEL : 1;
  }

  #refuse(
    record: ToolCallRecord,
    why: {
      readonly cut: boolean;
      readonly refused: boolean;
      readonly handoff: boolean;
      readonly broken: string | undefined;
    },
  ): ToolOutcome | undefined {
    const refuse = (message: string, kind: string): ToolOutcome => ({ ok: false, error: { message, kind } });
    if (why.refused)
      return refuse('The provider ended this answer with a refusal, so this call was not run.', 'refusal');
    if (why.cut)
      return refuse(
        'The answer was cut off by the output limit, so this call was not run. Call again with less in one answer.',
        'output_limit',
      );
    const tool = this.#tools.get(record.name);
    if (tool === undefined) {
      const names = [...this.#tools.keys()];
      const visible = names.length === 0 ? 'There are no tools now.' : `The tools are: ${names.join(', ')}.`;
      return refuse(`There is no tool ${JSON.stringify(record.name)}. ${visible}`, 'unknown_tool');
    }
    if (why.handoff)
      return refuse(
        'A handoff must be the only call of an answer; nothing of this answer was run.',
        'handoff_not_alone',
      );
    if (tool.handoffTo !== undefined && !this.#isThere(tool.handoffTo))
      return refuse(`The agent ${tool.handoffTo} is not there any more.`, 'unknown_agent');
    if (why.broken !== undefined) {
      const shown = why.broken === '' ? '.' : `: ${cutText(why.broken, 200)}`;
      return refuse(`The arguments were no JSON object${shown}`, 'invalid_arguments');
    }
    const parsed = tool.parse(record.arguments);
    if (!parsed.ok) return argumentFaults(tool, parsed.faults);
    const { toolCalls } = this.#attempt.position;
    const used = toolCalls[record.name] ?? 0;
    const limit = this.#config?.toolCallLimits?.[record.name];
    if (limit !== undefined && used >= limit)
      return refuse(`The tool ${record.name} has reached its limit of ${limit} call(s) in this run.`, 'call_limit');
    toolCalls[record.name] = used + 1;
    return undefined;
  }

  #isThere(agent: string): boolean {
    try {
      this.#attempt.deps.agent(agent);
      return true;
    } catch {
      return false;
    }
  }

  async #gate(record: ToolCallRecord): Promise<void> {
    const tool = this.#tools.get(record.name);
    if (tool === undefined) return;
    const question = await approvalQuestion(this.#attempt, tool, record);
    if (question !== undefined) this.#wait(record, question);
  }

  #wait(record: ToolCallRecord, question: Question): void {
    record.state = 'waiting';
    record.interruption = {
      id: this.#attempt.deps.newId(),
      toolCallId: record.toolCallId,
      tool: record.name,
      arguments: record.arguments,
      ...question,
    };
    this.#attempt.event({ type: 'tool.waiting', turn: this.#turn, interruption: record.interruption });
  }

  #begin(record: ToolCallRecord): void {
    record.state = 'started';
    record.startedAt = new Date(this.#attempt.clock.now()).toISOString();
    const { toolCallId, name, idempotencyKey } = record;
    this.#attempt.event({
      type: 'tool.started',
      turn: this.#turn,
      toolCallId,
      name,
      arguments: record.arguments,
      idempotencyKey,
    });
  }

  #settle(record: ToolCallRecord, outcome: ToolOutcome, ms: number): void {
    record.state = 'done';
    record.outcome = outcome;
    this.#attempt.event(toolCompleted(record, outcome, ms, this.#turn));
  }

  /** After a crash: what each call that had begun comes to, by its `onCrash` rule; after a wait: what was decided. */
  async reopen(): Promise<void> {
    const attempt = this.#attempt;
    let failed: ToolCallRecord | undefined;
    attempt.hold();
    await this.#decideAll();
    for (const record of attempt.calls) {
      if (record.state === 'waiting' && record.settlement !== undefined) this.#settled(record);
      else if (record.state === 'started') failed = this.#afterCrash(record) ?? failed;
    }
    await attempt.checkpoint({ calls: attempt.calls });
    if (failed !== undefined) {
      throw new RunError(
        'tool_outcome',
        `Whether the call of ${failed.name} had its effect is not known, and the tool asks to fail then.`,
        {
          details: { toolCallId: failed.toolCallId, tool: failed.name },
        },
      );
    }
  }

  /** What was decided about each call of the round. An edit that a gate had not seen coming is asked about again. */
  async #decideAll(): Promise<void> {
    const decided = this.#attempt.calls.flatMap((record) =>
      record.state === 'waiting' && record.interruption?.reason === 'approval' && record.decision !== undefined
        ? [{ record, decision: record.decision }]
        : [],
    );
    // All of it is judged first: what a shim remembers of one decision must not answer for the next.
    const again = new Map<ToolCallRecord, Question>();
    for (const { record, decision } of decided) {
      const tool = this.#tools.get(record.name);
      if (decision.decision !== 'edit' || tool === undefined) continue;
      const question = await editQuestion(this.#attempt, tool, record, decision.arguments);
      if (question !== undefined) again.set(record, question);
    }
    for (const { record, decision } of decided) {
      tellDecision(this.#attempt, this.#frame, record, decision);
      this.#decide(record, decision);
      const question = again.get(record);
      if (question === undefined) continue;
      delete record.decision;
      this.#wait(record, question);
    }
  }

  #decide(record: ToolCallRecord, decision: Decision): void {
    switch (decision.decision) {
      case 'approve':
        record.state = 'pending';
        break;
      case 'edit':
        record.state = 'pending';
        record.arguments = decision.arguments;
        break;
      case 'respond':
        this.#settle(record, { ok: true, result: decision.result }, 0);
        break;
      case 'deny': {
        const expired = decision.reason === 'expired';
        const reason = decision.reason === undefined || expired ? '' : `: ${decision.reason}`;
        const message = expired
          ? 'Nobody approved this call in time, so it was not run.'
          : `The call was denied and was not run${reason}`;
        this.#settle(record, { ok: false, error: { message, kind: expired ? 'expired' : 'denied' } }, 0);
        break;
      }
    }
  }

  #settled(record: ToolCallRecord): void {
    const settlement = record.settlement;
    if (settlement === undefined) return;
    switch (settlement.outcome) {
      case 'happened':
        this.#settle(
          record,
          { ok: true, result: settlement.result ?? 'The call had its effect; its result is not known.' },
          0,
        );
        break;
      case 'failed':
        this.#settle(
          record,
          {
            ok: false,
            error: {
              message: typeof settlement.result === 'string' ? settlement.result : 'The call failed.',
              kind: 'failed',
            },
          },
          0,
        );
        break;
      case 'retry':
        record.state = 'pending';
        break;
    }
  }

  /** @returns the record when its tool asks for the run to fail */
  #afterCrash(record: ToolCallRecord): ToolCallRecord | undefined {
    switch (record.onCrash) {
      case 'retry':
        return undefined;
      case 'ask':
        this.#wait(record, {
          reason: 'outcome',
          message: `The server stopped while ${record.name} ran. Did it have its effect?`,
          responseSchema: OUTCOME_SCHEMA,
          expiresAt: null,
        });
        return undefined;
      case 'unknown':
      case 'fail': {
        const { toolCallId, name, startedAt = '', idempotencyKey } = record;
        this.#attempt.unknownCalls.push({
          toolCallId,
          tool: name,
          arguments: record.arguments,
          startedAt,
          idempotencyKey,
        });
        this.#settle(
          record,
          {
            ok: false,
            error: {
              message: 'The server stopped while this call ran; whether it had its effect is not known.',
              kind: 'outcome_unknown',
            },
          },
          0,
        );
        return record.onCrash === 'fail' ? record : undefined;
      }
    }
  }

  /** Runs what may run, then closes the round or says what it waits for. @throws ShimError, the signal's reason */
  async run(): Promise<RoundResult> {
    const attempt = this.#attempt;
    const queue = attempt.calls.filter((record) => record.state === 'pending' || record.state === 'started');
    let failure: Error | undefined;
    const work = async (): Promise<void> => {
      for (
        let record = queue.shift();
        record !== undefined && failure === undefined && !attempt.signal.aborted;
        record = queue.shift()
      ) {
        try {
          await this.#runOne(record);
        } catch (error) {
          failure ??= error as Error;
        }
      }
    };
    await Promise.all(Array.from({ length: Math.min(this.#parallel, queue.length) }, work));
    if (failure !== undefined || attempt.signal.aborted) this.#giveBack();
    if (failure !== undefined) throw failure;
    attempt.signal.throwIfAborted();
    const interruptions = openQuestions(attempt);
    if (interruptions.length > 0) return { kind: 'waiting', interruptions };
    return this.#close();
  }

  /** Calls that are recorded as begun but were not: a hand-over or a failure came first. They are no crash. */
  #giveBack(): void {
    const untouched = this.#attempt.calls.filter((record) => record.state === 'started' && !this.#ran.has(record));
    for (const record of untouched) record.state = 'pending';
    if (untouched.length > 0) this.#attempt.checkpointLater({ calls: untouched });
  }

  /** While it lasts no checkpoint is one at which the attempt can be handed over: that would interrupt it. */
  async #execute(tool: Tool, record: ToolCallRecord): Promise<ToolOutcome> {
    this.#attempt.callsRunning += 1;
    try {
      return await runToolCall(this.#attempt, this.#frame, tool, record);
    } catch (error) {
      // Stopped on the way to its tool: it has not begun.
      if (isUsedUp(error) && !hasReachedTool(record)) this.#ran.delete(record);
      throw error;
    } finally {
      this.#attempt.callsRunning -= 1;
    }
  }

  async #runOne(record: ToolCallRecord): Promise<void> {
    const attempt = this.#attempt;
    this.#ran.add(record);
    const tool = this.#tools.get(record.name);
    if (tool === undefined) {
      this.#settle(
        record,
        {
          ok: false,
          error: { message: `There is no tool ${JSON.stringify(record.name)} any more.`, kind: 'unknown_tool' },
        },
        0,
      );
      attempt.checkpointLater({ calls: [record] });
      return;
    }
    if (record.state === 'pending') {
      if (appendedAt(attempt) !== undefined) this.#flushState(record, 0);
      // An effect in the world must not come before the record that the call began.
      this.#begin(record);
      await attempt.checkpoint({ calls: [record] });
      // A stop that came meanwhile is in time: nothing has happened yet.
      if (attempt.signal.aborted) {
        this.#ran.delete(record);
        return;
      }
    }
    const startedAt = attempt.clock.now();
    const outcome = await this.#execute(tool, record);
    const ms = attempt.clock.now() - startedAt;
    // A hand-over interrupted it: the record stays as it is, and the next start applies the tool's crash rule.
    if ((outcome === CANCELLED || wasInterrupted(record)) && attempt.signal.reason instanceof HandedOverError) return;
    let failure: Error | undefined;
    try {
      this.#flushState(record, ms);
    } catch (error) {
      // What the tool wrote is refused, but its effect has happened: the outcome is kept.
      failure = error as Error;
      attempt.working.discard();
      for (const session of this.#frame.shims.sessions) session.namespace?.reset();
    }
    this.#settle(record, outcome, ms);
    attempt.checkpointLater({ calls: [record] });
    if (failure !== undefined) throw failure;
  }

  /** What the tool wrote through its shim goes with its outcome. */
  #flushState(record: ToolCallRecord, ms: number): void {
    this.#frame.shims.flushStates();
    const owner = this.#attempt.core?.owners.get(record.name) ?? this.#attempt.agent;
    const callback = `tool:${record.name}`;
    try {
      for (const change of this.#attempt.effects.take()) this.#frame.shims.recordEffect(owner, callback, change, ms);
    } catch (error) {
      throw new ShimError(owner, callback, error);
    }
    if (deferAppended(this.#attempt)) this.#attempt.effects.rebase();
  }

  /** The results enter the history, then what onModelResponse had appended (R30); the turn is over. */
  #close(): RoundResult {
    const attempt = this.#attempt;
    const handoffTo = attempt.calls
      .map((record) => (record.outcome?.ok === true ? this.#tools.get(record.name)?.handoffTo : undefined))
      .find((name) => name !== undefined);
    closeRound(attempt);
    attempt.position.roundTrips += 1;
    attempt.effects.rebase();
    attempt.event(attempt.effects.snapshot('toolRoundEnd', this.#turn));
    attempt.event({ type: 'turn.completed', turn: this.#turn });
    attempt.checkpointLater({ turnEnd: true });
    return { kind: 'closed', handoffTo };
  }
}
