/**
 * Events in the form in which they are stored and sent: frames of server-sent events (WHATWG HTML, 9.2), so that a log is replayed
 * as it was written. JSON text has no raw line break, so a frame ends at the first blank line, whatever the model wrote into it.
 */

/** Events of one run as they were committed together, contiguous. */
export interface EventBatch {
  readonly firstSeq: number;
  readonly lastSeq: number;
  /** Empty where there is no event. */
  readonly frames: string;
}

const BLANK_LINE = '\n\n';
const TYPE = '\nevent: ';
const DATA = '\ndata: ';

/** @param lines events as JSON without the opening brace and the seq, beginning with their type */
export function framed(lines: readonly string[], lastSeq: number): EventBatch {
  const firstSeq = lastSeq - lines.length + 1;
  let frames = '';
  let seq = firstSeq;
  for (const line of lines) {
    const type = line.slice(TYPE_AT, line.indexOf('"', TYPE_AT));
    frames += `id: ${seq}${TYPE}${type}${DATA}{"seq":${seq},${line}${BLANK_LINE}`;
    seq += 1;
  }
  return { firstSeq, lastSeq, frames };
}

const TYPE_AT = '"type":"'.length;

/** One event of stored frames. */
export interface StoredEvent {
  readonly type: string;
  /** The event as JSON. */
  readonly json: string;
}

/** The events of whole frames, in order. */
export function eventsOf(frames: string): StoredEvent[] {
  return frames.split(BLANK_LINE).slice(0, -1).map(storedEvent);
}

function storedEvent(frame: string): StoredEvent {
  const type = frame.indexOf(TYPE) + TYPE.length;
  const data = frame.indexOf(DATA, type);
  return { type: frame.slice(type, data), json: frame.slice(data + DATA.length) };
}

/** Where the last of whole frames begins. */
export function lastFrameAt(frames: string): number {
  const before = frames.lastIndexOf(BLANK_LINE, frames.length - BLANK_LINE.length - 1);
  return before < 0 ? 0 : before + BLANK_LINE.length;
}

/** The type of the last of whole frames; empty where there is none. */
export function lastTypeOf(frames: string): string {
  return frames === '' ? '' : storedEvent(frames.slice(lastFrameAt(frames), -BLANK_LINE.length)).type;
}
