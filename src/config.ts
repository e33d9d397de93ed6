import { z } from 'zod';

/** The environment is not usable: every fault, each one line that begins with the variable's name and holds no secret. */
export class ConfigError extends Error {
  readonly faults: readonly string[];
  constructor(faults: readonly string[]) {
    super(faults.join('\n'));
    this.name = 'ConfigError';
    this.faults = faults;
  }
}

/** A client's key: who sends it, and what is sent as `Authorization: Bearer <key>`. */
export interface ApiKey {
  readonly name: string;
  readonly key: string;
}

const KEY_NAME = /^[A-Za-z0-9_.-]{1,64}$/;
/** What an Authorization header can carry after `Bearer`; the comma separates keys. */
const KEY = /^[\x21-\x2b\x2d-\x7e]+$/;

const text = z.string();
const httpUrl = z.url({ protocol: /^https?$/, error: 'must be an http:// or https:// URL' });

/** Digits only: no sign, no fraction, no exponent, no unit. */
function wholeNumber(min: number, max = Number.MAX_SAFE_INTEGER): z.ZodType<number, string> {
  const range = max === Number.MAX_SAFE_INTEGER ? `of at least ${min}` : `from ${min} to ${max}`;
  return z
    .string()
    .refine(
      (digits) => /^\d+$/.test(digits) && Number(digits) >= min && Number(digits) <= max,
      `must be a whole number ${range}`,
    )
    .transform(Number);
}

const flag = z.enum(['true', 'false'], { error: 'must be true or false' }).transform((word) => word === 'true');

const apiKeys = z.string().transform((list, context): readonly ApiKey[] => {
  const keys = list.split(',').map((entry) => {
    const colon = entry.indexOf(':');
    return { name: colon < 0 ? '' : entry.slice(0, colon).trim(), key: entry.slice(colon + 1).trim() };
  });
  const fault = (at: number, what: string): void => {
    context.addIssue({ code: 'custom', message: `entry ${at + 1} ${what}` });
  };
  keys.forEach(({ name, key }, at) => {
    if (!KEY_NAME.test(name)) fault(at, 'must be name:key, the name made of letters, digits, "_", "." and "-"');
    else if (!KEY.test(key)) fault(at, 'must have a key of printable characters without spaces');
    else if (keys.findIndex((other) => other.name === name) < at) fault(at, 'repeats a name');
    else if (keys.findIndex((other) => other.key === key) < at) fault(at, 'repeats a key');
  });
  return keys;
});

const ConfigSchema = z.object({
  HOST: text
    .default('127.0.0.1')
    .meta({ description: 'Address to listen on. Other than loopback it wants API_KEYS, or AUTH=none.' }),
  PORT: wholeNumber(0, 65_535).default(8080).meta({ description: 'Port to listen on; 0 takes a free one.' }),
  DATA_DIR: text
    .default('./data')
    .meta({ description: 'Folder of the SQLite file shimline.db; one server per folder.' }),
  SHIMS_DIR: text
    .default('./shims')
    .meta({ description: "Folder of shims of your own, added to the package's; it may be missing." }),
  SHIMS_WATCH: flag
    .default(false)
    .meta({ description: 'true: load the shims of SHIMS_DIR again when a file changes.' }),
  AGENTS_DIR: text
    .optional()
    .meta({ description: 'Folder of agent files (*.json, *.md), loaded at start and owned by the files.' }),
  API_KEYS: apiKeys
    .optional()
    .meta({ description: 'Keys of clients, name:key,name:key, sent as "Authorization: Bearer <key>".' }),
  AUTH: z
    .enum(['none'], { error: 'must be none, or unset' })
    .optional()
    .meta({ description: 'none: listen without keys, also on a HOST other than loopback.' }),
  OPENAI_API_KEY: text.optional().meta({ description: 'Key for the models openai/...' }),
  OPENAI_BASE_URL: httpUrl.optional().meta({ description: 'URL in place of https://api.openai.com/v1.' }),
  ANTHROPIC_API_KEY: text.optional().meta({ description: 'Key for the models anthropic/...' }),
  ANTHROPIC_BASE_URL: httpUrl.optional().meta({ description: 'URL in place of https://api.anthropic.com/v1.' }),
  GOOGLE_GENERATIVE_AI_API_KEY: text.optional().meta({ description: 'Key for the models google/...' }),
  OPENAI_COMPATIBLE_BASE_URL: httpUrl
    .optional()
    .meta({ description: 'URL of any endpoint that speaks Chat Completions, for the models openai-compatible/...' }),
  OPENAI_COMPATIBLE_API_KEY: text.optional().meta({ description: 'Key for that endpoint, if it wants one.' }),
  MODEL_IDLE_TIMEOUT_MS: wholeNumber(1)
    .default(60_000)
    .meta({ description: 'Milliseconds of silence after which a model call fails, from the request on.' }),
  MODEL_MAX_RETRIES: wholeNumber(0)
    .default(2)
    .meta({ description: 'Further tries of a model call after a transient failure (429, 5xx, reset, cut, silence).' }),
  MAX_CONCURRENT_RUNS: wholeNumber(1)
    .default(256)
    .meta({ description: 'Runs that are driven at once; the others are queued.' }),
  MAX_QUEUED_RUNS: wholeNumber(0)
    .default(10_000)
    .meta({ description: 'Queued runs beyond which a POST is answered with 429.' }),
  DURABILITY: z.enum(['full', 'normal'], { error: 'must be full or normal' }).default('full').meta({
    description:
      'full: an answer leaves after its commit is on disk; normal: survives a process crash, not a power cut.',
  }),
  MAX_BODY_BYTES: wholeNumber(1).default(4_194_304).meta({ description: 'Largest request body, in bytes.' }),
  RATE_LIMIT_PER_MINUTE: wholeNumber(1)
    .optional()
    .meta({ description: 'Requests per minute and key; unset: no limit.' }),
  RETAIN_RUNS_DAYS: wholeNumber(1)
    .optional()
    .meta({ description: 'Days after which finished runs are pruned; unset: never.' }),
  RETAIN_EVENTS_DAYS: wholeNumber(1)
    .optional()
    .meta({ description: 'Days after which the events of finished runs are pruned; unset: with the run.' }),
  RETAIN_RUNS_COUNT: wholeNumber(1)
    .optional()
    .meta({ description: 'Newest finished runs that are kept, looked at each minute; unset: all.' }),
  RETAIN_EVENTS_COUNT: wholeNumber(1)
    .optional()
    .meta({ description: 'Newest finished runs whose events are kept; unset: those of all that are kept.' }),
  SHUTDOWN_GRACE_MS: wholeNumber(0)
    .default(30_000)
    .meta({ description: 'Milliseconds that runs have on SIGTERM to reach their next checkpoint.' }),
  LOG_LEVEL: z
    .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'], {
      error: 'must be trace, debug, info, warn, error, fatal or silent',
    })
    .default('info')
    .meta({ description: 'Least level that is logged.' }),
});

/** The settings, by the names of their variables. */
export type Config = Readonly<z.output<typeof ConfigSchema>>;

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|::1|\[::1\])$/;

/**
 * The environment as settings; variables that are empty count as unset, those that are not listed are ignored.
 * @throws ConfigError with all faults at once
 */
export function parseConfig(env: Readonly<Record<string, string | undefined>>): Config {
  const set = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== undefined && value !== ''));
  const parsed = ConfigSchema.safeParse(set);
  const faults = parsed.error?.issues.map((issue) => `${String(issue.path[0])}: ${issue.message}`) ?? [];
  faults.push(...accessFaults(set));
  if (parsed.error !== undefined || faults.length > 0) throw new ConfigError(faults);
  return parsed.data;
}

function accessFaults({ HOST, API_KEYS, AUTH }: Readonly<Record<string, string | undefined>>): string[] {
  if (API_KEYS !== undefined && AUTH === 'none') return ['AUTH: none contradicts API_KEYS; unset one of them'];
  if (API_KEYS !== undefined || AUTH !== undefined || HOST === undefined || LOOPBACK.test(HOST)) return [];
  return [`HOST: ${JSON.stringify(HOST)} is not loopback, so API_KEYS must be set (or AUTH=none, to let everyone in)`];
}

/** Every setting that nobody but the operator may read, as values. */
export function secretsOf(config: Config): string[] {
  const providers = [
    config.OPENAI_API_KEY,
    config.ANTHROPIC_API_KEY,
    config.GOOGLE_GENERATIVE_AI_API_KEY,
    config.OPENAI_COMPATIBLE_API_KEY,
  ];
  return [...providers, ...(config.API_KEYS ?? []).map(({ key }) => key)].filter((secret) => secret !== undefined);
}

/** What `.env.example` must say: each variable with its meaning and default, ready to be filled in. */
export function environmentExample(): string {
  const entries = Object.entries(ConfigSchema.shape).map(([name, schema]) => {
    const { description = '' } = schema.meta() ?? {};
    const fallback = schema instanceof z.ZodDefault ? String(schema.def.defaultValue) : undefined;
    return `# ${description}\n${fallback === undefined ? `#${name}=` : `${name}=${fallback}`}\n`;
  });
  return `# Settings of the server. Read in development only, and the real environment wins.\n\n${entries.join('\n')}`;
}
