import { type EventBatch, framed } from '../agent/event-frames.js';
import { type EventInput, toolCompleted } from '../agent/events.js';
import type { ToolCallRecord } from '../agent/journal.js';
import { type Decision, type DecisionScope, firstPosition, type Position } from '../agent/journal.js';
import { type JsonSchema, jsonSchemaErrors } from '../agent/json-schema.js';
import { type HistoryItem, kindOf } from '../agent/messages.js';
import { closingItems } from '../agent/round-closing.js';
import { type InFlight, type Interruption, TERMINAL_STATUSES } from '../agent/run.js';
import { failureProblem } from '../agent/run-errors.js';
import {
  InputRequiredError,
  RunActiveError,
  RunNotFoundError,
  StaleInterruptionError,
  StaleSettlementError,
  StateConflictError,
  ValidationError,
  VersionMismatchError,
  WaitingForDecisionsError,
} from '../errors.js';
import type { RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { ResumeRun } from './agent-runtime.js';
import { interruptedCancel, partialText, TAIL_ROWS } from './log-tail.js';
import { eventLine } from './run-journal.js';

/** Events that a change wrote outside an attempt, to be published after its commit. */
export interface Written {
  readonly row: RunRow;
  readonly batch: EventBatch;
}

/** What a resume came to: a new attempt, or decisions taken while others are still awaited. */
export interface Resumed extends Written {
  readonly starts: boolean;
}

/**
 * The changes of a run that come from outside its attempt, each one transaction: the status is read and changed in it, so of
 * two that come at once one wins and the other gets a 409.
 */
export class RunChanges {
  readonly #store: RunStore;
  readonly #now: () => number;

  constructor(store: RunStore, now: () => number) {
    this.#store = store;
    this.#now = now;
  }

  /** The row of a run that belongs to the asking key. @throws RunNotFoundError */
  owned(runId: string, owner: string): RunRow {
    const row = this.#store.find(runId);
    if (row?.owner !== owner) throw new RunNotFoundError(runId);
    return row;
  }

  /**
   * Takes a resume: decisions and settlements of a waiting run, raised limits, or new input.
   * @throws RunActiveError, WaitingForDecisionsError, StaleInterruptionError, StaleSettlementError, InputRequiredError, VersionMismatchError
   */
  resume(runId: string, owner: string, request: ResumeRun, items: readonly HistoryItem[] | undefined): Resumed {
    const row = this.owned(runId, owner);
    assertVersion(row, request.ifMatch);
    if (row.status === 'queued' || row.status === 'running' || row.status === 'cancelling')
      throw new RunActiveError(row);
    if (row.status === 'waiting') return this.#answer(row, request, items);
    const [decision] = request.decisions ?? [];
    if (decision !== undefined) throw new StaleInterruptionError(decision.id);
    const [settlement] = request.settle ?? [];
    if (settlement !== undefined) throw new StaleSettlementError(settlement.toolCallId);
    if (items === undefined && row.status !== 'failed') {
      throw new InputRequiredError({
        detail: `Run ${row.id} is ${row.status}: it goes on with an input only.`,
        errors: [{ pointer: '/input', message: 'required for a run that did not fail' }],
      });
    }
    this.#change(row, request);
    const position = this.#store.position(row.n);
    if (items === undefined)
      return this.#begin(row, { ...restarted(position), at: position.at === 'tools' ? 'tools' : 'start' }, []);
    return this.#begin(row, restarted(position), [...this.#closeRound(row, position), ...items]);
  }

  #answer(row: RunRow, request: ResumeRun, items: readonly HistoryItem[] | undefined): Resumed {
    const { n } = row;
    const calls = this.#store.calls(n);
    const open = JSON.parse(this.#store.doc(n, 'interruptions') ?? '[]') as Interruption[];
    const budget = open.some((interruption) => interruption.reason === 'budget');
    const answered = [
      ...(request.decisions ?? []).map((decision, index) => this.#decide(calls, decision, index)),
      ...(request.settle ?? []).map((settlement) => this.#settle(calls, settlement)),
    ];
    const raised = request.limits !== undefined || request.shims !== undefined;
    if (answered.length === 0 && !(budget && raised)) throw new WaitingForDecisionsError(row.id, open);
    for (const call of answered) this.#store.putCall(n, call);
    this.#change(row, request);
    const left = calls.filter(
      (call) => call.state === 'waiting' && call.decision === undefined && call.settlement === undefined,
    );
    const input = items ?? [];
    if (left.length > 0) {
      if (input.length > 0) throw new WaitingForDecisionsError(row.id, open);
      this.#store.putDoc(n, 'interruptions', JSON.stringify(left.flatMap((call) => call.interruption ?? [])));
      this.#store.touch(n, this.#now());
      return { row: this.owned(row.id, row.owner), batch: framed([], row.last_seq), starts: false };
    }
    const position = this.#store.position(n);
    if (input.length > 0) position.deferred.push(...input.map((item) => ({ kind: kindOf(item), item })));
    return this.#begin(
      row,
      { ...restarted(position), at: position.at === 'start' ? 'start' : position.at, deferred: position.deferred },
      [],
    );
  }

  #decide(
    calls: readonly ToolCallRecord[],
    answer: NonNullable<ResumeRun['decisions']>[number],
    index: number,
  ): ToolCallRecord {
    const call = calls.find((each) => each.interruption?.id === answer.id);
    if (call?.state !== 'waiting' || call.interruption?.reason !== 'approval' || call.decision !== undefined)
      throw new StaleInterruptionError(answer.id);
    assertScope(call.interruption, answer.scope, index);
    if (answer.decision === 'edit') assertArguments(call.interruption, answer.arguments ?? {}, index);
    call.decision = decisionOf(answer);
    return call;
  }

  #settle(calls: readonly ToolCallRecord[], answer: NonNullable<ResumeRun['settle']>[number]): ToolCallRecord {
    const call = calls.find((each) => each.toolCallId === answer.toolCallId);
    if (call?.state !== 'waiting' || call.interruption?.reason !== 'outcome' || call.settlement !== undefined)
      throw new StaleSettlementError(answer.toolCallId);
    call.settlement = {
      outcome: answer.outcome,
      ...(answer.result === undefined ? {} : { result: answer.result as never }),
    };
    return call;
  }

  /** A new attempt of a run that has ended or waits: queued, with its first event. */
  #begin(row: RunRow, position: Position, items: readonly HistoryItem[]): Resumed {
    const { n } = row;
    const nowMs = this.#now();
    this.#store.transition(n, 'queued', nowMs);
    const attempt = this.#store.raiseAttempt(n);
    this.#store.putPosition(n, position);
    this.#store.appendItems(n, items);
    for (const kind of ['output', 'error', 'partial', 'interruptions'] as const) this.#store.putDoc(n, kind, undefined);
    const lines = [eventLine({ type: 'run.resumed' }, { id: row.id, attempt }, nowMs)];
    const batch = this.#store.addEvents(n, lines, nowMs);
    if (items.length > 0) this.#store.markCheckpoint(n, batch.lastSeq, nowMs, position);
    return { row: this.owned(row.id, row.owner), batch, starts: true };
  }

  /** Other limits and configs hold from this resume on. */
  #change(row: RunRow, { limits, shims }: ResumeRun): void {
    if (limits === undefined && shims === undefined) return;
    const request = this.#store.request(row.n);
    const changed = { limits: { ...request.limits, ...limits }, shims: { ...request.shims, ...shims } };
    this.#store.putDoc(row.n, 'request', JSON.stringify({ ...request, ...changed }));
  }

  /** Closes what a failed attempt had left open, so that new input can follow. */
  #closeRound(row: RunRow, position: Position): HistoryItem[] {
    if (position.at !== 'tools') return [];
    const items = closingItems(this.#store.calls(row.n), position);
    this.#store.dropCalls(row.n);
    return items;
  }

  /**
   * Takes a cancel. A run that nobody drives ends here and now; of one that is driven the worker ends it.
   * @returns the events written, and whether a worker has to be told
   */
  cancel(runId: string, owner: string): Written & { readonly tellWorker: boolean } {
    const row = this.owned(runId, owner);
    const nothing = { row, batch: framed([], row.last_seq), tellWorker: false };
    if (TERMINAL_STATUSES.has(row.status) || row.settled === 1) return nothing;
    if (row.status === 'cancelling') return { ...nothing, tellWorker: true };
    if (row.status === 'queued' || row.status === 'waiting')
      return { ...this.endCancelled(row, true), tellWorker: false };
    const nowMs = this.#now();
    this.#store.transition(row.n, 'cancelling', nowMs);
    const lines = [eventLine({ type: 'run.cancelling' }, row, nowMs)];
    const batch = this.#store.addEvents(row.n, lines, nowMs);
    return { row: this.owned(runId, owner), batch, tellWorker: true };
  }

  /** Ends a run that no process drives as cancelled: its open round is closed, so the history can be sent; nothing more is executed. */
  endCancelled(row: RunRow, announce: boolean): Written {
    const { n } = row;
    const nowMs = this.#now();
    const position = this.#store.position(n);
    const events: EventInput[] = announce ? [{ type: 'run.cancelling' }] : [];
    const tail = this.#store.lastFrames(n, TAIL_ROWS);
    const found = announce ? undefined : interruptedCancel(tail);
    const inFlight: InFlight[] =
      found?.model === undefined ? [] : [{ kind: 'model', ...found.model, obeyed: false, ms: 0, sideEffects: 'none' }];
    if (position.at === 'tools') {
      const calls = this.#store.calls(n);
      for (const call of calls) {
        if (call.state === 'done') continue;
        const begun = call.state === 'started';
        if (begun)
          inFlight.push({
            kind: 'tool',
            name: call.name,
            id: call.toolCallId,
            obeyed: false,
            ms: 0,
            sideEffects: call.onCrash === 'retry' ? 'none' : 'unknown',
          });
        call.outcome = {
          ok: false,
          error: {
            message: begun
              ? 'The call was interrupted; whether it had its effect is not known.'
              : 'The run was cancelled before this call was run.',
            kind: 'cancelled',
          },
        };
        call.state = 'done';
        events.push(toolCompleted(call, call.outcome, 0, call.turn));
      }
      this.#store.appendItems(n, closingItems(calls, position));
      this.#store.dropCalls(n);
      this.#store.putPosition(n, { ...position, at: 'turn', deferred: [] });
    }
    this.#store.dropEphemeral(n);
    const requestedAt = found?.requestedAt ?? new Date(nowMs).toISOString();
    const cancellation = { requestedAt, inFlight, cleanupMs: nowMs - Date.parse(requestedAt) };
    const partialOutput = partialText(tail);
    events.push({ type: 'run.cancelled', cancellation, partialOutput });
    const lines = events.map((event) => eventLine(event, row, nowMs));
    const batch = this.#store.addEvents(n, lines, nowMs);
    this.#store.applyEnd(
      n,
      { status: 'cancelled', cancellation, partialOutput },
      { seq: batch.lastSeq, attempt: row.attempt, nowMs },
    );
    if (position.at === 'tools')
      this.#store.markCheckpoint(n, batch.lastSeq, nowMs, { ...position, at: 'turn', deferred: [] });
    return { row: this.owned(row.id, row.owner), batch };
  }

  /** Ends a run that nobody drives as failed. */
  endFailed(row: RunRow, cause: { readonly code: 'crash_loop' | 'internal'; readonly message: string }): Written {
    const nowMs = this.#now();
    const error = failureProblem(cause);
    const answer = this.#settledAnswer(row.n);
    const partialOutput = partialText(this.#store.lastFrames(row.n, TAIL_ROWS));
    this.#store.dropEphemeral(row.n);
    const lines = [eventLine({ type: 'run.failed', error, partialOutput, ...answer }, row, nowMs)];
    const batch = this.#store.addEvents(row.n, lines, nowMs);
    this.#store.applyEnd(
      row.n,
      { status: 'failed', error, partialOutput, ...answer },
      { seq: batch.lastSeq, attempt: row.attempt, nowMs },
    );
    return { row: this.owned(row.id, row.owner), batch };
  }

  /** An answer that had been settled is kept, whatever became of its clean-up (R59). */
  #settledAnswer(n: number): { readonly output?: unknown } {
    try {
      const { settled } = this.#store.position(n);
      return settled?.status === 'completed' ? { output: settled.output } : {};
    } catch {
      // A record that cannot be read fails its run, and says nothing of an answer.
      return {};
    }
  }

  /** @throws StateConflictError while the run or a run below it is active */
  purge(runId: string, owner: string): void {
    const row = this.owned(runId, owner);
    const family = [row, ...this.#store.descendants(row.id)];
    const active = family.find((each) => !TERMINAL_STATUSES.has(each.status));
    if (active !== undefined)
      throw new StateConflictError({
        detail: `Run ${active.id} is ${active.status}: cancel it first.`,
        extensions: { runId: active.id, runStatus: active.status },
      });
    for (const each of family) this.#store.purge(each.n);
  }
}

function assertVersion(row: RunRow, ifMatch: string | undefined): void {
  if (ifMatch === undefined || ifMatch === '*') return;
  if (ifMatch !== String(row.version)) throw new VersionMismatchError(ifMatch, row.version);
}

/** The counters of a new attempt; the agent that has the conversation keeps it. */
function restarted(position: Position): Position {
  const agent = position.agents.at(-1) ?? '';
  const fresh = firstPosition(agent);
  return {
    ...fresh,
    seenAgents: position.seenAgents,
    ...(position.at === 'tools' ? { deferred: position.deferred, openTurn: position.openTurn } : {}),
  };
}

/** A wider reach than this call is the gate's to offer. @throws ValidationError */
function assertScope({ responseSchema }: Interruption, scope: DecisionScope | undefined, index: number): void {
  if (scope === undefined || scope === 'once') return;
  const { scope: offered } = responseSchema.properties as { readonly scope?: { readonly enum: readonly string[] } };
  if (offered?.enum.includes(scope) === true) return;
  const message = `must be ${offered === undefined ? 'once' : `one of ${offered.enum.join(', ')}`} for this interruption`;
  throw new ValidationError('The decision reaches further than the interruption offers.', [
    { pointer: `/decisions/${index}/scope`, message },
  ]);
}

/**
 * Arguments that the tool's JSON Schema refuses are refused here, and the run waits on; what only the tool itself can tell is an
 * error result of the call. @throws ValidationError
 */
function assertArguments({ responseSchema }: Interruption, args: unknown, index: number): void {
  const { arguments: schema } = responseSchema.properties as { readonly arguments: JsonSchema };
  const faults = errorsOf(schema, args);
  if (faults.length === 0) return;
  throw new ValidationError(
    'The tool does not take these arguments.',
    faults.map(({ pointer, message }) => ({ pointer: `/decisions/${index}/arguments${pointer}`, message })),
  );
}

/** A schema that cannot be compiled was the tool author's: the tool judges by itself. */
function errorsOf(schema: JsonSchema, value: unknown): ReturnType<typeof jsonSchemaErrors> {
  try {
    return jsonSchemaErrors(schema, value);
  } catch {
    return [];
  }
}

function decisionOf(answer: NonNullable<ResumeRun['decisions']>[number]): Decision {
  const scope = answer.scope === undefined ? {} : { scope: answer.scope };
  switch (answer.decision) {
    case 'approve':
      return { decision: 'approve', ...scope };
    case 'deny':
      return { decision: 'deny', ...(answer.reason === undefined ? {} : { reason: answer.reason }), ...scope };
    case 'edit':
      return { decision: 'edit', arguments: (answer.arguments ?? {}) as never, ...scope };
    case 'respond':
      return { decision: 'respond', result: (answer.result ?? null) as never, ...scope };
  }
}
