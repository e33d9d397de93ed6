import { createHash } from 'node:crypto';
import { setImmediate as nextTick } from 'node:timers/promises';
import type { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { RE2JS } from 're2js';
import { cutText, defineTool, type JsonSchema, z } from 'shimline/shims';
import { usableSchema } from './schemas.js';
import type { Secrets } from './secrets.js';

/** A tool of a server as the model is told of it. */
export interface DeclaredTool {
  /** The server's own name for it. */
  readonly name: string;
  /** `server__tool`, as providers take it. */
  readonly fullName: string;
  readonly description: string;
  readonly inputSchema: JsonSchema;
  /** The server's hints, with the defaults of the protocol. */
  readonly readOnly: boolean;
  readonly idempotent: boolean;
  readonly destructive: boolean;
}

/** What a server offers, and what of it is set aside, with the reason. In an order that does not change from one listing to the next. */
export interface Catalogue {
  readonly tools: readonly DeclaredTool[];
  readonly setAside: readonly { readonly tool: string; readonly reason: string }[];
}

const MAX_PAGES = 100;
const MAX_TOOLS = 1000;
/** Providers refuse longer descriptions. */
const MAX_DESCRIPTION = 1024;
const MAX_NAME = 64;
const DIGEST_LENGTH = 8;

const PageSchema = z.looseObject({ tools: z.array(z.unknown()), nextCursor: z.string().optional().catch(undefined) });
const ToolSchema = z.looseObject({
  name: z.string().min(1),
  title: z.string().optional().catch(undefined),
  description: z.string().optional().catch(undefined),
  inputSchema: z.unknown().optional(),
  execution: z
    .looseObject({ taskSupport: z.string().optional().catch(undefined) })
    .optional()
    .catch(undefined),
  annotations: z
    .looseObject({
      readOnlyHint: z.boolean().optional().catch(undefined),
      idempotentHint: z.boolean().optional().catch(undefined),
      destructiveHint: z.boolean().optional().catch(undefined),
    })
    .optional()
    .catch(undefined),
});

/** Asks a server for its tools, page by page; a tool that cannot be used is set aside and takes no other with it. */
export async function listTools(
  client: Client,
  server: string,
  secrets: Secrets,
  options: { readonly signal: AbortSignal; readonly timeout: number },
): Promise<Catalogue> {
  if (client.getServerCapabilities()?.tools === undefined) return { tools: [], setAside: [] };
  const raw: unknown[] = [];
  const cursors = new Set<string>();
  for (let cursor: string | undefined, page = 0; page < MAX_PAGES && raw.length < MAX_TOOLS; page += 1) {
    const params = cursor === undefined ? {} : { cursor };
    const { tools, nextCursor } = await client.request({ method: 'tools/list', params }, PageSchema, options);
    raw.push(...tools);
    // A server that gives the same cursor again would be asked for ever.
    if (nextCursor === undefined || cursors.has(nextCursor)) break;
    cursors.add(nextCursor);
    cursor = nextCursor;
  }
  return catalogueOf(server, raw.slice(0, MAX_TOOLS), secrets);
}

async function catalogueOf(server: string, raw: readonly unknown[], secrets: Secrets): Promise<Catalogue> {
  const tools = new Map<string, DeclaredTool>();
  const setAside: { tool: string; reason: string }[] = [];
  for (const [index, each] of raw.entries()) {
    // A schema takes milliseconds to compile: the server goes on with its other work between them.
    if (index % 10 === 9) await nextTick();
    const declared = declaredTool(server, each, secrets);
    if ('reason' in declared)
      setAside.push({ tool: secrets.hide(declared.tool), reason: secrets.hide(declared.reason) });
    else if (tools.has(declared.fullName))
      setAside.push({ tool: declared.name, reason: 'the server declares it twice' });
    else tools.set(declared.fullName, declared);
  }
  const byName = (a: { readonly fullName: string }, b: { readonly fullName: string }): number =>
    a.fullName < b.fullName ? -1 : 1;
  return { tools: [...tools.values()].sort(byName), setAside };
}

function declaredTool(
  server: string,
  raw: unknown,
  secrets: Secrets,
): DeclaredTool | { readonly tool: string; readonly reason: string } {
  const parsed = ToolSchema.safeParse(raw);
  if (!parsed.success) return { tool: nameOf(raw), reason: 'its declaration is not what the protocol says' };
  const { name, title, description, inputSchema, annotations = {}, execution } = parsed.data;
  const shown = name.slice(0, 200);
  if (execution?.taskSupport === 'required') return { tool: shown, reason: 'it can only be called as a task' };
  const verdict = usableSchema(inputSchema);
  if ('reason' in verdict) return { tool: shown, reason: verdict.reason };
  const readOnly = annotations.readOnlyHint === true;
  const tool: DeclaredTool = {
    name,
    fullName: toolName(server, name),
    description: shortened(secrets.hide([description, title, name].find((text) => (text ?? '').trim() !== '') ?? name)),
    inputSchema: verdict.schema,
    readOnly,
    idempotent: readOnly || annotations.idempotentHint === true,
    destructive: !readOnly && annotations.destructiveHint !== false,
  };
  try {
    // Compiles the schema, once: what no validator understands, no provider does.
    defineTool({ name: tool.fullName, description: '', parameters: tool.inputSchema, execute: () => '' });
  } catch (error) {
    return { tool: shown, reason: (error instanceof Error ? error.message : String(error)).slice(0, 160) };
  }
  return tool;
}

/**
 * The name that the model gets: the same for the same tool whatever else there is, and never that of another one. What must be
 * changed to be legal gets a digest of the server's own name at its end.
 */
function toolName(server: string, tool: string): string {
  const plain = `${server}__${tool}`;
  if (plain.length <= MAX_NAME && /^[a-zA-Z0-9_-]+$/.test(plain)) return plain;
  const digest = createHash('sha256').update(tool).digest('hex').slice(0, DIGEST_LENGTH);
  const legal = plain.replace(/[^a-zA-Z0-9_-]+/g, '_').slice(0, MAX_NAME - DIGEST_LENGTH - 1);
  return `${legal}_${digest}`;
}

/** Whether a server's tool is one of those that a config takes; `*` stands for any characters. */
export function isTaken(
  tool: string,
  { include, exclude }: { readonly include?: readonly string[] | undefined; readonly exclude: readonly string[] },
): boolean {
  // RE2: with many stars a RegExp may take for ever.
  const matches = (pattern: string): boolean =>
    RE2JS.compile(
      pattern
        .split('*')
        .map((text) => RE2JS.quote(text))
        .join('.*'),
      RE2JS.DOTALL,
    ).matches(tool);
  return (include === undefined || include.some(matches)) && !exclude.some(matches);
}

function nameOf(raw: unknown): string {
  const name = typeof raw === 'object' && raw !== null && 'name' in raw ? raw.name : undefined;
  return typeof name === 'string' && name !== '' ? name.slice(0, 200) : '(without a name)';
}

function shortened(text: string): string {
  return text.length <= MAX_DESCRIPTION ? text.toWellFormed() : `${cutText(text, MAX_DESCRIPTION - 1)}…`;
}
