import { headOf, likeness } from './text.js';

const MOST_LINES = 50_000;
const MOST_CANDIDATES = 20;
const MOST_LINE_CHARS = 400;
const MOST_SHOWN_CHARS = 2000;

/** Where a file holds something like the text that was looked for and not found, as a sentence; empty where nothing is like it. */
export function nearestPlace(text: string, search: string): string {
  const lines = text.split('\n', MOST_LINES).map((line) => line.replace(/\r$/, ''));
  const wanted = search
    .replace(/\n$/, '')
    .split('\n')
    .map((line) => line.replace(/\r$/, ''));
  const anchor = wanted.reduce(
    (best, line, index) => (line.trim().length > (wanted[best]?.trim().length ?? 0) ? index : best),
    0,
  );
  const anchorLine = cut(wanted[anchor] ?? '');
  const candidates = lines
    .map((line, index) => ({ first: index - anchor, score: alike(cut(line), anchorLine) }))
    .filter(({ first, score }) => score >= 0.4 && first > -wanted.length)
    .sort((one, other) => other.score - one.score)
    .slice(0, MOST_CANDIDATES);
  let best: { readonly first: number; readonly score: number } | undefined;
  for (const { first } of candidates) {
    const score =
      wanted.reduce((sum, line, index) => sum + alike(cut(lines[first + index] ?? ''), cut(line)), 0) / wanted.length;
    if (score >= 0.5 && score > (best?.score ?? 0)) best = { first, score };
  }
  if (best === undefined) return '';
  const from = Math.max(0, best.first);
  const to = Math.min(lines.length, best.first + wanted.length);
  const there = lines.slice(from, to);
  const spaces = there.map(plain).join('\n') === wanted.map(plain).join('\n') ? ' (it differs in spaces only)' : '';
  const where = to - from === 1 ? `line ${from + 1}` : `lines ${from + 1} to ${to}`;
  const shown = there.join('\n');
  const kept = headOf(shown, MOST_SHOWN_CHARS);
  return ` The nearest is ${where}${spaces}:\n${kept}${kept.length < shown.length ? '…' : ''}`;
}

function cut(line: string): string {
  return headOf(line, MOST_LINE_CHARS);
}

function plain(line: string): string {
  return line.replace(/\s+/g, ' ').trim();
}

/** Lines that differ in spaces only are nearly the same. */
function alike(one: string, other: string): number {
  if (one === other) return 1;
  return plain(one) === plain(other) ? 0.95 : 0.9 * likeness(one.trim(), other.trim());
}
