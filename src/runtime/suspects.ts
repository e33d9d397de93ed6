import { setTimeout as sleep } from 'node:timers/promises';
import type { RunRow } from '../store/run-rows.js';
import type { RunStore } from '../store/run-store.js';
import type { Writer } from '../store/writer.js';

/** How long one suspect may have the process to itself, in milliseconds, and all of them together. */
const LONGEST_TRIAL_MS = 1000;
const ALL_TRIALS_MS = 5000;
const LOOK_MS = 20;
/** A run that was recovered so often is not acquitted any more: it may kill later than a trial takes. */
const MAX_RECOVERIES = 6;

/**
 * Runs on which the process died so often that one more death would give them up. One of them may be the poison and the others
 * only have been there, so they go on one after the other: a death in that time counts for the one that was on trial. Whoever
 * makes progress is a suspect no longer; whoever merely survives its trial gets the count of that execution back.
 *
 * @param recover begins the execution of one
 */
export async function tryOneByOne(
  suspects: readonly RunRow[],
  deps: {
    readonly store: RunStore;
    readonly writer: Writer;
    readonly signal: AbortSignal;
    recover(row: RunRow): Promise<void>;
  },
): Promise<void> {
  const trialMs = Math.min(LONGEST_TRIAL_MS, ALL_TRIALS_MS / suspects.length);
  // The last one to have done something is the likeliest, and tried before the others are counted again.
  for (const suspect of suspects.toSorted((a, b) => b.updated_at - a.updated_at)) {
    if (deps.signal.aborted) return;
    await deps.recover(suspect);
    if (suspects.length > 1) await trial(suspect, trialMs, deps);
  }
}

async function trial(
  suspect: RunRow,
  trialMs: number,
  { store, writer, signal }: { readonly store: RunStore; readonly writer: Writer; readonly signal: AbortSignal },
): Promise<void> {
  const counted = suspect.crashes + 1;
  const onTrial = (): boolean => {
    const row = store.find(suspect.id);
    return row?.status === 'running' && row.crashes === counted;
  };
  const endAt = performance.now() + trialMs;
  while (performance.now() < endAt) {
    if (signal.aborted || !onTrial()) return;
    await sleep(LOOK_MS);
  }
  if (suspect.recoveries >= MAX_RECOVERIES) return;
  await writer.run(
    () => {
      store.acquit(suspect.n, counted);
    },
    { patient: true },
  );
}
