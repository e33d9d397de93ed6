import {
  BoundShim,
  defineTool,
  type JsonValue,
  type PreparedTurn,
  type Shim,
  type Tool,
  type ToolContext,
  type ToolSourceBinding,
  toolFailure,
} from 'shimline/shims';
import { type Catalogue, type DeclaredTool, isTaken } from './catalogue.js';
import type { HeadersHook, McpConfig, ServerConfig } from './config.js';
import { type CallOutcome, UnavailableError } from './connection.js';
import type { Fault } from './faults.js';
import { type Lease, lease } from './pool.js';
import { resultOf } from './results.js';

export interface SessionOptions {
  readonly config: McpConfig;
  readonly hook: HeadersHook | undefined;
  readonly source: Shim;
  /** The names that a child may have; all of them without it. */
  readonly allowed?: ReadonlySet<string>;
}

const MAX_SHOWN = 20;

/** One server as one run uses it. */
class Leased {
  readonly name: string;
  readonly config: ServerConfig;
  readonly lease: Lease;
  /** The last catalogue that this run was shown: what was there stays there while the server is away. */
  catalogue: Catalogue | undefined;
  tools: readonly Tool[] = [];
  told = '';

  constructor(name: string, config: ServerConfig, leased: Lease) {
    this.name = name;
    this.config = config;
    this.lease = leased;
  }
}

/** The servers' tools in one run: leases on the shared connections, given back when the attempt ends. */
export class McpSession extends BoundShim {
  readonly #options: SessionOptions;
  readonly #servers: readonly Leased[];
  #turn: PreparedTurn | undefined;

  constructor(options: SessionOptions) {
    super();
    this.#options = options;
    const { config, hook, allowed } = options;
    this.#servers = Object.entries(config.servers)
      .filter(([name]) => allowed === undefined || [...allowed].some((tool) => tool.startsWith(`${name}__`)))
      .map(([name, server]) => {
        const target = { name, config: server, hook };
        return new Leased(name, server, lease(target, config.idleTimeoutMs));
      });
  }

  override async prepareTurn(turn: PreparedTurn): Promise<void> {
    this.#turn = turn;
    await Promise.all(this.#servers.map(async (server) => this.#look(server, turn)));
    turn.addTools(this.#servers.flatMap(({ tools }) => tools));
  }

  override inheritTools(names: ReadonlySet<string>): readonly ToolSourceBinding[] {
    const own = new Set(
      this.#servers.flatMap(({ tools }) => tools.map(({ name }) => name)).filter((name) => names.has(name)),
    );
    if (own.size === 0) return [];
    const { source } = this.#options;
    return [{ source, bind: async () => new McpSession({ ...this.#options, allowed: own }) }];
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) server.lease.release();
  }

  /** @throws Error when a required server is not there at the beginning */
  async #look(server: Leased, turn: PreparedTurn): Promise<void> {
    const { connection } = server.lease;
    const isNew = server.catalogue === undefined;
    try {
      const catalogue = await connection.catalogue(turn.signal, { urgent: isNew && server.config.required });
      // The same list gives the same tools: a request that begins alike is what providers cache.
      if (catalogue !== server.catalogue) server.tools = this.#toolsOf(server, catalogue);
      server.catalogue = catalogue;
    } catch (error) {
      turn.signal.throwIfAborted();
      if (!(error instanceof UnavailableError)) throw error;
      this.#tell(server, turn);
      if (isNew && server.config.required)
        throw new Error(`The required MCP server "${server.name}" is not available: ${error.message}`);
      return;
    }
    this.#tell(server, turn);
  }

  /** The event `custom.mcp.status`, whenever there is something new to say. */
  #tell(server: Leased, turn: PreparedTurn): void {
    const { state, error } = server.lease.connection.status;
    const setAside = this.#setAside(server);
    const status: JsonValue = {
      server: server.name,
      state,
      tools: server.tools.length,
      ...(error === undefined ? {} : { error }),
      ...(setAside.length === 0 ? {} : { setAside: setAside.slice(0, MAX_SHOWN).map((each) => ({ ...each })) }),
    };
    const text = JSON.stringify(status);
    if (text === server.told) return;
    server.told = text;
    turn.emit('mcp.status', status);
    const fields = { server: server.name, state, tools: server.tools.length, error, setAside };
    if (state === 'down' || setAside.length > 0) turn.log.warn(fields, 'mcp server');
    else turn.log.info(fields, 'mcp server');
  }

  #setAside(server: Leased): Catalogue['setAside'] {
    return (server.catalogue?.setAside ?? []).filter(({ tool }) => isTaken(tool, server.config));
  }

  #toolsOf(server: Leased, { tools }: Catalogue): readonly Tool[] {
    const { allowed } = this.#options;
    return tools
      .filter((tool) => isTaken(tool.name, server.config))
      .filter(({ fullName }) => allowed === undefined || allowed.has(fullName))
      .map((tool) =>
        defineTool({
          name: tool.fullName,
          description: tool.description,
          parameters: tool.inputSchema,
          onCrash: tool.idempotent ? 'retry' : 'unknown',
          needsApproval: needsApproval(server.config.approval, tool),
          timeoutMs: server.config.timeoutMs,
          execute: async (args, context) => this.#call(server, tool, args, context),
        }),
      );
  }

  async #call(server: Leased, tool: DeclaredTool, args: unknown, context: ToolContext): Promise<unknown> {
    const { connection } = server.lease;
    const startedAt = performance.now();
    let outcome: CallOutcome;
    try {
      outcome = await connection.call({
        tool: tool.name,
        args,
        idempotencyKey: context.idempotencyKey,
        repeatable: tool.idempotent,
        signal: context.signal,
        timeoutMs: server.config.timeoutMs,
        onProgress: (progress) => {
          context.progress({ ...progress });
        },
      });
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      outcome = { fault: { kind: 'refused', message: error.message }, renewed: false };
    }
    this.#tellLater(server);
    if ('result' in outcome) {
      const { maxResultChars: maxChars } = this.#options.config;
      return resultOf(outcome.result, { maxChars, secrets: connection.secrets });
    }
    const { fault, renewed } = outcome;
    const ms = Math.round(performance.now() - startedAt);
    context.log.warn(
      { server: server.name, tool: tool.name, kind: fault.kind, error: fault.message, ms },
      'mcp call failed',
    );
    return toolFailure(sentenceOf(server.name, fault, { renewed, repeatable: tool.idempotent }), {
      kind: `mcp_${fault.kind}`,
    });
  }

  /** After a call; the turn may be over by then, and the next one says it. */
  #tellLater(server: Leased): void {
    try {
      if (this.#turn !== undefined) this.#tell(server, this.#turn);
    } catch {
      server.told = '';
    }
  }
}

function needsApproval(approval: ServerConfig['approval'], { destructive }: DeclaredTool): boolean {
  switch (approval) {
    case 'never':
      return false;
    case 'always':
      return true;
    case 'destructive':
      return destructive;
  }
}

/** What the model is told: what failed, and whether the call may have had an effect. */
function sentenceOf(
  server: string,
  { kind, message }: Fault,
  { renewed, repeatable }: { readonly renewed: boolean; readonly repeatable: boolean },
): string {
  const open = repeatable ? '' : ' Whether the call had an effect is not known.';
  switch (kind) {
    case 'session':
      return renewed
        ? `The MCP server "${server}" had lost the session and did not run the call. There is a new session now: the call may be made again.`
        : `The MCP server "${server}" had lost the session and did not run the call: ${message}`;
    case 'refused':
      return `The MCP server "${server}" did not run the call: ${message}`;
    case 'answered':
      return `The MCP server "${server}" answered with an error: ${message}`;
    case 'unavailable':
      return `The MCP server "${server}" was not available: ${message}.${open}`;
    case 'lost':
      return `The MCP server "${server}" gave no answer: ${message}.${open}`;
    case 'timeout':
      return `The MCP server "${server}" gave no answer in time.${open}`;
  }
}
