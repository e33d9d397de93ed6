import { defineTool, type Tool, type ToolContext, z } from 'shimline/shims';
import { oneAtATime, openFile, writeWhole } from './files.js';
import { nearestPlace } from './nearest-place.js';
import { operationOf, operationsOf } from './operations.js';
import type { Place } from './paths.js';
import { answered, Refusal } from './refusal.js';
import type { Workspace } from './workspace.js';

/** A larger file is not for exact replacement: it is read as a whole. */
const MOST_PATCH_BYTES = 10_000_000;
/** A short text replaced many times by a long one must not fill the memory. */
const MOST_RESULT_CHARS = 50_000_000;

const WriteParameters = z.object({
  path: z.string().min(1).meta({ description: 'The file, from the root of the workspace. Folders are made.' }),
  content: z.string().meta({ description: 'The whole text of the file.' }),
});

export function writeTool(workspace: Workspace, name: string): Tool {
  return defineTool({
    name,
    operations: operationsOf('write'),
    description:
      'Writes a whole file of the workspace, a new one or over the old one. To change a part of a file use patch.',
    parameters: WriteParameters,
    maxRetries: 0,
    execute: async ({ path, content }, context) =>
      answered(path, async () =>
        changing(workspace, path, async (place) => {
          workspace.permitPlace(
            operationOf('write', () => place.exists),
            place,
            context,
          );
          await writeWhole(place, content.toWellFormed(), context.signal);
          const lines = content === '' ? 0 : content.split('\n').length - (content.endsWith('\n') ? 1 : 0);
          return `${place.exists ? 'Wrote over' : 'Made'} ${place.shown} (${lines} ${lines === 1 ? 'line' : 'lines'}).`;
        }),
      ),
  });
}

const PatchParameters = z.object({
  path: z.string().min(1).meta({ description: 'The file, from the root of the workspace.' }),
  search: z
    .string()
    .min(1)
    .meta({ description: 'The text to replace, exactly as it stands in the file, with its spaces and line ends.' }),
  replace: z.string().meta({ description: 'What comes in its place.' }),
  replaceAll: z.boolean().default(false).meta({ description: 'Replace it wherever it stands.' }),
});
type PatchArguments = z.output<typeof PatchParameters>;

export function patchTool(workspace: Workspace, name: string): Tool {
  return defineTool({
    name,
    operations: operationsOf('patch'),
    description:
      'Replaces a text in a file of the workspace by another. The text must stand there exactly once, so take enough lines around the change, or set replaceAll.',
    parameters: PatchParameters,
    maxRetries: 0,
    execute: async (args, context) =>
      answered(args.path, async () =>
        changing(workspace, args.path, async (place) => {
          workspace.permitPlace('write:patch', place, context);
          return patch(workspace, place, args, context);
        }),
      ),
  });
}

/** A path is looked at again when it is its turn: the change before may have made the file. */
async function changing<T>(workspace: Workspace, path: string, change: (place: Place) => Promise<T>): Promise<T> {
  return oneAtATime(workspace.root.resolve(path).real, async () => change(workspace.root.resolve(path)));
}

async function patch(
  workspace: Workspace,
  place: Place,
  args: PatchArguments,
  { signal }: ToolContext,
): Promise<string> {
  const { shown } = place;
  if (args.search === args.replace)
    throw new Refusal('no_change', 'search and replace are the same: nothing would change.');
  const text = await textOf(workspace, place);
  const { search, replace } = inLineEndsOf(text, args);
  const at = placesOf(text, search);
  if (at.length === 0) {
    // What stands in the file is told to those only who may read it.
    const hint = workspace.isReadable(place) ? nearestPlace(text, search) : '';
    throw new Refusal('no_match', `The text to replace does not stand in ${shown}.${hint}`);
  }
  const where = linesInWords(text, at);
  if (at.length > 1 && !args.replaceAll)
    throw new Refusal(
      'several_matches',
      `The text to replace stands in ${shown} ${at.length} times, ${where}. Take more of the lines around the one that is meant, or set replaceAll.`,
    );
  if (text.length + at.length * (replace.length - search.length) > MOST_RESULT_CHARS)
    throw new Refusal('too_large', `${shown} would become too large.`);
  await writeWhole(place, text.split(search).join(replace.toWellFormed()), signal);
  return `Replaced ${at.length === 1 ? 'the text' : `${at.length} texts`} in ${shown}, ${where}.`;
}

async function textOf(workspace: Workspace, place: Place): Promise<string> {
  const handle = await openFile(workspace, place);
  try {
    const { size } = await handle.stat();
    if (size > MOST_PATCH_BYTES)
      throw new Refusal('too_large', `${place.shown} has ${size} bytes: it is too large to be patched.`);
    const bytes = await handle.readFile();
    // With a replacement character for what is no text, the rest of the file would not be what it was.
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (error) {
    if (error instanceof TypeError)
      throw new Refusal('binary', `${place.shown} is not UTF-8 text: it cannot be patched.`);
    throw error;
  } finally {
    await handle.close();
  }
}

/** Models write LF. In a file with CRLF throughout, both texts are taken to mean that. */
function inLineEndsOf(
  text: string,
  { search, replace }: PatchArguments,
): { readonly search: string; readonly replace: string } {
  const windows = text.includes('\r\n') && !/(?<!\r)\n/.test(text) && !search.includes('\r') && !replace.includes('\r');
  return windows
    ? { search: search.replaceAll('\n', '\r\n'), replace: replace.replaceAll('\n', '\r\n') }
    : { search, replace };
}

/** Where a text stands, from left to right, as `split` takes them. */
function placesOf(text: string, search: string): number[] {
  const places: number[] = [];
  for (let at = text.indexOf(search); at >= 0; at = text.indexOf(search, at + search.length)) places.push(at);
  return places;
}

const MOST_LINES_TOLD = 10;

/** The lines of the first few places, in words. */
function linesInWords(text: string, places: readonly number[]): string {
  const lines = new Set<number>();
  let line = 1;
  let newline = text.indexOf('\n');
  for (const place of places) {
    for (; newline >= 0 && newline < place; newline = text.indexOf('\n', newline + 1)) line += 1;
    lines.add(line);
    if (lines.size > MOST_LINES_TOLD) break;
  }
  const told = [...lines];
  const more = told.length > MOST_LINES_TOLD ? ', …' : '';
  return `at ${told.length === 1 ? 'line' : 'lines'} ${told.slice(0, MOST_LINES_TOLD).join(', ')}${more}`;
}
