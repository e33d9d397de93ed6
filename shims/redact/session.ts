import {
  type AssistantPart,
  BoundShim,
  type GatedCall,
  type HistoryItem,
  type JsonValue,
  type Message,
  type ModelDelta,
  type ModelRequest,
  type ModelResponse,
  type NextModelCall,
  type NextToolCall,
  type PreparedTurn,
  type RunContext,
  type RunnerHooks,
  type RunScope,
  type RunState,
  type ToolOutcome,
} from 'shimline/shims';
import type { FindPhones } from './detectors.js';
import type { RedactConfig } from './entities.js';
import { keyIn } from './hash-key.js';
import { type MessageOptions, redactItem, redactMessage, same } from './messages.js';
import { BlockedError, Redactor } from './redactor.js';

const ANSWER = 'The answer';
const RESULT = 'The result of the tool';
const ARGUMENTS = 'A tool call of the model';

/** A text of one kind that is on its way; what was made of it and could not be given yet is in `ready`. */
interface Pending {
  readonly kind: ModelDelta['kind'];
  readonly toolCallId: string | undefined;
  readonly push: (text: string) => string;
  readonly end: () => string;
  ready: string;
}

/** What this shim keeps of a conversation: what the newest input held that is blocked. */
export interface RedactState {
  blocked: string[];
}

/** One attempt's redaction. Its memory is the tail of the answer that is coming in, and which items were looked at already. */
export class RedactSession extends BoundShim {
  readonly #config: RedactConfig;
  readonly #findPhones: FindPhones;
  readonly #clean = new WeakSet();
  readonly #cleanTexts = new Set<string>();
  readonly #sent = new WeakMap<Message, Message>();
  #redactor: { readonly dataDir: string; readonly redactor: Redactor } | undefined;
  #pending: Pending | undefined;

  constructor(config: RedactConfig, findPhones: FindPhones) {
    super();
    this.#config = config;
    this.#findPhones = findPhones;
  }

  override onRunStart(state: RunState, _transient: RunContext, run: RunScope): void {
    if (!this.#config.input) return;
    const own = run.state as RedactState;
    const blocked = new Set<string>();
    const history = this.#redactHistory(state.history, run.dataDir, (entities) => {
      for (const entity of entities) blocked.add(entity);
    });
    if (history !== undefined) state.history = history;
    // Saved masked, and refused before the first model call: what comes later goes on without it.
    if (own.blocked.length > 0 || blocked.size > 0) own.blocked = [...blocked];
  }

  override prepareTurn(turn: PreparedTurn): void {
    if (!this.#config.input) return;
    const { blocked } = turn.state as RedactState;
    if (blocked.length > 0) throw new BlockedError('The input', blocked);
    const history = this.#redactHistory(turn.runState.history, turn.dataDir, (entities) => {
      throw new BlockedError('A message for the model', entities);
    });
    if (history !== undefined) turn.replaceHistory(history);
  }

  override async wrapModelCall(turn: PreparedTurn, request: ModelRequest, next: NextModelCall): Promise<ModelResponse> {
    this.#pending = undefined;
    const sent = this.#config.input
      ? { ...request, messages: request.messages.map((message) => this.#messageToSend(message, turn.dataDir)) }
      : request;
    return this.#redactResponse(await next(sent), turn.dataDir);
  }

  override async wrapToolCall(turn: PreparedTurn, call: GatedCall, next: NextToolCall): Promise<ToolOutcome> {
    const outcome = await next(call);
    if (!this.#config.toolResults) return outcome;
    const redactor = this.#redactorFor(turn.dataDir);
    try {
      if (outcome.ok) return { ok: true, result: redactResult(redactor, outcome.result as JsonValue) };
      const { message, ...rest } = outcome.error;
      return { ok: false, error: { ...rest, message: redactor.text(RESULT, message) } };
    } catch (error) {
      if (!(error instanceof BlockedError)) throw error;
      return {
        ok: false,
        error: { message: `The result was withheld: it holds ${error.entities.join(', ')}.`, kind: 'redacted' },
      };
    }
  }

  override transformDelta(turn: PreparedTurn, delta: ModelDelta): ModelDelta | null {
    const before = this.#pending;
    if (delta.kind === 'flush') {
      this.#pending = undefined;
      if (before === undefined) return delta;
      return { kind: before.kind, text: before.ready + before.end(), toolCallId: before.toolCallId };
    }
    if (before?.kind === delta.kind && before.toolCallId === delta.toolCallId) {
      const text = before.ready + before.push(delta.text);
      before.ready = '';
      return text === '' ? null : { ...delta, text };
    }
    const pending = this.#begin(delta, turn.dataDir);
    this.#pending = pending;
    const text = pending.push(delta.text);
    const rest = before === undefined ? '' : before.ready + before.end();
    if (before === undefined || rest === '') return text === '' ? null : { ...delta, text };
    // One delta can be given for one: the rest of the kind before it now, this one with the next.
    pending.ready = text;
    return { kind: before.kind, text: rest, toolCallId: before.toolCallId };
  }

  /** A call that is made again begins anew: nothing of the one before may run into it. */
  override runnerHooks(): readonly RunnerHooks[] {
    return [
      {
        onLlmStart: () => {
          this.#pending = undefined;
        },
      },
    ];
  }

  #begin({ kind, toolCallId }: ModelDelta, dataDir: string): Pending {
    const { output, toolArguments } = this.#config;
    // Arguments are redacted as a whole: a piece of JSON is no text.
    if (kind === 'toolInput' && toolArguments) return { kind, toolCallId, push: () => '', end: () => '', ready: '' };
    if (kind === 'toolInput' || !output) return { kind, toolCallId, push: (text) => text, end: () => '', ready: '' };
    const scanner = this.#redactorFor(dataDir).scanner(ANSWER);
    return { kind, toolCallId, push: (text) => scanner.push(text), end: () => scanner.end(), ready: '' };
  }

  #redactHistory(
    history: readonly HistoryItem[],
    dataDir: string,
    blocked: MessageOptions['blocked'],
  ): HistoryItem[] | undefined {
    const items = history.map((item) => {
      if (this.#isClean(item)) return item;
      const redacted = redactItem(item, this.#options(dataDir, blocked));
      if (redacted === item) this.#markClean(item);
      return redacted;
    });
    return items.some((item, index) => item !== history[index]) ? items : undefined;
  }

  /** Looked at before, and nothing was there: a long conversation does not pay for its age on every turn. */
  #isClean(item: HistoryItem): boolean {
    if (typeof item === 'string') return this.#cleanTexts.has(item);
    return typeof item === 'object' && item !== null && this.#clean.has(item);
  }

  #markClean(item: HistoryItem): void {
    if (typeof item === 'string') this.#cleanTexts.add(item);
    else if (typeof item === 'object' && item !== null && Object.isFrozen(item)) this.#clean.add(item);
  }

  #messageToSend(message: Message, dataDir: string): Message {
    const known = this.#sent.get(message);
    if (known !== undefined) return known;
    if (message.role === 'user' && typeof message.content === 'string' && this.#cleanTexts.has(message.content))
      return message;
    const redacted = redactMessage(
      message,
      this.#options(dataDir, (entities) => {
        throw new BlockedError('A message for the model', entities);
      }),
    );
    if (Object.isFrozen(message)) this.#sent.set(message, redacted);
    return redacted;
  }

  #options(dataDir: string, blocked: MessageOptions['blocked']): MessageOptions {
    const { output, toolArguments } = this.#config;
    return { redactor: this.#redactorFor(dataDir), answers: output, toolArguments, blocked };
  }

  /** The answer as it is kept. Its texts came through `transformDelta`, unless another shim gave it without a call. */
  #redactResponse(response: ModelResponse, dataDir: string): ModelResponse {
    const { output, toolArguments } = this.#config;
    const { content } = response.message;
    if (!output && !toolArguments) return response;
    const redactor = this.#redactorFor(dataDir);
    const parts = typeof content === 'string' ? [{ type: 'text' as const, text: content }] : content;
    const redacted = parts.map((part): AssistantPart => {
      if (part.type === 'tool-call' && toolArguments)
        return { ...part, input: redactor.json(ARGUMENTS, part.input) } as AssistantPart;
      if (part.type === 'text' && output) return { ...part, text: redactor.text(ANSWER, part.text) };
      if (part.type === 'reasoning' && output)
        return unsigned({ ...part, text: redactor.text(ANSWER, part.text) }, redactor);
      return part;
    });
    if (same(redacted, parts)) return response;
    const only = typeof content === 'string' ? redacted[0] : undefined;
    return { ...response, message: { ...response.message, content: only?.type === 'text' ? only.text : redacted } };
  }

  #redactorFor(dataDir: string): Redactor {
    if (this.#redactor?.dataDir !== dataDir) {
      const { hashKey } = this.#config;
      const redactor = new Redactor(this.#config, this.#findPhones, () => hashKey ?? keyIn(dataDir));
      this.#redactor = { dataDir, redactor };
    }
    return this.#redactor.redactor;
  }
}

/** A provider signs its reasoning: with another text the signature is a false one, and goes. */
function unsigned<P extends AssistantPart & { readonly type: 'reasoning' }>(part: P, redactor: Redactor): P {
  if (part.providerOptions === undefined || !redactor.hasMark(part.text)) return part;
  const { providerOptions: _signature, ...rest } = part;
  return rest as P;
}

/** Content parts of a result: the texts, and not the bytes of images and files. */
function redactResult(redactor: Redactor, result: JsonValue): JsonValue {
  if (!Array.isArray(result)) return redactor.json(RESULT, result);
  return result.map((part: JsonValue) => {
    if (!isMedia(part)) return redactor.json(RESULT, part);
    return part;
  });
}

const MEDIA: ReadonlySet<unknown> = new Set(['image', 'file', 'image-data', 'file-data']);
function isMedia(part: JsonValue): boolean {
  return typeof part === 'object' && part !== null && 'type' in part && 'mediaType' in part && MEDIA.has(part.type);
}
