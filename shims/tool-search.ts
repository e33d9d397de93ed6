import { createHash } from 'node:crypto';
import { RE2JS } from 're2js';
import {
  cutText,
  defineShim,
  defineTool,
  isInternalMessage,
  type PreparedTurn,
  renderItem,
  type Tool,
  type ToolConfig,
  z,
} from 'shimline/shims';

const config = z.strictObject({
  tool: z
    .string()
    .regex(/^[a-zA-Z0-9_-]{1,64}$/)
    .default('search_tools')
    .meta({ description: 'Name of the tool that finds the others.' }),
  threshold: z
    .int()
    .nonnegative()
    .default(20)
    .meta({ description: 'With so many tools or fewer all are shown, and there is nothing to search.' }),
  always: z
    .array(z.string().min(1))
    .default([])
    .meta({ description: 'Tools that are always shown, by name; * stands for any letters.' }),
  results: z.int().positive().max(50).default(5).meta({ description: 'Tools that one search finds at most.' }),
  preselect: z.int().nonnegative().max(50).default(5).meta({
    description: 'Tools that are found from the input, without a search, when the agent takes up a conversation.',
  }),
  maxFound: z
    .int()
    .positive()
    .default(50)
    .meta({ description: 'Found tools that stay shown; beyond it the oldest are hidden again.' }),
  hint: z.string().min(1).optional().meta({ description: 'What the hidden tools are about, in words for the model.' }),
});
type Config = z.output<typeof config>;

const state = z.object({ found: z.array(z.string()).default([]) });
type Turn = PreparedTurn & { readonly state: z.output<typeof state> };

/**
 * Shows a few of many tools. The others are found by a tool, and are shown from the next turn on, at the end of the list, for the
 * rest of the conversation. A call of a hidden one gets the core's answer to an unknown tool.
 */
export default defineShim({
  name: 'tool-search',
  description: 'Shows the model only the tools that it needs out of many, and lets it search for the others.',
  config,
  state,
  prepareTurn(turn) {
    const settings = this.config;
    // Filled once all shims have contributed, before any call can search it.
    const hideable: Tool[] = [];
    const search = searchTool(turn, settings, hideable);
    turn.addTools([search], { requireUniqueNames: true });
    turn.selectTools(async (tools) => {
      const others = tools.filter((tool) => tool !== search);
      if (others.length <= settings.threshold) return others;
      // Without the way to find them, nothing may be hidden.
      if (others.length === tools.length) return tools;
      const stays = staysShown(settings, turn.tools);
      hideable.push(...others.filter((tool) => !stays(tool)));
      if (turn.isFirstForThisAgent && !turn.isRebuilt && settings.preselect > 0) {
        const first = await findTools(hideable, inputOf(turn), settings.preselect);
        take(turn, first, settings);
      }
      const byName = new Map(hideable.map((tool) => [tool.name, tool]));
      return [...others.filter(stays), search, ...turn.state.found.flatMap((name) => byName.get(name) ?? [])];
    });
  },
});

function searchTool(turn: Turn, settings: Config, hideable: readonly Tool[]): Tool {
  const { tool, hint, results } = settings;
  return defineTool({
    name: tool,
    description: [
      'Finds tools that you have but are not shown yet. Before you say that you cannot do something, search for a tool that can. What is found you can call from your next answer on.',
      ...(hint === undefined ? [] : [hint]),
    ].join(' '),
    parameters: z.strictObject({
      query: z
        .string()
        .min(1)
        .max(1_000)
        .meta({ description: 'What the tool should do, in a few words, or its name.' }),
    }),
    // It only adds names to a list that has each once.
    onCrash: 'retry',
    async execute({ query }) {
      const found = await findTools(hideable, query, results);
      if (found.length === 0) return 'No tool matches. Search with other words for what you want to do.';
      take(turn, found, settings);
      const tools = found.map(({ name, description }) => ({ name, description: shortened(description) }));
      return { tools, note: 'You can call these from your next answer on.' };
    },
  });
}

/** Whether a tool is shown whatever is searched for. */
function staysShown({ always }: Config, turnTools: ToolConfig | null): (tool: Tool) => boolean {
  // RE2: with many stars a RegExp may take for ever.
  const patterns = always.map((name) =>
    RE2JS.compile(
      name
        .split('*')
        .map((text) => RE2JS.quote(text))
        .join('.*'),
    ),
  );
  const choice = turnTools?.toolChoice;
  const forced = typeof choice === 'object' ? choice.toolName : undefined;
  return ({ name, handoffTo }) =>
    handoffTo !== undefined || name === forced || patterns.some((pattern) => pattern.matches(name));
}

/** Remembers what was found, each once, where it stands already or at the end; what was found longest ago makes room. */
function take(turn: Turn, found: readonly Tool[], { maxFound }: Config): void {
  const names = new Set(found.slice(0, maxFound).map(({ name }) => name));
  const all = [...new Set([...turn.state.found, ...names])];
  let surplus = all.length - maxFound;
  turn.state.found = all.filter((name) => names.has(name) || surplus-- <= 0);
}

/** The text of the last message that a user wrote. */
function inputOf({ runState }: PreparedTurn): string {
  for (const item of runState.history.toReversed()) {
    if (isInternalMessage(item)) continue;
    for (const { role, content } of renderItem(item).toReversed()) {
      if (role !== 'user') continue;
      if (typeof content === 'string') return content;
      return content.map((part) => (part.type === 'text' ? part.text : '')).join(' ');
    }
  }
  return '';
}

interface Hit {
  readonly id: unknown;
}
interface Index {
  search(query: string): readonly Hit[];
}

/** The tools that fit a query best; one that is called so comes first. */
async function findTools(tools: readonly Tool[], query: string, most: number): Promise<readonly Tool[]> {
  const asked = query.slice(0, MOST_QUERY);
  const hits = asked.trim() === '' ? [] : (await indexOf(tools)).search(asked);
  const named = tools.filter(({ name }) => name === asked.trim());
  const ranked = hits.flatMap(({ id }) => tools[Number(id)] ?? []);
  return [...new Set([...named, ...ranked])].slice(0, most);
}

const MOST_QUERY = 2_000;
const MOST_DESCRIPTION = 1_000;
const MOST_INDEXES = 8;
/** By a digest of what was indexed: who has the same tools has the same index, and nobody another one's. */
const indexes = new Map<string, Promise<Index>>();

async function indexOf(tools: readonly Tool[]): Promise<Index> {
  const documents = tools.map(documentOf);
  const key = createHash('sha256').update(JSON.stringify(documents)).digest('base64');
  const known = indexes.get(key);
  if (known !== undefined) return known;
  const oldest = indexes.size >= MOST_INDEXES ? indexes.keys().next().value : undefined;
  if (oldest !== undefined) indexes.delete(oldest);
  const made = makeIndex(documents);
  indexes.set(key, made);
  made.catch(() => indexes.delete(key));
  return made;
}

interface Document {
  readonly id: number;
  readonly name: string;
  readonly description: string;
  readonly parameters: string;
}

function documentOf({ name, description, inputSchema }: Tool, id: number): Document {
  const { properties = {} } = inputSchema as { readonly properties?: Readonly<Record<string, unknown>> };
  return {
    id,
    name,
    description: description.slice(0, MOST_DESCRIPTION),
    parameters: Object.keys(properties).join(' '),
  };
}

/** BM25 over names, descriptions and the names of parameters; made piece by piece, so that hundreds of tools hold nobody up. */
async function makeIndex(documents: readonly Document[]): Promise<Index> {
  const { default: MiniSearch } = await import('minisearch');
  const index = new MiniSearch<Document>({
    fields: ['name', 'description', 'parameters'],
    tokenize: wordsOf,
    processTerm: (word) => word.toLowerCase(),
    searchOptions: {
      boost: { name: 3, parameters: 0.5 },
      prefix: (word) => word.length > 2,
      fuzzy: (word) => (word.length > 4 ? 0.2 : false),
    },
  });
  await index.addAllAsync(documents, { chunkSize: 50 });
  return index;
}

/** `createIssue`, `create_issue` and "create issue" are the same words. */
function wordsOf(text: string): string[] {
  return text
    .replace(/(\p{Ll}|\p{N})(\p{Lu})/gu, '$1 $2')
    .split(/[^\p{L}\p{N}]+/u)
    .filter((word) => word !== '');
}

const MOST_SHOWN = 300;

function shortened(description: string): string {
  return description.length <= MOST_SHOWN ? description : `${cutText(description, MOST_SHOWN)}…`;
}
