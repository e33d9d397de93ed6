import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { z } from 'shimline/shims';
import { type Budget, type CallKind, increase, type Reached, reachedIn, type Sums, type Tokens } from './config.js';

const FILE = 'limits.db';
/** Past it nobody is at work on a reservation any more, whatever its process does. */
const STALE_MS = 3_600_000;
const KEPT_DAYS = 400;

const SCHEMA = `
CREATE TABLE IF NOT EXISTS days (
  shim TEXT NOT NULL, day TEXT NOT NULL, key TEXT NOT NULL,
  model_calls INTEGER NOT NULL DEFAULT 0, tool_calls INTEGER NOT NULL DEFAULT 0, tokens INTEGER NOT NULL DEFAULT 0,
  cost REAL NOT NULL DEFAULT 0, wall_ms INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (shim, day, key));
CREATE TABLE IF NOT EXISTS runs (
  shim TEXT NOT NULL, run_id TEXT NOT NULL, parent TEXT, seen_at INTEGER NOT NULL,
  input INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL,
  child_input INTEGER NOT NULL DEFAULT 0, child_cached INTEGER NOT NULL DEFAULT 0, child_output INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (shim, run_id));
CREATE TABLE IF NOT EXISTS reservations (
  id TEXT PRIMARY KEY, shim TEXT NOT NULL, day TEXT NOT NULL, key TEXT NOT NULL, run_id TEXT NOT NULL,
  holder TEXT NOT NULL, at INTEGER NOT NULL,
  model_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL, tokens INTEGER NOT NULL, cost REAL NOT NULL);
CREATE INDEX IF NOT EXISTS reservations_of_day ON reservations (shim, key);
`;

const sumsSchema = z.object({
  modelCalls: z.number(),
  toolCalls: z.number(),
  tokens: z.number(),
  cost: z.number(),
  wallTimeMs: z.number(),
});

const runSchema = z.object({
  parent: z.string().nullable(),
  seen_at: z.number(),
  input: z.number(),
  cached: z.number(),
  output: z.number(),
  child_input: z.number(),
  child_cached: z.number(),
  child_output: z.number(),
});
const meanSchema = z.object({ tokens: z.number(), cost: z.number() });
const holderSchema = z.object({ holder: z.string() });

/** Whose day it is. */
export interface Account {
  readonly shim: string;
  readonly key: string;
}
/** What a call may come to, held until it is known. */
export interface Estimate {
  readonly kind: CallKind;
  readonly tokens: number;
  readonly cost: number;
  /** Whether it cannot come to much more; else what today's calls came to on average is held, if that is more. */
  readonly bounded: boolean;
}
interface Reserved {
  readonly id: string | undefined;
  readonly reached: Reached | undefined;
}

/** This process among all that ever had this file: process ids come again, in a container at once. */
const HOLDER = `${process.pid}:${Math.round(performance.timeOrigin)}`;

const open = new Map<string, Ledger>();

/**
 * The file with what the keys have used per day: one for all runs of a server, each change one transaction. What a call may use is
 * reserved before it and settled after it; a reservation whose process died counts no more.
 */
export class Ledger {
  readonly #database: Database.Database;

  private constructor(file: string) {
    this.#database = new Database(file, { timeout: 10_000 });
    this.#database.pragma('journal_mode = WAL');
    this.#database.pragma('synchronous = NORMAL');
    this.#database.exec(SCHEMA);
    const oldest = Date.now() - KEPT_DAYS * 86_400_000;
    this.#database.prepare('DELETE FROM days WHERE day < ?').run(dayOf(oldest));
    this.#database.prepare('DELETE FROM runs WHERE seen_at < ?').run(oldest);
  }

  static in(dataDir: string): Ledger {
    const file = join(dataDir, FILE);
    const known = open.get(file);
    if (known !== undefined && existsSync(file)) return known;
    if (known !== undefined) known.#database.close();
    mkdirSync(dataDir, { recursive: true });
    const ledger = new Ledger(file);
    open.set(file, ledger);
    return ledger;
  }

  /** An attempt of a run begins: nothing of an earlier one is in flight, and what its tokens were is the base of what follows. */
  begin(shim: string, run: { readonly id: string; readonly parent: string | undefined; readonly used: Tokens }): void {
    const { id, parent, used } = run;
    this.#database.transaction(() => {
      // Those of an earlier attempt in this process were given back when it was disposed of.
      this.#database
        .prepare('DELETE FROM reservations WHERE shim = ? AND run_id = ? AND holder <> ?')
        .run(shim, id, HOLDER);
      // After a crash the run may know of fewer tokens than were settled: what it uses from here on is new.
      this.#database
        .prepare(
          `INSERT INTO runs (shim, run_id, parent, seen_at, input, cached, output) VALUES (?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT DO UPDATE SET seen_at = excluded.seen_at, input = min(input, excluded.input),
             cached = min(cached, excluded.cached), output = min(output, excluded.output)`,
        )
        .run(shim, id, parent ?? null, Date.now(), used.input, used.cached, used.output);
    })();
  }

  /**
   * Holds what a call may come to, or says which limit of today is reached.
   *
   * @param held what another instance of the shim holds for this very call: it is not held twice
   */
  reserve(account: Account, runId: string, estimate: Estimate, limits: Budget, held: string | undefined): Reserved {
    return this.#database
      .transaction((): Reserved => {
        this.#dropStale(account);
        const { kind } = estimate;
        const reached = reachedIn(this.#used(account, held), kind, limits);
        if (reached !== undefined || held !== undefined) return { id: undefined, reached };
        const id = randomUUID();
        const { tokens, cost } = estimate.bounded ? estimate : this.#atLeastMean(account, estimate);
        const [models, tools] = kind === 'model' ? [1, 0] : [0, 1];
        this.#database
          .prepare('INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)')
          .run(id, account.shim, today(), account.key, runId, HOLDER, Date.now(), models, tools, tokens, cost);
        return { id, reached };
      })
      .immediate();
  }

  /**
   * Puts what a call came to in the place of what was reserved for it: the calls, the time since the run was seen last, and the
   * tokens of the run that nobody has settled yet. Those of its children were settled by them.
   */
  settle(
    account: Account,
    run: { readonly id: string; readonly used: Tokens },
    reservation: string | undefined,
    calls: { readonly modelCalls: number; readonly toolCalls: number },
    costOf: (tokens: Tokens) => number,
  ): void {
    this.#database
      .transaction(() => {
        if (reservation !== undefined) this.#database.prepare('DELETE FROM reservations WHERE id = ?').run(reservation);
        const { tokens, wallMs } = this.#own(account.shim, run);
        const { shim, key } = account;
        this.#database
          .prepare(
            `INSERT INTO days (shim, day, key, model_calls, tool_calls, tokens, cost, wall_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT DO UPDATE SET model_calls = model_calls + excluded.model_calls, tool_calls = tool_calls + excluded.tool_calls,
               tokens = tokens + excluded.tokens, cost = cost + excluded.cost, wall_ms = wall_ms + excluded.wall_ms`,
          )
          .run(
            shim,
            today(),
            key,
            calls.modelCalls,
            calls.toolCalls,
            tokens.input + tokens.output,
            costOf(tokens),
            wallMs,
          );
      })
      .immediate();
  }

  release(ids: Iterable<string>): void {
    for (const id of ids) this.#database.prepare('DELETE FROM reservations WHERE id = ?').run(id);
  }

  #atLeastMean({ shim, key }: Account, { tokens, cost }: Estimate): { tokens: number; cost: number } {
    const row = this.#database
      .prepare(
        `SELECT max(@tokens, coalesce(max(tokens / model_calls), 0)) AS tokens, max(@cost, coalesce(max(cost / model_calls), 0)) AS cost
         FROM days WHERE shim = @shim AND key = @key AND day = @day AND model_calls > 0`,
      )
      .get({ shim, key, day: today(), tokens, cost });
    return meanSchema.parse(row);
  }

  /** What today's calls have used and hold. */
  #used({ shim, key }: Account, except: string | undefined): Sums {
    const row = this.#database
      .prepare(
        `SELECT coalesce(sum(model_calls), 0) AS modelCalls, coalesce(sum(tool_calls), 0) AS toolCalls,
           coalesce(sum(tokens), 0) AS tokens, coalesce(sum(cost), 0) AS cost, coalesce(sum(wall_ms), 0) AS wallTimeMs
         FROM (SELECT model_calls, tool_calls, tokens, cost, wall_ms FROM days WHERE shim = @shim AND key = @key AND day = @day
               UNION ALL
               SELECT model_calls, tool_calls, tokens, cost, 0 FROM reservations
               WHERE shim = @shim AND key = @key AND day = @day AND id <> @except)`,
      )
      .get({ shim, key, day: today(), except: except ?? '' });
    return sumsSchema.parse(row);
  }

  /** The tokens and the time of a run itself since it was looked at last; its tokens are those of no run above it. */
  #own(shim: string, { id, used }: { readonly id: string; readonly used: Tokens }): { tokens: Tokens; wallMs: number } {
    const find = this.#database.prepare('SELECT * FROM runs WHERE shim = ? AND run_id = ?');
    const found = find.get(shim, id);
    if (found === undefined) return { tokens: { input: 0, cached: 0, output: 0 }, wallMs: 0 };
    const row = runSchema.parse(found);
    const settled = {
      input: row.input + row.child_input,
      cached: row.cached + row.child_cached,
      output: row.output + row.child_output,
    };
    const tokens = increase(used, settled);
    const now = Date.now();
    this.#database
      .prepare(
        'UPDATE runs SET seen_at = ?, input = input + ?, cached = cached + ?, output = output + ? WHERE shim = ? AND run_id = ?',
      )
      .run(now, tokens.input, tokens.cached, tokens.output, shim, id);
    for (let { parent } = row; parent !== null; ) {
      this.#database
        .prepare(
          'UPDATE runs SET child_input = child_input + ?, child_cached = child_cached + ?, child_output = child_output + ? WHERE shim = ? AND run_id = ?',
        )
        .run(tokens.input, tokens.cached, tokens.output, shim, parent);
      const above = find.get(shim, parent);
      parent = above === undefined ? null : runSchema.parse(above).parent;
    }
    return { tokens, wallMs: Math.max(0, now - row.seen_at) };
  }

  #dropStale({ shim, key }: Account): void {
    this.#database.prepare('DELETE FROM reservations WHERE at < ?').run(Date.now() - STALE_MS);
    const rows = this.#database
      .prepare('SELECT DISTINCT holder FROM reservations WHERE shim = ? AND key = ? AND holder <> ?')
      .all(shim, key, HOLDER);
    for (const { holder } of rows.map((row) => holderSchema.parse(row))) {
      if (!isAlive(holder)) this.#database.prepare('DELETE FROM reservations WHERE holder = ?').run(holder);
    }
  }
}

/** A process with our id that is not ours had it before; a process of another id may share the file. */
function isAlive(holder: string): boolean {
  const pid = Number(holder.split(':')[0]);
  if (pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

function today(): string {
  return dayOf(Date.now());
}

function dayOf(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10);
}
