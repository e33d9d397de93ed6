import { z } from 'shimline/shims';
import { forbiddenReferences } from './secrets.js';

/** Without `__`, and no `_` at an end: so the name before the first `__` of a tool's name is the server's, whatever follows. */
const SERVER_NAME = /^[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*$/;

const textMap = (description: string): z.ZodDefault<z.ZodRecord<z.ZodString, z.ZodString>> =>
  z.record(z.string(), z.string()).default({}).meta({ description });

const ServerSchema = z
  .strictObject({
    command: z.string().min(1).optional().meta({
      description: 'A program to start, which speaks MCP over stdin and stdout. Either this or `url`.',
    }),
    args: z.array(z.string()).default([]).meta({ description: 'Arguments of the program.' }),
    env: textMap(
      'Environment of the program, beside PATH, HOME and the like. `${MCP_…}` stands for a variable of the server.',
    ),
    cwd: z.string().min(1).optional().meta({ description: 'Folder that the program runs in.' }),
    url: z
      .string()
      .regex(/^https?:\/\/[^\s@]+$/, 'must be an http or https address without a password')
      .optional()
      .meta({ description: 'Address of a server that speaks Streamable HTTP. Either this or `command`.' }),
    headers: textMap('HTTP headers of every request. `${MCP_…}` stands for a variable of the server.'),
    required: z.boolean().default(false).meta({
      description: 'Whether a run fails when the server is not available at its start, instead of going on without it.',
    }),
    include: z.array(z.string().min(1)).optional().meta({
      description: "The server's tools to take, by their own names; `*` stands for any characters. Default: all.",
    }),
    exclude: z.array(z.string().min(1)).default([]).meta({ description: 'Tools to leave out of those.' }),
    approval: z.enum(['never', 'destructive', 'always']).default('never').meta({
      description:
        'Which calls wait for a person. `destructive`: those of tools that the server does not declare harmless.',
    }),
    timeoutMs: z.int().positive().max(86_400_000).default(60_000).meta({ description: 'Time of one call.' }),
    connectTimeoutMs: z
      .int()
      .positive()
      .max(25_000)
      .default(10_000)
      .meta({ description: 'Time to connect, further tries included.' }),
  })
  .superRefine((server, context) => {
    const fault = (path: string, message: string): void => {
      context.addIssue({ code: 'custom', path: [path], message });
    };
    if ((server.command === undefined) === (server.url === undefined))
      fault('command', 'give either a command or a url');
    if (server.url === undefined && Object.keys(server.headers).length > 0) fault('headers', 'only a url has headers');
    if (server.command === undefined && (server.args.length > 0 || server.cwd !== undefined))
      fault('args', 'only a command has arguments and a folder');
    if (server.command === undefined && Object.keys(server.env).length > 0)
      fault('env', 'only a command has an environment');
    for (const header of Object.entries(server.headers))
      if (!isHeader(header)) fault('headers', `${JSON.stringify(header[0])} is no header that can be sent`);
    const texts = { url: [server.url ?? ''], env: Object.values(server.env), headers: Object.values(server.headers) };
    for (const [path, values] of Object.entries(texts)) {
      const [name] = values.flatMap(forbiddenReferences);
      if (name !== undefined)
        fault(path, `only variables whose names begin with MCP_ may be referred to, not ${name || 'an empty name'}`);
    }
  });

function isHeader(header: [string, string]): boolean {
  try {
    return new Headers([header]) instanceof Headers;
  } catch {
    return false;
  }
}

/** One server of an agent's config, checked. */
export type ServerConfig = z.output<typeof ServerSchema>;

export const McpConfigSchema = z.strictObject({
  servers: z
    .record(z.string().max(32).regex(SERVER_NAME), ServerSchema, {
      error: ({ code }) =>
        code === 'invalid_key' ? 'a name is 1 to 32 letters and digits, parted by single _ or -' : undefined,
    })
    .default({})
    .meta({ description: "The servers by name; a tool's name is `server__tool`." }),
  maxResultChars: z.int().min(100).max(200_000).default(100_000).meta({
    description: 'Most characters of text that are kept of one result.',
  }),
  idleTimeoutMs: z.int().nonnegative().max(3_600_000).default(30_000).meta({
    description: 'How long a connection that no run uses stays open for the next one.',
  }),
});
export type McpConfig = z.output<typeof McpConfigSchema>;
export type McpConfigInput = z.input<typeof McpConfigSchema>;

/** Asks for the headers of a request, a fresh access token for one. `refresh` is true after a 401. */
export type HeadersHook = (request: {
  readonly server: string;
  readonly url: string;
  readonly refresh: boolean;
}) => Readonly<Record<string, string>> | Promise<Readonly<Record<string, string>>>;
