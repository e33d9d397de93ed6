import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  BoundShim,
  DelegatingShim,
  defineShim,
  Shim,
  type ShimBindingContext,
  ShimError,
  type ToolSourceBinding,
} from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, drive, NotedSession, onTurn, promptOf, runOnce, toolNamed, WAYS } from './drive.js';

/** A definition that counts its binds and hands out noted sessions. */
class Binding extends Shim {
  readonly contexts: ShimBindingContext[] = [];
  readonly notes: string[];
  readonly name: string;
  failure: Error | undefined;
  constructor(name: string, notes: string[] = []) {
    super();
    this.name = name;
    this.notes = notes;
  }
  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    this.contexts.push(context);
    await Promise.resolve();
    if (this.failure !== undefined) throw this.failure;
    this.notes.push(`${this.name} bind`);
    return new NotedSession(this.name, (line) => this.notes.push(line));
  }
}

describe.each(WAYS)('%s', (way) => {
  it('R1 calls every callback in list order, clean-up included, and a later shim sees what an earlier one did', async () => {
    const notes: string[] = [];
    const seen: unknown[] = [];
    const first = onTurn('first', (turn) => {
      turn.setSystemInstruction('from the first');
      turn.addTools([toolNamed('of-first')]);
      turn.runState.shimState.set('first', 1);
      turn.modelArgs = { ...turn.modelArgs, seed: 7 };
    });
    const second = onTurn('second', (turn) => {
      const { instructions, shimState } = turn.runState;
      const tools = turn.tools?.tools.map(({ name }) => name);
      seen.push(instructions, shimState.get('first'), tools, turn.modelArgs?.seed);
    });
    await runOnce([first, second, new Binding('a', notes), new Binding('b', notes)], ['done'], { way });
    expect(seen).toEqual(['from the first', 1, ['of-first'], 7]);
    expect(notes).toEqual(
      ['bind', 'start', 'prepare', 'transform', 'response', 'end'].flatMap((step) => [`a ${step}`, `b ${step}`]),
    );
  });

  it('R4 binds once for an agent, also when two first runs start together', async () => {
    const shim = new Binding('once');
    const agent = new DefaultAgent({ model: new ScriptedModel(['one', 'two', 'three']), shims: [shim] });
    const runs = await Promise.all([drive(agent, 'a', { way }), drive(agent, 'b', { way })]);
    await drive(agent, 'c', { way });
    expect(runs.map(({ result }) => result?.finalOutput)).toEqual(['one', 'two']);
    expect(shim.contexts).toHaveLength(1);
    expect(shim.notes.filter((note) => note.endsWith('start'))).toHaveLength(3);
    expect(shim.contexts[0]).toEqual({
      task: { runId: 'agent-1', agent: 'agent', model: 'in-code/agent', depth: 0 },
      toolSourceBindings: [],
    });
  });

  it('R7 a bind that throws fails the run before any callback, and bound siblings are disposed', async () => {
    const notes: string[] = [];
    const [a, b, c] = [new Binding('a', notes), new Binding('b', notes), new Binding('c', notes)];
    b.failure = new Error('no lease');
    const { agent, model, error } = await runOnce([a, b, c], [], { way });
    expect(error).toBeInstanceOf(ShimError);
    expect(error).toMatchObject({ shim: 'b', phase: 'bind', cause: b.failure, code: 'shim_failed' });
    expect(notes).toEqual(['a bind', 'a dispose']);
    expect(model.requests).toHaveLength(0);

    b.failure = undefined;
    model.extend(['done']);
    notes.length = 0;
    await drive(agent, 'again', { way });
    expect(notes.slice(0, 3)).toEqual(['a bind', 'b bind', 'c bind']);
  });
});

it('R2 the name is the key of the persisted state, and stays it in another instance of the code', async () => {
  const counter = (step: number) =>
    defineShim({
      name: 'counter',
      prepareTurn(turn) {
        turn.runState.shimState.increment(`${this.name}:n`, step);
      },
    });
  const { agent } = await runOnce([counter(1), counter(10).create({}, { name: 'tens' })], ['one', 'two']);
  await drive(agent, 'again');
  expect(agent.runState.shimState.toJSON()).toEqual({ 'counter:n': 2, 'tens:n': 20 });
});

it('R3 two shims of one agent with the same name are refused, naming both positions', () => {
  const model = new ScriptedModel();
  const twin = defineShim({ name: 'twin' });
  expect(() => new DefaultAgent({ model, shims: [twin, defineShim({ name: 'other' }), twin] })).toThrow(
    /positions 0 and 2 have the same name "twin"/,
  );
  expect(new DefaultAgent({ model, shims: [twin, twin.create({}, { name: 'second' })] }).name).toBe('agent');
});

it('R5 a plain class needs no bind: its session forwards every callback to the definition', async () => {
  const seen: string[] = [];
  class Plain extends Shim {
    readonly name = 'plain';
    override onRunStart(): void {
      seen.push(`start of ${this.name}`);
    }
    override prepareTurn(turn: Parameters<Shim['prepareTurn']>[0]): void {
      seen.push('prepare');
      turn.addTools([toolNamed('echo')]);
    }
    override transformMessages(): void {
      seen.push('transform');
    }
    override onModelResponse(): void {
      seen.push('response');
    }
    override async wrapModelCall(
      ...[, request, next]: Parameters<Shim['wrapModelCall']>
    ): ReturnType<Shim['wrapModelCall']> {
      seen.push('wrap model');
      return next(request);
    }
    override async wrapToolCall(...[, call, next]: Parameters<Shim['wrapToolCall']>): ReturnType<Shim['wrapToolCall']> {
      seen.push('wrap tool');
      return next(call);
    }
    override transformDelta(...[, delta]: Parameters<Shim['transformDelta']>): ReturnType<Shim['transformDelta']> {
      if (delta.kind !== 'toolInput') seen.push(`delta ${delta.kind}`);
      return delta;
    }
    override onRunEnd(): void {
      seen.push('end');
    }
  }
  await runOnce([new Plain()], [calls('echo'), 'done']);
  const turn = ['prepare', 'transform', 'wrap model'];
  expect(seen).toEqual([
    'start of plain',
    ...turn,
    'delta flush',
    'response',
    'wrap tool',
    ...turn,
    'delta text',
    'delta flush',
    'response',
    'end',
  ]);
});

it('R6 one definition serves many agents and conversations; the sessions have memory of their own', async () => {
  class Remembering extends Shim {
    readonly name = 'remembering';
    override bind(): BoundShim {
      const heard: unknown[] = [];
      return new (class extends BoundShim {
        override prepareTurn(turn: Parameters<BoundShim['prepareTurn']>[0]): void {
          heard.push(turn.runState.history.at(-1));
          turn.setSystemInstruction(`heard ${heard.join(', ')}`);
        }
      })();
    }
  }
  const shim = new Remembering();
  const models = [new ScriptedModel(['1', '2']), new ScriptedModel(['1', '2'])] as const;
  const agents = models.map((model) => new DefaultAgent({ model, shims: [shim] }));
  await Promise.all(agents.map(async (agent, index) => drive(agent, `a${index}`)));
  await Promise.all(agents.map(async (agent, index) => drive(agent, `b${index}`)));
  expect(models.map((model) => model.requests.map(({ system }) => system))).toEqual([
    ['heard a0', 'heard a0, b0'],
    ['heard a1', 'heard a1, b1'],
  ]);
});

it('R7 the sessions of an agent in code live as long as it does, and are disposed by its own dispose', async () => {
  const notes: string[] = [];
  const { agent } = await runOnce([new Binding('a', notes), new Binding('b', notes)], ['one', 'two']);
  await drive(agent, 'again');
  expect(notes.filter((note) => note.endsWith('dispose'))).toEqual([]);
  await agent[Symbol.asyncDispose]();
  await agent[Symbol.asyncDispose]();
  expect(notes.slice(-2)).toEqual(['a dispose', 'b dispose']);
  expect(notes.filter((note) => note.endsWith('dispose'))).toHaveLength(2);
});

it('R7 a dispose that throws keeps no other session from being disposed', async () => {
  const notes: string[] = [];
  const failing = new (class extends Shim {
    readonly name = 'failing';
    override bind(): BoundShim {
      return new (class extends BoundShim {
        override async [Symbol.asyncDispose](): Promise<void> {
          throw new Error('still in use');
        }
      })();
    }
  })();
  const { agent } = await runOnce([failing, new Binding('after', notes)]);
  await expect(agent[Symbol.asyncDispose]()).rejects.toThrow('still in use');
  expect(notes.at(-1)).toBe('after dispose');
});

it('R7 what is no session at all is a bind that failed', async () => {
  class Wrong extends Shim {
    readonly name = 'wrong';
    override bind(): BoundShim {
      return Object.create(null) as BoundShim;
    }
  }
  const { error } = await runOnce([new Wrong()], []);
  expect(error).toMatchObject({ shim: 'wrong', phase: 'bind', cause: { message: 'bind gave no BoundShim' } });
});

it('R9 a wrapper forwards the whole binding context to the inner definition', async () => {
  const inner = new Binding('inner');
  class Wrapper extends DelegatingShim {
    override prepareTurn(turn: Parameters<Shim['prepareTurn']>[0]): void {
      turn.appendSystemInstruction('wrapped');
    }
  }
  const wrapper = new Wrapper(new DelegatingShim(inner));
  const source: ToolSourceBinding = { source: inner, bind: async () => new NotedSession('own', () => undefined) };
  const task = { runId: 'r', agent: 'a', model: 'm', depth: 1, parentRunId: 'p' };
  const context = { task, toolSourceBindings: [source] };
  await wrapper.bind(context);
  expect(inner.contexts).toHaveLength(1);
  expect(inner.contexts[0]).toBe(context);

  const { model } = await runOnce([wrapper]);
  expect(promptOf(model)[0]).toBe('system: wrapped');
  expect(inner.contexts[1]?.task).toMatchObject({ runId: 'agent-1', agent: 'agent' });
});
