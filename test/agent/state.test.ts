import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  BoundShim,
  defineShim,
  defineTool,
  internalMessage,
  type PreparedTurn,
  type RunContext,
  type RunResult,
  Shim,
  ShimError,
  type ShimState,
  type ToolContext,
  z,
} from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, drive, onTurn, runOnce, toolNamed, WAYS } from './drive.js';

describe.each(WAYS)('%s', (way) => {
  it('R10 the state is one instruction, the history, all raw responses, shimState and the turn count', async () => {
    const writes = onTurn('writes', (turn) => void turn.runState.shimState.increment('writes:turns'));
    const { agent, result } = await runOnce([writes], [calls('echo'), 'done'], {
      way,
      instructions: 'Be brief.',
      tools: [toolNamed('echo')],
    });
    const { instructions, history, responses, shimState, turnCount } = agent.runState;
    expect(instructions).toBe('Be brief.');
    expect(history).toEqual([
      'hello',
      responses[0],
      {
        role: 'tool',
        content: [
          { type: 'tool-result', toolCallId: 'call_1', toolName: 'echo', output: { type: 'text', value: 'echo' } },
        ],
      },
      responses[1],
    ]);
    expect(responses.map(({ finishReason, message }) => [finishReason, message])).toEqual([
      [
        'tool-calls',
        { role: 'assistant', content: [{ type: 'tool-call', toolCallId: 'call_1', toolName: 'echo', input: {} }] },
      ],
      ['stop', { role: 'assistant', content: 'done' }],
    ]);
    for (const response of responses) {
      expect(response).toMatchObject({
        id: expect.any(String) as unknown,
        modelCallId: expect.any(String) as unknown,
        modelId: expect.any(String) as unknown,
      });
      expect(response.usage.totalTokens).toBe(2);
    }
    expect(shimState.toJSON()).toEqual({ 'writes:turns': 2 });
    expect(turnCount).toBe(2);
    expect(result?.runState).toEqual({
      instructions,
      history,
      responses,
      turnCount,
      shimState: expect.anything() as unknown,
    });
    expect(result?.runState.shimState.toJSON()).toEqual({ 'writes:turns': 2 });
    expect(result?.runState.shimState.get('writes:turns')).toBe(2);
  });

  it('R12 R13 the turn count is raised before prepareTurn and goes on in later runs', async () => {
    const seen: unknown[] = [];
    const counts = defineShim({
      name: 'counts',
      onRunStart: (state) => void seen.push(['start', state.turnCount]),
      prepareTurn: (turn) => void seen.push(['prepare', turn.turnCount, turn.runState.turnCount]),
    });
    const { agent } = await runOnce([counts], [calls('echo'), 'one', 'two'], { way, tools: [toolNamed('echo')] });
    await drive(agent, 'again', { way });
    expect(seen).toEqual([
      ['start', 0],
      ['prepare', 1, 1],
      ['prepare', 2, 2],
      ['start', 2],
      ['prepare', 3, 3],
    ]);
    expect(agent.runState.turnCount).toBe(3);
  });

  it('R14 limits compare the turns of this run, so a long conversation does not die of age', async () => {
    const seen: unknown[] = [];
    const watch = onTurn('watch', (turn) => void seen.push([turn.turnCount, turn.runTurn]));
    const model = new ScriptedModel([], { otherwise: 'ok' });
    const agent = new DefaultAgent({ model, shims: [watch], tools: [toolNamed('echo')], limits: { maxTurns: 2 } });
    for (const input of ['a', 'b', 'c']) await drive(agent, input, { way });
    model.extend([calls('echo'), calls('echo')]);
    const { error } = await drive(agent, 'too much', { way });
    expect(error).toMatchObject({ code: 'limit_exceeded', details: { limit: 'maxTurns', allowed: 2, reached: 2 } });
    expect(seen).toEqual([
      [1, 1],
      [2, 1],
      [3, 1],
      [4, 1],
      [5, 2],
    ]);
    expect((await drive(agent, 'go on', { way })).result?.finalOutput).toBe('ok');
  });

  it('R16 the transient state is one map in all callbacks of a run, shared by all shims and kept nowhere', async () => {
    const maps: RunContext[] = [];
    const keep = (map: RunContext): void => void maps.push(map);
    const noted = (name: string) =>
      defineShim({
        name,
        onRunStart: (_state, transient) => keep(transient),
        prepareTurn: (turn) => keep(turn.transientState),
        transformMessages: (turn) => keep(turn.transientState),
        onModelResponse: (turn) => keep(turn.transientState),
        onRunEnd: (_result, transient) => keep(transient),
      });
    const writes = defineShim({
      name: 'writes',
      onRunStart: (_state, transient) => transient.set('fn', () => 'anything goes'),
    });
    const { agent } = await runOnce([writes, noted('a'), noted('b')], [calls('echo'), 'one', 'two'], {
      way,
      tools: [toolNamed('echo')],
    });
    expect(maps).toHaveLength(16);
    expect(new Set(maps).size).toBe(1);
    expect(maps[0]?.has('fn')).toBe(true);
    expect(agent.runState.shimState.toJSON()).toEqual({});
    const before = maps[0];
    before?.set('left', 1);
    await drive(agent, 'again', { way });
    expect(maps.at(-1)).not.toBe(before);
    expect(maps.at(-1)?.has('left')).toBe(false);
  });
});

it('R10 R27 the list of responses refuses writes, the count has no other value', async () => {
  const writes: readonly ((turn: PreparedTurn) => unknown)[] = [
    (turn) => turn.runState.responses.pop(),
    (turn) => turn.runState.responses.push(turn.runState.responses[0]!),
    (turn) => ((turn.runState.responses[0]!.message as { content: string }).content = 'other'),
    (turn) => ((turn.runState as { turnCount: number }).turnCount = 9),
    (turn) => ((turn.runState as { shimState: unknown }).shimState = new Map()),
  ];
  for (const write of writes) {
    const writer = defineShim({ name: 'writer', onModelResponse: (turn) => void write(turn) });
    expect((await runOnce([writer])).error, String(write)).toMatchObject({
      shim: 'writer',
      cause: expect.any(TypeError) as unknown,
    });
  }
});

it('R11 the instructions are taken from the agent for a new conversation only; a saved run keeps its own', async () => {
  const once = onTurn('once', (turn) => {
    if (turn.isFirstOfConversation) turn.setSystemInstruction('the run its own');
  });
  const { agent, model } = await runOnce([once], ['one', 'two', 'three'], { instructions: 'the agent its own' });
  await drive(agent, 'again');
  agent.reset();
  const seen: unknown[] = [];
  const fresh = new DefaultAgent({
    model,
    instructions: 'the agent its own',
    shims: [onTurn('look', (turn) => void seen.push(turn.runState.instructions))],
  });
  await drive(fresh, 'new');
  expect(model.requests.map(({ system }) => system)).toEqual([
    'the run its own',
    'the run its own',
    'the agent its own',
  ]);
  expect(seen).toEqual(['the agent its own']);
  expect(agent.runState.instructions).toBe('the agent its own');
});

it('R14 the limit is 128 turns unless something else is said', async () => {
  const model = new ScriptedModel([], { otherwise: calls('echo') });
  const { error } = await drive(new DefaultAgent({ model, tools: [toolNamed('echo')] }));
  expect(error).toMatchObject({ code: 'limit_exceeded', details: { limit: 'maxTurns', allowed: 128 } });
  expect(model.requests).toHaveLength(128);
});

describe('R15 isFirstForThisAgent', () => {
  const firsts = (name: string, seen: unknown[]) =>
    onTurn(
      name,
      (turn) => void seen.push([turn.agent, turn.isFirstForThisAgent, turn.isFirstOfRun, turn.isFirstOfConversation]),
    );

  it('R15 is true once per conversation and agent, also after a handoff', async () => {
    const seen: unknown[] = [];
    const child = new DefaultAgent({
      name: 'child',
      model: new ScriptedModel([calls('echo'), 'from the child', 'child again']),
      tools: [toolNamed('echo')],
      shims: [firsts('child-look', seen)],
    });
    const parent = new DefaultAgent({
      name: 'parent',
      model: new ScriptedModel([calls('echo'), calls('handoff_to_child')]),
      tools: [toolNamed('echo')],
      shims: [firsts('parent-look', seen)],
      handoffs: [child],
    });
    await drive(parent);
    await drive(parent, 'again');
    expect(seen).toEqual([
      ['parent', true, true, true],
      ['parent', false, false, false],
      ['child', true, false, false],
      ['child', false, false, false],
      ['child', false, true, false],
    ]);
  });

  it('R15 is true again where the first turn failed, since nothing of it was saved', async () => {
    const seen: unknown[] = [];
    const { agent } = await runOnce([firsts('look', seen)], [new Error('down'), 'one', 'two']);
    await drive(agent);
    await drive(agent);
    expect(seen.map((each) => (each as unknown[])[1])).toEqual([true, true, false]);
  });
});

describe('R18 the state is JSON', () => {
  const cycle: Record<string, unknown> = {};
  cycle.self = cycle;
  const cases: readonly [string, unknown, string][] = [
    ['undefined', { deep: [undefined] }, 'state.bad.deep[0] is undefined'],
    ['a function', { f: () => 1 }, 'state.bad.f is function'],
    ['a cycle', cycle, 'state.bad.self is a cycle'],
    ['NaN', { n: Number.NaN }, 'state.bad.n is NaN'],
    ['an infinity', { n: Number.POSITIVE_INFINITY }, 'state.bad.n is Infinity'],
    ['a symbol', Symbol('s'), 'state.bad is symbol'],
    ['a bigint', { n: 1n }, 'state.bad.n is bigint'],
    ['a Date', { at: new Date(0) }, 'state.bad.at is a Date'],
    ['a Map', new Map([['a', 1]]), 'state.bad is a Map'],
  ];

  it.each(cases)(
    'R18 %s is refused with the shim and the path, set or written deep inside',
    async (_what, value, text) => {
      const set = onTurn('careless', (turn) => turn.runState.shimState.set('bad', value as never));
      const inside = defineShim({
        name: 'careless',
        onRunStart: (state) => state.shimState.set('bad', {}),
        onModelResponse: (turn) => void Object.assign(turn.runState.shimState.get('bad') as object, { inner: value }),
      });
      const first = await runOnce([set]);
      expect(first.error).toBeInstanceOf(ShimError);
      expect(first.error).toMatchObject({ shim: 'careless', phase: 'prepareTurn' });
      expect((first.error as Error).message).toContain(text);
      expect(first.model.requests).toHaveLength(0);
      const second = await runOnce([inside]);
      expect(second.error).toMatchObject({ shim: 'careless', phase: 'onModelResponse' });
      expect((second.error as Error).message).toContain(text.replace('state.bad', 'state.bad.inner'));
      expect(second.agent.runState.shimState.toJSON()).toEqual({ bad: {} });
    },
  );

  it('R18 a nested write in a failed run never reaches the saved state', async () => {
    const nested = onTurn('nested', (turn) => {
      const { shimState } = turn.runState;
      if (!shimState.has('list')) shimState.set('list', { items: ['saved'] });
      else {
        (shimState.get('list') as unknown as { items: string[] }).items.push('lost');
        throw new Error('later');
      }
    });
    const { agent } = await runOnce([nested], ['one']);
    await drive(agent);
    await drive(agent);
    expect(agent.runState.shimState.toJSON()).toEqual({ list: { items: ['saved'] } });
  });

  it('R18 R20a a bad write through a namespace or in a wrap names the shim', async () => {
    const namespaced = defineShim({
      name: 'namespaced',
      state: z.object({ n: z.number().default(0) }),
      prepareTurn: (turn) => {
        turn.state.n = 'many' as never;
      },
    });
    expect((await runOnce([namespaced])).error).toMatchObject({
      shim: 'namespaced',
      phase: 'prepareTurn',
      cause: { name: 'InvalidStateError' },
    });
    const wrapping = defineShim({
      name: 'wrapping',
      onRunStart: (state) => state.shimState.set('w', {}),
      wrapModelCall: async (turn, request, next) => {
        Object.assign(turn.runState.shimState.get('w') as object, { n: Number.NaN });
        return next(request);
      },
    });
    const { error, model } = await runOnce([wrapping]);
    expect(error).toMatchObject({ shim: 'wrapping', phase: 'wrapModelCall', cause: { path: 'state.w.n' } });
    expect(model.requests).toHaveLength(0);
  });

  it('R18 what a tool writes that JSON cannot hold fails the run with its shim, and its outcome is kept', async () => {
    const shim = onTurn('careless', (turn) => {
      turn.runState.shimState.set('ok', { n: 1 });
      const { shimState } = turn.runState;
      turn.addTools([
        defineTool({
          name: 'spoil',
          description: 'Spoils the state.',
          parameters: z.object({}),
          execute: () => {
            Object.assign(shimState.get('ok') as object, { n: Number.NaN });
            return 'it had its effect';
          },
        }),
      ]);
    });
    const { agent, model, error } = await runOnce([shim], [calls('spoil'), 'next']);
    expect(error).toMatchObject({ code: 'shim_failed', shim: 'careless', phase: 'tool:spoil' });
    expect((error as Error).message).toContain('state.ok.n is NaN');
    await drive(agent);
    expect(agent.runState.shimState.toJSON()).toEqual({ ok: { n: 1 } });
    expect(model.requests[1]?.prompt.at(-2)).toMatchObject({
      role: 'tool',
      content: [{ output: { type: 'text', value: 'it had its effect' } }],
    });
  });
});

describe('R19 tools write through the shim that contributed them', () => {
  it('R19 the turn stays live during its tool round, and parallel calls lose nothing', async () => {
    const answers: unknown[] = [];
    const notes = onTurn('notes', (turn) => {
      const { shimState } = turn.runState;
      turn.addTools([
        defineTool({
          name: 'note',
          description: 'Notes it.',
          parameters: z.object({ n: z.number() }),
          execute: async ({ n }) => {
            await new Promise((resolve) => setImmediate(resolve));
            shimState.increment('notes:calls');
            shimState.increment('notes:sum', n);
            shimState.appendToList('notes:list', n);
            shimState.extendList('notes:list', [n, n]);
            answers.push(shimState.appendIfUnique('notes:set', { parity: n % 2 }));
            return shimState.get('notes:calls') ?? null;
          },
        }),
      ]);
    });
    const toolCalls = Array.from({ length: 20 }, (_, n) => ({ toolName: 'note', input: { n } }));
    const { agent } = await runOnce([notes], [{ toolCalls }, 'done']);
    const state = agent.runState.shimState;
    expect(state.get('notes:calls')).toBe(20);
    expect(state.get('notes:sum')).toBe(190);
    expect(state.get<number[]>('notes:list')?.toSorted((a, b) => a - b)).toEqual(
      Array.from({ length: 60 }, (_, index) => Math.floor(index / 3)),
    );
    expect(state.get('notes:set')).toEqual([{ parity: 0 }, { parity: 1 }]);
    expect(answers.filter((added) => added === true)).toHaveLength(2);
  });

  it.each(['shimState', 'transientState'] as const)('R19 the helpers of %s', async (which) => {
    let seen: unknown;
    const shim = onTurn('helpers', (turn) => {
      const map = (which === 'shimState' ? turn.runState.shimState : turn.transientState) as ShimState;
      const refused: unknown[] = [];
      for (const run of [
        () => map.increment('list'),
        () => map.appendToList('n', 1),
        () => map.appendIfUnique('n', 1),
      ]) {
        try {
          run();
        } catch (error) {
          refused.push(error instanceof TypeError);
        }
        map.set('list', []);
        map.set('n', 1);
      }
      seen = [
        map.increment('count'),
        map.increment('count', 2.5),
        map.appendIfUnique('unique', { a: [1, { b: 2 }], c: 3 }),
        map.appendIfUnique('unique', { c: 3, a: [1, { b: 2 }] }),
        map.has('unique'),
        map.delete('unique'),
        map.delete('unique'),
        [...map.keys()],
        Object.fromEntries(map.entries()),
        JSON.stringify(map),
        refused,
      ];
    });
    await runOnce([shim]);
    const left = { list: [], n: 1, count: 3.5 };
    expect(seen).toEqual([
      1,
      3.5,
      true,
      false,
      true,
      true,
      false,
      ['list', 'n', 'count'],
      left,
      JSON.stringify(left),
      [true, true],
    ]);
  });
});

describe('R20 what a tool sees of the run', () => {
  async function toolContext(execute: (ctx: ToolContext, turn: PreparedTurn) => unknown) {
    const shim = defineShim({
      name: 'looks',
      onRunStart: (state) => {
        state.shimState.set('skills:active', ['billing']);
        state.shimState.set('looks:nested', { list: [1] });
      },
      prepareTurn: (turn) =>
        turn.addTools([
          defineTool({
            name: 'look',
            description: 'Looks.',
            parameters: z.object({}),
            execute: (_args, ctx) => execute(ctx, turn),
          }),
        ]),
    });
    return runOnce([shim], [calls('look'), 'done']);
  }

  it('R20 it is a live view of the run, its state and the active skills', async () => {
    let seen: unknown;
    await toolContext((ctx, turn) => {
      const before = [ctx.runId, ctx.agent, ctx.activeSkillNames, ctx.shimState.get('later')];
      turn.runState.shimState.set('later', 'live');
      turn.runState.shimState.appendToList('skills:active', 'triage');
      seen = [before, ctx.activeSkillNames, ctx.shimState.get('later'), [...ctx.shimState.keys()]];
      return 'looked';
    });
    expect(seen).toEqual([
      ['agent-1', 'agent', ['billing'], undefined],
      ['billing', 'triage'],
      'live',
      ['skills:active', 'looks:nested', 'later'],
    ]);
  });

  /** The context without its types, which forbid all of this. */
  interface Writable {
    runId: string;
    shimState: Map<string, { list: unknown[] }> &
      Record<'increment' | 'appendToList' | 'extendList' | 'appendIfUnique', (...given: unknown[]) => unknown>;
    activeSkillNames: string[];
  }
  const writes: readonly [string, (ctx: Writable) => unknown][] = [
    ['set', (ctx) => ctx.shimState.set('a', { list: [] })],
    ['delete', (ctx) => ctx.shimState.delete('looks:nested')],
    ['increment', (ctx) => ctx.shimState.increment('n')],
    ['appendToList', (ctx) => ctx.shimState.appendToList('l', 1)],
    ['extendList', (ctx) => ctx.shimState.extendList('l', [])],
    ['appendIfUnique of a duplicate', (ctx) => ctx.shimState.appendIfUnique('skills:active', 'billing')],
    ['a nested write', (ctx) => ctx.shimState.get('looks:nested')!.list.push(2)],
    ['a nested assignment', (ctx) => (ctx.shimState.get('looks:nested')!.list = [])],
    ['another runId', (ctx) => (ctx.runId = 'other')],
    ['another state', (ctx) => (ctx.shimState = new Map() as never)],
    ['a method of the state', (ctx) => (ctx.shimState.get = () => undefined)],
    ['more skills', (ctx) => ctx.activeSkillNames.push('all')],
    ['other skills', (ctx) => (ctx.activeSkillNames = [])],
  ];
  it.each(writes)('R20 writing through it throws TypeError: %s', async (_what, write) => {
    let caught: unknown;
    const { agent } = await toolContext((ctx) => {
      try {
        write(ctx as unknown as Writable);
      } catch (error) {
        caught = error;
      }
      return 'tried';
    });
    expect(caught).toBeInstanceOf(TypeError);
    expect(agent.runState.shimState.toJSON()).toEqual({ 'skills:active': ['billing'], 'looks:nested': { list: [1] } });
  });
});

describe('R20a a state of its own', () => {
  const Counter = z.object({ turns: z.number().default(0), labels: z.array(z.string()).default([]) });

  it('R20a is changed in place, checked, and kept with its version under the name of the shim', async () => {
    const counter = defineShim({
      name: 'counter',
      version: 3,
      state: Counter,
      onRunStart: (_state, _transient, run) => void run.state.labels.push('start'),
      prepareTurn: (turn) => {
        turn.state.turns += 1;
      },
      onRunEnd: (_result, _transient, run) => void run.state.labels.push('end'),
    });
    const { agent } = await runOnce([counter, counter.create({}, { name: 'second' })], ['one', 'two']);
    await drive(agent);
    const value = { turns: 2, labels: ['start', 'end', 'start', 'end'] };
    expect(agent.runState.shimState.toJSON()).toEqual({
      counter: value,
      'counter:version': 3,
      second: value,
      'second:version': 3,
    });
  });

  it('R20a what a wrap, a delta or a tool wrote is kept as well', async () => {
    const busy = defineShim({
      name: 'busy',
      state: z.object({ wraps: z.number().default(0), deltas: z.number().default(0), tools: z.number().default(0) }),
      wrapModelCall: async (turn, request, next) => {
        turn.state.wraps += 1;
        return next(request);
      },
      transformDelta: (turn, delta) => {
        if (delta.kind === 'text') turn.state.deltas += 1;
        return delta;
      },
      wrapToolCall: async (turn, call, next) => {
        turn.state.tools += 1;
        return next(call);
      },
    });
    const { agent } = await runOnce([busy], [calls('echo'), 'done'], { tools: [toolNamed('echo')] });
    expect(agent.runState.shimState.get('busy')).toEqual({ wraps: 2, deltas: 1, tools: 1 });
  });

  it('R20a a failed turn leaves the namespace at the last boundary, and the next run reads it there', async () => {
    const seen: unknown[] = [];
    const counter = defineShim({
      name: 'counter',
      state: Counter,
      prepareTurn: (turn) => {
        seen.push(turn.state.turns);
        turn.state.turns += 1;
        if (turn.transientState.has('fail')) throw new Error('no');
      },
      onRunEnd: (result, _transient, run) => void run.state.labels.push(result === null ? 'failed' : 'done'),
    });
    const fails = defineShim({
      name: 'fails',
      onRunStart: (state, transient) => {
        if (state.history.at(-1) === 'fail') transient.set('fail', true);
      },
    });
    const { agent } = await runOnce([counter, fails], ['one', 'two']);
    await drive(agent, 'fail');
    await drive(agent);
    expect(seen).toEqual([0, 1, 1]);
    expect(agent.runState.shimState.get('counter')).toEqual({ turns: 2, labels: ['done', 'done'] });
  });

  it('R20a a schema that refuses {} and a class without one', async () => {
    expect(() => defineShim({ name: 'strict', state: z.object({ must: z.string() }) })).toThrow(/must accept \{\}/);
    let seen: unknown = 'not called';
    class Plain extends Shim {
      readonly name = 'plain';
      override prepareTurn(turn: PreparedTurn): void {
        seen = turn.state;
      }
    }
    await runOnce([new Plain()]);
    expect(seen).toBeUndefined();
  });
});

it('R16 R18 what an ended session still holds writes nowhere', async () => {
  let kept: ShimState | undefined;
  class Keeps extends Shim {
    readonly name = 'keeps';
    override bind(): BoundShim {
      return new (class extends BoundShim {
        override onRunStart(state: { readonly shimState: ShimState }): void {
          kept = state.shimState;
        }
        override onRunEnd(result: RunResult | null): void {
          if (result !== null) expect(() => result.runState.shimState.set('late', 1)).toThrow(TypeError);
        }
      })();
    }
  }
  const { agent, error } = await runOnce([new Keeps()], ['one']);
  expect(error).toBeUndefined();
  try {
    kept?.set('after', 1);
  } catch {
    // Refusing it is as good as losing it.
  }
  expect(agent.runState.shimState.toJSON()).toEqual({});
  expect(internalMessage({ role: 'user', content: 'x' }, { origin: 'o' })).toMatchObject({ role: 'user' });
});
