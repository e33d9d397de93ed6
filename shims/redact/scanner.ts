/** A stretch of a text that grows: what is behind `from` is settled, and kept only as far as detectors look back. */
export interface View {
  readonly text: string;
  /** Where `text` begins in the whole. */
  readonly base: number;
  /** Nothing follows. */
  readonly whole: boolean;
  /** Where, in `text`, the line of a position begins; below 0 where that is behind it. */
  lineStart(at: number): number;
}

export interface Detector {
  readonly entity: string;
  /**
   * The length of what begins at a position, 0 for nothing, undefined where that depends on what follows. It may look at no more
   * than `lookBehind` characters before the position, so that the answer is the same however the text came.
   */
  at(view: View, at: number): number | undefined;
}

export interface Found {
  readonly entities: readonly string[];
  readonly value: string;
}

interface Stretch {
  readonly end: number;
  readonly entities: readonly string[];
}

/** What is put in the place of something found. A throw refuses the whole text. */
export type Replace = (found: Found) => string;

/**
 * Replaces what detectors find, from left to right, in a text that may come in pieces: any cutting gives the same as the whole.
 * What could be the beginning of something is held back until that is settled.
 */
export class Scanner {
  readonly #detectors: readonly Detector[];
  readonly #marks: Detector;
  readonly #replace: Replace;
  readonly #lookBehind: number;
  #text = '';
  #from = 0;
  #base = 0;
  #lineStart = 0;

  /** @param options.marks finds what is passed over: what stands there was redacted before */
  constructor(options: {
    readonly detectors: readonly Detector[];
    readonly marks: Detector;
    readonly replace: Replace;
    readonly lookBehind: number;
  }) {
    this.#detectors = options.detectors;
    this.#marks = options.marks;
    this.#replace = options.replace;
    this.#lookBehind = options.lookBehind;
  }

  /** What can be shown now that this text has come. */
  push(text: string): string {
    this.#text += text;
    const shown = this.#scan(false);
    this.#forget();
    return shown;
  }

  /** The rest: nothing follows. */
  end(): string {
    return this.#scan(true);
  }

  #scan(whole: boolean): string {
    const text = this.#text;
    const view: View = { text, base: this.#base, whole, lineStart: () => this.#lineStart - this.#base };
    let shown = '';
    let plainFrom = this.#from;
    let at = this.#from;
    while (at < text.length) {
      const mark = this.#marks.at(view, at);
      const found = mark === 0 ? this.#find(view, at) : mark;
      if (found === undefined) break;
      if (typeof found === 'number') {
        at += found;
      } else if (found === 'nothing') {
        at += isPair(text, at) ? 2 : 1;
      } else {
        const value = text.slice(at, found.end);
        shown += text.slice(plainFrom, at) + this.#replace({ entities: found.entities, value });
        plainFrom = found.end;
        at = found.end;
      }
      const previous = text.charCodeAt(at - 1);
      if (previous === 10 || previous === 13) this.#lineStart = this.#base + at;
    }
    this.#from = at;
    return shown + text.slice(plainFrom, at);
  }

  /** The longest of what begins here, together with all that overlaps it: nothing is left of what stands half inside. */
  #find(view: View, at: number): Stretch | 'nothing' | undefined {
    const first = this.#longest(view, at);
    if (first === undefined || first === 'nothing') return first;
    const entities = [...first.entities];
    let { end } = first;
    for (let inside = at + 1; inside < end; inside += 1) {
      const next = this.#longest(view, inside);
      if (next === undefined) return undefined;
      if (next === 'nothing') continue;
      entities.push(...next.entities);
      end = Math.max(end, next.end);
    }
    return { end, entities: [...new Set(entities)] };
  }

  #longest(view: View, at: number): Stretch | 'nothing' | undefined {
    let length = 0;
    let entity = '';
    for (const detector of this.#detectors) {
      const found = detector.at(view, at);
      if (found === undefined) return undefined;
      if (found <= length) continue;
      length = found;
      ({ entity } = detector);
    }
    return length === 0 ? 'nothing' : { end: at + length, entities: [entity] };
  }

  #forget(): void {
    const keep = Math.max(0, this.#from - this.#lookBehind);
    this.#text = this.#text.slice(keep);
    this.#from -= keep;
    this.#base += keep;
  }
}

function isPair(text: string, at: number): boolean {
  const first = text.charCodeAt(at);
  const second = text.charCodeAt(at + 1);
  return first >= 0xd800 && first <= 0xdbff && second >= 0xdc00 && second <= 0xdfff;
}
