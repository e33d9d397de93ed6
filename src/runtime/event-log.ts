import { type EventBatch, eventsOf, type StoredEvent } from '../agent/event-frames.js';
import { ENDING_TYPES, type LifecycleEvent, LifecycleEventSchema } from '../agent/events.js';
import type { EventReader, LogPage } from '../store/event-reader.js';

export interface Watcher {
  /** A batch was committed; it is a hint and the bytes for whoever is up to date, the log is the truth. */
  onBatch(batch: EventBatch): void;
  /** What `onBatch` threw, e.g. that the log cannot be read now. */
  onFault(error: unknown): void;
}

/** Bytes of a page that is read from the log and sent at once, so that a slow reader costs little. */
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
    if (watchers === undefined || batch.frames === '') return;
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

  /** Committed events after a cursor: at least one if there is any, else about 256 KiB, up to the end of an attempt. */
  page(runId: string, after: number): LogPage | undefined {
    return this.#reader.page(runId, after, PAGE_BYTES);
  }

  /** The seq of a run's newest event of a type. */
  lastSeqOf(runId: string, type: string): number | undefined {
    for (const { lastSeq, frames } of this.#reader.newest(runId)) {
      const events = eventsOf(frames);
      const at = events.findLastIndex((event) => event.type === type);
      if (at >= 0) return lastSeq - events.length + 1 + at;
    }
    return undefined;
  }

  /** The events after a cursor, page by page. */
  *stored(runId: string, after: number): Generator<StoredEvent, void> {
    for (let page = this.page(runId, after); page !== undefined; page = this.page(runId, page.lastSeq))
      yield* eventsOf(page.frames.toString());
  }

  readEvents(runId: string, after: number, limit: number): LifecycleEvent[] {
    const events: LifecycleEvent[] = [];
    for (const { json } of this.stored(runId, after)) {
      events.push(LifecycleEventSchema.parse(JSON.parse(json)));
      if (events.length === limit) break;
    }
    return events;
  }

  get watcherCount(): number {
    let count = 0;
    for (const watchers of this.#watchers.values()) count += watchers.size;
    return count;
  }
}

/** Whether a stream that ends with the attempt, or with the run, ends after this event. */
export function endsAfter(type: string, endsAt: 'attempt' | 'run'): boolean {
  return ENDING_TYPES.has(type) && (endsAt === 'attempt' || type !== 'run.waiting');
}
