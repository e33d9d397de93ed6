import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import { createDialects, type Dialect, type DialectName } from './dialects.js';
import { isObject, type JsonObject, parseJson, pick } from './json-path.js';
import { closeServer, listenOnLoopback } from './loopback.js';
import { assertSendable, type PlannedReply, planReply, type Reply } from './model-reply.js';
import type { AnswerContext } from './openai-answers.js';
import { BodyWriter, endBody, pause, unlessGone, wasResetHere, writeStream } from './reply-writer.js';
import { loneSurrogateAt, type Problem, RequestRefused, refuse } from './strict-checks.js';
import { waitFor } from './wait.js';

export interface ReceivedRequest {
  readonly dialect: DialectName;
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly rawBody: string;
  /** Empty when the body was no JSON object. */
  readonly body: JsonObject;
  /** Wall clock, in milliseconds. */
  readonly at: number;
  /** False when it was answered 400 by a check, with the reason in `problem`. */
  readonly accepted: boolean;
  readonly problem?: string;
  /** The client went away before our end of the answer. */
  aborted: boolean;
  /** When the answer ended, in whatever way. */
  endedAt?: number;
}

export interface UsageTotals {
  readonly input: number;
  readonly output: number;
  readonly cached: number;
  readonly reasoning: number;
  readonly total: number;
}

export interface ModelEndpointOptions {
  /** A longer request body is refused as too long a context. */
  readonly contextLimitBytes?: number;
  /** False lets every request pass, for trials of something else than the history. */
  readonly strict?: boolean;
}

export type Responder = (request: ReceivedRequest, index: number) => Reply | Promise<Reply>;

const paths: readonly (readonly [RegExp, DialectName])[] = [
  [/^\/v1\/chat\/completions$/, 'openai-chat'],
  [/^\/v1\/responses$/, 'openai-responses'],
  [/^\/v1\/messages$/, 'anthropic'],
  [/^\/v1beta\/models\/[^/]+:(?:streamGenerateContent|generateContent)$/, 'google'],
];

/** A model provider under the test's control: as strict as the real ones, scripted per request. */
export class ModelEndpoint {
  readonly requests: ReceivedRequest[] = [];
  /** May be changed while it runs. */
  contextLimitBytes: number | undefined;
  strict: boolean;
  readonly #server: Server;
  readonly #dialects = createDialects();
  readonly #sockets = new Set<Socket>();
  readonly #queue: Reply[] = [];
  #responder: Responder | undefined;
  #port = 0;
  #accepted = 0;
  #closing = false;
  #usage: UsageTotals = { input: 0, output: 0, cached: 0, reasoning: 0, total: 0 };

  private constructor(options: ModelEndpointOptions) {
    this.contextLimitBytes = options.contextLimitBytes;
    this.strict = options.strict ?? true;
    this.#server = createServer({ requestTimeout: 0, keepAliveTimeout: 60_000 }, (request, response) => {
      this.#take(request, response).catch((error: unknown) => {
        // A fault of the script must not look like a fault of the provider.
        if (!response.headersSent) response.writeHead(599, { 'content-type': 'text/plain' });
        response.end(`the script of the endpoint failed: ${String(error)}`);
      });
    });
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
      socket.on('error', () => undefined);
    });
  }

  static async start(options: ModelEndpointOptions = {}): Promise<ModelEndpoint> {
    const endpoint = new ModelEndpoint(options);
    endpoint.#port = await listenOnLoopback(endpoint.#server);
    return endpoint;
  }

  /** Without a path; the providers' base addresses are `/v1`, and `/v1beta` for Gemini. */
  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Settings that send every provider of the server here. */
  get environment(): Readonly<Record<string, string>> {
    const base = `${this.url}/v1`;
    return {
      OPENAI_API_KEY: 'test-openai-key',
      OPENAI_BASE_URL: base,
      ANTHROPIC_API_KEY: 'test-anthropic-key',
      ANTHROPIC_BASE_URL: base,
      OPENAI_COMPATIBLE_API_KEY: 'test-compatible-key',
      OPENAI_COMPATIBLE_BASE_URL: base,
    };
  }

  /** Sums of the usage that was told to clients. */
  get usage(): UsageTotals {
    return this.#usage;
  }

  get openConnections(): number {
    return this.#sockets.size;
  }

  /** Answers that are not over yet. */
  get openRequests(): number {
    return this.requests.filter((request) => request.endedAt === undefined).length;
  }

  get abortedRequests(): number {
    return this.requests.filter((request) => request.aborted).length;
  }

  get refusedRequests(): readonly ReceivedRequest[] {
    return this.requests.filter((request) => !request.accepted);
  }

  /** Adds replies to the queue; only accepted requests take one. */
  script(...replies: readonly Reply[]): void {
    for (const reply of replies) assertSendable(reply);
    this.#queue.push(...replies);
  }

  get unusedReplies(): number {
    return this.#queue.length;
  }

  /** Asked when the queue is empty; `index` counts the accepted requests from 0. */
  respondWith(responder: Responder | undefined): void {
    this.#responder = responder;
  }

  /** The n-th request, counted from 1, refused ones included. */
  async waitForRequest(n: number, timeoutMs = 5_000): Promise<ReceivedRequest> {
    const what = `model request ${n} (there were ${this.requests.length} at the start)`;
    return waitFor(() => this.requests[n - 1], { timeoutMs, everyMs: 5, what });
  }

  /** Ends every open answer. */
  async close(): Promise<void> {
    this.#closing = true;
    const closed = closeServer(this.#server);
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = new URL(request.url ?? '/', this.url).pathname;
    const name = paths.find(([pattern]) => pattern.test(path))?.[1];
    const raw = await readBody(request);
    if (raw === undefined) return;
    if (name === undefined || request.method !== 'POST') {
      sendJson(response, 404, {
        error: { message: `Invalid URL (${request.method ?? ''} ${path})`, type: 'invalid_request_error' },
      });
      return;
    }
    const dialect = this.#dialects[name];
    const problem = this.#problemOf(dialect, raw, request.headers, path);
    const parsed = parseJson(raw.toString());
    const received: ReceivedRequest = {
      dialect: name,
      path,
      headers: request.headers,
      rawBody: raw.toString(),
      body: parsed.ok && isObject(parsed.value) ? parsed.value : {},
      at: Date.now(),
      accepted: problem === undefined,
      ...(problem === undefined ? {} : { problem: problem.message }),
      aborted: false,
    };
    const gone = this.#follow(received, response);
    this.requests.push(received);
    if (problem !== undefined) {
      sendJson(response, problem.status ?? 400, dialect.errorBody(problem));
      return;
    }
    const index = this.#accepted++;
    const reply = this.#queue.shift() ?? (await this.#responder?.(received, index)) ?? { text: 'ok' };
    assertSendable(reply);
    await this.#answer({ dialect, received, response, gone, reply, index });
  }

  #problemOf(dialect: Dialect, raw: Buffer, headers: IncomingHttpHeaders, path: string): Problem | undefined {
    try {
      const body = readJson(raw);
      if (!this.strict) return undefined;
      const lone = loneSurrogateAt(body);
      if (lone !== undefined) refuse(`The request body is not valid JSON: no low surrogate in string at ${lone}`);
      dialect.check({ body, headers, path });
      const limit = this.contextLimitBytes;
      return limit !== undefined && raw.length > limit ? dialect.overflow(raw.length, limit) : undefined;
    } catch (error) {
      if (error instanceof RequestRefused) return error.problem;
      throw error;
    }
  }

  #follow(received: ReceivedRequest, response: ServerResponse): AbortSignal {
    const gone = new AbortController();
    response.once('close', () => {
      received.endedAt = Date.now();
      const byUs = response.writableEnded || this.#closing || wasResetHere(response);
      if (!byUs) received.aborted = true;
      gone.abort();
    });
    return gone.signal;
  }

  async #answer(job: AnswerJob): Promise<void> {
    const { dialect, received, response, gone, reply, index } = job;
    await pause(reply.delayMs, gone);
    if (reply.gateAt === 'start' && reply.gate !== undefined) await unlessGone(reply.gate, gone);
    if (gone.aborted) return;
    const status = reply.status ?? 200;
    for (const [name, value] of Object.entries(reply.headers ?? {})) response.setHeader(name, value);
    if (status !== 200 && reply.raw === undefined) {
      const problem = { message: `scripted status ${status}`, status };
      sendJson(response, status, reply.errorBody ?? dialect.errorBody(problem));
      return;
    }
    const context: AnswerContext = {
      id: `${dialect.idPrefix}${index.toString(36).padStart(8, '0')}`,
      model: typeof received.body.model === 'string' ? received.body.model : 'gemini',
      includeUsage: pick(received.body, 'stream_options.include_usage') === true,
    };
    const planned = planReply(reply);
    const onUsage = (): void => {
      this.#addUsage(planned);
    };
    const streaming = received.body.stream === true || received.path.endsWith(':streamGenerateContent');
    response.statusCode = status;
    if (!response.hasHeader('content-type')) {
      response.setHeader('content-type', streaming ? 'text/event-stream; charset=utf-8' : 'application/json');
    }
    const whole = streaming
      ? await writeStream(response, {
          frames: dialect.frames(planned, context),
          reply,
          errorEvent: dialect.errorEvent,
          ping: dialect.ping,
          gone,
          onUsage,
        })
      : await writeWhole(response, reply, dialect.json(planned, context), gone, onUsage);
    if (whole) dialect.remember?.(planned, context);
  }

  #addUsage({ usage }: PlannedReply): void {
    const now = this.#usage;
    this.#usage = {
      input: now.input + usage.input,
      output: now.output + usage.output,
      cached: now.cached + usage.cached,
      reasoning: now.reasoning + usage.reasoning,
      total: now.total + usage.input + usage.output,
    };
  }
}

interface AnswerJob {
  readonly dialect: Dialect;
  readonly received: ReceivedRequest;
  readonly response: ServerResponse;
  readonly gone: AbortSignal;
  readonly reply: Reply;
  readonly index: number;
}

async function writeWhole(
  response: ServerResponse,
  reply: Reply,
  body: object,
  gone: AbortSignal,
  onUsage: () => void,
): Promise<boolean> {
  if (reply.gate !== undefined && reply.gateAt !== 'start') await unlessGone(reply.gate, gone);
  const shown = reply.errorInStream === undefined ? body : reply.errorInStream.body;
  const text = Buffer.from(reply.raw ?? JSON.stringify(shown));
  const out = new BodyWriter(response, reply, gone);
  response.flushHeaders();
  if (reply.cut === undefined || reply.raw !== undefined) out.add(text);
  else if (reply.cut.after !== 'headers') out.add(text.subarray(0, Math.floor(text.length / 2)));
  await out.flush();
  const whole = reply.cut === undefined && !gone.aborted;
  if (whole && reply.raw === undefined && reply.errorInStream === undefined) onUsage();
  await endBody(response, reply.cut?.how ?? 'end', gone);
  return whole;
}

async function readBody(request: IncomingMessage): Promise<Buffer | undefined> {
  const chunks: Buffer[] = [];
  try {
    for await (const chunk of request) chunks.push(chunk as Buffer);
  } catch {
    return undefined;
  }
  return Buffer.concat(chunks);
}

function readJson(raw: Buffer): JsonObject {
  let text = '';
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(raw);
  } catch {
    refuse('The request body is not valid UTF-8.');
  }
  const parsed = parseJson(text);
  if (!parsed.ok || !isObject(parsed.value)) {
    refuse('We could not parse the JSON body of your request. The API expects a JSON object.');
  }
  return parsed.value;
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}
