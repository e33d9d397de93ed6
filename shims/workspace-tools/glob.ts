import ignore, { type Ignore } from 'ignore';
import picomatch from 'picomatch';
import { Refusal } from './refusal.js';

/** Patterns are made into regular expressions, which take for ever with many stars: what a model writes is bounded. */
const MOST_CHARS = 300;
const MOST_STARS = 4;

function isBounded(pattern: string): boolean {
  if (pattern.length > MOST_CHARS) return false;
  const segments = pattern.split('/');
  const deep = segments.filter((segment) => /^\*\*+$/.test(segment)).length;
  return deep <= MOST_STARS && segments.every((segment) => (segment.match(/\*+/g) ?? []).length <= MOST_STARS);
}

/** A glob of a call: one without a slash is matched with names, in whatever folder. @throws Refusal */
export function globMatcher(pattern: string): (path: string) => boolean {
  const trimmed = pattern.replace(/^(?:\.?\/)+/, '');
  if (!isBounded(trimmed) || (trimmed.match(/[{,]/g) ?? []).length > 30)
    throw new Refusal('bad_pattern', `The pattern ${pattern} has too many wildcards. Use a simpler one.`);
  try {
    const matches = picomatch(trimmed, { dot: true, noext: true, basename: !trimmed.includes('/') });
    return (path) => matches(path);
  } catch (error) {
    throw new Refusal(
      'bad_pattern',
      `The pattern ${pattern} is not a glob: ${error instanceof Error ? error.message : ''}`,
    );
  }
}

/** The rules of one .gitignore; a line that could take for ever is left out. */
export function ignoreRules(text: string): Ignore {
  return ignore({ ignorecase: false }).add(text.split(/\r?\n/).filter(isBounded));
}
