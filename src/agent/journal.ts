import { z } from 'zod';
import type { EventInput } from './events.js';
import type { HistoryItem, ModelResponse } from './messages.js';
import { type FinishReason, FinishReasonSchema, type Usage } from './model.js';
import { type Cancellation, type Interruption, InterruptionSchema, type UnknownToolCall } from './run.js';
import { type RunErrorData, RunErrorDataSchema } from './run-errors.js';
import type { StateChange } from './state-map.js';
import type { PromptSpec } from './template.js';
import { OnCrashSchema, type ToolOutcome } from './tools.js';

/** How an attempt is going to end once its clean-up is over. */
export const SettledSchema = z.discriminatedUnion('status', [
  z.object({ status: z.literal('completed'), output: z.unknown(), finishReason: FinishReasonSchema }),
  z.object({ status: z.literal('failed'), error: RunErrorDataSchema }),
]);
export type Settled = z.infer<typeof SettledSchema>;

/**
 * Where in the loop a checkpoint stands, so that a recovery or resume goes on there:
 * `start` before the shims' onRunStart is committed, `turn` between turns, `tools` inside a tool round; `settled` once only clean-up is left.
 */
export const PositionSchema = z.object({
  at: z.enum(['start', 'turn', 'tools']),
  /** The agents of this attempt, outermost first; handoffs push. The last one has the conversation. */
  agents: z.array(z.string()).min(1),
  /** Agents that have had a turn in this conversation (R15). */
  seenAgents: z.array(z.string()),
  /** Turns since this attempt began (R14). */
  runTurn: z.int(),
  roundTrips: z.int(),
  /** Tool calls of this attempt by name (R44). */
  toolCalls: z.record(z.string(), z.int()),
  /** Responses in a row that called no tool there is (R45), and that were cut inside a tool call. */
  unknownInARow: z.int(),
  cutInARow: z.int(),
  /** Whether the one repair turn for a structured output was used. */
  outputRepaired: z.boolean(),
  /** Items that onModelResponse appended while calls were open: they follow the results (R30). */
  deferred: z.array(z.object({ kind: z.enum(['message', 'response', 'prompt', 'content']), item: z.unknown() })),
  /** What the turn of an open round was told of itself: it is told the same when the round is entered again (R79a). */
  openTurn: z.object({ runTurn: z.int(), isFirstForThisAgent: z.boolean() }).optional(),
  settled: SettledSchema.optional(),
});
export type Position = z.infer<typeof PositionSchema>;

export function firstPosition(agent: string): Position {
  return {
    at: 'start',
    agents: [agent],
    seenAgents: [],
    runTurn: 0,
    roundTrips: 0,
    toolCalls: {},
    unknownInARow: 0,
    cutInARow: 0,
    outputRepaired: false,
    deferred: [],
  };
}

/** A copy that later changes of the position do not reach. Cheaper than a structured clone: it is made at every checkpoint. */
export function copyPosition(position: Position): Position {
  return {
    ...position,
    agents: [...position.agents],
    seenAgents: [...position.seenAgents],
    toolCalls: { ...position.toolCalls },
    deferred: [...position.deferred],
  };
}

/** How far a decision reaches, where the gate that asked offers it: this call, this run, or every run of the agent. */
export const DecisionScopeSchema = z.enum(['once', 'run', 'agent']);
export type DecisionScope = z.infer<typeof DecisionScopeSchema>;

const scope = DecisionScopeSchema.optional();

export const DecisionSchema = z.discriminatedUnion('decision', [
  z.object({ decision: z.literal('approve'), scope }),
  z.object({ decision: z.literal('deny'), reason: z.string().optional(), scope }),
  z.object({ decision: z.literal('edit'), arguments: z.record(z.string(), z.json()), scope }),
  z.object({ decision: z.literal('respond'), result: z.json(), scope }),
]);
export type Decision = z.infer<typeof DecisionSchema>;

const SettlementSchema = z.object({
  outcome: z.enum(['happened', 'retry', 'failed']),
  result: z.json().optional(),
});

/** One tool call of an open round, as stored. */
export const ToolCallRecordSchema = z.object({
  toolCallId: z.string(),
  turn: z.int(),
  index: z.int(),
  name: z.string(),
  arguments: z.unknown(),
  idempotencyKey: z.string(),
  onCrash: OnCrashSchema,
  /** `pending` not begun, `waiting` for a decision, `started` begun with its outcome unknown until `done`. */
  state: z.enum(['pending', 'waiting', 'started', 'done']),
  startedAt: z.string().optional(),
  outcome: z.custom<ToolOutcome>().optional(),
  interruption: InterruptionSchema.optional(),
  decision: DecisionSchema.optional(),
  /** Shims whose gates asked for a person: they are told what was decided. */
  askedBy: z.array(z.string()).optional(),
  settlement: SettlementSchema.optional(),
});
export type ToolCallRecord = z.infer<typeof ToolCallRecordSchema>;

/** What happened to the history since the last checkpoint. */
export interface HistoryDelta {
  readonly mode: 'append' | 'replace';
  readonly items: readonly HistoryItem[];
  /** The saved ephemeral items go (R94); it comes before the items. */
  readonly dropEphemeral: boolean;
}

/** What one commit adds to the saved state; only what changed, so a turn costs what it adds. */
export interface Checkpoint {
  readonly position: Position;
  readonly turnCount: number;
  readonly instructions?: string | PromptSpec | undefined;
  readonly state: readonly StateChange[];
  readonly history?: HistoryDelta | undefined;
  readonly responses: readonly ModelResponse[];
  readonly usage: Usage;
  readonly toolCalls: readonly ToolCallRecord[];
  readonly unknownToolCalls?: readonly UnknownToolCall[] | undefined;
  /** Set where the checkpoint is a turn's end, from which a fork can start. */
  readonly turnEnd?: boolean | undefined;
  /** The end is settled: from now on a cancel changes nothing (R68). */
  readonly settles?: boolean | undefined;
  /** Tool calls are still being executed: the attempt cannot be handed over here without interrupting them. */
  readonly busy?: boolean | undefined;
}

/** How an attempt ended; committed with its ending event. */
export type AttemptEnd =
  | { readonly status: 'completed'; readonly output: unknown; readonly finishReason: FinishReason }
  /** `thrown` is the error itself, for a caller in code; it is never stored. */
  | {
      readonly status: 'failed';
      readonly error: RunErrorData;
      readonly thrown?: unknown;
      readonly partialOutput: string | null;
      readonly output?: unknown;
    }
  | { readonly status: 'cancelled'; readonly cancellation: Cancellation; readonly partialOutput: string | null }
  | { readonly status: 'waiting'; readonly interruptions: readonly Interruption[] };

export interface JournalEntry {
  readonly events: readonly EventInput[];
  readonly checkpoint?: Checkpoint | undefined;
  readonly end?: AttemptEnd | undefined;
  /** Sum so far, where no checkpoint says it. */
  readonly usage?: Usage | undefined;
  /** It may wait for the next commit of others: nobody acts on it, and were it lost it would come to be again. */
  readonly unhurried?: boolean | undefined;
}

/** The commit that settles or ends the attempt came after a cancel: the cancel stands. */
export class CancelledFirstError extends Error {
  constructor() {
    super('A cancel was committed first.');
    this.name = 'CancelledFirstError';
  }
}

/**
 * Where the loop writes what happened. Entries are committed in the order in which they were recorded; events reach
 * watchers only after their commit.
 */
export interface Journal {
  /** Adds an event to the log with the next commit; a watcher sees it then. */
  note(event: EventInput): void;
  /**
   * Resolves when the entry is durable. The loop need not wait for it unless something outside follows from it (a tool's effect, an end).
   * @throws CancelledFirstError when the entry settles or ends an attempt that is being cancelled
   */
  commit(entry: JournalEntry): Promise<void>;
}

/** The saved state of a run as the loop takes it up. */
export interface SavedState {
  readonly instructions: string | PromptSpec;
  readonly history: readonly HistoryItem[];
  readonly responses: readonly ModelResponse[];
  readonly state: ReadonlyMap<string, string>;
  readonly turnCount: number;
  readonly usage: Usage;
  readonly position: Position;
  readonly toolCalls: readonly ToolCallRecord[];
}
