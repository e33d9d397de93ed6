import { z } from 'zod';
import { isoTime } from '../agent/iso-time.js';
import { FinishReasonSchema } from '../agent/model.js';
import { type Run, RunSchema, RunStatusSchema } from '../agent/run.js';

/** A row of `runs`, as read. */
export const RunRowSchema = z.object({
  n: z.int(),
  id: z.string(),
  owner: z.string(),
  agent: z.string(),
  agent_version: z.int(),
  status: RunStatusSchema,
  attempt: z.int(),
  recoveries: z.int(),
  version: z.int(),
  epoch: z.int(),
  settled: z.int(),
  crashes: z.int(),
  last_seq: z.int(),
  oldest_seq: z.int(),
  turn_count: z.int(),
  history_gen: z.int(),
  history_length: z.int(),
  history_n: z.int(),
  state_n: z.int(),
  response_n: z.int(),
  response_count: z.int(),
  finish_reason: FinishReasonSchema.nullable(),
  usage: z.string(),
  created_at: z.int(),
  started_at: z.int().nullable(),
  updated_at: z.int(),
  finished_at: z.int().nullable(),
  parent: z.string().nullable(),
  parent_call: z.string().nullable(),
  depth: z.int(),
  forked_from: z.string().nullable(),
  forked_turn: z.int().nullable(),
});
export type RunRow = z.infer<typeof RunRowSchema>;

/** The JSON documents that a run may have, one row each in `run_docs`, written only when they change. */
export const DOC_KINDS = [
  'request',
  'position',
  'output',
  'partial',
  'error',
  'interruptions',
  'unknown',
  'cancellation',
  'shims',
] as const;
export type DocKind = (typeof DOC_KINDS)[number];

/** What was asked for when the run was made, as far as later attempts need it. */
export const RequestDocSchema = z.object({
  input: z.unknown(),
  metadata: z.record(z.string(), z.string()),
  values: z.record(z.string(), z.json()),
  limits: z.record(z.string(), z.number()),
  shims: z.record(z.string(), z.record(z.string(), z.unknown())),
  /** Instructions and tools of a spawned helper, which has no saved agent of its own (R100). */
  helper: z.object({ instructions: z.string().optional(), tools: z.array(z.string()).optional() }).optional(),
  /** Agents of the parents, whose guards (`inherit: "always"`) hold for this run too. */
  guards: z.array(z.string()).optional(),
  /** Those of them that a run above was started with: their guards are what that run has, in its version and with its configs. */
  guardedBy: z
    .record(
      z.string(),
      z.object({ version: z.number(), shims: z.record(z.string(), z.record(z.string(), z.unknown())) }),
    )
    .optional(),
});
export type RequestDoc = z.infer<typeof RequestDocSchema>;

/** The columns that the body of a run is made of. */
export type ShownRow = Pick<
  RunRow,
  | 'id'
  | 'agent'
  | 'agent_version'
  | 'status'
  | 'attempt'
  | 'recoveries'
  | 'version'
  | 'finish_reason'
  | 'turn_count'
  | 'created_at'
  | 'started_at'
  | 'updated_at'
  | 'finished_at'
  | 'last_seq'
  | 'parent'
  | 'forked_from'
  | 'forked_turn'
  | 'usage'
>;

const isoOrNull = (ms: number | null): string | null => (ms === null ? null : isoTime(ms));

/**
 * The body of `GET /v1/runs/{id}` as JSON text. The stored documents are JSON already and are put in as they are: reading a
 * run is on the hot path of every client that polls.
 */
export function runJson(row: ShownRow, docs: ReadonlyMap<string, string>): string {
  const { input, metadata } = askedFor(docs.get('request') ?? '{}');
  const head = {
    id: row.id,
    agent: row.agent,
    agentVersion: row.agent_version,
    status: row.status,
    attempt: row.attempt,
    recoveries: row.recoveries,
    version: row.version,
    finishReason: row.finish_reason,
    turnCount: row.turn_count,
    createdAt: isoTime(row.created_at),
    startedAt: isoOrNull(row.started_at),
    updatedAt: isoTime(row.updated_at),
    finishedAt: isoOrNull(row.finished_at),
    lastSeq: row.last_seq,
    parentRunId: row.parent,
    forkedFrom: row.forked_from === null ? null : { runId: row.forked_from, turn: row.forked_turn ?? 0 },
  };
  const waiting = row.status === 'waiting';
  return (
    `${JSON.stringify(head).slice(0, -1)},"usage":${row.usage}` +
    `,"input":${input}` +
    `,"output":${docs.get('output') ?? 'null'},"partialOutput":${docs.get('partial') ?? 'null'},"error":${docs.get('error') ?? 'null'}` +
    `,"interruptions":${waiting ? (docs.get('interruptions') ?? '[]') : '[]'},"unknownToolCalls":${docs.get('unknown') ?? '[]'}` +
    `,"cancellation":${docs.get('cancellation') ?? 'null'},"metadata":${metadata},"shims":${docs.get('shims') ?? '[]'}}`
  );
}

const TEXT = String.raw`"[^"\\]*(?:\\.[^"\\]*)*"`;
/** How a request document begins where the input is a text: these two are not parsed and printed again for every poll. */
const BEGINNING = new RegExp(`^\\{"input":(${TEXT}),"metadata":(\\{(?:${TEXT}:${TEXT},?)*\\})[,}]`);

/** A longer document is parsed: matching many escapes takes as much of the stack as they are long. */
const MATCHED_CHARS = 65_536;

/** The JSON texts of what a run was asked for. */
function askedFor(request: string): { readonly input: string; readonly metadata: string } {
  const [, input, metadata] = (request.length <= MATCHED_CHARS ? BEGINNING.exec(request) : null) ?? [];
  if (input !== undefined && metadata !== undefined) return { input, metadata };
  const doc = JSON.parse(request) as { readonly input?: unknown; readonly metadata?: unknown };
  const json = (value: unknown): string => (value === undefined ? 'null' : JSON.stringify(value));
  return { input: json(doc.input), metadata: json(doc.metadata) };
}

/** The same as an object, checked: a damaged row is an error, not a strange answer. */
export function runOf(row: RunRow, docs: ReadonlyMap<string, string>): Run {
  return RunSchema.parse(JSON.parse(runJson(row, docs)));
}
