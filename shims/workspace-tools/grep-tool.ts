import { lstat } from 'node:fs/promises';
import { join } from 'node:path';
import { defineTool, type Tool, type ToolContext, z } from 'shimline/shims';
import { notFound } from './files.js';
import { globMatcher } from './glob.js';
import { operationsOf } from './operations.js';
import { leftOut, oneLine, walkFor } from './read-tools.js';
import { answered, Refusal } from './refusal.js';
import { type FoundFile, type FoundLine, MOST_FILE_BYTES, searchEngine } from './search.js';
import { headOf, tailOf, withoutNul } from './text.js';
import type { Workspace } from './workspace.js';

const MOST_LINE_CHARS = 300;
const DEFAULT_MATCHES = 100;

const GrepParameters = z.object({
  pattern: withoutNul(z.string().min(1).max(2000)).meta({
    description: 'A regular expression (RE2), matched line by line.',
  }),
  path: z.string().min(1).default('.').meta({ description: 'A folder or a file.' }),
  glob: z.string().min(1).optional().meta({ description: 'Only files that it matches, as *.ts or src/**/*.ts.' }),
  literal: z.boolean().default(false).meta({ description: 'Search for the text as it is.' }),
  ignoreCase: z.boolean().default(false),
  context: z.int().nonnegative().max(20).default(0).meta({ description: 'Lines to show before and after each match.' }),
  offset: z.int().positive().default(1).meta({ description: 'First match, from 1.' }),
  limit: z.int().positive().max(2000).default(DEFAULT_MATCHES).meta({ description: 'Most matching lines.' }),
  includeIgnored: z.boolean().default(false).meta({ description: 'Also in what .gitignore leaves out.' }),
});
type GrepArguments = z.output<typeof GrepParameters>;

export function grepTool(workspace: Workspace, name: string): Tool {
  return defineTool({
    name,
    operations: operationsOf('grep'),
    description:
      'Searches the text of the files of the workspace. Answers path:line:text for each match (path-line-text for lines around it). What .gitignore leaves out, binary and very large files are left out.',
    parameters: GrepParameters,
    onCrash: 'retry',
    execute: async (args, context) => answered(args.path, async () => grep(workspace, args, context)),
  });
}

async function grep(workspace: Workspace, args: GrepArguments, context: ToolContext): Promise<string> {
  const { files, notes } = await filesFor(workspace, args, context);
  const query = { ...args, maxCount: args.offset + args.limit };
  const search = await searchEngine();
  const page = new MatchPage(args, workspace.config.maxChars);
  for await (const file of search(workspace.root.real, files, query, context.signal)) {
    page.add(file);
    if (page.isFull) break;
  }
  return [page.toString(), ...notes].join('\n');
}

/** The files to search, in the order in which their matches are told. @throws Refusal */
async function filesFor(
  workspace: Workspace,
  args: GrepArguments,
  context: ToolContext,
): Promise<{ readonly files: readonly string[]; readonly notes: readonly string[] }> {
  const place = workspace.root.resolve(args.path);
  if (!place.exists) throw await notFound(workspace, place);
  const root = workspace.root.real;
  const found = await lstat(place.real);
  if (found.isFile()) {
    workspace.permitPlace('read:grep', place, context);
    if (found.size > MOST_FILE_BYTES)
      throw new Refusal('too_large', `${place.shown} has ${found.size} bytes: it is too large to be searched.`);
    return { files: [place.shown], notes: [] };
  }
  const matches = args.glob === undefined ? () => true : globMatcher(args.glob);
  const base = place.shown === '.' ? '' : `${place.shown}/`;
  const { walk } = await walkFor(workspace, 'read:grep', args, context);
  const files: string[] = [];
  let large = 0;
  for await (const { path, kind } of walk.all()) {
    if (kind !== 'file' || !(matches(path.slice(base.length)) || (base !== '' && matches(path)))) continue;
    const found = await lstat(join(root, path)).catch(() => undefined);
    if (found !== undefined && found.size > MOST_FILE_BYTES) large += 1;
    else files.push(path);
  }
  const note = large === 0 ? [] : [`[${large} very large ${large === 1 ? 'file was' : 'files were'} not searched.]`];
  return { files, notes: [...leftOut(walk), ...note] };
}

/** The matches from `offset` on, as many as are wanted and fit. */
class MatchPage {
  readonly #offset: number;
  readonly #limit: number;
  readonly #maxChars: number;
  readonly #hasContext: boolean;
  readonly #lines: string[] = [];
  #chars = 0;
  /** Matches so far, those before the offset included. */
  #count = 0;
  #shown = 0;
  #more = false;

  constructor({ offset, limit, context }: Pick<GrepArguments, 'offset' | 'limit' | 'context'>, maxChars: number) {
    this.#offset = offset;
    this.#limit = limit;
    this.#hasContext = context > 0;
    this.#maxChars = maxChars;
  }

  get isFull(): boolean {
    return this.#more;
  }

  add({ path, lines }: FoundFile): void {
    /** Lines that were not told yet: what is around a match is told together with it. */
    let held: FoundLine[] = [];
    let last: number | undefined;
    for (const found of lines) {
      held.push(found);
      if (found.at === undefined) continue;
      this.#count += 1;
      if (this.#count < this.#offset) {
        held = [];
        continue;
      }
      const texts = this.#print(path, held, last);
      const size = texts.reduce((sum, text) => sum + text.length + 1, 0);
      if (this.#shown >= this.#limit || (this.#shown > 0 && this.#chars + size > this.#maxChars)) {
        this.#more = true;
        return;
      }
      this.#lines.push(...texts);
      this.#chars += size;
      this.#shown += 1;
      held = [];
      last = found.line;
    }
    if (last !== undefined) this.#lines.push(...this.#print(path, held, last));
  }

  /** Where lines are left out between two of a file, a line says so. */
  #print(path: string, lines: readonly FoundLine[], after: number | undefined): string[] {
    let last = after;
    return lines.flatMap(({ line, text, at }) => {
      const gap = last !== undefined && line > last + 1 && this.#hasContext ? ['--'] : [];
      last = line;
      const mark = at === undefined ? '-' : ':';
      return [...gap, `${oneLine(path)}${mark}${line}${mark}${around(text, at ?? 0)}`];
    });
  }

  toString(): string {
    const last = this.#offset - 1 + this.#shown;
    if (this.#shown === 0)
      return this.#count === 0
        ? '[No match.]'
        : `[There are ${this.#count} matches: none has the number ${this.#offset}.]`;
    const more = this.#more ? ` There are more: go on with offset ${last + 1}, or narrow the search.` : '';
    const note = this.#more || this.#offset > 1 ? [`[Matches ${this.#offset} to ${last}.${more}]`] : [];
    return [...this.#lines, ...note].join('\n');
  }
}

/** A long line around its match, cut between characters. */
function around(text: string, at: number): string {
  if (text.length <= MOST_LINE_CHARS) return text;
  const from = Math.max(0, Math.min(at - MOST_LINE_CHARS / 3, text.length - MOST_LINE_CHARS));
  const rest = from === 0 ? text : tailOf(text, text.length - from);
  const shown = headOf(rest, MOST_LINE_CHARS);
  return `${from === 0 ? '' : '…'}${shown}${shown.length < rest.length ? '…' : ''}`;
}
