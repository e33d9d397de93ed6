import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import { defineShim, defineTool, internalMessage, type JsonValue, type PreparedTurn, z } from '../../src/shims.js';
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

describe('R78a a wrap that is skipped', () => {
  const wrapping = (
    name: 'wrapModelCall' | 'wrapToolCall',
    when: 'before' | 'after',
  ): ReturnType<typeof defineShim> => {
    const wrap = async <In, Out>(turn: PreparedTurn, given: In, next: (given: In) => Promise<Out>): Promise<Out> => {
      const { shimState } = turn.runState;
      shimState.increment('wrap:before');
      turn.transientState.set('wrap:before', true);
      if (when === 'before') throw new Error('on purpose');
      await next(given);
      shimState.increment('wrap:after');
      turn.transientState.set('wrap:after', true);
      throw new Error('on purpose');
    };
    return defineShim({ name: 'wrapping', onFailure: 'skip', [name]: wrap });
  };
  /** Writes inside of the wrap: what it wrote is not the wrap's to undo. */
  const inside = defineShim({
    name: 'inside',
    wrapModelCall: async (turn, request, next) => {
      turn.runState.shimState.increment('inside:model');
      return next(request);
    },
    prepareTurn(turn) {
      const { shimState } = turn.runState;
      turn.addTools([
        defineTool({
          name: 'count',
          description: 'Counts.',
          parameters: z.object({}),
          execute: () => shimState.increment('inside:tool'),
        }),
      ]);
    },
  });

  it.each([
    ['wrapModelCall', 'before', { 'inside:model': 2, 'inside:tool': 1 }],
    ['wrapModelCall', 'after', { 'inside:model': 2, 'inside:tool': 1, 'wrap:before': 2 }],
    ['wrapToolCall', 'before', { 'inside:model': 2, 'inside:tool': 1 }],
    ['wrapToolCall', 'after', { 'inside:model': 2, 'inside:tool': 1, 'wrap:before': 1 }],
  ] as const)('%s, failing %s next, takes back what it wrote since', async (name, when, state) => {
    const transient: boolean[] = [];
    const last = defineShim({
      name: 'last',
      onRunEnd: (_result, given) => void transient.push(given.has('wrap:before'), given.has('wrap:after')),
    });
    const model = new ScriptedModel([calls('count'), 'done']);
    const agent = new DefaultAgent({ model, shims: [wrapping(name, when), inside, last] });
    expect(await drive(agent)).toMatchObject({ error: undefined, result: { finalOutput: 'done' } });
    expect(agent.runState.shimState.toJSON()).toEqual(state);
    expect(transient).toEqual([when === 'after', false]);
  });

  it('in a round of several calls keeps what it wrote, and what the others did', async () => {
    const model = new ScriptedModel([calls('count', 'count', 'count'), 'done']);
    const agent = new DefaultAgent({ model, shims: [wrapping('wrapToolCall', 'before'), inside] });
    expect(await drive(agent)).toMatchObject({ error: undefined, result: { finalOutput: 'done' } });
    expect(agent.runState.shimState.toJSON()).toEqual({ 'inside:model': 2, 'inside:tool': 3, 'wrap:before': 3 });
  });
});
