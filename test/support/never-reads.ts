import { connect, type Socket } from 'node:net';
import { hasTcpTable, tcpEntry } from './tcp-table.js';

export interface NeverReader {
  /** Resolves when the other side has given the connection up, seen without reading from it. */
  readonly closed: Promise<void>;
  readonly bytesRead: number;
  /** Starts to read; resolves with everything that arrives up to the end. */
  resume(): Promise<Buffer>;
  /** Destroys the socket. */
  destroy(): void;
}

const pollMs = 50;

/** Sends the request and reads not a single byte, so that the server's writes back up. */
export async function neverReads(
  url: string,
  headers: Readonly<Record<string, string>> = {},
  options: { readonly method?: string; readonly body?: string } = {},
): Promise<NeverReader> {
  const { hostname, port, pathname, search } = new URL(url);
  const socket = connect({ host: hostname, port: Number(port) });
  // Paused before it connects, else Node reads the first 64 KiB by itself.
  socket.pause();
  socket.on('error', () => undefined);
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', resolve);
    socket.once('error', reject);
  });
  const localPort = socket.localPort ?? 0;
  const { body = '', method = 'GET' } = options;
  const all: Record<string, string> = { host: `${hostname}:${port}`, accept: 'text/event-stream', ...headers };
  if (body !== '') all['content-length'] = String(Buffer.byteLength(body));
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}`);
  socket.write(`${method} ${pathname}${search} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n${body}`);
  return {
    closed: closedSeenFromOutside(socket, Number(port), localPort),
    get bytesRead() {
      return socket.bytesRead;
    },
    resume: async () => readToEnd(socket),
    destroy: () => {
      socket.destroy();
    },
  };
}

async function readToEnd(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  await new Promise<void>((resolve) => {
    socket.once('close', resolve);
    socket.resume();
  });
  return Buffer.concat(chunks);
}

/** A socket that is not read never hears of its end: the kernel's table of the server's side does tell. */
async function closedSeenFromOutside(socket: Socket, serverPort: number, clientPort: number): Promise<void> {
  await new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      if (hasTcpTable && tcpEntry(serverPort, clientPort)?.established !== true) done();
    }, pollMs);
    timer.unref();
    const done = (): void => {
      clearInterval(timer);
      resolve();
    };
    socket.once('close', done);
  });
}
