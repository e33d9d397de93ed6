import { defineShim, defineTool, type JsonValue, type Message, toolFailure, z } from 'shimline/shims';

const ItemSchema = z.strictObject({
  text: z.string().min(1).max(1000).meta({ description: 'What is to be done, in a few words.' }),
  status: z.enum(['pending', 'in_progress', 'completed']).meta({ description: 'How far it is.' }),
});
type Item = z.output<typeof ItemSchema>;

const StateSchema = z.strictObject({
  items: z.array(ItemSchema).default([]),
  /** The turn of the last update, from which a reminder counts. */
  updatedAt: z.int().default(0),
});
type State = z.output<typeof StateSchema>;

const MARKS: Readonly<Record<Item['status'], string>> = { pending: '[ ]', in_progress: '[~]', completed: '[x]' };
const TOOLS: ReadonlySet<string> = new Set(['update_plan', 'read_plan']);

function counts(items: readonly Item[]): { readonly completed: number; readonly total: number } {
  return { completed: items.filter(({ status }) => status === 'completed').length, total: items.length };
}

/** Whether a request still shows a plan: the call that wrote one, or a result that told one. */
function shows(messages: readonly Message[]): boolean {
  return messages.some(
    ({ role, content }) =>
      role === 'assistant' &&
      typeof content !== 'string' &&
      content.some((part) => part.type === 'tool-call' && TOOLS.has(part.toolName)),
  );
}

function reminder(items: readonly Item[]): Message {
  const lines = items.map(({ text, status }) => `${MARKS[status]} ${text.replace(/\s+/g, ' ')}`);
  return {
    role: 'user',
    content: `Your plan, as it stands (keep it up to date with update_plan):\n${lines.join('\n')}`,
  };
}

/** The plan is in the state of the conversation: no crash, resume or compaction loses it. */
export default defineShim({
  name: 'plan',
  description: 'Gives the model a to-do list that it keeps itself, and tells clients how far it is.',
  config: z.strictObject({
    maxItems: z.int().min(1).max(1000).default(50).meta({ description: 'The most items of a plan.' }),
    remindAfterTurns: z
      .int()
      .min(0)
      .default(10)
      .meta({ description: 'Show the model an unfinished plan that was not updated for so many turns; 0 for never.' }),
  }),
  state: StateSchema,
  prepareTurn(turn) {
    const { maxItems } = this.config;
    const update = defineTool({
      name: 'update_plan',
      description:
        'Writes your to-do list for a task of several steps. Give the whole list each time; at most one item is in_progress. An empty list ends the plan.',
      parameters: z.strictObject({
        items: z.array(ItemSchema).max(maxItems).meta({ description: 'All items, in order.' }),
      }),
      // The state and the outcome are committed together; the same list again changes nothing.
      onCrash: 'retry',
      execute({ items }) {
        const busy = items.filter(({ status }) => status === 'in_progress').length;
        if (busy > 1) return toolFailure(`At most one item may be in_progress, not ${busy}.`, { kind: 'invalid_plan' });
        const state: State = turn.state;
        state.items = items;
        state.updatedAt = turn.turnCount;
        turn.emit('plan.updated', { items: items as unknown as JsonValue, ...counts(items) });
        return counts(items);
      },
    });
    const read = defineTool({
      name: 'read_plan',
      description: 'Shows your to-do list as it stands.',
      parameters: z.strictObject({}),
      onCrash: 'retry',
      execute: () => ({ items: turn.state.items, ...counts(turn.state.items) }),
    });
    turn.addTools([update, read]);
  },
  transformMessages(turn, messages) {
    const { items, updatedAt } = turn.state;
    if (items.every(({ status }) => status === 'completed')) return undefined;
    const { remindAfterTurns } = this.config;
    const since = turn.turnCount - updatedAt;
    const due = remindAfterTurns > 0 && since > 0 && since % remindAfterTurns === 0;
    // Where the history was cut the plan is not in it any more. At the end, where it spoils nothing that a provider has cached.
    return due || !shows(messages) ? [...messages, reminder(items)] : undefined;
  },
});
