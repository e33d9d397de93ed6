import { createHash } from 'node:crypto';
import {
  BoundShim,
  defineShim,
  type Message,
  type ModelRequest,
  type ModelResponse,
  type NextModelCall,
  type PreparedTurn,
  Shim,
  type ShimBindingContext,
  type Tool,
  z,
} from 'shimline/shims';

const config = z.strictObject({
  toolOrder: z
    .enum(['first-seen', 'name', 'as-given'])
    .default('first-seen')
    .meta({ description: 'Order of the tools in a request: new ones last, by name, or as the shims gave them.' }),
  breakpoints: z
    .array(z.enum(['tools', 'system', 'messages']))
    .default(['tools', 'system', 'messages'])
    .meta({ description: 'After what Anthropic is told that the request may be cached up to there.' }),
  ttl: z
    .enum(['5m', '1h'])
    .default('5m')
    .meta({ description: 'How long Anthropic keeps what it has cached; an hour costs more to write.' }),
  key: z
    .enum(['run', 'agent', 'none'])
    .default('run')
    .meta({ description: "OpenAI's prompt cache key: one for each run, one for the agent, or none." }),
  report: z
    .boolean()
    .default(true)
    .meta({ description: 'Whether an event tells when a request does not begin as the one before it.' }),
});
type Config = z.output<typeof config>;

const state = z.object({
  /** Names of the tools in the order in which they were first seen. */
  order: z.array(z.string()).default([]),
  /** Digests of the request before, so that the next one can be held against it. */
  last: z
    .object({ model: z.string(), tools: z.string(), system: z.string(), messages: z.string(), count: z.number() })
    .nullable()
    .default(null),
});
type State = z.output<typeof state>;
type Last = NonNullable<State['last']>;

/** The most that Anthropic takes in one request. */
const MOST_BREAKPOINTS = 4;
const MOST_NAMES = 2_000;

/** Has requests begin alike, tells providers that cache on demand where, and tells of a beginning that changed. */
export default defineShim({
  name: 'prompt-cache',
  description: "Makes good use of the providers' prompt caches, and tells when a request began differently.",
  config,
  state,
  create: (settings, { name }) => new PromptCacheShim(name, settings),
});

class PromptCacheShim extends Shim {
  readonly name: string;
  readonly #config: Config;

  constructor(name: string, settings: Config) {
    super();
    this.name = name;
    this.#config = settings;
  }

  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    const bound = await super.bind(context);
    return context.toolSourceBindings.length > 0 ? bound : new CacheSession(this.#config);
  }
}

class CacheSession extends BoundShim {
  readonly #config: Config;
  /** What the digests of the last request were made of: only to say more exactly what changed. */
  #seen: { readonly tools: ReadonlyMap<string, string>; readonly messages: readonly string[] } | undefined;

  constructor(settings: Config) {
    super();
    this.#config = settings;
  }

  override async wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    const tools = this.#ordered(request.tools?.tools ?? [], turn.state as State);
    if (this.#config.report) this.#compare(turn, { ...request, tools });
    const sorted = request.tools === null ? request : { ...request, tools: { ...request.tools, tools } };
    const [provider] = request.model.split('/');
    if (provider === 'anthropic') return next(withBreakpoints(sorted, this.#config));
    if (provider === 'openai' || provider === 'openai-chat')
      return next(withKey(sorted, this.#config.key === 'agent' ? turn.agent : turn.runId, this.#config));
    return next(sorted);
  }

  #ordered(tools: readonly Tool[], kept: State): readonly Tool[] {
    switch (this.#config.toolOrder) {
      case 'as-given':
        return tools;
      case 'name':
        return tools.toSorted((a, b) => (a.name < b.name ? -1 : 1));
      case 'first-seen': {
        const known = new Map(kept.order.map((name, index) => [name, index]));
        for (const { name } of tools) if (!known.has(name)) known.set(name, known.size);
        if (known.size > kept.order.length) {
          const present = new Set(tools.map(({ name }) => name));
          kept.order = [...known.keys()].filter((name) => known.size <= MOST_NAMES || present.has(name));
        }
        return tools.toSorted((a, b) => (known.get(a.name) ?? 0) - (known.get(b.name) ?? 0));
      }
    }
  }

  #compare(
    turn: PreparedTurn,
    { model, tools, messages }: Pick<ModelRequest, 'model' | 'messages'> & { readonly tools: readonly Tool[] },
  ): void {
    const kept = turn.state as State;
    const { last } = kept;
    const head = messages.findIndex(({ role }) => role !== 'system');
    const system = messages.slice(0, head < 0 ? messages.length : head);
    const digests = messages.slice(system.length).map(digestOf);
    const named = new Map(tools.map((tool) => [tool.name, digestOf(tool)]));
    const now: Last = {
      model,
      tools: joined([...named].flat()),
      system: joined(system.map(digestOf)),
      messages: joined(digests),
      count: digests.length,
    };
    if (last !== null) {
      const parts = (['model', 'tools', 'system'] as const).filter((part) => last[part] !== now[part]);
      const grown = last.count <= now.count && joined(digests.slice(0, last.count)) === last.messages;
      const changed = grown ? parts : [...parts, 'messages' as const];
      if (changed.length > 0) {
        const facts = {
          changed,
          ...(changed.includes('tools') ? toolChanges(this.#seen?.tools, named) : {}),
          ...(grown ? {} : firstChange(this.#seen?.messages, digests)),
        };
        turn.emit('cache.prefix_changed', facts);
        turn.log.info(facts, 'the request does not begin as the one before');
      }
    }
    kept.last = now;
    this.#seen = { tools: named, messages: digests };
  }
}

function toolChanges(
  before: ReadonlyMap<string, string> | undefined,
  now: ReadonlyMap<string, string>,
): { readonly tools?: Readonly<Record<string, string[]>> } {
  if (before === undefined) return {};
  const added = [...now.keys()].filter((name) => !before.has(name));
  const removed = [...before.keys()].filter((name) => !now.has(name));
  const edited = [...now.keys()].filter((name) => before.has(name) && before.get(name) !== now.get(name));
  const tools = Object.fromEntries(Object.entries({ added, removed, edited }).filter(([, names]) => names.length > 0));
  return { tools: Object.keys(tools).length > 0 ? tools : { moved: [...now.keys()] } };
}

/** The place of the first message that is another one, the system message not counted. */
function firstChange(before: readonly string[] | undefined, now: readonly string[]): { readonly message?: number } {
  return before === undefined ? {} : { message: before.findIndex((digest, index) => digest !== now[index]) };
}

type Options = Readonly<Record<string, Readonly<Record<string, unknown>>>>;
interface Optioned {
  readonly providerOptions?: Options | undefined;
}

/**
 * Breakpoints after the last tool, the system message, the end of this request and that of the one before it: with the latter
 * the cache is found again also after a round with many calls. Those that somebody else has set count.
 */
function withBreakpoints(request: ModelRequest, { breakpoints, ttl }: Config): ModelRequest {
  const control = ttl === '5m' ? { type: 'ephemeral' } : { type: 'ephemeral', ttl };
  const mark = <T extends Optioned>(part: T): T => ({
    ...part,
    providerOptions: {
      ...part.providerOptions,
      anthropic: { ...part.providerOptions?.anthropic, cacheControl: control },
    },
  });
  const messages = [...request.messages];
  const tools = [...(request.tools?.tools ?? [])];
  let left = MOST_BREAKPOINTS - marksIn([...messages, ...tools]);
  const place = <T>(list: T[], index: number, marked: (item: T) => T): void => {
    const item = list[index];
    if (item === undefined || left <= 0 || marksIn([item]) > 0) return;
    const changed = marked(item);
    if (changed === item) return;
    list[index] = changed;
    left -= 1;
  };
  const [end, before] = ends(messages);
  const inMessage = (message: Message): Message => markedMessage(message, mark);
  if (breakpoints.includes('messages')) place(messages, end, inMessage);
  if (breakpoints.includes('system')) place(messages, lastSystem(messages), mark);
  if (breakpoints.includes('messages')) place(messages, before, inMessage);
  if (breakpoints.includes('tools')) place(tools, tools.length - 1, mark);
  return { ...request, messages, tools: request.tools === null ? null : { ...request.tools, tools } };
}

function lastSystem(messages: readonly Message[]): number {
  const head = messages.findIndex(({ role }) => role !== 'system');
  return (head < 0 ? messages.length : head) - 1;
}

/** Where this request ends, and where the one before it did: before the last answer. */
function ends(messages: readonly Message[]): readonly [number, number] {
  const isOwn = ({ role }: Message): boolean => role === 'user' || role === 'tool';
  const end = messages.findLastIndex(isOwn);
  const answer = messages.slice(0, Math.max(0, end)).findLastIndex(({ role }) => role === 'assistant');
  return [end, messages.slice(0, Math.max(0, answer)).findLastIndex(isOwn)];
}

/** The message with a mark on its last part; blank texts are not sent, so none of them is marked. */
function markedMessage(message: Message, mark: <T extends Optioned>(part: T) => T): Message {
  if (message.role === 'tool') {
    const content = message.content.map((part, index, all) => (index === all.length - 1 ? mark(part) : part));
    return { ...message, content };
  }
  if (message.role !== 'user') return message;
  const parts =
    typeof message.content === 'string' ? [{ type: 'text' as const, text: message.content }] : message.content;
  const last = parts.findLastIndex((part) => part.type !== 'text' || part.text.trim() !== '');
  return last < 0 ? message : { ...message, content: parts.map((part, index) => (index === last ? mark(part) : part)) };
}

/** How many breakpoints are set on these, or on their parts. */
function marksIn(items: readonly unknown[]): number {
  return items.reduce<number>((count, item) => {
    const { providerOptions, content } = item as Optioned & { readonly content?: unknown };
    const own = providerOptions?.anthropic;
    const marked = own !== undefined && ('cacheControl' in own || 'cache_control' in own) ? 1 : 0;
    return count + marked + (Array.isArray(content) ? marksIn(content) : 0);
  }, 0);
}

/** OpenAI sends requests of one key where they find what is cached; one that the agent has set stays. */
function withKey(request: ModelRequest, value: string, { key }: Config): ModelRequest {
  const given = request.modelArgs ?? {};
  const { openai } = (given.providerOptions ?? {}) as Options;
  if (key === 'none' || 'promptCacheKey' in given || openai?.promptCacheKey !== undefined) return request;
  return { ...request, modelArgs: { ...given, promptCacheKey: value.slice(0, 64) } };
}

/** What does not change is read once, however long a conversation gets. */
const known = new WeakMap<object, string>();

function digestOf(item: Message | Tool): string {
  const digest = known.get(item);
  if (digest !== undefined) return digest;
  const content =
    'role' in item ? [item.role, item.content, item.providerOptions] : [item.name, item.description, item.inputSchema];
  const made = joined([JSON.stringify(content)]);
  if (!('role' in item) || Object.isFrozen(item)) known.set(item, made);
  return made;
}

function joined(texts: readonly string[]): string {
  return createHash('sha256').update(texts.join('\n')).digest('base64url').slice(0, 22);
}
