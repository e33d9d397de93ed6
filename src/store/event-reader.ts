import type { Database, Statement } from 'better-sqlite3';
import { lastTypeOf } from '../agent/event-frames.js';
import { ENDING_TYPES } from '../agent/events.js';

/** Frames of a run's log, contiguous, as bytes; they are sent as they were stored. */
export interface LogPage {
  readonly firstSeq: number;
  readonly lastSeq: number;
  readonly frames: Buffer;
  /** The type of the last event; an event that ends an attempt is always the last one of its page. */
  readonly lastType: string;
}

type PageRow = [firstSeq: number, lastSeq: number, frames: Buffer];

const FRAME_END = Buffer.from('\n\n');
/** The type of a row's last event is looked for in so many bytes of its end first. */
const TAIL_BYTES = 4096;

/** Reads the events of runs from a connection of its own, in bounded pages, holding no transaction between them. */
export class EventReader {
  readonly #run: Statement;
  readonly #rows: Statement;
  readonly #newest: Statement;

  constructor(reader: Database) {
    this.#run = reader.prepare('SELECT n FROM runs WHERE id = ?').pluck();
    this.#rows = reader
      .prepare(
        'SELECT first_seq, last_seq, CAST(frames AS BLOB) FROM events WHERE run = ? AND last_seq > ? ORDER BY last_seq',
      )
      .raw();
    this.#newest = reader
      .prepare('SELECT last_seq, frames FROM events WHERE run = ? AND last_seq < ? ORDER BY last_seq DESC LIMIT 1')
      .raw();
  }

  /** The rows of a run's log, newest first. */
  *newest(runId: string): Generator<{ readonly lastSeq: number; readonly frames: string }, void> {
    const n = this.#run.get(runId) as number | undefined;
    for (let before = Number.MAX_SAFE_INTEGER; n !== undefined; ) {
      const row = this.#newest.get(n, before) as [number, string] | undefined;
      if (row === undefined) return;
      [before] = row;
      yield { lastSeq: before, frames: row[1] };
    }
  }

  /** The events after a cursor: at least one if there is any, else about as many bytes as are asked for, up to the end of an attempt. */
  page(runId: string, after: number, maxBytes: number): LogPage | undefined {
    const n = this.#run.get(runId) as number | undefined;
    if (n === undefined) return undefined;
    const parts: Buffer[] = [];
    let bytes = 0;
    let first: number | undefined;
    let last = after;
    let lastType = '';
    for (const row of this.#rows.iterate(n, after) as IterableIterator<PageRow>) {
      const part = cut(row, { after, maxBytes: maxBytes - bytes, atLeastOne: parts.length === 0 });
      if (part.frames.length === 0) break;
      parts.push(part.frames);
      bytes += part.frames.length;
      first ??= part.firstSeq;
      last = part.lastSeq;
      lastType = lastTypeIn(part.frames);
      if (last < row[1] || bytes >= maxBytes || ENDING_TYPES.has(lastType)) break;
    }
    const [frames] = parts;
    if (frames === undefined || first === undefined) return undefined;
    return { firstSeq: first, lastSeq: last, frames: parts.length === 1 ? frames : Buffer.concat(parts), lastType };
  }
}

/** The frames of a row that come after the cursor, in so many bytes. */
function cut(
  [firstSeq, lastSeq, frames]: PageRow,
  want: { readonly after: number; readonly maxBytes: number; readonly atLeastOne: boolean },
): Pick<LogPage, 'firstSeq' | 'lastSeq' | 'frames'> {
  const from = Math.max(firstSeq, want.after + 1);
  const start = from === firstSeq ? 0 : frames.indexOf(`\nid: ${from}\n`) + 1;
  const rest = frames.subarray(start);
  if (rest.length <= want.maxBytes) return { firstSeq: from, lastSeq, frames: rest };
  let end = rest.lastIndexOf(FRAME_END, Math.max(0, want.maxBytes - FRAME_END.length));
  if (end < 0 && want.atLeastOne) end = rest.indexOf(FRAME_END);
  if (end < 0) return { firstSeq: from, lastSeq: from - 1, frames: rest.subarray(0, 0) };
  const kept = rest.subarray(0, end + FRAME_END.length);
  return { firstSeq: from, lastSeq: seqAfter(rest, kept.length, lastSeq) - 1, frames: kept };
}

/** The seq of the frame that begins at a place, or the one after the last. */
function seqAfter(frames: Buffer, at: number, lastSeq: number): number {
  if (at === frames.length) return lastSeq + 1;
  return Number(frames.toString('latin1', at + 'id: '.length, frames.indexOf('\n', at)));
}

function lastTypeIn(frames: Buffer): string {
  const tail = frames.subarray(-TAIL_BYTES);
  const whole = tail.length === frames.length || tail.lastIndexOf(FRAME_END, -FRAME_END.length - 1) >= 0;
  return lastTypeOf((whole ? tail : frames).toString());
}
