import { createHash } from 'node:crypto';
import { readdir, readFile, realpath, stat } from 'node:fs/promises';
import { basename, dirname, extname, join, relative } from 'node:path';
import { SOURCE_EXTENSIONS } from './shim-module.js';

const SHIM_EXTENSIONS: readonly string[] = ['.ts', '.mts', '.js', '.mjs'];
const TEST_OR_TYPES = /\.(test|spec)\.[a-z]+$|\.d\.m?ts$/;

/** A file that holds a shim, or a folder's index that does. */
export interface ShimFile {
  readonly file: string;
  /** The shim's own folder, where it has one. */
  readonly folder: string | undefined;
}

/** The shim files of a folder, in the order of their names: files, and folders with an index. A folder that is not there has none. */
export async function listShimFiles(folder: string): Promise<ShimFile[]> {
  const found: ShimFile[] = [];
  for (const name of await namesIn(folder)) {
    if (isSkipped(name)) continue;
    const path = join(folder, name);
    if (await isDirectory(path)) {
      const index = (await namesIn(path)).find((inner) =>
        SHIM_EXTENSIONS.some((extension) => inner === `index${extension}`),
      );
      if (index !== undefined) found.push({ file: join(path, index), folder: path });
    } else if (SHIM_EXTENSIONS.includes(extname(name))) {
      found.push({ file: path, folder: undefined });
    }
  }
  return found;
}

/**
 * Whether a shim of a source folder has been compiled into another folder since each of its files was last changed. Change times
 * are compared and not only modification times: an older file that is moved into place counts as changed.
 */
export async function isCompiled(shim: ShimFile, folder: string, compiledFolder: string): Promise<boolean> {
  const files = await sourceFilesOf(shim);
  const fresh = await Promise.all(
    files.map(async (file) => {
      const twin = join(compiledFolder, relative(folder, file)).replace(/\.(m?)ts$/, '.$1js');
      const [source, compiled] = await Promise.all([stat(file), stat(twin)].map((each) => each.catch(() => undefined)));
      return source !== undefined && compiled !== undefined && source.ctimeMs <= compiled.mtimeMs;
    }),
  );
  return fresh.every(Boolean);
}

async function sourceFilesOf(shim: ShimFile): Promise<string[]> {
  const files = [shim.file];
  if (shim.folder === undefined) return files;
  for (const folder of await foldersIn(shim.folder))
    for (const name of await namesIn(folder)) if (isSource(name)) files.push(join(folder, name));
  return files;
}

/** A folder and the folders in it, without packages and hidden ones. */
export async function foldersIn(folder: string): Promise<string[]> {
  if (!(await isDirectory(folder))) return [];
  const found = [folder];
  for (const entry of await readdir(folder, { withFileTypes: true }).catch(() => [])) {
    if (entry.isDirectory() && !isPrivateFolder(entry.name)) found.push(...(await foldersIn(join(folder, entry.name))));
  }
  return found;
}

/** The nearest folder above a path that exists: where its making will be seen. */
export async function nearestFolder(path: string): Promise<string> {
  const parent = dirname(path);
  return parent === path || (await isDirectory(parent)) ? parent : nearestFolder(parent);
}

/** A path without links, or the path itself where nothing is. */
export async function realPathOf(path: string): Promise<string> {
  return realpath(path).catch(() => path);
}

/**
 * What identifies the code of a shim: 16 hex digits of SHA-256. A shim of one file is hashed as it is (so `sha256sum` gives the
 * same); of several, each file's name and text in the order of the names. A shim with a folder has all source files in it.
 *
 * @param files the files that the shim was evaluated from, helpers included
 * @param texts what they held then; a file that is not among them is read
 */
export async function hashShim(
  shim: ShimFile,
  files: Iterable<string>,
  texts: ReadonlyMap<string, string> = new Map(),
): Promise<string> {
  const all = new Set([...(await sourceFilesOf(shim)), ...files]);
  const hash = createHash('sha256');
  for (const file of [...all].sort()) {
    const text = texts.get(file) ?? (await readFile(file, 'utf8').catch(() => ''));
    hash.update(all.size === 1 ? text : `${relative(dirname(shim.file), file)}\0${text}\0`);
  }
  return hash.digest('hex').slice(0, 16);
}

/** What a shim file is called while nothing is known of the shim in it. */
export function stemOf({ file, folder }: ShimFile): string {
  return folder === undefined ? basename(file, extname(file)) : basename(folder);
}

function isSkipped(name: string): boolean {
  return name.startsWith('_') || isPrivateFolder(name) || TEST_OR_TYPES.test(name);
}

function isSource(name: string): boolean {
  return SOURCE_EXTENSIONS.includes(extname(name)) && !TEST_OR_TYPES.test(name) && !name.startsWith('.');
}

function isPrivateFolder(name: string): boolean {
  return name.startsWith('.') || name === 'node_modules';
}

async function namesIn(folder: string): Promise<string[]> {
  return (await readdir(folder).catch(() => [] as string[])).sort();
}

async function isDirectory(path: string): Promise<boolean> {
  const found = await stat(path).catch(() => undefined);
  return found?.isDirectory() === true;
}
