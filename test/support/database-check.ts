import { join } from 'node:path';
import SQLite from 'better-sqlite3';

/** What `PRAGMA integrity_check` says of a data folder's database, from a connection of its own. */
export function integrityOf(dataDir: string): string {
  const database = new SQLite(join(dataDir, 'shimline.db'), { timeout: 10_000 });
  try {
    return String(database.pragma('integrity_check', { simple: true }));
  } finally {
    database.close();
  }
}

/** How many rows each table has, those of agents left out. */
export function rowCounts(dataDir: string): Record<string, number> {
  const database = new SQLite(join(dataDir, 'shimline.db'), { readonly: true, timeout: 10_000 });
  try {
    const tables = database
      .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
      .pluck();
    const names = (tables.all() as string[]).filter((name) => name !== 'agents');
    return Object.fromEntries(
      names.map((name) => [name, database.prepare(`SELECT count(*) FROM ${name}`).pluck().get() as number]),
    );
  } finally {
    database.close();
  }
}

/** Changes the database of a server that is not running. */
export function editDatabase(dataDir: string, sql: string, ...values: readonly unknown[]): void {
  const database = new SQLite(join(dataDir, 'shimline.db'), { timeout: 10_000 });
  try {
    database.prepare(sql).run(...values);
  } finally {
    database.close();
  }
}
