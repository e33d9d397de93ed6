import Mustache from 'mustache';
import type { z } from 'zod';
import type { NamedShim } from '../agent/bound-shims.js';
import { InvalidShimConfigError } from '../agent/define-shim.js';
import { type AgentDescriptor, AgentDescriptorSchema, type ShimUse, ShimUseSchema } from '../agent/descriptor.js';
import type { JsonValue } from '../agent/json.js';
import { compileJsonSchema } from '../agent/json-schema.js';
import type { ModelSource } from '../agent/model.js';
import { messageOf } from '../agent/run-errors.js';
import type { Shim } from '../agent/shim.js';
import { missingValues, type PromptSpec, PromptSpecSchema } from '../agent/template.js';
import { type FieldError, ValidationError } from '../errors.js';
import type { LoadedShim } from './shim-definition.js';
import type { ShimSource } from './shim-loader.js';

export interface AgentCheckDeps {
  /** The name that the path or file gives; the body may repeat it and may not contradict it. */
  readonly name?: string;
  readonly shims: ShimSource;
  readonly models: ModelSource;
  /** Whether there is an agent of this name to hand off to. */
  readonly agents: (name: string) => boolean;
}

/** Names that shims go by in events and state keys: a colon would reach into another's keys. */
const INSTANCE_NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

/**
 * Checks all of an agent's definition before it is saved: its shape, that its shims, model and handoffs exist, that each shim takes
 * its config, that no two shims share a name (R3). Values that its template wants may still come with a run.
 * @throws ValidationError with every fault, each at its JSON pointer
 */
export function checkAgent(body: unknown, deps: AgentCheckDeps): { readonly descriptor: AgentDescriptor } {
  const given =
    isObject(body) && deps.name !== undefined && body.name === undefined ? { ...body, name: deps.name } : body;
  const parsed = AgentDescriptorSchema.safeParse(given);
  const faults: FieldError[] = parsed.success ? [] : fieldErrors(parsed.error);
  if (isObject(given)) {
    // Also when the shape is wrong somewhere, what can be looked at is: an author mends all in one go.
    faults.push(
      ...nameFaults(given, deps),
      ...shimFaults(given.shims, deps.shims),
      ...modelFaults(given.model, deps.models),
    );
    faults.push(...handoffFaults(given, deps), ...templateFaults(given.instructions), ...outputFaults(given.output));
  }
  if (!parsed.success || faults.length > 0) throw invalid(given, faults);
  return { descriptor: parsed.data };
}

/**
 * The instructions of a new conversation: the agent's, a template with the values of the run over its own.
 * @throws ValidationError naming each value that the template wants and neither has
 */
export function checkTemplateValues(
  descriptor: AgentDescriptor,
  values: Readonly<Record<string, JsonValue>>,
): string | PromptSpec {
  const { instructions } = descriptor;
  if (typeof instructions === 'string') return instructions;
  const spec: PromptSpec = {
    template: instructions.template,
    values: { ...(instructions.values as PromptSpec['values']), ...values },
  };
  const missing = new Set(textsOf(spec.template).flatMap((text) => missingValues(text, spec.values)));
  if (missing.size === 0) return spec;
  throw new ValidationError(
    `The instructions of agent ${JSON.stringify(descriptor.name)} ask for values that are missing: ${[...missing].join(', ')}.`,
    [...missing].map((name) => ({
      pointer: pointerOf(['values', ...name.split('.')]),
      message: `the instructions ask for {{ ${name} }}`,
    })),
  );
}

/**
 * Makes the shims of an agent for one attempt, in order. A config of the run takes the place of the agent's, whole.
 * @param runConfigs by effective name (`as`, or `use`)
 * @throws ValidationError for a name that the agent does not have, a config that is refused (`/shims/<name>/…`), and what the agent
 * itself uses and cannot have any more since it was saved (`/agent`)
 */
export function bindShims(
  descriptor: AgentDescriptor,
  runConfigs: Readonly<Record<string, Readonly<Record<string, unknown>>>>,
  shims: ShimSource,
): NamedShim[] {
  const faults: FieldError[] = [];
  const names = descriptor.shims.map(nameOf);
  for (const name of Object.keys(runConfigs)) {
    if (!names.includes(name)) {
      const has = names.length === 0 ? 'no shims' : `the shims ${names.join(', ')}`;
      faults.push({
        pointer: pointerOf(['shims', name]),
        message: `agent ${JSON.stringify(descriptor.name)} has ${has}`,
      });
    }
  }
  const bound: NamedShim[] = [];
  for (const use of descriptor.shims) {
    const name = nameOf(use);
    const loaded = shims.get(use.use);
    if (loaded === undefined) {
      faults.push({
        pointer: '/agent',
        message: `shim ${JSON.stringify(name)} of the agent: ${notLoaded(use.use, shims)}`,
      });
      continue;
    }
    const ofRun = Object.hasOwn(runConfigs, name);
    const made = makeShim(loaded, ofRun ? runConfigs[name] : use.config, name, shims);
    if (made.shim !== undefined) bound.push({ name, shim: made.shim, hash: loaded.hash });
    else {
      for (const { path, message } of made.faults) {
        faults.push(
          ofRun
            ? { pointer: pointerOf(['shims', name, ...path]), message }
            : { pointer: '/agent', message: `/${path.join('/')}: ${message}` },
        );
      }
    }
  }
  if (faults.length > 0)
    throw new ValidationError(
      `The shims of agent ${JSON.stringify(descriptor.name)} cannot be made: ${summary(faults)}.`,
      faults,
    );
  return bound;
}

/** A zod error as field errors: one for each unknown key, and for a union what the nearest of its members says. */
function fieldErrors(error: z.ZodError): FieldError[] {
  return error.issues.flatMap((issue) => issueErrors(issue, []));
}

function issueErrors(issue: z.core.$ZodIssue, at: readonly PropertyKey[]): FieldError[] {
  const path = [...at, ...issue.path];
  if (issue.code === 'unrecognized_keys')
    return issue.keys.map((key) => ({ pointer: pointerOf([...path, key]), message: 'is not a known field' }));
  if (issue.code === 'invalid_union' && issue.errors.length > 0) {
    const depth = (issues: readonly z.core.$ZodIssue[]): number =>
      Math.max(...issues.map((each) => each.path.length + (each.code === 'unrecognized_keys' ? 1 : 0)));
    const deepest = [...issue.errors].sort((a, b) => depth(b) - depth(a))[0] ?? [];
    if (depth(deepest) > 0) return deepest.flatMap((inner) => issueErrors(inner, path));
    return [
      {
        pointer: pointerOf(path),
        message: [...new Set(issue.errors.flat().map((inner) => inner.message))].join(', or '),
      },
    ];
  }
  return [{ pointer: pointerOf(path), message: issue.message }];
}

/** An RFC 6901 pointer; empty for the whole. */
function pointerOf(path: readonly PropertyKey[]): string {
  return path.map((part) => `/${String(part).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');
}

function nameFaults(given: Readonly<Record<string, unknown>>, { name }: AgentCheckDeps): FieldError[] {
  if (name === undefined || given.name === name || typeof given.name !== 'string') return [];
  return [
    {
      pointer: '/name',
      message: `is ${JSON.stringify(given.name)}, and the agent is saved as ${JSON.stringify(name)}`,
    },
  ];
}

function shimFaults(given: unknown, shims: ShimSource): FieldError[] {
  if (!Array.isArray(given)) return [];
  const faults: FieldError[] = [];
  const positions = new Map<string, number[]>();
  for (const [index, item] of given.entries()) {
    const parsed = ShimUseSchema.safeParse(item);
    if (!parsed.success) continue;
    const use = parsed.data;
    const name = nameOf(use);
    positions.set(name, [...(positions.get(name) ?? []), index]);
    if (use.as !== undefined && !INSTANCE_NAME.test(use.as)) {
      faults.push({
        pointer: `/shims/${index}/as`,
        message: 'must be 1 to 64 letters, digits, _ . or -, beginning with a letter or digit',
      });
    }
    const loaded = shims.get(use.use);
    if (loaded === undefined) {
      faults.push({ pointer: `/shims/${index}/use`, message: notLoaded(use.use, shims) });
      continue;
    }
    for (const { path, message } of makeShim(loaded, use.config, name, shims).faults)
      faults.push({ pointer: pointerOf(['shims', index, 'config', ...path]), message });
  }
  for (const [name, indexes] of positions) {
    if (indexes.length < 2) continue;
    const message = `the shims ${indexes.map((index) => `/shims/${index}`).join(' and ')} share the name ${JSON.stringify(name)}: give one another name with "as"`;
    faults.push(...indexes.map((index) => ({ pointer: `/shims/${index}`, message })));
  }
  return faults;
}

function modelFaults(given: unknown, models: ModelSource): FieldError[] {
  if (typeof given !== 'string' || given === '') return [];
  try {
    models.resolve(given);
    return [];
  } catch (error) {
    return [{ pointer: '/model', message: messageOf(error) }];
  }
}

function handoffFaults(given: Readonly<Record<string, unknown>>, { agents }: AgentCheckDeps): FieldError[] {
  if (!Array.isArray(given.handoffs)) return [];
  const handoffs: readonly unknown[] = given.handoffs;
  return handoffs.flatMap((name, index): FieldError[] => {
    const pointer = `/handoffs/${index}`;
    if (typeof name !== 'string') return [];
    if (name === given.name) return [{ pointer, message: 'an agent cannot hand off to itself' }];
    if (handoffs.indexOf(name) < index) return [{ pointer, message: `${JSON.stringify(name)} is in the list already` }];
    return agents(name) ? [] : [{ pointer, message: `there is no agent ${JSON.stringify(name)}` }];
  });
}

function templateFaults(given: unknown): FieldError[] {
  const parsed = PromptSpecSchema.safeParse(given);
  if (!parsed.success) return [];
  const { template } = parsed.data;
  return textsOf(template).flatMap((text, index) => {
    try {
      Mustache.parse(text);
      return [];
    } catch (error) {
      const path = typeof template === 'string' ? [] : [index, 'content'];
      return [
        {
          pointer: pointerOf(['instructions', 'template', ...path]),
          message: `is no valid template: ${messageOf(error)}`,
        },
      ];
    }
  });
}

function outputFaults(given: unknown): FieldError[] {
  if (!isObject(given)) return [];
  try {
    compileJsonSchema(given);
    return [];
  } catch (error) {
    return [{ pointer: '/output', message: messageOf(error) }];
  }
}

type Made =
  | { readonly shim: Shim; readonly faults: readonly [] }
  | {
      readonly shim: undefined;
      readonly faults: readonly { readonly path: readonly PropertyKey[]; readonly message: string }[];
    };

function makeShim(
  loaded: LoadedShim,
  config: Readonly<Record<string, unknown>> | undefined,
  name: string,
  shims: ShimSource,
): Made {
  const called = `shim ${JSON.stringify(name)}`;
  try {
    return { shim: loaded.create(config, { name }), faults: [] };
  } catch (error) {
    if (!(error instanceof InvalidShimConfigError)) {
      const message = `${called} could not be made: ${messageOf(error)}`;
      return { shim: undefined, faults: [{ path: [], message: shims.conceal?.(message) ?? message }] };
    }
    return {
      shim: undefined,
      faults: error.faults.map(({ path, message }) => ({ path, message: `${called}: ${message}` })),
    };
  }
}

function nameOf(use: ShimUse): string {
  return use.as ?? use.use;
}

function notLoaded(name: string, shims: ShimSource): string {
  const names = shims.names();
  return `there is no shim ${JSON.stringify(name)}; ${names.length === 0 ? 'none is loaded' : `loaded are ${names.join(', ')}`}`;
}

function textsOf(template: PromptSpec['template']): readonly string[] {
  return typeof template === 'string' ? [template] : template.map((part) => part.content);
}

function invalid(given: unknown, faults: readonly FieldError[]): ValidationError {
  const name = isObject(given) && typeof given.name === 'string' ? ` ${JSON.stringify(given.name)}` : '';
  return new ValidationError(`The agent${name} is not valid: ${summary(faults)}.`, faults);
}

const SUMMED_UP = 3;

function summary(faults: readonly FieldError[]): string {
  const texts = faults
    .slice(0, SUMMED_UP)
    .map(({ pointer, message }) => `${pointer === '' ? '/' : pointer}: ${message.replace(/\.$/, '')}`);
  const rest = faults.length - texts.length;
  return rest > 0 ? `${texts.join('; ')}; and ${rest} more` : texts.join('; ');
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
