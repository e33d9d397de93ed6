import type { EventInput, LifecycleEvent } from './events.js';
import {
  type AttemptEnd,
  CancelledFirstError,
  type Checkpoint,
  firstPosition,
  type Journal,
  type JournalEntry,
  type SavedState,
  type ToolCallRecord,
} from './journal.js';
import { type HistoryItem, isEphemeral } from './messages.js';
import { NO_USAGE } from './model.js';
import type { PromptSpec } from './template.js';

/** A saved state for a conversation that has not begun. */
export function newState(
  agent: string,
  instructions: string | PromptSpec,
  history: readonly HistoryItem[] = [],
): SavedState {
  return {
    instructions,
    history,
    responses: [],
    state: new Map(),
    turnCount: 0,
    usage: NO_USAGE,
    position: firstPosition(agent),
    toolCalls: [],
  };
}

/** A saved state with one checkpoint more. */
export function withCheckpoint(saved: SavedState, checkpoint: Checkpoint): SavedState {
  const state = new Map(saved.state);
  for (const { key, json } of checkpoint.state) {
    if (json === undefined) state.delete(key);
    else state.set(key, json);
  }
  return {
    instructions: checkpoint.instructions ?? saved.instructions,
    history: historyAfter(saved.history, checkpoint),
    responses: [...saved.responses, ...checkpoint.responses],
    state,
    turnCount: checkpoint.turnCount,
    usage: checkpoint.usage,
    position: checkpoint.position,
    toolCalls: callsAfter(saved.toolCalls, checkpoint),
  };
}

function historyAfter(history: readonly HistoryItem[], { history: delta }: Checkpoint): readonly HistoryItem[] {
  if (delta === undefined) return history;
  if (delta.mode === 'replace') return delta.items;
  const kept = delta.dropEphemeral ? history.filter((item) => !isEphemeral(item)) : history;
  return [...kept, ...delta.items];
}

/** Records of an open round replace their earlier selves; a closed round has none. */
function callsAfter(calls: readonly ToolCallRecord[], { position, toolCalls }: Checkpoint): readonly ToolCallRecord[] {
  if (position.at !== 'tools') return [];
  const records = new Map(calls.map((call) => [call.toolCallId, call]));
  for (const call of toolCalls) records.set(call.toolCallId, call);
  return [...records.values()].sort((a, b) => a.index - b.index);
}

/** The journal of an agent in code: everything in memory, durable at once. */
export class MemoryJournal implements Journal {
  readonly events: LifecycleEvent[] = [];
  saved: SavedState;
  end: AttemptEnd | undefined;
  readonly #runId: string;
  readonly #now: () => number;
  readonly #signal: AbortSignal;
  readonly #onEvent: (event: LifecycleEvent) => void;
  #settled = false;

  constructor(options: {
    readonly runId: string;
    readonly saved: SavedState;
    readonly now: () => number;
    readonly signal: AbortSignal;
    readonly onEvent?: (event: LifecycleEvent) => void;
  }) {
    this.#runId = options.runId;
    this.saved = options.saved;
    this.#now = options.now;
    this.#signal = options.signal;
    this.#onEvent = options.onEvent ?? (() => undefined);
  }

  note(event: EventInput): void {
    const full: LifecycleEvent = {
      ...event,
      seq: this.events.length + 1,
      runId: this.#runId,
      attempt: 1,
      at: new Date(this.#now()).toISOString(),
    };
    this.events.push(full);
    this.#onEvent(full);
  }

  async commit(entry: JournalEntry): Promise<void> {
    const finishes =
      entry.checkpoint?.settles === true || (entry.end !== undefined && entry.end.status !== 'cancelled');
    if (finishes && !this.#settled && this.#signal.aborted) throw new CancelledFirstError();
    if (entry.checkpoint?.settles === true) this.#settled = true;
    if (entry.checkpoint !== undefined) this.saved = withCheckpoint(this.saved, entry.checkpoint);
    for (const event of entry.events) this.note(event);
    if (entry.end !== undefined) this.end = entry.end;
  }
}
