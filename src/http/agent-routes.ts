import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod';
import { z } from 'zod';
import {
  AgentNotFoundError,
  MalformedRequestError,
  PayloadTooLargeError,
  StateConflictError,
  UnsupportedMediaTypeError,
  ValidationError,
} from '../errors.js';
import type { AgentRuntime } from '../runtime/agent-runtime.js';
import { answers, emptyAnswer, jsonAnswer } from './answers.js';
import { callerOf } from './auth.js';
import {
  AgentBodySchema,
  AgentDocument,
  AgentNameSchema,
  NoQuerySchema,
  PreviewBodySchema,
  pageOf,
} from './schemas.js';

export interface AgentRoutesOptions {
  readonly runtime: AgentRuntime;
}

const tags = ['agents'];
const params = AgentNameSchema;
const querystring = NoQuerySchema;
const BODY_ERRORS = [MalformedRequestError, PayloadTooLargeError, UnsupportedMediaTypeError] as const;

/** The agents that runs can be started with. */
export const agentRoutes: FastifyPluginAsyncZod<AgentRoutesOptions> = async (app, { runtime }) => {
  app.get(
    '/agents',
    {
      schema: {
        tags,
        summary: 'List agents',
        querystring,
        response: answers({ 200: jsonAnswer('All agents.', pageOf(AgentDocument)) }),
      },
    },
    async () => ({ data: runtime.listAgents(), nextCursor: null }),
  );

  app.get(
    '/agents/:name',
    {
      schema: {
        tags,
        summary: 'Read an agent',
        params,
        querystring,
        response: answers({ 200: jsonAnswer('The agent.', AgentDocument) }, AgentNotFoundError),
      },
    },
    async (request) => runtime.getAgent(request.params.name),
  );

  app.put(
    '/agents/:name',
    {
      schema: {
        tags,
        summary: 'Create or replace an agent',
        description: 'Every change is a new version; runs keep the version that they started with.',
        params,
        querystring,
        body: AgentBodySchema,
        response: answers(
          {
            201: jsonAnswer('The agent is new.', AgentDocument),
            200: jsonAnswer('The agent was replaced.', AgentDocument),
          },
          ...BODY_ERRORS,
          StateConflictError,
        ),
      },
    },
    async (request, reply) => {
      const { name } = request.params;
      if (request.body.name !== undefined && request.body.name !== name) {
        const message = `must be ${JSON.stringify(name)}, as in the path, or left out`;
        throw new ValidationError('The request body is not valid.', [{ pointer: '/name', message }]);
      }
      const { agent, created } = await runtime.saveAgent(name, { ...request.body, name });
      if (created) reply.code(201).header('location', `/v1/agents/${name}`);
      return agent;
    },
  );

  app.delete(
    '/agents/:name',
    {
      config: { bodyOptional: true },
      schema: {
        tags,
        summary: 'Delete an agent',
        params,
        querystring,
        response: answers({ 204: emptyAnswer('The agent is gone.') }, AgentNotFoundError, StateConflictError),
      },
    },
    async (request, reply) => {
      await runtime.deleteAgent(request.params.name);
      return reply.code(204).send();
    },
  );

  app.post(
    '/agents/:name/preview',
    {
      schema: {
        tags,
        summary: 'Show the first model request of a run, and which shim changed what, without calling the model',
        params,
        querystring,
        body: PreviewBodySchema,
        response: answers(
          { 200: jsonAnswer('The request as it would be sent.', z.unknown()) },
          ...BODY_ERRORS,
          AgentNotFoundError,
        ),
      },
    },
    async (request) => runtime.previewAgent(request.params.name, request.body.input, callerOf(request)),
  );
};
