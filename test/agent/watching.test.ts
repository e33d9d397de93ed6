import { expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import { defineShim, type RunEvent, type Shim } from '../../src/shims.js';
import { ScriptedModel, testShim } from '../../src/testing.js';

function watching(name: string, seen: RunEvent[]): Shim {
  return defineShim({
    name,
    onRunStart(_state, _transient, run) {
      run.watch((event) => seen.push(event));
    },
  }).create();
}

it('R110 a shim that watches a run is told of its events, frozen, to the one that ends it, and may throw', async () => {
  const seen: RunEvent[] = [];
  const angry = defineShim({
    name: 'angry',
    onRunStart: (_state, _transient, run) => {
      run.watch(() => {
        throw new Error('no');
      });
    },
  });
  const run = await testShim(watching('watching', seen), { before: [angry], script: [{ text: ['a', 'b'] }] });
  const told = run.events.map(({ type }) => type);
  expect([run.output, seen.map(({ type }) => type)]).toEqual(['ab', told.slice(told.indexOf('agent.started') + 1)]);
  expect(seen.at(-1)).toMatchObject({ type: 'run.completed', output: 'ab' });
  expect(seen.every((event) => Object.isFrozen(event))).toBe(true);
});

it('each agent of a handoff is watched by its own shims only', async () => {
  const seen: Record<'first' | 'second', RunEvent[]> = { first: [], second: [] };
  const model = new ScriptedModel([{ toolCalls: [{ toolName: 'handoff_to_second' }] }, 'done']);
  const second = new DefaultAgent({ name: 'second', model, shims: [watching('watching', seen.second)] });
  const first = new DefaultAgent({
    name: 'first',
    model,
    shims: [watching('watching', seen.first)],
    handoffs: [second],
  });
  await first.run('hello');
  const calls = (events: readonly RunEvent[]): number => events.filter(({ type }) => type === 'model.completed').length;
  expect([calls(seen.first), calls(seen.second)]).toEqual([1, 1]);
  expect([seen.first, seen.second].map((events) => events.some(({ type }) => type === 'run.completed'))).toEqual([
    true,
    false,
  ]);
});
