import { z } from 'zod';
import type { ModelDelta, ModelRequest, RunnerHooks, RunResult } from './hooks.js';
import type { JsonValue } from './json.js';
import type { Message, ModelResponse } from './messages.js';
import type { RunState } from './run-state.js';
import type { RunScope } from './scope.js';
import {
  type Awaitable,
  type BoundShim,
  type NextModelCall,
  type NextToolCall,
  Shim,
  type ShimBindingContext,
  type ShimTimeouts,
} from './shim.js';
import type { NamespaceDefinition } from './shim-namespace.js';
import type { RunContext } from './state-map.js';
import type { ToolOutcome } from './tools.js';
import type { GatedCall, PreparedTurn } from './turn.js';

/** A shim that cannot be defined as asked: says which field and why. */
export class InvalidShimError extends TypeError {
  constructor(message: string) {
    super(message);
    this.name = 'InvalidShimError';
  }
}

/** A config that a shim's schema refuses: one fault per path. */
export class InvalidShimConfigError extends Error {
  readonly shim: string;
  readonly faults: readonly { readonly path: readonly PropertyKey[]; readonly message: string }[];
  constructor(shim: string, error: z.ZodError) {
    const faults = error.issues.map((issue) => ({ path: issue.path, message: issue.message }));
    super(
      `The config of shim ${JSON.stringify(shim)} is refused: ${faults.map((fault) => `/${fault.path.join('/')}: ${fault.message}`).join('; ')}`,
    );
    this.name = 'InvalidShimConfigError';
    this.shim = shim;
    this.faults = faults;
  }
}

type AnyObject = z.ZodType<Record<string, unknown>>;
/** The config of a shim that takes none. */
// eslint-disable-next-line @typescript-eslint/no-generated-empty-object-type -- no fields is what is meant
type NoFields = Record<never, z.ZodType>;
type Config<C extends AnyObject> = z.output<C>;
interface WithState<S extends z.ZodType> {
  readonly state: z.output<S>;
}

/** What `this` is in inline callbacks. */
export interface InlineContext<C extends AnyObject> {
  /** The instance's name: the `as` of the agent's entry, or the shim's own. */
  readonly name: string;
  readonly config: Config<C>;
}

interface ShimHead<C extends AnyObject, S extends z.ZodType> {
  /** Stable: the key of the shim's persisted state (R2). Letters, digits, `_ . -`. */
  readonly name: string;
  /** Version of the state's shape; raise it together with a `migrate`. Default 1. */
  readonly version?: number;
  readonly description?: string;
  /** zod object, published as JSON Schema; a key that it does not know is an error. */
  readonly config?: C;
  /** zod schema of the shim's own state; it must accept `{}`, which is what a new conversation begins with. */
  readonly state?: S;
  readonly migrate?: (old: JsonValue, fromVersion: number) => z.input<S>;
  readonly onFailure?: 'fail' | 'skip';
  readonly timeouts?: ShimTimeouts;
  readonly inherit?: 'none' | 'children' | 'always';
}

interface InlineCallbacks<C extends AnyObject, S extends z.ZodType> {
  bind?(this: InlineContext<C>, context: ShimBindingContext): Awaitable<BoundShim>;
  onRunStart?(
    this: InlineContext<C>,
    state: RunState,
    transientState: RunContext,
    run: RunScope & WithState<S>,
  ): Awaitable<void>;
  prepareTurn?(this: InlineContext<C>, turn: PreparedTurn & WithState<S>): Awaitable<void>;
  transformMessages?(
    this: InlineContext<C>,
    turn: PreparedTurn & WithState<S>,
    messages: Message[],
  ): Awaitable<Message[] | void>;
  onModelResponse?(this: InlineContext<C>, turn: PreparedTurn & WithState<S>, response: ModelResponse): Awaitable<void>;
  onRunEnd?(
    this: InlineContext<C>,
    result: RunResult | null,
    transientState: RunContext,
    run: RunScope & WithState<S>,
  ): Awaitable<void>;
  wrapModelCall?(
    this: InlineContext<C>,
    turn: PreparedTurn & WithState<S>,
    request: ModelRequest,
    next: NextModelCall,
  ): Promise<ModelResponse>;
  wrapToolCall?(
    this: InlineContext<C>,
    turn: PreparedTurn & WithState<S>,
    call: GatedCall,
    next: NextToolCall,
  ): Promise<ToolOutcome>;
  transformDelta?(this: InlineContext<C>, turn: PreparedTurn & WithState<S>, delta: ModelDelta): ModelDelta | null;
  onContextExceeded?(this: InlineContext<C>, turn: PreparedTurn & WithState<S>, error: Error): Awaitable<boolean>;
  runnerHooks?(this: InlineContext<C>): readonly RunnerHooks[];
}

interface Creating<C extends AnyObject> {
  /** Makes the shim for one agent's config; instead of the callbacks inline. */
  create(config: Config<C>, context: { readonly name: string }): Shim;
}

export type ShimSpec<C extends AnyObject, S extends z.ZodType> = ShimHead<C, S> &
  (Creating<C> | (InlineCallbacks<C, S> & { readonly create?: undefined }));

/** What `defineShim` gives and a shim file exports: makes instances from checked configs. */
export class ShimDefinition<C extends AnyObject = AnyObject> {
  readonly name: string;
  readonly version: number;
  readonly description: string;
  readonly inherit: 'none' | 'children' | 'always';
  readonly #config: z.ZodType;
  readonly #make: (config: Config<C>, name: string) => Shim;

  constructor(
    head: {
      readonly name: string;
      readonly version: number;
      readonly description: string;
      readonly inherit: 'none' | 'children' | 'always';
    },
    config: z.ZodType,
    make: (config: Config<C>, name: string) => Shim,
  ) {
    this.name = head.name;
    this.version = head.version;
    this.description = head.description;
    this.inherit = head.inherit;
    this.#config = config;
    this.#make = make;
  }

  /** JSON Schema of what an agent may write into `config`. */
  get configJsonSchema(): Record<string, unknown> {
    return z.toJSONSchema(this.#config, { io: 'input', unrepresentable: 'any' });
  }

  /** @throws InvalidShimConfigError naming the shim, the path and what was expected */
  create(config?: z.input<C>, context: { readonly name?: string } = {}): Shim {
    const name = context.name ?? this.name;
    const parsed = this.#config.safeParse(config ?? {});
    if (!parsed.success) throw new InvalidShimConfigError(name, parsed.error);
    return this.#make(parsed.data as Config<C>, name);
  }
}

const SHIM_NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;
const CALLBACKS = [
  'bind',
  'onRunStart',
  'prepareTurn',
  'transformMessages',
  'onModelResponse',
  'onRunEnd',
  'wrapModelCall',
  'wrapToolCall',
  'transformDelta',
  'onContextExceeded',
  'runnerHooks',
] as const;

/** The shim of a definition with inline callbacks: they are its own methods, with `this.name` and `this.config`. */
class InlineShim extends Shim {
  readonly name: string;
  readonly config: unknown;
  constructor(name: string, config: unknown) {
    super();
    this.name = name;
    this.config = config;
  }
}

/**
 * Defines a shim: with `create`, or with the callbacks inline.
 * @throws InvalidShimError for a bad name, a state schema that refuses `{}`, or a guard (`inherit: "always"`) that may skip (R78a)
 */
export function defineShim<C extends AnyObject = z.ZodObject<NoFields>, S extends z.ZodType = z.ZodUndefined>(
  spec: ShimSpec<C, S>,
): ShimDefinition<C> {
  assertHead(spec);
  const { name, version = 1, description = '', inherit = 'children' } = spec;
  const namespace: NamespaceDefinition | undefined =
    spec.state === undefined ? undefined : { schema: spec.state, version, migrate: spec.migrate };
  const config = strict(spec.config ?? z.strictObject({}));
  const OwnShim = inlineClass(spec);
  const options = Object.entries({
    onFailure: spec.onFailure,
    timeouts: spec.timeouts,
    inherit: spec.inherit,
    stateDefinition: namespace,
  }).filter(([, value]) => value !== undefined);
  return new ShimDefinition<C>({ name, version, description, inherit }, config, (parsed, instanceName) => {
    const shim =
      spec.create === undefined ? new OwnShim(instanceName, parsed) : spec.create(parsed, { name: instanceName });
    if (!(shim instanceof Shim)) throw new InvalidShimError(`create of shim ${JSON.stringify(name)} gave no Shim.`);
    for (const [field, value] of options) {
      if ((shim as unknown as Record<string, unknown>)[field] === undefined) {
        Object.defineProperty(shim, field, { value, enumerable: true, configurable: true, writable: true });
      }
    }
    assertGuard(shim);
    return shim;
  });
}

/** A class for each definition, so that its shims, made anew for each run, cost no more than an object. */
function inlineClass(spec: object): typeof InlineShim {
  class OwnShim extends InlineShim {}
  for (const callback of CALLBACKS) {
    const own = (spec as Record<string, unknown>)[callback];
    if (typeof own === 'function')
      Object.defineProperty(OwnShim.prototype, callback, { value: own, configurable: true, writable: true });
  }
  return OwnShim;
}

function assertHead(spec: ShimHead<AnyObject, z.ZodType>): void {
  if (typeof spec.name !== 'string' || !SHIM_NAME.test(spec.name)) {
    throw new InvalidShimError(`A shim's name is 1 to 64 letters, digits, _ . or -, not ${JSON.stringify(spec.name)}.`);
  }
  if (spec.version !== undefined && !(Number.isInteger(spec.version) && spec.version > 0)) {
    throw new InvalidShimError(`The version of shim ${JSON.stringify(spec.name)} must be a whole number from 1.`);
  }
  if (spec.state !== undefined && !spec.state.safeParse({}).success) {
    throw new InvalidShimError(
      `The state schema of shim ${JSON.stringify(spec.name)} must accept {}: give every field a default.`,
    );
  }
  assertGuard(spec);
}

/** A guard that may skip is no guard (R78a). @throws InvalidShimError */
export function assertGuard(shim: {
  readonly name: string;
  readonly inherit?: string | undefined;
  readonly onFailure?: string | undefined;
}): void {
  if (shim.inherit === 'always' && shim.onFailure === 'skip') {
    throw new InvalidShimError(
      `Shim ${JSON.stringify(shim.name)} is inherited always, so its failures may not be skipped.`,
    );
  }
}

/** Unknown keys are errors, unless the author opened the object on purpose (a catchall). */
function strict(schema: z.ZodType): z.ZodType {
  return schema instanceof z.ZodObject && schema.def.catchall === undefined ? schema.strict() : schema;
}
