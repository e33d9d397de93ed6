import type { EventBatch } from '../agent/event-frames.js';
import type { EventInput } from '../agent/events.js';
import { isoTime } from '../agent/iso-time.js';
import { CancelledFirstError, type Journal, type JournalEntry } from '../agent/journal.js';
import { HandedOverError } from '../agent/run-errors.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer, WriteSource } from '../store/writer.js';
import type { EventLog } from './event-log.js';

export interface RunJournalDeps {
  readonly store: RunStore;
  readonly writer: Writer;
  readonly eventLog: EventLog;
  readonly now: () => number;
}

/** The run that a journal writes for, and the epoch that gives it the right to. */
export interface OwnedRun {
  readonly n: number;
  readonly id: string;
  readonly attempt: number;
  readonly epoch: number;
}

/** A run further up, in whose stream a sub-agent's events are shown too. */
export interface Ancestor {
  readonly n: number;
  readonly id: string;
  readonly attempt: number;
  /** Its agents, outermost first; the last one has the conversation. */
  readonly agents: readonly string[];
}

interface Mirrored {
  readonly id: string;
  readonly batch: EventBatch;
}

interface Pending {
  readonly lines: string[];
  readonly entry: JournalEntry | undefined;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

const ignore = (): void => undefined;

/** An event as a stored line without its seq, which it gets when it is written. */
export function eventLine(
  event: EventInput,
  run: { readonly id: string; readonly attempt: number },
  nowMs: number,
): string {
  const { type, ...fields } = event;
  return JSON.stringify({
    type,
    runId: run.id,
    attempt: run.attempt,
    at: isoTime(nowMs),
    ...fields,
  }).slice(1);
}

/**
 * The journal of a run that is being driven: what the loop records is written in order, with the commits of all other runs,
 * under the run's epoch; watchers are told after the commit. A storage fault is waited out: the commits stay pending, so the
 * run pauses where it is.
 */
export class RunJournal implements Journal, WriteSource {
  readonly patient = true;
  readonly #deps: RunJournalDeps;
  readonly #run: OwnedRun;
  readonly #onLost: (error: HandedOverError) => void;
  readonly #responseIds: Set<string>;
  readonly #ancestors: readonly Ancestor[];
  #mirrored: readonly Mirrored[] = [];
  #queue: Pending[] = [];
  #plan:
    | {
        readonly written: readonly Pending[];
        readonly refused: readonly Pending[];
        readonly batch: EventBatch;
      }
    | undefined;
  #lost: HandedOverError | undefined;
  /** Set to stop the attempt at its next checkpoint. */
  onCheckpoint: (() => void) | undefined;

  constructor(
    deps: RunJournalDeps,
    run: OwnedRun,
    options: {
      readonly ancestors: readonly Ancestor[];
      readonly responseIds: Iterable<string>;
      readonly onLost: (error: HandedOverError) => void;
    },
  ) {
    this.#deps = deps;
    this.#run = run;
    this.#ancestors = options.ancestors;
    this.#responseIds = new Set(options.responseIds);
    this.#onLost = options.onLost;
  }

  note(event: EventInput): void {
    if (this.#lost !== undefined) return;
    const line = eventLine(event, this.#run, this.#deps.now());
    const last = this.#queue.at(-1);
    if (last !== undefined && last.entry === undefined) last.lines.push(line);
    else this.#queue.push({ lines: [line], entry: undefined, resolve: ignore, reject: ignore });
    this.#deps.writer.lazy(this);
  }

  async commit(entry: JournalEntry): Promise<void> {
    if (this.#lost !== undefined) throw this.#lost;
    const nowMs = this.#deps.now();
    const lines = entry.events.map((event) => eventLine(event, this.#run, nowMs));
    await new Promise<void>((resolve, reject) => {
      this.#queue.push({ lines, entry, resolve, reject });
      if (entry.unhurried === true) this.#deps.writer.lazy(this);
      else this.#deps.writer.urgent(this);
    });
    // Behind one that could wait the loop has gone on: to hand over there would cut what it does now.
    if (entry.checkpoint !== undefined && entry.checkpoint.busy !== true && entry.unhurried !== true)
      this.onCheckpoint?.();
  }

  write(): void {
    const { store } = this.#deps;
    const nowMs = this.#deps.now();
    const refused = this.#queue.filter((pending) => this.#comesTooLate(pending));
    const written = this.#queue.filter((pending) => !refused.includes(pending));
    const lines = written.flatMap((pending) => pending.lines);
    const batch = store.appendEvents(this.#run.n, this.#run.epoch, lines, nowMs);
    let seq = batch.firstSeq - 1;
    for (const { lines: own, entry } of written) {
      seq += own.length;
      if (entry === undefined) continue;
      for (const response of entry.checkpoint?.responses ?? []) this.#responseIds.add(response.modelCallId);
      if (entry.checkpoint !== undefined)
        store.applyCheckpoint(this.#run.n, entry.checkpoint, {
          seq,
          nowMs,
          responseIds: this.#responseIds,
          ends: entry.end !== undefined,
        });
      if (entry.usage !== undefined) store.putUsage(this.#run.n, entry.usage);
      if (entry.end !== undefined) store.applyEnd(this.#run.n, entry.end, { seq, attempt: this.#run.attempt, nowMs });
    }
    this.#plan = { written, refused, batch };
    this.#mirrored = this.#ancestors.flatMap((ancestor) => this.#mirror(ancestor, lines, nowMs));
  }

  /** Shows the events in an ancestor's stream, marked with this run's id; the run's own beginning and end stay its own. */
  #mirror(ancestor: Ancestor, lines: readonly string[], nowMs: number): Mirrored[] {
    const shown = lines.filter((line) => !line.startsWith('"type":"run.'));
    if (shown.length === 0) return [];
    const { id, attempt } = this.#run;
    const own = `"runId":${JSON.stringify(id)},"attempt":${attempt}`;
    const marks = `"runId":${JSON.stringify(ancestor.id)},"childRunId":${JSON.stringify(id)},"attempt":${ancestor.attempt}`;
    const marked = shown.map((line) => line.replace(own, () => marks));
    const batch = this.#deps.store.appendMirrored(ancestor.n, marked, nowMs);
    return batch === undefined ? [] : [{ id: ancestor.id, batch }];
  }

  /** Resolves when nothing is waiting to be written any more. */
  async settled(): Promise<void> {
    if (this.#queue.length > 0 && this.#lost === undefined) await this.commit({ events: [] });
  }

  /** A settlement or an end that a cancel has overtaken: the cancel stands. */
  #comesTooLate({ entry }: Pending): boolean {
    const finishes =
      entry?.checkpoint?.settles === true || (entry?.end !== undefined && entry.end.status !== 'cancelled');
    return finishes && this.#deps.store.isCancelling(this.#run.n);
  }

  committed(): void {
    const plan = this.#plan;
    if (plan === undefined) return;
    this.#plan = undefined;
    const done = new Set<Pending>([...plan.written, ...plan.refused]);
    this.#queue = this.#queue.filter((pending) => !done.has(pending));
    this.#deps.eventLog.publish(this.#run.id, plan.batch);
    for (const { id, batch } of this.#mirrored) this.#deps.eventLog.publish(id, batch);
    this.#mirrored = [];
    for (const pending of plan.written) pending.resolve();
    for (const pending of plan.refused) pending.reject(new CancelledFirstError());
  }

  /** The write was refused: somebody else owns the run now, or a fact contradicts another. This attempt writes nothing more. */
  failed(error: unknown): void {
    const lost =
      error instanceof HandedOverError
        ? error
        : new HandedOverError(
            `run ${this.#run.id}: a write was refused: ${error instanceof Error ? error.message : String(error)}`,
          );
    this.#lost = lost;
    this.#plan = undefined;
    const queue = this.#queue;
    this.#queue = [];
    this.#onLost(lost);
    for (const pending of queue) pending.reject(lost);
  }
}
