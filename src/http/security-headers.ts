import fp from 'fastify-plugin';

/**
 * For answers that no browser should show or run. TLS, where there is any, ends in front of this server, so HSTS is for whoever
 * ends it. Written out, since working them out per request costs as much as reading a run.
 */
const HEADERS = {
  'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
} as const;

/** Sends the security headers of an API with every answer; `/docs` has a content security policy of its own. */
export const securityHeaders = fp(
  async (app) => {
    app.addHook('onRequest', (_request, reply, done) => {
      reply.headers(HEADERS);
      done();
    });
  },
  { name: 'security-headers' },
);
