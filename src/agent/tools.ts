import { z } from 'zod';
import { compileJsonSchema, jsonSchemaFaults, type JsonSchema } from './json-schema.js';
import { cutText, strictStringify, wellFormed, type JsonValue } from './json.js';
import type { ToolResultOutput } from './messages.js';
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
  /** Streams something to watchers as `tool.progress`. */
  progress(data: JsonValue): void;
  /** Read-only live view: a write throws `TypeError`. */
  readonly shimState: ShimState;
  readonly activeSkillNames: readonly string[];
}

/** A content part of a tool result: text, an image or a file (base64). */
export type ToolContentPart =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'image'; readonly image: string; readonly mediaType: string }
  | { readonly type: 'file'; readonly data: string; readonly mediaType: string; readonly filename?: string };

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
  /** The agent that a call of this tool hands the conversation to; only the core makes such tools. */
  readonly handoffTo?: string;
  /** Whether a person must approve this call. A throw counts as yes. */
  needsApproval(args: unknown, context: ToolContext): Awaitable<boolean>;
  /** Checked and defaulted arguments, or the faults. */
  parse(args: unknown): { readonly ok: true; readonly args: unknown } | { readonly ok: false; readonly faults: readonly string[] };
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
  if (!TOOL_NAME.test(name)) throw new TypeError(`A tool's name is 1 to 64 of a-z A-Z 0-9 _ -, not ${JSON.stringify(name)}.`);
  const inputSchema = schemaOf(name, parameters);
  return {
    name,
    description: definition.description,
    inputSchema,
    onCrash: definition.onCrash ?? 'unknown',
    timeoutMs: definition.timeoutMs,
    maxRetries: definition.maxRetries,
    needsApproval: (args, context) => (typeof needsApproval === 'boolean' ? needsApproval : needsApproval(args as ToolArguments<P>, context)),
    parse: (args) => parseArguments(parameters, args),
    execute: (args, context) => definition.execute(args as ToolArguments<P>, context),
  };
}

const schemaCache = new WeakMap<object, JsonSchema>();

function schemaOf(name: string, parameters: z.ZodType | JsonSchema): JsonSchema {
  const known = schemaCache.get(parameters);
  if (known !== undefined) return known;
  const schema = isZod(parameters) ? (z.toJSONSchema(parameters, { io: 'input' }) as JsonSchema) : parameters;
  if (schema['type'] !== 'object') throw new TypeError(`The parameters of tool ${JSON.stringify(name)} must be an object schema.`);
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

/** Most characters of one tool result that are kept; the rest is cut and the model is told. */
export const MAX_RESULT_CHARS = 200_000;

function cutResult(text: string): string {
  if (text.length <= MAX_RESULT_CHARS) return text.toWellFormed();
  const kept = cutText(text, MAX_RESULT_CHARS);
  return `${kept}\n[cut: ${text.length - kept.length} of ${text.length} characters left out]`;
}

function isToolFailure(value: unknown): value is ToolFailure {
  return typeof value === 'object' && value !== null && FAILURE in value;
}

/**
 * Whatever a tool returned, as an outcome that can be stored and sent. A value that JSON cannot hold becomes a readable
 * substitute: the effect has happened, so losing the result would make the model do it again.
 */
export function outcomeOf(returned: unknown): ToolOutcome {
  if (isToolFailure(returned)) {
    return { ok: false, error: { message: cutResult(returned.message), ...(returned.kind === undefined ? {} : { kind: returned.kind }) } };
  }
  if (typeof returned === 'string') return { ok: true, result: cutResult(returned) };
  if (isContent(returned)) return { ok: true, result: returned.map(copyPart) };
  try {
    const json = strictStringify(returned, 'result');
    return { ok: true, result: json.length > MAX_RESULT_CHARS ? cutResult(json) : wellFormed(JSON.parse(json) as JsonValue) };
  } catch {
    return { ok: true, result: cutResult(substitute(returned)) };
  }
}

/** A thrown value as an error outcome, whatever it was. */
export function failureOf(thrown: unknown, kind?: string): ToolOutcome {
  const own = typeof thrown === 'object' && thrown !== null && 'kind' in thrown && typeof thrown.kind === 'string' ? thrown.kind : undefined;
  const named = kind ?? own;
  return { ok: false, error: { message: cutResult(messageOf(thrown)), ...(named === undefined ? {} : { kind: named }) } };
}

function substitute(value: unknown): string {
  if (value === undefined) return 'Done; the tool returned nothing.';
  const seen = new Set<unknown>();
  try {
    const text = JSON.stringify(value, (_key, inner: unknown) => {
      if (typeof inner === 'bigint') return inner.toString();
      if (typeof inner === 'function') return `[function ${inner.name}]`;
      if (typeof inner === 'symbol' || (typeof inner === 'number' && !Number.isFinite(inner))) return String(inner);
      if (inner instanceof Map) return Object.fromEntries(inner.entries());
      if (inner instanceof Set) return [...inner.values()];
      if (inner instanceof Uint8Array) return `[${inner.byteLength} bytes]`;
      if (typeof inner === 'object' && inner !== null) {
        if (seen.has(inner)) return '[repeated]';
        seen.add(inner);
      }
      return inner;
    }) as string | undefined;
    return text ?? String(value);
  } catch (error) {
    return `Done; the result cannot be printed (${messageOf(error)}).`;
  }
}

const PART_TYPES = new Set<unknown>(['text', 'image', 'file']);

function isContent(value: unknown): value is readonly ToolContentPart[] {
  return (
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((part: unknown) => {
      if (typeof part !== 'object' || part === null || !('type' in part) || !PART_TYPES.has(part.type)) return false;
      if (part.type === 'text') return 'text' in part && typeof part.text === 'string';
      const data = part.type === 'image' ? 'image' : 'data';
      return typeof (part as Record<string, unknown>)[data] === 'string' && 'mediaType' in part && typeof part.mediaType === 'string';
    })
  );
}

function copyPart(part: ToolContentPart): ToolContentPart {
  return part.type === 'text' ? { type: 'text', text: cutResult(part.text) } : { ...part };
}

/** An outcome as the `output` of a `tool-result` part. */
export function outputOf(outcome: ToolOutcome): ToolResultOutput {
  if (!outcome.ok) return { type: 'error-text', value: outcome.error.message === '' ? 'The tool failed.' : outcome.error.message };
  const { result } = outcome;
  if (typeof result === 'string') return { type: 'text', value: result };
  if (isContent(result)) {
    return {
      type: 'content',
      value: result.map((part) => {
        switch (part.type) {
          case 'text':
            return part;
          case 'image':
            return { type: 'image-data', data: part.image, mediaType: part.mediaType };
          case 'file':
            return { type: 'file-data', data: part.data, mediaType: part.mediaType, ...(part.filename === undefined ? {} : { filename: part.filename }) };
        }
      }),
    };
  }
  return { type: 'json', value: result as Exclude<ToolResultOutput, { type: 'content' }>['value'] };
}
