import { Ajv2020 } from 'ajv/dist/2020.js';
import { isObject, type JsonObject, listOf, parseJson } from './json-path.js';

export interface Problem {
  readonly message: string;
  readonly status?: number;
  /** The provider's error type, where it is not that of a plain bad request. */
  readonly type?: string;
  readonly code?: string;
  readonly param?: string;
}

/** Thrown by the checks; the endpoint answers it in the dialect's own shape. */
export class RequestRefused extends Error {
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.message);
    this.problem = problem;
  }
}

export function refuse(message: string, details: Omit<Problem, 'message'> = {}): never {
  throw new RequestRefused({ message, ...details });
}

export interface CheckedRequest {
  readonly body: JsonObject;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly path: string;
}

export const isBlank = (value: unknown): boolean => typeof value === 'string' && value.trim() === '';

/** The JSON pointer of the first lone surrogate in keys or strings, if any. */
export function loneSurrogateAt(value: unknown, pointer = ''): string | undefined {
  if (typeof value === 'string') return /\p{Surrogate}/u.test(value) ? pointer || '/' : undefined;
  if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) {
      const found = loneSurrogateAt(item, `${pointer}/${index}`);
      if (found !== undefined) return found;
    }
    return undefined;
  }
  if (!isObject(value)) return undefined;
  for (const [key, item] of Object.entries(value)) {
    const found = loneSurrogateAt(key, `${pointer}/*`) ?? loneSurrogateAt(item, `${pointer}/${key}`);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Tool arguments as Chat Completions and Responses carry them: a string that holds a JSON object. */
export function checkArgumentText(value: unknown, param: string): void {
  if (typeof value !== 'string') refuse(`Invalid type for '${param}': expected a string.`, { param });
  const parsed = parseJson(value);
  if (!parsed.ok || !isObject(parsed.value)) {
    refuse(`Invalid '${param}': expected a JSON string that holds an object.`, { param });
  }
  if (loneSurrogateAt(parsed.value) !== undefined) refuse(`Invalid '${param}': lone surrogate.`, { param });
}

const toolName = /^[a-zA-Z0-9_-]{1,64}$/;

export function checkToolName(name: unknown, param: string): asserts name is string {
  if (typeof name !== 'string' || !toolName.test(name)) {
    const message = `Invalid '${param}': string does not match pattern. Expected a string that matches the pattern`;
    refuse(`${message} '^[a-zA-Z0-9_-]{1,64}$'.`, { param, code: 'invalid_value' });
  }
}

export interface DeclaredTool {
  readonly name: unknown;
  readonly schema: unknown;
  readonly param: string;
}

/** Names are legal and unique, schemas are objects at the top and valid draft 2020-12. */
export function checkTools(tools: readonly DeclaredTool[]): ReadonlySet<string> {
  const names = new Set<string>();
  for (const tool of tools) {
    checkToolName(tool.name, `${tool.param}.name`);
    if (names.has(tool.name)) refuse(`tools: Tool names must be unique: ${tool.name}`, { param: tool.param });
    names.add(tool.name);
    const fault = schemaFault(tool.schema);
    if (fault !== undefined) {
      const details = { param: tool.param, code: 'invalid_function_parameters' };
      refuse(`Invalid schema for function '${tool.name}': ${fault}`, details);
    }
  }
  return names;
}

const metaSchema = new Ajv2020({ strict: false, validateFormats: false, logger: false });
const topLevelOnly = ['anyOf', 'oneOf', 'allOf', 'not', 'enum'];

export function schemaFault(schema: unknown): string | undefined {
  if (!isObject(schema)) return 'it must be a JSON Schema object.';
  if (schema.type !== 'object') return `schema must be 'type: "object"', got ${String(schema.type)}.`;
  const forbidden = topLevelOnly.find((key) => key in schema);
  if (forbidden !== undefined) return `'${forbidden}' is not supported at the top level.`;
  // The dialect named by $schema is not judged: providers read every schema as draft 2020-12.
  const undated: JsonObject = { ...schema, $schema: undefined };
  if (metaSchema.validateSchema(undated) !== true) {
    return `it must match JSON Schema draft 2020-12: ${metaSchema.errorsText(metaSchema.errors)}.`;
  }
  return referenceFault(schema, schema);
}

function referenceFault(node: unknown, root: JsonObject): string | undefined {
  if (Array.isArray(node)) return firstFault(node, root);
  if (!isObject(node)) return undefined;
  const reference = node.$ref;
  if (typeof reference === 'string' && !resolves(reference, root)) return `cannot resolve $ref '${reference}'.`;
  return firstFault(Object.values(node), root);
}

function firstFault(nodes: readonly unknown[], root: JsonObject): string | undefined {
  for (const node of nodes) {
    const fault = referenceFault(node, root);
    if (fault !== undefined) return fault;
  }
  return undefined;
}

function resolves(reference: string, root: JsonObject): boolean {
  if (!reference.startsWith('#')) return false;
  let node: unknown = root;
  for (const token of reference.slice(1).split('/').slice(1)) {
    const key = decodeURIComponent(token).replaceAll('~1', '/').replaceAll('~0', '~');
    if (Array.isArray(node)) node = (node as readonly unknown[])[Number(key)];
    else node = isObject(node) && Object.hasOwn(node, key) ? node[key] : undefined;
  }
  return node !== undefined;
}

/** `tool_choice` needs tools, and a forced tool must be one of them. */
export function checkToolChoice(choice: unknown, forced: unknown, names: ReadonlySet<string>): void {
  if (choice === undefined) return;
  if (names.size === 0) refuse('tool_choice is only allowed when tools are specified.', { param: 'tool_choice' });
  if (typeof forced === 'string' && !names.has(forced)) {
    refuse(`Tool '${forced}' not found in provided tools.`, { param: 'tool_choice' });
  }
}

export function checkModel(body: JsonObject): void {
  if (typeof body.model !== 'string' || body.model === '') {
    refuse('you must provide a model parameter', { param: 'model' });
  }
}

export function checkCount(value: unknown, param: string): void {
  if (value === undefined) return;
  if (!Number.isInteger(value) || Number(value) < 1) refuse(`${param}: must be an integer >= 1.`, { param });
}

export const objectsOf = (value: unknown): readonly JsonObject[] => listOf(value).filter(isObject);
