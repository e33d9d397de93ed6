import type { Checkpoint, SavedState } from './journal.js';
import type { ModelResponse } from './messages.js';
import { type HistoryItem, isEphemeral, renderItem, settleItem, type ToolCallPart } from './messages.js';
import { GuardedState, LiveState, ReadOnlyState, type ShimState, type StateChange } from './state-map.js';
import { type PromptSpec, settleInstructions } from './template.js';

/** What must survive a run (R10), as shims see it. */
export interface RunState {
  instructions: string | PromptSpec;
  history: HistoryItem[];
  /** All raw responses; the list itself is frozen. */
  readonly responses: ModelResponse[];
  readonly shimState: ShimState;
  readonly turnCount: number;
}

/** A history in which a tool call lost its result, or a result its call (R31a). */
export class BrokenPairingError extends Error {
  constructor(what: string) {
    super(`This history separates a tool call from its result: ${what}.`);
    this.name = 'BrokenPairingError';
  }
}

type StateDelta = Pick<Checkpoint, 'instructions' | 'state' | 'history' | 'responses' | 'turnCount'>;

/** The working copy of a run's state: what was written since the last checkpoint can be taken (to commit) or discarded. */
export class WorkingState {
  instructions: string | PromptSpec;
  history: HistoryItem[];
  readonly responses: ModelResponse[];
  live: LiveState;
  turnCount: number;
  #saved: {
    instructions: string | PromptSpec;
    turnCount: number;
    responses: number;
    readonly state: Map<string, string>;
  };
  #savedHistory: HistoryItem[];
  #dropEphemeral = false;
  #takeBack = (): void => undefined;
  #shown: readonly ModelResponse[] = Object.freeze([]);
  readonly #changed = new Map<string, StateChange>();

  constructor(saved: Pick<SavedState, 'instructions' | 'history' | 'responses' | 'state' | 'turnCount'>) {
    this.instructions = saved.instructions;
    this.history = [...saved.history];
    this.responses = [...saved.responses];
    this.live = new LiveState(saved.state);
    this.turnCount = saved.turnCount;
    this.#savedHistory = [...saved.history];
    this.#saved = {
      instructions: saved.instructions,
      turnCount: saved.turnCount,
      responses: saved.responses.length,
      state: new Map(saved.state),
    };
  }

  /** The responses for callbacks, which may keep the list and may not change it. */
  shownResponses(): ModelResponse[] {
    const { responses } = this;
    if (this.#shown.length !== responses.length || this.#shown.at(-1) !== responses.at(-1))
      this.#shown = Object.freeze([...responses]);
    return this.#shown as ModelResponse[];
  }

  /** Freezes copies of items that were pushed onto the array itself, so that later changes of the caller's objects change nothing. */
  settleHistory(): void {
    for (let index = 0; index < this.history.length; index += 1)
      this.history[index] = settleItem(this.history[index] as HistoryItem, `history[${index}]`);
  }

  /** The state keys that changed since the last call, kept for the next checkpoint too. */
  takeStateChanges(): StateChange[] {
    const changes = this.live.takeChanges();
    for (const change of changes) this.#changed.set(change.key, change);
    return changes;
  }

  /** What a commit must add to the saved state; from here on it counts as saved. */
  takeDelta(): StateDelta {
    this.settleHistory();
    this.takeStateChanges();
    const state = [...this.#changed.values()];
    this.#changed.clear();
    this.#rememberSaved(state);
    for (const { key, json } of state) {
      if (json === undefined) this.#saved.state.delete(key);
      else this.#saved.state.set(key, json);
    }
    const responses = this.responses.slice(this.#saved.responses);
    const instructions = this.instructions === this.#saved.instructions ? undefined : this.instructions;
    this.#saved = {
      ...this.#saved,
      instructions: this.instructions,
      turnCount: this.turnCount,
      responses: this.responses.length,
    };
    return {
      turnCount: this.turnCount,
      responses,
      state,
      history: this.#takeHistory(),
      ...(instructions === undefined ? {} : { instructions }),
    };
  }

  #rememberSaved(state: readonly StateChange[]): void {
    const saved = this.#saved;
    const history = this.#savedHistory;
    const { length } = history;
    const before = state.map(({ key }) => [key, saved.state.get(key)] as const);
    this.#takeBack = () => {
      this.#saved = saved;
      for (const [key, json] of before) {
        if (json === undefined) saved.state.delete(key);
        else saved.state.set(key, json);
      }
      history.length = length;
      this.#savedHistory = history;
    };
  }

  /** The last delta was not committed after all: what it held is not saved. Follow it with `discard`. */
  takeBack(): void {
    this.#takeBack();
    this.#takeBack = (): void => undefined;
  }

  #takeHistory(): StateDelta['history'] {
    const kept = this.#savedHistory.length;
    const appended =
      this.history.length >= kept && this.#savedHistory.every((item, index) => item === this.history[index]);
    const dropEphemeral = this.#dropEphemeral;
    this.#dropEphemeral = false;
    if (!appended) {
      this.#savedHistory = [...this.history];
      return { mode: 'replace', items: this.history.slice(), dropEphemeral };
    }
    const items = this.history.slice(kept);
    this.#savedHistory.push(...items);
    return items.length === 0 && !dropEphemeral ? undefined : { mode: 'append', items, dropEphemeral };
  }

  /** Forgets what was written since the last checkpoint (R61). Arrays and maps that were handed out are detached. */
  discard(): void {
    this.instructions = this.#saved.instructions;
    this.history = [...this.#savedHistory];
    this.responses.length = this.#saved.responses;
    this.live = new LiveState(this.#saved.state);
    this.turnCount = this.#saved.turnCount;
    this.#changed.clear();
  }

  /** Back to this moment when a callback's writes are undone. */
  snapshot(): () => void {
    this.takeStateChanges();
    const { instructions, history, responses } = this;
    const items = [...history];
    const count = responses.length;
    const state = new Map(this.live.saved());
    return () => {
      this.instructions = instructions;
      this.history = items;
      this.responses.length = count;
      const undone = this.live.saved();
      this.live = new LiveState(state);
      for (const key of new Set([...undone.keys(), ...state.keys()])) {
        const json = state.get(key);
        if (json === this.#saved.state.get(key)) this.#changed.delete(key);
        else this.#changed.set(key, { key, json });
      }
    };
  }

  /** Takes the ephemeral messages out: the run is over (R94). */
  stripEphemeral(): void {
    this.history = this.history.filter((item) => !isEphemeral(item));
    const kept = this.#savedHistory.filter((item) => !isEphemeral(item));
    if (kept.length < this.#savedHistory.length) this.#dropEphemeral = true;
    this.#savedHistory = kept;
  }
}

function callsOf(content: string | readonly { readonly type: string }[]): ToolCallPart[] {
  if (typeof content === 'string') return [];
  return content.filter(
    (part): part is ToolCallPart => part.type === 'tool-call' && (part as ToolCallPart).providerExecuted !== true,
  );
}

/**
 * Refuses a history in which a call and its result do not stand together (R31a).
 * @param open ids of calls that may stand unanswered at the end: those of the round in progress
 * @throws BrokenPairingError
 */
export function assertPairing(history: readonly HistoryItem[], open: ReadonlySet<string>): void {
  let awaited = new Set<string>();
  for (const message of history.flatMap((item) => renderItem(item))) {
    if (message.role === 'tool') {
      for (const part of message.content) {
        if (!awaited.delete(part.toolCallId))
          throw new BrokenPairingError(`the result of ${part.toolCallId} does not follow its call`);
      }
      continue;
    }
    const [missing] = awaited;
    if (missing !== undefined && !open.has(missing))
      throw new BrokenPairingError(`the call ${missing} is not followed by its result`);
    if (message.role === 'assistant') awaited = new Set(callsOf(message.content).map((call) => call.toolCallId));
  }
  for (const id of awaited) if (!open.has(id)) throw new BrokenPairingError(`the call ${id} has no result`);
  for (const id of open) if (!awaited.has(id)) throw new BrokenPairingError(`the call ${id} of this turn is gone`);
}

/**
 * What a callback gets as `RunState`: the working copy, asked for leave before every write. Once it is closed it only shows what is
 * there: nothing that is read from it can be written through.
 */
export class RunStateView implements RunState {
  readonly #working: WorkingState;
  readonly #beforeWrite: () => void;
  readonly #isClosed: () => boolean;
  readonly shimState: ShimState;

  constructor(working: WorkingState, beforeWrite: () => void, isClosed: () => boolean) {
    this.#working = working;
    this.#beforeWrite = beforeWrite;
    this.#isClosed = isClosed;
    const shown = new ReadOnlyState(() => working.live);
    this.shimState = new GuardedState(() => (isClosed() ? shown : working.live), beforeWrite);
    Object.freeze(this);
  }
  get instructions(): string | PromptSpec {
    return this.#working.instructions;
  }
  set instructions(value: string | PromptSpec) {
    this.#beforeWrite();
    this.#working.instructions = settleInstructions(value);
  }
  get history(): HistoryItem[] {
    return this.#isClosed() ? guardedList(this.#working.history, this.#beforeWrite) : this.#working.history;
  }
  set history(items: HistoryItem[]) {
    this.#beforeWrite();
    this.#working.history = [...items];
  }
  get responses(): ModelResponse[] {
    return this.#working.shownResponses();
  }
  get turnCount(): number {
    return this.#working.turnCount;
  }
}

/** A list to read: every way to change it asks first, and is refused. */
function guardedList<T>(items: readonly T[], beforeWrite: () => void): T[] {
  const refuse = (): boolean => {
    beforeWrite();
    return false;
  };
  return new Proxy([...items], { set: refuse, defineProperty: refuse, deleteProperty: refuse });
}
