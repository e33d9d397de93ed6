import { randomUUID } from 'node:crypto';
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import { isObject, type JsonObject, parseJson } from './json-path.js';
import { closeServer, listenOnLoopback } from './loopback.js';

/** One request as it came in; `rpc` is the method of its message. */
export interface McpRequest {
  readonly http: string;
  readonly rpc: string;
  readonly session: string | undefined;
  readonly lastEventId: string | undefined;
  readonly headers: IncomingHttpHeaders;
}

/** What a tool is given: its arguments, a way to tell progress, and one to end the connection in the middle of the call. */
export interface McpCall {
  readonly args: JsonObject;
  readonly meta: JsonObject;
  readonly progress: (progress: number, message?: string) => void;
  /** Ends the stream of the answer; what comes later is kept for a replay. */
  readonly cut: () => void;
  /** Breaks it off without an end. */
  readonly destroy: () => void;
}
export type McpTool = (call: McpCall) => unknown;

interface Fault {
  readonly rpc: string;
  readonly status: number;
  readonly body: string;
}

interface Session {
  readonly id: string;
  /** The server's own stream, where the client has opened one. */
  stream: ServerResponse | undefined;
}

interface Stream {
  /** Everything that was to be sent, for a replay. */
  readonly messages: string[];
  response: ServerResponse | undefined;
  isOver: boolean;
}

/** How an event stream is written. */
export type Framing = (event: { readonly id: string; readonly data: string; readonly isLast: boolean }) => string;

const plain: Framing = ({ id, data }) => `event: message\nid: ${id}\ndata: ${data}\n\n`;

/** An MCP server over Streamable HTTP under the test's control, without the SDK. */
export class McpServer {
  readonly requests: McpRequest[] = [];
  /** Names of the tools that were run, in order. */
  readonly executed: string[] = [];
  readonly cancelled: unknown[] = [];
  /** Declarations as they are sent, right or wrong. */
  tools: readonly unknown[] = [];
  /** Answers with one JSON body in place of an event stream. */
  json = false;
  framing: Framing = plain;
  /** Without ids a broken stream cannot be taken up again. */
  ids = true;
  /** Asked of every request; a falsy answer is a 401. */
  authorize: (headers: IncomingHttpHeaders) => boolean = () => true;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #sessions = new Map<string, Session>();
  readonly #streams = new Map<string, Stream>();
  readonly #calls = new Map<string, McpTool>();
  readonly #faults: Fault[] = [];
  #port = 0;

  private constructor() {
    this.#server = createServer({ requestTimeout: 0 }, (request, response) => {
      this.#take(request, response).catch((error: unknown) => {
        if (!response.headersSent) response.writeHead(599);
        response.end(`the fake server failed: ${String(error)}`);
      });
    });
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
      socket.on('error', () => undefined);
    });
  }

  static async start(): Promise<McpServer> {
    const server = new McpServer();
    server.#port = await listenOnLoopback(server.#server);
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}/mcp`;
  }

  get openConnections(): number {
    return this.#sockets.size;
  }

  get sessions(): number {
    return this.#sessions.size;
  }

  /** Declares a tool and says what it does. */
  offer(name: string, run: McpTool, more: JsonObject = {}): void {
    const inputSchema = { type: 'object', properties: {} };
    this.tools = [...this.tools, { name, description: `Does ${name}.`, inputSchema, ...more }];
    this.#calls.set(name, run);
  }

  /** How often a broken stream was taken up again. */
  get replays(): number {
    return this.requests.filter(({ lastEventId }) => lastEventId !== undefined).length;
  }

  count(rpc: string): number {
    return this.requests.filter((request) => request.rpc === rpc).length;
  }

  /** The next requests of this method are answered with this status; they are not run. */
  failNext(rpc: string, status: number, times = 1, body = `refused with ${status}`): void {
    for (let time = 0; time < times; time += 1) this.#faults.push({ rpc, status, body });
  }

  /** As after a restart: all sessions are unknown. */
  forgetSessions(): void {
    for (const { stream } of this.#sessions.values()) stream?.destroy();
    this.#sessions.clear();
  }

  /** Tells every client that listens. */
  notify(method: string): void {
    const message = JSON.stringify({ jsonrpc: '2.0', method });
    for (const { stream } of this.#sessions.values()) stream?.write(`data: ${message}\n\n`);
  }

  get listeners(): number {
    return [...this.#sessions.values()].filter(({ stream }) => stream !== undefined).length;
  }

  async close(): Promise<void> {
    const closed = closeServer(this.#server);
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const message = await bodyOf(request);
    const rpc = typeof message.method === 'string' ? message.method : '';
    const session = headerOf(request, 'mcp-session-id');
    const lastEventId = headerOf(request, 'last-event-id');
    const { method: http = '', headers } = request;
    this.requests.push({ http, rpc, session, lastEventId, headers });
    if (!this.authorize(headers)) return refuse(response, 401, 'no');
    const fault = this.#faults.findIndex((each) => each.rpc === (rpc || http));
    const [due] = fault === -1 ? [] : this.#faults.splice(fault, 1);
    if (due !== undefined) return refuse(response, due.status, due.body);
    if (rpc === 'initialize') return this.#initialize(message, response);
    const known = this.#sessions.get(session ?? '');
    if (known === undefined)
      return refuse(response, 404, '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}');
    if (http === 'DELETE') {
      this.#sessions.delete(known.id);
      return refuse(response, 200, '');
    }
    if (http === 'GET')
      return lastEventId === undefined ? listen(known, response) : this.#replay(lastEventId, response);
    if (message.id === undefined) {
      if (rpc === 'notifications/cancelled' && isObject(message.params)) this.cancelled.push(message.params.requestId);
      return refuse(response, 202, '');
    }
    return this.#answer(message, response);
  }

  async #initialize(message: JsonObject, response: ServerResponse): Promise<void> {
    const id = randomUUID();
    this.#sessions.set(id, { id, stream: undefined });
    const result = {
      protocolVersion: isObject(message.params) ? message.params.protocolVersion : '',
      capabilities: { tools: { listChanged: true } },
      serverInfo: { name: 'fake', version: '1' },
    };
    response.writeHead(200, { 'content-type': 'application/json', 'mcp-session-id': id });
    response.end(JSON.stringify({ jsonrpc: '2.0', id: message.id, result }));
  }

  async #answer(message: JsonObject, response: ServerResponse): Promise<void> {
    const { id, method } = message;
    if (method === 'tools/list') return sendJson(response, { id, result: { tools: this.tools } });
    const params = isObject(message.params) ? message.params : {};
    const run = typeof params.name === 'string' ? this.#calls.get(params.name) : undefined;
    if (method !== 'tools/call' || run === undefined)
      return sendJson(response, { id, error: { code: -32602, message: `Unknown tool: ${String(params.name)}` } });
    this.executed.push(String(params.name));
    const meta = isObject(params._meta) ? params._meta : {};
    const args = isObject(params.arguments) ? params.arguments : {};
    if (this.json) {
      const call = {
        args,
        meta,
        progress: () => undefined,
        cut: () => undefined,
        destroy: () => void response.destroy(),
      };
      return sendJson(response, { id, ...(await outcomeOf(run, call)) });
    }
    const key = randomUUID();
    const stream: Stream = { messages: [], response, isOver: false };
    this.#streams.set(key, stream);
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    if (this.ids) response.write(`id: ${key}.0\nretry: 20\ndata:\n\n`);
    else response.flushHeaders();
    const call: McpCall = {
      args,
      meta,
      progress: (progress, words) =>
        this.#write(key, {
          method: 'notifications/progress',
          params: { progressToken: meta.progressToken, progress, ...(words === undefined ? {} : { message: words }) },
        }),
      cut: () => {
        stream.response?.end();
        stream.response = undefined;
      },
      destroy: () => {
        const { response: broken } = stream;
        stream.response = undefined;
        // What was sent before must arrive.
        broken?.write(': \n', () => broken.destroy());
      },
    };
    this.#write(key, { id, ...(await outcomeOf(run, call)) }, true);
  }

  #write(key: string, message: object, isLast = false): void {
    const stream = this.#streams.get(key);
    if (stream === undefined) return;
    stream.messages.push(JSON.stringify({ jsonrpc: '2.0', ...message }));
    if (stream.response !== undefined) this.#event(key, stream, stream.messages.length, isLast);
    if (!isLast) return;
    stream.isOver = true;
    stream.response?.end();
  }

  #event(key: string, stream: Stream, n: number, isLast: boolean): void {
    const data = stream.messages[n - 1] ?? '';
    stream.response?.write(
      this.ids
        ? this.framing({ id: `${key}.${n}`, data, isLast })
        : this.framing({ id: '', data, isLast }).replace(/^id: ?\r?\n/m, ''),
    );
  }

  async #replay(lastEventId: string, response: ServerResponse): Promise<void> {
    const [key = '', after = '0'] = lastEventId.split('.');
    const stream = this.#streams.get(key);
    if (stream === undefined) return refuse(response, 400, 'nothing to replay');
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    stream.response = response;
    for (let n = Number(after) + 1; n <= stream.messages.length; n += 1) this.#event(key, stream, n, false);
    if (stream.isOver) response.end();
    else response.flushHeaders();
  }
}

/** A tool may answer with a text, a result in full, or an error of the protocol. */
async function outcomeOf(run: McpTool, call: McpCall): Promise<object> {
  const given = await run(call);
  if (typeof given === 'string') return { result: { content: [{ type: 'text', text: given }] } };
  if (!(given instanceof Error)) return { result: given };
  const code = 'code' in given ? given.code : -32603;
  return { error: { code, message: given.message } };
}

async function listen(session: Session, response: ServerResponse): Promise<void> {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.flushHeaders();
  session.stream = response;
}

async function refuse(response: ServerResponse, status: number, body: string): Promise<void> {
  response.writeHead(status, { 'content-type': 'text/plain' });
  response.end(body);
}

async function sendJson(response: ServerResponse, message: object): Promise<void> {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ jsonrpc: '2.0', ...message }));
}

function headerOf(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name];
  return typeof value === 'string' ? value : undefined;
}

async function bodyOf(request: IncomingMessage): Promise<JsonObject> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const parsed = parseJson(Buffer.concat(chunks).toString());
  return parsed.ok && isObject(parsed.value) ? parsed.value : {};
}
