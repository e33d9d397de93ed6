import { z } from 'zod';
import type { JsonValue } from '../agent/json.js';
import { MessageSchema } from '../agent/messages.js';
import { type PathFault, pathFaults } from './validation.js';

const ROLES: ReadonlySet<unknown> = new Set(['system', 'user', 'assistant', 'tool']);

/** A message that the model sees and clients do not. */
const InternalItemSchema = z.strictObject({
  internal: z.strictObject({
    message: z.union([z.string().min(1), MessageSchema]),
    origin: z.string().min(1),
    ephemeral: z.boolean().default(false),
  }),
});

/**
 * What a run or a resume takes: a text, or a list of items. An item that is an object with a `role` of ours must be a canonical
 * message, one with an object under `internal` an internal message; every other string or JSON value is the user's content.
 * Blank input is refused. The value is passed on as it came.
 */
export const InputSchema = z
  .custom<JsonValue>((value) => value !== undefined, 'is required')
  .superRefine((input, context) => {
    for (const { path, message } of inputIssues(input)) context.addIssue({ code: 'custom', path: [...path], message });
  })
  .meta({
    description: 'A text, or a list of canonical messages, texts, JSON values and internal messages; not blank.',
    anyOf: [
      { type: 'string', minLength: 1 },
      {
        type: 'array',
        minItems: 1,
        items: {
          anyOf: [
            { $ref: '#/components/schemas/Message' },
            { $ref: '#/components/schemas/InternalItem' },
            { type: 'string' },
            {},
          ],
        },
      },
    ],
  });

/** Components that the input's own document refers to by name. */
export const INPUT_COMPONENTS = { Message: MessageSchema, InternalItem: InternalItemSchema } as const;

function inputIssues(input: JsonValue): readonly PathFault[] {
  if (typeof input === 'string') return input.trim() === '' ? [{ path: [], message: 'must not be blank' }] : [];
  if (!isList(input)) return [{ path: [], message: 'must be a text or a list of items' }];
  if (input.every(isBlank)) return [{ path: [], message: 'must not be blank' }];
  return input.flatMap((item, index) =>
    itemIssues(item).map(({ path, message }) => ({ path: [index, ...path], message })),
  );
}

function itemIssues(item: JsonValue): readonly PathFault[] {
  if (typeof item !== 'object' || item === null || isList(item)) return [];
  if (ROLES.has(item.role)) return issuesOf(MessageSchema, item);
  const { internal } = item;
  if (typeof internal === 'object' && internal !== null && !isList(internal)) return issuesOf(InternalItemSchema, item);
  return [];
}

function isBlank(item: JsonValue): boolean {
  if (typeof item === 'string') return item.trim() === '';
  if (typeof item !== 'object' || item === null) return item === null;
  if (isList(item)) return item.every(isBlank);
  if (!ROLES.has(item.role)) return false;
  const { content } = item;
  return typeof content === 'string' ? content.trim() === '' : isList(content) && content.every(isBlankPart);
}

function isBlankPart(part: JsonValue): boolean {
  if (typeof part !== 'object' || part === null || isList(part) || part.type !== 'text') return false;
  const { text } = part;
  return typeof text === 'string' && text.trim() === '';
}

/** `Array.isArray` with the guard that holds for readonly lists. */
function isList(value: JsonValue | undefined): value is readonly JsonValue[] {
  return Array.isArray(value);
}

function issuesOf(schema: z.ZodType, value: unknown): readonly PathFault[] {
  const parsed = schema.safeParse(value);
  return parsed.success ? [] : pathFaults(parsed.error.issues);
}
