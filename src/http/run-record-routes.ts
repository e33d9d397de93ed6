import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { TERMINAL_STATUSES } from '../agent/run.js';
import { CursorExpiredError, InvalidCursorError, RunNotFoundError } from '../errors.js';
import type { AgentRuntime } from '../runtime/agent-runtime.js';
import { answers, emptyAnswer, jsonAnswer, jsonOrStream } from './answers.js';
import { callerOf } from './auth.js';
import { EVENTS_HEADERS } from './header-documents.js';
import { eventCursor, wantsEventStream } from './request-headers.js';
import type { RunAnswers } from './run-answers.js';
import { EventDocument, EventsQuerySchema, NoQuerySchema, PageQuerySchema, pageOf, RunIdSchema } from './schemas.js';

export interface RunRecordRoutesOptions {
  readonly runtime: AgentRuntime;
  readonly runAnswers: RunAnswers;
}

const tags = ['runs'];
const params = RunIdSchema;

const StateDocument = z.object({
  instructions: z.unknown(),
  history: z.array(z.unknown()),
  shimState: z.record(z.string(), z.unknown()),
  turnCount: z.int(),
  responses: z.array(z.unknown()),
});
const CheckpointDocument = z.object({
  turn: z.int(),
  seq: z.int(),
  at: z.string(),
  turnCount: z.int(),
  historyLength: z.int(),
});
const EffectDocument = z.object({
  turn: z.int().nullable(),
  shim: z.string(),
  callback: z.string(),
  changes: z.array(z.unknown()),
  ms: z.number(),
});
const EventsDocument = z.object({ data: z.array(EventDocument), lastSeq: z.int() });

/** What a run has left behind: its state, checkpoints, effects of shims, and events. */
export const runRecordRoutes: FastifyPluginAsyncZod<RunRecordRoutesOptions> = async (app, { runtime, runAnswers }) => {
  app.get(
    '/runs/:id/state',
    {
      schema: {
        tags,
        summary: 'Read the saved state, internal messages left out',
        params,
        querystring: NoQuerySchema,
        response: answers({ 200: jsonAnswer('The state.', StateDocument) }, RunNotFoundError),
      },
    },
    async (request) => runtime.getState(request.params.id, callerOf(request)),
  );

  app.get(
    '/runs/:id/checkpoints',
    {
      schema: {
        tags,
        summary: 'List the checkpoints that a fork can start from',
        params,
        querystring: PageQuerySchema,
        response: answers(
          { 200: jsonAnswer('A page of checkpoints.', pageOf(CheckpointDocument)) },
          RunNotFoundError,
          InvalidCursorError,
        ),
      },
    },
    async (request) => runtime.listCheckpoints(request.params.id, callerOf(request), request.query),
  );

  app.get(
    '/runs/:id/effects',
    {
      schema: {
        tags,
        summary: 'List which shim changed what',
        params,
        querystring: PageQuerySchema,
        response: answers(
          { 200: jsonAnswer('A page of effects.', pageOf(EffectDocument)) },
          RunNotFoundError,
          InvalidCursorError,
        ),
      },
    },
    async (request) => runtime.listEffects(request.params.id, callerOf(request), request.query),
  );

  app.get(
    '/runs/:id/events',
    {
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: 'Read events as a page, or follow them as a stream',
        description: 'A stream stays open while the run waits, and ends when the run is over.',
        headers: EVENTS_HEADERS,
        params,
        querystring: EventsQuerySchema,
        response: answers(
          {
            200: jsonOrStream('Events after the cursor.', EventsDocument),
            204: emptyAnswer('A stream has nothing more to come: the run is over and its last event was seen.'),
          },
          RunNotFoundError,
          InvalidCursorError,
          CursorExpiredError,
        ),
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      const caller = callerOf(request);
      const after = eventCursor(request.headers['last-event-id'], request.query.after);
      if (!wantsEventStream(request.headers.accept))
        return runtime.readEvents(id, caller, { after, limit: request.query.limit });

      // The status first: a run that ends in between has a later last seq than the cursor, and is streamed to its end.
      const { status } = runtime.getRun(id, caller);
      const { lastSeq } = runtime.readEvents(id, caller, { after, limit: 1 });
      if (TERMINAL_STATUSES.has(status) && after === lastSeq) return reply.code(204).send();
      return runAnswers.follow({ request, reply }, id, after);
    },
  );
};
