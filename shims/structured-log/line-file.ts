import { type FileHandle, mkdir, open, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';

export interface LineFileOptions {
  /** A file that would become larger is put aside first. */
  readonly maxBytes: number;
  /** How many files that were put aside are kept. */
  readonly keep: number;
}

/** What may wait to be written; what comes when it is full is counted and dropped. */
const MOST_WAITING_BYTES = 8 * 1024 * 1024;

/** A file that only grows by whole lines, for all runs of the process. */
export class LineFile {
  readonly #path: string;
  #options: LineFileOptions;
  #waiting: string[] = [];
  #waitingBytes = 0;
  #dropped = 0;
  #writing: Promise<void> | undefined;
  #failure: Error | undefined;

  constructor(path: string, options: LineFileOptions) {
    this.#path = path;
    this.#options = options;
  }

  /** The options that the next lines are written by. */
  set options(options: LineFileOptions) {
    this.#options = options;
  }

  /** Why the newest lines are not in the file; undefined when they are, or are on their way. */
  get failure(): Error | undefined {
    return this.#failure;
  }

  /** Takes a line, to be written soon, in the order of the calls. */
  write(fields: Readonly<Record<string, unknown>>): void {
    const line = `${encode(fields)}\n`;
    const bytes = Buffer.byteLength(line);
    if (this.#waitingBytes + bytes > MOST_WAITING_BYTES) {
      this.#dropped += 1;
      this.#failure = new Error('lines come faster than they can be written');
      return;
    }
    this.#waiting.push(line);
    this.#waitingBytes += bytes;
    this.#writing ??= this.#drain();
  }

  /** Waits until every line so far is in the file. @throws what kept one from it */
  async flush(): Promise<void> {
    await this.#writing;
    if (this.#failure !== undefined) throw this.#failure;
  }

  async #drain(): Promise<void> {
    // What comes in one go is written in one go.
    await Promise.resolve();
    while (this.#waiting.length > 0) {
      const lines = this.#waiting;
      this.#waiting = [];
      this.#waitingBytes = 0;
      try {
        await this.#append(lines);
        this.#failure = undefined;
      } catch (error) {
        this.#failure = error instanceof Error ? error : new Error(String(error));
        this.#dropped += lines.length;
      }
    }
    this.#writing = undefined;
  }

  async #append(lines: readonly string[]): Promise<void> {
    await mkdir(dirname(this.#path), { recursive: true, mode: 0o700 });
    const lost = this.#dropped;
    const note = lost === 0 ? [] : [`${encode({ at: new Date().toISOString(), type: 'log.dropped', lines: lost })}\n`];
    let rest: readonly string[] = [...note, ...lines];
    while (rest.length > 0) {
      const file = await open(this.#path, 'a+', 0o600);
      try {
        const { size } = await file.stat();
        // A line that a crash or a full disk cut short must not run into the next one.
        const gap = size > 0 && !(await endsLine(file, size)) ? '\n' : '';
        const fitting = fit(rest, this.#options.maxBytes - size - gap.length, size === 0);
        if (fitting > 0) await file.appendFile(gap + rest.slice(0, fitting).join(''));
        rest = rest.slice(fitting);
      } finally {
        await file.close();
      }
      if (rest.length > 0) await this.#putAside();
    }
    this.#dropped -= lost;
  }

  async #putAside(): Promise<void> {
    const { keep } = this.#options;
    if (keep === 0) {
      await rm(this.#path, { force: true });
      return;
    }
    for (let number = keep - 1; number >= 1; number -= 1)
      await moved(`${this.#path}.${number}`, `${this.#path}.${number + 1}`);
    await moved(this.#path, `${this.#path}.1`);
  }
}

/** How many lines fit; a line that is too long for any file has one for itself. */
function fit(lines: readonly string[], room: number, empty: boolean): number {
  let count = 0;
  for (let left = room; count < lines.length; count += 1) {
    left -= Buffer.byteLength(lines[count] ?? '');
    if (left < 0 && !(empty && count === 0)) break;
  }
  return count;
}

async function endsLine(file: FileHandle, size: number): Promise<boolean> {
  const { buffer } = await file.read(Buffer.alloc(1), 0, 1, size - 1);
  return buffer[0] === 10;
}

async function moved(from: string, to: string): Promise<void> {
  try {
    await rename(from, to);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
}

/** JSON on one line, also for readers that take other characters than a line feed for the end of one. */
function encode(fields: Readonly<Record<string, unknown>>): string {
  return JSON.stringify(fields).replace(
    /[\u007f-\u009f\u2028\u2029]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

const files = new Map<string, LineFile>();

/** The one writer of a file in this process. */
export function lineFile(path: string, options: LineFileOptions): LineFile {
  const file = files.get(path) ?? new LineFile(path, options);
  file.options = options;
  files.set(path, file);
  return file;
}
