import { BoundShim, defineShim, Shim, type ShimBindingContext } from 'shimline/shims';
import { type HeadersHook, type McpConfig, type McpConfigInput, McpConfigSchema } from './config.js';
import { McpSession } from './session.js';

/** Gives the model the tools of MCP servers. The connections are shared; a session only holds leases on them. */
class McpShim extends Shim {
  readonly name: string;
  readonly #config: McpConfig;
  readonly #hook: HeadersHook | undefined;

  constructor(name: string, config: McpConfig, hook?: HeadersHook) {
    super();
    this.name = name;
    this.#config = config;
    this.#hook = hook;
  }

  override bind(context: ShimBindingContext): BoundShim | Promise<BoundShim> {
    const own = context.toolSourceBindings.find(({ source }) => source === this);
    if (own !== undefined) return own.bind(context);
    if (context.toolSourceBindings.length > 0) return new BoundShim();
    return new McpSession({ config: this.#config, hook: this.#hook, source: this });
  }
}

/**
 * The shim for an agent in code, with what a config cannot hold: `headers` is asked before each HTTP request, for an access token
 * say, and again with `refresh` after a 401.
 */
export function mcpShim(
  config: McpConfigInput,
  options: { readonly name?: string; readonly headers?: HeadersHook } = {},
): Shim {
  return new McpShim(options.name ?? 'mcp', McpConfigSchema.parse(config), options.headers);
}

export default defineShim({
  name: 'mcp',
  description: 'Gives the model the tools of MCP servers, over stdio or Streamable HTTP.',
  config: McpConfigSchema,
  create: (config, { name }) => new McpShim(name, config),
});
