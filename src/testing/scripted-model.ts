import { setTimeout as sleep } from 'node:timers/promises';
import type {
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3FinishReason,
  LanguageModelV3GenerateResult,
  LanguageModelV3Message,
  LanguageModelV3StreamPart,
  LanguageModelV3StreamResult,
  LanguageModelV3Usage,
} from '@ai-sdk/provider';
import type { JsonValue } from '../agent/json.js';
import { ModelCallError, type ModelFailure } from '../agent/run-errors.js';

/** One call of a scripted answer. */
export interface ScriptedToolCall {
  readonly toolName: string;
  /** The arguments; a string is passed on as written, broken JSON or not. Default `{}`. */
  readonly input?: JsonValue | undefined;
  /** Default: `call_<n>`, counted over the model's life. */
  readonly toolCallId?: string | undefined;
}

/** One scripted answer in full; its parts are streamed in the order of these fields. */
export interface ScriptedReply {
  /** Milliseconds before the answer begins. */
  readonly delayMs?: number | undefined;
  /** The answer begins when this settles: a moment that the test names, instead of a time. */
  readonly until?: PromiseLike<unknown> | undefined;
  /** A list streams one delta for each of its members. */
  readonly reasoning?: string | readonly string[] | undefined;
  readonly text?: string | readonly string[] | undefined;
  /** Milliseconds before each delta. */
  readonly deltaDelayMs?: number | undefined;
  readonly toolCalls?: readonly ScriptedToolCall[] | undefined;
  /** Default: `tool-calls` with calls, else `stop`. */
  readonly finishReason?: LanguageModelV3FinishReason['unified'] | undefined;
  /** Default: one token each. */
  readonly usage?: { readonly inputTokens?: number; readonly outputTokens?: number } | undefined;
  /** Fails after what precedes was streamed. */
  readonly error?: Error | ScriptedFailure | undefined;
  /** `cut`: the stream stops without its end; `never`: it stays open and silent until it is aborted. */
  readonly ends?: 'cut' | 'never' | undefined;
}

/** A failure in a provider's words; not retryable unless it says so, and then at once. */
export type ScriptedFailure = Partial<ModelFailure>;

/** A text, an error thrown before the answer begins, a reply in full, or a function that answers the request it gets. */
export type ScriptedAnswer =
  | string
  | Error
  | ScriptedReply
  | ((request: RecordedRequest) => ScriptedAnswer | Promise<ScriptedAnswer>);

/** One request as the model got it. */
export interface RecordedRequest {
  /** The system message; undefined when there was none. */
  readonly system: string | undefined;
  /** The whole prompt, system first. */
  readonly prompt: readonly LanguageModelV3Message[];
  /** Names of the tools; empty when the request had no tool configuration. */
  readonly tools: readonly string[];
  /** Everything else that was asked for: settings, tool choice, schemas, the abort signal. */
  readonly options: LanguageModelV3CallOptions;
}

/** The script of a `ScriptedModel` was not followed. */
export class ScriptError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'ScriptError';
  }
}

/**
 * A model whose answers are written down beforehand: each request takes the next one. It records what it was asked, so a test
 * sees exactly what a shim made of the request.
 */
export class ScriptedModel implements LanguageModelV3 {
  readonly specificationVersion = 'v3';
  readonly provider: string = 'scripted-test';
  readonly modelId: string = 'scripted';
  readonly supportedUrls = {};
  readonly requests: RecordedRequest[] = [];
  readonly #answers: ScriptedAnswer[];
  readonly #otherwise: ScriptedAnswer | undefined;
  #unanswered = 0;
  #calls = 0;

  /** @param options.otherwise the answer to every request that the script has none for; without it such a request fails */
  constructor(script: readonly ScriptedAnswer[] = [], options: { readonly otherwise?: ScriptedAnswer } = {}) {
    this.#answers = [...script];
    this.#otherwise = options.otherwise;
  }

  /** Answers that no request has taken yet. */
  get remaining(): number {
    return this.#answers.length;
  }

  /** Adds answers at the end of the script. */
  extend(script: readonly ScriptedAnswer[]): void {
    this.#answers.push(...script);
  }

  /** Ends a test that follows its script to the last answer. @throws ScriptError when answers were left over or ran out */
  assertComplete(): void {
    if (this.#answers.length > 0)
      throw new ScriptError(`${this.#answers.length} of the scripted answers were not used, after ${this.#asked()}.`);
    if (this.#unanswered > 0)
      throw new ScriptError(`The script had no answer for ${this.#unanswered} request(s), of ${this.#asked()}.`);
  }

  async doStream(options: LanguageModelV3CallOptions): Promise<LanguageModelV3StreamResult> {
    const signal = options.abortSignal;
    signal?.throwIfAborted();
    const request = recorded(options);
    this.requests.push(request);
    const reply = await this.#next(request);
    await wait(reply.delayMs, signal);
    if (reply.until !== undefined) await untilAborted(reply.until, signal);
    if (reply.error !== undefined && !hasContent(reply)) throw thrownBy(reply.error);
    return { stream: ReadableStream.from(this.#parts(reply, signal)) };
  }

  async doGenerate(): Promise<LanguageModelV3GenerateResult> {
    throw new ScriptError('A run always streams; this model has no other answers.');
  }

  async #next(request: RecordedRequest): Promise<ScriptedReply> {
    let answer = this.#answers.shift() ?? this.#otherwise;
    if (answer === undefined) {
      this.#unanswered += 1;
      throw new ScriptError(`The script has no answer for request ${this.requests.length}.`);
    }
    while (typeof answer === 'function') answer = await answer(request);
    if (typeof answer === 'string') return { text: answer };
    return answer instanceof Error ? { error: answer } : answer;
  }

  async *#parts(reply: ScriptedReply, signal: AbortSignal | undefined): AsyncGenerator<LanguageModelV3StreamPart> {
    yield { type: 'stream-start', warnings: [] };
    for (const kind of ['reasoning', 'text'] as const) {
      const deltas = deltasOf(reply[kind]);
      if (deltas.length === 0) continue;
      yield { type: `${kind}-start`, id: kind };
      for (const delta of deltas) {
        await wait(reply.deltaDelayMs, signal);
        signal?.throwIfAborted();
        yield { type: `${kind}-delta`, id: kind, delta };
      }
      yield { type: `${kind}-end`, id: kind };
    }
    const calls = reply.toolCalls ?? [];
    for (const { toolName, toolCallId, input = {} } of calls) {
      this.#calls += 1;
      const id = toolCallId ?? `call_${this.#calls}`;
      const text = typeof input === 'string' ? input : JSON.stringify(input);
      yield { type: 'tool-input-start', id, toolName };
      await wait(reply.deltaDelayMs, signal);
      yield { type: 'tool-input-delta', id, delta: text };
      yield { type: 'tool-input-end', id };
      yield { type: 'tool-call', toolCallId: id, toolName, input: text };
    }
    if (reply.error !== undefined) throw thrownBy(reply.error);
    if (reply.ends === 'never') await untilAborted(new Promise(() => undefined), signal);
    if (reply.ends === 'cut') return;
    const unified = reply.finishReason ?? (calls.length > 0 ? 'tool-calls' : 'stop');
    yield { type: 'finish', finishReason: { unified, raw: unified }, usage: usageOf(reply.usage) };
  }

  #asked(): string {
    return `${this.requests.length} request(s)`;
  }
}

function recorded(options: LanguageModelV3CallOptions): RecordedRequest {
  const prompt = structuredClone(options.prompt);
  const first = prompt.find((message) => message.role === 'system');
  return { system: first?.content, prompt, tools: (options.tools ?? []).map((tool) => tool.name), options };
}

function deltasOf(text: string | readonly string[] | undefined): readonly string[] {
  if (text === undefined) return [];
  return typeof text === 'string' ? [text] : text;
}

function hasContent({ text, reasoning, toolCalls }: ScriptedReply): boolean {
  return deltasOf(text).length > 0 || deltasOf(reasoning).length > 0 || (toolCalls?.length ?? 0) > 0;
}

function thrownBy(error: Error | ScriptedFailure): Error {
  if (error instanceof Error) return error;
  return new ModelCallError({
    code: 'model_error',
    message: 'The scripted model failed.',
    retryable: false,
    retryAfterMs: 0,
    ...error,
  });
}

function usageOf({
  inputTokens = 1,
  outputTokens = 1,
}: NonNullable<ScriptedReply['usage']> = {}): LanguageModelV3Usage {
  return {
    inputTokens: { total: inputTokens, noCache: inputTokens, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: outputTokens, text: outputTokens, reasoning: 0 },
  };
}

async function wait(ms: number | undefined, signal: AbortSignal | undefined): Promise<void> {
  if (ms === undefined || ms === 0) return;
  try {
    await sleep(ms, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}

/** Waits for a promise, but no longer than until the abort, which rejects with its reason. */
async function untilAborted(promise: PromiseLike<unknown>, signal: AbortSignal | undefined): Promise<void> {
  let onAbort = (): void => undefined;
  const aborted = new Promise<never>((_resolve, reject) => {
    onAbort = () => {
      reject(signal?.reason as Error);
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    if (signal?.aborted === true) onAbort();
  });
  try {
    await Promise.race([promise, aborted]);
  } finally {
    signal?.removeEventListener('abort', onAbort);
  }
}
