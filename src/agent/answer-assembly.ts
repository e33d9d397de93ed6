import type { LanguageModelV3StreamPart, LanguageModelV3Usage } from '@ai-sdk/provider';
import type { ModelDelta } from './hooks.js';
import { deepFreeze, type JsonValue, wellFormed } from './json.js';
import type { AssistantPart, ModelResponse } from './messages.js';
import type { FinishReason, Usage } from './model.js';
import { ModelCallError } from './run-errors.js';

/** Arguments of a call that were no JSON object: what shims let be seen of the text, for the error that the model gets. */
export type BrokenArguments = ReadonlyMap<string, string>;

export interface CompletedCall {
  readonly response: ModelResponse;
  readonly brokenArguments: BrokenArguments;
  /** Why the answer ended, in the provider's own word. */
  readonly providerFinishReason?: string | undefined;
}

/** Who is told of an answer while it comes in. */
export interface AnswerListener {
  readonly modelCallId: string;
  /** What shims make of a delta before it is stored or shown; nothing holds it back. */
  readonly transform: ((delta: ModelDelta) => readonly ModelDelta[]) | undefined;
  /** An id of our own for a call that the provider named with one that was used before or that no provider would take back. */
  callIdFor(providerId: string): string;
  onDelta(delta: ModelDelta): void;
  /** The provider has told the tokens of the call, whether or not its answer turns out to be one. */
  onUsage(usage: Usage): void;
}

/** An error of ours (a shim's transformDelta, a finish reason), not the provider's. */
export class AssemblyError extends Error {
  declare readonly cause: unknown;
}

/** Stands for the arguments of a call that came without any. */
const NOTHING = '(nothing)';

interface TextBlock {
  readonly type: 'text' | 'reasoning';
  text: string;
  providerOptions: unknown;
  /** The first half of a character whose second half is to come with the next delta. */
  half: string;
}
type Block = TextBlock | { readonly type: 'ready'; readonly part: AssistantPart };

/** A tool call whose arguments are on their way. */
interface OpenInput {
  readonly toolCallId: string;
  readonly toolName: string;
  text: string;
  half: string;
}

/** Puts the parts of one streamed answer together; it counts only once the provider said that it is whole. */
export class AnswerAssembly {
  readonly #options: AnswerListener;
  readonly #blocks: Block[] = [];
  readonly #open = new Map<string, TextBlock>();
  readonly #inputs = new Map<string, OpenInput>();
  readonly #broken = new Map<string, string>();
  /** What shims let through of the arguments of each call. */
  readonly #shownInputs = new Map<string, string>();
  #finish: Extract<LanguageModelV3StreamPart, { type: 'finish' }> | undefined;
  #responseId: string | undefined;
  /** Whether the model said anything, whatever the shims showed of it. */
  #said = false;

  constructor(options: AnswerListener) {
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
        if (part.providerMetadata !== undefined)
          this.#block('reasoning', part.id).providerOptions = part.providerMetadata;
        break;
      case 'text-end':
      case 'reasoning-end': {
        const key = `${part.type === 'text-end' ? 'text' : 'reasoning'}:${part.id}`;
        const block = this.#open.get(key);
        if (block !== undefined) this.#close(block);
        if (block !== undefined && part.providerMetadata !== undefined) block.providerOptions = part.providerMetadata;
        this.#open.delete(key);
        break;
      }
      case 'tool-input-start':
        if (part.providerExecuted !== true) this.#input(part.id, part.toolName);
        break;
      case 'tool-input-delta': {
        const input = this.#inputs.get(part.id);
        if (input === undefined) break;
        input.text += part.delta;
        const text = wholeCharacters(input, part.delta);
        if (text !== '') this.#show({ kind: 'toolInput', text: text.toWellFormed(), toolCallId: input.toolCallId });
        break;
      }
      case 'tool-call':
        if (part.providerExecuted !== true) this.#toolCall(part);
        break;
      case 'file':
        if (typeof part.data === 'string')
          this.#blocks.push({ type: 'ready', part: { type: 'file', data: part.data, mediaType: part.mediaType } });
        break;
      case 'response-metadata':
        this.#responseId = part.id ?? this.#responseId;
        break;
      case 'finish':
        this.#finish = part;
        this.#options.onUsage(usageOf(part.usage));
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
    const block = { type, text: '', providerOptions: undefined as unknown, half: '' };
    this.#open.set(key, block);
    this.#blocks.push(block);
    return block;
  }

  #delta(kind: 'text' | 'reasoning', id: string, text: string): void {
    const block = this.#block(kind, id);
    this.#say(block, wholeCharacters(block, text));
  }

  #say(block: TextBlock, text: string): void {
    if (text === '') return;
    if (block.type === 'text' && text.trim() !== '') this.#said = true;
    this.#show({ kind: block.type, text: text.toWellFormed() }, block);
  }

  #close(block: TextBlock): void {
    const { half } = block;
    block.half = '';
    this.#say(block, half);
  }

  /** Shows what the shims make of a delta; what is shown is what is kept, in the block of its kind. */
  #show(delta: ModelDelta, block?: TextBlock): void {
    let shown: readonly ModelDelta[] = [delta];
    if (this.#options.transform !== undefined) {
      try {
        shown = this.#options.transform(delta);
      } catch (error) {
        throw new AssemblyError('transformDelta', { cause: error });
      }
    }
    for (const each of shown) {
      if (each.text === '' || each.kind === 'flush') continue;
      this.#options.onDelta(each);
      if (each.kind !== 'toolInput') this.#keep(each.kind, each.text, block);
      else if (each.toolCallId !== undefined)
        this.#shownInputs.set(each.toolCallId, (this.#shownInputs.get(each.toolCallId) ?? '') + each.text);
    }
  }

  /** A text that a shim held back may come when another block has begun: it belongs to the last one of its own kind. */
  #keep(kind: TextBlock['type'], text: string, current: TextBlock | undefined): void {
    const block =
      current?.type === kind ? current : this.#blocks.findLast((each): each is TextBlock => each.type === kind);
    if (block !== undefined) block.text += text;
    else this.#blocks.push({ type: kind, text, providerOptions: undefined, half: '' });
  }

  #brokenAsShown(): BrokenArguments {
    if (this.#options.transform === undefined) return this.#broken;
    return new Map(
      [...this.#broken].map(([id, text]) => [id, text === NOTHING ? text : (this.#shownInputs.get(id) ?? '')]),
    );
  }

  #input(providerId: string, toolName: string): OpenInput {
    const known = this.#inputs.get(providerId);
    if (known !== undefined) return known;
    const input = { toolCallId: this.#options.callIdFor(providerId), toolName, text: '', half: '' };
    this.#inputs.set(providerId, input);
    return input;
  }

  #toolCall(part: Extract<LanguageModelV3StreamPart, { type: 'tool-call' }>): void {
    const { toolCallId } = this.#input(part.toolCallId, part.toolName);
    // The provider may name a second call alike: the next one gets an id of its own.
    this.#inputs.delete(part.toolCallId);
    this.#pushCall({ toolCallId, toolName: part.toolName, text: part.input }, part.providerMetadata);
  }

  #pushCall({ toolCallId, toolName, text }: Omit<OpenInput, 'half'>, metadata?: unknown): void {
    const input = parseArguments(text);
    if (input === undefined) this.#broken.set(toolCallId, text);
    const providerOptions = metadata === undefined ? {} : { providerOptions: metadata as never };
    // The history holds a name that can be stored and sent; the error result tells the model what it had called.
    const name = toolName === '' ? 'unnamed' : toolName.toWellFormed();
    this.#blocks.push({
      type: 'ready',
      part: { type: 'tool-call', toolCallId, toolName: name, input: (input ?? {}) as never, ...providerOptions },
    });
  }

  /** @throws ModelCallError for what is no complete answer */
  finish(modelId: string): CompletedCall {
    for (const block of this.#open.values()) this.#close(block);
    if (this.#options.transform !== undefined) this.#show({ kind: 'flush', text: '' });
    const finish = this.#finish;
    if (finish === undefined) {
      throw new ModelCallError({
        code: 'model_stream_cut',
        message: `The answer of ${modelId} was cut off before its end.`,
        retryable: true,
        provider: modelId.split('/')[0],
      });
    }
    // A call that began and never became one is a broken call, and not silently none.
    for (const input of this.#inputs.values())
      this.#pushCall({ ...input, text: input.text === '' ? NOTHING : input.text });
    const parts = this.#blocks.flatMap(toPart);
    const calls = parts.some((part) => part.type === 'tool-call');
    const finishReason = finishReasonOf(finish.finishReason, calls, modelId);
    if (finishReason === 'stop' && !calls && !this.#said && !parts.some((part) => part.type === 'file')) {
      throw new ModelCallError({
        code: 'model_behaviour',
        message: `The model ${modelId} gave an empty answer.`,
        retryable: true,
        provider: modelId.split('/')[0],
      });
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
      ...(metadata === undefined || Object.keys(metadata).length === 0
        ? {}
        : { providerMetadata: JSON.parse(JSON.stringify(metadata)) as Record<string, JsonValue> }),
    });
    return { response, brokenArguments: this.#brokenAsShown(), providerFinishReason: finish.finishReason.raw };
  }
}

/** What of a text can be shown: half a character waits for its other half, which some providers send in the next delta. */
function wholeCharacters(held: { half: string }, text: string): string {
  const joined = held.half + text;
  const last = joined.charCodeAt(joined.length - 1);
  const split = last >= 0xd800 && last <= 0xdbff;
  held.half = split ? joined.slice(-1) : '';
  return split ? joined.slice(0, -1) : joined;
}

function toPart(block: Block): AssistantPart[] {
  if (block.type === 'ready') return [block.part];
  const providerOptions =
    block.providerOptions === undefined ? {} : { providerOptions: block.providerOptions as never };
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

/** An answer that was no use, but the next one may be. */
const MALFORMED_ENDS = /malformed|unexpected_tool_call/i;
/** Ends that a provider package takes for another one, by the provider's own word. */
const MISREAD_ENDS = /^(?:pause_turn|compaction)$/i;

/**
 * Why the answer ended, in our words. An end that is neither an answer, a call, a limit nor a verdict is a failure that names it:
 * nothing unknown counts as completed.
 */
function finishReasonOf(
  finish: { readonly unified: string; readonly raw: string | undefined },
  calls: boolean,
  modelId: string,
): FinishReason {
  const { unified, raw } = finish;
  const provider = modelId.split('/')[0];
  if (raw !== undefined && /context/i.test(raw)) {
    throw new ModelCallError({
      code: 'context_exceeded',
      message: `The model ${modelId} stopped: ${raw}.`,
      retryable: false,
      provider,
      providerCode: raw,
    });
  }
  if (raw === undefined || !MISREAD_ENDS.test(raw)) {
    switch (unified) {
      case 'stop':
      case 'tool-calls':
        return calls ? 'tool-calls' : 'stop';
      case 'length':
        return 'length';
      case 'content-filter':
        return 'refusal';
      default:
        break;
    }
  }
  if (raw === undefined) {
    throw new ModelCallError({
      code: 'model_stream_cut',
      message: `The answer of ${modelId} ended without a finish reason.`,
      retryable: true,
      provider,
    });
  }
  if (/refusal|content_filter|safety/i.test(raw)) return 'refusal';
  if (MALFORMED_ENDS.test(raw)) {
    throw new ModelCallError({
      code: 'model_behaviour',
      message: `The answer of ${modelId} was malformed: ${raw}.`,
      retryable: true,
      provider,
      providerCode: raw,
    });
  }
  throw new ModelCallError({
    code: 'model_error',
    message: `The model ${modelId} stopped for a reason that is no end of an answer: ${raw}.`,
    retryable: false,
    provider,
    providerCode: raw,
  });
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
