import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { access, type FileHandle, lstat, mkdir, open, readdir, realpath, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { Place } from './paths.js';
import { codeOf, Refusal } from './refusal.js';
import { nearestName } from './text.js';
import type { Workspace } from './workspace.js';

/** Opens a regular file for reading; pipes and devices, which may block for ever, are refused. @throws Refusal */
export async function openFile(workspace: Workspace, place: Place): Promise<FileHandle> {
  if (!place.exists) throw await notFound(workspace, place);
  // The path is real, so a link at its end has come there since.
  const handle = await open(place.real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const found = await handle.stat();
    if (found.isDirectory()) throw new Refusal('is_folder', `${place.shown} is a folder. Use ls.`);
    if (!found.isFile()) throw new Refusal('not_a_file', `${place.shown} is no regular file.`);
    return handle;
  } catch (error) {
    await handle.close();
    throw error;
  }
}

/** Says what there is no file of, and what was perhaps meant. */
export async function notFound(workspace: Workspace, { real, shown }: Place): Promise<Refusal> {
  const folder = dirname(real);
  const parent = shown.includes('/') ? shown.slice(0, shown.lastIndexOf('/') + 1) : '';
  const names = await readdir(folder).catch(() => []);
  const readable = names.filter((name) => workspace.isReadable({ shown: parent + name, written: parent + name }));
  const near = nearestName(readable, basename(real));
  const hint = near === undefined ? '' : ` Did you mean ${parent}${near}?`;
  return new Refusal('not_found', `There is no ${shown}.${hint}`);
}

/** A folder of the workspace. @throws Refusal */
export async function openFolder(workspace: Workspace, place: Place): Promise<void> {
  if (!place.exists) throw await notFound(workspace, place);
  if (!(await lstat(place.real)).isDirectory())
    throw new Refusal('not_a_folder', `${place.shown} is a file and not a folder.`);
}

/**
 * Puts a text in the place of a file, whole or not at all: it is written beside it and renamed. The mode stays. A folder that is
 * missing is made. @throws Refusal
 */
export async function writeWhole(place: Place, text: string, signal: AbortSignal): Promise<void> {
  const folder = dirname(place.real);
  const mode = place.exists ? await modeToKeep(place) : undefined;
  await mkdir(folder, { recursive: true });
  // Between the check and now a folder may have become a link.
  if ((await realpath(folder)) !== folder)
    throw new Refusal('outside_root', `${place.shown} has come to be somewhere else. Try again.`);
  const temporary = join(folder, `.${randomBytes(8).toString('hex')}.tmp`);
  const handle = await open(temporary, 'wx', 0o666);
  try {
    try {
      await handle.writeFile(text, 'utf8');
      if (mode !== undefined) await handle.chmod(mode);
      await handle.datasync();
    } finally {
      await handle.close();
    }
    signal.throwIfAborted();
    await rename(temporary, place.real);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

async function modeToKeep({ real, shown }: Place): Promise<number> {
  const found = await lstat(real);
  if (found.isDirectory()) throw new Refusal('is_folder', `${shown} is a folder.`);
  if (!found.isFile()) throw new Refusal('not_a_file', `${shown} is no regular file.`);
  try {
    // A rename needs no right on the file itself; one that is protected from writing stays as it is.
    await access(real, constants.W_OK);
  } catch (error) {
    if (codeOf(error) === 'EACCES' || codeOf(error) === 'EROFS')
      throw new Refusal('read_only', `${shown} is protected from writing.`);
    throw error;
  }
  return found.mode & 0o7777;
}

const locks = new Map<string, Promise<unknown>>();

/** One change of a file at a time in this process, whoever makes it: calls of one answer run side by side. */
export async function oneAtATime<T>(path: string, work: () => Promise<T>): Promise<T> {
  const before = locks.get(path);
  const mine = (async () => {
    await before?.catch(() => undefined);
    return work();
  })();
  locks.set(path, mine);
  try {
    return await mine;
  } finally {
    if (locks.get(path) === mine) locks.delete(path);
  }
}

const IMAGES: readonly { readonly mediaType: string; readonly at: number; readonly bytes: string }[] = [
  { mediaType: 'image/png', at: 0, bytes: '\x89PNG\r\n\x1a\n' },
  { mediaType: 'image/jpeg', at: 0, bytes: '\xff\xd8\xff' },
  { mediaType: 'image/gif', at: 0, bytes: 'GIF8' },
  { mediaType: 'image/webp', at: 8, bytes: 'WEBP' },
];

/** The media type of an image that models take, by its first bytes. */
export function imageType(start: Buffer): string | undefined {
  return IMAGES.find(({ at, bytes }) => start.subarray(at, at + bytes.length).toString('latin1') === bytes)?.mediaType;
}
