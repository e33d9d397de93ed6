import { spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setImmediate as nextTick } from 'node:timers/promises';
import { Refusal } from './refusal.js';

export interface Query {
  readonly pattern: string;
  readonly literal: boolean;
  readonly ignoreCase: boolean;
  /** Lines before and after each match. */
  readonly context: number;
  /** Most matching lines of one file. */
  readonly maxCount: number;
}

export interface FoundLine {
  readonly line: number;
  readonly text: string;
  /** Where in the text the match begins; undefined for a line of the context. */
  readonly at: number | undefined;
}
export interface FoundFile {
  readonly path: string;
  readonly lines: readonly FoundLine[];
}

/** Searches files, named from the root, in their order; binary ones are passed over. @throws Refusal for a bad pattern */
export type Search = (
  root: string,
  files: readonly string[],
  query: Query,
  signal: AbortSignal,
) => AsyncGenerator<FoundFile>;

/** Files that are larger are not searched. */
export const MOST_FILE_BYTES = 10_000_000;

let chosen: Promise<Search> | undefined;

/** ripgrep where its package has a program for this machine, else an engine in JavaScript that takes the same patterns. */
export async function searchEngine(): Promise<Search> {
  chosen ??= ripgrepPath(async () => import('@vscode/ripgrep')).then((path) =>
    path === undefined ? searchHere : searchWith(path),
  );
  return chosen;
}

/** @param load gives the package, or throws where it is not there or has nothing for this machine */
export async function ripgrepPath(load: () => Promise<{ readonly rgPath: string }>): Promise<string | undefined> {
  try {
    const { rgPath } = await load();
    const child = spawn(rgPath, ['--version'], { stdio: 'ignore', env: {} });
    return await new Promise((done) => {
      child.once('error', () => {
        done(undefined);
      });
      child.once('exit', (code) => {
        done(code === 0 ? rgPath : undefined);
      });
    });
  } catch {
    return undefined;
  }
}

/** A command line holds so much. */
const MOST_ARGUMENT_CHARS = 60_000;

export function searchWith(program: string): Search {
  return async function* search(root, files, query, signal) {
    let batch: string[] = [];
    let chars = 0;
    for (const file of files) {
      if (chars + file.length > MOST_ARGUMENT_CHARS) {
        yield* ripgrep(program, { root, files: batch, query, signal });
        batch = [];
        chars = 0;
      }
      batch.push(file);
      chars += file.length + 8;
    }
    if (batch.length > 0) yield* ripgrep(program, { root, files: batch, query, signal });
  };
}

interface Batch {
  readonly root: string;
  readonly files: readonly string[];
  readonly query: Query;
  readonly signal: AbortSignal;
}

async function* ripgrep(program: string, { root, files, query, signal }: Batch): AsyncGenerator<FoundFile> {
  const options = [
    ...['--json', '--no-config', '--no-ignore', '--hidden', '--no-messages', '--threads', '1'],
    ...['--max-count', String(query.maxCount), '--context', String(query.context)],
    ...(query.literal ? ['--fixed-strings'] : []),
    ...(query.ignoreCase ? ['--ignore-case'] : []),
    ...['--regexp', query.pattern, '--'],
  ];
  const paths = files.map((file) => `./${file}`);
  const child = spawn(program, [...options, ...paths], {
    cwd: root,
    env: {},
    stdio: ['ignore', 'pipe', 'pipe'],
    signal,
  });
  let faults = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    faults = (faults + text).slice(0, 2000);
  });
  const closed = new Promise<number | null>((done, failed) => {
    child.once('error', failed);
    child.once('close', done);
  });
  closed.catch(() => undefined);
  try {
    let lines: FoundLine[] = [];
    for await (const json of createInterface({ input: child.stdout })) {
      const message = JSON.parse(json) as RipgrepMessage;
      if (message.type === 'begin') lines = [];
      else if (message.type === 'match' || message.type === 'context') lines.push(lineOf(message.data));
      else if (message.type === 'end' && message.data.binary_offset === null && lines.length > 0)
        yield { path: textOf(message.data.path).slice(2), lines };
    }
    const code = await closed;
    signal.throwIfAborted();
    if (code === 2 && faults.includes('regex parse error')) throw badPattern(query.pattern, faults);
  } finally {
    child.kill('SIGKILL');
  }
}

type RipgrepText = { readonly text: string } | { readonly bytes: string };
interface RipgrepLine {
  readonly lines: RipgrepText;
  readonly line_number: number;
  readonly submatches: readonly { readonly start: number }[];
}
type RipgrepMessage =
  | { readonly type: 'begin' | 'summary' }
  | { readonly type: 'match' | 'context'; readonly data: RipgrepLine }
  | { readonly type: 'end'; readonly data: { readonly path: RipgrepText; readonly binary_offset: number | null } };

function textOf(text: RipgrepText): string {
  return 'text' in text ? text.text : Buffer.from(text.bytes, 'base64').toString('utf8');
}

function lineOf({ lines, line_number: line, submatches }: RipgrepLine): FoundLine {
  const bytes = 'text' in lines ? Buffer.from(lines.text) : Buffer.from(lines.bytes, 'base64');
  const start = submatches[0]?.start;
  return {
    line,
    text: bytes.toString('utf8').replace(/\r?\n$/, ''),
    at: start === undefined ? undefined : bytes.subarray(0, start).toString('utf8').length,
  };
}

function badPattern(pattern: string, why: string): Refusal {
  return new Refusal(
    'bad_pattern',
    `${pattern} is not a regular expression (no look-around, no back-references; literal: true searches for a text as it is): ${why.trim()}`,
  );
}

/** Lines after which the server gets to do something else. */
const LINES_AT_ONCE = 2000;

/** The search in JavaScript. Its patterns are matched in linear time: one that a model wrote must not stop the server. */
export const searchHere: Search = async function* search(root, files, query, signal) {
  const matcher = await matcherOf(query);
  for (const path of files) {
    signal.throwIfAborted();
    const text = await textOfFile(join(root, path));
    if (text === undefined) continue;
    const all = text.split('\n').map((line) => line.replace(/\r$/, ''));
    if (all.at(-1) === '') all.pop();
    const hits = new Map<number, number>();
    for (const [index, line] of all.entries()) {
      const at = hits.size < query.maxCount ? matcher(line) : undefined;
      if (at !== undefined) hits.set(index, at);
      if (index % LINES_AT_ONCE === LINES_AT_ONCE - 1) {
        await nextTick();
        signal.throwIfAborted();
      }
    }
    if (hits.size > 0) yield { path, lines: withContext(all, hits, query.context) };
  }
};

async function matcherOf({ pattern, literal, ignoreCase }: Query): Promise<(line: string) => number | undefined> {
  const { RE2JS } = await import('re2js');
  try {
    const expression = RE2JS.compile(literal ? RE2JS.quote(pattern) : pattern, ignoreCase ? RE2JS.CASE_INSENSITIVE : 0);
    return (line) => {
      const matcher = expression.matcher(line);
      return matcher.find() ? matcher.start() : undefined;
    };
  } catch (error) {
    throw badPattern(pattern, error instanceof Error ? error.message : '');
  }
}

async function textOfFile(path: string): Promise<string | undefined> {
  try {
    const bytes = await readFile(path);
    return bytes.includes(0) ? undefined : bytes.toString('utf8').replace(/^\uFEFF/, '');
  } catch {
    // A file that went away, or that the server may not read, has no matches.
    return undefined;
  }
}

function withContext(all: readonly string[], hits: ReadonlyMap<number, number>, context: number): FoundLine[] {
  const wanted = new Set<number>();
  for (const hit of hits.keys())
    for (let index = Math.max(0, hit - context); index <= Math.min(all.length - 1, hit + context); index += 1)
      wanted.add(index);
  return [...wanted].map((index) => ({ line: index + 1, text: all[index] ?? '', at: hits.get(index) }));
}
