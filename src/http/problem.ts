import type { FastifyReply } from 'fastify';
import { z } from 'zod';
import type { AppError } from '../errors.js';
import { ERROR_CATALOGUE } from './error-catalogue.js';

export const PROBLEM_MEDIA_TYPE = 'application/problem+json';

const codes = ERROR_CATALOGUE.map((error) => error.code);

/** The body of every error (RFC 9457). Codes have members of their own beside these, e.g. `attempt` of `run_active`. */
export const ProblemSchema = z
  .looseObject({
    type: z.string().meta({ description: 'urn:shimline:error:<code>', examples: ['urn:shimline:error:run_not_found'] }),
    title: z.string(),
    status: z.int(),
    detail: z.string(),
    instance: z.string().meta({ description: 'The path that was asked for, without its query.' }),
    code: z.enum(codes).meta({ description: 'What a program decides by; never renamed.' }),
    requestId: z.string().meta({ description: 'As in the header x-request-id and in the log.' }),
    errors: z
      .array(
        z.object({
          pointer: z.string().meta({
            description: 'JSON pointer into the body (/input), or beginning with /query, /headers or /path into those.',
          }),
          message: z.string(),
        }),
      )
      .optional(),
  })
  .meta({ id: 'Problem', description: 'An error, as RFC 9457 has it.' });
export type Problem = z.infer<typeof ProblemSchema>;

/**
 * The problem object of an error.
 * @param where.url as requested; its query is left out, since it may hold what belongs in no log
 */
export function toProblem(error: AppError, where: { readonly url: string; readonly requestId: string }): Problem {
  return {
    ...error.extensions,
    type: `urn:shimline:error:${error.code}`,
    title: error.title,
    status: error.status,
    detail: error.message,
    instance: where.url.split('?', 1)[0] ?? '',
    code: error.code,
    requestId: where.requestId,
    ...(error.errors === undefined ? {} : { errors: [...error.errors] }),
  };
}

/** Answers with an error: status, media type, `Retry-After` and `WWW-Authenticate` where they belong. */
export function sendProblem(reply: FastifyReply, error: AppError): FastifyReply {
  if (error.retryAfterSeconds !== undefined) reply.header('retry-after', String(error.retryAfterSeconds));
  if (error.status === 401) reply.header('www-authenticate', 'Bearer');
  const problem = toProblem(error, { url: reply.request.url, requestId: reply.request.id });
  return reply.code(error.status).type(PROBLEM_MEDIA_TYPE).serializer(JSON.stringify).send(problem);
}
