import type { LanguageModelV3CallOptions, LanguageModelV3StreamPart } from '@ai-sdk/provider';
import { AnswerAssembly, type AnswerListener, AssemblyError, type CompletedCall } from './answer-assembly.js';
import type { Clock } from './clock.js';
import type { ModelRequest } from './hooks.js';
import type { Message } from './messages.js';
import type { ModelHandle, PromptRules } from './model.js';
import { ModelCallError } from './run-errors.js';
import { sendable, toPrompt } from './sendable.js';
import type { ToolConfig } from './tool-set.js';

export interface ModelCallOptions extends AnswerListener {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Silence after which the call fails, from the request on. */
  readonly idleTimeoutMs: number;
  /** Models that have refused images and files, by id; added by the call that finds out, and heeded by those after it. */
  readonly media: { readonly refusedBy: Set<string> };
  /** The request is about to go out; `repairs` says in words what of the history could not be sent as it is. */
  onStart(repairs: readonly string[]): void;
}

/**
 * Makes one streamed model call and puts its parts together. The text of the message is the text of the transformed deltas,
 * so what was shown is what is kept.
 * @throws ModelCallError for everything that is no complete answer; the signal's reason when it aborted
 */
export async function callModel(
  handle: ModelHandle,
  request: ModelRequest,
  options: ModelCallOptions,
): Promise<CompletedCall> {
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
  const answer = new AnswerAssembly(options);
  const rules = options.media.refusedBy.has(handle.id) ? withoutMedia(handle) : handle.promptRules;
  const { messages, repairs } = sendable(withOutputInstruction(handle, request).messages, rules);
  try {
    options.onStart(repairs);
    const opened = handle.languageModel.doStream(callOptions(handle, request, toPrompt(messages), controller.signal));
    const { stream } = await untilAborted(Promise.resolve(opened), controller.signal);
    watch.progress();
    await consume(stream, controller.signal, (part) => {
      watch.progress();
      answer.add(part);
    });
    return answer.finish(handle.id);
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    if (silence.fired) {
      throw new ModelCallError({
        code: 'model_idle_timeout',
        message: `The model ${handle.id} was silent for ${idleTimeoutMs} ms.`,
        retryable: true,
        provider: handle.id.split('/')[0],
      });
    }
    if (error instanceof AssemblyError) throw error.cause;
    const failure = error instanceof ModelCallError ? error : handle.failureOf(error);
    if (failure.usage !== undefined) options.onUsage(failure.usage);
    if (options.media.refusedBy.has(handle.id) || !refusesMedia(failure) || !holdMedia(messages)) throw failure;
    // A history with an image must not be dead for good because of it: the next try goes without.
    options.media.refusedBy.add(handle.id);
    throw failure.asRetryable();
  } finally {
    silence.stop();
    signal.removeEventListener('abort', stop);
  }
}

const MEDIA_WORDS = /image|multi-?modal|vision|\bpdf\b|input_audio|must be a string/i;

/** Whether a failure says that this model, or this provider, cannot be given what is no text. */
function refusesMedia(failure: ModelCallError): boolean {
  const { status } = failure.details;
  const judged =
    typeof status === 'number' &&
    (status === 500 || (status >= 400 && status < 500 && ![401, 403, 408, 429].includes(status)));
  return failure.code === 'model_error' && judged && MEDIA_WORDS.test(failure.message);
}

function holdMedia(messages: readonly Message[]): boolean {
  return messages.some(
    ({ content }) =>
      typeof content !== 'string' &&
      content.some(
        (part) =>
          part.type === 'image' ||
          part.type === 'file' ||
          (part.type === 'tool-result' && part.output.type === 'content'),
      ),
  );
}

const blindRules = new WeakMap<ModelHandle, PromptRules>();

function withoutMedia(handle: ModelHandle): PromptRules | undefined {
  if (handle.promptRules === undefined) return undefined;
  const known = blindRules.get(handle);
  if (known !== undefined) return known;
  const rules: PromptRules = {
    ...handle.promptRules,
    takesFile: () => false,
    takesInResults: () => false,
    assistantFiles: false,
  };
  blindRules.set(handle, rules);
  return rules;
}

/** Where the provider cannot enforce a schema, the request says it in words. */
function withOutputInstruction(handle: ModelHandle, request: ModelRequest): ModelRequest {
  if (request.output === undefined || enforcesSchema(handle, request.output)) return request;
  const text = `Your final answer must be one JSON value that satisfies this JSON Schema, and nothing else:\n${JSON.stringify(request.output)}`;
  const [first, ...rest] = request.messages;
  if (first?.role === 'system')
    return { ...request, messages: [{ ...first, content: `${first.content}\n\n${text}` }, ...rest] };
  return { ...request, messages: [{ role: 'system', content: text }, ...request.messages] };
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

async function consume(
  stream: ReadableStream<LanguageModelV3StreamPart>,
  signal: AbortSignal,
  onPart: (part: LanguageModelV3StreamPart) => void,
): Promise<void> {
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

const STANDARD_ARGS = new Set([
  'maxOutputTokens',
  'temperature',
  'stopSequences',
  'topP',
  'topK',
  'presencePenalty',
  'frequencyPenalty',
  'seed',
  'headers',
  'providerOptions',
]);

function callOptions(
  handle: ModelHandle,
  request: ModelRequest,
  prompt: LanguageModelV3CallOptions['prompt'],
  abortSignal: AbortSignal,
): LanguageModelV3CallOptions {
  const options: Record<string, unknown> = { prompt, abortSignal };
  const own: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(request.modelArgs ?? {}))
    (STANDARD_ARGS.has(name) ? options : own)[name] = value;
  if (Object.keys(own).length > 0) {
    // What the interface has no word for is the provider's own: it goes under its name.
    const provider = handle.languageModel.provider.split('.')[0] ?? handle.languageModel.provider;
    const given = (options.providerOptions ?? {}) as Record<string, Record<string, unknown>>;
    options.providerOptions = { ...given, [provider]: { ...own, ...given[provider] } };
  }
  if (request.tools !== null) Object.assign(options, toolOptions(request.tools, handle.promptRules));
  if (request.output !== undefined && enforcesSchema(handle, request.output))
    options.responseFormat = { type: 'json', schema: request.output, name: 'answer' };
  return options as unknown as LanguageModelV3CallOptions;
}

/** Whether the provider itself holds the model to the schema; none of them does so for anything but an object. */
function enforcesSchema(handle: ModelHandle, schema: Readonly<Record<string, unknown>>): boolean {
  return handle.nativeStructuredOutput && schema.type === 'object';
}

const functionTools = new WeakMap<object, unknown>();

function toolOptions(config: ToolConfig, rules: PromptRules | undefined): Record<string, unknown> {
  const tools = config.tools.map((tool) => {
    const known = functionTools.get(tool);
    if (known !== undefined) return known;
    const { name, description, inputSchema, providerOptions } = tool;
    const made = { type: 'function', name, description, inputSchema };
    if (providerOptions === undefined) {
      functionTools.set(tool, made);
      return made;
    }
    const own = rules === undefined ? providerOptions : rules.ownOptions(providerOptions);
    return own === undefined ? made : { ...made, providerOptions: own };
  });
  const { toolChoice } = config;
  if (toolChoice === undefined) return { tools };
  return {
    tools,
    toolChoice: typeof toolChoice === 'string' ? { type: toolChoice } : { type: 'tool', toolName: toolChoice.toolName },
  };
}
