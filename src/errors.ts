/**
 * Every error that HTTP answers. A class owns its code, status and sentence; call sites pass data only.
 * `detail` is read by the caller of the API, `cause` only by the log. Errors that end a run are in `agent/run-errors.ts`.
 */

/** One fault of a request body, query or header: an RFC 6901 pointer and what was expected there. */
export interface FieldError {
  readonly pointer: string;
  readonly message: string;
}

export interface AppErrorOptions {
  readonly detail: string;
  readonly cause?: unknown;
  readonly errors?: readonly FieldError[];
  readonly retryAfterSeconds?: number;
  /** Extension members of the problem object (RFC 9457, section 3.2). */
  readonly extensions?: Readonly<Record<string, unknown>>;
}

export abstract class AppError extends Error {
  abstract readonly code: string;
  abstract readonly status: number;
  abstract readonly title: string;
  readonly errors: readonly FieldError[] | undefined;
  readonly retryAfterSeconds: number | undefined;
  readonly extensions: Readonly<Record<string, unknown>> | undefined;

  constructor(options: AppErrorOptions) {
    super(options.detail, { cause: options.cause });
    this.name = new.target.name;
    this.errors = options.errors;
    this.retryAfterSeconds = options.retryAfterSeconds;
    this.extensions = options.extensions;
  }
}

export class MalformedRequestError extends AppError {
  readonly code = 'malformed_request';
  readonly status = 400;
  readonly title = 'Malformed request';
}

export class UnauthorizedError extends AppError {
  readonly code = 'unauthorized';
  readonly status = 401;
  readonly title = 'Unauthorized';
  constructor() {
    super({ detail: 'A valid API key is wanted: send it as "Authorization: Bearer <key>".' });
  }
}

export class RunNotFoundError extends AppError {
  readonly code = 'run_not_found';
  readonly status = 404;
  readonly title = 'Run not found';
  constructor(runId: string) {
    super({ detail: `There is no run ${JSON.stringify(runId)}.` });
  }
}

export class AgentNotFoundError extends AppError {
  readonly code = 'agent_not_found';
  readonly status = 404;
  readonly title = 'Agent not found';
  constructor(name: string) {
    super({ detail: `There is no agent ${JSON.stringify(name)}.` });
  }
}

export class RouteNotFoundError extends AppError {
  readonly code = 'route_not_found';
  readonly status = 404;
  readonly title = 'Route not found';
  constructor(method: string, url: string) {
    super({ detail: `There is no route ${method} ${url}.` });
  }
}

/** The attempt of a run that is active holds it; the caller may watch or cancel it. */
export class RunActiveError extends AppError {
  readonly code = 'run_active';
  readonly status = 409;
  readonly title = 'Run active';
  constructor(run: { readonly id: string; readonly attempt: number; readonly status: string }) {
    super({
      detail: `Run ${run.id} is ${run.status}: attempt ${run.attempt} has to end first.`,
      extensions: { runId: run.id, attempt: run.attempt, runStatus: run.status },
    });
  }
}

export class WaitingForDecisionsError extends AppError {
  readonly code = 'waiting_for_decisions';
  readonly status = 409;
  readonly title = 'Waiting for decisions';
  constructor(runId: string, interruptions: readonly unknown[]) {
    super({
      detail: `Run ${runId} waits for ${interruptions.length} decision(s) before it can take new input.`,
      extensions: { runId, interruptions },
    });
  }
}

export class StaleInterruptionError extends AppError {
  readonly code = 'stale_interruption';
  readonly status = 409;
  readonly title = 'Stale interruption';
  constructor(id: string) {
    super({ detail: `Interruption ${JSON.stringify(id)} is not open: it was decided, cancelled or never asked.` });
  }
}

export class StaleSettlementError extends AppError {
  readonly code = 'stale_settlement';
  readonly status = 409;
  readonly title = 'Stale settlement';
  constructor(toolCallId: string) {
    super({ detail: `The outcome of tool call ${JSON.stringify(toolCallId)} is not open: nothing waits for it.` });
  }
}

export class StateConflictError extends AppError {
  readonly code = 'state_conflict';
  readonly status = 409;
  readonly title = 'State conflict';
}

export class CursorExpiredError extends AppError {
  readonly code = 'cursor_expired';
  readonly status = 410;
  readonly title = 'Cursor expired';
  constructor(oldestSeq: number) {
    super({
      detail: `Events before seq ${oldestSeq} were pruned; read on from there.`,
      extensions: { oldestSeq },
    });
  }
}

export class VersionMismatchError extends AppError {
  readonly code = 'version_mismatch';
  readonly status = 412;
  readonly title = 'Version mismatch';
  constructor(expected: string, actual: number) {
    super({
      detail: `If-Match asks for version ${expected}, the run is at version ${actual}.`,
      extensions: { version: actual },
    });
  }
}

export class PayloadTooLargeError extends AppError {
  readonly code = 'payload_too_large';
  readonly status = 413;
  readonly title = 'Payload too large';
}

export class UnsupportedMediaTypeError extends AppError {
  readonly code = 'unsupported_media_type';
  readonly status = 415;
  readonly title = 'Unsupported media type';
}

export class ValidationError extends AppError {
  readonly code = 'validation_failed';
  readonly status = 422;
  readonly title = 'Validation failed';
  constructor(detail: string, errors: readonly FieldError[]) {
    super({ detail, errors });
  }
}

export class InvalidCursorError extends AppError {
  readonly code = 'invalid_cursor';
  readonly status = 422;
  readonly title = 'Invalid cursor';
}

export class IdempotencyMismatchError extends AppError {
  readonly code = 'idempotency_mismatch';
  readonly status = 422;
  readonly title = 'Idempotency mismatch';
  constructor() {
    super({ detail: 'This Idempotency-Key was used before with another body.' });
  }
}

export class InputRequiredError extends AppError {
  readonly code = 'input_required';
  readonly status = 422;
  readonly title = 'Input required';
}

export class QueueFullError extends AppError {
  readonly code = 'queue_full';
  readonly status = 429;
  readonly title = 'Queue full';
  constructor(queued: number) {
    super({ detail: `${queued} runs are queued already.`, retryAfterSeconds: 1 });
  }
}

export class RateLimitedError extends AppError {
  readonly code = 'rate_limited';
  readonly status = 429;
  readonly title = 'Rate limited';
}

export class DrainingError extends AppError {
  readonly code = 'draining';
  readonly status = 503;
  readonly title = 'Draining';
  constructor() {
    super({ detail: 'The server is shutting down and takes no new work.', retryAfterSeconds: 5 });
  }
}

/** What the storage cannot do now, whoever asks; every other error of SQLite is the fault of the one statement. */
const STORAGE_FAULT = /^SQLITE_(BUSY|LOCKED|FULL|IOERR|READONLY|CORRUPT|NOTADB|CANTOPEN|NOMEM|PERM|PROTOCOL)/;

/** Whether an error's code is that of a storage that fails: lock, disk, damage. */
export function isStorageFaultCode(code: unknown): boolean {
  return typeof code === 'string' && STORAGE_FAULT.test(code);
}

/** The database did not take a write (or a read): disk full, locked, read-only, damaged. Nothing was changed. */
export class StorageUnavailableError extends AppError {
  readonly code = 'storage_unavailable';
  readonly status = 503;
  readonly title = 'Storage unavailable';
  constructor(cause?: unknown) {
    super({ detail: 'The store cannot take this now; nothing was changed. Try again.', retryAfterSeconds: 2, cause });
  }
}
