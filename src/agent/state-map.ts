import { deepFreeze, type JsonValue, jsonEquals, strictStringify } from './json.js';

/** The map that shims keep values in: `ShimState` (persisted, JSON only) and `RunContext` (one attempt, anything). */
export interface StateMap<V = unknown> {
  get<T extends V = V>(key: string): T | undefined;
  set(key: string, value: V): void;
  has(key: string): boolean;
  delete(key: string): boolean;
  keys(): IterableIterator<string>;
  entries(): IterableIterator<[string, V]>;
  toJSON(): Record<string, V>;
  /** Adds to a number (absent counts as 0) and returns the sum. @throws TypeError where something else is stored */
  increment(key: string, by?: number): number;
  appendToList(key: string, value: V): void;
  extendList(key: string, values: readonly V[]): void;
  /** Appends unless an equal value is in the list; false for a duplicate. */
  appendIfUnique(key: string, value: V): boolean;
}

/** Persisted state of all shims of a run, JSON only (R18). */
export type ShimState = StateMap<JsonValue>;
/** `transientState`: one map per attempt, shared by all shims, never persisted (R16). */
export type RunContext = StateMap;

/** What one change of a key leaves: its JSON, or undefined where it was deleted. */
export interface StateChange {
  readonly key: string;
  readonly json: string | undefined;
}

abstract class MapBase<V> implements StateMap<V> {
  abstract get<T extends V = V>(key: string): T | undefined;
  abstract set(key: string, value: V): void;
  abstract has(key: string): boolean;
  abstract delete(key: string): boolean;
  abstract keys(): IterableIterator<string>;
  abstract entries(): IterableIterator<[string, V]>;

  toJSON(): Record<string, V> {
    return Object.fromEntries(this.entries());
  }

  increment(key: string, by = 1): number {
    const current: unknown = this.get(key) ?? 0;
    if (typeof current !== 'number') throw new TypeError(`${JSON.stringify(key)} holds no number to add to.`);
    const sum = current + by;
    this.set(key, sum as V);
    return sum;
  }

  appendToList(key: string, value: V): void {
    this.extendList(key, [value]);
  }

  extendList(key: string, values: readonly V[]): void {
    this.set(key, [...this.#list(key), ...values] as V);
  }

  appendIfUnique(key: string, value: V): boolean {
    const list = this.#list(key);
    if (list.some((present) => jsonEquals(present, value))) return false;
    this.set(key, [...list, value] as V);
    return true;
  }

  #list(key: string): readonly V[] {
    const current: unknown = this.get(key) ?? [];
    if (!Array.isArray(current)) throw new TypeError(`${JSON.stringify(key)} holds no list to append to.`);
    return current as readonly V[];
  }
}

/** The plain map behind `transientState`. */
export class TransientState extends MapBase<unknown> {
  readonly #values = new Map<string, unknown>();

  get<T = unknown>(key: string): T | undefined {
    return this.#values.get(key) as T | undefined;
  }
  set(key: string, value: unknown): void {
    this.#values.set(key, value);
  }
  has(key: string): boolean {
    return this.#values.has(key);
  }
  delete(key: string): boolean {
    return this.#values.delete(key);
  }
  keys(): IterableIterator<string> {
    return this.#values.keys();
  }
  entries(): IterableIterator<[string, unknown]> {
    return this.#values.entries();
  }

  /** Back to this moment when a callback's writes are undone: which keys there are and what they hold. */
  snapshot(): () => void {
    const saved = [...this.#values];
    return () => {
      this.#values.clear();
      for (const [key, value] of saved) this.#values.set(key, value);
    };
  }
}

/**
 * The working copy of the persisted state. Objects read from it are live: a nested write counts, and is found by comparing
 * the JSON of each object that was handed out, so a state nobody touches costs nothing.
 */
export class LiveState extends MapBase<JsonValue> {
  readonly #values = new Map<string, JsonValue>();
  readonly #json = new Map<string, string>();
  readonly #touched = new Set<string>();
  readonly #exposed = new Set<string>();

  /** @param saved the JSON of each key, as stored */
  constructor(saved: Iterable<readonly [string, string]> = []) {
    super();
    for (const [key, json] of saved) {
      this.#json.set(key, json);
      this.#values.set(key, JSON.parse(json) as JsonValue);
    }
  }

  get<T extends JsonValue = JsonValue>(key: string): T | undefined {
    const value = this.#values.get(key);
    if (typeof value === 'object' && value !== null) this.#exposed.add(key);
    return value as T | undefined;
  }
  set(key: string, value: JsonValue): void {
    strictStringify(value, `state.${key}`);
    this.#values.set(key, value);
    this.#touched.add(key);
    if (typeof value === 'object') this.#exposed.add(key);
  }
  has(key: string): boolean {
    return this.#values.has(key);
  }
  delete(key: string): boolean {
    this.#touched.add(key);
    return this.#values.delete(key);
  }
  keys(): IterableIterator<string> {
    return this.#values.keys();
  }
  *entries(): IterableIterator<[string, JsonValue]> {
    for (const [key, value] of this.#values) {
      if (typeof value === 'object' && value !== null) this.#exposed.add(key);
      yield [key, value];
    }
  }

  /** What changed since the last call, nested writes included. @throws NotJsonError naming the path */
  takeChanges(): StateChange[] {
    if (this.#touched.size === 0 && this.#exposed.size === 0) return [];
    const changes: StateChange[] = [];
    for (const key of new Set([...this.#touched, ...this.#exposed])) {
      const value = this.#values.get(key);
      const json = value === undefined ? undefined : strictStringify(value, `state.${key}`);
      if (json === this.#json.get(key)) continue;
      if (json === undefined) this.#json.delete(key);
      else this.#json.set(key, json);
      changes.push({ key, json });
    }
    this.#touched.clear();
    return changes;
  }

  /** The JSON of every key as of the last `takeChanges`; a live view. */
  saved(): ReadonlyMap<string, string> {
    return this.#json;
  }

  /** The state as it is now, for readers: later writes do not reach it, and it takes none itself. */
  frozen(): ReadOnlyState {
    const copy = new LiveState([...this.#values].map(([key, value]) => [key, JSON.stringify(value)] as const));
    return new ReadOnlyState(() => copy);
  }

  /** A copy of one value, for readers that must not write. */
  peek(key: string): JsonValue | undefined {
    const value = this.#values.get(key);
    return value === undefined ? undefined : (JSON.parse(JSON.stringify(value)) as JsonValue);
  }
}

/** A view that asks before every write; the state behind it can be exchanged. */
export class GuardedState<V> extends MapBase<V> {
  readonly #target: () => StateMap<V>;
  readonly #beforeWrite: () => void;

  constructor(target: () => StateMap<V>, beforeWrite: () => void) {
    super();
    this.#target = target;
    this.#beforeWrite = beforeWrite;
  }
  get<T extends V = V>(key: string): T | undefined {
    return this.#target().get<T>(key);
  }
  set(key: string, value: V): void {
    this.#beforeWrite();
    this.#target().set(key, value);
  }
  has(key: string): boolean {
    return this.#target().has(key);
  }
  delete(key: string): boolean {
    this.#beforeWrite();
    return this.#target().delete(key);
  }
  keys(): IterableIterator<string> {
    return this.#target().keys();
  }
  entries(): IterableIterator<[string, V]> {
    return this.#target().entries();
  }
}

function refuseWrite(): never {
  throw new TypeError('This view of the state is read-only.');
}

/** What tools and results show (R20, R80): frozen copies of the values behind it; every write throws `TypeError`. */
export class ReadOnlyState extends MapBase<JsonValue> {
  readonly #target: () => LiveState;

  constructor(target: () => LiveState) {
    super();
    this.#target = target;
    Object.freeze(this);
  }
  get<T extends JsonValue = JsonValue>(key: string): T | undefined {
    return deepFreeze(this.#target().peek(key)) as T | undefined;
  }
  set(): never {
    return refuseWrite();
  }
  has(key: string): boolean {
    return this.#target().has(key);
  }
  delete(): never {
    return refuseWrite();
  }
  /** Also where nothing would be appended: a write is a write. */
  override appendIfUnique(): never {
    return refuseWrite();
  }
  keys(): IterableIterator<string> {
    return this.#target().keys();
  }
  *entries(): IterableIterator<[string, JsonValue]> {
    for (const key of this.#target().keys()) {
      const value = this.get(key);
      if (value !== undefined) yield [key, value];
    }
  }
}
