import { z } from 'zod';
import { RateLimitedError, StorageUnavailableError, UnauthorizedError, ValidationError } from '../errors.js';
import { catalogued, type ErrorClass } from './error-catalogue.js';
import { InternalError } from './http-errors.js';
import { PROBLEM_MEDIA_TYPE, ProblemSchema } from './problem.js';

/** What a status of a route answers with; the types of bodies are documented, and not checked again on their way out. */
interface Answer {
  readonly description: string;
  readonly content: Readonly<Record<string, { readonly schema: z.ZodType }>>;
}

type Answers = Readonly<Record<number, Answer | z.ZodType>>;

export function jsonAnswer(description: string, schema: z.ZodType): Answer {
  return { description, content: { 'application/json': { schema } } };
}

export function textAnswer(description: string): Answer {
  return { description, content: { 'text/plain': { schema: z.string() } } };
}

/** JSON, or the stream of events where `Accept: text/event-stream` asks for it. */
export function jsonOrStream(description: string, schema: z.ZodType): Answer {
  const stream = z.string().meta({
    description:
      'Server-sent events: id is seq, event is type, data is the event as JSON. It begins with "retry: 2000"; ": hb" every 15 s.',
  });
  return { description, content: { 'application/json': { schema }, 'text/event-stream': { schema: stream } } };
}

/** No body, which the document's generator knows by the schema of null. */
export function emptyAnswer(description: string): z.ZodType {
  return z.null().meta({ description });
}

/** What every route under `/v1` may answer. */
const ALWAYS: readonly ErrorClass[] = [
  UnauthorizedError,
  ValidationError,
  RateLimitedError,
  InternalError,
  StorageUnavailableError,
];

/** The answers of a route under `/v1`, with its errors. */
export function answers(successes: Answers, ...errors: readonly ErrorClass[]): Answers {
  return openAnswers(successes, ...ALWAYS, ...errors);
}

/** The answers of a route that needs no key. */
export function openAnswers(successes: Answers, ...errors: readonly ErrorClass[]): Answers {
  const byStatus = new Map<number, string[]>();
  for (const { status, code } of errors.map(catalogued)) byStatus.set(status, [...(byStatus.get(status) ?? []), code]);
  const problems = [...byStatus].map(([status, codes]) => [status, problemAnswer(status, codes)] as const);
  return { ...successes, ...Object.fromEntries(problems) };
}

function problemAnswer(status: number, codes: readonly string[]): Answer {
  const schema = z.intersection(ProblemSchema, z.looseObject({ status: z.literal(status), code: z.enum(codes) }));
  return { description: codes.join(', '), content: { [PROBLEM_MEDIA_TYPE]: { schema } } };
}
