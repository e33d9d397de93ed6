import type { Decision, DecisionScope } from './journal.js';
import type { JsonValue } from './json.js';
import type { ModelResponse } from './messages.js';
import { copyItem, type HistoryItem, settleItem } from './messages.js';
import type { Usage } from './model.js';
import type { RunLimits } from './run.js';
import { assertPairing, type RunState, type WorkingState } from './run-state.js';
import type { RunEvent, RunScope, ShimModelRequest, ShimScope, SpawnRequest, SpawnResult } from './scope.js';
import type { RunContext } from './state-map.js';
import { appendInstruction, type PromptSpec, settleInstructions } from './template.js';
import type { ToolConfig, ToolSet } from './tool-set.js';
import type { Logger, Tool } from './tools.js';

/** A call of this turn as a gate sees it. */
export interface GatedCall {
  readonly toolCallId: string;
  readonly name: string;
  readonly arguments: unknown;
}
/** What `requireApproval` asked for; trusted from the wait on, whatever the policies say later. */
export interface ApprovalGate {
  readonly shim: string;
  readonly matches: (call: GatedCall) => boolean;
  readonly message: string | undefined;
  readonly expiresInMs: number | undefined;
  readonly scopes: readonly DecisionScope[];
  readonly onDecision: ((call: GatedCall, decision: Decision) => void) | undefined;
}

/** How a gate asks. */
export interface ApprovalOptions {
  /** What the person is asked. */
  readonly message?: string;
  /** Past it the call is denied with the reason `expired`. */
  readonly expiresInMs?: number;
  /** How far a decision may reach: the interruption's `responseSchema` offers these, and a resume may name one as `scope`. */
  readonly scopes?: readonly DecisionScope[];
  /**
   * Told what was decided about a call for which a gate of this shim asked, before the call runs or is closed. What it writes to
   * the state is saved with the decision's effect; after a crash it may be told again. A throw fails the run.
   */
  readonly onDecision?: (call: GatedCall, decision: Decision) => void;
}

/** What `selectTools` asked for. */
export interface ToolSelection {
  readonly shim: string;
  readonly select: (tools: readonly Tool[]) => readonly Tool[] | Promise<readonly Tool[]>;
}

/** What all shims' views of one turn share. */
export interface TurnCore {
  readonly working: WorkingState;
  readonly toolSet: ToolSet;
  readonly transientState: RunContext;
  readonly runTurn: number;
  readonly isFirstForThisAgent: boolean;
  readonly gates: ApprovalGate[];
  readonly selections: ToolSelection[];
  /** Which shim contributed a tool, by the tool's name; effects of its calls are that shim's. */
  readonly owners: Map<string, string>;
  modelArgs: Record<string, unknown> | null;
  /** True where prepareTurn only rebuilds tools and gates of a round that is entered again (R79a). */
  readonly rebuilt: boolean;
  /** Set once the request is being rendered: late writes to `modelArgs` throw (R50). */
  frozen: boolean;
  /** Calls of the round in progress, which may stand unanswered at the end of a replaced history. */
  openCallIds: ReadonlySet<string>;
  over: boolean;
}

/**
 * The editable copy of one turn, as one shim sees it. What it writes to `runState` is committed with the model's response;
 * contributions of tools last this turn only. Every method throws once the shim's scope was closed (R78) or the turn is over.
 */
export class PreparedTurn implements RunScope {
  readonly #core: TurnCore;
  readonly #scope: ShimScope;

  constructor(core: TurnCore, scope: ShimScope) {
    this.#core = core;
    this.#scope = scope;
  }

  get runState(): RunState {
    return this.#scope.runState;
  }
  get transientState(): RunContext {
    return this.#core.transientState;
  }

  /** The tools of this turn with their settings; null for none. Assigning bypasses registration (R40). */
  get tools(): ToolConfig | null {
    return this.#core.toolSet.config;
  }
  set tools(config: ToolConfig | null) {
    this.#assertOpen();
    this.#core.toolSet.assign(config);
  }

  /** A fresh copy of the agent's model arguments each turn (R46). */
  get modelArgs(): Record<string, unknown> | null {
    return this.#core.modelArgs;
  }
  set modelArgs(args: Record<string, unknown> | null) {
    this.#assertOpen();
    if (this.#core.frozen)
      throw new TypeError('The model arguments of this turn are frozen: they were rendered into the request.');
    this.#core.modelArgs = args;
  }

  /** Replaces the persisted instruction, for later shims, turns and runs (R21). @throws ZodError, MissingTemplateValueError */
  setSystemInstruction(value: string | PromptSpec): void {
    this.#assertOpen();
    this.#core.working.instructions = settleInstructions(value);
  }

  /**
   * Appends to the persisted instruction (R22, R24: without a guard it grows each turn); a template is rendered first (R23).
   * @throws NoSystemTextError
   */
  appendSystemInstruction(text: string, options: { readonly separator?: string } = {}): void {
    this.#assertOpen();
    const { working } = this.#core;
    working.instructions = appendInstruction(working.instructions, text, options.separator ?? '\n\n');
  }

  /** Appends a copy (R25). @throws NotJsonError, ZodError for a malformed message */
  appendHistoryItem(item: HistoryItem): void {
    this.appendHistoryItems([item]);
  }
  appendHistoryItems(items: readonly HistoryItem[]): void {
    this.#assertOpen();
    this.#core.working.history.push(...items.map((item, index) => copyItem(item, `items[${index}]`)));
  }

  /** Installs a new history of copies; all else is untouched (R27). @throws BrokenPairingError (R31a) */
  replaceHistory(items: readonly HistoryItem[]): void {
    this.#assertOpen();
    const copies = items.map((item, index) => settleItem(item, `items[${index}]`));
    // Where the tools are only rebuilt, what is written here is discarded: it need not fit the round in progress.
    if (!this.#core.rebuilt) assertPairing(copies, this.#core.openCallIds);
    this.#core.working.history = copies;
  }

  /** First-wins registration for this turn (R33); with `requireUniqueNames` a conflict throws in either order (R38). @throws ToolNameCollisionError */
  addTools(tools: readonly Tool[], options: { readonly requireUniqueNames?: boolean } = {}): void {
    this.#assertOpen();
    this.#core.toolSet.add(tools, options);
    for (const tool of tools) if (!this.#core.owners.has(tool.name)) this.#core.owners.set(tool.name, this.#scope.shim);
  }

  /** Takes tools out, now and again after all shims (R35). */
  excludeTools(names: string | Iterable<string>): void {
    this.#assertOpen();
    this.#core.toolSet.exclude(typeof names === 'string' ? [names] : names);
  }

  /**
   * Has a word on this turn's tools when all shims have prepared it: `select` gets those that are left, whoever contributed them
   * and whether before or after this shim, and returns those that stay, in the order in which the model gets them. It hides and
   * sorts; it cannot add. A model that calls a hidden one is told so (R45).
   */
  selectTools(select: ToolSelection['select']): void {
    this.#assertOpen();
    if (this.#core.frozen)
      throw new TypeError('The tools of this turn are frozen: they were rendered into the request.');
    this.#core.selections.push({ shim: this.#scope.shim, select });
  }

  /** Makes calls of this turn wait for a person, whoever contributed the tool. A predicate that throws counts as yes. */
  requireApproval(
    which: string | Iterable<string> | ((call: GatedCall) => boolean),
    options: ApprovalOptions = {},
  ): void {
    this.#assertOpen();
    const names = typeof which === 'function' ? undefined : new Set(typeof which === 'string' ? [which] : which);
    const matches = typeof which === 'function' ? which : (call: GatedCall) => names?.has(call.name) === true;
    this.#core.gates.push({
      shim: this.#scope.shim,
      matches,
      message: options.message,
      expiresInMs: options.expiresInMs,
      scopes: options.scopes ?? [],
      onDecision: options.onDecision,
    });
  }

  /** Model turns started in the conversation, this one included (R12, R13). */
  get turnCount(): number {
    return this.#core.working.turnCount;
  }
  /** Turns since this attempt began, this one included (R14). */
  get runTurn(): number {
    return this.#core.runTurn;
  }
  get isFirstOfConversation(): boolean {
    return this.turnCount === 1;
  }
  get isFirstOfRun(): boolean {
    return this.#core.runTurn === 1;
  }
  /** True once per conversation and agent, also after a handoff (R15). */
  get isFirstForThisAgent(): boolean {
    return this.#core.isFirstForThisAgent;
  }

  /** True where the tools and gates of a round are only rebuilt (R79a): what is written to the state now is discarded, so do nothing costly. */
  get isRebuilt(): boolean {
    return this.#core.rebuilt;
  }

  get runId(): string {
    return this.#scope.runId;
  }
  get agent(): string {
    return this.#scope.agent;
  }
  get signal(): AbortSignal {
    return this.#scope.signal;
  }
  get recovered(): boolean {
    return this.#scope.recovered;
  }
  get log(): Logger {
    return this.#scope.log;
  }
  get metadata(): Readonly<Record<string, string>> {
    return this.#scope.metadata;
  }
  get key(): string | null {
    return this.#scope.key;
  }
  get dataDir(): string {
    return this.#scope.dataDir;
  }
  get limits(): RunLimits {
    return this.#scope.limits;
  }
  get usage(): Usage {
    return this.#scope.usage;
  }
  get state(): unknown {
    return this.#scope.state;
  }
  emit(name: string, data: JsonValue): void {
    this.#scope.emit(name, data);
  }
  watch(listener: (event: RunEvent) => void): void {
    this.#scope.watch(listener);
  }
  async callModel(request: ShimModelRequest, options: { readonly purpose: string }): Promise<ModelResponse> {
    return this.#scope.callModel(request, options);
  }
  async spawnAgent(request: SpawnRequest): Promise<SpawnResult> {
    return this.#scope.spawnAgent(request);
  }

  #assertOpen(): void {
    this.#scope.assertOpen();
    if (this.#core.over) throw new TypeError(`Turn ${this.turnCount} is over: it can no longer be changed.`);
  }
}
