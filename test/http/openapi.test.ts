import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import * as errors from '../../src/errors.js';
import { ERROR_CATALOGUE } from '../../src/http/error-catalogue.js';
import * as httpErrors from '../../src/http/http-errors.js';
import { testApp } from './fake-runtime.js';

interface Operation {
  readonly responses: Record<
    string,
    { readonly description: string; readonly content?: Record<string, { readonly schema: unknown }> }
  >;
}
interface Document {
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: {
    readonly schemas: Record<string, { readonly properties?: Record<string, { readonly enum?: string[] }> }>;
  };
}

const file = readFileSync(new URL('../../openapi/openapi.json', import.meta.url), 'utf8');
const document = JSON.parse(file) as Document;

function operations(): { readonly path: string; readonly operation: Operation }[] {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.values(methods).map((operation) => ({ path, operation })),
  );
}

it('is kept in the repository as it is served', async () => {
  const { app } = await testApp();
  expect((await app.inject('/openapi.json')).json()).toEqual(document);
});

it('has a target for every reference', () => {
  const references = Array.from(file.matchAll(/"#\/components\/schemas\/([^"]+)"/g), ([, name = '']) => name);
  expect(references.length).toBeGreaterThan(100);
  expect(references.filter((name) => !(name in document.components.schemas))).toEqual([]);
  expect(Object.keys(document.components.schemas).filter((name) => !references.includes(name))).toEqual([]);
});

describe('error codes', () => {
  const classes = [...Object.values(errors), ...Object.values(httpErrors)].filter(
    (value) => typeof value === 'function' && value.prototype instanceof errors.AppError,
  );
  const codes = ERROR_CATALOGUE.map(({ code }) => code);

  it('are those of the error classes, each class in the catalogue and each with a code of its own', () => {
    expect(classes.length).toBeGreaterThan(20);
    expect(new Set(ERROR_CATALOGUE.map((error) => error.constructor))).toEqual(new Set(classes));
    expect(new Set(codes).size).toBe(classes.length);
  });

  it('are all in the document, and no others', () => {
    expect(document.components.schemas.Problem?.properties?.code?.enum).toEqual(codes);
  });

  it('are answers of some route, with their status, but for those that come before any route is known', () => {
    const answered = operations().flatMap(({ operation }) =>
      Object.entries(operation.responses).flatMap(([status, { description, content }]) =>
        content !== undefined && 'application/problem+json' in content
          ? description.split(', ').map((code) => `${status} ${code}`)
          : [],
      ),
    );
    const routeless = ['404 route_not_found', '408 request_timeout', '417 expectation_failed', '431 headers_too_large'];
    const all = ERROR_CATALOGUE.map(({ status, code }) => `${status} ${code}`);
    expect([...new Set([...answered, ...routeless])].sort()).toEqual([...all].sort());
  });
});

it('describes every route of the contract', () => {
  const routes = new Set<string>();
  for (const { path } of operations()) routes.add(path);
  expect([...routes].sort()).toEqual([
    '/healthz',
    '/metrics',
    '/readyz',
    '/v1/agents',
    '/v1/agents/{name}',
    '/v1/agents/{name}/preview',
    '/v1/models',
    '/v1/runs',
    '/v1/runs/{id}',
    '/v1/runs/{id}/cancel',
    '/v1/runs/{id}/checkpoints',
    '/v1/runs/{id}/effects',
    '/v1/runs/{id}/events',
    '/v1/runs/{id}/fork',
    '/v1/runs/{id}/resume',
    '/v1/runs/{id}/state',
    '/v1/shims',
  ]);
});

it('documents the stream where there is one', () => {
  const streams = operations().filter(
    ({ operation }) => operation.responses['200']?.content?.['text/event-stream'] !== undefined,
  );
  expect(streams.map(({ path }) => path).sort()).toEqual([
    '/v1/runs',
    '/v1/runs/{id}',
    '/v1/runs/{id}/cancel',
    '/v1/runs/{id}/events',
    '/v1/runs/{id}/resume',
  ]);
});
