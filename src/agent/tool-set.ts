import type { ToolSettings } from './descriptor.js';
import { deepFreeze } from './json.js';
import { ToolNameCollisionError } from './run-errors.js';
import type { Tool } from './tools.js';

/** The tools of one turn with the settings that go with them. */
export interface ToolConfig extends ToolSettings {
  readonly tools: readonly Tool[];
}

/**
 * The tool algebra of one turn (R32-R42): first-wins registration, exclusion that also holds afterwards,
 * unique names that hold in either order, and assignment as the escape hatch that bypasses registration.
 */
export class ToolSet {
  #config: ToolConfig | null;
  /** Every name that was ever registered in this turn; assignment does not shrink it. */
  readonly #registered: Set<string>;
  readonly #reserved = new Set<string>();
  readonly #excluded = new Set<string>();
  /** The tools before the first selection. */
  #offered: readonly Tool[] | undefined;
  #frozen = false;
  #revision = 0;

  constructor(base: ToolConfig | null) {
    // The settings may be changed in place, for this turn only.
    this.#config = base === null ? null : { ...structuredClone({ ...base, tools: [] }), tools: base.tools };
    this.#registered = new Set(base?.tools.map((tool) => tool.name));
  }

  /** Raised by every change, so that a look for effects can be skipped cheaply. */
  get revision(): number {
    return this.#revision;
  }

  get config(): ToolConfig | null {
    return this.#config;
  }

  /** @throws TypeError once the turn's request is being rendered (R50), and for what is no tool */
  assign(config: ToolConfig | null): void {
    this.#change();
    const given = (config as ToolConfig | null | undefined) ?? null;
    given?.tools.forEach(assertTool);
    this.#config = given;
  }

  /** @throws ToolNameCollisionError (R38) */
  add(tools: readonly Tool[], options: { readonly requireUniqueNames?: boolean } = {}): void {
    this.#change();
    const unique = options.requireUniqueNames === true;
    const present = new Set(this.#config?.tools.map((tool) => tool.name));
    const added: Tool[] = [];
    for (const tool of firstOfEachName(tools)) {
      assertTool(tool);
      if (this.#reserved.has(tool.name)) throw new ToolNameCollisionError(tool.name);
      if (unique && (present.has(tool.name) || this.#registered.has(tool.name)))
        throw new ToolNameCollisionError(tool.name);
      added.push(tool);
    }
    for (const tool of added) {
      this.#registered.add(tool.name);
      if (unique) this.#reserved.add(tool.name);
    }
    const fresh = added.filter((tool) => !present.has(tool.name) && !this.#excluded.has(tool.name));
    this.#config = { ...(this.#config ?? {}), tools: [...(this.#config?.tools ?? []), ...fresh] };
  }

  exclude(names: Iterable<string>): void {
    this.#change();
    for (const name of names) this.#excluded.add(name);
    this.#applyExclusions();
  }

  /** What exclusions have left so far. */
  get left(): readonly Tool[] {
    this.#applyExclusions();
    return Object.freeze([...(this.#config?.tools ?? [])]);
  }

  /** The tools that the agent has in this turn: those that only a selection hides too, since that saves room and forbids nothing. */
  get offered(): readonly Tool[] {
    return this.#offered ?? this.#config?.tools ?? [];
  }

  /** Keeps those of the tools that are in the list, in its order; what else is in it is none of this turn's. */
  select(tools: readonly Tool[]): void {
    this.#change();
    if (this.#config === null) return;
    const present = new Set(this.#config.tools);
    this.#offered ??= this.#config.tools;
    this.#config = { ...this.#config, tools: tools.filter((tool) => present.delete(tool)) };
  }

  #applyExclusions(): void {
    if (this.#config === null) return;
    this.#config = { ...this.#config, tools: this.#config.tools.filter((tool) => !this.#excluded.has(tool.name)) };
  }

  /**
   * What the model gets after all shims (R41, R42), or null for no tool configuration at all.
   * @param spent true when the tool round trips of the run are used up
   * @param used calls so far in this attempt, by tool name (R44)
   */
  finish(spent: boolean, used: ReadonlyMap<string, number>): ToolConfig | null {
    if (this.#excluded.size > 0) this.#applyExclusions();
    this.#frozen = true;
    this.#config = freezeConfig(this.#config);
    const config = this.#config;
    if (config === null || config.tools.length === 0) return null;
    if (config.toolChoice === 'none') return config;
    if (spent) return null;
    const limits = config.toolCallLimits;
    const tools =
      limits === undefined
        ? config.tools
        : config.tools.filter((tool) => (used.get(tool.name) ?? 0) < (limits[tool.name] ?? Infinity));
    if (tools.length === 0) return null;
    return freezeConfig(withPossibleChoice(tools.length === config.tools.length ? config : { ...config, tools }));
  }

  /** A copy to go back to when a callback's writes are undone. */
  snapshot(): () => void {
    const config = this.#config;
    const offered = this.#offered;
    const [registered, reserved, excluded] = [[...this.#registered], [...this.#reserved], [...this.#excluded]];
    return () => {
      this.#config = config;
      this.#offered = offered;
      for (const [set, saved] of [
        [this.#registered, registered],
        [this.#reserved, reserved],
        [this.#excluded, excluded],
      ] as const) {
        set.clear();
        for (const name of saved) set.add(name);
      }
      this.#revision += 1;
    };
  }

  #change(): void {
    if (this.#frozen) throw new TypeError('The tools of this turn are frozen: they were rendered into the request.');
    this.#revision += 1;
  }
}

function firstOfEachName(tools: readonly Tool[]): Tool[] {
  const names = new Set<string>();
  return tools.filter((tool) => {
    const first = !names.has(tool.name);
    names.add(tool.name);
    return first;
  });
}

/** @throws TypeError where `defineTool` was forgotten */
function assertTool(tool: Tool): void {
  const { name, parse, execute } = tool as Partial<Tool>;
  if (typeof parse !== 'function' || typeof execute !== 'function')
    throw new TypeError(`The tool ${JSON.stringify(name)} was not made by defineTool.`);
}

/** A copy of the settings that nothing can change any more, with each name once; the tools themselves stay as they are. */
function freezeConfig(config: ToolConfig | null): ToolConfig | null {
  if (config === null) return null;
  const { tools, ...settings } = config;
  return Object.freeze({ ...deepFreeze(structuredClone(settings)), tools: Object.freeze(firstOfEachName(tools)) });
}

/** Providers refuse a choice of a tool that is not there. */
function withPossibleChoice(config: ToolConfig): ToolConfig {
  const { toolChoice, ...rest } = config;
  if (typeof toolChoice !== 'object' || rest.tools.some((tool) => tool.name === toolChoice.toolName)) return config;
  return rest;
}
