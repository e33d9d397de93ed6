import {
  AgentNotFoundError,
  type AppError,
  CursorExpiredError,
  DrainingError,
  IdempotencyMismatchError,
  InputRequiredError,
  InvalidCursorError,
  MalformedRequestError,
  PayloadTooLargeError,
  QueueFullError,
  RateLimitedError,
  RouteNotFoundError,
  RunActiveError,
  RunNotFoundError,
  StaleInterruptionError,
  StaleSettlementError,
  StateConflictError,
  StorageUnavailableError,
  UnauthorizedError,
  UnsupportedMediaTypeError,
  ValidationError,
  VersionMismatchError,
  WaitingForDecisionsError,
} from '../errors.js';
import {
  ExpectationFailedError,
  HeadersTooLargeError,
  InternalError,
  NotReadyError,
  RequestTimeoutError,
} from './http-errors.js';

const detail = '';
const run = { id: '', attempt: 0, status: '' };

/** One of each class that HTTP can answer with, so that its code, status and title can be documented. */
export const ERROR_CATALOGUE: readonly AppError[] = [
  new MalformedRequestError({ detail }),
  new UnauthorizedError(),
  new RunNotFoundError(''),
  new AgentNotFoundError(''),
  new RouteNotFoundError('', ''),
  new RequestTimeoutError(),
  new RunActiveError(run),
  new WaitingForDecisionsError('', []),
  new StaleInterruptionError(''),
  new StaleSettlementError(''),
  new StateConflictError({ detail }),
  new CursorExpiredError(0),
  new VersionMismatchError('', 0),
  new PayloadTooLargeError({ detail }),
  new UnsupportedMediaTypeError({ detail }),
  new ExpectationFailedError(),
  new ValidationError(detail, []),
  new InvalidCursorError({ detail }),
  new IdempotencyMismatchError(),
  new InputRequiredError({ detail }),
  new QueueFullError(0),
  new RateLimitedError({ detail }),
  new HeadersTooLargeError(),
  new InternalError(),
  new DrainingError(),
  new StorageUnavailableError(),
  new NotReadyError([]),
];

// Whatever the arguments of a class are, its instances are what is looked up here.
export type ErrorClass = abstract new (...args: never[]) => AppError;

/** The catalogue's instance of a class. @throws TypeError for a class that the catalogue forgot */
export function catalogued(errorClass: ErrorClass): AppError {
  const found = ERROR_CATALOGUE.find((error) => error.constructor === errorClass);
  if (found === undefined) throw new TypeError(`${errorClass.name} is not in the error catalogue.`);
  return found;
}
