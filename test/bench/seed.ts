import { createHash } from 'node:crypto';
import {
  closeSync,
  copyFileSync,
  existsSync,
  fsyncSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import SQLite from 'better-sqlite3';
import type { Stage } from './stage.js';
import { ourRuns } from './stage.js';
import { loadWindow } from './windows.js';

const storeFolder = fileURLToPath(new URL('../../dist/src/store', import.meta.url));
const FILE = 'shimline.db';
const PATTERNS = 20;

/**
 * A data folder with so many finished runs, real ones many times over. It is built once for a version of the store and kept in
 * the system's temporary folder; what is given is a copy.
 */
export async function folderWithRuns(stage: Stage, count: number): Promise<string> {
  const kept = join(tmpdir(), `shimline-bench-${storeVersion()}-${count}.db`);
  if (!existsSync(kept)) {
    const server = await stage.newServer({ durability: 'normal' });
    await loadWindow(await stage.client(), ourRuns(server, 'Say something, deltas=3.'), {
      concurrency: 1,
      each: PATTERNS,
    });
    await server.stop('SIGTERM');
    multiply(join(server.dataDir, FILE), { to: count, status: 'completed' });
    const building = `${kept}.${process.pid}`;
    copyFileSync(join(server.dataDir, FILE), building);
    renameSync(building, kept);
    rmSync(server.dataDir, { recursive: true });
  }
  const folder = stage.newFolder();
  copyFileSync(kept, join(folder, FILE));
  toDisk(join(folder, FILE));
  return folder;
}

/** A part of the ids, spread over the whole table. */
export function someRunIds(folder: string, count: number): string[] {
  const database = new SQLite(join(folder, FILE), { readonly: true });
  const ids = database
    .prepare('SELECT id FROM runs ORDER BY (n * 7919) % 100003 LIMIT ?')
    .pluck()
    .all(count) as string[];
  database.close();
  return ids;
}

/** Copies the runs of a status, with everything of theirs, until there are `to` of them; no server has the file open. */
export function multiply(file: string, { to, status }: { readonly to: number; readonly status: string }): void {
  const database = new SQLite(file);
  database.pragma('journal_mode = MEMORY');
  database.pragma('synchronous = OFF');
  const have = database.prepare('SELECT count(*) FROM runs WHERE status = ?').pluck().get(status) as number;
  if (have === 0) throw new Error(`there is no run that is ${status}`);
  const columns = (table: string, without: readonly string[]): string[] =>
    (database.pragma(`table_info(${table})`) as { name: string }[])
      .map(({ name }) => name)
      .filter((name) => !without.includes(name));
  const tables = database
    .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    .pluck()
    .all() as string[];
  const ofRuns = tables.filter((table) => columns(table, []).includes('run') && table !== 'idempotency');
  database.exec('CREATE TEMP TABLE copies (old INTEGER NOT NULL, new INTEGER PRIMARY KEY)');
  database.transaction(() => {
    const last = database.prepare('SELECT max(n) FROM runs').pluck().get() as number;
    database
      .prepare(
        `WITH RECURSIVE times(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM times WHERE i < ?),
           some(n, place) AS (SELECT n, row_number() OVER (ORDER BY n) - 1 FROM runs WHERE status = ?)
         INSERT INTO copies SELECT some.n, ? + times.i FROM times JOIN some ON some.place = times.i % ?`,
      )
      .run(to - have, status, last, have);
    const fields = columns('runs', ['n', 'id']).join(', ');
    const id =
      "lower(substr(r, 1, 8) || '-' || substr(r, 9, 4) || '-4' || substr(r, 13, 3) || '-8' || substr(r, 16, 3) || '-' || substr(r, 19, 12))";
    database.exec(
      `INSERT INTO runs (n, id, ${fields}) SELECT new, ${id}, ${fields} FROM (SELECT hex(randomblob(16)) AS r, new, runs.* FROM copies JOIN runs ON runs.n = copies.old)`,
    );
    for (const table of ofRuns) {
      const own = columns(table, ['run', 'n']).join(', ');
      database.exec(
        `INSERT INTO ${table} (run, ${own}) SELECT new, ${own} FROM copies JOIN ${table} ON ${table}.run = copies.old ORDER BY new`,
      );
    }
  })();
  database.pragma('journal_mode = WAL');
  database.close();
  toDisk(file);
}

/** What the system has not written yet would be written at the first fsync of the server that is measured. */
function toDisk(file: string): void {
  const descriptor = openSync(file, 'r+');
  fsyncSync(descriptor);
  closeSync(descriptor);
}

/** Changes with the code that says what is stored how. */
function storeVersion(): string {
  const hash = createHash('sha256');
  for (const name of readdirSync(storeFolder).sort())
    if (name.endsWith('.js')) hash.update(readFileSync(join(storeFolder, name)));
  return hash.digest('hex').slice(0, 12);
}
