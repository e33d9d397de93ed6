import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { DrainingError } from '../errors.js';
import type { AgentRuntime } from '../runtime/agent-runtime.js';
import { jsonAnswer, openAnswers } from './answers.js';
import { NotReadyError } from './http-errors.js';

export interface OpsRoutesOptions {
  readonly runtime: AgentRuntime;
}

const tags = ['operations'];
/** No key is wanted. */
const security: [] = [];

/** What an orchestrator asks: whether the process lives, and whether it can take work. */
export const opsRoutes: FastifyPluginAsyncZod<OpsRoutesOptions> = async (app, { runtime }) => {
  app.get(
    '/healthz',
    {
      schema: {
        tags,
        security,
        summary: 'Whether the process lives',
        response: openAnswers({ 200: jsonAnswer('It does.', z.object({ status: z.literal('ok') })) }),
      },
    },
    async () => ({ status: 'ok' }),
  );

  app.get(
    '/readyz',
    {
      schema: {
        tags,
        security,
        summary: 'Whether the server takes work: store writable, shims loaded, not draining',
        response: openAnswers(
          { 200: jsonAnswer('It does.', z.object({ status: z.literal('ready') })) },
          DrainingError,
          NotReadyError,
        ),
      },
    },
    async () => {
      if (runtime.draining) throw new DrainingError();
      const faults = runtime.readinessFaults();
      if (faults.length > 0) throw new NotReadyError(faults);
      return { status: 'ready' };
    },
  );
};
