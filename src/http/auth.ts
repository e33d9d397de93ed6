import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import fp from 'fastify-plugin';
import { UnauthorizedError } from '../errors.js';
import type { Caller } from '../runtime/agent-runtime.js';

declare module 'fastify' {
  interface FastifyRequest {
    /** Set by the auth hook; read it through `callerOf`. */
    caller: Caller | null;
  }
}

export interface AuthOptions {
  /** Empty: everyone is let in, as the caller without a name. */
  readonly keys: readonly { readonly name: string; readonly key: string }[];
}

const NOBODY: Caller = Object.freeze({ key: null });

/** Wants a key for every route of the scope it is registered in. Only hashes of the keys are kept. */
export const auth = fp<AuthOptions>(
  async (app, { keys }) => {
    const known = keys.map(({ name, key }) => ({ caller: Object.freeze<Caller>({ key: name }), hash: sha256(key) }));

    app.decorateRequest('caller', null);
    app.addHook('onRequest', (request, _reply, done) => {
      if (known.length === 0) {
        request.caller = NOBODY;
        done();
        return;
      }
      const given = bearerOf(request.headers.authorization);
      request.caller = given === undefined ? null : match(given);
      if (request.caller === null) done(new UnauthorizedError());
      else done();
    });

    /** Compares with every key, equal or not, so that the time tells nothing about which one came close. */
    function match(given: string): Caller | null {
      const hash = sha256(given);
      let found: Caller | null = null;
      for (const { caller, hash: wanted } of known) {
        if (timingSafeEqual(hash, wanted)) found = caller;
      }
      return found;
    }
  },
  { name: 'auth' },
);

/** Who sent a request to a route behind `auth`. @throws TypeError elsewhere: a route without the hook must not answer for anyone */
export function callerOf(request: FastifyRequest): Caller {
  if (request.caller === null) throw new TypeError('This route is not behind the auth hook.');
  return request.caller;
}

function bearerOf(authorization: string | undefined): string | undefined {
  return /^bearer +(\S+) *$/i.exec(authorization ?? '')?.[1];
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}
