import { Ajv2020, type ErrorObject, type ValidateFunction } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { RE2JS } from 're2js';

export type JsonSchema = Readonly<Record<string, unknown>>;

/** A schema that is no valid JSON Schema. */
class InvalidJsonSchemaError extends Error {
  constructor(cause: unknown) {
    super(`This is no valid JSON Schema: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    this.name = 'InvalidJsonSchemaError';
  }
}

interface Compiled {
  readonly validate: ValidateFunction;
  /** Patterns that RE2 does not know, each with what it says of it: they are not looked at. */
  readonly unchecked: readonly string[];
}

const compiled = new WeakMap<object, Compiled>();

/** Knows whether a schema is one. It is dear to make and keeps nothing of what it is asked about, so one serves all. */
let judge: Ajv2020 | undefined;

function judgeOfSchemas(): Ajv2020 {
  judge ??= withFormats(new Ajv2020({ strict: false }));
  return judge;
}

function withFormats(ajv: Ajv2020): Ajv2020 {
  (addFormats as unknown as (target: Ajv2020) => void)(ajv);
  return ajv;
}

/**
 * Compiles a JSON Schema (draft 2020-12 and what of draft-07 is the same), once per object.
 * @throws InvalidJsonSchemaError, also for patterns that cannot be checked in time that is proportional to the text
 */
export function compileJsonSchema(schema: JsonSchema): void {
  const [fault] = compile(schema).unchecked;
  if (fault !== undefined) throw new InvalidJsonSchemaError(fault);
}

function compile(schema: JsonSchema): Compiled {
  const known = compiled.get(schema);
  if (known !== undefined) return known;
  const unchecked: string[] = [];
  try {
    // A validator of its own per schema: a shared one would keep every schema it has ever seen, and refuse a repeated $id.
    const regExp = Object.assign((pattern: string) => linearPattern(pattern, unchecked), { code: '' });
    const options = { strict: false, allErrors: true, ownProperties: true, code: { regExp }, validateSchema: false };
    const ajv = withFormats(new Ajv2020(options));
    const { $schema: _dialect, ...body } = schema;
    void judgeOfSchemas().validateSchema(body, true);
    const made = { validate: ajv.compile(body), unchecked };
    compiled.set(schema, made);
    return made;
  } catch (error) {
    throw new InvalidJsonSchemaError(error);
  }
}

/**
 * Schemas come from outside, and so do the texts: a RegExp may take for ever over a short text, and hold up the whole process. RE2
 * takes time in proportion to the text, whatever the pattern.
 */
function linearPattern(pattern: string, unchecked: string[]): { test(text: string): boolean; toString(): string } {
  // The validator takes two of the same name for one.
  const toString = (): string => pattern;
  try {
    const expression = RE2JS.compile(RE2JS.translateRegExp(pattern));
    return { test: (text) => expression.matcher(text).find(), toString };
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    unchecked.push(
      `the pattern ${JSON.stringify(pattern)} is not RE2 syntax (no look-around, no back references): ${why}`,
    );
    return { test: () => true, toString };
  }
}

/**
 * What of a value does not fit a schema: where it stands, and what was expected. Empty when it is valid. A pattern that is no RE2
 * counts as fulfilled. @throws InvalidJsonSchemaError
 */
export function jsonSchemaErrors(
  schema: JsonSchema,
  value: unknown,
): readonly { readonly pointer: string; readonly message: string }[] {
  const { validate } = compile(schema);
  if (validate(value)) return [];
  return (validate.errors ?? []).map((fault: ErrorObject) => ({
    pointer: fault.instancePath,
    message: fault.message ?? fault.keyword,
  }));
}

/** The same as `pointer: what was expected`. @throws InvalidJsonSchemaError */
export function jsonSchemaFaults(schema: JsonSchema, value: unknown): string[] {
  return jsonSchemaErrors(schema, value).map(({ pointer, message }) => `${pointer === '' ? '/' : pointer}: ${message}`);
}
