import { randomUUID } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import fp from 'fastify-plugin';

/** What may be taken over into logs and answers: no spaces, quotes or line breaks, and not long. */
const SAFE_ID = /^[A-Za-z0-9._:-]{1,128}$/;

/** The caller's own `x-request-id` where it is harmless, else a fresh one. */
export function newRequestId(request: IncomingMessage): string {
  const given = request.headers['x-request-id'];
  return typeof given === 'string' && SAFE_ID.test(given) ? given : randomUUID();
}

/** Answers every request with its id. */
export const requestId = fp(
  async (app) => {
    app.addHook('onRequest', (request, reply, done) => {
      reply.header('x-request-id', request.id);
      done();
    });
  },
  { name: 'request-id' },
);
