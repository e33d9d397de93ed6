import { type FSWatcher, watch } from 'node:fs';
import { stat } from 'node:fs/promises';
import { messageOf } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';

/** From the first sign of a change to the look at the files, in milliseconds: an editor's several writes become one. */
const SETTLE_MS = 100;

/**
 * Watches a changing set of folders, each on its own: Node's recursive watching on Linux follows files by inode and loses one that an
 * editor replaces by renaming. It only says that something happened; what changed is found by reading.
 */
export class FolderWatcher {
  readonly #onChange: () => void;
  readonly #log: Logger;
  readonly #watchers = new Map<string, { readonly inode: number; readonly watcher: FSWatcher }>();
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: { readonly onChange: () => void; readonly log: Logger }) {
    this.#onChange = options.onChange;
    this.#log = options.log;
  }

  /**
   * Watches exactly these folders from now on; one that was made anew in the meantime is taken up again.
   * @returns whether there is a folder among them that was not watched before, so that a change in it may have been missed
   */
  async update(folders: ReadonlySet<string>): Promise<boolean> {
    for (const [folder, { inode, watcher }] of this.#watchers) {
      if (folders.has(folder) && (await inodeOf(folder)) === inode) continue;
      watcher.close();
      this.#watchers.delete(folder);
    }
    let added = false;
    for (const folder of folders) {
      if (this.#watchers.has(folder)) continue;
      const inode = await inodeOf(folder);
      if (inode !== undefined) added = this.#add(folder, inode) || added;
    }
    return added;
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    for (const { watcher } of this.#watchers.values()) watcher.close();
    this.#watchers.clear();
  }

  #add(folder: string, inode: number): boolean {
    if (this.#closed) return false;
    try {
      const watcher = watch(folder, { persistent: false }, () => {
        this.#changed();
      });
      watcher.on('error', (error) => {
        this.#log.warn({ folder, reason: error.message }, 'watching a shim folder failed');
        watcher.close();
        this.#watchers.delete(folder);
        this.#changed();
      });
      this.#watchers.set(folder, { inode, watcher });
      return true;
    } catch (error) {
      this.#log.warn({ folder, reason: messageOf(error) }, 'a shim folder cannot be watched');
      return false;
    }
  }

  #changed(): void {
    if (this.#closed || this.#timer !== undefined) return;
    // Not put off by further events, so that a file that is written all the time cannot keep the others from being seen.
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#onChange();
    }, SETTLE_MS);
  }
}

async function inodeOf(folder: string): Promise<number | undefined> {
  const found = await stat(folder).catch(() => undefined);
  return found?.isDirectory() === true ? found.ino : undefined;
}
