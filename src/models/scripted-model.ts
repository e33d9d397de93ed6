import { setTimeout as sleep } from 'node:timers/promises';
import {
  APICallError,
  type LanguageModelV3,
  type LanguageModelV3CallOptions,
  type LanguageModelV3Content,
  type LanguageModelV3FinishReason,
  type LanguageModelV3GenerateResult,
  type LanguageModelV3Prompt,
  type LanguageModelV3StreamPart,
  type LanguageModelV3StreamResult,
  type LanguageModelV3Usage,
} from '@ai-sdk/provider';
import { positionIn, type Script, type ScriptedTurn, type ScriptPosition, turnAfter } from './scripted-directives.js';
import { StreamCutError } from './stream-errors.js';

/** How many parts are handed out at a time when nothing is waited for. */
const BATCH = 64;
const CHARACTERS_PER_TOKEN = 4;
/** How many first calls are remembered as failed. */
const MAX_FAILED = 1000;
const RETRY_AFTER_MS = 100;

/**
 * The built-in model `scripted/demo`: offline, deterministic, and told what to do by the last user message that has any of these:
 *
 * - `call <tool> <json>` on a line of its own: a turn with that one call (the JSON is passed on as written, broken or not);
 * - `parallel [{"tool":"a","args":{}},…]` on a line: a turn with several calls;
 * - `tools=K`: K turns with one call each of the tool `echo`, or else of the first tool there is, with `{"x": n}`;
 * - `say <text>` on a line: text, in the turn of the call that follows it or as the last answer; `think <text>`: reasoning before it;
 * - `tokens=N`: the last answer is N times `tok `; `finish=length` or `finish=content-filter`: how it ends;
 * - `delay=MS` before each answer, `tokdelay=MS` before each delta;
 * - `fail=429`, `fail=500` (any status from 400) or `fail=cut`: the first call after that message fails so, the same call made again works.
 *
 * How far it got is counted by the tool results after that message, so a recovered or moved run goes on in the right place. Only `fail` needs
 * memory, since a repeated call looks like the first one: the last 1000 failed first calls are kept per process, by the message's text,
 * each until it is repeated. Without any directive the answer says what can be asked for. Tokens are counted as four characters each.
 */
export class ScriptedModel implements LanguageModelV3 {
  readonly specificationVersion = 'v3';
  readonly provider = 'scripted';
  readonly modelId = 'demo';
  readonly supportedUrls = {};
  readonly #failed = new Set<string>();

  /** Rejects with the reason of the abort signal when it is aborted, and with the failure that a `fail=` asks for. */
  async doStream(options: LanguageModelV3CallOptions): Promise<LanguageModelV3StreamResult> {
    const signal = options.abortSignal;
    const tools = options.toolChoice?.type === 'none' ? [] : (options.tools ?? []).map((tool) => tool.name);
    const position = positionIn(options.prompt, tools);
    const { script } = position;
    await wait(script?.delayMs ?? 0, signal);
    const fail = this.#failureNow(position);
    if (typeof fail === 'number') throw httpFailure(fail);
    const turn =
      script === undefined ? { think: '', say: introduction(tools), calls: [] } : turnAfter(script, position.results);
    const answer = answerOf(turn, script, options.prompt);
    return {
      stream: streamOf(fail === 'cut' ? cutParts(answer.parts) : answer.parts, script?.tokenDelayMs ?? 0, signal),
    };
  }

  async doGenerate(options: LanguageModelV3CallOptions): Promise<LanguageModelV3GenerateResult> {
    const { stream } = await this.doStream(options);
    const content: LanguageModelV3Content[] = [];
    let text = '';
    for await (const part of stream) {
      if (part.type === 'text-delta' || part.type === 'reasoning-delta') text += part.delta;
      else if (part.type === 'text-end' || part.type === 'reasoning-end') {
        content.push({ type: part.type === 'text-end' ? 'text' : 'reasoning', text });
        text = '';
      } else if (part.type === 'tool-call') content.push(part);
      else if (part.type === 'finish') {
        return { content, finishReason: part.finishReason, usage: part.usage, warnings: [] };
      }
    }
    throw new StreamCutError('The scripted answer was cut.');
  }

  #failureNow({ script, source, first }: ScriptPosition): Script['fail'] {
    if (script?.fail === undefined || !first) return undefined;
    if (this.#failed.delete(source)) return undefined;
    for (const oldest of this.#failed) {
      if (this.#failed.size < MAX_FAILED) break;
      this.#failed.delete(oldest);
    }
    this.#failed.add(source);
    return script.fail;
  }
}

function answerOf(
  turn: ScriptedTurn,
  script: Script | undefined,
  prompt: LanguageModelV3Prompt,
): { readonly parts: LanguageModelV3StreamPart[] } {
  const parts: LanguageModelV3StreamPart[] = [
    { type: 'stream-start', warnings: [] },
    { type: 'response-metadata', modelId: 'demo' },
  ];
  const last = turn.calls.length === 0;
  const reasoning = wordsOf(turn.think);
  const text = textOf(turn, script);
  if (reasoning.length > 0) {
    parts.push({ type: 'reasoning-start', id: 'reasoning' });
    for (const delta of reasoning) parts.push({ type: 'reasoning-delta', id: 'reasoning', delta });
    parts.push({ type: 'reasoning-end', id: 'reasoning' });
  }
  if (text.length > 0) {
    parts.push({ type: 'text-start', id: 'text' });
    for (const delta of text) parts.push({ type: 'text-delta', id: 'text', delta });
    parts.push({ type: 'text-end', id: 'text' });
  }
  const before = callsIn(prompt);
  for (const [index, { tool, input }] of turn.calls.entries()) {
    const id = `call_${before + index + 1}`;
    parts.push({ type: 'tool-input-start', id, toolName: tool }, { type: 'tool-input-delta', id, delta: input });
    parts.push({ type: 'tool-input-end', id }, { type: 'tool-call', toolCallId: id, toolName: tool, input });
  }
  const finish = last ? (script?.finish ?? 'stop') : 'tool-calls';
  const finishReason: LanguageModelV3FinishReason = { unified: finish, raw: finish };
  const written = {
    reasoning: lengthOf(reasoning),
    text: lengthOf(text) + lengthOf(turn.calls.map((call) => call.tool + call.input)),
  };
  parts.push({ type: 'finish', finishReason, usage: usageOf(sizeOf(prompt), written) });
  return { parts };
}

function textOf(turn: ScriptedTurn, script: Script | undefined): string[] {
  const said = wordsOf(turn.say);
  if (turn.calls.length > 0) return said;
  if (script?.tokens !== undefined) return [...said, ...Array.from({ length: script.tokens }, () => 'tok ')];
  if (said.length > 0 || script?.finish !== undefined) return said;
  const calls = script?.turns.reduce((sum, { calls: made }) => sum + made.length, 0) ?? 0;
  return wordsOf(calls === 0 ? 'Done.' : `Done, after ${calls} tool ${calls === 1 ? 'call' : 'calls'}.`);
}

/** The beginning of an answer, without its end. */
function cutParts(parts: readonly LanguageModelV3StreamPart[]): (LanguageModelV3StreamPart | Error)[] {
  const head = parts.slice(0, Math.max(2, Math.ceil(parts.length / 2)));
  return [
    ...head.filter((part) => part.type !== 'finish' && part.type !== 'tool-call'),
    new StreamCutError("The scripted answer was cut, as 'fail=cut' asks."),
  ];
}

function streamOf(
  parts: readonly (LanguageModelV3StreamPart | Error)[],
  tokenDelayMs: number,
  signal: AbortSignal | undefined,
): ReadableStream<LanguageModelV3StreamPart> {
  let next = 0;
  return new ReadableStream({
    async pull(controller) {
      for (let count = 0; count < BATCH; count += 1) {
        const part = parts[next];
        if (part === undefined) {
          controller.close();
          return;
        }
        // An error throws away what is queued, so it waits for the pull that finds the queue empty.
        if (part instanceof Error && count > 0) return;
        next += 1;
        const waits = tokenDelayMs > 0 && !(part instanceof Error) && part.type.endsWith('-delta');
        if (waits) await wait(tokenDelayMs, signal);
        else signal?.throwIfAborted();
        if (part instanceof Error) throw part;
        controller.enqueue(part);
        if (waits) return;
      }
    },
  });
}

async function wait(ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  if (ms === 0) return;
  try {
    await sleep(ms, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}

function httpFailure(status: number): APICallError {
  const type = status === 429 ? 'rate_limit_error' : status >= 500 ? 'server_error' : 'invalid_request_error';
  const error = { error: { message: `The scripted model fails with ${status}, as it was asked to.`, type } };
  return new APICallError({
    message: error.error.message,
    url: 'scripted:demo',
    requestBodyValues: {},
    statusCode: status,
    responseHeaders: { 'retry-after-ms': String(RETRY_AFTER_MS), 'x-request-id': 'scripted' },
    responseBody: JSON.stringify(error),
  });
}

function introduction(tools: readonly string[]): string {
  const example = tools.includes('echo') || tools.length === 0 ? 'echo' : (tools[0] ?? 'echo');
  const known = tools.length === 0 ? 'I see no tools here.' : `The tools I can call here: ${tools.join(', ')}.`;
  return (
    'Hello! I am scripted/demo, a model that works offline and does what your message says. ' +
    `Try a line like: say Good morning, or: call ${example} {"x": 1}, or: parallel [{"tool": "${example}", "args": {"x": 1}}], or: think Let me see. ` +
    `Anywhere in a message: tools=2 tokens=20 delay=100 tokdelay=20 fail=429 (or 500, cut) finish=length. ${known}`
  );
}

function wordsOf(text: string): string[] {
  return text.match(/\S+\s*|\s+/g) ?? [];
}

function callsIn(prompt: LanguageModelV3Prompt): number {
  let calls = 0;
  for (const message of prompt) {
    if (message.role === 'assistant') calls += message.content.filter((part) => part.type === 'tool-call').length;
  }
  return calls;
}

/** The characters of a prompt, as a provider would count them. */
function sizeOf(prompt: LanguageModelV3Prompt): number {
  let size = 0;
  for (const message of prompt) {
    if (message.role === 'system') {
      size += message.content.length;
      continue;
    }
    for (const part of message.content) {
      if (part.type === 'text' || part.type === 'reasoning') size += part.text.length;
      else if (part.type === 'tool-call')
        size += part.toolName.length + ((JSON.stringify(part.input) as string | undefined) ?? '').length;
      else if (part.type === 'tool-result') size += JSON.stringify(part.output).length;
    }
  }
  return size;
}

function usageOf(
  promptSize: number,
  written: { readonly reasoning: number; readonly text: number },
): LanguageModelV3Usage {
  const input = tokensOf(promptSize);
  const reasoning = tokensOf(written.reasoning);
  const text = tokensOf(written.text);
  return {
    inputTokens: { total: input, noCache: input, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: reasoning + text, text, reasoning },
  };
}

function tokensOf(characters: number): number {
  return Math.ceil(characters / CHARACTERS_PER_TOKEN);
}

function lengthOf(pieces: readonly string[]): number {
  return pieces.reduce((sum, piece) => sum + piece.length, 0);
}
