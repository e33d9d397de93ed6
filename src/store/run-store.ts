import { type EventBatch, framed, lastFrameAt } from '../agent/event-frames.js';
import {
  type AttemptEnd,
  CancelledFirstError,
  type Checkpoint,
  type Position,
  type SavedState,
} from '../agent/journal.js';
import type { HistoryItem } from '../agent/messages.js';
import type { Usage } from '../agent/model.js';
import { RUN_TRANSITIONS, type RunStatus } from '../agent/run.js';
import { HandedOverError } from '../agent/run-errors.js';
import { type CheckpointRow, ConversationStore } from './conversation-store.js';
import { type RequestDoc, RequestDocSchema, type RunRow, RunRowSchema } from './run-rows.js';

/** A status change that the present status does not allow: somebody else came first. */
class TransitionRefusedError extends Error {
  readonly row: Pick<RunRow, 'id' | 'status'>;
  constructor(row: Pick<RunRow, 'id' | 'status'>, to: RunStatus) {
    super(`Run ${row.id} is ${row.status} and cannot become ${to}.`);
    this.name = 'TransitionRefusedError';
    this.row = row;
  }
}

/** Characters of a row of events, about: a reader reads whole rows, so no row is longer than what is sent at once. */
const ROW_CHARS = 131_072;

/** Events as rows of the log, an event that is longer than a row in one of its own. */
function inRows(lines: readonly string[], lastSeq: number): EventBatch[] {
  const rows: EventBatch[] = [];
  let from = 0;
  let chars = 0;
  lines.forEach((line, index) => {
    chars += line.length;
    const next = index + 1;
    if (chars < ROW_CHARS && next < lines.length) return;
    rows.push(framed(lines.slice(from, next), lastSeq - lines.length + next));
    from = next;
    chars = 0;
  });
  return rows;
}

/** The epoch of a run that is running from the start. */
export const FIRST_EPOCH = 1;

/** When a run ended, and which one it was: ends in one millisecond have an order too. */
export interface RunEnd {
  readonly finishedAt: number;
  readonly n: number;
}

export interface NewRun {
  readonly id: string;
  readonly owner: string;
  readonly agent: string;
  readonly agentVersion: number;
  readonly request: RequestDoc;
  readonly instructions: SavedState['instructions'];
  readonly items: readonly HistoryItem[];
  readonly position: Position;
  readonly usage: Usage;
  /** Events of the creation, as stored lines without their seq. */
  readonly lines: readonly string[];
  readonly nowMs: number;
  readonly parent?: { readonly runId: string; readonly toolCallId: string; readonly depth: number } | undefined;
  readonly forkedFrom?: { readonly run: RunRow; readonly checkpoint: CheckpointRow } | undefined;
  readonly idempotency?: { readonly key: string; readonly bodyHash: string } | undefined;
  /** Its first attempt begins at once: it is running from the start, with the lease of epoch 1. */
  readonly running?: boolean | undefined;
}

/**
 * The runs and everything of theirs; one truth per fact. Each method is called inside a transaction of the writer and makes
 * its change a compare-and-set: on the epoch of the run's owner for the driver of a run, on the status for everybody else.
 */
export class RunStore extends ConversationStore {
  find(id: string): RunRow | undefined {
    const row = this.sql('SELECT * FROM runs WHERE id = ?').get(id);
    return row === undefined ? undefined : RunRowSchema.parse(row);
  }

  /** The run that a key made before, with the hash of the body it was made with. */
  findByKey(owner: string, key: string): { readonly id: string; readonly bodyHash: string } | undefined {
    const row = this.sql(
      'SELECT runs.id AS id, body_hash AS bodyHash FROM idempotency JOIN runs ON runs.n = idempotency.run WHERE idempotency.owner = ? AND key = ?',
    ).get(owner, key);
    return row as { id: string; bodyHash: string } | undefined;
  }

  /** The child that a tool call of a parent started. */
  findChild(parent: string, toolCallId: string): RunRow | undefined {
    const row = this.sql('SELECT * FROM runs WHERE parent = ? AND parent_call = ?').get(parent, toolCallId);
    return row === undefined ? undefined : RunRowSchema.parse(row);
  }

  /** Makes a run with its first events, its input as a checkpoint, and its idempotency key, all at once. */
  create(run: NewRun): number {
    const { nowMs, position, forkedFrom, parent } = run;
    const insert = this.sql(
      `INSERT INTO runs (id, owner, agent, agent_version, status, epoch, crashes, started_at, last_seq, history_length, usage, created_at, updated_at, turn_count, parent, parent_call, depth, forked_from, forked_turn)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    const running = run.running === true;
    const turnCount = forkedFrom?.checkpoint.turn_count ?? 0;
    const n = Number(
      insert.run(
        run.id,
        run.owner,
        run.agent,
        run.agentVersion,
        running ? 'running' : 'queued',
        running ? FIRST_EPOCH : 0,
        running ? 1 : 0,
        running ? nowMs : null,
        run.lines.length,
        JSON.stringify(run.usage),
        nowMs,
        nowMs,
        turnCount,
        parent?.runId ?? null,
        parent?.toolCallId ?? null,
        parent?.depth ?? 0,
        forkedFrom?.run.id ?? null,
        forkedFrom?.checkpoint.turn ?? null,
      ).lastInsertRowid,
    );
    this.putDoc(n, 'request', JSON.stringify(run.request));
    for (const [key, value] of Object.entries(run.request.metadata))
      this.sql('INSERT INTO run_metadata (k, v, run) VALUES (?, ?, ?)').run(key, value, n);
    if (run.idempotency !== undefined) {
      this.sql('INSERT INTO idempotency (owner, key, run, body_hash) VALUES (?, ?, ?, ?)').run(
        run.owner,
        run.idempotency.key,
        n,
        run.idempotency.bodyHash,
      );
    }
    if (forkedFrom === undefined) this.putState(n, 'instructions', JSON.stringify(run.instructions));
    else this.copyState(n, forkedFrom.run.n, forkedFrom.checkpoint);
    this.#insertEvents(n, run.lines, run.lines.length);
    this.append(n, 0, run.items);
    this.putPosition(n, position);
    this.putCheckpoint(n, { seq: 1, turnEnd: false, nowMs, position });
    return n;
  }

  #insertEvents(n: number, lines: readonly string[], lastSeq: number): EventBatch {
    const rows = inRows(lines, lastSeq);
    const insert = this.sql('INSERT INTO events (run, first_seq, last_seq, frames) VALUES (?, ?, ?, ?)');
    for (const row of rows) insert.run(n, row.firstSeq, row.lastSeq, row.frames);
    const [batch] = rows;
    if (batch !== undefined && rows.length === 1) return batch;
    return { firstSeq: lastSeq - lines.length + 1, lastSeq, frames: rows.map(({ frames }) => frames).join('') };
  }

  /**
   * Appends events as the run's owner.
   * @throws HandedOverError when the epoch is stale: another owner has the run
   */
  appendEvents(n: number, epoch: number, lines: readonly string[], nowMs: number): EventBatch {
    const row = this.sql(
      'UPDATE runs SET last_seq = last_seq + ?, updated_at = ? WHERE n = ? AND epoch = ? RETURNING last_seq',
    ).get(lines.length, nowMs, n, epoch);
    if (row === undefined) throw new HandedOverError(`run ${n} has another owner than epoch ${epoch}`);
    return this.#insertEvents(n, lines, (row as { last_seq: number }).last_seq);
  }

  /** Adds a sub-agent's events to the log of a run above it, while that one goes on. */
  appendMirrored(n: number, lines: readonly string[], nowMs: number): EventBatch | undefined {
    const row = this.sql(
      "UPDATE runs SET last_seq = last_seq + ?, updated_at = ? WHERE n = ? AND status IN ('running', 'cancelling') RETURNING last_seq",
    ).get(lines.length, nowMs, n);
    return row === undefined ? undefined : this.#insertEvents(n, lines, (row as { last_seq: number }).last_seq);
  }

  /** Adds events outside an attempt. */
  addEvents(n: number, lines: readonly string[], nowMs: number): EventBatch {
    const lastSeq = this.sql('UPDATE runs SET last_seq = last_seq + ?, updated_at = ? WHERE n = ? RETURNING last_seq')
      .pluck()
      .get(lines.length, nowMs, n) as number;
    return this.#insertEvents(n, lines, lastSeq);
  }

  /** Adds a checkpoint as the run's owner; its events were appended before. @throws CancelledFirstError */
  applyCheckpoint(
    n: number,
    checkpoint: Checkpoint,
    at: {
      readonly seq: number;
      readonly nowMs: number;
      readonly responseIds: ReadonlySet<string>;
      /** Whether the attempt ends with it. */
      readonly ends?: boolean;
    },
  ): void {
    const { position, turnCount } = checkpoint;
    if (
      checkpoint.settles === true &&
      this.sql("UPDATE runs SET settled = 1 WHERE n = ? AND status = 'running'").run(n).changes === 0
    )
      throw new CancelledFirstError();
    if (checkpoint.instructions !== undefined)
      this.putState(n, 'instructions', JSON.stringify(checkpoint.instructions));
    for (const { key, json } of checkpoint.state) this.putState(n, `state:${key}`, json ?? null);
    let responseN: number | bigint | undefined;
    for (const response of checkpoint.responses)
      responseN = this.sql('INSERT INTO responses (run, body) VALUES (?, ?)').run(
        n,
        JSON.stringify(response),
      ).lastInsertRowid;
    this.applyHistory(n, checkpoint.history, at.responseIds);
    // The count of executions since the last progress begins again with the one that is going on.
    const progress =
      checkpoint.responses.length > 0 ||
      checkpoint.turnEnd === true ||
      checkpoint.toolCalls.some((call) => call.state === 'done');
    this.sql(
      'UPDATE runs SET turn_count = ?, usage = ?, crashes = CASE WHEN ? THEN 1 ELSE crashes END, response_count = response_count + ?, response_n = coalesce(?, response_n) WHERE n = ?',
    ).run(
      turnCount,
      JSON.stringify(checkpoint.usage),
      progress ? 1 : 0,
      checkpoint.responses.length,
      responseN ?? null,
      n,
    );
    this.putPosition(n, position);
    if (position.at !== 'tools') this.sql('DELETE FROM tool_calls WHERE run = ?').run(n);
    else for (const call of checkpoint.toolCalls) this.putCall(n, call);
    if (checkpoint.unknownToolCalls !== undefined && checkpoint.unknownToolCalls.length > 0) {
      const known = JSON.parse(this.doc(n, 'unknown') ?? '[]') as unknown[];
      this.putDoc(n, 'unknown', JSON.stringify([...known, ...checkpoint.unknownToolCalls]));
    }
    if (checkpoint.turnEnd !== true) return;
    // Behind a clean-up the turn ends once more: what the clean-up wrote is of it, for a fork as for a resume.
    if (at.ends === true)
      this.sql(
        'DELETE FROM checkpoints WHERE run = ? AND turn_end = 1 AND turn = (SELECT turn_count FROM runs WHERE n = ?)',
      ).run(n, n);
    this.putCheckpoint(n, { seq: at.seq, turnEnd: true, nowMs: at.nowMs, position });
  }

  /** Something of the run changed that no event tells. */
  touch(n: number, nowMs: number): void {
    this.sql('UPDATE runs SET version = version + 1, updated_at = ? WHERE n = ?').run(nowMs, n);
  }

  /** The runs below a run, at any depth. */
  descendants(runId: string): RunRow[] {
    const rows = this.sql(
      'WITH RECURSIVE below(id) AS (SELECT id FROM runs WHERE parent = ? UNION SELECT runs.id FROM runs JOIN below ON runs.parent = below.id) SELECT runs.* FROM runs JOIN below ON runs.id = below.id',
    ).all(runId);
    return rows.map((row) => RunRowSchema.parse(row));
  }

  unfinishedChildren(runId: string): number {
    return this.sql(
      "SELECT count(*) FROM runs WHERE parent = ? AND status IN ('queued', 'running', 'cancelling', 'waiting')",
    )
      .pluck()
      .get(runId) as number;
  }

  /** The frames of the newest rows of a run's log, newest first: what an interrupted attempt was doing stands at the end. */
  lastFrames(n: number, limit: number): string[] {
    return this.sql('SELECT frames FROM events WHERE run = ? ORDER BY last_seq DESC LIMIT ?')
      .pluck()
      .all(n, limit) as string[];
  }

  /** Runs that no end was written for, oldest first. */
  unfinished(): RunRow[] {
    return this.sql("SELECT * FROM runs WHERE status IN ('queued', 'running', 'cancelling', 'waiting') ORDER BY n")
      .all()
      .map((row) => RunRowSchema.parse(row));
  }

  /**
   * Changes a run's status if its present one allows it. Every change raises `version`.
   * @throws TransitionRefusedError
   */
  transition(n: number, to: RunStatus, nowMs: number): void {
    const row = this.sql('SELECT id, status FROM runs WHERE n = ?').get(n) as Pick<RunRow, 'id' | 'status'>;
    if (!RUN_TRANSITIONS[row.status].includes(to)) throw new TransitionRefusedError(row, to);
    const ended = to === 'completed' || to === 'failed' || to === 'cancelled';
    this.sql(
      'UPDATE runs SET status = ?, version = version + 1, updated_at = ?, finished_at = ?, settled = CASE WHEN ? THEN 0 ELSE settled END WHERE n = ? AND status = ?',
    ).run(to, nowMs, ended ? nowMs : null, ended || to === 'waiting' || to === 'queued' ? 1 : 0, n, row.status);
  }

  /** How a run stands; undefined when it is gone. */
  standing(id: string): Pick<RunRow, 'id' | 'status' | 'epoch'> | undefined {
    return this.sql('SELECT id, status, epoch FROM runs WHERE id = ?').get(id) as
      | Pick<RunRow, 'id' | 'status' | 'epoch'>
      | undefined;
  }

  /** Whether a run has ended, or is gone. */
  isOver(id: string): boolean {
    const status = this.sql('SELECT status FROM runs WHERE id = ?').pluck().get(id) as string | undefined;
    return status === undefined || status === 'completed' || status === 'failed' || status === 'cancelled';
  }

  isCancelling(n: number): boolean {
    return this.sql('SELECT status FROM runs WHERE n = ?').pluck().get(n) === 'cancelling';
  }

  /** Begins or takes over an attempt: a new epoch, so no earlier owner can write any more; counted before it is executed. */
  takeLease(n: number, nowMs: number): { readonly epoch: number; readonly crashes: number } {
    const row = this.sql(
      `UPDATE runs SET epoch = epoch + 1, crashes = crashes + 1, started_at = coalesce(started_at, ?) WHERE n = ? RETURNING epoch, crashes`,
    ).get(nowMs, n);
    return row as { epoch: number; crashes: number };
  }

  /** The owner gives the run back in good order: the next start goes on with it, and nothing counts as a crash. */
  releaseLease(n: number, epoch: number): void {
    this.sql('UPDATE runs SET crashes = 0 WHERE n = ? AND epoch = ?').run(n, epoch);
  }

  /** An execution that did no harm is not counted, if nothing else has changed the count. */
  acquit(n: number, crashes: number): void {
    this.sql('UPDATE runs SET crashes = crashes - 1 WHERE n = ? AND crashes = ?').run(n, crashes);
  }

  raiseAttempt(n: number): number {
    return this.sql(
      'UPDATE runs SET attempt = attempt + 1, crashes = 0, finish_reason = NULL WHERE n = ? RETURNING attempt',
    )
      .pluck()
      .get(n) as number;
  }

  raiseRecoveries(n: number): void {
    this.sql('UPDATE runs SET recoveries = recoveries + 1, version = version + 1 WHERE n = ?').run(n);
  }

  /** Writes the one end of an attempt. @throws CancelledFirstError when a cancel came first */
  applyEnd(
    n: number,
    end: AttemptEnd,
    at: { readonly seq: number; readonly attempt: number; readonly nowMs: number },
  ): void {
    try {
      this.transition(n, end.status, at.nowMs);
    } catch (error) {
      if (error instanceof TransitionRefusedError && error.row.status === 'cancelling') throw new CancelledFirstError();
      throw error;
    }
    this.putEndDocs(n, end);
    if (end.status !== 'waiting')
      this.sql('INSERT INTO endings (run, attempt, seq, status) VALUES (?, ?, ?, ?)').run(
        n,
        at.attempt,
        at.seq,
        end.status,
      );
  }

  putEndDocs(n: number, end: AttemptEnd): void {
    this.sql('UPDATE runs SET finish_reason = ? WHERE n = ?').run(
      end.status === 'completed' ? end.finishReason : null,
      n,
    );
    const output = end.status === 'completed' || end.status === 'failed' ? end.output : undefined;
    this.putDoc(n, 'output', output === undefined ? undefined : JSON.stringify(output));
    this.putDoc(n, 'error', end.status === 'failed' ? JSON.stringify(end.error) : undefined);
    const partial = end.status === 'failed' || end.status === 'cancelled' ? end.partialOutput : null;
    this.putDoc(n, 'partial', partial === null ? undefined : JSON.stringify(partial));
    if (end.status === 'cancelled') this.putDoc(n, 'cancellation', JSON.stringify(end.cancellation));
    this.putDoc(n, 'interruptions', end.status === 'waiting' ? JSON.stringify(end.interruptions) : undefined);
  }

  putUsage(n: number, usage: Usage): void {
    this.sql('UPDATE runs SET usage = ? WHERE n = ?').run(JSON.stringify(usage), n);
  }

  request(n: number): RequestDoc {
    return RequestDocSchema.parse(JSON.parse(this.doc(n, 'request') ?? '{}'));
  }

  /** The runs that ended not later than this one did, oldest first; with `events` only those that have some to prune. */
  endedUpTo(end: RunEnd, limit: number, events: boolean): RunRow[] {
    const having = events ? 'AND oldest_seq < last_seq' : '';
    return this.sql(
      `SELECT * FROM runs WHERE finished_at IS NOT NULL AND finished_at <= ? AND (finished_at < ? OR n <= ?) ${having} ORDER BY finished_at, n LIMIT ?`,
    )
      .all(end.finishedAt, end.finishedAt, end.n, limit)
      .map((row) => RunRowSchema.parse(row));
  }

  /** The newest end that is beyond the `keep` newest ones; undefined where there are no more than that. */
  newestEndBeyond(keep: number): RunEnd | undefined {
    return this.sql(
      'SELECT finished_at AS finishedAt, n FROM runs WHERE finished_at > 0 ORDER BY finished_at DESC, n DESC LIMIT 1 OFFSET ?',
    ).get(keep) as RunEnd | undefined;
  }

  /** Takes the events of a run that is over out of its log, all but the last one: how it ended can still be streamed. */
  pruneEvents(n: number): void {
    const last = this.sql('SELECT n, frames FROM events WHERE run = ? ORDER BY last_seq DESC LIMIT 1').get(n) as
      | { n: number; frames: string }
      | undefined;
    if (last === undefined) return;
    this.sql('DELETE FROM events WHERE run = ? AND n <> ?').run(n, last.n);
    this.sql('UPDATE events SET first_seq = last_seq, frames = ? WHERE n = ?').run(
      last.frames.slice(lastFrameAt(last.frames)),
      last.n,
    );
    this.sql('UPDATE runs SET oldest_seq = last_seq WHERE n = ?').run(n);
  }

  /** Removes a run and everything of it. */
  purge(n: number): void {
    this.kept.drop(n);
    for (const table of [
      'run_docs',
      'run_metadata',
      'events',
      'endings',
      'history',
      'responses',
      'state_values',
      'state_now',
      'checkpoints',
      'tool_calls',
      'idempotency',
    ]) {
      this.sql(`DELETE FROM ${table} WHERE run = ?`).run(n);
    }
    this.sql('DELETE FROM runs WHERE n = ?').run(n);
  }
}
