import type { Database, Statement } from 'better-sqlite3';
import type { Run, RunStatus } from '../agent/run.js';
import { type RunRow, RunRowSchema, runJson, runOf } from './run-rows.js';

export interface RunQuery {
  readonly owner: string;
  readonly agent?: string | undefined;
  readonly status?: RunStatus | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly createdAfterMs?: number | undefined;
  readonly createdBeforeMs?: number | undefined;
  readonly parent?: string | undefined;
  /** Runs older than this row. */
  readonly before?: number | undefined;
  readonly limit: number;
}

interface DocRow {
  readonly run: number;
  readonly kind: string;
  readonly body: string;
}

/** Reads runs as clients see them, from a connection of its own. */
export class RunReader {
  readonly #reader: Database;
  readonly #row: Statement;
  readonly #docs: Statement;

  constructor(reader: Database) {
    this.#reader = reader;
    this.#row = reader.prepare('SELECT * FROM runs WHERE id = ?');
    this.#docs = reader.prepare("SELECT kind, body FROM run_docs WHERE run = ? AND kind <> 'position'");
  }

  /** The row of a run, or undefined where there is none or it is another key's. */
  row(id: string, owner: string): RunRow | undefined {
    const row = this.#row.get(id) as RunRow | undefined;
    return row?.owner === owner ? row : undefined;
  }

  json(row: RunRow): string {
    return runJson(row, this.#docsOf(row.n));
  }

  run(row: RunRow): Run {
    return runOf(row, this.#docsOf(row.n));
  }

  #docsOf(n: number): Map<string, string> {
    return new Map((this.#docs.all(n) as DocRow[]).map(({ kind, body }) => [kind, body]));
  }

  /** Newest first, stable: the order is that of creation, so a page never shifts. */
  list(query: RunQuery): RunRow[] {
    const { where, values } = conditions(query);
    const rows = this.#reader
      .prepare(`SELECT runs.* FROM ${where} ORDER BY runs.n DESC LIMIT ?`)
      .all(...values, query.limit);
    return rows.map((row) => RunRowSchema.parse(row));
  }

  checkpoints(
    n: number,
    after: number,
    limit: number,
  ): { n: number; turn: number; seq: number; at: number; turn_count: number; history_length: number }[] {
    return this.#reader
      .prepare(
        'SELECT n, turn, seq, at, turn_count, history_length FROM checkpoints WHERE run = ? AND n > ? ORDER BY n LIMIT ?',
      )
      .all(n, after, limit) as never;
  }

  /** When the running run that has written nothing for the longest time wrote last; undefined where none runs. */
  stillestAt(): number | undefined {
    const at = this.#reader
      .prepare("SELECT min(updated_at) FROM runs WHERE status IN ('running', 'cancelling')")
      .pluck()
      .get() as number | null;
    return at ?? undefined;
  }

  /** How many runs have each status. */
  countByStatus(): ReadonlyMap<string, number> {
    const rows = this.#reader
      .prepare(
        "SELECT status, count(*) AS count FROM runs WHERE status IN ('queued', 'running', 'cancelling', 'waiting') GROUP BY status",
      )
      .all();
    return new Map((rows as { status: string; count: number }[]).map(({ status, count }) => [status, count]));
  }
}

/** The tables and conditions of a list, driven by the index that fits the narrowest filter. */
function conditions(query: Omit<RunQuery, 'limit'>): {
  readonly where: string;
  readonly values: readonly (string | number)[];
} {
  const parts = ['runs.owner = ?'];
  const values: (string | number)[] = [query.owner];
  const add = (part: string, value: string | number | undefined): void => {
    if (value === undefined) return;
    parts.push(part);
    values.push(value);
  };
  add('runs.agent = ?', query.agent);
  add('runs.status = ?', query.status);
  add('runs.created_at > ?', query.createdAfterMs);
  add('runs.created_at < ?', query.createdBeforeMs);
  add('runs.parent = ?', query.parent);
  add('runs.n < ?', query.before);
  for (const [key, value] of Object.entries(query.metadata)) {
    parts.push('runs.n IN (SELECT run FROM run_metadata WHERE k = ? AND v = ?)');
    values.push(key, value);
  }
  return { where: `runs WHERE ${parts.join(' AND ')}`, values };
}
