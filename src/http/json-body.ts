import { isUtf8 } from 'node:buffer';
import type { IncomingHttpHeaders } from 'node:http';
import type { FastifyInstance } from 'fastify';
import fp from 'fastify-plugin';
import type { JsonValue } from '../agent/json.js';
import { wellFormed } from '../agent/json.js';
import { MalformedRequestError, UnsupportedMediaTypeError } from '../errors.js';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The body may be left out, also where a content type announces one: then it is `{}`. */
    readonly bodyOptional?: boolean;
  }
}

/**
 * Deepest nesting of a body. Whatever walks a value later (checks, copies, the store) may recurse, and a few kilobytes of `[`
 * must not be able to exhaust the stack of the process that everybody's runs live in.
 */
const MAX_DEPTH = 100;

/** Escapes of surrogate halves; where there are none, no half can be alone, since the bytes were UTF-8. */
const SURROGATE_ESCAPE = /\\u[dD][89a-fA-F]/;

const CHARSET = /;\s*charset\s*=\s*"?([^";\s]*)/i;

/** Reads JSON bodies: strict JSON without `__proto__`, bounded in depth, each string well-formed (no provider takes a lone surrogate). */
export const jsonBody = fp(
  async (app: FastifyInstance) => {
    const parse = app.getDefaultJsonParser('error', 'error');
    app.removeContentTypeParser(['application/json', 'text/plain']);
    app.addContentTypeParser<Buffer>('application/json', { parseAs: 'buffer' }, (request, bytes, done) => {
      const unreadable = unreadableBody(request.headers);
      if (unreadable !== undefined) {
        done(new UnsupportedMediaTypeError({ detail: unreadable }));
        return;
      }
      if (!isUtf8(bytes)) {
        done(new MalformedRequestError({ detail: 'The body is not valid UTF-8.' }));
        return;
      }
      const text = bytes.toString();
      if (text === '' && request.routeOptions.config.bodyOptional === true) {
        done(null, undefined);
        return;
      }
      if (isTooDeep(text)) {
        done(new MalformedRequestError({ detail: `The body is nested more than ${MAX_DEPTH} levels deep.` }));
        return;
      }
      void parse(request, text, (error, body) => {
        done(error, error === null && SURROGATE_ESCAPE.test(text) ? wellFormed(body as JsonValue) : body);
      });
    });
    // Some clients name a type for a body that they do not send, e.g. of a form: that must not keep a run from being stopped.
    app.addHook('onRequest', (request, _reply, done) => {
      if (request.routeOptions.config.bodyOptional === true && isEmpty(request.headers))
        delete request.headers['content-type'];
      done();
    });
    app.addHook('preValidation', (request, _reply, done) => {
      if (request.body === undefined && request.routeOptions.config.bodyOptional === true) request.body = {};
      done();
    });
  },
  { name: 'json-body' },
);

function isEmpty(headers: IncomingHttpHeaders): boolean {
  return headers['transfer-encoding'] === undefined && Number(headers['content-length'] ?? 0) === 0;
}

/** Why a body is not read as it was sent; guessing would give other text than was meant. */
function unreadableBody(headers: IncomingHttpHeaders): string | undefined {
  const encoding = headers['content-encoding'];
  if (encoding !== undefined && encoding.trim().toLowerCase() !== 'identity')
    return 'The body must come as it is, without a content encoding.';
  const charset = CHARSET.exec(headers['content-type'] ?? '')?.[1];
  return charset === undefined || /^utf-?8$/i.test(charset) ? undefined : 'The body must be UTF-8.';
}

function isTooDeep(json: string): boolean {
  if (json.length <= MAX_DEPTH) return false;
  let depth = 0;
  let inString = false;
  for (let at = 0; at < json.length; at += 1) {
    const unit = json.charCodeAt(at);
    if (inString) {
      if (unit === 0x5c) at += 1;
      else if (unit === 0x22) inString = false;
    } else if (unit === 0x22) inString = true;
    else if (unit === 0x5b || unit === 0x7b) {
      depth += 1;
      if (depth > MAX_DEPTH) return true;
    } else if (unit === 0x5d || unit === 0x7d) depth -= 1;
  }
  return false;
}
