import Mustache from 'mustache';
import { z } from 'zod';
import { deepFreeze, type JsonValue } from './json.js';

/** A Mustache template with its values; rendered as the user's text, or message by message when it is a list. */
export interface PromptSpec {
  readonly template: string | readonly { readonly role: 'system' | 'user' | 'assistant'; readonly content: string }[];
  readonly values: Readonly<Record<string, JsonValue>>;
}
export const PromptSpecSchema = z.strictObject({
  template: z.union([
    z.string(),
    z.array(z.strictObject({ role: z.enum(['system', 'user', 'assistant']), content: z.string() })).min(1),
  ]),
  values: z.record(z.string(), z.json()).default({}),
});

/** One message of a rendered template. */
export interface TemplateMessage {
  readonly role: 'system' | 'user' | 'assistant';
  readonly content: string;
}

/** A value that a template asks for and was not given. */
export class MissingTemplateValueError extends Error {
  readonly missing: readonly string[];
  constructor(missing: readonly string[]) {
    super(`The template asks for ${missing.map((name) => `{{ ${name} }}`).join(', ')}, which the values do not have.`);
    this.name = 'MissingTemplateValueError';
    this.missing = missing;
  }
}

/** A prompt template whose system part is no text, so nothing can be appended to it (R23). */
export class NoSystemTextError extends Error {
  constructor() {
    super('The template has no text system part.');
    this.name = 'NoSystemTextError';
  }
}

/** The names of `{{ name }}` tags in a Mustache template that the values do not have. Sections and dotted names count by their first part. */
export function missingValues(template: string, values: Readonly<Record<string, unknown>>): string[] {
  const missing = new Set<string>();
  for (const [kind, name] of Mustache.parse(template)) {
    if (kind !== 'name' && kind !== '&' && kind !== '#') continue;
    const first = name.split('.')[0] ?? name;
    if (name !== '.' && !Object.hasOwn(values, first)) missing.add(name);
  }
  return [...missing];
}

/**
 * Mustache's `{{ name }}` with every value inserted as it is (prompts are no HTML); objects as JSON.
 * @throws MissingTemplateValueError
 */
function renderText(template: string, values: Readonly<Record<string, JsonValue>>): string {
  const missing = missingValues(template, values);
  if (missing.length > 0) throw new MissingTemplateValueError(missing);
  return Mustache.render(template, values, undefined, {
    escape: (value: unknown) => (typeof value === 'string' ? value : JSON.stringify(value)),
  });
}

/** A prompt spec as messages; a plain string template takes the role given. @throws MissingTemplateValueError */
export function renderTemplate(spec: PromptSpec, role: 'user' | 'system' = 'user'): TemplateMessage[] {
  if (typeof spec.template === 'string') return [{ role, content: renderText(spec.template, spec.values) }];
  return spec.template.map((part) => ({ role: part.role, content: renderText(part.content, spec.values) }));
}

/** Instructions that nothing can change any more. @throws ZodError, MissingTemplateValueError for a template that cannot be rendered */
export function settleInstructions(value: string | PromptSpec): string | PromptSpec {
  if (typeof value === 'string') return value;
  const spec = deepFreeze(PromptSpecSchema.parse(structuredClone(value)));
  renderTemplate(spec, 'system');
  return spec;
}

/**
 * Instructions with a text at their tail (R22, R23): a template is rendered first; what it has beside its system text stays.
 * @throws NoSystemTextError, MissingTemplateValueError
 */
export function appendInstruction(
  instructions: string | PromptSpec,
  text: string,
  separator: string,
): string | PromptSpec {
  if (typeof instructions === 'string') return joined(instructions, text, separator);
  const messages = renderTemplate(instructions, 'system');
  const last = messages.findLastIndex((message) => message.role === 'system');
  if (last < 0) throw new NoSystemTextError();
  const appended = messages.map((message, index) =>
    index === last ? { ...message, content: joined(message.content, text, separator) } : message,
  );
  const [only] = appended;
  return appended.length === 1 && only !== undefined ? only.content : literalSpec(appended);
}

function joined(current: string, text: string, separator: string): string {
  return current === '' ? text : `${current}${separator}${text}`;
}

/** Rendered messages as a spec that renders to just them, whatever braces are in their text. */
function literalSpec(messages: readonly TemplateMessage[]): PromptSpec {
  return deepFreeze({
    template: messages.map(({ role }, index) => ({ role, content: `{{ part${index} }}` })),
    values: Object.fromEntries(messages.map(({ content }, index) => [`part${index}`, content])),
  });
}
