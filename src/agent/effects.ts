import type { Change, EventInput, ItemPicture, Picture, SnapshotBoundary, TextDiff } from './events.js';
import { cutText } from './json.js';
import { type HistoryItem, internalMarkOf, kindOf, type Message } from './messages.js';
import type { WorkingState } from './run-state.js';
import type { PromptSpec } from './template.js';
import type { ToolSet } from './tool-set.js';
import type { TurnCore } from './turn.js';

/** A short hash of a text; injected, since the domain has no crypto of its own. */
export type Digest = (text: string) => string;

const DIFF_LIMIT = 2000;

/** The one stretch in which two texts differ: enough for instructions, which shims append to or replace. */
function diffTexts(before: string, after: string): TextDiff {
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before.charCodeAt(start) === after.charCodeAt(start)) start += 1;
  let end = 0;
  while (end < most - start && before.charCodeAt(before.length - 1 - end) === after.charCodeAt(after.length - 1 - end))
    end += 1;
  return {
    at: start,
    removed: cutText(before.slice(start, before.length - end), DIFF_LIMIT),
    added: cutText(after.slice(start, after.length - end), DIFF_LIMIT),
  };
}

function textOf(value: string | PromptSpec): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/**
 * Finds what a callback changed, by looking at the working state after it and comparing with what was there after the last
 * look. Cheap when nothing changed: references and counters are compared, and only what changed is serialised.
 */
export class EffectRecorder {
  readonly #working: WorkingState;
  readonly #digest: Digest;
  #instructions: string | PromptSpec;
  #history: readonly HistoryItem[];
  #toolNames: readonly string[] = [];
  #toolRevision = -1;
  #modelArgs = 'null';
  #core: TurnCore | undefined;
  readonly #memory: Memory;
  /** Digest of the history up to a length, so that a snapshot costs what was appended. */
  #rolling: Rolling;
  /** What an earlier attempt had remembered, until this one has. */
  #found: Rolling | undefined;

  constructor(working: WorkingState, digest: Digest) {
    this.#working = working;
    this.#digest = digest;
    this.#instructions = working.instructions;
    this.#history = working.history.slice();
    this.#memory = memoryFor(digest);
    this.#rolling = lastSeen(this.#memory, working.history);
    this.#found = this.#rolling;
  }

  picture(text: string): Picture {
    return { size: text.length, digest: this.#digest(text) };
  }

  /** Takes the present state as given: what the runner itself did is no shim's effect. */
  rebase(core: TurnCore | undefined = this.#core): void {
    this.#core = core;
    this.#instructions = this.#working.instructions;
    this.#history = this.#working.history.slice();
    this.#working.takeStateChanges();
    if (core !== undefined) {
      this.#toolNames = toolNames(core.toolSet);
      this.#toolRevision = core.toolSet.revision;
      this.#modelArgs = core.modelArgs === null ? 'null' : JSON.stringify(core.modelArgs);
    }
  }

  /** What changed since the last look. @throws NotJsonError where a shim put into the state what JSON cannot hold */
  take(): Change[] {
    const changes: Change[] = [];
    const working = this.#working;
    if (working.instructions !== this.#instructions) {
      const [before, after] = [textOf(this.#instructions), textOf(working.instructions)];
      if (before !== after) {
        changes.push({
          what: 'instructions',
          before: this.picture(before),
          after: this.picture(after),
          diff: diffTexts(before, after),
        });
      }
      this.#instructions = working.instructions;
    }
    working.settleHistory();
    this.#takeHistory(changes);
    this.#takeTools(changes);
    for (const { key, json } of working.takeStateChanges()) {
      changes.push({ what: 'state', key, op: json === undefined ? 'delete' : 'set', ...this.picture(json ?? '') });
    }
    return changes;
  }

  #takeHistory(changes: Change[]): void {
    const before = this.#history;
    const after = this.#working.history;
    const kept = before.length;
    const grown = startsWith(after, before);
    if (grown && after.length === kept) return;
    if (grown) changes.push({ what: 'history+', items: after.slice(kept).map((item) => this.#itemPicture(item)) });
    else
      changes.push({
        what: 'history=',
        before: kept,
        after: after.length,
        items: after.slice(0, 50).map((item) => this.#itemPicture(item)),
      });
    this.#history = after.slice();
  }

  #takeTools(changes: Change[]): void {
    const core = this.#core;
    if (core === undefined) return;
    if (core.toolSet.revision !== this.#toolRevision) {
      const after = toolNames(core.toolSet);
      const added = after.filter((name) => !this.#toolNames.includes(name));
      const removed = this.#toolNames.filter((name) => !after.includes(name));
      if (added.length > 0) changes.push({ what: 'tools+', names: added });
      if (removed.length > 0) changes.push({ what: 'tools-', names: removed });
      this.#toolNames = after;
      this.#toolRevision = core.toolSet.revision;
    }
    if (core.modelArgs === null && this.#modelArgs === 'null') return;
    const args = core.modelArgs === null ? 'null' : JSON.stringify(core.modelArgs);
    if (args !== this.#modelArgs) {
      changes.push({ what: 'modelArgs', before: this.picture(this.#modelArgs), after: this.picture(args) });
      this.#modelArgs = args;
    }
  }

  /** How `transformMessages` changed the list, or nothing when it did not. */
  messagesChange(before: readonly Message[], after: readonly Message[]): Change | undefined {
    const [old, now] = [JSON.stringify(before), JSON.stringify(after)];
    return old === now ? undefined : { what: 'messages', before: this.picture(old), after: this.picture(now) };
  }

  #itemPicture(item: HistoryItem): ItemPicture {
    const known = typeof item === 'object' && item !== null ? this.#memory.pictures.get(item) : undefined;
    if (known !== undefined) return known;
    const kind = kindOf(item);
    const role = kind === 'message' ? (item as Message).role : undefined;
    const internal = internalMarkOf(item);
    const text = JSON.stringify(item);
    const picture = {
      kind,
      ...(role === undefined ? {} : { role }),
      ...(internal === undefined ? {} : { internal }),
      ...this.picture(text),
    };
    if (typeof item === 'object' && item !== null && Object.isFrozen(item)) this.#memory.pictures.set(item, picture);
    return picture;
  }

  /** Counts, sizes and digests of the whole state, never its contents. */
  snapshot(boundary: SnapshotBoundary, turn?: number): EventInput {
    const working = this.#working;
    const saved = working.live.saved();
    let stateSize = 0;
    let stateText = '';
    for (const [key, json] of saved) {
      stateSize += json.length;
      stateText += `${key}=${json}\n`;
    }
    return {
      type: 'state.snapshot',
      ...(turn === undefined ? {} : { turn }),
      boundary,
      turnCount: working.turnCount,
      history: this.#historyPicture(),
      responses: working.responses.length,
      state: { keys: saved.size, size: stateSize, digest: saved.size === 0 ? '' : this.#digest(stateText) },
      instructions: this.picture(textOf(working.instructions)),
    };
  }

  #historyPicture(): Picture & { readonly length: number } {
    const { history } = this.#working;
    const rolling = startsWith(history, this.#rolling.items) ? this.#rolling : NOTHING_SEEN;
    let { size, digest } = rolling;
    for (let index = rolling.items.length; index < history.length; index += 1) {
      const picture = this.#itemPicture(history[index] as HistoryItem);
      size += picture.size;
      digest = this.#digest(`${digest}${picture.digest}`);
    }
    if (rolling.items.length < history.length) this.#remember({ items: history.slice(), size, digest });
    return { length: history.length, size, digest };
  }

  /**
   * For the next attempt, the history as this one found it: what comes later is read back from the store as other objects. Of a
   * growing conversation only the latest is kept.
   */
  #remember(rolling: Rolling): void {
    const before = this.#found;
    this.#rolling = rolling;
    if (before === undefined) return;
    this.#found = undefined;
    const { histories } = this.#memory;
    const [old, last] = [lastObject(before.items), lastObject(rolling.items)];
    if (old !== undefined) histories.delete(old);
    if (last !== undefined) histories.set(last, rolling);
  }
}

interface Rolling {
  readonly items: readonly HistoryItem[];
  readonly size: number;
  readonly digest: string;
}
const NOTHING_SEEN: Rolling = Object.freeze({ items: [], size: 0, digest: '' });

/**
 * What was worked out about frozen items, for as long as somebody holds them: the next attempt of a conversation that is still in
 * memory does not begin from nothing. A history is found by its last item that is an object.
 */
interface Memory {
  readonly pictures: WeakMap<object, ItemPicture>;
  readonly histories: WeakMap<object, Rolling>;
}
const memories = new WeakMap<Digest, Memory>();

function memoryFor(digest: Digest): Memory {
  const known = memories.get(digest);
  if (known !== undefined) return known;
  const made = { pictures: new WeakMap(), histories: new WeakMap() };
  memories.set(digest, made);
  return made;
}

function lastSeen({ histories }: Memory, history: readonly HistoryItem[]): Rolling {
  for (let index = history.length - 1; index >= 0; index -= 1) {
    const item = history[index];
    const known = typeof item === 'object' && item !== null ? histories.get(item) : undefined;
    if (known !== undefined) return startsWith(history, known.items) ? known : NOTHING_SEEN;
  }
  return NOTHING_SEEN;
}

function lastObject(items: readonly HistoryItem[]): object | undefined {
  return items.findLast((item) => typeof item === 'object' && item !== null);
}

function startsWith(history: readonly HistoryItem[], beginning: readonly HistoryItem[]): boolean {
  return history.length >= beginning.length && beginning.every((item, index) => item === history[index]);
}

function toolNames(set: ToolSet): readonly string[] {
  return set.config?.tools.map((tool) => tool.name) ?? [];
}
