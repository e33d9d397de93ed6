import {
  BoundShim,
  defineShim,
  type PreparedTurn,
  type RunContext,
  type RunScope,
  type RunState,
  Shim,
  type ShimBindingContext,
  type Tool,
  type ToolSourceBinding,
} from 'shimline/shims';
import { bashTool } from './bash-tool.js';
import { ConfigSchema, type WorkspaceConfig } from './config.js';
import { grepTool } from './grep-tool.js';
import { TOOL_NAMES, type ToolName } from './operations.js';
import { type Root, rootFor } from './paths.js';
import { Judge } from './policy.js';
import { findTool, lsTool, readTool } from './read-tools.js';
import { Workspace } from './workspace.js';
import { patchTool, writeTool } from './write-tools.js';

const MAKERS: Readonly<Record<ToolName, (workspace: Workspace, name: string) => Tool>> = {
  read: readTool,
  write: writeTool,
  patch: patchTool,
  find: findTool,
  grep: grepTool,
  ls: lsTool,
  bash: bashTool,
};

class WorkspaceTools extends Shim {
  readonly name: string;
  readonly config: WorkspaceConfig;
  readonly judge: Judge;

  constructor(config: WorkspaceConfig, name: string) {
    super();
    this.name = name;
    this.config = config;
    this.judge = new Judge(config.policy);
  }

  override bind(context: ShimBindingContext): BoundShim | Promise<BoundShim> {
    const own = context.toolSourceBindings.find(({ source }) => source === this);
    if (own !== undefined) return own.bind(context);
    return context.toolSourceBindings.length > 0 ? new BoundShim() : new WorkspaceSession(this, {});
  }
}

/** What a parent hands down to a helper: its folder, and some of its tools. */
interface Inherited {
  readonly root?: Root;
  readonly names?: ReadonlySet<string>;
}

class WorkspaceSession extends BoundShim {
  readonly #source: WorkspaceTools;
  readonly #inherited: Inherited;
  #workspace: Workspace | undefined;
  #tools: readonly Tool[] | undefined;

  constructor(source: WorkspaceTools, inherited: Inherited) {
    super();
    this.#source = source;
    this.#inherited = inherited;
  }

  /** A root that cannot be used is told at once, and not by the first tool. @throws Refusal */
  override onRunStart(_state: RunState, _transientState: RunContext, run: RunScope): void {
    if (this.#source.config.root !== undefined) this.#workspaceOf(run).root.assertUsable();
  }

  override prepareTurn(turn: PreparedTurn): void {
    const workspace = this.#workspaceOf(turn);
    const { tools, prefix } = this.#source.config;
    const { names } = this.#inherited;
    const chosen = TOOL_NAMES.filter((tool) => tools.includes(tool) && names?.has(prefix + tool) !== false);
    this.#tools ??= chosen.map((tool) => MAKERS[tool](workspace, prefix + tool));
    // The gates below are for these tools: another one of the same name must not stand in their place.
    turn.addTools(this.#tools, { requireUniqueNames: true });
    const toolOf = new Map<string, ToolName>(chosen.map((tool) => [prefix + tool, tool]));
    for (const { source, message } of workspace.questions) {
      turn.requireApproval(
        (call) => {
          const tool = toolOf.get(call.name);
          if (tool === undefined) return false;
          const verdict = workspace.verdictOn(tool, call.arguments);
          return verdict?.action === 'ask' && verdict.source === source;
        },
        message === undefined ? {} : { message },
      );
    }
  }

  override inheritTools(names: ReadonlySet<string>): readonly ToolSourceBinding[] {
    const root = this.#workspace?.root;
    const inherited: Inherited = { names, ...(root === undefined ? {} : { root }) };
    return [{ source: this.#source, bind: async () => new WorkspaceSession(this.#source, inherited) }];
  }

  /** A session serves one conversation, so that its folder stays the same however its runs are called. */
  #workspaceOf(run: Pick<RunScope, 'dataDir' | 'runId'>): Workspace {
    const { config, judge } = this.#source;
    this.#workspace ??= new Workspace(this.#inherited.root ?? rootFor(config.root, run), config, judge);
    return this.#workspace;
  }
}

export default defineShim({
  name: 'workspace-tools',
  version: 1,
  description:
    'Gives the model tools for the files of one folder, and a shell: read, write, patch, find, grep, ls, bash.',
  config: ConfigSchema,
  create: (config, { name }) => new WorkspaceTools(config, name),
});
