import { RE2JS } from 're2js';
import type { Detector, View } from './scanner.js';

/**
 * A pattern of the agent's own. RE2 takes time in proportion to the text, whatever the pattern; what it cannot do (backreferences,
 * look-around) is refused.
 * @throws RE2JSSyntaxException
 */
export function compilePattern(pattern: string, ignoreCase: boolean): RE2JS {
  return RE2JS.compile(pattern, ignoreCase ? RE2JS.CASE_INSENSITIVE : 0);
}

/** How much of a line is looked at together for a match that begins in one block of it. */
function patternReach(length: number): number {
  return 2 * length + 1;
}

/**
 * Finds the pattern within lines. A line is read in blocks of `length` characters, each with as many again behind it: so a match
 * of up to `length` characters is found wherever it stands, and the answer does not depend on how the text came.
 */
export function patternDetector(entity: string, pattern: RE2JS, length: number): Detector {
  // The next match of the block that was looked at last, in positions of the whole text.
  let next = { block: -1, from: 0, start: 0, end: 0 };
  return {
    entity,
    at(view, at) {
      const lineStart = view.lineStart(at);
      const block = at - ((at - lineStart) % length);
      const { base, text } = view;
      const known = next.block === base + block && next.from <= base + at && base + at <= next.start;
      if (!known) {
        const line = text.slice(at, block + patternReach(length)).search(/[\n\r]/);
        const end = line === -1 ? block + patternReach(length) : at + line;
        if (end > text.length && !view.whole) return undefined;
        next = search(pattern, view, { block, at, lineStart, end: Math.min(end, text.length) });
      }
      return next.start === base + at ? next.end - next.start : 0;
    },
  };
}

function search(
  pattern: RE2JS,
  { text, base }: View,
  {
    block,
    at,
    lineStart,
    end,
  }: { readonly block: number; readonly at: number; readonly lineStart: number; readonly end: number },
): { readonly block: number; readonly from: number; readonly start: number; readonly end: number } {
  // One character before the block, for what depends on it (`\b`, `^`).
  const first = Math.max(lineStart, block - 1, 0);
  const matcher = pattern.matcher(text.slice(first, end));
  for (let from = at - first; from <= end - first && matcher.find(from); ) {
    const [start, stop] = [matcher.start(), matcher.end()];
    if (stop > start)
      return { block: base + block, from: base + at, start: base + first + start, end: base + first + stop };
    from = start + 1;
  }
  return { block: base + block, from: base + at, start: Number.POSITIVE_INFINITY, end: Number.POSITIVE_INFINITY };
}
