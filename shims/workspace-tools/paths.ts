import { lstatSync, mkdirSync, realpathSync, statSync } from 'node:fs';
import { basename, dirname, isAbsolute, join, relative, resolve, sep } from 'node:path';
import { codeOf, Refusal, refusalOf } from './refusal.js';

/** A path of a call, as it really is. Everything is decided and done by `real`, never by what the model wrote. */
export interface Place {
  /** Absolute, without links. */
  readonly real: string;
  /** `real` from the root, with slashes; `.` for the root. */
  readonly shown: string;
  /** As it was written, from the root: it may lead to `shown` by a link. */
  readonly written: string;
  readonly exists: boolean;
}

/** The folder that the tools work in. */
export class Root {
  readonly path: string;
  readonly #made: boolean;

  /** @param options `made`: it is the conversation's own, so it is made where it is missing */
  constructor(path: string, options: { readonly made: boolean }) {
    this.path = resolve(path);
    this.#made = options.made;
  }

  /** @throws Refusal */
  assertUsable(): void {
    this.#open();
  }

  /** Its real path. @throws Refusal */
  get real(): string {
    return this.#open();
  }

  #open(): string {
    try {
      if (this.#made) mkdirSync(this.path, { recursive: true });
      if (!statSync(this.path).isDirectory())
        throw new Refusal('no_root', 'The root of the workspace is not a folder.');
      return realpathSync.native(this.path);
    } catch (error) {
      if (error instanceof Refusal) throw error;
      throw new Refusal('no_root', `The root of the workspace cannot be used (${codeOf(error) ?? 'unknown error'}).`);
    }
  }

  /**
   * Where a path leads, with all links followed: those of folders above a file that does not exist yet too.
   * @throws Refusal when it leads out of the root, or nowhere
   */
  resolve(given: string): Place {
    if (given.includes('\0')) throw new Refusal('invalid_path', 'A path cannot hold the character NUL.');
    const root = this.real;
    const lexical = resolve(root, given);
    const from = [root, this.path].find((folder) => isInside(folder, lexical));
    // Nothing outside is looked at, so that an answer does not tell what is there.
    if (from === undefined) throw outside(given);
    const { existing, missing } = nearest(lexical, given);
    const real = join(existing, ...missing);
    if (!isInside(root, real)) throw outside(given);
    return {
      real,
      shown: shownFrom(root, real),
      written: shownFrom(from, lexical),
      exists: missing.length === 0,
    };
  }
}

function outside(given: string): Refusal {
  return new Refusal(
    'outside_root',
    `${given} is outside of the workspace. Paths are relative to its root; links that lead out are not followed.`,
  );
}

function isInside(folder: string, path: string): boolean {
  return path === folder || path.startsWith(folder.endsWith(sep) ? folder : folder + sep);
}

function shownFrom(folder: string, path: string): string {
  return path === folder ? '.' : relative(folder, path).split(sep).join('/');
}

/** The real path of the nearest thing above that exists, and the names below it that do not. @throws Refusal */
function nearest(path: string, given: string): { readonly existing: string; readonly missing: readonly string[] } {
  const missing: string[] = [];
  for (let at = path; ; at = dirname(at)) {
    try {
      const found = lstatSync(at);
      try {
        return { existing: realpathSync.native(at), missing };
      } catch (error) {
        if (found.isSymbolicLink() && codeOf(error) === 'ENOENT')
          throw new Refusal('dangling_link', `${given} goes by a symbolic link that leads to nothing.`);
        throw error;
      }
    } catch (error) {
      const code = codeOf(error);
      if ((code !== 'ENOENT' && code !== 'ENOTDIR') || dirname(at) === at) throw refusalOf(error, given);
      missing.unshift(basename(at));
    }
  }
}

/** The root that a config asks for: its own, or one of the conversation's. */
export function rootFor(
  configured: string | undefined,
  run: { readonly dataDir: string; readonly runId: string },
): Root {
  if (configured !== undefined) return new Root(configured, { made: false });
  // An id is made by the server; one that is not a plain name is not made a path of.
  const id = run.runId.replace(/[^A-Za-z0-9_-]/g, '_');
  const folder = isAbsolute(run.dataDir) ? run.dataDir : resolve(run.dataDir);
  return new Root(join(folder, 'workspaces', id), { made: true });
}
