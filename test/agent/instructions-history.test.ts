import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  BrokenPairingError,
  defineShim,
  defineTool,
  type HistoryItem,
  internalMessage,
  type Message,
  NoSystemTextError,
  type PreparedTurn,
  type PromptSpec,
  ShimError,
  z,
} from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, drive, onTurn, promptOf, runOnce, toolNamed, WAYS } from './drive.js';

const user = (content: string): Message => ({ role: 'user', content });

describe.each(WAYS)('%s', (way) => {
  it('R21 setSystemInstruction replaces the instruction for later shims, turns and runs', async () => {
    const seen: unknown[] = [];
    const sets = onTurn('sets', (turn) => {
      if (turn.isFirstOfConversation) turn.setSystemInstruction('You are replaced.');
    });
    const looks = onTurn('looks', (turn) => void seen.push(turn.runState.instructions));
    const { agent, model } = await runOnce([sets, looks], [calls('echo'), 'one', 'two'], {
      way,
      instructions: 'You are new.',
      tools: [toolNamed('echo')],
    });
    await drive(agent, 'again', { way });
    expect(seen).toEqual(Array(3).fill('You are replaced.'));
    expect(model.requests.map(({ system }) => system)).toEqual(seen);
    expect(agent.runState.instructions).toBe('You are replaced.');
  });

  it('R22 appendSystemInstruction appends at the tail, with two newlines or the separator, and none on an empty one', async () => {
    const appends = onTurn('appends', (turn) => {
      turn.appendSystemInstruction('one');
      turn.appendSystemInstruction('two');
      turn.appendSystemInstruction('three', { separator: ' | ' });
      turn.appendSystemInstruction('four', { separator: '' });
    });
    const empty = await runOnce([appends], ['done'], { way });
    expect(empty.model.requests[0]?.system).toBe('one\n\ntwo | threefour');
    const some = await runOnce([appends], ['done'], { way, instructions: 'zero' });
    expect(some.model.requests[0]?.system).toBe('zero\n\none\n\ntwo | threefour');
  });

  it('R25 appended items are copies, whatever becomes of the caller its object', async () => {
    const shared = { role: 'user' as const, content: [{ type: 'text' as const, text: 'as it was' }] };
    const data = { n: 1 };
    const frozenOutside = Object.freeze({
      role: 'user' as const,
      content: [{ type: 'text' as const, text: 'inside too' }],
    });
    const appends = onTurn('appends', (turn) => {
      turn.appendHistoryItem(shared);
      turn.appendHistoryItems([data, frozenOutside]);
      turn.runState.history.push(shared);
      shared.content[0]!.text = 'changed at once';
    });
    const later = defineShim({
      name: 'later',
      prepareTurn: () => {
        shared.content[0]!.text = 'changed';
        frozenOutside.content[0]!.text = 'changed';
        data.n = 2;
      },
    });
    const { agent, model } = await runOnce([appends, later], ['done'], { way });
    expect(promptOf(model)).toEqual([
      'user: hello',
      'user: as it was',
      'user: {"n":1}',
      'user: inside too',
      // Pushed onto the list itself, it is copied when the callback returns.
      'user: changed at once',
    ]);
    expect(agent.runState.history.slice(1, 4)).toEqual([
      { role: 'user', content: [{ type: 'text', text: 'as it was' }] },
      { n: 1 },
      { role: 'user', content: [{ type: 'text', text: 'inside too' }] },
    ]);
  });

  it('R28 R29 later shims, this request and later turns see an appended and a replaced history', async () => {
    const seen: unknown[] = [];
    const edits = onTurn('edits', (turn) => {
      if (turn.turnCount === 1) turn.appendHistoryItem('appended');
      if (turn.turnCount === 2) turn.replaceHistory(['replaced', ...turn.runState.history.slice(-1)]);
    });
    const looks = onTurn(
      'looks',
      (turn) => void seen.push(turn.runState.history.map((item) => (typeof item === 'string' ? item : 'object'))),
    );
    const { agent, model } = await runOnce([edits, looks], ['one', 'two', 'three'], { way });
    await drive(agent, 'again', { way });
    await drive(agent, 'last', { way });
    expect(seen).toEqual([
      ['hello', 'appended'],
      ['replaced', 'again'],
      ['replaced', 'again', 'object', 'last'],
    ]);
    expect(promptOf(model, 0)).toEqual(['user: hello', 'user: appended']);
    expect(promptOf(model, 1)).toEqual(['user: replaced', 'user: again']);
    expect(promptOf(model, 2)).toEqual(['user: replaced', 'user: again', 'assistant: two', 'user: last']);
  });
});

it('R23 appending to a template renders it first; what it has beside its system text stays', async () => {
  const appends = onTurn('appends', (turn) => turn.appendSystemInstruction('Be kind to {{ her }}.'));
  const text = { template: 'You care for {{ patient }}.', values: { patient: 'A & {{B}}' } };
  const plain = await runOnce([appends], ['one', 'two'], { instructions: text });
  await drive(plain.agent);
  expect(plain.model.requests[0]?.system).toBe('You care for A & {{B}}.\n\nBe kind to {{ her }}.');
  expect(plain.agent.runState.instructions).toBe(`${String(plain.model.requests[0]?.system)}\n\nBe kind to {{ her }}.`);

  const list: PromptSpec = {
    template: [
      { role: 'system', content: 'You care for {{ patient }}.' },
      { role: 'user', content: 'I am {{ patient }}.' },
    ],
    values: { patient: 'Ann {{x}}' },
  };
  const listed = await runOnce([appends], ['one', 'two'], { instructions: list });
  await drive(listed.agent, 'again');
  const system = 'system: You care for Ann {{x}}.\n\nBe kind to {{ her }}.';
  expect(promptOf(listed.model, 0)).toEqual([system, 'user: I am Ann {{x}}.', 'user: hello']);
  expect(promptOf(listed.model, 1).slice(0, 2)).toEqual([
    `${system}\n\nBe kind to {{ her }}.`,
    'user: I am Ann {{x}}.',
  ]);
});

it('R23 a template without a text system part throws', async () => {
  const appends = onTurn('appends', (turn) => turn.appendSystemInstruction('more'));
  const instructions: PromptSpec = { template: [{ role: 'user', content: 'hi' }], values: {} };
  const { error, model } = await runOnce([appends], [], { instructions });
  expect(error).toMatchObject({
    shim: 'appends',
    phase: 'prepareTurn',
    cause: expect.any(NoSystemTextError) as unknown,
  });
  expect(model.requests).toHaveLength(0);
});

it.each<[string, (turn: PreparedTurn) => void]>([
  ['a missing value', (turn) => turn.setSystemInstruction({ template: '{{ name }}', values: {} })],
  ['no template', (turn) => turn.setSystemInstruction(undefined as never)],
  ['no template, assigned', (turn) => void (turn.runState.instructions = 7 as never)],
])('R21 an instruction that could not be rendered is refused with the shim: %s', async (_what, set) => {
  const { error, model } = await runOnce([onTurn('sets', set)]);
  expect(error).toMatchObject({ shim: 'sets', phase: 'prepareTurn' });
  expect(model.requests).toHaveLength(0);
});

it('R24 an unguarded append grows each turn, a guarded one does not', async () => {
  const grows = onTurn('grows', (turn) => turn.appendSystemInstruction('g'));
  const guarded = onTurn('guarded', (turn) => {
    if (turn.isFirstForThisAgent) turn.appendSystemInstruction('once');
  });
  const { agent, model } = await runOnce([grows, guarded], ['one', 'two', 'three']);
  await drive(agent);
  await drive(agent);
  expect(model.requests.map(({ system }) => system)).toEqual(['g\n\nonce', 'g\n\nonce\n\ng', 'g\n\nonce\n\ng\n\ng']);
});

describe('R26 item kinds', () => {
  it('R26 messages, prior responses, prompt specs and user-side content are rendered as what they are', async () => {
    const items: HistoryItem[] = [
      { role: 'assistant', content: 'I am a message' },
      { template: 'Dear {{ name }}, {{ data }}', values: { name: 'Ann', data: { a: 1 } } },
      {
        template: [
          { role: 'user', content: 'q' },
          { role: 'assistant', content: 'a' },
        ],
        values: {},
      },
      'text',
      42,
      true,
      null,
      [1, 'two'],
      { role: 'nobody', content: 'x' },
      { role: 'user' },
      { type: 'text', text: 'part' },
    ];
    const appends = onTurn('appends', (turn) => {
      if (turn.turnCount > 1) {
        const [response] = turn.runState.responses;
        turn.appendHistoryItem(response!);
        return;
      }
      turn.appendHistoryItems(items);
    });
    const { agent, model } = await runOnce([appends], ['one', 'two']);
    expect(promptOf(model).slice(1)).toEqual([
      'assistant: I am a message',
      'user: Dear Ann, {"a":1}',
      'user: q',
      'assistant: a',
      'user: text',
      'user: 42',
      'user: true',
      'user: null',
      'user: [1,"two"]',
      'user: {"role":"nobody","content":"x"}',
      'user: {"role":"user"}',
      'user: {"type":"text","text":"part"}',
    ]);
    await drive(agent, 'again');
    expect(promptOf(model, 1).slice(-3)).toEqual(['assistant: one', 'user: again', 'assistant: one']);
  });

  it('R26 numbers that JSON cannot hold and malformed messages are refused with the shim and the place', async () => {
    const cases: readonly [unknown, string][] = [
      [Number.NaN, 'items[0] is NaN'],
      [undefined, 'items[0] is undefined'],
      [{ deep: [() => 1] }, 'items[0].deep[0] is function'],
      [{ role: 'user', content: [{ type: 'text' }] }, 'expected string'],
      [Object.freeze({ role: 'tool', content: Object.freeze([]) }), '>=1'],
      [{ template: '{{ missing }}', values: {} }, 'missing'],
    ];
    const routes: ((turn: PreparedTurn, item: HistoryItem) => void)[] = [
      (turn, item) => turn.appendHistoryItem(item),
      (turn, item) => turn.replaceHistory([item]),
      (turn, item) => void turn.runState.history.splice(0, 1, item),
    ];
    for (const [item, text] of cases) {
      for (const [index, route] of routes.entries()) {
        const { error, model } = await runOnce([onTurn('careless', (turn) => route(turn, item as HistoryItem))]);
        expect(error, text).toMatchObject({ shim: 'careless', phase: 'prepareTurn' });
        expect((error as Error).message).toContain(index === 2 ? text.replace('items[0]', 'history[0]') : text);
        expect(model.requests).toHaveLength(0);
      }
    }
  });
});

it('R27 replaceHistory installs copies and touches nothing else', async () => {
  const mine = { role: 'user' as const, content: 'mine' };
  const replaces = onTurn('replaces', (turn) => {
    if (turn.turnCount === 1) turn.runState.shimState.set('k', 'v');
    else {
      const list: HistoryItem[] = [mine, 'two'];
      turn.replaceHistory(list);
      list.push('three');
      mine.content = 'changed';
    }
  });
  const { agent } = await runOnce([replaces], ['one', 'two'], { instructions: 'stays' });
  const before = agent.runState;
  await drive(agent, 'again');
  const { history, instructions, responses, turnCount, shimState } = agent.runState;
  expect(history).toEqual([{ role: 'user', content: 'mine' }, 'two', responses[1]]);
  expect(instructions).toBe('stays');
  expect(responses.slice(0, 1)).toEqual(before.responses);
  expect(responses).toHaveLength(2);
  expect(turnCount).toBe(2);
  expect(shimState.toJSON()).toEqual({ k: 'v' });
});

describe('R30 what is appended while calls are open', () => {
  const marker = (turn: PreparedTurn) => internalMessage(user(`after turn ${turn.turnCount}`), { origin: 'late' });
  const late = defineShim({ name: 'late', onModelResponse: (turn) => turn.appendHistoryItem(marker(turn)) });

  it.each(WAYS)(
    'R30 from onModelResponse lands after the response, and after the results when it has calls (%s)',
    async (way) => {
      const { agent, model } = await runOnce([late], [calls('echo', 'echo'), 'one', 'two'], {
        way,
        tools: [toolNamed('echo')],
      });
      expect(promptOf(model, 1)).toEqual([
        'user: hello',
        'assistant: call echo + call echo',
        'tool: result "echo" + result "echo"',
        'user: after turn 1',
      ]);
      await drive(agent, 'again', { way });
      expect(promptOf(model, 2).slice(-3)).toEqual(['assistant: one', 'user: after turn 2', 'user: again']);
    },
  );

  it('R30 so does what replaceHistory puts behind the response there', async () => {
    const replaces = defineShim({
      name: 'replaces',
      onModelResponse: (turn) => turn.replaceHistory(['before', ...turn.runState.history, 'behind']),
    });
    const { model } = await runOnce([late, replaces], [calls('echo'), 'done'], { tools: [toolNamed('echo')] });
    expect(promptOf(model, 1)).toEqual([
      'user: before',
      'user: hello',
      'assistant: call echo',
      'tool: result "echo"',
      'user: after turn 1',
      'user: behind',
    ]);
  });

  it('R30 so does what a tool appends during its round, whichever call ends first', async () => {
    const adds = onTurn('adds', (turn) =>
      turn.addTools(
        ['slow', 'quick'].map((name) =>
          defineTool({
            name,
            description: name,
            parameters: z.object({}),
            execute: async () => {
              turn.appendHistoryItem(`${name} began`);
              if (name === 'slow') await new Promise((resolve) => setTimeout(resolve, 20));
              turn.runState.history.push(`${name} ended`);
              return name;
            },
          }),
        ),
      ),
    );
    for (const parallelToolCalls of [true, false]) {
      const { model, agent } = await runOnce([adds], [calls('slow', 'quick'), 'done'], {
        toolSettings: { parallelToolCalls },
      });
      expect(promptOf(model, 1).slice(0, 3)).toEqual([
        'user: hello',
        'assistant: call slow + call quick',
        'tool: result "slow" + result "quick"',
      ]);
      const told = ['slow began', 'quick began', 'quick ended', 'slow ended'].map((text) => `user: ${text}`);
      expect(promptOf(model, 1).slice(3).toSorted()).toEqual(told.toSorted());
      expect(agent.runState.history).toHaveLength(8);
    }
  });
});

it('R31 what onRunStart appends follows the run input', async () => {
  const starts = defineShim({
    name: 'starts',
    onRunStart: (state) => {
      state.history.push('pushed');
      state.history = [...state.history, 'assigned'];
    },
  });
  const { agent, model } = await runOnce([starts], ['one', 'two'], { input: ['first', 'second'] });
  expect(promptOf(model)).toEqual(['user: first', 'user: second', 'user: pushed', 'user: assigned']);
  await drive(agent, 'third');
  expect(promptOf(model, 1).slice(-4)).toEqual(['assistant: one', 'user: third', 'user: pushed', 'user: assigned']);
});

describe('R31a replaceHistory keeps calls and results together', () => {
  const cases: readonly [string, (history: readonly HistoryItem[]) => HistoryItem[], string][] = [
    [
      'a result without its call',
      (history) => history.filter((_item, index) => index !== 1),
      'does not follow its call',
    ],
    [
      'a call without its result',
      (history) => history.filter((_item, index) => index !== 2),
      'is not followed by its result',
    ],
    ['a call at the end', (history) => history.slice(0, 2), 'has no result'],
    ['something between them', ([a, b, ...rest]) => [a!, b!, 'between', ...rest], 'is not followed by its result'],
    ['a result twice', ([a, b, c, ...rest]) => [a!, b!, c!, c!, ...rest], 'does not follow its call'],
  ];

  it.each(cases)('R31a refuses %s, naming the shim', async (_what, change, text) => {
    const compacts = onTurn('compacts', (turn) => {
      if (turn.turnCount === 3) turn.replaceHistory(change(turn.runState.history));
    });
    const { agent, model } = await runOnce([compacts], [calls('echo'), 'one', 'two'], { tools: [toolNamed('echo')] });
    const { error } = await drive(agent, 'again');
    expect(error).toBeInstanceOf(ShimError);
    expect(error).toMatchObject({
      shim: 'compacts',
      phase: 'prepareTurn',
      cause: expect.any(BrokenPairingError) as unknown,
    });
    expect((error as Error).message).toContain(text);
    expect(model.requests).toHaveLength(2);
    expect(agent.runState.history.slice(0, 4)).toHaveLength(4);
  });

  it('R31a takes whole pairs out, and in onModelResponse leaves the round in progress open', async () => {
    const compacts = defineShim({
      name: 'compacts',
      prepareTurn: (turn) => {
        if (turn.turnCount === 3) turn.replaceHistory(['summary', ...turn.runState.history.slice(4)]);
      },
      onModelResponse: (turn) => {
        if (turn.turnCount === 3) turn.replaceHistory(turn.runState.history.slice(-2));
      },
    });
    const script = [calls('echo'), 'one', calls('echo'), 'two'];
    const { agent, model, error } = await runOnce([compacts], script, { tools: [toolNamed('echo')] });
    expect(error).toBeUndefined();
    expect((await drive(agent, 'again')).error).toBeUndefined();
    expect(promptOf(model, 2)).toEqual(['user: summary', 'user: again']);
    expect(promptOf(model, 3)).toEqual(['user: again', 'assistant: call echo', 'tool: result "echo"']);
  });

  it('R31a refuses to drop the calls of the round in progress', async () => {
    const drops = defineShim({ name: 'drops', onModelResponse: (turn) => turn.replaceHistory(['all new']) });
    const ran: string[] = [];
    const echo = defineTool({
      name: 'echo',
      description: 'e',
      parameters: z.object({}),
      execute: () => void ran.push('ran'),
    });
    const model = new ScriptedModel([calls('echo')]);
    const { error } = await drive(new DefaultAgent({ model, shims: [drops], tools: [echo] }));
    expect(error).toMatchObject({ shim: 'drops', phase: 'onModelResponse' });
    expect(ran).toEqual([]);
  });
});
