import type { Dirent } from 'node:fs';
import { lstat, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Ignore } from 'ignore';
import { ignoreRules } from './glob.js';

export interface Entry {
  /** From the root, with slashes. */
  readonly path: string;
  readonly name: string;
  readonly kind: 'file' | 'folder' | 'link' | 'other';
}

export interface WalkOptions {
  /** Absolute, real. */
  readonly root: string;
  /** From the root; `.` for the root. */
  readonly start: string;
  /** Also what .gitignore leaves out. */
  readonly includeIgnored: boolean;
  /** Whether the policy lets an entry be seen; a folder that it does not is not entered. */
  readonly allows: (entry: Entry) => boolean;
  readonly signal: AbortSignal;
}

const MOST_ENTRIES = 200_000;
const MOST_DEPTH = 100;
const MOST_IGNORE_BYTES = 200_000;

interface Rules {
  /** The folder of the .gitignore, from the root; empty for the root. */
  readonly base: string;
  readonly rules: Ignore;
}

/** Walks a folder in the order of the names, without following links, and counts what it does not show. */
export class Walk {
  ignored = 0;
  denied = 0;
  /** True when there was more than it looks at. */
  stopped = false;
  #seen = 0;
  readonly #options: WalkOptions;

  constructor(options: WalkOptions) {
    this.#options = options;
  }

  /** All that is below the start. */
  async *all(): AsyncGenerator<Entry> {
    yield* this.#below(this.#start, await this.#rulesAbove(), 0);
  }

  /** What is in the start itself. */
  async entries(): Promise<readonly Entry[]> {
    const rules = await this.#rulesAbove();
    const { shown } = await this.#in(this.#start, rules);
    return shown;
  }

  get #start(): string {
    return this.#options.start === '.' ? '' : this.#options.start;
  }

  async *#below(folder: string, above: readonly Rules[], depth: number): AsyncGenerator<Entry> {
    this.#options.signal.throwIfAborted();
    const { shown, rules } = await this.#in(folder, above);
    for (const entry of shown) {
      if (this.stopped) return;
      yield entry;
      if (entry.kind !== 'folder') continue;
      if (depth >= MOST_DEPTH) this.stopped = true;
      else yield* this.#below(entry.path, rules, depth + 1);
    }
  }

  async #in(
    folder: string,
    above: readonly Rules[],
  ): Promise<{ readonly shown: readonly Entry[]; readonly rules: readonly Rules[] }> {
    const found = await readdir(join(this.#options.root, folder), { withFileTypes: true });
    found.sort((one, other) => (one.name < other.name ? -1 : 1));
    const own = found.some((entry) => entry.name === '.gitignore' && entry.isFile()) ? await this.#rulesOf(folder) : [];
    const rules = [...above, ...own];
    const shown: Entry[] = [];
    for (const dirent of found) {
      const entry: Entry = {
        path: folder === '' ? dirent.name : `${folder}/${dirent.name}`,
        name: dirent.name,
        kind: kindOf(dirent),
      };
      if (entry.name === '.git' || (isIgnored(entry, rules) && !this.#options.includeIgnored)) this.ignored += 1;
      else if (!this.#options.allows(entry)) this.denied += 1;
      else if (this.#seen >= MOST_ENTRIES) this.stopped = true;
      else {
        this.#seen += 1;
        shown.push(entry);
      }
    }
    return { shown, rules };
  }

  /** The rules of the folders above the start. None, when the start is ignored itself: then it was asked for by name. */
  async #rulesAbove(): Promise<readonly Rules[]> {
    const names = this.#start === '' ? [] : this.#start.split('/');
    const rules: Rules[] = [];
    let folder = '';
    for (const name of names) {
      rules.push(...(await this.#rulesOf(folder)));
      folder = folder === '' ? name : `${folder}/${name}`;
      if (isIgnored({ path: folder, name, kind: 'folder' }, rules)) return [];
    }
    return rules;
  }

  async #rulesOf(folder: string): Promise<readonly Rules[]> {
    if (this.#options.includeIgnored) return [];
    const file = join(this.#options.root, folder, '.gitignore');
    try {
      const found = await lstat(file);
      if (!found.isFile() || found.size > MOST_IGNORE_BYTES) return [];
      return [{ base: folder, rules: ignoreRules(await readFile(file, 'utf8')) }];
    } catch {
      // Without the file, or the right to read it, there are no rules.
      return [];
    }
  }
}

function kindOf(dirent: Dirent): Entry['kind'] {
  if (dirent.isFile()) return 'file';
  if (dirent.isDirectory()) return 'folder';
  return dirent.isSymbolicLink() ? 'link' : 'other';
}

/** The .gitignore nearest to an entry that says something of it decides. */
function isIgnored({ path, name, kind }: Entry, rules: readonly Rules[]): boolean {
  if (name === '.git') return true;
  for (const { base, rules: own } of rules.toReversed()) {
    const inner = base === '' ? path : path.slice(base.length + 1);
    const { ignored, unignored } = own.test(kind === 'folder' ? `${inner}/` : inner);
    if (ignored || unignored) return ignored;
  }
  return false;
}
