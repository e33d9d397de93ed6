import { RE2JS } from 're2js';
import type { JsonSchema } from 'shimline/shims';

/** A schema that providers take, or why they would not take this one. */
export type SchemaVerdict = { readonly schema: JsonSchema } | { readonly reason: string };

const MAX_CHARS = 100_000;
const MAX_NODES = 20_000;
const MAX_DEPTH = 60;
const NOT_AT_THE_TOP = ['anyOf', 'oneOf', 'allOf', 'not', 'enum'];
/** Keywords whose value is a map of schemas by name, and those whose value is data and no schema. */
const MAPS = new Set(['properties', 'patternProperties', 'dependentSchemas']);
const DATA = new Set(['enum', 'const', 'default', 'examples', 'required']);
const DEFINITIONS = new Set(['$defs', 'definitions', '$schema', '$id', '$anchor']);

type Node = Readonly<Record<string, unknown>>;

class Refused extends Error {}

/**
 * Makes a tool's input schema fit for every provider: an object at the top, references put in place (some providers do not follow
 * them). One bad schema would have a provider refuse the whole request.
 */
export function usableSchema(raw: unknown): SchemaVerdict {
  if (!isNode(raw)) return { reason: 'it has no input schema' };
  const text = JSON.stringify(raw);
  const size = text.length;
  if (/\\ud[89a-f]/i.test(text)) return { reason: 'its input schema has halves of characters' };
  if (size > MAX_CHARS) return { reason: `its input schema is too large (${size} characters)` };
  try {
    const schema = new Expansion(raw).whole();
    const { type = 'object' } = schema;
    if (type !== 'object') return { reason: `its input schema is of type ${JSON.stringify(type)}, not "object"` };
    const top = NOT_AT_THE_TOP.find((keyword) => keyword in schema);
    if (top !== undefined) return { reason: `its input schema has "${top}" at the top level` };
    return { schema: { ...schema, type, properties: schema.properties ?? {} } };
  } catch (error) {
    if (error instanceof Refused) return { reason: error.message };
    throw error;
  }
}

class Expansion {
  readonly #root: Node;
  #nodes = 0;

  constructor(root: Node) {
    this.#root = root;
  }

  whole(): Node {
    const schema = this.#expand(this.#root, []);
    if (!isNode(schema)) throw new Refused('its input schema is no object');
    return schema;
  }

  #expand(node: unknown, references: readonly string[], depth = 0): unknown {
    this.#nodes += 1;
    if (this.#nodes > MAX_NODES || depth > MAX_DEPTH) throw new Refused('its input schema is too large or too deep');
    if (Array.isArray(node)) return node.map((item) => this.#expand(item, references, depth + 1));
    if (!isNode(node)) return node;
    if ('$dynamicRef' in node || '$recursiveRef' in node) throw new Refused('its input schema has a dynamic reference');
    const reference = node.$ref;
    const own = Object.fromEntries(
      Object.entries(node)
        .filter(([key, value]) => key !== '$ref' && !DEFINITIONS.has(key) && !isBeyondUs(key, value))
        .map(([key, value]) => [key, this.#keyword(key, value, references, depth)]),
    );
    if (typeof reference !== 'string') return own;
    if (references.includes(reference)) throw new Refused(`its input schema refers to itself (${short(reference)})`);
    const target = this.#expand(this.#resolve(reference), [...references, reference], depth + 1);
    return isNode(target) ? { ...target, ...own } : target;
  }

  #keyword(key: string, value: unknown, references: readonly string[], depth: number): unknown {
    if (DATA.has(key)) return value;
    if (!MAPS.has(key) || !isNode(value)) return this.#expand(value, references, depth + 1);
    return Object.fromEntries(
      Object.entries(value).map(([name, schema]) => [name, this.#expand(schema, references, depth + 1)]),
    );
  }

  #resolve(reference: string): unknown {
    let node: unknown = reference.startsWith('#') ? this.#root : undefined;
    for (const token of reference.slice(1).split('/').slice(1)) {
      const key = decoded(token).replaceAll('~1', '/').replaceAll('~0', '~');
      node = (isNode(node) || Array.isArray(node)) && Object.hasOwn(node, key) ? (node as Node)[key] : undefined;
    }
    if (node === undefined || (reference.length > 1 && !reference.startsWith('#/')))
      throw new Refused(`its input schema refers to something that is not in it (${short(reference)})`);
    return node;
  }
}

/** A pattern that cannot be checked here, since it might take for ever: the server checks its arguments itself. */
function isBeyondUs(key: string, value: unknown): boolean {
  if (key !== 'pattern' || typeof value !== 'string' || !isPattern(value)) return false;
  try {
    RE2JS.compile(RE2JS.translateRegExp(value));
    return false;
  } catch {
    return true;
  }
}

function isPattern(text: string): boolean {
  try {
    return new RegExp(text, 'u').unicode;
  } catch {
    return false;
  }
}

function decoded(token: string): string {
  try {
    return decodeURIComponent(token);
  } catch {
    return token;
  }
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function short(text: string): string {
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
