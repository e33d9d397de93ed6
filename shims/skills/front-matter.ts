import { cutText } from 'shimline/shims';
/** What a `SKILL.md` says of its skill. */
export interface SkillHead {
  /** Undefined where it has none that can be used; the folder's name then is the skill's. */
  readonly name: string | undefined;
  readonly description: string;
  readonly license: string | undefined;
  readonly compatibility: string | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  /** Undefined where nothing is said. */
  readonly allowedTools: readonly string[] | undefined;
  readonly disallowedTools: readonly string[];
}

/** A `SKILL.md` that is none: says why. */
export class BrokenSkillError extends Error {
  constructor(reason: string) {
    super(reason);
    this.name = 'BrokenSkillError';
  }
}

const MAX_DESCRIPTION = 1024;
const NAME = /^[\p{L}\p{N}][\p{L}\p{N}._ -]{0,63}$/u;

/**
 * Takes a `SKILL.md` apart. Lenient where authors are careless (a byte order mark, other line ends, a colon in an unquoted value,
 * lists for texts, unknown fields), strict in what nothing works without: front matter with a description.
 * @throws BrokenSkillError
 */
export async function parseSkill(text: string): Promise<{ readonly head: SkillHead; readonly body: string }> {
  const source = text.replace(/^\uFEFF/, '').replace(/\r\n?/g, '\n');
  const match = /^\s*---[ \t]*\n([\s\S]*?)\n?---[ \t]*(?:\n|$)([\s\S]*)$/.exec(source);
  if (match === null) throw new BrokenSkillError('it does not begin with front matter between two lines of ---');
  const fields = await parseYaml(match[1] ?? '');
  const description = textOf(fields.description)?.replace(/\s+/g, ' ').trim() ?? '';
  if (description === '') throw new BrokenSkillError('its front matter has no description');
  const name = textOf(fields.name)?.trim().normalize('NFC');
  return {
    head: {
      name: name !== undefined && isSkillName(name) ? name : undefined,
      description: cut(description, MAX_DESCRIPTION),
      license: textOf(fields.license),
      compatibility: textOf(fields.compatibility),
      metadata: metadataOf(fields.metadata),
      allowedTools: toolsOf(pick(fields, 'allowed')),
      disallowedTools: toolsOf(pick(fields, 'disallowed')) ?? [],
    },
    body: (match[2] ?? '').trim(),
  };
}

/** Whether a name can be told to a model and given back by it. */
export function isSkillName(name: string): boolean {
  return NAME.test(name);
}

/** @throws BrokenSkillError */
async function parseYaml(text: string): Promise<Readonly<Record<string, unknown>>> {
  const { parse } = await import('yaml');
  let value: unknown;
  try {
    value = parse(text, { prettyErrors: false, logLevel: 'error' });
  } catch (error) {
    try {
      // The most usual fault: `description: Use it when: …`, which is not YAML.
      value = parse(quoted(text), { prettyErrors: false, logLevel: 'error' });
    } catch {
      throw new BrokenSkillError(
        `its front matter is no YAML: ${error instanceof Error ? error.message : String(error)}`,
      );
    }
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new BrokenSkillError('its front matter has no fields');
  return value as Readonly<Record<string, unknown>>;
}

function quoted(text: string): string {
  return text
    .split('\n')
    .map((line) => {
      const match = /^([A-Za-z_-]+):[ \t]+([^\s"'[{|>&*#].*)$/.exec(line);
      return match === null ? line : `${match[1] ?? ''}: ${JSON.stringify(match[2]?.trim())}`;
    })
    .join('\n');
}

function textOf(value: unknown): string | undefined {
  if (typeof value === 'string') return value;
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : undefined;
}

function metadataOf(value: unknown): Readonly<Record<string, string>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return {};
  const entries = Object.entries(value).map(([key, each]) => [key, textOf(each) ?? JSON.stringify(each)]);
  return Object.fromEntries(entries) as Record<string, string>;
}

function pick(fields: Readonly<Record<string, unknown>>, which: 'allowed' | 'disallowed'): unknown {
  return fields[`${which}-tools`] ?? fields[`${which}_tools`] ?? fields[`${which}Tools`];
}

/** Names out of a text (`Read, Bash(git add:*) grep`) or a list; what stands in parentheses is left out. */
function toolsOf(value: unknown): readonly string[] | undefined {
  const texts: readonly unknown[] = Array.isArray(value) ? value : [value];
  if (!Array.isArray(value) && (textOf(value) ?? '').trim() === '') return undefined;
  return texts
    .flatMap((text) => (textOf(text) ?? '').replace(/\([^)]*\)/g, ' ').split(/[\s,]+/))
    .filter((name) => name !== '');
}

/** The beginning of a text, at a whole character. */
export function cut(text: string, length: number): string {
  return text.length <= length ? text : `${cutText(text, length)}…`;
}
