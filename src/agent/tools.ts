import { z } from 'zod';
import { cutText, type JsonValue, strictStringify, wellFormed } from './json.js';
import { compileJsonSchema, type JsonSchema, jsonSchemaFaults } from './json-schema.js';
import { mayHoldInternal, omitInternal, type ToolResultOutput } from './messages.js';
import type { ProviderOptions } from './model.js';
import { messageOf } from './run-errors.js';
import type { ShimState } from './state-map.js';

/** What a restart does with a call that a crash interrupted. */
export const OnCrashSchema = z.enum(['retry', 'unknown', 'ask', 'fail']);
export type OnCrash = z.infer<typeof OnCrashSchema>;

/** Logs of a shim or tool: pino's shape, ids already bound. */
export interface Logger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** What a tool is told about its call. Aborts through `signal`; writes state only through its shim (R19, R20). */
export interface ToolContext {
  readonly runId: string;
  readonly agent: string;
  readonly toolCallId: string;
  /** The same on a retry of the same call, also after a crash. */
  readonly idempotencyKey: string;
  readonly signal: AbortSignal;
  readonly log: Logger;
  /** Whether a person approved (or edited) this very call, whoever asked for it; also after a restart. */
  readonly approved: boolean;
  /** Streams something to watchers as `tool.progress`. */
  progress(data: JsonValue): void;
  /** Read-only live view: a write throws `TypeError`. */
  readonly shimState: ShimState;
  readonly activeSkillNames: readonly string[];
}

/** A content part of a tool result: text, an image or a file (bytes, base64 text, or a `data:` URL). */
export type ToolContentPart =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'image'; readonly image: string | Uint8Array; readonly mediaType: string }
  | {
      readonly type: 'file';
      readonly data: string | Uint8Array;
      readonly mediaType: string;
      readonly filename?: string;
    };

const FAILURE = Symbol('toolFailure');
export interface ToolFailure {
  readonly [FAILURE]: true;
  readonly message: string;
  readonly kind: string | undefined;
}

/** What a tool returns to say that it failed, in words for the model. `kind` is for shims and clients, e.g. `not_found`. */
export function toolFailure(message: string, options: { readonly kind?: string } = {}): ToolFailure {
  return { [FAILURE]: true, message, kind: options.kind };
}

export type ToolOutcome =
  | { readonly ok: true; readonly result: unknown }
  | { readonly ok: false; readonly error: { readonly message: string; readonly kind?: string | undefined } };

type Awaitable<T> = T | Promise<T>;

/** A tool as the loop runs it; made by `defineTool`. */
export interface Tool {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonSchema;
  readonly onCrash: OnCrash;
  readonly timeoutMs: number | undefined;
  readonly maxRetries: number | undefined;
  /** Options for one provider each, as a message has them. */
  readonly providerOptions?: ProviderOptions | undefined;
  /** What its calls may do, e.g. `write:overwrite`, for shims that judge calls, whatever the tool is called. */
  readonly operations?: readonly string[] | undefined;
  /** The agent that a call of this tool hands the conversation to; only the core makes such tools. */
  readonly handoffTo?: string;
  /** Whether a person must approve this call. A throw counts as yes. */
  needsApproval(args: unknown, context: ToolContext): Awaitable<boolean>;
  /** Checked and defaulted arguments, or the faults. */
  parse(
    args: unknown,
  ): { readonly ok: true; readonly args: unknown } | { readonly ok: false; readonly faults: readonly string[] };
  execute(args: unknown, context: ToolContext): Awaitable<unknown>;
}

export interface ToolDefinition<P> {
  /** 1 to 64 of `a-z A-Z 0-9 _ -`: what every provider takes. */
  readonly name: string;
  readonly description: string;
  /** A zod object or a JSON Schema object. */
  readonly parameters: P;
  readonly onCrash?: OnCrash;
  readonly needsApproval?: boolean | ((args: ToolArguments<P>, context: ToolContext) => Awaitable<boolean>);
  /** Wins over the agent's `toolCallTimeoutMs`. */
  readonly timeoutMs?: number;
  /** Further tries after a failure, only where the author says so; wins over the agent's `toolCallMaxRetries`. */
  readonly maxRetries?: number;
  /** Options for one provider each, by its key: `{ anthropic: { … } }`; the others do not get them. */
  readonly providerOptions?: ProviderOptions;
  /** What its calls may do, e.g. `["write:create_file", "write:overwrite"]`: `approval` has rules for operations. */
  readonly operations?: readonly string[];
  /** Returns a string, JSON, or content parts; a throw or `toolFailure(…)` is an error result for the model. */
  execute(args: ToolArguments<P>, context: ToolContext): Awaitable<unknown>;
}
export type ToolArguments<P> = P extends z.ZodType ? z.output<P> : Record<string, unknown>;

const TOOL_NAME = /^[a-zA-Z0-9_-]{1,64}$/;

/**
 * Makes a tool.
 * @throws TypeError when the name is one that providers refuse or the parameters are no object schema
 * @throws InvalidJsonSchemaError for a JSON Schema that does not compile
 */
export function defineTool<const P extends z.ZodType | JsonSchema>(definition: ToolDefinition<P>): Tool {
  const { name, parameters, needsApproval = false } = definition;
  if (!TOOL_NAME.test(name))
    throw new TypeError(`A tool's name is 1 to 64 of a-z A-Z 0-9 _ -, not ${JSON.stringify(name)}.`);
  const inputSchema = schemaOf(name, parameters);
  return {
    name,
    description: definition.description,
    inputSchema,
    onCrash: definition.onCrash ?? 'unknown',
    timeoutMs: definition.timeoutMs,
    maxRetries: definition.maxRetries,
    ...(definition.providerOptions === undefined ? {} : { providerOptions: definition.providerOptions }),
    ...(definition.operations === undefined ? {} : { operations: [...definition.operations] }),
    needsApproval: (args, context) =>
      typeof needsApproval === 'boolean' ? needsApproval : needsApproval(args as ToolArguments<P>, context),
    parse: (args) => parseArguments(parameters, args),
    execute: (args, context) => definition.execute(args as ToolArguments<P>, context),
  };
}

const schemaCache = new WeakMap<object, JsonSchema>();

function schemaOf(name: string, parameters: z.ZodType | JsonSchema): JsonSchema {
  const known = schemaCache.get(parameters);
  if (known !== undefined) return known;
  const schema = isZod(parameters) ? (z.toJSONSchema(parameters, { io: 'input' }) as JsonSchema) : parameters;
  if (schema.type !== 'object')
    throw new TypeError(`The parameters of tool ${JSON.stringify(name)} must be an object schema.`);
  const { $schema: _dialect, ...body } = schema;
  if (!isZod(parameters)) compileJsonSchema(parameters);
  schemaCache.set(parameters, body);
  return body;
}

function isZod(parameters: z.ZodType | JsonSchema): parameters is z.ZodType {
  return parameters instanceof z.ZodType || '_zod' in parameters;
}

function parseArguments(parameters: z.ZodType | JsonSchema, args: unknown): ReturnType<Tool['parse']> {
  if (!isZod(parameters)) {
    const faults = jsonSchemaFaults(parameters, args);
    return faults.length === 0 ? { ok: true, args } : { ok: false, faults };
  }
  const parsed = parameters.safeParse(args);
  if (parsed.success) return { ok: true, args: parsed.data };
  return { ok: false, faults: parsed.error.issues.map((issue) => `/${issue.path.join('/')}: ${issue.message}`) };
}

/** Most characters of one tool result that are kept, with what says that the rest was cut. */
const MAX_RESULT_CHARS = 200_000;
const LONGEST_CUT_NOTE = 80;

/** Cuts between characters and says so; what was cut once is not cut again. */
function cutResult(text: string, limit = MAX_RESULT_CHARS): string {
  if (text.length <= limit) return text.toWellFormed();
  const kept = cutText(text, Math.max(0, limit - LONGEST_CUT_NOTE));
  return `${kept}\n[cut: ${text.length - kept.length} of ${text.length} characters left out]`;
}

function isToolFailure(value: unknown): value is ToolFailure {
  return typeof value === 'object' && value !== null && FAILURE in value;
}

/**
 * Whatever a tool returned, as an outcome that can be stored and sent. A value that JSON cannot hold becomes a readable
 * substitute: the effect has happened, so losing the result would make the model do it again. Never throws.
 */
export function outcomeOf(returned: unknown): ToolOutcome {
  if (isToolFailure(returned)) {
    return {
      ok: false,
      error: { message: cutResult(returned.message), ...(returned.kind === undefined ? {} : { kind: returned.kind }) },
    };
  }
  if (typeof returned === 'string') return { ok: true, result: cutResult(returned) };
  if (returned === undefined) return { ok: true, result: 'Done; the tool returned nothing.' };
  try {
    if (isContent(returned)) return { ok: true, result: cutContent(returned) };
    const text = jsonText(returned);
    const json = mayHoldInternal(text) ? JSON.stringify(omitInternal(JSON.parse(text) as JsonValue)) : text;
    return {
      ok: true,
      result: json.length > MAX_RESULT_CHARS ? cutResult(json) : wellFormed(JSON.parse(json) as JsonValue),
    };
  } catch (error) {
    return { ok: true, result: cutResult(`Done; the result cannot be printed (${messageOf(error)}).`) };
  }
}

/** A thrown value as an error outcome, whatever it was. */
export function failureOf(thrown: unknown, kind?: string): ToolOutcome {
  const named = kind ?? kindOfThrown(thrown);
  return {
    ok: false,
    error: { message: cutResult(messageOf(thrown)), ...(named === undefined ? {} : { kind: named }) },
  };
}

function kindOfThrown(thrown: unknown): string | undefined {
  try {
    return typeof thrown === 'object' && thrown !== null && 'kind' in thrown && typeof thrown.kind === 'string'
      ? cutText(thrown.kind, 100)
      : undefined;
  } catch {
    // A getter of a thrown object may throw as well.
    return undefined;
  }
}

/** The most that a substitute looks into: an object may refer to a whole program. */
const MOST_DEPTH = 500;
const MOST_NODES = 100_000;

/** JSON text of any value: what JSON holds as it is, the rest as something readable in its place. */
function jsonText(value: unknown): string {
  try {
    return strictStringify(value, 'result');
  } catch {
    return JSON.stringify(substitute(value, { ancestors: new Set(), nodes: 0 }));
  }
}

interface Walk {
  readonly ancestors: Set<object>;
  nodes: number;
}

function substitute(value: unknown, walk: Walk): JsonValue {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return value;
    case 'number':
      return Number.isFinite(value) ? value : String(value);
    case 'bigint':
    case 'symbol':
      return String(value);
    case 'function':
      return `[function ${value.name}]`;
    case 'undefined':
      return null;
    case 'object':
      break;
  }
  if (value === null) return null;
  walk.nodes += 1;
  if (walk.ancestors.has(value)) return '[a cycle]';
  if (walk.ancestors.size >= MOST_DEPTH || walk.nodes > MOST_NODES) return '[left out]';
  walk.ancestors.add(value);
  try {
    return substituteObject(value, walk);
  } catch (error) {
    return `[cannot be printed: ${messageOf(error)}]`;
  } finally {
    walk.ancestors.delete(value);
  }
}

function substituteObject(value: object, walk: Walk): JsonValue {
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return `[${value.byteLength} bytes]`;
  if (value instanceof Error) return messageOf(value);
  if (value instanceof Map)
    return Object.fromEntries(
      [...value].map(([key, inner]) => [
        typeof key === 'string' ? key : JSON.stringify(substitute(key, walk)),
        substitute(inner, walk),
      ]),
    );
  if (value instanceof Set) return [...value].map((inner) => substitute(inner, walk));
  if (Array.isArray(value)) return value.map((inner) => substitute(inner, walk));
  if ('toJSON' in value && typeof value.toJSON === 'function')
    return substitute((value.toJSON as () => unknown)(), walk);
  const entries: [string, JsonValue][] = [];
  for (const key of Object.keys(value)) {
    try {
      const inner = (value as Record<string, unknown>)[key];
      if (inner !== undefined) entries.push([key, substitute(inner, walk)]);
    } catch (error) {
      entries.push([key, `[cannot be read: ${messageOf(error)}]`]);
    }
  }
  return Object.fromEntries(entries);
}

const PART_TYPES = new Set<unknown>(['text', 'image', 'file']);

function isContent(value: unknown): value is readonly ToolContentPart[] {
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((part: unknown) => {
      if (typeof part !== 'object' || part === null || !('type' in part) || !PART_TYPES.has(part.type)) return false;
      if (part.type === 'text') return 'text' in part && typeof part.text === 'string';
      const data = (part as Record<string, unknown>)[part.type === 'image' ? 'image' : 'data'];
      return (
        (typeof data === 'string' || data instanceof Uint8Array) &&
        'mediaType' in part &&
        typeof part.mediaType === 'string'
      );
    })
  );
}

/** Media larger than this are no help to a model and a burden to every later request. */
const MAX_MEDIA_CHARS = 20_000_000;

type StoredPart =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'image'; readonly image: string; readonly mediaType: string }
  | { readonly type: 'file'; readonly data: string; readonly mediaType: string; readonly filename?: string };

/** Copies of the parts; all texts together keep to the limit of a result. */
function cutContent(parts: readonly ToolContentPart[]): StoredPart[] {
  let left = MAX_RESULT_CHARS;
  return parts.map((part) => {
    if (part.type === 'text') {
      const text = cutResult(part.text, Math.max(0, left));
      left -= text.length;
      return { type: 'text', text };
    }
    const { data, mediaType } = mediaOf(part.type === 'image' ? part.image : part.data, part.mediaType);
    if (data.length > MAX_MEDIA_CHARS)
      return {
        type: 'text',
        text: `[${part.type} of type ${mediaType}, about ${Math.floor((data.length * 3) / 4)} bytes: left out, as it is too large]`,
      };
    if (part.type === 'image') return { type: 'image', image: data, mediaType };
    return {
      type: 'file',
      data,
      mediaType,
      ...(typeof part.filename === 'string' ? { filename: cutText(part.filename, 200) } : {}),
    };
  });
}

/** Base64 text, whatever spelling the tool chose: bytes, base64, or a `data:` URL. */
function mediaOf(given: string | Uint8Array, mediaType: string): { readonly data: string; readonly mediaType: string } {
  if (typeof given !== 'string') return { data: base64Of(given), mediaType };
  const dataUrl = /^data:([^;,]+);base64,(.*)$/s.exec(given);
  return dataUrl === null ? { data: given, mediaType } : { data: dataUrl[2] ?? '', mediaType: dataUrl[1] ?? mediaType };
}

function base64Of(bytes: Uint8Array): string {
  let binary = '';
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(binary);
}

/** An outcome as the `output` of a `tool-result` part. */
export function outputOf(outcome: ToolOutcome): ToolResultOutput {
  if (!outcome.ok)
    return { type: 'error-text', value: outcome.error.message === '' ? 'The tool failed.' : outcome.error.message };
  const { result } = outcome;
  if (typeof result === 'string') return { type: 'text', value: result };
  if (isContent(result)) {
    return {
      type: 'content',
      value: cutContent(result).map((part) => {
        switch (part.type) {
          case 'text':
            return part;
          case 'image':
            return { type: 'image-data', data: part.image, mediaType: part.mediaType };
          case 'file':
            return {
              type: 'file-data',
              data: part.data,
              mediaType: part.mediaType,
              ...(part.filename === undefined ? {} : { filename: part.filename }),
            };
        }
      }),
    };
  }
  return { type: 'json', value: result as Exclude<ToolResultOutput, { type: 'content' }>['value'] };
}
