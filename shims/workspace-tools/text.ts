import type { z } from 'shimline/shims';

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

/** For a text that becomes an argument or a variable of a program, which ends at the first NUL. */
export function withoutNul(text: z.ZodString): z.ZodString {
  return text.refine((value) => !value.includes('\0'), 'cannot hold the character NUL');
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

/** Tells how alike other texts are to one, from 0 to 1: by the pairs of neighbouring characters that both have. */
export class Likeness {
  readonly #text: string;
  /** The pairs of the text, with the number of the last comparison that met each. */
  readonly #pairs = new Map<number, number>();
  #comparison = 0;

  constructor(text: string) {
    this.#text = text;
    for (let at = 0; at + 1 < text.length; at += 1) this.#pairs.set(pairAt(text, at), 0);
  }

  of(other: string): number {
    if (other === this.#text) return 1;
    const most = Math.max(other.length, this.#text.length);
    // Texts of very different lengths are not alike; nor is one without pairs like anything.
    if (Math.min(other.length, this.#text.length) * 3 < most || this.#pairs.size === 0) return 0;
    this.#comparison += 1;
    let common = 0;
    let repeated = 0;
    for (let at = 0; at + 1 < other.length; at += 1) {
      const pair = pairAt(other, at);
      const last = this.#pairs.get(pair);
      if (last === undefined) continue;
      if (last === this.#comparison) repeated += 1;
      else {
        this.#pairs.set(pair, this.#comparison);
        common += 1;
      }
    }
    return Math.min(1, (2 * common) / (this.#pairs.size + Math.max(0, other.length - 1 - repeated)));
  }
}

function pairAt(text: string, at: number): number {
  return text.charCodeAt(at) * 65_536 + text.charCodeAt(at + 1);
}

/** The name most like another, if one is like it at all. */
export function nearestName(names: readonly string[], wanted: string): string | undefined {
  const likeness = new Likeness(wanted.toLowerCase());
  let best: { readonly name: string; readonly score: number } | undefined;
  for (const name of names) {
    const score = likeness.of(name.toLowerCase());
    if (score >= 0.5 && score > (best?.score ?? 0)) best = { name, score };
  }
  return best?.name;
}
