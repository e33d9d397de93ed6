import { createHash } from 'node:crypto';
import {
  BoundShim,
  defineTool,
  internalMessage,
  type JsonValue,
  type Message,
  type PreparedTurn,
  type RunContext,
  type RunScope,
  type RunState,
  renderItem,
  Shim,
  type ShimBindingContext,
  type Tool,
  type ToolFailure,
  type ToolSourceBinding,
  toolFailure,
  z,
} from 'shimline/shims';
import type { SkillsConfig } from './config.js';
import { filesIn, readInside } from './folder.js';
import { type Library, readBody, type Skill, scanSkills } from './library.js';
import {
  bodyText,
  catalogueMark,
  catalogueText,
  changesText,
  holdsBody,
  offerText,
  pieceOf,
  textsIn,
} from './texts.js';
import { toolFilter } from './tool-rules.js';

const stateSchema = z.object({
  /** What each agent of the conversation was told of its skills: a digest for each name. */
  told: z.record(z.string(), z.record(z.string(), z.string())).default({}),
  /** Digests of the bodies as they were activated. */
  loaded: z.record(z.string(), z.string()).default({}),
});
type SkillsState = z.output<typeof stateSchema>;

/** The tools of this shim, whatever it is called: what a skill says of tools is not about them. */
const OWN_TOOL = /^((de)?activate_skill|read_skill_file)(_|$)/;

/** Skills in the Agent Skills format: told by name in the instruction, read as the result of a tool. */
export class SkillsShim extends Shim {
  readonly name: string;
  readonly config: SkillsConfig;
  override readonly stateDefinition = { schema: stateSchema, version: 1 };

  constructor(config: SkillsConfig, name: string) {
    super();
    this.config = config;
    this.name = name;
  }

  override bind(context: ShimBindingContext): BoundShim | Promise<BoundShim> {
    const own = context.toolSourceBindings.find(({ source }) => source === this);
    if (own !== undefined) return own.bind(context);
    return context.toolSourceBindings.length > 0 ? new BoundShim() : new SkillsSession(this, () => true);
  }

  /** Where the names of active skills are: in `skills:active`, or under the name that the agent gives. */
  get activeKey(): string {
    return this.name === 'skills' ? 'skills:active' : `${this.name}:skills:active`;
  }

  /** A second shim of skills must not lose its tools to the first. */
  toolName(base: string): string {
    return this.name === 'skills' ? base : `${base}_${this.name.replace(/[^A-Za-z0-9_-]/g, '_')}`.slice(0, 64);
  }
}

class SkillsSession extends BoundShim {
  readonly #shim: SkillsShim;
  readonly #isAllowed: (tool: string) => boolean;
  readonly #activate: string;
  readonly #deactivate: string;
  readonly #read: string;
  #library: Promise<Library> | undefined;

  constructor(shim: SkillsShim, isAllowed: (tool: string) => boolean) {
    super();
    this.#shim = shim;
    this.#isAllowed = isAllowed;
    this.#activate = shim.toolName('activate_skill');
    this.#deactivate = shim.toolName('deactivate_skill');
    this.#read = shim.toolName('read_skill_file');
  }

  override inheritTools(names: ReadonlySet<string>): readonly ToolSourceBinding[] {
    const shim = this.#shim;
    return [{ source: shim, bind: async () => new SkillsSession(shim, (name) => names.has(name)) }];
  }

  /** The disk is read once a run, so that what is there does not change under a conversation that is at work. */
  override async onRunStart(_state: RunState, _transientState: RunContext, run: RunScope): Promise<void> {
    this.#library = scanSkills(this.#shim.config);
    const { faults } = await this.#library;
    for (const { path, reason, isDirectory } of faults) {
      run.log.warn({ runId: run.runId, shim: this.#shim.name, path, reason }, 'skill left out');
      if (!run.recovered && isDirectory !== true) run.emit('skills.broken', { path, reason });
    }
  }

  async #skills(): Promise<ReadonlyMap<string, Skill>> {
    this.#library ??= scanSkills(this.#shim.config);
    return (await this.#library).skills;
  }

  override async prepareTurn(turn: PreparedTurn): Promise<void> {
    if (!this.#isAllowed(this.#activate)) return;
    const skills = await this.#skills();
    if (!turn.isRebuilt) this.#tellSkills(turn, skills);
    if (skills.size === 0 && this.#active(turn).length === 0) return;
    const tools = [this.#activateTool(turn, skills), this.#deactivateTool(turn), this.#readTool(skills)];
    turn.addTools(
      tools.filter(({ name }) => this.#isAllowed(name)),
      { requireUniqueNames: true },
    );
    // A round that is entered again has its calls judged already, by what was active when the model was asked.
    if (this.#shim.config.applyTools && !turn.isRebuilt) this.#applyTools(turn, skills);
  }

  #applyTools(turn: PreparedTurn, skills: ReadonlyMap<string, Skill>): void {
    const rules = this.#active(turn).flatMap((name) => skills.get(name) ?? []);
    if (rules.every(({ allowedTools, disallowedTools }) => allowedTools === undefined && disallowedTools.length === 0))
      return;
    turn.selectTools((tools) => {
      const stays = toolFilter(
        rules,
        tools.map(({ name }) => name),
      );
      return tools.filter(({ name, handoffTo }) => OWN_TOOL.test(name) || handoffTo !== undefined || stays(name));
    });
  }

  /** The catalogue once per conversation and agent; later changes at the end of the history, where they spoil no cache. */
  #tellSkills(turn: PreparedTurn, skills: ReadonlyMap<string, Skill>): void {
    const state = turn.state as SkillsState;
    const gone = this.#active(turn).filter((name) => !skills.has(name));
    if (turn.isFirstOfRun) for (const name of gone) this.#setInactive(turn, name, 'it is no longer there');
    const now = Object.fromEntries([...skills.values()].map(({ name, digest }) => [name, digest]));
    const { instructions } = turn.runState;
    const text = typeof instructions === 'string' ? instructions : JSON.stringify(instructions);
    const isTold =
      text.includes(catalogueMark(this.#shim.name)) ||
      text.includes(JSON.stringify(catalogueMark(this.#shim.name)).slice(1, -1));
    const before = state.told[turn.agent];
    if (!isTold) {
      if (skills.size === 0) return;
      turn.appendSystemInstruction(
        catalogueText([...skills.values()], { shim: this.#shim.name, tool: this.#activate }),
      );
      state.told[turn.agent] = now;
      return;
    }
    if (before === undefined || !turn.isFirstOfRun) return;
    const changed = [...skills.values()].filter(({ name, digest }) => before[name] !== digest);
    const lost = Object.keys(before).filter((name) => !skills.has(name));
    if (changed.length === 0 && lost.length === 0) return;
    turn.appendHistoryItem(
      internalMessage({ role: 'user', content: changesText(changed, lost) }, { origin: this.#shim.name }),
    );
    state.told[turn.agent] = now;
  }

  /** Where a compaction took the body of an active skill out of the history, it is put back, or offered again. */
  override async transformMessages(turn: PreparedTurn, messages: Message[]): Promise<Message[] | void> {
    if (!this.#isAllowed(this.#activate)) return;
    const active = this.#active(turn);
    if (active.length === 0) return;
    const texts = messages.flatMap(textsIn);
    const skills = await this.#skills();
    const added: Message[] = [];
    for (const skill of active.flatMap((name) => skills.get(name) ?? [])) {
      if (texts.some((text) => holdsBody(text, skill.name))) continue;
      const content = await this.#reload(turn, skill);
      if (content === undefined || texts.includes(content)) continue;
      const message = internalMessage({ role: 'user' as const, content }, { origin: this.#shim.name });
      turn.appendHistoryItem(message);
      added.push(message);
    }
    return added.length === 0 ? undefined : [...messages, ...added];
  }

  async #reload(turn: PreparedTurn, skill: Skill): Promise<string | undefined> {
    const { reloadChars, maxChars } = this.#shim.config;
    try {
      const body = await readBody(skill);
      if (body.length > Math.min(reloadChars, maxChars)) return offerText(skill.name, this.#activate);
      return `The conversation was shortened; these instructions of an active skill still hold.\n${bodyText(skill.name, body)}`;
    } catch (error) {
      turn.log.warn({ runId: turn.runId, skill: skill.name, err: error }, 'the body of an active skill cannot be read');
      return undefined;
    }
  }

  #active(turn: PreparedTurn): readonly string[] {
    const names = turn.runState.shimState.get(this.#shim.activeKey);
    return Array.isArray(names) ? names.filter((name) => typeof name === 'string') : [];
  }

  #setInactive(turn: PreparedTurn, name: string, reason: string): void {
    const left: JsonValue = this.#active(turn).filter((each) => each !== name);
    turn.runState.shimState.set(this.#shim.activeKey, left);
    Reflect.deleteProperty((turn.state as SkillsState).loaded, name);
    turn.emit('skills.deactivated', { skill: name, reason });
  }

  #activateTool(turn: PreparedTurn, skills: ReadonlyMap<string, Skill>): Tool {
    return defineTool({
      name: this.#activate,
      description: 'Loads the instructions of a skill, by its name in the list of available skills.',
      parameters: z.object({ name: z.string().meta({ description: 'The name of the skill.' }) }),
      onCrash: 'retry',
      execute: async ({ name }) => {
        const skill =
          skills.get(name.trim()) ??
          [...skills.values()].find((each) => each.name.toLowerCase() === name.trim().toLowerCase());
        return skill === undefined ? unknownSkill(name, skills) : this.#activated(turn, skill);
      },
    });
  }

  async #activated(turn: PreparedTurn, skill: Skill): Promise<string | ToolFailure> {
    const { maxChars, showPaths } = this.#shim.config;
    const state = turn.state as SkillsState;
    let body: string;
    try {
      body = await readBody(skill);
    } catch (error) {
      return toolFailure(`The skill ${JSON.stringify(skill.name)} cannot be read: ${messageOf(error)}`, {
        kind: 'broken_skill',
      });
    }
    const digest = createHash('sha256').update(body).digest('hex').slice(0, 12);
    const isNew = turn.runState.shimState.appendIfUnique(this.#shim.activeKey, skill.name);
    const isThere = (): boolean =>
      turn.runState.history
        .flatMap((item) => renderItem(item))
        .flatMap(textsIn)
        .some((text) => holdsBody(text, skill.name));
    if (!isNew && state.loaded[skill.name] === digest && isThere())
      return `The skill ${JSON.stringify(skill.name)} is active already; its instructions are in this conversation.`;
    state.loaded[skill.name] = digest;
    const { license, metadata } = skill;
    turn.emit('skills.activated', { skill: skill.name, ...(license === undefined ? {} : { license }), metadata });
    const { piece, end } = pieceOf(body, 0, maxChars);
    const { files, more } = await filesIn(skill.folder);
    const lines = [bodyText(skill.name, piece)];
    if (end < body.length)
      lines.push(`(${body.length - end} more characters: read them from ${skill.file} with ${this.#read}.)`);
    if (showPaths) lines.push(`The folder of this skill is ${skill.folder}`);
    if (files.length > 0)
      lines.push(
        `Files of this skill, to be read with ${this.#read} when they are needed:`,
        ...files.map((file) => `- ${file}`),
      );
    if (more) lines.push('(and more)');
    return lines.join('\n');
  }

  #deactivateTool(turn: PreparedTurn): Tool {
    return defineTool({
      name: this.#deactivate,
      description: 'Ends the use of an active skill, once its work is done: what it said of tools no longer holds.',
      parameters: z.object({ name: z.string().meta({ description: 'The name of the skill.' }) }),
      onCrash: 'retry',
      execute: ({ name }) => {
        if (!this.#active(turn).includes(name)) return `The skill ${JSON.stringify(name)} is not active.`;
        this.#setInactive(turn, name, 'the model ended it');
        return `The skill ${JSON.stringify(name)} is no longer active.`;
      },
    });
  }

  #readTool(skills: ReadonlyMap<string, Skill>): Tool {
    const { maxChars } = this.#shim.config;
    return defineTool({
      name: this.#read,
      description: "Reads a file of a skill, by its path below the skill's folder.",
      parameters: z.object({
        skill: z.string().meta({ description: 'The name of the skill.' }),
        path: z.string().meta({ description: 'The path of the file, as it stands in the list of files.' }),
        offset: z.int().nonnegative().default(0).meta({ description: 'The character to begin at.' }),
      }),
      onCrash: 'retry',
      async execute({ skill: name, path, offset }) {
        const skill = skills.get(name);
        if (skill === undefined) return unknownSkill(name, skills);
        try {
          const { text, bytes, binary } = await readInside(skill.folder, path);
          if (binary)
            return toolFailure(`${JSON.stringify(path)} is no text (${bytes} bytes).`, { kind: 'binary_file' });
          const { piece, end } = pieceOf(text, offset, maxChars);
          return end < text.length
            ? `${piece}\n(${text.length - end} more characters: go on with offset ${end}.)`
            : piece;
        } catch (error) {
          return toolFailure(messageOf(error), { kind: 'forbidden_path' });
        }
      },
    });
  }
}

function unknownSkill(name: string, skills: ReadonlyMap<string, Skill>): ToolFailure {
  const names = [...skills.keys()].join(', ');
  return toolFailure(`There is no skill ${JSON.stringify(name)}. The skills are: ${names === '' ? 'none' : names}.`, {
    kind: 'not_found',
  });
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
