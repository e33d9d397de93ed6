import type { LoopDeps } from '../agent/attempt.js';
import type { ModelRequest } from '../agent/hooks.js';
import { runAttempt } from '../agent/loop.js';
import { MemoryJournal, newState } from '../agent/memory-journal.js';
import { type HistoryItem, isInternalMessage } from '../agent/messages.js';
import type { ModelHandle } from '../agent/model.js';
import { ModelCallError } from '../agent/run-errors.js';
import type { AgentResolver } from './agent-registry.js';

export interface PreviewDeps {
  readonly loop: Omit<LoopDeps, 'agent'>;
  readonly dataDir: string;
}

/** What the first model request of a run would be, and which shim changed what. */
export interface Preview {
  /** Null when the run would fail before it. */
  readonly request: unknown;
  readonly effects: readonly unknown[];
  readonly error: unknown;
}

/**
 * Runs an agent up to its first model call and no further: nothing is stored and no model is called. The shims' callbacks
 * really run, so what they do outside is done; one that calls a model or an agent itself gets an error.
 */
export async function previewAgent(
  { loop, dataDir }: PreviewDeps,
  preview: {
    readonly name: string;
    readonly resolver: AgentResolver;
    readonly items: readonly HistoryItem[];
    readonly key: string | null;
  },
): Promise<Preview> {
  let request: unknown = null;
  const { name, resolver, items, key } = preview;
  const signal = new AbortController().signal;
  const saved = newState(name, resolver(name).descriptor.instructions, items);
  const journal = new MemoryJournal({ runId: 'preview', saved, now: () => loop.clock.now(), signal });
  const capture = {
    onLlmStart: (_task: unknown, asked: ModelRequest) => {
      request ??= shownRequest(asked);
    },
  };
  await runAttempt(
    { runId: 'preview', depth: 0, metadata: {}, key, dataDir, limits: {}, saved, recovered: false, signal, journal },
    {
      ...loop,
      hostHooks: [...loop.hostHooks, capture],
      models: { resolve: (id) => withoutCalls(loop.models.resolve(id)) },
      agent: resolver,
      modelMaxRetries: 0,
      spawn: async () => Promise.reject(new PreviewOnlyError()),
    },
  );
  const effects = journal.events
    .filter((event) => event.type === 'shim.effect')
    .map(({ turn, shim, callback, changes, ms }) => ({ turn: turn ?? null, shim, callback, changes, ms }));
  const error = request === null && journal.end?.status === 'failed' ? journal.end.error : null;
  return { request, effects, error };
}

/** The request in our own words, as it is before a provider's dialect; internal messages are left out and counted (R90). */
function shownRequest({ model, messages, tools, modelArgs, output }: ModelRequest): object {
  const shown = messages.filter((message) => !isInternalMessage(message));
  const { tools: list = [], ...settings } = tools ?? {};
  return {
    model,
    messages: shown,
    internalMessages: messages.length - shown.length,
    tools: list.map(({ name, description, inputSchema }) => ({ name, description, inputSchema })),
    ...settings,
    modelArgs: modelArgs ?? {},
    ...(output === undefined ? {} : { output }),
  };
}

function withoutCalls(handle: ModelHandle): ModelHandle {
  const refuse = async (): Promise<never> => Promise.reject(new PreviewOnlyError());
  const { provider, modelId } = handle.languageModel;
  return {
    ...handle,
    languageModel: {
      specificationVersion: 'v3',
      provider,
      modelId,
      supportedUrls: {},
      doGenerate: refuse,
      doStream: refuse,
    },
    failureOf: () =>
      new ModelCallError({ code: 'model_error', message: new PreviewOnlyError().message, retryable: false }),
  };
}

class PreviewOnlyError extends Error {
  constructor() {
    super('A preview calls no model and runs no other agent.');
    this.name = 'PreviewOnlyError';
  }
}
