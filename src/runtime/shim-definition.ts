import { z } from 'zod';
import { defineShim, InvalidShimError, ShimDefinition } from '../agent/define-shim.js';
import { messageOf } from '../agent/run-errors.js';
import { Shim } from '../agent/shim.js';
import { ShimFileError } from './shim-fault.js';

/** A version of a shim that serves: it never changes, so a run that holds it keeps what it started with (R117). */
export interface LoadedShim {
  readonly name: string;
  readonly version: number;
  readonly description: string;
  /** Identifies the code: 16 hex digits of the SHA-256 of its files (R118). */
  readonly hash: string;
  /** Absolute path. */
  readonly file: string;
  /** JSON Schema of what an agent may write into `config`. */
  readonly configSchema: Readonly<Record<string, unknown>>;
  readonly inherit: 'none' | 'children' | 'always';
  /**
   * Makes the shim of one agent.
   * @param context.name the instance's name: the `as` of the agent's entry, or the shim's own
   * @throws InvalidShimConfigError for a config that its schema refuses, InvalidShimError where the author's `create` gave no Shim, whatever that throws
   */
  create(config: Readonly<Record<string, unknown>> | undefined, context: { readonly name: string }): Shim;
}

/** What a class that is a shim file's default export may have beside the `Shim` it extends. */
interface ShimClass {
  new (config: Readonly<Record<string, unknown>>, context: { readonly name?: string }): Shim;
  readonly prototype: Shim;
  readonly config?: unknown;
  readonly version?: unknown;
  readonly description?: unknown;
}

/**
 * Takes up a shim file's default export: the result of `defineShim`, or a class that extends `Shim`.
 * @throws ShimFileError, InvalidShimError saying what is wrong with it
 */
export function loadedShim(exported: unknown, origin: { readonly file: string; readonly hash: string }): LoadedShim {
  const definition = definitionOf(exported);
  const { name, version, description, inherit } = definition;
  const configSchema = Object.freeze(definition.configJsonSchema);
  tryOut(definition);
  return Object.freeze({
    ...origin,
    name,
    version,
    description,
    inherit,
    configSchema,
    create: (config: Readonly<Record<string, unknown>> | undefined, context: { readonly name: string }) =>
      definition.create(config ?? {}, context),
  });
}

function definitionOf(exported: unknown): ShimDefinition {
  if (exported instanceof ShimDefinition) return exported as ShimDefinition;
  if (isShimClass(exported)) return classDefinition(exported);
  throw new ShimFileError(
    `The default export must be the result of defineShim(…) or a class that extends Shim, not ${described(exported)}.`,
  );
}

function isShimClass(exported: unknown): exported is ShimClass {
  return typeof exported === 'function' && exported.prototype instanceof Shim;
}

function described(exported: unknown): string {
  if (exported === undefined) return 'nothing';
  if (exported instanceof Shim) return 'an instance of one: export the class itself, or define the shim';
  if (typeof exported === 'function')
    return exported.toString().startsWith('class') ? `the class ${exported.name}, which does not` : 'a function';
  if (typeof exported === 'object' && exported !== null)
    return `an object with ${Object.keys(exported).slice(0, 5).join(', ') || 'no fields'}`;
  return typeof exported;
}

/** A class as a definition: its name is what an instance says, made for an empty config. */
function classDefinition(shimClass: ShimClass): ShimDefinition {
  const schema = shimClass.config;
  if (schema !== undefined && !isObjectSchema(schema))
    throw new ShimFileError(`The static config of class ${shimClass.name} must be a zod object schema.`);
  const config = schema ?? z.looseObject({});
  const sample = sampleOf(shimClass, config);
  const { version = 1, description = '' } = shimClass;
  return defineShim({
    name: sample.name,
    version: version as number,
    description: String(description),
    config,
    inherit: sample.inherit ?? 'children',
    create: (parsed, { name }) => {
      const shim = new shimClass(parsed, { name });
      // Under another name the keys that the class makes from `this.name` must not be those of its first instance.
      if (shim.name !== name)
        Object.defineProperty(shim, 'name', { value: name, enumerable: true, configurable: true });
      return shim;
    },
  });
}

function sampleOf(shimClass: ShimClass, config: z.ZodType<Record<string, unknown>>): Shim {
  const parsed = config.safeParse({});
  try {
    return new shimClass(parsed.success ? parsed.data : {}, {});
  } catch (error) {
    throw new ShimFileError(
      `The name of class ${shimClass.name} cannot be read: its constructor threw for an empty config (${messageOf(error)}). Give its config defaults, or use defineShim.`,
      {},
      error,
    );
  }
}

function isObjectSchema(schema: unknown): schema is z.ZodType<Record<string, unknown>> {
  return (
    typeof schema === 'object' &&
    schema !== null &&
    '_zod' in schema &&
    'safeParse' in schema &&
    typeof schema.safeParse === 'function'
  );
}

/**
 * Makes the shim once, where its config may be empty, so that a `create` without a Shim and a guard that may skip (R78a) are found
 * now. What else its `create` throws may be about the config, and is told when an agent is saved.
 */
function tryOut(definition: ShimDefinition): void {
  try {
    definition.create({});
  } catch (error) {
    if (error instanceof InvalidShimError) throw error;
  }
}
