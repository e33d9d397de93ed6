const KNOWN = new Set([
  ...['$schema', '$id', '$ref', '$defs', 'definitions', 'title', 'description', 'type', 'enum', 'const', 'default'],
  ...['properties', 'required', 'additionalProperties', 'items', 'anyOf', 'pattern', 'format', 'multipleOf'],
  ...['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'minItems', 'maxItems'],
]);
const MOST_DEPTH = 10;

/**
 * Whether a JSON Schema keeps to the rules of OpenAI's strict mode: every object closed and all its properties required, and no
 * keyword that the mode does not know. Source: OpenAI's guide to structured outputs.
 */
export function keepsToStrictMode(schema: unknown, depth = 0): boolean {
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema) || depth > MOST_DEPTH) return false;
  const node = schema as Readonly<Record<string, unknown>>;
  if (!Object.keys(node).every((key) => KNOWN.has(key))) return false;
  const inner = (value: unknown): boolean => keepsToStrictMode(value, depth + 1);
  const properties = recordOf(node.properties);
  if (node.type === 'object' || properties !== undefined) {
    const required = Array.isArray(node.required) ? (node.required as readonly unknown[]) : [];
    if (node.additionalProperties !== false) return false;
    if (!Object.keys(properties ?? {}).every((name) => required.includes(name))) return false;
  }
  const children = [properties, recordOf(node.$defs), recordOf(node.definitions)].flatMap((record) =>
    Object.values(record ?? {}),
  );
  const alternatives = Array.isArray(node.anyOf) ? (node.anyOf as readonly unknown[]) : [];
  return [...children, ...alternatives, ...(node.items === undefined ? [] : [node.items])].every(inner);
}

function recordOf(value: unknown): Readonly<Record<string, unknown>> | undefined {
  return typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>) : undefined;
}
