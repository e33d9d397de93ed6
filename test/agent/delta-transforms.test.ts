import { expect, it } from 'vitest';
import { defineShim, type ModelDelta, type Shim } from '../../src/shims.js';
import { testShim } from '../../src/testing.js';

/** Keeps all text back until the flush, and gives it there as a delta of the kind that is asked for. */
function holding(name: string, kind: ModelDelta['kind'] = 'flush'): Shim {
  let held = '';
  return defineShim({
    name,
    transformDelta(_turn, delta): ModelDelta | null {
      if (delta.kind !== 'text' && delta.kind !== 'flush') return delta;
      held += delta.text;
      if (delta.kind === 'text') return null;
      const text = held;
      held = '';
      return text === '' ? null : { kind, text };
    },
  }).create();
}
const upper = defineShim({
  name: 'upper',
  transformDelta: (_turn, delta) => (delta.kind === 'text' ? { ...delta, text: delta.text.toUpperCase() } : delta),
});
const deltas = (events: readonly { readonly type: string; readonly [field: string]: unknown }[]): unknown[] =>
  events.flatMap(({ type, kind, text }) => (type === 'model.delta' ? [[kind, text]] : []));

it('a shim behind one that holds text back transforms what comes at the flush like any text', async () => {
  for (const kind of ['flush', 'text'] as const) {
    const run = await testShim(holding('first', kind), { after: [upper], script: [{ text: ['a', 'b'] }] });
    expect([run.output, deltas(run.events)]).toEqual(['AB', [['text', 'AB']]]);
  }
});

it('the flush reaches a shim behind one that gives nothing at it', async () => {
  const silent = defineShim({
    name: 'silent',
    transformDelta: (_turn, delta) => (delta.kind === 'flush' ? null : delta),
  });
  const run = await testShim(silent, { after: [holding('second')], script: [{ text: ['a', 'b'] }] });
  expect(run.output).toBe('ab');
  const both = await testShim(holding('one'), { after: [holding('two')], script: [{ text: ['a', 'b'] }] });
  expect(both.output).toBe('ab');
});

it('what was held back of the reasoning is shown and kept as reasoning, also when the answer has begun', async () => {
  let held: ModelDelta | undefined;
  const late = defineShim({
    name: 'late',
    transformDelta(_turn, delta): ModelDelta | null {
      const before = held ?? null;
      held = delta.kind === 'flush' ? undefined : delta;
      return before;
    },
  });
  const run = await testShim(late, { script: [{ reasoning: ['why ', 'not'], text: ['so ', 'be it'] }] });
  expect(deltas(run.events)).toEqual([
    ['reasoning', 'why '],
    ['reasoning', 'not'],
    ['text', 'so '],
    ['text', 'be it'],
  ]);
  expect(run.history.at(-1)).toMatchObject({
    message: {
      content: [
        { type: 'reasoning', text: 'why not' },
        { type: 'text', text: 'so be it' },
      ],
    },
  });
});
