import { z } from 'zod';
import type { AssistantMessage } from './messages.js';
import type { FinishReason, Usage } from './model.js';
import type { Cancellation, Interruption } from './run.js';
import type { RunErrorData } from './run-errors.js';
import type { ToolOutcome } from './tools.js';

/** Where a picture of the state is taken: counts, sizes and digests, never the history itself. */
export type SnapshotBoundary = 'runStart' | 'turnPrepared' | 'toolRoundEnd' | 'runEnd';

/** One thing that a callback changed (R115). Sizes are UTF-8-ish lengths in characters; digests are short hashes. */
export type Change =
  | { readonly what: 'instructions'; readonly before: Picture; readonly after: Picture; readonly diff: TextDiff }
  | { readonly what: 'tools+' | 'tools-'; readonly names: readonly string[] }
  | { readonly what: 'history+'; readonly items: readonly ItemPicture[] }
  | {
      readonly what: 'history=';
      readonly before: number;
      readonly after: number;
      readonly items: readonly ItemPicture[];
    }
  | { readonly what: 'modelArgs'; readonly before: Picture; readonly after: Picture }
  | {
      readonly what: 'state';
      readonly key: string;
      readonly op: 'set' | 'delete';
      readonly size: number;
      readonly digest: string;
    }
  | { readonly what: 'messages'; readonly before: Picture; readonly after: Picture }
  | { readonly what: 'modelCall'; readonly purpose: string; readonly model: string; readonly usage: Usage };

export interface Picture {
  readonly size: number;
  readonly digest: string;
}
export interface ItemPicture extends Picture {
  readonly kind: string;
  readonly role?: string | undefined;
  readonly internal?: { readonly origin: string; readonly ephemeral: boolean } | undefined;
}
/** The one stretch in which two texts differ: what stood at `at` and what stands there now, each cut at 2000 characters. */
export interface TextDiff {
  readonly at: number;
  readonly removed: string;
  readonly added: string;
}

interface ErrorText {
  readonly message: string;
  readonly kind?: string | undefined;
}

/** What the loop reports, by type. The driver adds `seq`, `runId`, `attempt` and `at`. */
export type EventFields =
  | { readonly type: 'run.created'; readonly agent: string; readonly parentRunId?: string | undefined }
  | { readonly type: 'run.started' | 'run.resumed' | 'run.recovered' | 'run.cancelling' }
  | { readonly type: 'run.waiting'; readonly interruptions: readonly Interruption[] }
  | {
      readonly type: 'run.completed';
      readonly output: unknown;
      readonly finishReason: FinishReason;
      readonly usage: Usage;
      readonly turnCount: number;
    }
  | {
      readonly type: 'run.failed';
      readonly error: RunErrorData;
      readonly partialOutput: string | null;
      readonly output?: unknown;
    }
  | { readonly type: 'run.cancelled'; readonly cancellation: Cancellation; readonly partialOutput: string | null }
  | {
      readonly type: 'agent.started' | 'agent.completed';
      readonly agent: string;
      readonly parent: string | null;
      readonly root: string;
      readonly childRunId?: string;
    }
  | { readonly type: 'turn.started' | 'turn.completed' }
  | {
      readonly type: 'shim.effect';
      readonly shim: string;
      readonly callback: string;
      readonly changes: readonly Change[];
      readonly ms: number;
    }
  | { readonly type: 'shim.failed'; readonly shim: string; readonly callback: string; readonly error: RunErrorData }
  | {
      readonly type: 'shim.timeout' | 'shim.orphaned';
      readonly shim: string;
      readonly callback: string;
      readonly ms: number;
    }
  | { readonly type: 'shim.changed'; readonly shim: string; readonly before: string; readonly after: string }
  | {
      readonly type: 'model.started';
      readonly modelCallId: string;
      readonly model: string;
      readonly replaces?: string | undefined;
      readonly repairs?: readonly string[] | undefined;
    }
  | {
      readonly type: 'model.delta';
      readonly modelCallId: string;
      readonly kind: 'text' | 'reasoning' | 'toolInput';
      readonly text: string;
      readonly toolCallId?: string | undefined;
    }
  | {
      readonly type: 'model.retrying';
      readonly modelCallId: string;
      readonly error: RunErrorData;
      readonly delayMs: number;
      readonly retry: number;
    }
  | {
      readonly type: 'model.completed';
      readonly modelCallId: string;
      readonly message: AssistantMessage;
      readonly finishReason: FinishReason;
      readonly providerFinishReason?: string | undefined;
      readonly usage: Usage;
    }
  | {
      readonly type: 'tool.started';
      readonly toolCallId: string;
      readonly name: string;
      readonly arguments: unknown;
      readonly idempotencyKey: string;
    }
  | { readonly type: 'tool.progress'; readonly toolCallId: string; readonly data: unknown }
  | ({ readonly type: 'tool.completed'; readonly toolCallId: string; readonly name: string; readonly ms: number } & (
      | { readonly ok: true; readonly result: unknown }
      | { readonly ok: false; readonly error: ErrorText }
    ))
  | { readonly type: 'tool.waiting'; readonly interruption: Interruption }
  | { readonly type: 'handoff.started' | 'handoff.completed'; readonly from: string; readonly to: string }
  | { readonly type: 'plan.updated'; readonly shim: string; readonly data: unknown }
  | {
      readonly type: 'state.snapshot';
      readonly boundary: SnapshotBoundary;
      readonly turnCount: number;
      readonly history: Picture & { readonly length: number };
      readonly responses: number;
      readonly state: Picture & { readonly keys: number };
      readonly instructions: Picture;
    }
  | { readonly type: `custom.${string}`; readonly shim: string; readonly data: unknown };

/** An event of a run before it has its place in the log. */
export type EventInput = EventFields & { readonly turn?: number | undefined };

/** What clients get: `seq` is contiguous from 1 within the run; the type tells which other fields there are. */
export const LifecycleEventSchema = z.looseObject({
  seq: z.int(),
  type: z.string(),
  runId: z.string(),
  attempt: z.int(),
  at: z.string(),
  turn: z.int().optional(),
});
export type LifecycleEvent = z.infer<typeof LifecycleEventSchema>;

/** Events that end an attempt; exactly one per attempt. */
export const ENDING_TYPES: ReadonlySet<string> = new Set([
  'run.completed',
  'run.failed',
  'run.cancelled',
  'run.waiting',
]);

export function toolCompleted(
  call: { readonly toolCallId: string; readonly name: string },
  outcome: ToolOutcome,
  ms: number,
  turn: number,
): EventInput {
  const common = { type: 'tool.completed', turn, toolCallId: call.toolCallId, name: call.name, ms } as const;
  return outcome.ok ? { ...common, ok: true, result: outcome.result } : { ...common, ok: false, error: outcome.error };
}
