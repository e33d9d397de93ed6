import type { Message, ModelResponse } from './messages.js';
import type { RunState } from './run-state.js';
import type { ToolConfig } from './tool-set.js';
import type { ToolOutcome } from './tools.js';
import type { GatedCall } from './turn.js';

/** The agent instance that a session is bound to. */
export interface AgentTask {
  readonly runId: string;
  readonly agent: string;
  readonly model: string;
  readonly parentRunId?: string;
  /** 0 for a run that a client started, one more for each spawned child. */
  readonly depth: number;
}

/** A piece of an answer on its way. `flush` is the last one of a call, without text of its own. */
export interface ModelDelta {
  readonly kind: 'text' | 'reasoning' | 'toolInput' | 'flush';
  readonly text: string;
  readonly toolCallId?: string | undefined;
}

/** One model call as it is about to be made: rendered messages (system first), tools after all rules, arguments. */
export interface ModelRequest {
  /** Id of the model; another id here calls another model. */
  readonly model: string;
  readonly messages: readonly Message[];
  readonly tools: ToolConfig | null;
  readonly modelArgs: Readonly<Record<string, unknown>> | null;
  readonly output?: Readonly<Record<string, unknown>> | undefined;
  /** How often and how patiently a passing failure of this call is tried again; what is left out is as the server has it. */
  readonly retry?: ModelRetry | undefined;
}

export interface ModelRetry {
  /** Further tries. */
  readonly maxRetries?: number | undefined;
  /** A provider that asks for a longer pause than this, in milliseconds, is not waited for: the call fails at once. */
  readonly longestPauseMs?: number | undefined;
}

/** What a completed run comes to. */
export interface RunResult {
  readonly finalOutput: unknown;
  readonly responses: ModelResponse[];
  readonly turnCount: number;
  /** Frozen: its `shimState` reads like that of every callback, and refuses writes. */
  readonly runState: Readonly<RunState>;
}

/** Observers: they see and act outside, and never shape the turn (R110). A throw is logged and changes nothing. */
export interface RunnerHooks {
  onAgentStart?(task: AgentTask, state: RunState): void | Promise<void>;
  onAgentEnd?(task: AgentTask, result: RunResult | null): void | Promise<void>;
  onLlmStart?(task: AgentTask, request: ModelRequest): void | Promise<void>;
  onLlmEnd?(task: AgentTask, response: ModelResponse): void | Promise<void>;
  onToolStart?(task: AgentTask, call: GatedCall): void | Promise<void>;
  onToolEnd?(task: AgentTask, call: GatedCall, outcome: ToolOutcome): void | Promise<void>;
}
