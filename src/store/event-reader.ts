import type { Database, Statement } from 'better-sqlite3';

/** Reads the events of runs from a connection of its own, in bounded pages, holding no transaction between them. */
export class EventReader {
  readonly #run: Statement;
  readonly #pages: Statement;
  readonly #newest: Statement;

  constructor(reader: Database) {
    this.#run = reader.prepare('SELECT n FROM runs WHERE id = ?').pluck();
    this.#pages = reader
      .prepare('SELECT first_seq, body FROM events WHERE run = ? AND last_seq > ? ORDER BY last_seq')
      .raw();
    this.#newest = reader
      .prepare('SELECT last_seq, body FROM events WHERE run = ? AND last_seq < ? ORDER BY last_seq DESC LIMIT 1')
      .raw();
  }

  /** The rows of a run's log, newest first. */
  *newest(runId: string): Generator<{ readonly lastSeq: number; readonly lines: readonly string[] }, void> {
    const n = this.#run.get(runId) as number | undefined;
    for (let before = Number.MAX_SAFE_INTEGER; n !== undefined; ) {
      const row = this.#newest.get(n, before) as [number, string] | undefined;
      if (row === undefined) return;
      [before] = row;
      yield { lastSeq: before, lines: row[1].split('\n') };
    }
  }

  /** JSON lines of the events after a cursor: whole rows until the bytes are reached, at least one. */
  lines(runId: string, after: number, maxBytes: number): readonly string[] {
    const n = this.#run.get(runId) as number | undefined;
    if (n === undefined) return [];
    const lines: string[] = [];
    let bytes = 0;
    for (const [firstSeq, body] of this.#pages.iterate(n, after) as IterableIterator<[number, string]>) {
      const all = body.split('\n');
      for (const line of firstSeq > after ? all : all.slice(after - firstSeq + 1)) lines.push(line);
      bytes += body.length;
      if (bytes >= maxBytes) break;
    }
    return lines;
  }
}
