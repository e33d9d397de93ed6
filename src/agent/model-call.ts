import type { LanguageModelV3CallOptions, LanguageModelV3StreamPart, LanguageModelV3Usage } from '@ai-sdk/provider';
import type { Clock } from './clock.js';
import type { ModelDelta, ModelRequest } from './hooks.js';
import { deepFreeze, wellFormed, type JsonValue } from './json.js';
import type { AssistantPart } from './messages.js';
import type { FinishReason, ModelHandle, Usage } from './model.js';
import type { ModelResponse } from './messages.js';
import { ModelCallError } from './run-errors.js';
import { sendable, toPrompt } from './sendable.js';
import type { ToolConfig } from './tool-set.js';

export interface ModelCallOptions {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Silence after which the call fails, from the request on. */
  readonly idleTimeoutMs: number;
  readonly modelCallId: string;
  /** What shims make of a delta before it is stored or shown; null holds it back. */
  readonly transform: ((delta: ModelDelta) => ModelDelta | null) | undefined;
  /** An id of our own for a call that the provider named with one that was used before or that no provider would take back. */
  callIdFor(providerId: string): string;
  onDelta(delta: ModelDelta): void;
  onRepairs(repairs: readonly string[]): void;
}

/** Arguments of a call that were no JSON object: the raw text, for the error that the model gets. */
export type BrokenArguments = ReadonlyMap<string, string>;

export interface CompletedCall {
  readonly response: ModelResponse;
  readonly brokenArguments: BrokenArguments;
}

/**
 * Makes one streamed model call and puts its parts together. The text of the message is the text of the transformed deltas,
 * so what was shown is what is kept.
 * @throws ModelCallError for everything that is no complete answer; the signal's reason when it aborted
 */
export async function callModel(handle: ModelHandle, request: ModelRequest, options: ModelCallOptions): Promise<CompletedCall> {
  const { signal, clock, idleTimeoutMs } = options;
  signal.throwIfAborted();
  const controller = new AbortController();
  const watch = new IdleWatch(clock, idleTimeoutMs);
  const stop = (): void => {
    controller.abort(signal.reason);
  };
  signal.addEventListener('abort', stop, { once: true });
  const silence = watch.start(() => {
    controller.abort(new DOMException('The model was silent for too long.', 'TimeoutError'));
  });
  const assembly = new Assembly(options);
  try {
    const { messages, repairs } = sendable(request.messages);
    if (repairs.length > 0) options.onRepairs(repairs);
    const opened = handle.languageModel.doStream(callOptions(handle, request, toPrompt(messages), controller.signal));
    const { stream } = await untilAborted(Promise.resolve(opened), controller.signal);
    watch.progress();
    await consume(stream, controller.signal, (part) => {
      watch.progress();
      assembly.add(part);
    });
    return assembly.finish(handle.id);
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    if (silence.fired) {
      throw new ModelCallError({ code: 'model_idle_timeout', message: `The model ${handle.id} was silent for ${idleTimeoutMs} ms.`, retryable: true, provider: handle.id.split('/')[0] });
    }
    if (error instanceof AssemblyError) throw error.cause;
    throw error instanceof ModelCallError ? error : handle.failureOf(error);
  } finally {
    silence.stop();
    signal.removeEventListener('abort', stop);
  }
}

/** An error of ours (a shim's transformDelta, a finish reason), not the provider's. */
class AssemblyError extends Error {
  declare readonly cause: unknown;
}

/** One timer per call: deltas only note the time, so a fast stream does not pay for timers. */
class IdleWatch {
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  #last: number;

  constructor(clock: Clock, timeoutMs: number) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
    this.#last = clock.now();
  }
  progress(): void {
    this.#last = this.#clock.now();
  }
  start(onSilence: () => void): { readonly fired: boolean; stop(): void } {
    const state = { fired: false, stop: (): void => undefined };
    const arm = (ms: number): void => {
      state.stop = this.#clock.after(ms, () => {
        const left = this.#last + this.#timeoutMs - this.#clock.now();
        if (left > 0) {
          arm(left);
          return;
        }
        state.fired = true;
        onSilence();
      });
    };
    arm(this.#timeoutMs);
    return state;
  }
}

async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const onAbort = (): void => {
      reject(signal.reason as Error);
    };
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) onAbort();
    promise.then(resolve, reject).finally(() => {
      signal.removeEventListener('abort', onAbort);
    });
  });
}

async function consume(stream: ReadableStream<LanguageModelV3StreamPart>, signal: AbortSignal, onPart: (part: LanguageModelV3StreamPart) => void): Promise<void> {
  const reader = stream.getReader();
  // Cancelling makes a pending read settle at once, so a provider that sends nothing cannot hold the run.
  const cancel = (): void => {
    reader.cancel(signal.reason).catch(() => undefined);
  };
  signal.addEventListener('abort', cancel, { once: true });
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (signal.aborted) throw signal.reason;
      if (done) return;
      onPart(value);
    }
  } catch (error) {
    cancel();
    throw error;
  } finally {
    signal.removeEventListener('abort', cancel);
  }
}

const STANDARD_ARGS = new Set(['maxOutputTokens', 'temperature', 'stopSequences', 'topP', 'topK', 'presencePenalty', 'frequencyPenalty', 'seed', 'headers', 'providerOptions']);

function callOptions(handle: ModelHandle, request: ModelRequest, prompt: LanguageModelV3CallOptions['prompt'], abortSignal: AbortSignal): LanguageModelV3CallOptions {
  const options: Record<string, unknown> = { prompt, abortSignal };
  const own: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(request.modelArgs ?? {})) (STANDARD_ARGS.has(name) ? options : own)[name] = value;
  if (Object.keys(own).length > 0) {
    // What the interface has no word for is the provider's own: it goes under its name.
    const provider = handle.languageModel.provider.split('.')[0] ?? handle.languageModel.provider;
    const given = (options['providerOptions'] ?? {}) as Record<string, Record<string, unknown>>;
    options['providerOptions'] = { ...given, [provider]: { ...own, ...given[provider] } };
  }
  if (request.tools !== null) Object.assign(options, toolOptions(request.tools));
  if (request.output !== undefined && handle.nativeStructuredOutput) options['responseFormat'] = { type: 'json', schema: request.output, name: 'answer' };
  return options as unknown as LanguageModelV3CallOptions;
}

const functionTools = new WeakMap<object, unknown>();

function toolOptions(config: ToolConfig): Record<string, unknown> {
  const tools = config.tools.map((tool) => {
    const known = functionTools.get(tool);
    if (known !== undefined) return known;
    const made = { type: 'function', name: tool.name, description: tool.description, inputSchema: tool.inputSchema };
    functionTools.set(tool, made);
    return made;
  });
  const { toolChoice } = config;
  if (toolChoice === undefined) return { tools };
  return { tools, toolChoice: typeof toolChoice === 'string' ? { type: toolChoice } : { type: 'tool', toolName: toolChoice.toolName } };
}

interface TextBlock {
  readonly type: 'text' | 'reasoning';
  text: string;
  providerOptions: unknown;
}
type Block = TextBlock | { readonly type: 'ready'; readonly part: AssistantPart };

class Assembly {
  readonly #options: ModelCallOptions;
  readonly #blocks: Block[] = [];
  readonly #open = new Map<string, TextBlock>();
  readonly #ids = new Map<string, string>();
  readonly #broken = new Map<string, string>();
  #finish: Extract<LanguageModelV3StreamPart, { type: 'finish' }> | undefined;
  #responseId: string | undefined;

  constructor(options: ModelCallOptions) {
    this.#options = options;
  }

  add(part: LanguageModelV3StreamPart): void {
    switch (part.type) {
      case 'text-start':
      case 'reasoning-start':
        this.#block(part.type === 'text-start' ? 'text' : 'reasoning', part.id).providerOptions = part.providerMetadata;
        break;
      case 'text-delta':
        this.#delta('text', part.id, part.delta);
        break;
      case 'reasoning-delta':
        this.#delta('reasoning', part.id, part.delta);
        if (part.providerMetadata !== undefined) this.#block('reasoning', part.id).providerOptions = part.providerMetadata;
        break;
      case 'text-end':
      case 'reasoning-end': {
        const key = `${part.type === 'text-end' ? 'text' : 'reasoning'}:${part.id}`;
        const block = this.#open.get(key);
        if (block !== undefined && part.providerMetadata !== undefined) block.providerOptions = part.providerMetadata;
        this.#open.delete(key);
        break;
      }
      case 'tool-input-start':
        this.#callId(part.id);
        break;
      case 'tool-input-delta':
        this.#show({ kind: 'toolInput', text: part.delta, toolCallId: this.#callId(part.id) });
        break;
      case 'tool-call':
        if (part.providerExecuted !== true) this.#toolCall(part);
        break;
      case 'file':
        if (typeof part.data === 'string') this.#blocks.push({ type: 'ready', part: { type: 'file', data: part.data, mediaType: part.mediaType } });
        break;
      case 'response-metadata':
        this.#responseId = part.id ?? this.#responseId;
        break;
      case 'finish':
        this.#finish = part;
        break;
      case 'error':
        throw part.error;
      case 'tool-input-end':
      case 'stream-start':
      case 'source':
      case 'tool-result':
      case 'tool-approval-request':
      case 'raw':
        break;
    }
  }

  #block(type: 'text' | 'reasoning', id: string): TextBlock {
    const key = `${type}:${id}`;
    const known = this.#open.get(key);
    if (known !== undefined) return known;
    const block = { type, text: '', providerOptions: undefined as unknown };
    this.#open.set(key, block);
    this.#blocks.push(block);
    return block;
  }

  #delta(kind: 'text' | 'reasoning', id: string, text: string): void {
    const block = this.#block(kind, id);
    if (text !== '') block.text += this.#show({ kind, text });
  }

  /** Shows what the shims make of a delta and returns the text that was shown. */
  #show(delta: ModelDelta): string {
    let shown: ModelDelta | null = delta;
    if (this.#options.transform !== undefined) {
      try {
        shown = this.#options.transform(delta);
      } catch (error) {
        throw new AssemblyError('transformDelta', { cause: error });
      }
    }
    if (shown === null || shown.text === '' || shown.kind === 'flush') return '';
    this.#options.onDelta(shown);
    return shown.text;
  }

  #callId(providerId: string): string {
    const known = this.#ids.get(providerId);
    if (known !== undefined) return known;
    const id = this.#options.callIdFor(providerId);
    this.#ids.set(providerId, id);
    return id;
  }

  #toolCall(part: Extract<LanguageModelV3StreamPart, { type: 'tool-call' }>): void {
    const toolCallId = this.#callId(part.toolCallId);
    // The provider may name a second call alike: the next one gets an id of its own.
    this.#ids.delete(part.toolCallId);
    const input = parseArguments(part.input);
    if (input === undefined) this.#broken.set(toolCallId, part.input);
    const providerOptions = part.providerMetadata === undefined ? {} : { providerOptions: part.providerMetadata as never };
    this.#blocks.push({ type: 'ready', part: { type: 'tool-call', toolCallId, toolName: part.toolName, input: (input ?? {}) as never, ...providerOptions } });
  }

  finish(modelId: string): CompletedCall {
    if (this.#options.transform !== undefined) this.#flush();
    const finish = this.#finish;
    if (finish === undefined) {
      throw new ModelCallError({ code: 'model_stream_cut', message: `The answer of ${modelId} was cut off before its end.`, retryable: true, provider: modelId.split('/')[0] });
    }
    const parts = this.#blocks.flatMap(toPart);
    const calls = parts.some((part) => part.type === 'tool-call');
    const finishReason = finishReasonOf(finish.finishReason, calls, modelId);
    if (finishReason === 'stop' && !calls && !parts.some((part) => part.type === 'file' || (part.type === 'text' && part.text.trim() !== ''))) {
      throw new ModelCallError({ code: 'model_behaviour', message: `The model ${modelId} gave an empty answer.`, retryable: true, provider: modelId.split('/')[0] });
    }
    const { modelCallId } = this.#options;
    const [only] = parts;
    const plain = parts.length === 1 && only?.type === 'text' && only.providerOptions === undefined;
    const metadata = finish.providerMetadata;
    const response: ModelResponse = deepFreeze({
      id: this.#responseId ?? modelCallId,
      modelCallId,
      modelId,
      message: { role: 'assistant', content: plain ? only.text : parts },
      finishReason,
      usage: usageOf(finish.usage),
      ...(metadata === undefined || Object.keys(metadata).length === 0 ? {} : { providerMetadata: JSON.parse(JSON.stringify(metadata)) as Record<string, JsonValue> }),
    });
    return { response, brokenArguments: this.#broken };
  }

  #flush(): void {
    const last = this.#blocks.findLast((block): block is TextBlock => block.type === 'text');
    let held: ModelDelta | null;
    try {
      held = this.#options.transform?.({ kind: 'flush', text: '' }) ?? null;
    } catch (error) {
      throw new AssemblyError('transformDelta', { cause: error });
    }
    if (held === null || held.text === '') return;
    const kind = held.kind === 'flush' ? 'text' : held.kind;
    this.#options.onDelta({ ...held, kind });
    if (kind !== 'text') return;
    if (last === undefined) this.#blocks.push({ type: 'text', text: held.text, providerOptions: undefined });
    else last.text += held.text;
  }
}

function toPart(block: Block): AssistantPart[] {
  if (block.type === 'ready') return [block.part];
  const providerOptions = block.providerOptions === undefined ? {} : { providerOptions: block.providerOptions as never };
  if (block.text === '' && block.providerOptions === undefined) return [];
  return [{ type: block.type, text: wellFormed(block.text), ...providerOptions }];
}

/** Arguments as an object; undefined when they are none. Empty text counts as no arguments. */
function parseArguments(text: string): Record<string, JsonValue> | undefined {
  if (text.trim() === '') return {};
  try {
    const value = JSON.parse(text) as unknown;
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined;
    return wellFormed(value as Record<string, JsonValue>);
  } catch {
    return undefined;
  }
}

function finishReasonOf(finish: { readonly unified: string; readonly raw: string | undefined }, calls: boolean, modelId: string): FinishReason {
  switch (finish.unified) {
    case 'stop':
      return calls ? 'tool-calls' : 'stop';
    case 'tool-calls':
      return 'tool-calls';
    case 'length':
      return 'length';
    case 'content-filter':
      return 'refusal';
    default:
      break;
  }
  const provider = modelId.split('/')[0];
  if (finish.raw === undefined) {
    throw new ModelCallError({ code: 'model_stream_cut', message: `The answer of ${modelId} ended without a finish reason.`, retryable: true, provider });
  }
  if (/refusal|content_filter|safety/i.test(finish.raw)) return 'refusal';
  if (/context/i.test(finish.raw)) {
    throw new ModelCallError({ code: 'context_exceeded', message: `The model ${modelId} stopped: ${finish.raw}.`, retryable: false, provider });
  }
  throw new ModelCallError({ code: 'model_error', message: `The model ${modelId} stopped for an unknown reason: ${finish.raw}.`, retryable: false, provider, providerCode: finish.raw });
}

function usageOf(usage: LanguageModelV3Usage): Usage {
  const inputTokens = usage.inputTokens.total ?? 0;
  const outputTokens = usage.outputTokens.total ?? 0;
  return {
    inputTokens,
    outputTokens,
    totalTokens: inputTokens + outputTokens,
    cachedInputTokens: usage.inputTokens.cacheRead ?? 0,
    reasoningTokens: usage.outputTokens.reasoning ?? 0,
  };
}
