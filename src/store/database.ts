import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import SQLite, { type Database } from 'better-sqlite3';
import { MIGRATIONS } from './migrations.js';

export type Durability = 'full' | 'normal';

/** Another server has this folder, and it is alive: the lock is the operating system's and goes with its process. */
export class FolderInUseError extends Error {
  constructor(dataDir: string) {
    super(`Another server uses the data folder ${dataDir}; one folder serves one server.`);
    this.name = 'FolderInUseError';
  }
}

/** The file was written by a newer version of the program. */
export class NewerDatabaseError extends Error {
  constructor(file: string, found: number, known: number) {
    super(`The database ${file} has schema version ${found}; this program knows up to ${known}. It was left as it is.`);
    this.name = 'NewerDatabaseError';
  }
}

/** Holds the right to write the folder's database until `release`, or until the process is gone. */
export interface FolderLock {
  release(): void;
}

/**
 * Locks the data folder for this process: an exclusive transaction on a little database of its own, which the operating
 * system ends with the process, so a dead server's lock never stops a start.
 * @throws FolderInUseError
 */
export function lockFolder(dataDir: string): FolderLock {
  mkdirSync(dataDir, { recursive: true });
  const lock = new SQLite(join(dataDir, 'shimline.lock'), { timeout: 0 });
  try {
    lock.pragma('journal_mode = DELETE');
    lock.exec('BEGIN EXCLUSIVE');
  } catch (error) {
    lock.close();
    if (isBusy(error)) throw new FolderInUseError(dataDir);
    throw error;
  }
  return {
    release: () => {
      lock.close();
    },
  };
}

/**
 * Opens the database of a locked folder and brings its schema up to date.
 * @throws NewerDatabaseError
 */
export function openDatabase(dataDir: string, durability: Durability): Database {
  const file = join(dataDir, 'shimline.db');
  // No waiting inside SQLite: it would stop the whole process. The writer waits outside and tries again.
  const database = new SQLite(file, { timeout: 0 });
  try {
    database.pragma('journal_mode = WAL');
    database.pragma(`synchronous = ${durability === 'full' ? 'FULL' : 'NORMAL'}`);
    database.pragma('journal_size_limit = 67108864');
    database.pragma('cache_size = -65536');
    database.pragma('temp_store = MEMORY');
    migrate(database, file);
    return database;
  } catch (error) {
    database.close();
    throw error;
  }
}

/** A second connection for reads: it sees what is committed and never blocks the writer. */
export function openReader(dataDir: string): Database {
  const reader = new SQLite(join(dataDir, 'shimline.db'), { readonly: true, timeout: 0 });
  reader.pragma('cache_size = -65536');
  return reader;
}

function migrate(database: Database, file: string): void {
  const version = database.pragma('user_version', { simple: true }) as number;
  if (version > MIGRATIONS.length) throw new NewerDatabaseError(file, version, MIGRATIONS.length);
  for (const [index, sql] of MIGRATIONS.entries()) {
    if (index < version) continue;
    database.transaction(() => {
      database.exec(sql);
      database.pragma(`user_version = ${index + 1}`);
    })();
  }
}

export function isBusy(error: unknown): boolean {
  return error instanceof SQLite.SqliteError && (error.code.startsWith('SQLITE_BUSY') || error.code.startsWith('SQLITE_LOCKED'));
}

/** A fault of the storage itself (lock, disk, damage), as opposed to a refusal of ours. */
export function isStorageFault(error: unknown): boolean {
  return error instanceof SQLite.SqliteError && !error.code.startsWith('SQLITE_CONSTRAINT');
}
