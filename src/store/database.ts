import { accessSync, constants, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import SQLite, { type Database } from 'better-sqlite3';
import { isStorageFaultCode } from '../errors.js';
import { MIGRATIONS } from './migrations.js';

export type Durability = 'full' | 'normal';

/** Another server has this folder, and it is alive: the lock is the operating system's and goes with its process. */
class FolderInUseError extends Error {
  constructor(dataDir: string) {
    super(`Another server uses the data folder ${dataDir}; one folder serves one server.`);
    this.name = 'FolderInUseError';
  }
}

/** The folder is missing and cannot be made, or is read-only: there is nothing that a server could promise on it. */
class FolderNotWritableError extends Error {
  constructor(dataDir: string, cause: unknown) {
    super(`The data folder ${dataDir} cannot be written: ${cause instanceof Error ? cause.message : String(cause)}`, {
      cause,
    });
    this.name = 'FolderNotWritableError';
  }
}

/** The file was written by a newer version of the program. */
class NewerDatabaseError extends Error {
  constructor(file: string, found: number, known: number) {
    super(`The database ${file} has schema version ${found}; this program knows up to ${known}. It was left as it is.`);
    this.name = 'NewerDatabaseError';
  }
}

/** The file is no database, or a damaged one. */
class DamagedDatabaseError extends Error {
  constructor(file: string, cause: unknown) {
    super(
      `The database ${file} is damaged (${cause instanceof Error ? cause.message : String(cause)}). It was left as it is; restore a backup.`,
      { cause },
    );
    this.name = 'DamagedDatabaseError';
  }
}

/** How long an open waits for a lock that somebody outside holds, in milliseconds. */
const OPEN_TIMEOUT_MS = 10_000;
const DAMAGE = /^SQLITE_(CORRUPT|NOTADB)/;

/** Holds the right to write the folder's database until `release`, or until the process is gone. */
export interface FolderLock {
  release(): void;
}

/**
 * Locks the data folder for this process: an exclusive transaction on a little database of its own, which the operating
 * system ends with the process, so a dead server's lock never stops a start.
 * @throws FolderInUseError, FolderNotWritableError
 */
export function lockFolder(dataDir: string): FolderLock {
  try {
    mkdirSync(dataDir, { recursive: true });
    accessSync(dataDir, constants.W_OK);
  } catch (error) {
    throw new FolderNotWritableError(dataDir, error);
  }
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
 * @throws NewerDatabaseError, DamagedDatabaseError
 */
export function openDatabase(dataDir: string, durability: Durability): Database {
  const file = join(dataDir, 'shimline.db');
  // Nothing is served yet, so a lock from outside may be waited for here.
  const database = new SQLite(file, { timeout: OPEN_TIMEOUT_MS });
  try {
    database.pragma('journal_mode = WAL');
    database.pragma(`synchronous = ${durability === 'full' ? 'FULL' : 'NORMAL'}`);
    database.pragma('journal_size_limit = 67108864');
    database.pragma('cache_size = -65536');
    database.pragma('temp_store = MEMORY');
    migrate(database, file);
    // From here on no waiting inside SQLite: it would stop the whole process. The writer waits outside and tries again.
    database.pragma('busy_timeout = 0');
    return database;
  } catch (error) {
    database.close();
    throw DAMAGE.test(codeOf(error)) ? new DamagedDatabaseError(file, error) : error;
  }
}

/** A second connection for reads: it sees what is committed and never blocks the writer. */
export function openReader(dataDir: string): Database {
  const reader = new SQLite(join(dataDir, 'shimline.db'), { readonly: true, timeout: 0 });
  // Whoever polls many runs reads from all over the file: a page that is not kept costs as much as the rest of its read.
  reader.pragma('cache_size = -131072');
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

function isBusy(error: unknown): boolean {
  return /^SQLITE_(BUSY|LOCKED)/.test(codeOf(error));
}

/** A fault of the storage itself (lock, disk, damage), as opposed to a refusal of ours. */
export function isStorageFault(error: unknown): boolean {
  return isStorageFaultCode(codeOf(error));
}

function codeOf(error: unknown): string {
  return error instanceof SQLite.SqliteError ? error.code : '';
}
