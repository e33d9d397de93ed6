import { LostAnswerError } from './http-link.js';

/**
 * Why a request came to nothing. `session`: the server does not know our session, so it did nothing. `refused`: it let us not in.
 * `unavailable`: it, or something before it, said that it cannot now. `lost`: the connection broke, so what happened is not known.
 * `answered`: the server says that the request is wrong; asking again would change nothing.
 */
export type FaultKind = 'session' | 'refused' | 'unavailable' | 'lost' | 'answered' | 'timeout';

export interface Fault {
  readonly kind: FaultKind;
  readonly message: string;
}

const JSON_RPC_TIMEOUT = -32001;
const JSON_RPC_CLOSED = -32000;
const MAX_MESSAGE = 500;

/** @param closed whether the connection that was used is closed by now */
export function faultOf(error: unknown, closed: boolean): Fault {
  const message = (error instanceof Error ? error.message : String(error)).slice(0, MAX_MESSAGE * 2);
  const fault = (kind: FaultKind, words = message): Fault => ({ kind, message: words.slice(0, MAX_MESSAGE) });
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  if (error instanceof LostAnswerError) return fault('lost');
  if (typeof error === 'object' && error !== null && 'issues' in error)
    return fault('answered', 'the answer is not what the protocol says');
  // The SDK's HTTP errors have a status as their code, the protocol's errors any number.
  const ofProtocol = error instanceof Error && error.name === 'McpError';
  if (typeof code === 'number' && code >= 100 && !ofProtocol)
    return fault(httpKind(code, message), `HTTP ${code}: ${message}`);
  if (closed || (code === JSON_RPC_CLOSED && message.endsWith('Connection closed')))
    return fault('lost', 'the connection was closed');
  if (code === JSON_RPC_TIMEOUT && message.includes('Request timed out')) return fault('timeout');
  if (typeof code === 'number') return fault('answered');
  // What `fetch` throws says nothing; its cause does (ECONNREFUSED and the like).
  if (error instanceof TypeError) return fault('lost', causeOf(error));
  return fault('lost');
}

function httpKind(status: number, message: string): FaultKind {
  if (status === 404 || (status === 400 && /session/i.test(message))) return 'session';
  if (status === 401 || status === 403 || status === 407) return 'refused';
  return status === 429 || status >= 500 ? 'unavailable' : 'answered';
}

function causeOf(error: Error): string {
  const { cause } = error;
  if (!(cause instanceof Error)) return error.message;
  const code = 'code' in cause && typeof cause.code === 'string' ? `${cause.code} ` : '';
  return `${error.message}: ${code}${cause.message}`;
}
