import { InvalidCursorError, ValidationError } from '../errors.js';

/** Longest `Prefer: wait`, in seconds; a longer wish is cut to it, and `Preference-Applied` says so. */
export const MAX_WAIT_SECONDS = 600;

/** A longer header is no honest preference, and reading hostile quotes takes time by the square of their number. */
const MAX_PREFER_LENGTH = 1000;

type HeaderValue = string | readonly string[] | undefined;

/**
 * Whether `Accept` asks for the event stream: it must name `text/event-stream`, and `application/json` not be liked better
 * (a higher q, or named first at the same q). Wildcards ask for nothing in particular, which is JSON.
 */
export function wantsEventStream(accept: string | undefined): boolean {
  if (accept === undefined || !/event-stream/i.test(accept)) return false;
  const ranges = accept.split(',').map(mediaRange);
  const stream = ranges.findIndex(({ type }) => type === 'text/event-stream');
  const json = ranges.findIndex(({ type }) => type === 'application/json');
  const streamQ = ranges[stream]?.q ?? 0;
  const jsonQ = ranges[json]?.q ?? 0;
  if (streamQ === 0) return false;
  return json < 0 || streamQ > jsonQ || (streamQ === jsonQ && stream < json);
}

function mediaRange(range: string): { readonly type: string; readonly q: number } {
  const [type = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase());
  const weight = parameters.find((parameter) => /^q\s*=/.test(parameter));
  const q = weight === undefined ? 1 : Number(weight.slice(weight.indexOf('=') + 1));
  return { type, q: Number.isNaN(q) ? 1 : q };
}

/** One preference of RFC 7240: a token, perhaps with a word, perhaps with parameters. */
const PREFERENCE =
  /^\s*([!#$%&'*+.^_`|~0-9a-z-]+)\s*(?:=\s*(?:"((?:[^"\\]|\\.)*)"|([!#$%&'*+.^_`|~0-9a-z-]*)))?\s*(?:;.*)?$/is;

/** The seconds of `Prefer: wait`, capped; `undefined` when there is none that can be read. The first one counts (RFC 7240, section 2). */
export function preferredWait(prefer: HeaderValue): number | undefined {
  if (prefer === undefined) return undefined;
  const header = typeof prefer === 'string' ? prefer : prefer.join(',');
  if (header.length > MAX_PREFER_LENGTH) return undefined;
  for (const preference of splitOutsideQuotes(header)) {
    const [, name, quoted, token] = PREFERENCE.exec(preference) ?? [];
    if (name?.toLowerCase() !== 'wait') continue;
    const value = quoted ?? token ?? '';
    if (!/^\d+$/.test(value)) return undefined;
    return Math.min(Number(value), MAX_WAIT_SECONDS);
  }
  return undefined;
}

function splitOutsideQuotes(header: string): string[] {
  return header.match(/(?:"(?:[^"\\]|\\.)*"|[^,])+/gs) ?? [];
}

/** @throws ValidationError unless it is 1 to 255 printable ASCII characters */
export function idempotencyKey(value: HeaderValue): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value === 'string' && /^[\x20-\x7e]{1,255}$/.test(value)) return value;
  throw headerFault('idempotency-key', 'must be 1 to 255 printable ASCII characters');
}

/**
 * The version that `If-Match` names, without its quotes; `undefined` for none, and for `*`, which every run that exists matches.
 * @throws ValidationError for a list of versions
 */
export function ifMatch(value: string | undefined): string | undefined {
  const version = value?.trim();
  if (version === undefined || version === '*') return undefined;
  const bare = /^"([^",]*)"$/.exec(version)?.[1] ?? version;
  if (bare === '' || /[\s,]/.test(bare)) throw headerFault('if-match', 'must be one version, as ETag gives it, or *');
  return bare;
}

/**
 * The seq after which events are wanted: `Last-Event-ID`, else `?after=`, else 0.
 * @throws InvalidCursorError for what is no whole number
 */
export function eventCursor(lastEventId: HeaderValue, after: string | undefined): number {
  const cursor = lastEventId ?? after;
  if (cursor === undefined) return 0;
  const source = lastEventId === undefined ? '?after=' : 'Last-Event-ID';
  if (typeof cursor === 'string' && /^\d+$/.test(cursor) && Number.isSafeInteger(Number(cursor))) return Number(cursor);
  throw new InvalidCursorError({ detail: `${source} must be the seq of an event: a whole number in digits.` });
}

function headerFault(name: string, message: string): ValidationError {
  return new ValidationError(`The header ${name} is not valid.`, [{ pointer: `/headers/${name}`, message }]);
}
