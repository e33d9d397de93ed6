import { z } from 'zod';
import {
  type HistoryDelta,
  type Position,
  PositionSchema,
  type SavedState,
  type ToolCallRecord,
  ToolCallRecordSchema,
} from '../agent/journal.js';
import {
  type HistoryItem,
  ItemKindSchema,
  isEphemeral,
  kindOf,
  type ModelResponse,
  reviveItem,
} from '../agent/messages.js';
import { UsageSchema } from '../agent/model.js';
import { PromptSpecSchema } from '../agent/template.js';
import { ConversationCache, type ReadConversation, type ReadPart } from './conversation-cache.js';
import { type DocKind, type RunRow, RunRowSchema } from './run-rows.js';
import { Statements } from './statements.js';

const CheckpointRowSchema = z.object({
  n: z.int(),
  run: z.int(),
  seq: z.int(),
  turn: z.int(),
  at: z.int(),
  turn_count: z.int(),
  turn_end: z.int(),
  history_gen: z.int(),
  history_n: z.int(),
  history_length: z.int(),
  state_n: z.int(),
  response_n: z.int(),
  agent: z.string(),
  seen_agents: z.string(),
});
export type CheckpointRow = z.infer<typeof CheckpointRowSchema>;

/**
 * What a run's conversation is made of: documents, history, responses, state, open tool calls, checkpoints. All but the documents
 * and the open calls only grow; a checkpoint remembers how far each had grown.
 */
export class ConversationStore extends Statements {
  protected readonly kept = new ConversationCache();
  readonly #read = new WeakMap<SavedState, ReadConversation>();

  putDoc(n: number, kind: DocKind, body: string | undefined): void {
    if (body === undefined) this.sql('DELETE FROM run_docs WHERE run = ? AND kind = ?').run(n, kind);
    else
      this.sql(
        'INSERT INTO run_docs (run, kind, body) VALUES (?, ?, ?) ON CONFLICT (run, kind) DO UPDATE SET body = excluded.body',
      ).run(n, kind, body);
  }

  doc(n: number, kind: DocKind): string | undefined {
    return this.sql('SELECT body FROM run_docs WHERE run = ? AND kind = ?').pluck().get(n, kind) as string | undefined;
  }

  position(n: number): Position {
    return PositionSchema.parse(JSON.parse(this.doc(n, 'position') ?? 'null'));
  }

  /** Everything that the loop takes up, read back as it was stored. */
  load(n: number): SavedState {
    const row = RunRowSchema.parse(this.sql('SELECT * FROM runs WHERE n = ?').get(n));
    const known = this.kept.get(n);
    const responses = this.#readResponses(n, known?.responses ?? NOTHING);
    const { history, lasting } = this.#readHistory(row, {
      known: known?.gen === row.history_gen ? known.history : NOTHING,
      responses: responses.all,
    });
    const { instructions, state } = this.#loadState(n);
    const saved: SavedState = {
      instructions,
      history,
      responses: responses.all,
      state,
      turnCount: row.turn_count,
      usage: UsageSchema.parse(JSON.parse(row.usage)),
      position: this.position(n),
      toolCalls: this.calls(n),
    };
    this.#read.set(saved, { run: n, gen: row.history_gen, history: lasting, responses });
    return saved;
  }

  /** The transaction that read this is committed: from now on `load` reads only what comes after it. */
  keep(saved: SavedState): void {
    const read = this.#read.get(saved);
    if (read !== undefined) this.kept.keep(read);
  }

  #readResponses(n: number, known: ReadPart<ModelResponse>): ReadPart<ModelResponse> {
    const rows = this.sql('SELECT n, body FROM responses WHERE run = ? AND n > ? ORDER BY n').all(n, known.n) as {
      n: number;
      body: string;
    }[];
    return extended(
      known,
      rows.map((row) => ({ ...row, value: reviveItem('response', row.body) as ModelResponse })),
    );
  }

  /** The whole history, and its beginning up to the first ephemeral message: what follows moves up when that one goes. */
  #readHistory(
    row: RunRow,
    { known, responses }: { readonly known: ReadPart<HistoryItem>; readonly responses: readonly ModelResponse[] },
  ): { readonly history: readonly HistoryItem[]; readonly lasting: ReadPart<HistoryItem> } {
    const rows = this.sql(
      'SELECT n, kind, ephemeral, body FROM history WHERE run = ? AND gen = ? AND n > ? AND gone = 0 ORDER BY n',
    ).all(row.n, row.history_gen, known.n) as { n: number; kind: string; ephemeral: number; body: string }[];
    const byCall = new Map(rows.length === 0 ? [] : responses.map((response) => [response.modelCallId, response]));
    const read = rows.map((each) => ({ ...each, value: revive(each.kind, each.body, byCall) }));
    const passing = read.findIndex(({ ephemeral }) => ephemeral === 1);
    const lasting = extended(known, passing < 0 ? read : read.slice(0, passing));
    const rest = passing < 0 ? [] : read.slice(passing).map(({ value }) => value);
    return { history: rest.length === 0 ? lasting.all : [...lasting.all, ...rest], lasting };
  }

  #loadState(n: number): Pick<SavedState, 'instructions' | 'state'> {
    const rows = this.sql('SELECT name, body FROM state_now WHERE run = ?').all(n) as { name: string; body: string }[];
    const state = new Map<string, string>();
    let instructions: SavedState['instructions'] = '';
    for (const { name, body } of rows) {
      if (name === 'instructions') instructions = z.union([z.string(), PromptSpecSchema]).parse(JSON.parse(body));
      else state.set(name.slice('state:'.length), body);
    }
    return { instructions, state };
  }

  putCall(n: number, call: ToolCallRecord): void {
    this.sql(
      'INSERT INTO tool_calls (run, tool_call_id, idx, body) VALUES (?, ?, ?, ?) ON CONFLICT (run, tool_call_id) DO UPDATE SET body = excluded.body',
    ).run(n, call.toolCallId, call.index, JSON.stringify(call));
  }

  calls(n: number): ToolCallRecord[] {
    const rows = this.sql('SELECT body FROM tool_calls WHERE run = ? ORDER BY idx').pluck().all(n) as string[];
    return rows.map((body) => ToolCallRecordSchema.parse(JSON.parse(body)));
  }

  dropCalls(n: number): void {
    this.sql('DELETE FROM tool_calls WHERE run = ?').run(n);
  }

  /** Adds items to a history outside an attempt (a resume's input). */
  appendItems(n: number, items: readonly HistoryItem[]): void {
    this.append(n, this.#gen(n), items);
  }

  dropEphemeral(n: number): void {
    const gen = this.#gen(n);
    const { changes } = this.sql(
      'UPDATE history SET gone = 1 WHERE run = ? AND gen = ? AND ephemeral = 1 AND gone = 0',
    ).run(n, gen);
    if (changes > 0) this.sql('UPDATE runs SET history_length = history_length - ? WHERE n = ?').run(changes, n);
  }

  #gen(n: number): number {
    return this.sql('SELECT history_gen FROM runs WHERE n = ?').pluck().get(n) as number;
  }

  protected applyHistory(n: number, delta: HistoryDelta | undefined, stored: ReadonlySet<string>): void {
    if (delta === undefined) return;
    if (delta.mode === 'replace') {
      const gen = this.sql(
        'UPDATE runs SET history_gen = history_gen + 1, history_length = 0 WHERE n = ? RETURNING history_gen',
      )
        .pluck()
        .get(n) as number;
      this.append(n, gen, delta.items, stored);
      return;
    }
    if (delta.dropEphemeral) this.dropEphemeral(n);
    if (delta.items.length > 0) this.append(n, this.#gen(n), delta.items, stored);
  }

  protected append(
    n: number,
    gen: number,
    items: readonly HistoryItem[],
    stored: ReadonlySet<string> = NO_RESPONSES,
  ): void {
    if (items.length === 0) return;
    const insert = this.sql('INSERT INTO history (run, gen, kind, ephemeral, body) VALUES (?, ?, ?, ?, ?)');
    let last: number | bigint = 0;
    for (const item of items)
      last = insert.run(n, gen, kindOf(item), isEphemeral(item) ? 1 : 0, bodyOf(item, stored)).lastInsertRowid;
    this.sql('UPDATE runs SET history_length = history_length + ?, history_n = ? WHERE n = ?').run(
      items.length,
      last,
      n,
    );
  }

  protected putState(n: number, name: string, body: string | null): void {
    const { lastInsertRowid } = this.sql('INSERT INTO state_values (run, name, body) VALUES (?, ?, ?)').run(
      n,
      name,
      body,
    );
    if (body === null) this.sql('DELETE FROM state_now WHERE run = ? AND name = ?').run(n, name);
    else
      this.sql(
        'INSERT INTO state_now (run, name, body) VALUES (?, ?, ?) ON CONFLICT (run, name) DO UPDATE SET body = excluded.body',
      ).run(n, name, body);
    this.sql('UPDATE runs SET state_n = ? WHERE n = ?').run(lastInsertRowid, n);
  }

  putPosition(n: number, position: Position): void {
    this.putDoc(n, 'position', JSON.stringify(position));
  }

  /** Marks a boundary from which a fork can start: it remembers how far each append-only table had grown for this run. */
  protected putCheckpoint(n: number, at: { seq: number; turnEnd: boolean; nowMs: number; position: Position }): void {
    this.sql(
      `INSERT INTO checkpoints (run, seq, turn, at, turn_count, turn_end, history_gen, history_n, history_length, state_n, response_n, agent, seen_agents)
       SELECT n, ?, turn_count, ?, turn_count, ?, history_gen, history_n, history_length, state_n, response_n, ?, ? FROM runs WHERE n = ?`,
    ).run(
      at.seq,
      at.nowMs,
      at.turnEnd ? 1 : 0,
      at.position.agents.at(-1) ?? '',
      JSON.stringify(at.position.seenAgents),
      n,
    );
  }

  /** Whether the history at a checkpoint ends in a user or tool message, so that a model call can follow at once. */
  endsOpen(n: number, checkpoint: CheckpointRow): boolean {
    const row = this.sql(
      'SELECT kind, body FROM history WHERE run = ? AND gen = ? AND n <= ? AND ephemeral = 0 ORDER BY n DESC LIMIT 1',
    ).get(n, checkpoint.history_gen, checkpoint.history_n) as { kind: string; body: string } | undefined;
    if (row === undefined || row.kind === 'response') return false;
    if (row.kind !== 'message') return true;
    const { role } = JSON.parse(row.body) as { role: string };
    return role === 'user' || role === 'tool';
  }

  /** A resume's or fork's input is a checkpoint of its own (R79). */
  markCheckpoint(n: number, seq: number, nowMs: number, position: Position): void {
    this.putCheckpoint(n, { seq, turnEnd: false, nowMs, position });
  }

  /** The checkpoint at the end of a model turn, or the last one there is; turn 0 is the creation. */
  checkpointAt(n: number, turn: number | undefined): CheckpointRow | undefined {
    const row =
      turn === undefined
        ? this.sql('SELECT * FROM checkpoints WHERE run = ? ORDER BY n DESC LIMIT 1').get(n)
        : this.sql(
            'SELECT * FROM checkpoints WHERE run = ? AND turn = ? AND (turn_end = 1 OR turn = 0) ORDER BY n LIMIT 1',
          ).get(n, turn);
    return row === undefined ? undefined : CheckpointRowSchema.parse(row);
  }

  protected copyState(n: number, source: number, checkpoint: CheckpointRow): void {
    this.sql(
      `INSERT INTO state_values (run, name, body) SELECT ?, name, body FROM state_values
       WHERE n IN (SELECT max(n) FROM state_values WHERE run = ? AND n <= ? GROUP BY name) AND body IS NOT NULL ORDER BY n`,
    ).run(n, source, checkpoint.state_n);
    this.sql('INSERT INTO responses (run, body) SELECT ?, body FROM responses WHERE run = ? AND n <= ? ORDER BY n').run(
      n,
      source,
      checkpoint.response_n,
    );
    this.sql(
      `INSERT INTO history (run, gen, kind, ephemeral, body) SELECT ?, 0, kind, 0, body FROM history
       WHERE run = ? AND gen = ? AND n <= ? AND ephemeral = 0 ORDER BY n`,
    ).run(n, source, checkpoint.history_gen, checkpoint.history_n);
    this.sql('INSERT INTO state_now (run, name, body) SELECT run, name, body FROM state_values WHERE run = ?').run(n);
    this.sql(
      `UPDATE runs SET history_length = (SELECT count(*) FROM history WHERE run = ?), response_count = (SELECT count(*) FROM responses WHERE run = ?),
         history_n = coalesce((SELECT max(n) FROM history WHERE run = ? AND gen = 0), 0), response_n = coalesce((SELECT max(n) FROM responses WHERE run = ?), 0),
         state_n = coalesce((SELECT max(n) FROM state_values WHERE run = ?), 0) WHERE n = ?`,
    ).run(n, n, n, n, n, n);
  }
}

const NO_RESPONSES: ReadonlySet<string> = new Set();
const NOTHING: ReadPart<never> = Object.freeze({ all: [], n: 0, chars: 0 });

function extended<T>(
  known: ReadPart<T>,
  rows: readonly { readonly n: number; readonly body: string; readonly value: T }[],
): ReadPart<T> {
  const last = rows.at(-1);
  if (last === undefined) return known;
  return {
    all: [...known.all, ...rows.map(({ value }) => value)],
    n: last.n,
    chars: rows.reduce((sum, { body }) => sum + body.length, known.chars),
  };
}

/** A response that stands in `responses` already is only named by the history, so that its bytes are written once. */
function bodyOf(item: HistoryItem, stored: ReadonlySet<string>): string {
  if (kindOf(item) !== 'response') return JSON.stringify(item);
  const { modelCallId } = item as ModelResponse;
  return JSON.stringify(stored.has(modelCallId) ? modelCallId : item);
}

function revive(kind: string, body: string, responses: ReadonlyMap<string, ModelResponse>): HistoryItem {
  const itemKind = ItemKindSchema.parse(kind);
  if (itemKind !== 'response') return reviveItem(itemKind, body);
  if (body.startsWith('{')) return reviveItem(itemKind, body);
  const response = responses.get(JSON.parse(body) as string);
  if (response === undefined) throw new Error(`The history names a response that is not there: ${body}`);
  return response;
}
