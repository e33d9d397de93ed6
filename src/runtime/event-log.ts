import { ENDING_TYPES, type LifecycleEvent, LifecycleEventSchema } from '../agent/events.js';
import type { EventReader } from '../store/event-reader.js';

/** Events of one run as they were committed together: JSON lines, contiguous. */
export interface EventBatch {
  readonly firstSeq: number;
  readonly lines: readonly string[];
}

export interface Watcher {
  /** A batch was committed; it is a hint and the bytes for whoever is up to date, the log is the truth. */
  onBatch(batch: EventBatch): void;
  /** What `onBatch` threw, e.g. that the log cannot be read now. */
  onFault(error: unknown): void;
}

/** Bytes of a page that is read from the log at once, so that a slow reader costs little. */
const PAGE_BYTES = 262_144;

/**
 * Cursors over the runs' logs. A watcher subscribes first and reads the log from its cursor second, so nothing can fall between;
 * what it gets live is used only where it continues its cursor exactly.
 */
export class EventLog {
  readonly #reader: EventReader;
  readonly #watchers = new Map<string, Set<Watcher>>();

  constructor(reader: EventReader) {
    this.#reader = reader;
  }

  /** Tells the watchers of a run what was just committed. */
  publish(runId: string, batch: EventBatch): void {
    const watchers = this.#watchers.get(runId);
    if (watchers === undefined || batch.lines.length === 0) return;
    for (const watcher of [...watchers]) {
      try {
        watcher.onBatch(batch);
      } catch (error) {
        // The commit stands whatever one watcher makes of it, and the others must hear of it.
        watcher.onFault(error);
      }
    }
  }

  /** @returns the way to stop watching */
  watch(runId: string, watcher: Watcher): () => void {
    const watchers = this.#watchers.get(runId) ?? new Set();
    this.#watchers.set(runId, watchers);
    watchers.add(watcher);
    return () => {
      watchers.delete(watcher);
      if (watchers.size === 0) this.#watchers.delete(runId);
    };
  }

  /** Committed events after a cursor, at least one if there is any, about 256 KiB at most. */
  readLines(runId: string, after: number): readonly string[] {
    return this.#reader.lines(runId, after, PAGE_BYTES);
  }

  /** The seq of a run's newest event of a type. */
  lastSeqOf(runId: string, type: string): number | undefined {
    for (const { lastSeq, lines } of this.#reader.newest(runId)) {
      const at = lines.findLastIndex((line) => typeOfLine(line) === type);
      if (at >= 0) return lastSeq - lines.length + 1 + at;
    }
    return undefined;
  }

  readEvents(runId: string, after: number, limit: number): LifecycleEvent[] {
    const events: LifecycleEvent[] = [];
    for (let cursor = after; events.length < limit; ) {
      const lines = this.#reader.lines(runId, cursor, PAGE_BYTES);
      if (lines.length === 0) break;
      for (const line of lines.slice(0, limit - events.length))
        events.push(LifecycleEventSchema.parse(JSON.parse(line)));
      cursor += lines.length;
    }
    return events;
  }

  get watcherCount(): number {
    let count = 0;
    for (const watchers of this.#watchers.values()) count += watchers.size;
    return count;
  }
}

const TYPE_AT = ',"type":"';

/** The type of a stored line, without parsing it: our own lines begin with `seq` and `type`. */
export function typeOfLine(line: string): string {
  const start = line.indexOf(TYPE_AT) + TYPE_AT.length;
  return line.slice(start, line.indexOf('"', start));
}

/** Whether a stream that ends with the attempt, or with the run, ends after this event. */
export function endsAfter(type: string, endsAt: 'attempt' | 'run'): boolean {
  return ENDING_TYPES.has(type) && (endsAt === 'attempt' || type !== 'run.waiting');
}
