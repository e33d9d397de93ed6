import { z } from 'zod';
import { AgentDescriptorSchema } from '../agent/descriptor.js';
import { LifecycleEventSchema } from '../agent/events.js';
import { DecisionScopeSchema } from '../agent/journal.js';
import { RunLimitsSchema, RunSchema, RunStatusSchema } from '../agent/run.js';
import { INPUT_COMPONENTS, InputSchema } from './input-schema.js';

/** Most entries of one page, of every list. */
const MAX_PAGE = 1000;
const DEFAULT_PAGE = 50;
const DEFAULT_EVENTS_PAGE = 1000;

const json = z.json();

export const StartBodySchema = z
  .strictObject({
    agent: z.string().min(1),
    input: InputSchema,
    metadata: z.record(z.string(), z.string()).default({}).meta({ description: 'Labels to find the run by.' }),
    values: z
      .record(z.string(), json)
      .default({})
      .meta({ description: "Values for the template of the agent's instructions." }),
    limits: RunLimitsSchema.default({}),
    shims: z
      .record(z.string(), z.record(z.string(), z.unknown()))
      .default({})
      .meta({ description: "Another config for shims of the agent, by the shim's name in the agent." }),
    onDisconnect: z.enum(['continue', 'cancel']).default('continue').meta({
      description: 'Whether the run is cancelled when the client that started it goes while it streams or waits.',
    }),
  })
  .meta({ id: 'StartRun' });

const id = z.string().min(1);
const reason = z.string().optional();
const scope = DecisionScopeSchema.optional().meta({
  description: 'How far it reaches, where the responseSchema of the interruption offers it; once by default.',
});

const DecisionBodySchema = z.discriminatedUnion('decision', [
  z.strictObject({ id, decision: z.literal('approve'), reason, scope }),
  z.strictObject({ id, decision: z.literal('deny'), reason, scope }),
  z.strictObject({ id, decision: z.literal('edit'), arguments: z.record(z.string(), json), reason, scope }),
  z.strictObject({ id, decision: z.literal('respond'), result: json, reason, scope }),
]);

const SettleBodySchema = z.strictObject({
  toolCallId: id,
  outcome: z.enum(['happened', 'retry', 'failed']),
  result: json.optional(),
});

/** Refuses two answers to one question, of which only one could count. */
function unique<T>(idOf: (item: T) => string): (items: readonly T[]) => boolean {
  return (items) => new Set(items.map(idOf)).size === items.length;
}

export const ResumeBodySchema = z
  .strictObject({
    input: InputSchema.optional(),
    limits: RunLimitsSchema.optional(),
    shims: z.record(z.string(), z.record(z.string(), z.unknown())).exactOptional().meta({
      description: "Another config for shims of the agent from now on, by the shim's name in the agent.",
    }),
    decisions: z
      .array(DecisionBodySchema)
      .min(1)
      .refine(
        unique((decision: { readonly id: string }) => decision.id),
        'must not decide one interruption twice',
      )
      .exactOptional(),
    settle: z
      .array(SettleBodySchema)
      .min(1)
      .refine(
        unique((settlement: { readonly toolCallId: string }) => settlement.toolCallId),
        'must not settle one tool call twice',
      )
      .exactOptional(),
  })
  .meta({ id: 'ResumeRun' });

export const ForkBodySchema = z
  .strictObject({
    turn: z
      .int()
      .nonnegative()
      .optional()
      .meta({ description: 'The model turn after which the fork begins; the last by default.' }),
    input: InputSchema.optional(),
    agent: z.string().min(1).optional().meta({ description: 'Another agent for the fork.' }),
  })
  .meta({ id: 'ForkRun' });

/** An agent as PUT takes it: its name is in the path and may be left out here. */
export const AgentBodySchema = AgentDescriptorSchema.partial({ name: true }).meta({ id: 'AgentBody' });

export const PreviewBodySchema = z.strictObject({ input: InputSchema });

/** Queries: every parameter is text, read strictly; a repeated one arrives as a list and is refused as no text. */
const once = z.string({ error: 'must be given once' });

function limitOf(fallback: number): z.ZodType<number, string | undefined> {
  return once
    .refine(
      (text) => /^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= MAX_PAGE,
      `must be a whole number from 1 to ${MAX_PAGE}`,
    )
    .transform(Number)
    .default(fallback)
    .meta({ type: 'integer', minimum: 1, maximum: MAX_PAGE, default: fallback });
}

const instant = once
  .refine(
    (text) => /^\d{4}-\d{2}-\d{2}(T.+)?$/.test(text) && !Number.isNaN(Date.parse(text)),
    'must be an ISO 8601 date or time',
  )
  .transform((text) => new Date(text).toISOString())
  .meta({ format: 'date-time' });

const cursor = once.min(1).optional().meta({ description: 'The nextCursor of the page before.' });

export const NoQuerySchema = z.strictObject({});
export const PageQuerySchema = z.strictObject({ limit: limitOf(DEFAULT_PAGE), cursor });

export const EventsQuerySchema = z.strictObject({
  after: once
    .optional()
    .meta({ description: 'The seq after which events are wanted; the header Last-Event-ID wins.', type: 'integer' }),
  limit: limitOf(DEFAULT_EVENTS_PAGE).meta({ description: 'Of a JSON page; a stream has no limit.' }),
});

export const DeleteQuerySchema = z.strictObject({
  purge: z
    .enum(['true', 'false'], { error: 'must be true or false' })
    .default('false')
    .transform((word) => word === 'true')
    .meta({ type: 'boolean', description: 'true: delete the record of a run that is over.' }),
});

const METADATA = 'metadata.';

/** `metadata.<key>=<value>` may be given for any key; every other unknown parameter is refused. */
export const RunsQuerySchema = z
  .object({
    agent: once.optional(),
    status: RunStatusSchema.optional(),
    createdAfter: instant.optional(),
    createdBefore: instant.optional(),
    parent: once.optional().meta({ description: 'The id of the run that started it.' }),
    limit: limitOf(DEFAULT_PAGE),
    cursor,
  })
  .catchall(once)
  .superRefine((query, context) => {
    const known = new Set(Object.keys(RunsQuerySchema.shape));
    const unknown = Object.keys(query).filter((key) => !known.has(key) && !key.startsWith(METADATA));
    if (unknown.length > 0) context.addIssue({ code: 'unrecognized_keys', keys: unknown, input: query });
  });

/** The metadata filter among the parameters of a query. */
export function metadataFilter(query: Readonly<Record<string, unknown>>): Record<string, string> {
  const entries = Object.entries(query).flatMap(([key, value]) =>
    key.startsWith(METADATA) && typeof value === 'string' ? [[key.slice(METADATA.length), value] as const] : [],
  );
  return Object.fromEntries(entries);
}

export const RunIdSchema = z.object({ id: z.string() });
export const AgentNameSchema = z.object({ name: z.string() });

// Documents of answers. What the runtime hands over is sent as it is: it was checked when it was made.

export const RunDocument = RunSchema.meta({ id: 'Run' });
export const EventDocument = LifecycleEventSchema.meta({
  id: 'Event',
  description: 'The type tells which other fields there are.',
});
export const AgentDocument = AgentDescriptorSchema.extend({
  version: z.int(),
  source: z.enum(['api', 'file', 'builtin']).optional(),
}).meta({ id: 'Agent' });

export function pageOf(item: z.ZodType): z.ZodType {
  return z.object({ data: z.array(item), nextCursor: z.string().nullable() });
}

for (const [name, schema] of Object.entries(INPUT_COMPONENTS)) z.globalRegistry.add(schema, { id: name });
