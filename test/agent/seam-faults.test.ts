import { expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import { defineShim, defineTool, internalMessage, type JsonValue, z } from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, drive } from './drive.js';

it('R90 an internal message that a shim or tool puts into an event or a result is left out of it', async () => {
  const secret = internalMessage({ role: 'user', content: 'INTSECRET' }, { origin: 'leak' });
  const leak = defineShim({
    name: 'leak',
    prepareTurn(turn) {
      if (turn.isFirstForThisAgent) turn.appendHistoryItem(secret);
      turn.emit('history', { history: turn.runState.history as JsonValue[] });
      turn.addTools([
        defineTool({
          name: 'show',
          description: 'Shows the history.',
          parameters: z.object({}),
          execute(_args, context) {
            context.progress({ history: turn.runState.history as JsonValue[] });
            return { history: [...turn.runState.history], nested: { secret } };
          },
        }),
      ]);
    },
  });
  const model = new ScriptedModel([calls('show'), 'done']);
  const { events, error } = await drive(new DefaultAgent({ model, shims: [leak] }));
  expect(error).toBeUndefined();
  expect(events.map(({ type }) => type)).toContain('tool.progress');
  expect(JSON.stringify(events)).not.toContain('INTSECRET');
  // The model was told the message itself, and nothing of our mark.
  expect(JSON.stringify(model.requests[1]?.prompt)).toContain('INTSECRET');
  expect(JSON.stringify(model.requests[1]?.prompt)).not.toContain('"internal"');
});

it('R20a a value that another shim writes into a namespace is checked, and that shim is named', async () => {
  const owner = defineShim({
    name: 'owner',
    state: z.object({ n: z.int().default(0) }),
    prepareTurn(turn) {
      turn.state.n += 1;
    },
  });
  const other = defineShim({
    name: 'other',
    prepareTurn(turn) {
      turn.runState.shimState.set('owner', { n: 'text' });
    },
  });
  const agent = new DefaultAgent({ model: new ScriptedModel(['one']), shims: [owner, other] });
  const { error } = await drive(agent);
  expect(error).toMatchObject({ shim: 'other', phase: 'prepareTurn' });
  expect(agent.runState.shimState.toJSON()).toEqual({});
});

it('R78a skip undoes what the failing callback wrote to transientState too', async () => {
  const seen: boolean[] = [];
  const failing = defineShim({
    name: 'failing',
    onFailure: 'skip',
    prepareTurn(turn) {
      turn.transientState.set('failing:x', 1);
      throw new Error('on purpose');
    },
  });
  const later = defineShim({
    name: 'later',
    prepareTurn(turn) {
      seen.push(turn.transientState.has('failing:x'));
    },
  });
  const { error } = await drive(new DefaultAgent({ model: new ScriptedModel(['one']), shims: [failing, later] }));
  expect(error).toBeUndefined();
  expect(seen).toEqual([false]);
});
