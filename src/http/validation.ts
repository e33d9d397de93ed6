import type { FastifySchemaCompiler } from 'fastify';
import type { z } from 'zod';
import { type FieldError, ValidationError } from '../errors.js';

type Issue = z.core.$ZodIssue;

/**
 * Checks bodies and queries. A fault is a 422 with one pointer each: into the body as it is (`/input/0/role`), into a query
 * under `/query`. Path parameters are always strings and headers are read by their own functions: their schemas document only.
 */
export const validatorCompiler: FastifySchemaCompiler<z.ZodType> = ({ schema, httpPart }) => {
  if (httpPart === 'headers' || httpPart === 'params') return () => true;
  const prefix = httpPart === 'querystring' ? '/query' : '';
  const what = httpPart === 'querystring' ? 'query' : 'body';
  return (data: unknown) => {
    const parsed = schema.safeParse(data);
    if (parsed.success) return { value: parsed.data };
    return { error: new ValidationError(`The request ${what} is not valid.`, faultsOf(parsed.error.issues, prefix)) };
  };
};

/** A fault and where it is, before it becomes a pointer. */
export interface PathFault {
  readonly path: readonly PropertyKey[];
  readonly message: string;
}

/** Zod's issues as faults with JSON pointers below `prefix`. */
function faultsOf(issues: readonly Issue[], prefix = ''): FieldError[] {
  return pathFaults(issues).map(({ path, message }) => ({ pointer: pointer(prefix, path), message }));
}

/** Zod's issues one by one: each unknown key by itself, and of a union those of the alternative that came furthest. */
export function pathFaults(issues: readonly Issue[]): PathFault[] {
  return issues.flatMap((issue): PathFault[] => {
    const { code, path, message } = issue;
    if (code === 'unrecognized_keys')
      return issue.keys.map((key) => ({ path: [...path, key], message: 'is not known here' }));
    if (code === 'invalid_union') {
      return unionFaults(issue).map((inner) => ({ path: [...path, ...inner.path], message: inner.message }));
    }
    return [
      { path, message: code === 'invalid_type' && message.endsWith('received undefined') ? 'is required' : message },
    ];
  });
}

function unionFaults(issue: Extract<Issue, { code: 'invalid_union' }>): PathFault[] {
  const [best] = [...issue.errors].sort((a, b) => depth(b) - depth(a));
  if (best !== undefined && depth(best) > 0) return pathFaults(best);
  const expected = issue.errors.flat().flatMap((inner) => (inner.code === 'invalid_type' ? [inner.expected] : []));
  const message =
    expected.length === 0 ? issue.message : `Invalid input: expected ${[...new Set(expected)].join(' or ')}`;
  return [{ path: [], message }];
}

/** How far into the value an alternative matched before it failed. */
function depth(issues: readonly Issue[]): number {
  return Math.max(0, ...issues.map((inner) => inner.path.length + (inner.code === 'unrecognized_keys' ? 1 : 0)));
}

/** An RFC 6901 pointer to `path` below `prefix`. */
function pointer(prefix: string, path: readonly PropertyKey[]): string {
  return path.reduce<string>((at, key) => `${at}/${String(key).replaceAll('~', '~0').replaceAll('/', '~1')}`, prefix);
}
