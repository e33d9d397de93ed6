import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { closeServer, listenOnLoopback } from '../support/loopback.js';

export interface RawRequest {
  readonly request: IncomingMessage;
  readonly body: string;
  readonly socket: Socket;
  /** How many requests its connection has carried, this one included. */
  readonly onConnection: number;
}

/** An HTTP endpoint that hands each whole request to the test: for what happens to connections, below any dialect. */
export class RawEndpoint {
  readonly requests: RawRequest[] = [];
  readonly sockets = new Set<Socket>();
  readonly #server: Server;
  readonly #counts = new WeakMap<Socket, number>();
  #port = 0;

  private constructor(answer: (request: RawRequest, response: ServerResponse, index: number) => void) {
    this.#server = createServer({ keepAliveTimeout: 60_000, requestTimeout: 0 }, (request, response) => {
      const { socket } = request;
      const onConnection = (this.#counts.get(socket) ?? 0) + 1;
      this.#counts.set(socket, onConnection);
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const received = { request, body: Buffer.concat(chunks).toString(), socket, onConnection };
        this.requests.push(received);
        answer(received, response, this.requests.length - 1);
      });
    });
    this.#server.on('connection', (socket) => {
      this.sockets.add(socket);
      socket.on('close', () => this.sockets.delete(socket));
      socket.on('error', () => undefined);
    });
  }

  static async start(
    answer: (request: RawRequest, response: ServerResponse, index: number) => void,
  ): Promise<RawEndpoint> {
    const endpoint = new RawEndpoint(answer);
    endpoint.#port = await listenOnLoopback(endpoint.#server);
    return endpoint;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  async close(): Promise<void> {
    const closed = closeServer(this.#server);
    for (const socket of this.sockets) socket.destroy();
    await closed;
  }
}

/** One chunk of a Chat Completions stream. */
export function chatChunk(delta: object, finish: string | null = null): string {
  const choices = [{ index: 0, delta, finish_reason: finish }];
  return `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm', choices })}\n\n`;
}

export const CHAT_END = `${chatChunk({}, 'stop')}data: [DONE]\n\n`;
export const EVENT_STREAM = { 'content-type': 'text/event-stream' } as const;
