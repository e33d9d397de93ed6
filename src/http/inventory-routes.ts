import type { FastifyPluginAsyncZod } from 'fastify-type-provider-zod';
import { z } from 'zod';
import type { AgentRuntime } from '../runtime/agent-runtime.js';
import { answers, jsonAnswer } from './answers.js';
import { NoQuerySchema, pageOf } from './schemas.js';

export interface InventoryRoutesOptions {
  readonly runtime: AgentRuntime;
}

const AnyObject = z.looseObject({});

/** What agents can be made of: shims and models. */
export const inventoryRoutes: FastifyPluginAsyncZod<InventoryRoutesOptions> = async (app, { runtime }) => {
  app.get(
    '/shims',
    {
      schema: {
        tags: ['agents'],
        summary: 'List shims, and the files that failed to load',
        querystring: NoQuerySchema,
        response: answers({ 200: jsonAnswer('All shims.', pageOf(AnyObject)) }),
      },
    },
    async () => ({ data: runtime.listShims(), nextCursor: null }),
  );

  app.get(
    '/models',
    {
      schema: {
        tags: ['agents'],
        summary: 'List model providers, and which are configured',
        querystring: NoQuerySchema,
        response: answers({ 200: jsonAnswer('All model providers.', pageOf(AnyObject)) }),
      },
    },
    async () => ({ data: runtime.listModels(), nextCursor: null }),
  );
};
