/** The first characters of a text, never half of a pair. */
export function headOf(text: string, length: number): string {
  if (text.length <= length) return text;
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? length - 1 : length);
}

/** The last characters of a text, never half of a pair. */
export function tailOf(text: string, length: number): string {
  if (text.length <= length) return text;
  const from = text.length - length;
  const first = text.charCodeAt(from);
  return text.slice(first >= 0xdc00 && first <= 0xdfff ? from + 1 : from);
}

/** Keeps the beginning and the end of a text that comes in pieces, and counts what is between. */
export class HeadAndTail {
  readonly #half: number;
  #head = '';
  #tail = '';
  #total = 0;

  constructor(limit: number) {
    this.#half = Math.floor(limit / 2);
  }

  push(text: string): void {
    this.#total += text.length;
    let rest = text;
    if (this.#tail === '' && this.#head.length < this.#half) {
      const kept = headOf(text, this.#half - this.#head.length);
      this.#head += kept;
      rest = text.slice(kept.length);
    }
    this.#tail += rest;
    if (this.#tail.length > 4 * this.#half) this.#tail = tailOf(this.#tail, this.#half);
  }

  /** The text, with a note of what was left out in its middle. */
  toString(): string {
    const tail = tailOf(this.#tail, this.#half);
    const left = this.#total - this.#head.length - tail.length;
    if (left === 0) return this.#head + tail;
    const note = `[${left} of ${this.#total} characters are left out here. To see them, have less printed at once, or write the output into a file and read that.]`;
    return `${this.#head}\n${note}\n${tail}`;
  }
}

/** How alike two texts are, from 0 to 1: the share of pairs of neighbouring characters that both have. */
export function likeness(one: string, other: string): number {
  if (one === other) return 1;
  if (one.length < 2 || other.length < 2) return 0;
  const pairs = new Map<string, number>();
  for (let at = 0; at + 1 < one.length; at += 1) {
    const pair = one.slice(at, at + 2);
    pairs.set(pair, (pairs.get(pair) ?? 0) + 1);
  }
  let common = 0;
  for (let at = 0; at + 1 < other.length; at += 1) {
    const pair = other.slice(at, at + 2);
    const left = pairs.get(pair) ?? 0;
    if (left === 0) continue;
    pairs.set(pair, left - 1);
    common += 1;
  }
  return (2 * common) / (one.length + other.length - 2);
}

/** The name most like another, if one is like it at all. */
export function nearestName(names: readonly string[], wanted: string): string | undefined {
  let best: { readonly name: string; readonly score: number } | undefined;
  for (const name of names) {
    const score = likeness(name.toLowerCase(), wanted.toLowerCase());
    if (score >= 0.5 && score > (best?.score ?? 0)) best = { name, score };
  }
  return best?.name;
}
