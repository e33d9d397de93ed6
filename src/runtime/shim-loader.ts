import { dirname, extname, resolve } from 'node:path';
import { systemClock, within } from '../agent/clock.js';
import { messageOf } from '../agent/run-errors.js';
import { Shim } from '../agent/shim.js';
import type { Logger } from '../agent/tools.js';
import { type LoadedShim, loadedShim } from './shim-definition.js';
import { type ShimFault, ShimFileError, shownPath } from './shim-fault.js';
import {
  foldersIn,
  hashShim,
  isCompiled,
  listShimFiles,
  nearestFolder,
  realPathOf,
  type ShimFile,
  stemOf,
} from './shim-files.js';
import { evaluateShimFile, importShimFile, lineOf, SHIMS_ENTRY } from './shim-module.js';
import { FolderWatcher } from './shim-watcher.js';

/** What `GET /v1/shims` tells of one shim, or of a file that gave none. Files are named as `shownPath` shows them. */
export interface ShimReport {
  /** The shim's name; of a file that never loaded, the file's. */
  readonly name: string;
  readonly version: number | null;
  readonly description: string;
  readonly file: string;
  /** Hash of the code that serves; of a failed file, of what was tried. */
  readonly hash: string;
  readonly configSchema: Readonly<Record<string, unknown>> | null;
  /** `stale`: the file is broken now, and the version before serves. */
  readonly state: 'loaded' | 'failed' | 'stale';
  /** The file of an earlier folder whose shim of this name it takes the place of. */
  readonly overrides?: string;
  readonly error?: ShimFault;
}

/** Finds loaded shims; what checks of agents need. */
export interface ShimSource {
  get(name: string): LoadedShim | undefined;
  /** The names of all that are loaded, sorted. */
  names(): readonly string[];
  /** Takes secrets out of what a shim's code threw. */
  conceal?(text: string): string;
}

export interface ShimLoaderOptions {
  /** Built-in first; a later folder's shim takes the place of an earlier one's of the same name. A folder that is missing is fine. */
  readonly folders: readonly string[];
  /**
   * The one of `folders` that does not change while the server runs: its compiled files are imported natively, once. Where another
   * folder is `source`, what it was compiled from, only those of its files are loaded that were changed since or are new.
   */
  readonly builtIn?: { readonly folder: string; readonly source?: string };
  /** Whether changes in the folders are picked up while running (R117). */
  readonly watch: boolean;
  /** URL of the module that `shimline/shims` is: our own `shims.ts` or `shims.js`. */
  readonly entryUrl: string | URL;
  readonly log: Logger;
  /** Takes secrets out of what a shim's code threw. */
  readonly conceal?: (text: string) => string;
  /** Called after each change of what is loaded or reported. */
  readonly onChange?: () => void;
  /** Longest time one file may take to be evaluated, in milliseconds; when absent 10,000, and 1,000 for each file that is loaded with it. */
  readonly importTimeoutMs?: number;
}

/** A shim file and which of the folders it was found in. */
interface Examinable extends ShimFile {
  readonly folderIndex: number;
}

/** One shim file with what serves from it and what is wrong with it. */
interface Entry extends Examinable {
  readonly current: LoadedShim | undefined;
  readonly fault: ShimFault | undefined;
  /** Files that the last attempt read, and their hash: as long as it is the same, nothing is loaded again. */
  readonly sources: readonly string[];
  readonly triedHash: string;
  /** A fault may go away without a change of its own files: a helper appears, a namesake goes. A hanging import does not. */
  readonly retry: boolean;
}

interface Served {
  readonly entry: Entry;
  readonly shim: LoadedShim;
  readonly overrides: string | undefined;
}

const IMPORT_TIMEOUT_MS = 10_000;
/** They are compiled on one thread, so each of them waits for all. */
const COMPILE_MS = 1000;

/**
 * The shims there are: loads them from folders, keeps each at its newest version that works, and reports the rest (R117). What `get`
 * returns never changes; a newer version is another object. A shim has its own copy of the helpers that it imports.
 *
 * A file that blocks the thread while it is evaluated blocks the server: only waiting is bounded.
 */
export class ShimLoader implements ShimSource {
  readonly #options: ShimLoaderOptions;
  readonly #watcher: FolderWatcher | undefined;
  #entries: ReadonlyMap<string, Entry> = new Map();
  #served: ReadonlyMap<string, Served> = new Map();
  #entryModule: Promise<Readonly<Record<string, unknown>>> | undefined;
  #work: Promise<void> = Promise.resolve();
  #queued = false;
  #closed = false;

  constructor(options: ShimLoaderOptions) {
    this.#options = options;
    if (options.watch) {
      this.#watcher = new FolderWatcher({
        log: options.log,
        onChange: () => {
          this.load().catch((error: unknown) => {
            options.log.error({ reason: messageOf(error) }, 'reloading shims failed');
          });
        },
      });
    }
  }

  /**
   * Loads what is new or changed, and drops what is gone. Broken files are reported, not thrown.
   * @throws TypeError when `entryUrl` is another copy of our module than the one this server runs
   */
  async load(): Promise<void> {
    // One that waits for its turn will see what this caller sees.
    if (!this.#queued && !this.#closed) {
      this.#queued = true;
      this.#work = this.#work.catch(() => undefined).then(() => this.#sync());
    }
    return this.#work;
  }

  get(name: string): LoadedShim | undefined {
    return this.#served.get(name)?.shim;
  }

  names(): readonly string[] {
    return [...this.#served.keys()].sort();
  }

  /** Whether a shim serves that is not of the package, nor another version of one that is. */
  get hasForeign(): boolean {
    const { folders, builtIn } = this.#options;
    return [...this.#served.values()].some(
      ({ entry, overrides }) => folders[entry.folderIndex] !== builtIn && overrides === undefined,
    );
  }

  /** The shim in whose file an error was made, by its stack. */
  shimAt(stack: string): string | undefined {
    return [...this.#served.values()].find(({ shim }) => stack.includes(shim.file))?.shim.name;
  }

  conceal(text: string): string {
    return this.#options.conceal?.(text) ?? text;
  }

  /** Every shim that serves and every file that does not, by name. A shim whose place another took is only named by that one. */
  list(): ShimReport[] {
    const served = [...this.#served.values()].map(servedReport);
    const failed = [...this.#entries.values()]
      .filter((entry) => entry.current === undefined && entry.fault !== undefined)
      .map(failedReport);
    return [...served, ...failed].sort((a, b) => compare(a.name, b.name) || compare(a.file, b.file));
  }

  /** Stops watching; what is loaded stays usable. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#watcher?.close();
    await this.#work.catch(() => undefined);
  }

  async #sync(): Promise<void> {
    this.#queued = false;
    if (this.#closed) return;
    const entryModule = await this.#importEntry();
    // Watch first, read second: what changes in between is then seen as a change.
    await this.#watcher?.update(await this.#foldersToWatch());
    const found = await this.#findFiles();
    const results = await Promise.all(found.map((file) => this.#examine(file, entryModule, found.length)));
    const entries = settle(results);
    const served = serve(entries);
    const changed = this.#report(entries, served);
    this.#entries = entries;
    this.#served = served;
    if (changed) this.#options.onChange?.();
    // Which folders helpers lie in is known only now.
    if ((await this.#watcher?.update(await this.#foldersToWatch())) === true) await this.#sync();
  }

  /** Ours is imported once per process, by the same URL as the server's own modules import it: so its classes are the same. */
  async #importEntry(): Promise<Readonly<Record<string, unknown>>> {
    const url = String(this.#options.entryUrl);
    this.#entryModule ??= import(/* @vite-ignore */ url) as Promise<Readonly<Record<string, unknown>>>;
    const module = await this.#entryModule;
    if (module.Shim !== Shim) throw new TypeError(`${url} is another copy of "${SHIMS_ENTRY}" than the server's own.`);
    return module;
  }

  async #foldersToWatch(): Promise<ReadonlySet<string>> {
    const folders = new Set<string>();
    for (const folder of this.#options.folders) {
      const present = await foldersIn(resolve(folder));
      for (const each of present.length > 0 ? present : [await nearestFolder(resolve(folder))]) folders.add(each);
    }
    for (const { sources } of this.#entries.values()) for (const source of sources) folders.add(dirname(source));
    return folders;
  }

  async #findFiles(): Promise<Examinable[]> {
    const seen = new Set<string>();
    const found: Examinable[] = [];
    for (const [folderIndex, folder] of this.#options.folders.entries()) {
      const path = resolve(folder);
      const real = await realPathOf(path);
      if (seen.has(real)) continue;
      seen.add(real);
      for (const file of await listShimFiles(path))
        if (!(await this.#servedCompiled(file, real))) found.push({ ...file, folderIndex });
    }
    return found;
  }

  async #examine(file: Examinable, entryModule: Readonly<Record<string, unknown>>, count: number): Promise<Examined> {
    const known = this.#entries.get(file.file);
    const isNative = this.#isNative(file);
    if (known !== undefined && isNative) return { entry: known, fresh: undefined };
    if (
      known !== undefined &&
      (known.fault === undefined || !known.retry) &&
      (await hashShim(known, known.sources)) === known.triedHash
    ) {
      return { entry: known, fresh: undefined };
    }
    const sources = new Map<string, string>();
    const timeoutMs = this.#options.importTimeoutMs ?? IMPORT_TIMEOUT_MS + count * COMPILE_MS;
    const evaluated = isNative ? importShimFile(file.file, sources) : evaluateShimFile(file.file, entryModule, sources);
    const outcome = await within(evaluated, {
      clock: systemClock,
      timeoutMs,
      graceMs: 0,
    });
    const triedHash = await hashShim(file, sources.keys(), sources);
    const entry = {
      ...file,
      current: known?.current,
      sources: [...sources.keys()],
      triedHash,
      retry: outcome.kind !== 'timeout',
    };
    try {
      if (outcome.kind === 'error') throw outcome.error;
      if (outcome.kind !== 'value')
        throw new ShimFileError(
          `The file was not evaluated within ${timeoutMs} ms: something that it awaits does not settle.`,
        );
      const fresh = loadedShim(outcome.value.exports.default, { file: file.file, hash: triedHash });
      return { entry: { ...entry, fault: undefined }, fresh };
    } catch (error) {
      const fault = faultOf(error, sources.get(file.file) ?? '');
      return { entry: { ...entry, fault: { ...fault, message: this.conceal(fault.message) } }, fresh: undefined };
    }
  }

  #isNative({ file, folderIndex }: Examinable): boolean {
    return this.#options.folders[folderIndex] === this.#options.builtIn?.folder && extname(file) === '.js';
  }

  async #servedCompiled(file: ShimFile, folder: string): Promise<boolean> {
    const { builtIn } = this.#options;
    // What was loaded once since the start is newer than the compiled module that this process holds, built again or not.
    if (builtIn?.source !== folder || this.#entries.has(file.file)) return false;
    return isCompiled(file, folder, builtIn.folder);
  }

  /** Logs what is other than before; false when nothing is. */
  #report(entries: ReadonlyMap<string, Entry>, served: ReadonlyMap<string, Served>): boolean {
    const { log } = this.#options;
    let changed = false;
    for (const { shim, overrides } of served.values()) {
      const before = this.#served.get(shim.name);
      if (before?.shim === shim && before.overrides === overrides) continue;
      changed = true;
      log.info({ shim: shim.name, file: shownPath(shim.file), hash: shim.hash, overrides }, 'shim loaded');
    }
    for (const name of this.#served.keys()) {
      if (served.has(name)) continue;
      changed = true;
      log.info({ shim: name }, 'shim removed');
    }
    for (const [file, { fault, current, triedHash }] of entries) {
      const before = this.#entries.get(file);
      if (before?.fault?.message === fault?.message && (fault === undefined || before?.triedHash === triedHash))
        continue;
      changed = true;
      if (fault !== undefined)
        log.warn(
          { file: shownPath(file), line: fault.line, reason: fault.message, serving: current?.hash },
          'shim file refused',
        );
    }
    return changed || [...this.#entries].some(([file, { fault }]) => fault !== undefined && !entries.has(file));
  }
}

interface Examined {
  readonly entry: Entry;
  /** What the file holds now, where it was loaded again and is in order. */
  readonly fresh: LoadedShim | undefined;
}

/** Gives each loaded version its name within its folder; the second file of a name is refused, and keeps serving what it served. */
function settle(results: readonly Examined[]): Map<string, Entry> {
  const holders = new Map<string, Entry>();
  const key = (entry: Entry, shim: LoadedShim): string => `${entry.folderIndex}/${shim.name}`;
  for (const { entry, fresh } of results) {
    if (fresh === undefined && entry.current !== undefined) holders.set(key(entry, entry.current), entry);
  }
  const entries = new Map<string, Entry>();
  for (const { entry, fresh } of results) {
    let settled = entry;
    if (fresh !== undefined) {
      const holder = holders.get(key(entry, fresh));
      settled = holder === undefined ? { ...entry, current: fresh } : refused(entry, fresh, holder, holders, key);
      if (settled.current !== undefined) holders.set(key(settled, settled.current), settled);
    }
    entries.set(settled.file, settled);
  }
  return entries;
}

function refused(
  entry: Entry,
  fresh: LoadedShim,
  holder: Entry,
  holders: ReadonlyMap<string, Entry>,
  key: (entry: Entry, shim: LoadedShim) => string,
): Entry {
  const message = `Two files have a shim named ${JSON.stringify(fresh.name)}: ${shownPath(holder.file)} and ${shownPath(entry.file)}. The second is not loaded.`;
  const { current } = entry;
  const keeps = current !== undefined && !holders.has(key(entry, current));
  return { ...entry, current: keeps ? current : undefined, fault: { message, line: null, column: null } };
}

/** Who serves each name: the last folder that has it. */
function serve(entries: ReadonlyMap<string, Entry>): Map<string, Served> {
  const served = new Map<string, Served>();
  for (const entry of entries.values()) {
    const shim = entry.current;
    if (shim !== undefined) served.set(shim.name, { entry, shim, overrides: served.get(shim.name)?.shim.file });
  }
  return served;
}

function servedReport({ entry, shim, overrides }: Served): ShimReport {
  const { name, version, description, hash, configSchema } = shim;
  return {
    name,
    version,
    description,
    file: shownPath(shim.file),
    hash,
    configSchema,
    state: entry.fault === undefined ? 'loaded' : 'stale',
    ...(overrides === undefined ? {} : { overrides: shownPath(overrides) }),
    ...(entry.fault === undefined ? {} : { error: entry.fault }),
  };
}

function failedReport(entry: Entry): ShimReport {
  const error = entry.fault ?? { message: 'not loaded', line: null, column: null };
  return {
    name: stemOf(entry),
    version: null,
    description: '',
    file: shownPath(entry.file),
    hash: entry.triedHash,
    configSchema: null,
    state: 'failed',
    error,
  };
}

/** A fault with its place; one that is about what the file exports is at its `export default`. */
function faultOf(error: unknown, source: string): ShimFault {
  if (error instanceof ShimFileError && error.line !== null)
    return { message: error.message, line: error.line, column: error.column };
  const line = lineOf(source, (text) => /^\s*export\s+(default\b|\{.*\bas default\b)/.test(text));
  return { message: messageOf(error), line: line ?? null, column: line === undefined ? null : 1 };
}

function compare(a: string, b: string): number {
  return a < b ? -1 : Number(a > b);
}
