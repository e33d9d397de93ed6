import { eventsOf } from '../agent/event-frames.js';

/** Rows of a log that are looked at from its end: what an attempt was doing when it broke off. */
export const TAIL_ROWS = 256;

interface TailEvent {
  readonly at?: string;
  readonly model?: string;
  readonly modelCallId?: string;
  readonly replaces?: string;
  readonly kind?: string;
  readonly text?: string;
}

/**
 * The model call that a crash interrupted after its deltas had been sent: the next one says that it replaces it.
 * @param rows frames of the newest rows of the log, newest first
 */
export function interruptedModelCall(rows: readonly string[]): string | undefined {
  for (const frames of rows) {
    for (const { type, json } of eventsOf(frames).toReversed()) {
      if (ofChild(json)) continue;
      const event = (): TailEvent => JSON.parse(json) as TailEvent;
      if (type === 'model.delta') return event().modelCallId;
      if (type === 'model.started') return event().replaces;
      if (type === 'model.completed' || type === 'turn.completed' || type === 'run.started' || type === 'run.resumed')
        return undefined;
    }
  }
  return undefined;
}

/**
 * The text of the model call that was in progress where the log ends, as clients saw it; null when there was none.
 * @param rows frames of the newest rows of the log, newest first
 */
export function partialText(rows: readonly string[]): string | null {
  const pieces: string[] = [];
  for (const frames of rows) {
    for (const { type, json } of eventsOf(frames).toReversed()) {
      if (ofChild(json)) continue;
      if (type === 'model.delta') {
        const { kind, text = '' } = JSON.parse(json) as TailEvent;
        if (kind === 'text') pieces.push(text);
      } else if (BOUNDARIES.has(type)) return pieces.length === 0 ? null : pieces.toReversed().join('');
    }
  }
  return pieces.length === 0 ? null : pieces.toReversed().join('');
}

/** Whether an event shows what a sub-agent did: that is in the log of its own run too, and is nothing that this run did. */
function ofChild(json: string): boolean {
  return /^\{"seq":\d+,"type":"[^"]*","runId":"[^"]*","childRunId":/.test(json);
}

const BOUNDARIES = new Set([
  'model.started',
  'model.completed',
  'turn.completed',
  'run.started',
  'run.resumed',
  'run.created',
  'run.waiting',
]);

/**
 * What a cancel that a crash overtook had found: when it was asked for, and the model call that was open then.
 * @param rows frames of the newest rows of the log, newest first
 */
export function interruptedCancel(rows: readonly string[]): {
  readonly requestedAt: string | undefined;
  readonly model: { readonly id: string; readonly name: string } | undefined;
} {
  let requestedAt: string | undefined;
  for (const frames of rows) {
    for (const { type, json } of eventsOf(frames).toReversed()) {
      if (ofChild(json)) continue;
      const {
        at,
        modelCallId = '',
        model = '',
      } = type === 'run.cancelling' || type === 'model.started' ? (JSON.parse(json) as TailEvent) : {};
      if (type === 'run.cancelling') requestedAt = at;
      else if (type === 'model.started') return { requestedAt, model: { id: modelCallId, name: model } };
      else if (BOUNDARIES.has(type)) return { requestedAt, model: undefined };
    }
  }
  return { requestedAt, model: undefined };
}
