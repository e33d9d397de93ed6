import fastifySwagger, { type SwaggerTransformObject } from '@fastify/swagger';
import fastifySwaggerUi from '@fastify/swagger-ui';
import fp from 'fastify-plugin';
import { createJsonSchemaTransform, createJsonSchemaTransformObject } from 'fastify-type-provider-zod';
import type { z } from 'zod';

/** Everything that the docs page loads comes from this server, and its styles are inline: it works without a network. */
const DOCS_CSP =
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** Describes the routes that are registered after it: `GET /openapi.json`, and for people `GET /docs`. */
export const openapi = fp(
  async (app) => {
    await app.register(fastifySwagger, {
      openapi: {
        openapi: '3.1.0',
        info: {
          title: 'Shimline',
          version: '1',
          description:
            'Durable, resumable, cancellable runs of LLM agents, shaped by shims. Every error is a problem object (RFC 9457).',
        },
        tags: [
          { name: 'runs', description: 'One conversation line each: started once, resumed as often as you like.' },
          { name: 'agents', description: 'Agents, and what they can be made of.' },
          { name: 'operations', description: 'For orchestrators; no key is wanted.' },
        ],
        components: { securitySchemes: { bearer: { type: 'http', scheme: 'bearer' } } },
        security: [{ bearer: [] }],
      },
      transform: createJsonSchemaTransform({ zodToJsonConfig: { override } }),
      transformObject: withUsedSchemas,
    });
    await app.register(fastifySwaggerUi, { routePrefix: '/docs', staticCSP: DOCS_CSP });

    let document: string | undefined;
    app.get('/openapi.json', { schema: { hide: true } }, async (_request, reply) => {
      document ??= JSON.stringify(app.swagger());
      reply.type('application/json; charset=utf-8');
      return document;
    });
  },
  { name: 'openapi' },
);

type Document = ReturnType<SwaggerTransformObject>;

const transformObject = createJsonSchemaTransformObject({ zodToJsonConfig: { override } });

/** Leaves out what zod says beyond the contract: that answers never get new fields, and the bounds of JavaScript's integers. */
function override({
  zodSchema,
  jsonSchema,
}: {
  zodSchema: z.core.$ZodTypes;
  jsonSchema: z.core.JSONSchema.BaseSchema;
}): void {
  const { def } = zodSchema._zod;
  if (def.type === 'object' && def.catchall === undefined) delete jsonSchema.additionalProperties;
  if (def.type === 'record') delete jsonSchema.propertyNames;
  if (jsonSchema.minimum === Number.MIN_SAFE_INTEGER) delete jsonSchema.minimum;
  if (jsonSchema.maximum === Number.MAX_SAFE_INTEGER) delete jsonSchema.maximum;
}

/**
 * Adds the named schemas that are referred to, and none of the rest: each is made in a form for requests, `<Name>Input`, and
 * one for answers. A form that is alone takes the plain name. Recursive schemas are zod's "any JSON", which needs no words.
 */
function withUsedSchemas(input: Parameters<SwaggerTransformObject>[0]): Document {
  const document = JSON.parse(JSON.stringify(transformObject(input)), (_key, value: unknown) =>
    isShared(value) ? {} : value,
  ) as Document;
  if (!('components' in document) || document.components.schemas === undefined) return document;
  const all: Readonly<Record<string, unknown>> = document.components.schemas;
  const used = new Set(referencesIn(document.paths));
  for (const name of used) for (const inner of referencesIn(all[name])) used.add(inner);
  const plainName = (name: string): string => {
    const plain = name.replace(/Input$/, '');
    return used.has(plain) ? name : plain;
  };
  const schemas = Object.fromEntries(
    Object.entries(all).flatMap(([name, schema]) => (used.has(name) ? [[plainName(name), schema] as const] : [])),
  );
  const text = JSON.stringify({ ...document, components: { ...document.components, schemas } });
  return JSON.parse(
    text.replaceAll(REFERENCE, (_all, name: string) => `"#/components/schemas/${plainName(name)}"`),
  ) as Document;
}

const REFERENCE = /"#\/components\/schemas\/([^"]+)"/g;

function referencesIn(value: unknown): string[] {
  return Array.from(JSON.stringify(value).matchAll(REFERENCE), ([, name = '']) => name);
}

function isShared(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || !('$ref' in value)) return false;
  return typeof value.$ref === 'string' && value.$ref.startsWith('#/components/schemas/__shared');
}
