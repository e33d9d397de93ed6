import { headOf, Likeness } from './text.js';

/** What is looked at, so that a failed patch of a large file does not hold up the server. */
const MOST_LINES = 20_000;
const MOST_CANDIDATES = 20;
const MOST_WANTED_LINES = 200;
const MOST_LINE_CHARS = 300;
const MOST_SHOWN_CHARS = 2000;

/** Where a file holds something like the text that was looked for and not found, as a sentence; empty where nothing is like it. */
export function nearestPlace(text: string, search: string): string {
  const lines = text.split('\n', MOST_LINES);
  const wanted = search.replace(/\n$/, '').split('\n', MOST_WANTED_LINES).map(compared);
  const anchor = longestOf(wanted);
  const likeness = wanted.map((line) => new Likeness(line));
  const alike = (index: number, at: number): number => likeness[index]?.of(compared(lines[at] ?? '')) ?? 0;
  const candidates = lines
    .map((_, at) => ({ first: at - anchor, score: alike(anchor, at) }))
    .filter(({ score }) => score >= 0.4)
    .sort((one, other) => other.score - one.score)
    .slice(0, MOST_CANDIDATES);
  let best: { readonly first: number; readonly score: number } | undefined;
  for (const { first } of candidates) {
    const score = wanted.reduce((sum, _, index) => sum + alike(index, first + index), 0) / wanted.length;
    if (score >= 0.5 && score > (best?.score ?? 0)) best = { first, score };
  }
  if (best === undefined) return '';
  const from = Math.max(0, best.first);
  const to = Math.min(lines.length, best.first + wanted.length);
  const there = lines.slice(from, to).map((line) => line.replace(/\r$/, ''));
  const spaces = there.map(compared).join('\n') === wanted.join('\n') ? ' (it differs in spaces only)' : '';
  const where = to - from === 1 ? `line ${from + 1}` : `lines ${from + 1} to ${to}`;
  const shown = there.join('\n');
  const kept = headOf(shown, MOST_SHOWN_CHARS);
  return ` The nearest is ${where}${spaces}:\n${kept}${kept.length < shown.length ? '…' : ''}`;
}

/** A line as it is compared: without regard to spaces. */
function compared(line: string): string {
  return headOf(line, MOST_LINE_CHARS).replace(/\s+/g, ' ').trim();
}

function longestOf(lines: readonly string[]): number {
  return lines.reduce((best, line, index) => (line.length > (lines[best]?.length ?? 0) ? index : best), 0);
}
