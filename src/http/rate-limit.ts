import fastifyRateLimit from '@fastify/rate-limit';
import fp from 'fastify-plugin';
import { RateLimitedError } from '../errors.js';
import { callerOf } from './auth.js';

export interface RateLimitOptions {
  /** Requests per minute and key; where there are no keys, per address. */
  readonly perMinute: number;
}

/** Bounds the requests of each key in the scope it is registered in, once `auth` knows whose they are. */
export const rateLimit = fp<RateLimitOptions>(
  async (app, { perMinute }) => {
    await app.register(fastifyRateLimit, {
      max: perMinute,
      timeWindow: 60_000,
      keyGenerator: (request) => callerOf(request).key ?? `address ${request.ip}`,
      errorResponseBuilder: (_request, { max, ttl }) =>
        new RateLimitedError({
          detail: `More than ${max} requests in a minute.`,
          retryAfterSeconds: Math.max(1, Math.ceil(ttl / 1000)),
        }),
    });
  },
  { name: 'rate-limit', dependencies: ['auth'] },
);
