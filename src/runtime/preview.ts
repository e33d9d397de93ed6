import type { LoopDeps } from '../agent/attempt.js';
import { runAttempt } from '../agent/loop.js';
import { MemoryJournal, newState } from '../agent/memory-journal.js';
import { isInternalMessage, type HistoryItem } from '../agent/messages.js';
import type { ModelHandle } from '../agent/model.js';
import { ModelCallError } from '../agent/run-errors.js';
import type { AgentResolver } from './agent-registry.js';

export interface PreviewDeps {
  readonly loop: Omit<LoopDeps, 'agent'>;
  readonly dataDir: string;
}

/** What the first model request of a run would be, and which shim changed what. */
export interface Preview {
  readonly request: unknown;
  readonly effects: readonly unknown[];
  readonly error: unknown;
}

/**
 * Runs an agent up to its first model call and no further: nothing is stored and no model is called. The shims' callbacks
 * really run, so what they do outside is done.
 */
export async function previewAgent(
  { loop, dataDir }: PreviewDeps,
  preview: { readonly name: string; readonly resolver: AgentResolver; readonly items: readonly HistoryItem[]; readonly key: string | null },
): Promise<Preview> {
  let request: unknown = null;
  const signal = new AbortController().signal;
  const saved = newState(preview.name, preview.resolver(preview.name).descriptor.instructions, preview.items);
  const journal = new MemoryJournal({ runId: 'preview', saved, now: () => loop.clock.now(), signal });
  const capture = (handle: ModelHandle): ModelHandle => ({
    ...handle,
    languageModel: {
      ...handle.languageModel,
      specificationVersion: 'v3',
      provider: handle.languageModel.provider,
      modelId: handle.languageModel.modelId,
      supportedUrls: {},
      doGenerate: async () => Promise.reject(new PreviewDone()),
      doStream: async ({ abortSignal: _signal, ...options }) => {
        request = { model: handle.id, ...options };
        return Promise.reject(new PreviewDone());
      },
    },
    failureOf: () => new ModelCallError({ code: 'model_error', message: 'preview', retryable: false }),
  });
  await runAttempt(
    { runId: 'preview', depth: 0, metadata: {}, key: preview.key, dataDir, limits: {}, saved, recovered: false, signal, journal },
    { ...loop, models: { resolve: (id) => capture(loop.models.resolve(id)) }, agent: preview.resolver, modelMaxRetries: 0, spawn: async () => Promise.reject(new PreviewDone()) },
  );
  const internal = preview.items.filter((item) => isInternalMessage(item)).length;
  const effects = journal.events
    .filter((event) => event.type === 'shim.effect')
    .map(({ turn, shim, callback, changes, ms }) => ({ turn: turn ?? null, shim, callback, changes, ms }));
  const { end } = journal;
  const error = request === null && end?.status === 'failed' ? end.error : null;
  return { request: request === null ? null : { ...(request as object), internalMessages: internal }, effects, error };
}

class PreviewDone extends Error {
  constructor() {
    super('The preview ends before the model call.');
    this.name = 'PreviewDone';
  }
}
