import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import fp from 'fastify-plugin';

/** What a server that closes waits for: the rest of requests that have begun, and the last bytes of answers, in milliseconds. */
const LAST_BYTES_MS = 2000;

/**
 * Lets no connection outlive its server, which Node does only for those between two requests: one that waits for no answer is closed at
 * once, whether it has asked for anything yet or not, each other one after its last answer, and what is left after a moment: half a
 * request, a client that does not read.
 */
export const connections = fp(
  async (app) => {
    /** The answers that each connection still waits for; several where requests are pipelined. */
    const open = new Map<Socket, Set<ServerResponse>>();
    let closing = false;

    app.server.on('connection', (socket: Socket) => {
      open.set(socket, new Set());
      socket.once('close', () => open.delete(socket));
    });
    const begin = ({ socket }: IncomingMessage, response: ServerResponse): void => {
      const answers = open.get(socket);
      if (answers === undefined) return;
      answers.add(response);
      if (closing) announceEnd(answers);
      response.once('close', () => {
        answers.delete(response);
        if (closing && answers.size === 0) socket.end();
      });
    };
    app.server.on('request', begin);
    app.server.on('checkExpectation', begin);

    app.addHook('preClose', async () => {
      closing = true;
      for (const [socket, answers] of open) {
        if (answers.size === 0) socket.destroy();
        else announceEnd(answers);
      }
      setTimeout(() => {
        for (const socket of open.keys()) socket.destroy();
      }, LAST_BYTES_MS).unref();
    });
  },
  { name: 'connections' },
);

/** The last answer says that it is the last, unless its head has been sent or others are before it. */
function announceEnd(answers: ReadonlySet<ServerResponse>): void {
  const [last] = answers;
  if (answers.size === 1 && last?.headersSent === false) last.setHeader('connection', 'close');
}
