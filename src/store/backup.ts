import { existsSync, renameSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import SQLite from 'better-sqlite3';

/** The target is there already: a backup never overwrites one. */
class BackupExistsError extends Error {
  constructor(file: string) {
    super(`${file} exists; a backup does not overwrite it.`);
    this.name = 'BackupExistsError';
  }
}

/**
 * Writes a consistent copy of a data folder's database to a file, also while a server writes: it reads one snapshot, so the
 * copy is of one moment and writers go on. The file appears whole or not at all.
 * @throws BackupExistsError, and what SQLite throws
 */
export function backUp(dataDir: string, target: string): { readonly bytes: number } {
  if (existsSync(target)) throw new BackupExistsError(target);
  const unfinished = `${target}.unfinished`;
  rmSync(unfinished, { force: true });
  const database = new SQLite(join(dataDir, 'shimline.db'), { fileMustExist: true, timeout: 10_000 });
  try {
    database.prepare('VACUUM INTO ?').run(unfinished);
    const copy = new SQLite(unfinished, { readonly: true });
    const check = copy.pragma('integrity_check', { simple: true });
    copy.close();
    if (check !== 'ok') throw new Error(`The copy is damaged: ${String(check)}`);
    renameSync(unfinished, target);
  } finally {
    database.close();
    rmSync(unfinished, { force: true });
  }
  return { bytes: statSync(target).size };
}
