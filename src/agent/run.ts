import { z } from 'zod';
import { FinishReasonSchema, UsageSchema } from './model.js';
import { RunErrorDataSchema } from './run-errors.js';

export const RunStatusSchema = z.enum([
  'queued',
  'running',
  'waiting',
  'cancelling',
  'completed',
  'failed',
  'cancelled',
]);
export type RunStatus = z.infer<typeof RunStatusSchema>;

/**
 * Every legal change of a run's status. The store makes each one a compare-and-set, so whoever comes second loses.
 * An attempt ends in `waiting`, `completed`, `failed` or `cancelled`; from there only a resume leads on (and from `waiting` a cancel).
 */
export const RUN_TRANSITIONS: Readonly<Record<RunStatus, readonly RunStatus[]>> = {
  queued: ['running', 'cancelled', 'failed'],
  // `cancelled` without `cancelling`: a shim's clean-up raised the cancellation itself (R69).
  running: ['waiting', 'cancelling', 'completed', 'failed', 'cancelled'],
  cancelling: ['cancelled'],
  waiting: ['queued', 'cancelled'],
  completed: ['queued'],
  failed: ['queued'],
  cancelled: ['queued'],
};

export const TERMINAL_STATUSES: ReadonlySet<RunStatus> = new Set(['completed', 'failed', 'cancelled']);
export const ACTIVE_STATUSES: ReadonlySet<RunStatus> = new Set(['queued', 'running', 'cancelling']);

/** A wait for a person: what is asked, about which call, and how to answer. */
export const InterruptionSchema = z.object({
  id: z.string(),
  reason: z.enum(['approval', 'outcome', 'budget']),
  toolCallId: z.string().nullable(),
  tool: z.string().nullable(),
  arguments: z.unknown(),
  message: z.string().nullable(),
  /** JSON Schema of the answer that resume takes for it. */
  responseSchema: z.record(z.string(), z.unknown()),
  expiresAt: z.string().nullable(),
});
export type Interruption = z.infer<typeof InterruptionSchema>;

/** A tool call that a crash interrupted: whether its effect happened is not known. */
export const UnknownToolCallSchema = z.object({
  toolCallId: z.string(),
  tool: z.string(),
  arguments: z.unknown(),
  startedAt: z.string(),
  idempotencyKey: z.string(),
});
export type UnknownToolCall = z.infer<typeof UnknownToolCallSchema>;

/** The receipt of a cancel: what was in flight, whether it obeyed the signal, how long that took. */
export const CancellationSchema = z.object({
  requestedAt: z.string(),
  inFlight: z.array(
    z.object({
      kind: z.enum(['model', 'tool', 'shim', 'agent']),
      name: z.string(),
      id: z.string(),
      obeyed: z.boolean(),
      ms: z.number(),
      sideEffects: z.enum(['none', 'unknown']),
    }),
  ),
  cleanupMs: z.number().nullable(),
});
export type Cancellation = z.infer<typeof CancellationSchema>;
export type InFlight = Cancellation['inFlight'][number];

/** Limits of an attempt (`maxTurns`, `maxDurationMs`) and of the whole run (`maxTotalTokens`). */
export const RunLimitsSchema = z.strictObject({
  maxTurns: z.int().positive().optional(),
  maxDurationMs: z.int().positive().optional(),
  maxTotalTokens: z.int().positive().optional(),
  agentMaxDepth: z.int().nonnegative().optional(),
  agentMaxThreads: z.int().positive().optional(),
});
export type RunLimits = z.infer<typeof RunLimitsSchema>;

/** A run as clients see it: the body of `GET /v1/runs/{id}`. Times are ISO 8601 in UTC. */
export const RunSchema = z.object({
  id: z.string(),
  agent: z.string(),
  agentVersion: z.int(),
  status: RunStatusSchema,
  attempt: z.int(),
  recoveries: z.int(),
  version: z.int(),
  input: z.unknown(),
  output: z.unknown(),
  partialOutput: z.string().nullable(),
  finishReason: FinishReasonSchema.nullable(),
  error: RunErrorDataSchema.nullable(),
  usage: UsageSchema,
  turnCount: z.int(),
  createdAt: z.string(),
  startedAt: z.string().nullable(),
  updatedAt: z.string(),
  finishedAt: z.string().nullable(),
  lastSeq: z.int(),
  interruptions: z.array(InterruptionSchema),
  unknownToolCalls: z.array(UnknownToolCallSchema),
  cancellation: CancellationSchema.nullable(),
  metadata: z.record(z.string(), z.string()),
  parentRunId: z.string().nullable(),
  forkedFrom: z.object({ runId: z.string(), turn: z.int() }).nullable(),
  shims: z.array(z.object({ name: z.string(), hash: z.string() })),
});
export type Run = z.infer<typeof RunSchema>;
