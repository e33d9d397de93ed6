/** A value that survives `JSON.stringify` and `JSON.parse` unchanged. */
export type JsonValue =
  | string
  | number
  | boolean
  | null
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue | undefined };

/** A value that JSON cannot hold: names the path, so that an author finds the line. */
export class NotJsonError extends TypeError {
  readonly path: string;
  constructor(path: string, found: string) {
    super(`${path} is ${found}, which JSON cannot hold.`);
    this.name = 'NotJsonError';
    this.path = path;
  }
}

/**
 * Serialises what JSON holds faithfully and refuses the rest: `undefined`, functions, symbols, BigInt, `NaN`, infinities,
 * cycles and instances of classes (a `Map` or `Date` would be silently emptied or changed).
 *
 * @param root how the value is called in the error's path, e.g. `state.visits`
 * @throws NotJsonError
 */
export function strictStringify(value: unknown, root: string): string {
  assertJson(value, root, new Set());
  return JSON.stringify(value);
}

function assertJson(value: unknown, path: string, ancestors: Set<object>): void {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return;
    case 'number':
      if (!Number.isFinite(value)) throw new NotJsonError(path, String(value));
      return;
    case 'object':
      break;
    case 'undefined':
    case 'function':
    case 'symbol':
    case 'bigint':
      throw new NotJsonError(path, typeof value);
  }
  if (value === null) return;
  const node: object = value;
  if (ancestors.has(node)) throw new NotJsonError(path, 'a cycle');
  ancestors.add(node);
  if (Array.isArray(node)) {
    for (let index = 0; index < node.length; index += 1) assertJson(node[index], `${path}[${index}]`, ancestors);
  } else {
    const prototype: unknown = Object.getPrototypeOf(node);
    if (prototype !== Object.prototype && prototype !== null) {
      throw new NotJsonError(path, `a ${node.constructor.name}`);
    }
    for (const [key, child] of Object.entries(node)) assertJson(child, `${path}.${key}`, ancestors);
  }
  ancestors.delete(node);
}

/** @throws NotJsonError for what `strictStringify` refuses */
export function checkJson(value: unknown, root: string): void {
  assertJson(value, root, new Set());
}

/** Freezes an object and everything in it; returns it. */
export function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    for (const child of Object.values(value)) deepFreeze(child);
  }
  return value;
}

export function isDeepFrozen(value: unknown): boolean {
  return (
    typeof value !== 'object' || value === null || (Object.isFrozen(value) && Object.values(value).every(isDeepFrozen))
  );
}

/** A frozen deep copy that shares nothing with the caller's object. @throws NotJsonError */
export function frozenCopy<T>(value: T, root: string): T {
  if (typeof value !== 'object' || value === null) {
    assertJson(value, root, new Set());
    return value;
  }
  return deepFreeze(JSON.parse(strictStringify(value, root)) as T);
}

/** Equal as JSON documents, whatever the order of keys. */
export function jsonEquals(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  if (keys.length !== Object.keys(b).length) return false;
  return keys.every(
    (key) => key in b && jsonEquals((a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key]),
  );
}

/**
 * Cuts a text to at most `limit` UTF-16 units without splitting a surrogate pair (a lone half makes a request
 * unsendable), and mends halves that were there before.
 */
export function cutText(text: string, limit: number): string {
  if (text.length <= limit) return text.toWellFormed();
  const last = text.charCodeAt(limit - 1);
  const splitsPair = last >= 0xd800 && last <= 0xdbff;
  return text.slice(0, splitsPair ? limit - 1 : limit).toWellFormed();
}

/** A copy in which every string is well-formed Unicode: a lone surrogate becomes U+FFFD. The value itself when nothing was wrong. */
export function wellFormed<T extends JsonValue | undefined>(value: T): T {
  if (typeof value === 'string') return (value.isWellFormed() ? value : value.toWellFormed()) as T;
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    const mended = value.map((child: JsonValue) => wellFormed(child));
    return (mended.every((child, index) => child === value[index]) ? value : mended) as T;
  }
  const entries = Object.entries(value) as [string, JsonValue | undefined][];
  const mended = entries.map(([key, child]) => [wellFormed(key), wellFormed(child)] as const);
  return mended.every(([key, child], index) => key === entries[index]?.[0] && child === entries[index][1])
    ? value
    : (Object.fromEntries(mended) as T);
}
