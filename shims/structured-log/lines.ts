import { createHash } from 'node:crypto';
import type { RunEvent } from 'shimline/shims';

export type Fields = Readonly<Record<string, unknown>>;

/** Many, and nothing that the events around them do not tell. */
const LEFT_OUT: ReadonlySet<string> = new Set(['model.delta', 'tool.progress']);

/** Names, ids, counts, times and digests: told as they are. Whatever is not named here is told by its size and digest only. */
const PLAIN: ReadonlySet<string> = new Set([
  'agent',
  'after',
  'before',
  'boundary',
  'callback',
  'childRunId',
  'delayMs',
  'finishReason',
  'from',
  'idempotencyKey',
  'kind',
  'model',
  'modelCallId',
  'ms',
  'name',
  'ok',
  'parent',
  'providerFinishReason',
  'replaces',
  'responses',
  'retry',
  'root',
  'shim',
  'to',
  'toolCallId',
  'turnCount',
]);
/** Of a picture of the state: lengths and digests. */
const PICTURES: ReadonlySet<string> = new Set(['history', 'instructions', 'state']);
const LONGEST_NAME = 200;

/** The line of an event, without content unless it is asked for; undefined for events that have none. */
export function lineOf(event: RunEvent, options: { readonly content: boolean }): Fields | undefined {
  const { type, turn, ...fields } = event;
  if (LEFT_OUT.has(type)) return undefined;
  const line: Record<string, unknown> = { type, ...(turn === undefined ? {} : { turn }) };
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined && value !== null) line[name] = told(type, name, value, options.content);
  }
  return line;
}

function told(type: string, name: string, value: unknown, content: boolean): unknown {
  if (PLAIN.has(name) && typeof value !== 'object') return short(value);
  if (name === 'usage' || (type === 'state.snapshot' && PICTURES.has(name))) return value;
  if (name === 'error') return failure(value as Fields, content);
  if (name === 'changes' && Array.isArray(value)) return value.map((change: Fields) => changed(change, content));
  if (name === 'interruptions' && Array.isArray(value)) return value.map(wait);
  if (name === 'interruption') return wait(value as Fields);
  return picture(value, content);
}

function short(value: unknown): unknown {
  return typeof value === 'string' ? value.slice(0, LONGEST_NAME) : value;
}

/** How large something is, and a digest to compare it by; itself only where contents are to be logged. */
function picture(value: unknown, content: boolean): Fields {
  const json = typeof value === 'string' ? value : value === undefined ? '' : JSON.stringify(value);
  const digest = createHash('sha256').update(json).digest('hex').slice(0, 16);
  return { size: Buffer.byteLength(json), digest, ...(content ? { value } : {}) };
}

/** A message may say anything; what kind of failure it was does not. */
function failure(error: Fields, content: boolean): Fields {
  const { code, kind, status, shim, phase, message } = error;
  const plain = Object.entries({ code, kind, status, shim, phase }).filter(([, value]) => value !== undefined);
  return {
    ...Object.fromEntries(plain.map(([name, value]) => [name, short(value)])),
    message: picture(message, content),
  };
}

/** What a shim changed: sizes and digests are there already; texts, and keys that may be made of texts, are not for the log. */
function changed(change: Fields, content: boolean): Fields {
  const { diff, key, ...rest } = change;
  return {
    ...rest,
    ...(typeof key === 'string' ? { key: content ? key : key.split(':')[0] } : {}),
    ...(content && diff !== undefined ? { diff } : {}),
  };
}

function wait({ id, reason, toolCallId, tool, expiresAt }: Fields): Fields {
  return { id, reason, toolCallId, tool: short(tool), expiresAt };
}
