import { describe, expectTypeOf, it } from 'vitest';
import type {
  AgentTask,
  Awaitable,
  BoundShim,
  HistoryItem,
  JsonValue,
  Logger,
  Message,
  ModelDelta,
  ModelResponse,
  PreparedTurn,
  PromptSpec,
  RunContext,
  RunnerHooks,
  RunResult,
  RunScope,
  RunState,
  Shim,
  ShimBindingContext,
  ShimState,
  ShimTimeouts,
  StateMap,
  ToolConfig,
  ToolContext,
  ToolOutcome,
  ToolSourceBinding,
} from '../../src/shims.js';

/** What the contract writes down, as an author's code would use it: each of these must compile. */
describe('the shape of the contract', () => {
  it('a shim and its session have the callbacks with their parameters', () => {
    type Callbacks = Pick<
      Shim,
      | 'onRunStart'
      | 'prepareTurn'
      | 'transformMessages'
      | 'onModelResponse'
      | 'onRunEnd'
      | 'transformDelta'
      | 'onContextExceeded'
      | 'runnerHooks'
    >;
    expectTypeOf<Callbacks['onRunStart']>().toEqualTypeOf<
      (state: RunState, transientState: RunContext, run: RunScope) => Awaitable<void>
    >();
    expectTypeOf<Callbacks['prepareTurn']>().toEqualTypeOf<(turn: PreparedTurn) => Awaitable<void>>();
    expectTypeOf<Callbacks['transformMessages']>().toEqualTypeOf<
      (turn: PreparedTurn, messages: Message[]) => Awaitable<Message[] | void>
    >();
    expectTypeOf<Callbacks['onModelResponse']>().toEqualTypeOf<
      (turn: PreparedTurn, response: ModelResponse) => Awaitable<void>
    >();
    expectTypeOf<Callbacks['onRunEnd']>().toEqualTypeOf<
      (result: RunResult | null, transientState: RunContext, run: RunScope) => Awaitable<void>
    >();
    expectTypeOf<Callbacks['transformDelta']>().toEqualTypeOf<
      (turn: PreparedTurn, delta: ModelDelta) => ModelDelta | null
    >();
    expectTypeOf<Callbacks['onContextExceeded']>().toEqualTypeOf<
      (turn: PreparedTurn, error: Error) => Awaitable<boolean>
    >();
    expectTypeOf<Callbacks['runnerHooks']>().toEqualTypeOf<() => readonly RunnerHooks[]>();
    expectTypeOf<Shim['bind']>().toEqualTypeOf<(context: ShimBindingContext) => Awaitable<BoundShim>>();
    expectTypeOf<BoundShim>().toExtend<Callbacks>();
    expectTypeOf<BoundShim['inheritTools']>().toEqualTypeOf<
      (names: ReadonlySet<string>) => readonly ToolSourceBinding[] | null
    >();
    expectTypeOf<BoundShim>().toExtend<{ [Symbol.asyncDispose](): Promise<void> }>();
    expectTypeOf<Parameters<Shim['wrapToolCall']>[2]>().returns.toEqualTypeOf<Promise<ToolOutcome>>();
    expectTypeOf<Parameters<Shim['wrapModelCall']>[2]>().returns.toEqualTypeOf<Promise<ModelResponse>>();
    expectTypeOf<Shim['inherit']>().toEqualTypeOf<'none' | 'children' | 'always' | undefined>();
    expectTypeOf<'onRunStart' | 'prepareTurn' | 'transformMessages' | 'onModelResponse' | 'onRunEnd'>().toExtend<
      keyof ShimTimeouts
    >();
  });

  it('binding', () => {
    expectTypeOf<ShimBindingContext>().toExtend<{
      task: AgentTask;
      toolSourceBindings: readonly ToolSourceBinding[];
    }>();
    expectTypeOf<ToolSourceBinding>().toExtend<{
      source: Shim;
      bind(context: ShimBindingContext): Promise<BoundShim>;
    }>();
    expectTypeOf<AgentTask>().toExtend<{
      runId: string;
      agent: string;
      model: string;
      parentRunId?: string;
      depth: number;
    }>();
  });

  it('the scope of a run, and the turn, which carries all of it', () => {
    interface Scope {
      runId: string;
      agent: string;
      signal: AbortSignal;
      recovered: boolean;
      log: Logger;
      metadata: Record<string, string>;
      key: string | null;
      dataDir: string;
      emit(name: string, data: JsonValue): void;
      callModel(
        request: {
          messages: Message[];
          system?: string;
          model?: string;
          modelArgs?: Record<string, unknown>;
          output?: Record<string, unknown>;
        },
        options: { purpose: string },
      ): Promise<ModelResponse>;
    }
    expectTypeOf<RunScope>().toExtend<Scope>();
    expectTypeOf<PreparedTurn>().toExtend<Scope>();
    interface Turn {
      runState: RunState;
      tools: ToolConfig | null;
      modelArgs: Record<string, unknown> | null;
      transientState: RunContext;
      setSystemInstruction(v: string | PromptSpec): void;
      appendSystemInstruction(text: string, options?: { separator?: string }): void;
      appendHistoryItem(item: HistoryItem): void;
      appendHistoryItems(items: HistoryItem[]): void;
      replaceHistory(items: HistoryItem[]): void;
      addTools(tools: ToolConfig['tools'], options?: { requireUniqueNames?: boolean }): void;
      excludeTools(names: string[]): void;
      requireApproval(names: string[], options?: { message?: string; expiresInMs?: number }): void;
      turnCount: number;
      runTurn: number;
      isFirstOfConversation: boolean;
      isFirstOfRun: boolean;
      isFirstForThisAgent: boolean;
    }
    expectTypeOf<PreparedTurn>().toExtend<Turn>();
  });

  it('the state of a run, its result and its maps', () => {
    expectTypeOf<RunState>().toExtend<{
      instructions: string | PromptSpec;
      history: HistoryItem[];
      responses: ModelResponse[];
      shimState: ShimState;
      turnCount: number;
    }>();
    expectTypeOf<RunResult>().toExtend<{
      finalOutput: unknown;
      responses: ModelResponse[];
      turnCount: number;
      runState: RunState;
    }>();
    expectTypeOf<HistoryItem>().toEqualTypeOf<Message | ModelResponse | PromptSpec | JsonValue>();
    for (const map of [] as (ShimState | RunContext)[]) {
      expectTypeOf(map.has('k')).toEqualTypeOf<boolean>();
      expectTypeOf(map.delete('k')).toEqualTypeOf<boolean>();
      expectTypeOf(map.increment('k')).toEqualTypeOf<number>();
      expectTypeOf(map.appendIfUnique('k', 1)).toEqualTypeOf<boolean>();
      map.appendToList('k', 1);
      map.extendList('k', [1]);
      map.set('k', { nested: [1, null] });
    }
    expectTypeOf<StateMap>().toExtend<RunContext>();
    expectTypeOf<ModelResponse['providerMetadata']>().toExtend<object | undefined>();
  });

  it('tools, their settings, their context and the hooks', () => {
    const config: ToolConfig = { tools: [] };
    config.toolChoice = 'required';
    config.parallelToolCalls = false;
    config.toolCallTimeoutMs = 1;
    config.toolCallMaxRetries = 0;
    config.toolCallLimits = { search: 3 };
    config.maxToolRoundTrips = 10;
    expectTypeOf<ToolContext>().toExtend<{
      runId: string;
      agent: string;
      toolCallId: string;
      idempotencyKey: string;
      signal: AbortSignal;
      log: Logger;
      progress(data: string | JsonValue): void;
      shimState: ShimState;
      activeSkillNames: readonly string[];
    }>();
    expectTypeOf<{ ok: true; result: 'x' }>().toExtend<ToolOutcome>();
    expectTypeOf<{ ok: false; error: { message: string; kind?: string } }>().toExtend<ToolOutcome>();
    const hooks: Required<RunnerHooks> = {
      onAgentStart: (task, state) => void [task.agent, state.turnCount],
      onAgentEnd: (task, result) => void [task.agent, result?.finalOutput],
      onLlmStart: (task, request) => void [task.model, request.messages],
      onLlmEnd: (task, response) => void [task.model, response.message],
      onToolStart: (task, call) => void [task.runId, call],
      onToolEnd: (task, call, outcome) => void [task.runId, call, outcome.ok],
    };
    expectTypeOf(hooks).toExtend<RunnerHooks>();
  });
});
