import type { AgentInstance } from '../agent/attempt.js';
import type { AgentDescriptor } from '../agent/descriptor.js';
import type { JsonValue } from '../agent/json.js';
import type { ModelSource } from '../agent/model.js';
import { RunError } from '../agent/run-errors.js';
import { AgentNotFoundError, StateConflictError, ValidationError } from '../errors.js';
import type { AgentStore, StoredAgent } from '../store/agent-store.js';
import type { RequestDoc } from '../store/run-rows.js';
import type { Writer } from '../store/writer.js';
import { bindShims, checkAgent } from './agent-check.js';
import type { ShimLoader } from './shim-loader.js';

export interface AgentRegistryDeps {
  readonly store: AgentStore;
  readonly writer: Writer;
  readonly shims: ShimLoader;
  readonly models: ModelSource;
  readonly now: () => number;
}

/** Makes the agents of one run: in the versions that it started with, with its own configs and values. */
export type AgentResolver = (name: string) => AgentInstance;

/** The saved agents, and how a saved agent becomes one that runs. */
export class AgentRegistry {
  readonly #deps: AgentRegistryDeps;
  #current = new Map<string, StoredAgent>();

  constructor(deps: AgentRegistryDeps) {
    this.#deps = deps;
    this.#reload();
  }

  #reload(): void {
    this.#current = new Map(this.#deps.store.list().map((agent) => [agent.descriptor.name, agent]));
  }

  list(): StoredAgent[] {
    return [...this.#current.values()];
  }

  find(name: string): StoredAgent | undefined {
    return this.#current.get(name);
  }

  version(name: string, version: number): StoredAgent | undefined {
    return this.#deps.store.version(name, version);
  }

  /** @throws AgentNotFoundError */
  get(name: string): StoredAgent {
    const agent = this.#current.get(name);
    if (agent === undefined) throw new AgentNotFoundError(name);
    return agent;
  }

  /** @throws ValidationError with a pointer for each fault; StateConflictError for an agent that a file owns */
  async save(
    name: string,
    body: unknown,
    source: StoredAgent['source'] = 'api',
  ): Promise<{ readonly agent: StoredAgent; readonly created: boolean }> {
    const { descriptor } = this.check(name, body);
    if (source === 'api') this.#assertNotOwnedByFile(name);
    const saved = await this.#deps.writer.run(() => this.#deps.store.save(descriptor, source, this.#deps.now()));
    this.#reload();
    return saved;
  }

  /**
   * Takes over the agents of files, which were checked together since they may hand off to each other.
   * @param keeps whether an agent that a file owned at an earlier start stays although no file gave it now
   */
  async adopt(descriptors: readonly AgentDescriptor[], keeps: (name: string) => boolean): Promise<void> {
    const { store, writer, now } = this.#deps;
    const given = new Set(descriptors.map(({ name }) => name));
    const gone = this.list().filter(
      ({ source, descriptor: { name } }) => source === 'file' && !given.has(name) && !keeps(name),
    );
    await writer.run(() => {
      for (const descriptor of descriptors) store.save(descriptor, 'file', now());
      for (const { descriptor } of gone) store.remove(descriptor.name);
    });
    this.#reload();
  }

  check(name: string, body: unknown): { readonly descriptor: AgentDescriptor } {
    return checkAgent(body, {
      name,
      shims: this.#deps.shims,
      models: this.#deps.models,
      agents: (other) => this.#current.has(other),
    });
  }

  /** @throws AgentNotFoundError, StateConflictError for an agent that a file owns */
  async remove(name: string): Promise<void> {
    this.get(name);
    this.#assertNotOwnedByFile(name);
    await this.#deps.writer.run(() => this.#deps.store.remove(name));
    this.#reload();
  }

  #assertNotOwnedByFile(name: string): void {
    if (this.#current.get(name)?.source === 'file')
      throw new StateConflictError({
        detail: `The agent ${JSON.stringify(name)} is owned by a file of AGENTS_DIR: change it there.`,
      });
  }

  /**
   * The agents of a run. Each is made once per attempt and kept: what is reloaded or saved meanwhile is for later runs.
   * @throws RunError when an agent is gone, or its shims cannot be made any more
   */
  resolver(
    run: { readonly agent: string; readonly version: number },
    request: Pick<RequestDoc, 'values' | 'shims' | 'helper' | 'guardedBy'>,
  ): AgentResolver {
    const made = new Map<string, AgentInstance>();
    return (name) => {
      const known = made.get(name);
      if (known !== undefined) return known;
      const asStarted = name === run.agent ? { version: run.version, shims: request.shims } : request.guardedBy?.[name];
      const stored = asStarted === undefined ? this.find(name) : this.#deps.store.version(name, asStarted.version);
      if (stored === undefined)
        throw new RunError('internal', `The agent ${JSON.stringify(name)} is not there any more.`);
      try {
        const instance = this.instance(stored.descriptor, { ...request, shims: asStarted?.shims ?? {} });
        made.set(name, instance);
        return instance;
      } catch (error) {
        if (!(error instanceof ValidationError)) throw error;
        const faults = (error.errors ?? []).map((fault) => `${fault.pointer}: ${fault.message}`).join('; ');
        throw new RunError(
          'shim_failed',
          `The agent ${JSON.stringify(name)} cannot be made: ${error.message} ${faults}`,
          { cause: error },
        );
      }
    };
  }

  /** Of the configs that a run gave an agent, those of its guards: they hold also where the agent is a child of its own. */
  guardConfigs({ shims }: AgentDescriptor, configs: RequestDoc['shims']): RequestDoc['shims'] {
    const guards = new Set(
      shims.filter(({ use }) => this.#deps.shims.get(use)?.inherit === 'always').map(({ use, as }) => as ?? use),
    );
    return Object.fromEntries(Object.entries(configs).filter(([name]) => guards.has(name)));
  }

  /** An agent with its shims made. @throws ValidationError */
  instance(descriptor: AgentDescriptor, request: Pick<RequestDoc, 'values' | 'shims' | 'helper'>): AgentInstance {
    const shims = bindShims(descriptor, request.shims, this.#deps.shims);
    const instructions = request.helper?.instructions ?? withValues(descriptor.instructions, request.values);
    return { descriptor: { ...descriptor, instructions }, tools: [], shims };
  }
}

/** A template gets the run's own values over the agent's. */
function withValues(
  instructions: AgentDescriptor['instructions'],
  values: Readonly<Record<string, JsonValue>>,
): AgentDescriptor['instructions'] {
  return typeof instructions === 'string'
    ? instructions
    : { ...instructions, values: { ...instructions.values, ...(values as typeof instructions.values) } };
}
