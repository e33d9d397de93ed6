import { constants } from 'node:fs';
import { open, readdir, realpath } from 'node:fs/promises';
import { isAbsolute, join, relative, resolve, sep } from 'node:path';

/** A path that is not one of the skill's files: says why, in the words of whoever gave it. */
export class ForbiddenPathError extends Error {
  constructor(path: string, reason: string) {
    super(`${JSON.stringify(path)} ${reason}`);
    this.name = 'ForbiddenPathError';
  }
}

/** More of a file is not read at all. */
const MAX_BYTES = 4 * 1024 * 1024;
const MAX_FILES = 200;
const MAX_DEPTH = 6;

export interface TextFile {
  readonly text: string;
  readonly bytes: number;
  readonly binary: boolean;
}

/**
 * A file inside a folder, by a path relative to it. What counts is where the file really lies: neither `..` nor an absolute path nor
 * a link leads out. It is opened by its real path and without following a link, so a link that is put there meanwhile is not followed.
 * @throws ForbiddenPathError
 */
export async function readInside(folder: string, path: string): Promise<TextFile> {
  if (path.trim() === '' || path.includes('\0')) throw new ForbiddenPathError(path, 'is no path.');
  if (isAbsolute(path) || /^[a-z]:|^[\\~]/i.test(path))
    throw new ForbiddenPathError(path, "is not relative to the skill's folder.");
  const root = await realpath(folder).catch(() => {
    throw new ForbiddenPathError(path, "cannot be read: the skill's folder is gone.");
  });
  if (!isInside(root, resolve(root, path))) throw new ForbiddenPathError(path, "is outside of the skill's folder.");
  const real = await realpath(resolve(root, path)).catch(() => undefined);
  if (real === undefined) throw new ForbiddenPathError(path, 'is not there.');
  if (!isInside(root, real)) throw new ForbiddenPathError(path, "is a link that leads out of the skill's folder.");
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const handle = await open(real, flags).catch((error: unknown) => {
    throw new ForbiddenPathError(path, `cannot be opened (${codeOf(error)}).`);
  });
  try {
    const stat = await handle.stat();
    if (!stat.isFile()) throw new ForbiddenPathError(path, 'is no file.');
    const buffer = Buffer.alloc(Math.min(stat.size, MAX_BYTES));
    const { bytesRead } = await handle.read(buffer, 0, buffer.length, 0);
    const read = buffer.subarray(0, bytesRead);
    // With `stream` a character that was cut at the end is left out.
    const text = new TextDecoder().decode(read, { stream: true });
    return { text, bytes: stat.size, binary: read.subarray(0, 8192).includes(0) };
  } finally {
    await handle.close();
  }
}

function isInside(root: string, path: string): boolean {
  const way = relative(root, path);
  return way === '' || (way !== '..' && !way.startsWith(`..${sep}`) && !isAbsolute(way));
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
}

/** The files of a skill, its `SKILL.md` left out; links are not followed. */
export async function filesIn(folder: string): Promise<{ readonly files: readonly string[]; readonly more: boolean }> {
  const files: string[] = [];
  const walk = async (path: string, depth: number): Promise<boolean> => {
    const entries = await readdir(join(folder, path), { withFileTypes: true }).catch(() => []);
    for (const entry of entries.sort((a, b) => (a.name < b.name ? -1 : 1))) {
      if (entry.name.startsWith('.') || entry.name === 'node_modules') continue;
      const name = path === '' ? entry.name : `${path}/${entry.name}`;
      if (entry.isDirectory()) {
        if (depth >= MAX_DEPTH || (await walk(name, depth + 1))) return true;
      } else if (entry.isFile() && name.toLowerCase() !== 'skill.md') {
        if (files.length >= MAX_FILES) return true;
        files.push(name);
      }
    }
    return false;
  };
  const more = await walk('', 0);
  return { files, more };
}
