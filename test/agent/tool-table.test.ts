import { describe, expect, it } from 'vitest';
import { type PreparedTurn, ToolNameCollisionError } from '../../src/shims.js';
import { definitionsOf, onTurn, runOnce, toolNamed, WAYS } from './drive.js';

type Step = (turn: PreparedTurn, by: string) => void;

const add: Step = (turn, by) => turn.addTools([toolNamed('a', `${by} a`)]);
const addUnique: Step = (turn, by) => turn.addTools([toolNamed('a', `${by} a`)], { requireUniqueNames: true });
const addTwo: Step = (turn) => turn.addTools([toolNamed('a', 'first a'), toolNamed('a', 'second a')]);
const addTwoUnique: Step = (turn) =>
  turn.addTools([toolNamed('a', 'first a'), toolNamed('a', 'second a')], { requireUniqueNames: true });
const exclude: Step = (turn) => turn.excludeTools(['a']);
const assignWithout: Step = (turn) => {
  turn.tools = { ...turn.tools, tools: (turn.tools?.tools ?? []).filter(({ name }) => name !== 'a') };
};
const assignA: Step = (turn, by) => {
  turn.tools = { ...turn.tools, tools: [toolNamed('a', `${by} assigned a`)] };
};

const COLLISION = 'collision';
const EMPTY = 'empty configuration';

/** Each row of the rule: whether the agent has a tool `a`, what the shims do in their order, and what comes of it. */
const ROWS: readonly [string, boolean, readonly Step[], string][] = [
  ['base a; add a', true, [add], 'base a'],
  ['base a; add a unique', true, [addUnique], COLLISION],
  ['add a unique; add a', false, [addUnique, add], COLLISION],
  ['add a; add a unique', false, [add, addUnique], COLLISION],
  ['add a unique; add a unique', false, [addUnique, addUnique], COLLISION],
  ['[a, a] in one local call', false, [addTwo], 'first a'],
  ['[a, a] unique in one local call', false, [addTwoUnique], 'first a'],
  ['base a; exclude a; add a', true, [exclude, add], EMPTY],
  ['base a; add a; exclude a', true, [add, exclude], EMPTY],
  ['base a; exclude a; add a unique', true, [exclude, addUnique], COLLISION],
  ['exclude a; add a unique, nobody else', false, [exclude, addUnique], EMPTY],
  ['add a unique; exclude a, nobody else', false, [addUnique, exclude], EMPTY],
  ['exclude a; add a unique; add a', false, [exclude, addUnique, add], COLLISION],
  ['add a; exclude a; add a unique', false, [add, exclude, addUnique], COLLISION],
  ['base a; assign a list without a; add a', true, [assignWithout, add], '1 a'],
  ['base a; assign a list without a; add a unique', true, [assignWithout, addUnique], COLLISION],
  ['add a unique; assign a list without a; add a', false, [addUnique, assignWithout, add], COLLISION],
  ['assign tools=[a]; add a unique', false, [assignA, addUnique], COLLISION],
  ['assign tools=[a]; add a', false, [assignA, add], '0 assigned a'],
  ['add a unique; assign tools=[a]', false, [addUnique, assignA], '1 assigned a'],
];

describe.each(WAYS)('%s', (way) => {
  it.each(ROWS)('R39 %s', async (_row, base, steps, expected) => {
    const shims = steps.map((step, index) => onTurn(`shim-${index}`, (turn) => step(turn, String(index))));
    const tools = base ? [toolNamed('a', 'base a')] : [];
    const { model, error } = await runOnce(shims, ['done'], { way, tools });
    if (expected === COLLISION) {
      expect(error).toMatchObject({
        shim: `shim-${steps.length - 1}`,
        phase: 'prepareTurn',
        cause: expect.any(ToolNameCollisionError) as unknown,
      });
      expect(model.requests).toHaveLength(0);
      return;
    }
    expect(error).toBeUndefined();
    expect('tools' in model.requests[0]!.options).toBe(expected !== EMPTY);
    expect(definitionsOf(model)).toEqual(expected === EMPTY ? [] : [expected]);
  });
});

it('R39 an empty configuration keeps its settings and takes other tools', async () => {
  const shims = [exclude, addUnique].map((step, index) => onTurn(`shim-${index}`, (turn) => step(turn, String(index))));
  const other = onTurn('other', (turn) => turn.addTools([toolNamed('b')]));
  const { model } = await runOnce([...shims, other], ['done'], { toolSettings: { toolChoice: 'required' } });
  expect(model.requests[0]?.tools).toEqual(['b']);
  expect(model.requests[0]?.options.toolChoice).toEqual({ type: 'required' });
});

it('R39 tools keep the order in which they were given', async () => {
  const adds = onTurn('adds', (turn) => {
    turn.addTools(['c', 'a', 'c', 'b', 'a'].map((name) => toolNamed(name)));
    turn.addTools(['b', 'd'].map((name) => toolNamed(name)));
  });
  const { model } = await runOnce([adds], ['done'], { tools: [toolNamed('z')] });
  expect(model.requests[0]?.tools).toEqual(['z', 'c', 'a', 'b', 'd']);
});
