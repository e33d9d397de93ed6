import type { Usage } from '../agent/model.js';

/** What is known of an answer that failed under way. */
export interface AnswerFacts {
  readonly requestId: string | undefined;
  /** What the provider had told of its cost. */
  readonly usage?: Usage | undefined;
}

/** The body of a streamed answer ended, or its connection broke, before the dialect's own end mark. */
export class StreamCutError extends Error {
  readonly requestId: string | undefined;
  readonly usage: Usage | undefined;

  constructor(message: string, options: { readonly cause?: unknown } & Partial<AnswerFacts> = {}) {
    super(message, { cause: options.cause });
    this.name = 'StreamCutError';
    this.requestId = options.requestId;
    this.usage = options.usage;
  }
}

/** What a provider said went wrong inside an answer whose HTTP status was a success. */
export interface InBandError {
  readonly message: string;
  /** The provider's own type or code, e.g. `overloaded_error`. */
  readonly providerCode: string | undefined;
  /** The HTTP status that the provider named in the error, where it did. */
  readonly status: number | undefined;
}

/** An error that a provider sent with status 200: inside the stream, or as a JSON document in its place. */
export class InBandStreamError extends Error implements InBandError {
  readonly providerCode: string | undefined;
  readonly status: number | undefined;
  readonly requestId: string | undefined;
  readonly usage: Usage | undefined;

  constructor(error: InBandError, facts?: AnswerFacts) {
    super(error.message);
    this.name = 'InBandStreamError';
    this.providerCode = error.providerCode;
    this.status = error.status;
    this.requestId = facts?.requestId;
    this.usage = facts?.usage;
  }
}

/** The endpoint answered with something that is no stream of the dialect and no error either; asking again will not help. */
export class NotAStreamError extends Error {
  readonly requestId: string | undefined;

  constructor(message: string, requestId?: string) {
    super(message);
    this.name = 'NotAStreamError';
    this.requestId = requestId;
  }
}
