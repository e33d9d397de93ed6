import { jsonSchemaFaults } from './json-schema.js';

/** An answer's text as the value that its schema asks for, with or without a Markdown fence around it, or what is wrong with it. */
export function parseOutput(
  schema: Readonly<Record<string, unknown>>,
  text: string,
): { readonly value: unknown; readonly faults: readonly string[] } {
  const fenced = /^\s*```(?:json)?\s*\n([\s\S]*?)\n\s*```\s*$/.exec(text);
  try {
    const value: unknown = JSON.parse(fenced?.[1] ?? text);
    return { value, faults: jsonSchemaFaults(schema, value) };
  } catch (error) {
    return {
      value: undefined,
      faults: [`/: this is no JSON (${error instanceof Error ? error.message : String(error)})`],
    };
  }
}
