import { z } from 'zod';

const ChangeSchema = z.looseObject({
  what: z.string(),
  names: z.array(z.string()).optional(),
  key: z.string().optional(),
  diff: z.object({ added: z.string() }).optional(),
});

/** What the demo reads of an event; the type tells which of the fields there are. */
export const DemoEventSchema = z.looseObject({
  seq: z.int(),
  type: z.string(),
  attempt: z.int(),
  shim: z.string().optional(),
  callback: z.string().optional(),
  changes: z.array(ChangeSchema).optional(),
  model: z.string().optional(),
  modelCallId: z.string().optional(),
  replaces: z.string().optional(),
  kind: z.string().optional(),
  text: z.string().optional(),
  name: z.string().optional(),
  arguments: z.unknown().optional(),
  result: z.unknown().optional(),
  error: z.unknown().optional(),
  output: z.unknown().optional(),
  finishReason: z.string().optional(),
  turn: z.int().optional(),
  interruptions: z.array(z.looseObject({ id: z.string(), message: z.string().nullable() })).optional(),
  cancellation: z
    .object({
      inFlight: z.array(z.looseObject({ kind: z.string(), name: z.string(), obeyed: z.boolean(), ms: z.number() })),
    })
    .optional(),
});
export type DemoEvent = z.infer<typeof DemoEventSchema>;

/** What an event says beside its type, in a few words. */
export function wordsOf(event: DemoEvent): string {
  switch (event.type) {
    case 'turn.started':
      return `turn ${event.turn ?? 0}`;
    case 'shim.effect':
      return `${event.shim ?? ''} in ${event.callback ?? ''}: ${(event.changes ?? []).map(changeOf).join(', ')}`;
    case 'model.started':
      return event.replaces === undefined
        ? (event.model ?? '')
        : `${event.model ?? ''}, replaces the call that was cut`;
    case 'model.completed':
      return event.finishReason ?? '';
    case 'tool.started':
      return `${event.name ?? ''} ${JSON.stringify(event.arguments)}`;
    case 'tool.completed':
      return `${event.name ?? ''} → ${JSON.stringify(event.result ?? event.error)}`;
    case 'run.waiting':
      return (event.interruptions ?? []).map(({ message }) => message ?? '').join(', ');
    case 'run.completed':
      return JSON.stringify(event.output);
    case 'run.failed':
      return JSON.stringify(event.error);
    case 'run.cancelled':
      return (event.cancellation?.inFlight ?? [])
        .map(({ kind, name, obeyed, ms }) => `${kind} ${name} ${obeyed ? 'stopped' : 'did not stop'} in ${ms} ms`)
        .join(', ');
    default:
      return '';
  }
}

function changeOf({ what, names, key, diff }: z.infer<typeof ChangeSchema>): string {
  if (diff !== undefined) return `${what} + ${JSON.stringify(diff.added.trim())}`;
  return [what, ...(names ?? []), ...(key === undefined ? [] : [key])].join(' ');
}
