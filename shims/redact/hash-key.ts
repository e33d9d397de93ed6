import { randomBytes, randomUUID } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const keys = new Map<string, string>();

/** The key of a data folder, made on first use. A crash leaves a whole one or none. @throws where the folder cannot be written */
export function keyIn(dataDir: string): string {
  const known = keys.get(dataDir);
  if (known !== undefined) return known;
  const folder = join(dataDir, 'redact');
  const file = join(folder, 'hash.key');
  const key = read(file) ?? make(folder, file);
  keys.set(dataDir, key);
  return key;
}

function make(folder: string, file: string): string {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const draft = join(folder, `${randomUUID()}.new`);
  writeFileSync(draft, randomBytes(32).toString('base64url'), { mode: 0o600, flush: true });
  try {
    linkSync(draft, file);
  } catch (error) {
    // Another one was first: its key counts.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    rmSync(draft, { force: true });
  }
  const key = read(file);
  if (key === undefined) throw new Error('The key of the hashes could not be kept.');
  return key;
}

function read(file: string): string | undefined {
  try {
    const key = readFileSync(file, 'utf8');
    if (key.length < 16) throw new Error('The key of the hashes is broken.');
    return key;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}
