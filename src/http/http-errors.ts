import { AppError } from '../errors.js';

/** Anything that no class of ours stands for. The caller learns nothing of it; the log has the cause. */
export class InternalError extends AppError {
  readonly code = 'internal_error';
  readonly status = 500;
  readonly title = 'Internal error';
  constructor(cause?: unknown) {
    super({ detail: 'The server failed to answer. Its log has the reason, under this request id.', cause });
  }
}

/** `/readyz`: what keeps the server from taking work. */
export class NotReadyError extends AppError {
  readonly code = 'not_ready';
  readonly status = 503;
  readonly title = 'Not ready';
  constructor(faults: readonly string[]) {
    super({ detail: 'The server cannot take work now.', extensions: { faults }, retryAfterSeconds: 2 });
  }
}

/** The request did not arrive in time; answered on the socket, where no route is known yet. */
export class RequestTimeoutError extends AppError {
  readonly code = 'request_timeout';
  readonly status = 408;
  readonly title = 'Request timeout';
  constructor() {
    super({ detail: 'The request was not received completely in time.' });
  }
}

/** `Expect` asks for something else than `100-continue`. */
export class ExpectationFailedError extends AppError {
  readonly code = 'expectation_failed';
  readonly status = 417;
  readonly title = 'Expectation failed';
  constructor() {
    super({ detail: 'The only expectation that this server meets is 100-continue.' });
  }
}

/** Answered on the socket, like RequestTimeoutError. */
export class HeadersTooLargeError extends AppError {
  readonly code = 'headers_too_large';
  readonly status = 431;
  readonly title = 'Headers too large';
  constructor() {
    super({ detail: 'The request line and headers are larger than the server accepts.' });
  }
}
