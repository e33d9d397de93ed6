import type { FileHandle } from 'node:fs/promises';
import { lstat } from 'node:fs/promises';
import { join } from 'node:path';
import { defineTool, type Tool, type ToolContentPart, type ToolContext, z } from 'shimline/shims';
import { imageType, openFile, openFolder } from './files.js';
import { globMatcher } from './glob.js';
import { operationsOf } from './operations.js';
import type { Place } from './paths.js';
import { answered, Refusal } from './refusal.js';
import { readSlice } from './slice.js';
import { type Entry, Walk } from './walk.js';
import type { Workspace } from './workspace.js';

const START_BYTES = 8192;
const DEFAULT_LINES = 2000;
const DEFAULT_ENTRIES = 500;

const ReadParameters = z.object({
  path: z.string().min(1).meta({ description: 'The file, from the root of the workspace.' }),
  offset: z.int().positive().default(1).meta({ description: 'First line, from 1.' }),
  limit: z.int().positive().default(DEFAULT_LINES).meta({ description: 'Most lines.' }),
  column: z
    .int()
    .positive()
    .default(1)
    .meta({ description: 'First character of the first line, for a very long line.' }),
});

export function readTool(workspace: Workspace, name: string): Tool {
  return defineTool({
    name,
    operations: operationsOf('read'),
    description:
      'Reads a file of the workspace: a text as it is, an image (PNG, JPEG, GIF, WebP) as an image. A long text comes in parts; a note at its end says how to get the next one.',
    parameters: ReadParameters,
    onCrash: 'retry',
    execute: async (args, context) =>
      answered(args.path, async () => {
        const place = workspace.root.resolve(args.path);
        workspace.permitPlace('read', place, context);
        const handle = await openFile(workspace, place);
        try {
          return await contentOf(workspace, place, handle, { ...args, signal: context.signal });
        } finally {
          await handle.close();
        }
      }),
  });
}

async function contentOf(
  { config }: Workspace,
  { shown }: Place,
  handle: FileHandle,
  args: { readonly offset: number; readonly limit: number; readonly column: number; readonly signal: AbortSignal },
): Promise<string | ToolContentPart[]> {
  const { size } = await handle.stat();
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(START_BYTES), 0, START_BYTES, 0);
  const start = buffer.subarray(0, bytesRead);
  const mediaType = imageType(start);
  if (mediaType !== undefined) {
    if (size > config.maxImageBytes)
      throw new Refusal(
        'too_large',
        `${shown} is an image (${mediaType}) of ${size} bytes; at most ${config.maxImageBytes} are shown.`,
      );
    const image = await handle.readFile();
    return [
      { type: 'text', text: `${shown}: ${mediaType}, ${image.length} bytes` },
      { type: 'image', image, mediaType },
    ];
  }
  if (start.includes(0))
    throw new Refusal('binary', `${shown} is a binary file of ${size} bytes: it cannot be read as text.`);
  if (size === 0) return `[${shown} is empty.]`;
  const { offset, column } = args;
  const { text, lastLine, next, lines } = await readSlice(handle, { ...args, maxChars: config.maxChars });
  const total = lines === undefined ? 'many' : String(lines);
  if (lastLine < offset) throw new Refusal('out_of_range', `${shown} has ${total} lines: there is no line ${offset}.`);
  if (next === undefined && offset === 1 && column === 1) return text;
  const which = lastLine === offset ? `Line ${offset}` : `Lines ${offset} to ${lastLine}`;
  const part = next !== undefined && next.column > 1 ? ` up to character ${next.column - 1}` : '';
  const more =
    next === undefined
      ? 'This is the end.'
      : `Read on with offset ${next.line}${next.column > 1 ? ` and column ${next.column}` : ''}.`;
  return `${text}${text.endsWith('\n') ? '' : '\n'}[${which}${part} of ${total}. ${more}]`;
}

const pageFields = {
  offset: z.int().positive().default(1).meta({ description: 'First entry, from 1.' }),
  limit: z.int().positive().max(5000).default(DEFAULT_ENTRIES).meta({ description: 'Most entries.' }),
  includeIgnored: z.boolean().default(false).meta({ description: 'Also what .gitignore leaves out.' }),
};
const FindParameters = z.object({
  pattern: z
    .string()
    .min(1)
    .meta({ description: 'A glob, as src/**/*.ts; without a slash it is for names in any folder.' }),
  path: z.string().min(1).default('.').meta({ description: 'The folder to look in.' }),
  ...pageFields,
});
const LsParameters = z.object({
  path: z.string().min(1).default('.').meta({ description: 'The folder.' }),
  ...pageFields,
});

type Page = z.output<typeof LsParameters>;

export function lsTool(workspace: Workspace, name: string): Tool {
  return defineTool({
    name,
    operations: operationsOf('ls'),
    description: 'Lists a folder of the workspace: folders end in /, links in @, files come with their size in bytes.',
    parameters: LsParameters,
    onCrash: 'retry',
    execute: async (args, context) =>
      answered(args.path, async () => {
        const { walk, place } = await walkFor(workspace, 'read:ls', args, context);
        const entries = await walk.entries();
        const chosen = pageOf(entries, args);
        const lines = await Promise.all(chosen.map(async (entry) => lineOf(workspace, entry)));
        return listed(workspace, lines, { entries: entries.length, args, walk, none: `[${place.shown} is empty.]` });
      }),
  });
}

export function findTool(workspace: Workspace, name: string): Tool {
  return defineTool({
    name,
    operations: operationsOf('find'),
    description:
      'Finds files and folders of the workspace by a glob. What .gitignore leaves out is left out, and links are not followed.',
    parameters: FindParameters,
    onCrash: 'retry',
    execute: async (args, context) =>
      answered(args.path, async () => {
        const matches = globMatcher(args.pattern);
        const { walk, place } = await walkFor(workspace, 'read:find', args, context);
        const base = place.shown === '.' ? '' : `${place.shown}/`;
        const found: Entry[] = [];
        // A pattern is for paths from the folder; one from the root is understood as well.
        for await (const entry of walk.all())
          if (matches(entry.path.slice(base.length)) || (base !== '' && matches(entry.path))) found.push(entry);
        const lines = pageOf(found, args).map(({ path, kind }) => `${path}${MARKS[kind]}`);
        return listed(workspace, lines, { entries: found.length, args, walk, none: '[Nothing matches.]' });
      }),
  });
}

const MARKS = { file: '', folder: '/', link: '@', other: '?' } as const;

/** The way through a folder that a call asked for. @throws Refusal */
export async function walkFor(
  workspace: Workspace,
  operation: 'read:ls' | 'read:find' | 'read:grep',
  { path, includeIgnored }: { readonly path: string; readonly includeIgnored: boolean },
  context: Pick<ToolContext, 'approved' | 'signal'>,
): Promise<{ readonly walk: Walk; readonly place: Place }> {
  const place = workspace.root.resolve(path);
  const verdict = workspace.permitPlace(operation, place, context);
  await openFolder(workspace, place);
  const walk = new Walk({
    root: workspace.root.real,
    start: place.shown,
    includeIgnored,
    allows: workspace.seen(operation, verdict),
    signal: context.signal,
  });
  return { walk, place };
}

async function lineOf({ root }: Workspace, { path, name, kind }: Entry): Promise<string> {
  if (kind !== 'file') return name + MARKS[kind];
  const found = await lstat(join(root.real, path)).catch(() => undefined);
  return found === undefined ? name : `${name} ${found.size}`;
}

function pageOf<T>(all: readonly T[], { offset, limit }: Page): readonly T[] {
  return all.slice(offset - 1, offset - 1 + limit);
}

/** The lines that fit, and what is to be known of the others. */
function listed(
  { config }: Workspace,
  lines: readonly string[],
  {
    entries,
    args,
    walk,
    none,
  }: { readonly entries: number; readonly args: Page; readonly walk: Walk; readonly none: string },
): string {
  const { offset } = args;
  let chars = 0;
  const tooMany = lines.findIndex((line) => (chars += line.length + 1) > config.maxChars);
  const shown = tooMany < 0 ? lines : lines.slice(0, Math.max(1, tooMany));
  const last = offset - 1 + shown.length;
  const notes = [
    ...(entries > 0 && shown.length === 0 ? [`[There are ${entries} entries: none has the number ${offset}.]`] : []),
    ...(shown.length > 0 && (last < entries || offset > 1)
      ? [`[Entries ${offset} to ${last} of ${entries}.${last < entries ? ` Go on with offset ${last + 1}.` : ''}]`]
      : []),
    ...leftOut(walk),
  ];
  return [...(entries === 0 ? [none] : shown.map(oneLine)), ...notes].join('\n');
}

/** A name with its control characters spelled out, so that none looks like two. */
export function oneLine(name: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for.
  return name.replace(/[\u0000-\u001f\u007f]/g, (character) => JSON.stringify(character).slice(1, -1));
}

/** What a walk did not show, in words. */
export function leftOut({ ignored, denied, stopped }: Walk): readonly string[] {
  return [
    ...(ignored > 0 ? [`[${ignored} ignored ${ignored === 1 ? 'entry is' : 'entries are'} left out.]`] : []),
    ...(denied > 0 ? [`[${denied} ${denied === 1 ? 'entry is' : 'entries are'} left out by the policy.]`] : []),
    ...(stopped ? ['[There is more than is looked at in one call: name a folder further down.]'] : []),
  ];
}
