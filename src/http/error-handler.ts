import { randomUUID } from 'node:crypto';
import { type ServerResponse, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import fp from 'fastify-plugin';
import {
  AppError,
  isStorageFaultCode,
  MalformedRequestError,
  PayloadTooLargeError,
  RouteNotFoundError,
  StorageUnavailableError,
  UnsupportedMediaTypeError,
} from '../errors.js';
import { HeadersTooLargeError, InternalError, RequestTimeoutError } from './http-errors.js';
import { PROBLEM_MEDIA_TYPE, sendProblem, toProblem } from './problem.js';

/** The one place that answers errors: every error that a route, a hook or Fastify itself throws becomes a problem object. */
export const errorHandler = fp(
  async (app) => {
    app.setErrorHandler((error, request, reply) => answerError(error, request, reply));
    app.setNotFoundHandler((request, reply) =>
      answerError(new RouteNotFoundError(request.method, request.url.split('?', 1)[0] ?? ''), request, reply),
    );
  },
  { name: 'error-handler' },
);

/** Answers what was thrown. Two readers, two texts: a 5xx says nothing of its cause, the log says all. */
export function answerError(thrown: unknown, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const error = toAppError(thrown);
  // A server that drains or waits for its storage refuses on purpose; its own log lines say why.
  const refusal = error.status < 500 || (error.status === 503 && error.cause === undefined);
  if (!refusal) request.log.error({ err: error.cause ?? error, code: error.code }, 'request failed');
  else request.log.info({ code: error.code, status: error.status }, 'request refused');
  readOn(request, reply);
  return sendProblem(reply, error);
}

/** A body up to this size is in the buffers of the sockets before anybody can be disturbed. */
const SMALL_BODY_BYTES = 65_536;

/** Milliseconds that a refused client has to finish its body. */
const READ_ON_MS = 10_000;

/**
 * Most clients send their whole body before they read. One that is refused in the middle of a large body would find the connection
 * reset and never see why; so the answer leaves at once, and the rest is read and dropped for a while before anything is closed.
 */
function readOn({ raw }: FastifyRequest, reply: FastifyReply): void {
  const announced = Number(raw.headers['content-length'] ?? 0);
  if (raw.complete || (announced <= SMALL_BODY_BYTES && raw.headers['transfer-encoding'] === undefined)) return;
  reply.removeHeader('connection');
  reply.raw.shouldKeepAlive = true;
  const limit = setTimeout(() => raw.socket.destroy(), READ_ON_MS);
  raw.once('close', () => {
    clearTimeout(limit);
  });
  raw.resume();
}

function toAppError(thrown: unknown): AppError {
  if (thrown instanceof AppError) return thrown;
  const { code, statusCode } = fastifyFields(thrown);
  if (isStorageFaultCode(code)) return new StorageUnavailableError(thrown);
  switch (code) {
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new PayloadTooLargeError({
        detail: 'The request body is larger than the server accepts (MAX_BODY_BYTES).',
      });
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new UnsupportedMediaTypeError({ detail: 'The body must be JSON, sent as application/json.' });
    case 'FST_ERR_CTP_EMPTY_JSON_BODY':
      return new MalformedRequestError({ detail: 'The body is empty although its content type is application/json.' });
    case 'FST_ERR_CTP_INVALID_JSON_BODY':
      return new MalformedRequestError({ detail: 'The body is not valid JSON, or has a key "__proto__".' });
    case 'FST_ERR_BAD_URL':
      return new MalformedRequestError({ detail: 'The path of the request cannot be decoded.' });
    case 'FST_ERR_MAX_PARAM_LENGTH':
      return new MalformedRequestError({ detail: 'A part of the path of the request is too long.' });
  }
  // What else Fastify refuses, e.g. a content length that the body does not have, is the client's fault as well.
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500 && code.startsWith('FST_')) {
    return new MalformedRequestError({ detail: 'The request is malformed.', cause: thrown });
  }
  return new InternalError(thrown);
}

function fastifyFields(thrown: unknown): { readonly code: string; readonly statusCode: number | undefined } {
  if (!(thrown instanceof Error)) return { code: '', statusCode: undefined };
  const { code, statusCode } = thrown as Partial<FastifyError>;
  return { code: typeof code === 'string' ? code : '', statusCode };
}

/**
 * For `clientErrorHandler`: bytes that are no HTTP request, headers that are too large, a request that did not arrive in time.
 * There is no request, so the answer is written on the socket, unless an answer has begun on it: then it would land inside that.
 */
export function answerClientError(error: NodeJS.ErrnoException, socket: Duplex): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return;
  // Node keeps the response in progress here, and asks the same question in its own handler.
  const { _httpMessage: current } = socket as Duplex & { readonly _httpMessage?: ServerResponse | null };
  if (socket.writable && current?.headersSent !== true) socket.write(rawProblem(error.code));
  socket.destroy();
}

function rawProblem(nodeCode: string | undefined): string {
  const error = clientError(nodeCode);
  const requestId = randomUUID();
  const body = JSON.stringify(toProblem(error, { url: '', requestId }));
  return [
    `HTTP/1.1 ${error.status} ${STATUS_CODES[error.status] ?? ''}`,
    `content-type: ${PROBLEM_MEDIA_TYPE}`,
    `content-length: ${Buffer.byteLength(body)}`,
    `x-request-id: ${requestId}`,
    'connection: close',
    '',
    body,
  ].join('\r\n');
}

function clientError(nodeCode: string | undefined): AppError {
  if (nodeCode === 'ERR_HTTP_REQUEST_TIMEOUT') return new RequestTimeoutError();
  if (nodeCode === 'HPE_HEADER_OVERFLOW') return new HeadersTooLargeError();
  return new MalformedRequestError({ detail: 'This is not an HTTP request.' });
}
