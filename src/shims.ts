/**
 * The public entry `shimline/shims`: all that a shim author may use. The guide is `shims/README.md`; the contract, callback by
 * callback, is the docstring of `ShimCallbacks`.
 */
export { z } from 'zod';
export { type AgentToolOptions, agentTool } from './agent/agent-tool.js';
export type { InlineContext, ShimDefinition, ShimSpec } from './agent/define-shim.js';
export { defineShim, InvalidShimConfigError, InvalidShimError } from './agent/define-shim.js';
export { DelegatingBoundShim, DelegatingShim } from './agent/delegating.js';
export type { AgentDescriptor, ToolSettings } from './agent/descriptor.js';
export type { AgentTask, ModelDelta, ModelRequest, RunnerHooks, RunResult } from './agent/hooks.js';
export { DelegationLimitError } from './agent/inheritance.js';
export type { Decision, DecisionScope } from './agent/journal.js';
export type { JsonValue } from './agent/json.js';
export { cutText, NotJsonError } from './agent/json.js';
export type { JsonSchema } from './agent/json-schema.js';
export type {
  AssistantMessage,
  AssistantPart,
  FilePart,
  HistoryItem,
  InternalMark,
  ItemKind,
  Message,
  ModelResponse,
  ReasoningPart,
  SystemMessage,
  TextPart,
  ToolCallPart,
  ToolMessage,
  ToolResultOutput,
  ToolResultPart,
  UserMessage,
} from './agent/messages.js';
export { internalMessage, isInternalMessage, kindOf, renderItem, textOf } from './agent/messages.js';
export type { FinishReason, Usage } from './agent/model.js';
export type { RunLimits } from './agent/run.js';
export type { RunErrorCode } from './agent/run-errors.js';
export {
  BudgetReachedError,
  LimitExceededError,
  ModelCallError,
  RunCancelledError,
  RunError,
  ShimCleanupError,
  ShimError,
  ToolNameCollisionError,
} from './agent/run-errors.js';
export type { RunState } from './agent/run-state.js';
export { BrokenPairingError } from './agent/run-state.js';
export type { RunEvent, RunScope, ShimModelRequest, SpawnRequest, SpawnResult } from './agent/scope.js';
export { ClosedScopeError } from './agent/scope.js';
export type {
  Awaitable,
  NextModelCall,
  NextToolCall,
  ShimBindingContext,
  ShimCallbacks,
  ShimTimeouts,
  ToolSourceBinding,
} from './agent/shim.js';
export { BoundShim, Shim } from './agent/shim.js';
export type { NamespaceDefinition } from './agent/shim-namespace.js';
export { InvalidStateError, NewerStateError } from './agent/shim-namespace.js';
export type { RunContext, ShimState, StateMap } from './agent/state-map.js';
export type { PromptSpec } from './agent/template.js';
export { MissingTemplateValueError, NoSystemTextError } from './agent/template.js';
export type { ToolConfig } from './agent/tool-set.js';
export type {
  Logger,
  OnCrash,
  Tool,
  ToolArguments,
  ToolContentPart,
  ToolContext,
  ToolDefinition,
  ToolFailure,
  ToolOutcome,
} from './agent/tools.js';
export { defineTool, toolFailure } from './agent/tools.js';
export type { ApprovalOptions, GatedCall } from './agent/turn.js';
export { PreparedTurn } from './agent/turn.js';
