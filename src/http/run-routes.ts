import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod';
import {
  DrainingError,
  IdempotencyMismatchError,
  InputRequiredError,
  InvalidCursorError,
  MalformedRequestError,
  PayloadTooLargeError,
  QueueFullError,
  RunActiveError,
  RunNotFoundError,
  StaleInterruptionError,
  StaleSettlementError,
  StateConflictError,
  UnsupportedMediaTypeError,
  VersionMismatchError,
  WaitingForDecisionsError,
} from '../errors.js';
import type { AgentRuntime } from '../runtime/agent-runtime.js';
import { answers, emptyAnswer, jsonAnswer, jsonOrStream } from './answers.js';
import { callerOf } from './auth.js';
import { RESUME_HEADERS, START_HEADERS, WAIT_HEADERS } from './header-documents.js';
import { idempotencyKey, ifMatch } from './request-headers.js';
import { locate, type RunAnswers } from './run-answers.js';
import {
  DeleteQuerySchema,
  ForkBodySchema,
  metadataFilter,
  NoQuerySchema,
  pageOf,
  ResumeBodySchema,
  RunDocument,
  RunIdSchema,
  RunsQuerySchema,
  StartBodySchema,
} from './schemas.js';

export interface RunRoutesOptions {
  readonly runtime: AgentRuntime;
  readonly runAnswers: RunAnswers;
}

const tags = ['runs'];
const BODY_ERRORS = [MalformedRequestError, PayloadTooLargeError, UnsupportedMediaTypeError] as const;

/** What happens to runs: start, resume, cancel, fork, purge; and their records. */
export const runRoutes: FastifyPluginAsyncZod<RunRoutesOptions> = async (app, { runtime, runAnswers }) => {
  app.post(
    '/runs',
    {
      schema: {
        tags,
        summary: 'Start a run',
        headers: START_HEADERS,
        querystring: NoQuerySchema,
        body: StartBodySchema,
        response: answers(
          {
            202: jsonAnswer('The run goes on.', RunDocument),
            200: jsonOrStream('The run whose attempt has ended, or waits; or the events of its attempt.', RunDocument),
          },
          ...BODY_ERRORS,
          IdempotencyMismatchError,
          QueueFullError,
          DrainingError,
        ),
      },
    },
    async (request, reply) => {
      const start = { ...request.body, idempotencyKey: idempotencyKey(request.headers['idempotency-key']) };
      const change = await runtime.startRun(start, callerOf(request));
      if (change.replayed) reply.header('idempotency-replayed', 'true');
      return runAnswers.started({ request, reply }, change, { cancelWhenGone: start.onDisconnect === 'cancel' });
    },
  );

  app.get(
    '/runs',
    {
      schema: {
        tags,
        summary: 'List runs, newest first',
        description: 'Parameters `metadata.<key>=<value>` filter by metadata; there may be several.',
        querystring: RunsQuerySchema,
        response: answers({ 200: jsonAnswer('A page of runs.', pageOf(RunDocument)) }, InvalidCursorError),
      },
    },
    async (request) => {
      const { agent, status, createdAfter, createdBefore, parent, limit, cursor } = request.query;
      const filter = { agent, status, createdAfter, createdBefore, parent, limit, cursor };
      return runtime.listRuns({ ...filter, metadata: metadataFilter(request.query) }, callerOf(request));
    },
  );

  app.get(
    '/runs/:id',
    {
      schema: {
        tags,
        summary: 'Read a run',
        headers: WAIT_HEADERS,
        params: RunIdSchema,
        querystring: NoQuerySchema,
        response: answers({ 200: jsonAnswer('The run; ETag has its version.', RunDocument) }, RunNotFoundError),
      },
    },
    async (request, reply) => runAnswers.current({ request, reply }, request.params.id),
  );

  app.post(
    '/runs/:id/resume',
    {
      config: { bodyOptional: true },
      schema: {
        tags,
        summary: 'Resume a run: decide, settle, raise limits, or go on with new input',
        headers: RESUME_HEADERS,
        params: RunIdSchema,
        querystring: NoQuerySchema,
        body: ResumeBodySchema,
        response: answers(
          {
            202: jsonAnswer('The run goes on.', RunDocument),
            200: jsonOrStream(
              'The run whose attempt has ended, or waits; or the events of the new attempt.',
              RunDocument,
            ),
          },
          ...BODY_ERRORS,
          RunNotFoundError,
          RunActiveError,
          WaitingForDecisionsError,
          StaleInterruptionError,
          StaleSettlementError,
          StateConflictError,
          VersionMismatchError,
          InputRequiredError,
          QueueFullError,
          DrainingError,
        ),
      },
    },
    async (request, reply) => {
      const resume = { ...request.body, ifMatch: ifMatch(request.headers['if-match']) };
      const change = await runtime.resumeRun(request.params.id, resume, callerOf(request));
      return runAnswers.started({ request, reply }, change, { cancelWhenGone: false });
    },
  );

  const cancelAnswers = answers(
    {
      202: jsonAnswer('The run is being cancelled.', RunDocument),
      200: jsonOrStream('The run, which is over; or its events from run.cancelling on.', RunDocument),
    },
    RunNotFoundError,
  );

  app.post(
    '/runs/:id/cancel',
    {
      config: { bodyOptional: true },
      schema: {
        tags,
        summary: 'Cancel a run',
        headers: WAIT_HEADERS,
        params: RunIdSchema,
        querystring: NoQuerySchema,
        response: cancelAnswers,
      },
    },
    async (request, reply) =>
      runAnswers.cancelled({ request, reply }, await runtime.cancelRun(request.params.id, callerOf(request))),
  );

  app.delete(
    '/runs/:id',
    {
      config: { bodyOptional: true },
      schema: {
        tags,
        summary: 'Cancel a run, or with purge=true delete the record of one that is over',
        headers: WAIT_HEADERS,
        params: RunIdSchema,
        querystring: DeleteQuerySchema,
        response: {
          ...cancelAnswers,
          ...answers({ 204: emptyAnswer('The record is gone.') }, RunActiveError, StateConflictError),
        },
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      if (!request.query.purge)
        return runAnswers.cancelled({ request, reply }, await runtime.cancelRun(id, callerOf(request)));
      await runtime.purgeRun(id, callerOf(request));
      return reply.code(204).send();
    },
  );

  app.post(
    '/runs/:id/fork',
    {
      config: { bodyOptional: true },
      schema: {
        tags,
        summary: 'Start a new run from a checkpoint of this one',
        params: RunIdSchema,
        querystring: NoQuerySchema,
        body: ForkBodySchema,
        response: answers(
          { 201: jsonAnswer('The new run, started.', RunDocument) },
          ...BODY_ERRORS,
          RunNotFoundError,
          InputRequiredError,
          StateConflictError,
          QueueFullError,
          DrainingError,
        ),
      },
    },
    async (request, reply) => {
      const { run } = await runtime.forkRun(request.params.id, request.body, callerOf(request));
      locate(reply, run.id);
      reply.code(201);
      return run;
    },
  );
};
