import { jsonSchemaFaults } from './json-schema.js';

const FENCE = '```';

/** An answer's text as the value that its schema asks for, with or without a Markdown fence around it, or what is wrong with it. */
export function parseOutput(
  schema: Readonly<Record<string, unknown>>,
  text: string,
): { readonly value: unknown; readonly faults: readonly string[] } {
  try {
    const value: unknown = JSON.parse(unfenced(text));
    return { value, faults: jsonSchemaFaults(schema, value) };
  } catch (error) {
    return {
      value: undefined,
      faults: [`/: this is no JSON (${error instanceof Error ? error.message : String(error)})`],
    };
  }
}

/** Not by an expression: models may go on with line breaks for thousands of lines, over which one would take for ever. */
function unfenced(text: string): string {
  const trimmed = text.trim();
  const start = trimmed.indexOf('\n');
  if (start < 0 || !trimmed.startsWith(FENCE) || !trimmed.endsWith(FENCE)) return text;
  const language = trimmed.slice(FENCE.length, start).trim();
  return language === '' || language === 'json' ? trimmed.slice(start, -FENCE.length) : text;
}
