import type { FileHandle } from 'node:fs/promises';
import { StringDecoder } from 'node:string_decoder';
import { headOf } from './text.js';

export interface SliceOptions {
  /** The first line, from 1, and the first character in it, from 1. */
  readonly offset: number;
  readonly column: number;
  /** Most lines, and most characters. */
  readonly limit: number;
  readonly maxChars: number;
  readonly signal: AbortSignal;
}

export interface Slice {
  readonly text: string;
  /** The last line of which something is in `text`; less than `offset` where there is none. */
  readonly lastLine: number;
  /** Where to go on; undefined at the end. */
  readonly next: { readonly line: number; readonly column: number } | undefined;
  /** Lines of the whole file; undefined when it is too large to be counted. */
  readonly lines: number | undefined;
}

const CHUNK_BYTES = 65_536;
/** Beyond it the lines are not counted any more. */
const MOST_BYTES = 256_000_000;
const NEWLINE = 10;

/** Reads some lines of a file in pieces, so that neither a large file nor a long line is ever in memory as a whole. */
export async function readSlice(handle: FileHandle, options: SliceOptions): Promise<Slice> {
  const reader = new LineReader(options);
  const chunk = Buffer.alloc(CHUNK_BYTES);
  let position = 0;
  for (;;) {
    options.signal.throwIfAborted();
    const { bytesRead } = await handle.read(chunk, 0, CHUNK_BYTES, position);
    if (bytesRead === 0) return reader.end(true);
    position += bytesRead;
    reader.take(chunk.subarray(0, bytesRead));
    if (position >= MOST_BYTES && reader.isFull) return reader.end(false);
  }
}

class LineReader {
  readonly #options: SliceOptions;
  readonly #decoder = new StringDecoder('utf8');
  /** The line that is being read, from 1. */
  #line = 1;
  #text = '';
  /** What of the present line is still to be left out before the column. */
  #skip: number;
  /** Where in the text the present line begins. */
  #lineStart = 0;
  #lastLine: number;
  #next: Slice['next'];
  /** Whether the file's last byte so far is not a newline. */
  #open = false;

  constructor(options: SliceOptions) {
    this.#options = options;
    this.#skip = options.column - 1;
    this.#lastLine = options.offset - 1;
  }

  get isFull(): boolean {
    return this.#next !== undefined;
  }

  take(bytes: Buffer): void {
    let from = 0;
    while (from < bytes.length) {
      const newline = bytes.indexOf(NEWLINE, from);
      const to = newline < 0 ? bytes.length : newline + 1;
      if (this.#line >= this.#options.offset && !this.isFull) this.#keep(bytes.subarray(from, to));
      this.#open = newline < 0;
      if (newline >= 0) {
        this.#line += 1;
        this.#skip = 0;
        this.#lineStart = this.#text.length;
      }
      from = to;
    }
  }

  #keep(bytes: Buffer): void {
    const { offset, limit, maxChars, column } = this.#options;
    if (this.#line >= offset + limit) {
      this.#next = { line: this.#line, column: 1 };
      return;
    }
    const decoded = this.#decoder.write(bytes);
    const skipped = Math.min(this.#skip, decoded.length);
    this.#skip -= skipped;
    this.#text += decoded.slice(skipped);
    this.#lastLine = this.#line;
    if (this.#text.length - (this.#text.endsWith('\n') ? 1 : 0) <= maxChars) return;
    if (this.#lineStart > 0) {
      // The lines before it are whole: this one is for the next time.
      this.#text = this.#text.slice(0, this.#lineStart);
      this.#next = { line: this.#line, column: 1 };
      this.#lastLine = this.#line - 1;
    } else {
      this.#text = headOf(this.#text, maxChars);
      const start = this.#line === offset ? column : 1;
      this.#next = { line: this.#line, column: start + this.#text.length };
    }
  }

  end(counted: boolean): Slice {
    if (!this.isFull) this.#text += this.#decoder.end();
    const lines = this.#open ? this.#line : this.#line - 1;
    return { text: this.#text, lastLine: this.#lastLine, next: this.#next, lines: counted ? lines : undefined };
  }
}
