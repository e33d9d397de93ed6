import { connect, createServer, type Server, type Socket } from 'node:net';
import { closeServer, listenOnLoopback } from './loopback.js';

export interface TcpProxyOptions {
  /** Cuts a connection after so long without a byte in either direction, as load balancers do. */
  readonly idleTimeoutMs?: number;
}

interface Pair {
  readonly client: Socket;
  readonly server: Socket;
}

/** Stands between a client and a server, and breaks what passes through. */
export class TcpProxy {
  /** May be changed while it runs; counts from then on for each connection's next byte. */
  idleTimeoutMs: number | undefined;
  /** New connections are reset at once. */
  refusing = false;
  idleCuts = 0;
  readonly #server: Server;
  readonly #target: { readonly host: string; readonly port: number };
  readonly #pairs = new Set<Pair>();
  #port = 0;
  #paused = false;

  private constructor(target: string, options: TcpProxyOptions) {
    const { hostname, port } = new URL(target);
    this.#target = { host: hostname, port: Number(port) };
    this.idleTimeoutMs = options.idleTimeoutMs;
    this.#server = createServer({ allowHalfOpen: true }, (client) => {
      this.#join(client);
    });
  }

  /** @param target the base address of the server behind */
  static async start(target: string, options: TcpProxyOptions = {}): Promise<TcpProxy> {
    const proxy = new TcpProxy(target, options);
    proxy.#port = await listenOnLoopback(proxy.#server);
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  get connections(): number {
    return this.#pairs.size;
  }

  /** Ends every connection on both sides: with a reset, or cleanly with `end`. */
  cut(how: 'reset' | 'end' = 'reset'): void {
    for (const { client, server } of this.#pairs) {
      for (const socket of [client, server]) {
        if (how === 'reset') socket.resetAndDestroy();
        else socket.destroySoon();
      }
    }
  }

  /** Passes no more bytes on, and keeps everything open. */
  pause(): void {
    this.#paused = true;
    for (const { client, server } of this.#pairs) {
      client.pause();
      server.pause();
    }
  }

  resume(): void {
    this.#paused = false;
    for (const { client, server } of this.#pairs) {
      client.resume();
      server.resume();
    }
  }

  async close(): Promise<void> {
    const closed = closeServer(this.#server);
    this.cut();
    await closed;
  }

  #join(client: Socket): void {
    client.on('error', () => undefined);
    if (this.refusing) {
      client.resetAndDestroy();
      return;
    }
    const server = connect({ ...this.#target, allowHalfOpen: true });
    const pair = { client, server };
    this.#pairs.add(pair);
    let timer: NodeJS.Timeout | undefined;
    const touch = (): void => {
      clearTimeout(timer);
      if (this.idleTimeoutMs === undefined) return;
      timer = setTimeout(() => {
        this.idleCuts += 1;
        client.resetAndDestroy();
        server.resetAndDestroy();
      }, this.idleTimeoutMs);
    };
    const leave = (): void => {
      clearTimeout(timer);
      this.#pairs.delete(pair);
    };
    touch();
    this.#carry(client, server, touch, leave);
    this.#carry(server, client, touch, leave);
  }

  #carry(from: Socket, to: Socket, touch: () => void, leave: () => void): void {
    from.setNoDelay(true);
    from.on('error', () => to.resetAndDestroy());
    from.on('data', (chunk: Buffer) => {
      touch();
      if (to.write(chunk)) return;
      from.pause();
      to.once('drain', () => {
        if (!this.#paused) from.resume();
      });
    });
    from.on('end', () => to.end());
    from.on('close', () => {
      leave();
      to.destroySoon();
    });
    if (this.#paused) from.pause();
  }
}
