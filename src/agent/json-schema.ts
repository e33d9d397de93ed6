import { Ajv2020, type ErrorObject, type ValidateFunction } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';

export type JsonSchema = Readonly<Record<string, unknown>>;

/** A schema that is no valid JSON Schema. */
class InvalidJsonSchemaError extends Error {
  constructor(cause: unknown) {
    super(`This is no valid JSON Schema: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    this.name = 'InvalidJsonSchemaError';
  }
}

const compiled = new WeakMap<object, ValidateFunction>();

/** Compiles a JSON Schema (draft 2020-12 and what of draft-07 is the same), once per object. @throws InvalidJsonSchemaError */
export function compileJsonSchema(schema: JsonSchema): ValidateFunction {
  const known = compiled.get(schema);
  if (known !== undefined) return known;
  try {
    // A validator of its own per schema: a shared one would keep every schema it has ever seen, and refuse a repeated $id.
    const ajv = new Ajv2020({ strict: false, allErrors: true });
    (addFormats as unknown as (target: Ajv2020) => void)(ajv);
    const { $schema: _dialect, ...body } = schema;
    const validate = ajv.compile(body);
    compiled.set(schema, validate);
    return validate;
  } catch (error) {
    throw new InvalidJsonSchemaError(error);
  }
}

/** What of a value does not fit a schema: where it stands, and what was expected. Empty when it is valid. @throws InvalidJsonSchemaError */
export function jsonSchemaErrors(
  schema: JsonSchema,
  value: unknown,
): readonly { readonly pointer: string; readonly message: string }[] {
  const validate = compileJsonSchema(schema);
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
