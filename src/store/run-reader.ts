import type { Database, Statement } from 'better-sqlite3';
import type { Run, RunStatus } from '../agent/run.js';
import { type RunRow, RunRowSchema, runJson, runOf, type ShownRow } from './run-rows.js';

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

/** What `GET /v1/runs/{id}` answers with. */
export interface PolledRun {
  readonly json: string;
  readonly version: number;
}

interface Asked {
  readonly id: string;
  readonly owner: string;
  readonly answer: (read: () => PolledRun | undefined) => void;
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
  readonly #polled: Statement;
  readonly #readAsked: (asked: readonly Asked[]) => void;
  #asked: Asked[] = [];

  constructor(reader: Database) {
    this.#reader = reader;
    this.#row = reader.prepare('SELECT * FROM runs WHERE id = ?');
    this.#docs = reader.prepare("SELECT kind, body FROM run_docs WHERE run = ? AND kind <> 'position'");
    // One row of few columns, since each statement and each column costs more than what is read by it.
    this.#polled = reader
      .prepare(
        `SELECT owner, id, agent, agent_version, status, attempt, recoveries, version, finish_reason, turn_count, created_at, started_at,
           updated_at, finished_at, last_seq, parent, forked_from, forked_turn, usage, (SELECT group_concat(kind || char(1) || body, char(2)) FROM run_docs WHERE run = runs.n AND kind <> 'position')
         FROM runs WHERE id = ?`,
      )
      .raw();
    this.#readAsked = reader.transaction((asked: readonly Asked[]) => {
      for (const each of asked) each.answer(() => this.#readPolled(each.id, each.owner));
    });
  }

  /**
   * A run's JSON text and its version; undefined where there is none or it is another key's. All that is asked for in one turn of the
   * event loop is read together at its end, in one transaction: a poll of many costs half as much as one after the other.
   */
  async polled(id: string, owner: string): Promise<PolledRun | undefined> {
    return new Promise((resolve, reject) => {
      const answer: Asked['answer'] = (read) => {
        try {
          resolve(read());
        } catch (error) {
          reject(error instanceof Error ? error : new Error(String(error)));
        }
      };
      this.#asked.push({ id, owner, answer });
      if (this.#asked.length === 1) setImmediate(this.#answerAsked);
    });
  }

  readonly #answerAsked = (): void => {
    const asked = this.#asked;
    this.#asked = [];
    try {
      this.#readAsked(asked);
    } catch (error) {
      // The transaction could not be had: those that have an answer keep it.
      for (const { answer } of asked) {
        answer(() => {
          throw error;
        });
      }
    }
  };

  #readPolled(id: string, owner: string): PolledRun | undefined {
    const read = this.#polled.get(id) as unknown[] | undefined;
    if (read?.[0] !== owner) return undefined;
    const row = shownRow(read);
    return { json: runJson(row, joinedDocs(read.at(-1) as string | null)), version: row.version };
  }

  /** The row of a run, or undefined where there is none or it is another key's. */
  row(id: string, owner: string): RunRow | undefined {
    const row = this.#row.get(id) as RunRow | undefined;
    return row?.owner === owner ? row : undefined;
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

/** By position and one by one: an object that is filled in a loop is many times slower to make and to read. */
function shownRow(read: readonly unknown[]): ShownRow {
  const [, id, agent, agent_version, status, attempt, recoveries, version, finish_reason, turn_count, ...rest] = read;
  const [created_at, started_at, updated_at, finished_at, last_seq, parent, forked_from, forked_turn, usage] = rest;
  return {
    id,
    agent,
    agent_version,
    status,
    attempt,
    recoveries,
    version,
    finish_reason,
    turn_count,
    created_at,
    started_at,
    updated_at,
    finished_at,
    last_seq,
    parent,
    forked_from,
    forked_turn,
    usage,
  } as ShownRow;
}

/** JSON texts hold no control characters, so these part them safely. */
function joinedDocs(joined: string | null): ReadonlyMap<string, string> {
  const docs = new Map<string, string>();
  if (joined === null) return docs;
  for (const part of joined.split('\u0002')) {
    const at = part.indexOf('\u0001');
    docs.set(part.slice(0, at), part.slice(at + 1));
  }
  return docs;
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
