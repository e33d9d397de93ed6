import type { NamedShim } from './bound-shims.js';
import { DelegatingBoundShim } from './delegating.js';
import type { RunnerHooks } from './hooks.js';
import { type Awaitable, BoundShim, Shim, type ShimBindingContext } from './shim.js';

/** Binds a shim once for the life of an agent object, however many runs start together (R4). */
export class OncePerAgent extends Shim {
  readonly name: string;
  readonly #shim: Shim;
  readonly #onFailure: () => Promise<unknown>;
  #bound: Promise<BoundShim> | undefined;
  #session: BoundShim | undefined;
  #hooks: readonly RunnerHooks[] | undefined;

  /** @param onBindFailed disposes of the siblings that were bound before (R7) */
  constructor(shim: Shim, onBindFailed: () => Promise<unknown>) {
    super();
    this.#shim = shim;
    this.#onFailure = onBindFailed;
    this.name = shim.name;
    if (shim.onFailure !== undefined) this.onFailure = shim.onFailure;
    if (shim.timeouts !== undefined) this.timeouts = shim.timeouts;
    if (shim.inherit !== undefined) this.inherit = shim.inherit;
    if (shim.stateDefinition !== undefined) this.stateDefinition = shim.stateDefinition;
  }
  /** What a child run binds anew: the definition itself. */
  get definition(): Shim {
    return this.#shim;
  }
  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    this.#bound ??= this.#bindOnce(() => this.#shim.bind(context));
    const bound = await this.#bound;
    return new Kept(bound, () => (this.#hooks ??= bound.runnerHooks()));
  }
  async #bindOnce(bind: () => Awaitable<BoundShim>): Promise<BoundShim> {
    try {
      const bound = await bind();
      if (!(bound instanceof BoundShim)) throw new TypeError('bind gave no BoundShim');
      this.#session = bound;
      return bound;
    } catch (error) {
      this.#bound = undefined;
      await this.#onFailure();
      throw error;
    }
  }
  async dispose(): Promise<void> {
    const [bound, session] = [this.#bound, this.#session];
    this.#bound = undefined;
    this.#session = undefined;
    this.#hooks = undefined;
    if (session !== undefined) await session[Symbol.asyncDispose]();
    // A bind that was given up may still come to an end; nobody waits for it.
    else bound?.then(async (late) => late[Symbol.asyncDispose]()).catch(() => undefined);
  }
}

/** The same shim for a run that binds it for itself, as a child does (R100). */
export function boundAnew(named: NamedShim): NamedShim {
  return named.shim instanceof OncePerAgent ? { ...named, shim: named.shim.definition } : named;
}

/** A session that outlives the attempt: only its agent disposes of it. Its hooks were read once (R109). */
class Kept extends DelegatingBoundShim {
  readonly #hooks: () => readonly RunnerHooks[];
  constructor(inner: BoundShim, hooks: () => readonly RunnerHooks[]) {
    super(inner);
    this.#hooks = hooks;
  }
  override runnerHooks(): readonly RunnerHooks[] {
    return this.#hooks();
  }
  override async [Symbol.asyncDispose](): Promise<void> {
    // Its agent does.
  }
}
