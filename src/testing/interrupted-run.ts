import type { LanguageModelV3 } from '@ai-sdk/provider';
import { systemClock } from '../agent/clock.js';
import { handleOf } from '../agent/default-agent.js';
import { AgentDescriptorSchema } from '../agent/descriptor.js';
import type { LifecycleEvent } from '../agent/events.js';
import type { AttemptEnd, SavedState } from '../agent/journal.js';
import { runAttempt } from '../agent/loop.js';
import { MemoryJournal, newState } from '../agent/memory-journal.js';
import { HandedOverError } from '../agent/run-errors.js';
import type { Shim } from '../agent/shim.js';
import type { Tool } from '../agent/tools.js';

const AGENT = 'contract';
const silent = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };

export interface AttemptSetup {
  readonly shims: readonly Shim[];
  readonly model: LanguageModelV3;
  readonly tools: readonly Tool[];
  readonly instructions: string;
  readonly dataDir: string;
}

export interface AttemptReport {
  readonly saved: SavedState;
  readonly end: AttemptEnd | undefined;
  readonly events: readonly LifecycleEvent[];
}

/** An attempt that begins a conversation and goes on to its end. */
export async function firstAttempt(setup: AttemptSetup, input: string): Promise<AttemptReport> {
  return attempt(setup, newState(AGENT, setup.instructions, [input]), false);
}

/** The attempt that a new process makes of what the store holds, with whatever sessions `setup` brings. */
export async function recoveredAttempt(setup: AttemptSetup, saved: SavedState): Promise<AttemptReport> {
  return attempt(setup, saved, true);
}

/** What the store holds when the server is killed as `killed` settles: the last checkpoint, and nothing that came after it. */
export async function attemptUntilKilled(
  setup: AttemptSetup,
  input: string,
  killed: Promise<void>,
): Promise<AttemptReport> {
  const process = new AbortController();
  const journal = journalFor(newState(AGENT, setup.instructions, [input]), process.signal);
  const running = drive(setup, journal, { recovered: false, signal: process.signal });
  await Promise.race([killed, running]);
  const [saved, events] = [journal.saved, [...journal.events]];
  process.abort(new HandedOverError('The process was killed.'));
  return { saved, events, end: await running };
}

async function attempt(setup: AttemptSetup, saved: SavedState, recovered: boolean): Promise<AttemptReport> {
  const { signal } = new AbortController();
  const journal = journalFor(saved, signal);
  const end = await drive(setup, journal, { recovered, signal });
  return { saved: journal.saved, events: journal.events, end };
}

function journalFor(saved: SavedState, signal: AbortSignal): MemoryJournal {
  return new MemoryJournal({ runId: 'contract-run', saved, now: () => Date.now(), signal });
}

async function drive(
  setup: AttemptSetup,
  journal: MemoryJournal,
  { recovered, signal }: { readonly recovered: boolean; readonly signal: AbortSignal },
): Promise<AttemptEnd | undefined> {
  const handle = handleOf(setup.model);
  const descriptor = AgentDescriptorSchema.parse({ name: AGENT, model: handle.id, instructions: setup.instructions });
  const shims = setup.shims.map((shim) => ({ name: shim.name, shim, hash: '' }));
  let ids = 0;
  return runAttempt(
    {
      runId: 'contract-run',
      depth: 0,
      metadata: {},
      key: null,
      dataDir: setup.dataDir,
      limits: {},
      saved: journal.saved,
      recovered,
      signal,
      journal,
    },
    {
      models: { resolve: () => handle },
      clock: systemClock,
      digest: (text) => text,
      log: silent,
      hostHooks: [],
      modelIdleTimeoutMs: 60_000,
      modelMaxRetries: 0,
      newId: () => `${recovered ? 'second' : 'first'}-${(ids += 1)}`,
      random: () => 0,
      agent: () => ({ descriptor, tools: setup.tools, shims }),
      spawn: async () => Promise.reject(new Error('No run is spawned here.')),
    },
  );
}
