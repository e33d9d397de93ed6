import type { FastifyInstance } from 'fastify';
import fp from 'fastify-plugin';
import { MalformedRequestError } from '../errors.js';
import { answerClientError } from './error-handler.js';
import { ExpectationFailedError } from './http-errors.js';

/** As Node's own server reads the header. */
const CONTINUE = /(?:^|\W)100-continue(?:$|\W)/i;

/** Requests that Node's server would refuse by itself, with an empty answer or none: they get a problem object like all others. */
export const protocol = fp(
  async (app: FastifyInstance) => {
    app.server.on('checkExpectation', (request, response) => {
      app.routing(request, response);
    });
    app.server.on('connect', (_request, socket) => {
      answerClientError(new Error('CONNECT is for proxies'), socket);
    });
    app.addHook('onRequest', (request, reply, done) => {
      const { host, expect } = request.headers;
      // `requireHostHeader` of Node's server is off for this.
      if (host === undefined && request.raw.httpVersion === '1.1') {
        void reply.header('connection', 'close');
        done(new MalformedRequestError({ detail: 'A request of HTTP/1.1 must have the header Host.' }));
      } else if (expect !== undefined && !CONTINUE.test(expect)) {
        void reply.header('connection', 'close');
        done(new ExpectationFailedError());
      } else done();
    });
  },
  { name: 'protocol' },
);
