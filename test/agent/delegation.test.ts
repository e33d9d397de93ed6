import { describe, expect, it } from 'vitest';
import { DefaultAgent, type DefaultAgentOptions } from '../../src/agent/default-agent.js';
import {
  agentTool,
  BoundShim,
  DelegatingShim,
  defineShim,
  type PreparedTurn,
  RunCancelledError,
  Shim,
  type ShimBindingContext,
  type ShimDefinition,
  type SpawnRequest,
  type ToolMessage,
  type ToolSourceBinding,
  type UserMessage,
} from '../../src/shims.js';
import { type ScriptedAnswer, ScriptedModel } from '../../src/testing.js';
import { settle } from '../support/manual-clock.js';
import { calls, drive, onTurn, promptOf, toolNamed, WAYS } from './drive.js';

/** A shim whose tool `ask` gives its task to another agent. */
function asks(options: Partial<Parameters<typeof agentTool>[1]> = {}, name = 'asks'): ShimDefinition {
  return onTurn(name, (turn) => {
    turn.addTools([agentTool(turn, { name: 'ask', description: 'Asks another agent.', ...options })]);
  });
}

const ask = (task = 'the task', toolName = 'ask'): ScriptedAnswer => ({ toolCalls: [{ toolName, input: { task } }] });

function resultsIn(agent: DefaultAgent): unknown[] {
  return agent.runState.history.flatMap((item) => {
    const message = item as ToolMessage | UserMessage;
    return message.role === 'tool'
      ? message.content.map(({ output }) => ('value' in output ? output.value : output))
      : [];
  });
}

function agentWith(
  script: readonly ScriptedAnswer[],
  options: Partial<DefaultAgentOptions> = {},
): { readonly agent: DefaultAgent; readonly model: ScriptedModel } {
  const model = new ScriptedModel(script);
  return { model, agent: new DefaultAgent({ name: 'first', instructions: 'first instructions', model, ...options }) };
}

describe.each(WAYS)('a handoff, %s', (way) => {
  it('R96 takes history, responses, shimState and turnCount along; instructions become those of the child', async () => {
    const states: unknown[] = [];
    const counts = onTurn('counts', (turn) => void turn.runState.shimState.increment('turns'));
    const looks = onTurn('looks', (turn) => {
      const { instructions, history, responses, shimState, turnCount } = turn.runState;
      states.push(
        instructions,
        history.length,
        responses.length,
        shimState.toJSON(),
        turnCount,
        turn.isFirstForThisAgent,
      );
    });
    const second = agentWith(['done', 'again'], {
      name: 'second',
      instructions: 'second instructions',
      shims: [looks],
    });
    const { agent } = agentWith([calls('handoff_to_second')], { shims: [counts], handoffs: [second.agent] });
    const { result } = await drive(agent, 'hello', { way });
    expect(result?.finalOutput).toBe('done');
    expect(states).toEqual(['second instructions', 3, 1, { turns: 1 }, 2, true]);
    expect(promptOf(second.model)).toEqual([
      'system: second instructions',
      'user: hello',
      'assistant: call handoff_to_second',
      'tool: result "The conversation goes on with second."',
    ]);
    // R97: later runs of the conversation go on with the child.
    await drive(agent, 'more', { way });
    expect(promptOf(second.model, 1).at(-1)).toBe('user: more');
    expect(states.slice(6)).toEqual(['second instructions', 5, 2, { turns: 1 }, 3, false]);
  });

  it('R96 is the only call of its response, else every call of it gets an error result', async () => {
    const second = agentWith([], { name: 'second' });
    const { agent, model } = agentWith([calls('fast', 'handoff_to_second'), 'done'], {
      handoffs: [second.agent],
      tools: [toolNamed('fast')],
    });
    const { result } = await drive(agent, 'hello', { way });
    expect(result?.finalOutput).toBe('done');
    const refused = 'A handoff must be the only call of an answer; nothing of this answer was run.';
    expect(resultsIn(agent)).toEqual([refused, refused]);
    expect(model.requests).toHaveLength(2);
    expect(second.model.requests).toHaveLength(0);
  });

  it("R97 R98 R99 the child runs its own shims; its clean-up comes first; the parent's onRunEnd gets its result", async () => {
    const notes: string[] = [];
    const session = (name: string): ShimDefinition =>
      defineShim({
        name,
        onRunStart: () => void notes.push(`${name} start`),
        prepareTurn: () => void notes.push(`${name} turn`),
        onRunEnd: (result) => void notes.push(`${name} end ${String(result?.finalOutput)}`),
      });
    const second = agentWith(['from the child'], { name: 'second', shims: [session('child')] });
    const { agent } = agentWith([calls('handoff_to_second')], { shims: [session('parent')], handoffs: [second.agent] });
    await drive(agent, 'hello', { way });
    expect(notes).toEqual([
      'parent start',
      'parent turn',
      'child start',
      'child turn',
      'child end from the child',
      'parent end from the child',
    ]);
  });
});

it('R96 R99 the events of a handoff name parent and root', async () => {
  const third = agentWith(['done'], { name: 'third' });
  const second = agentWith([calls('handoff_to_third')], { name: 'second', handoffs: [third.agent] });
  const { agent } = agentWith([calls('handoff_to_second')], { handoffs: [second.agent] });
  const { events } = await drive(agent);
  const shown = events.filter(({ type }) => /^(agent|handoff)\./.test(type));
  expect(shown).toMatchObject([
    { type: 'agent.started', agent: 'first', parent: null, root: 'first' },
    { type: 'handoff.started', from: 'first', to: 'second' },
    { type: 'handoff.completed', from: 'first', to: 'second' },
    { type: 'agent.started', agent: 'second', parent: 'first', root: 'first' },
    { type: 'handoff.started', from: 'second', to: 'third' },
    { type: 'handoff.completed', from: 'second', to: 'third' },
    { type: 'agent.started', agent: 'third', parent: 'second', root: 'first' },
    { type: 'agent.completed', agent: 'third', parent: 'second' },
    { type: 'agent.completed', agent: 'second', parent: 'first' },
    { type: 'agent.completed', agent: 'first', parent: null },
  ]);
});

describe('an agent as a tool', () => {
  it('R97 runs a named agent with its own shims and state; its output is the result', async () => {
    const states: unknown[] = [];
    const own = onTurn('own', (turn) => {
      const { instructions, shimState } = turn.runState;
      states.push(instructions, shimState.toJSON(), turn.turnCount, turn.agent);
    });
    const second = agentWith(['42'], { name: 'second', instructions: 'second instructions', shims: [own] });
    const marks = onTurn('marks', (turn) => turn.runState.shimState.set('mark', 1));
    const { agent, model } = agentWith([ask(), 'done'], {
      shims: [marks, asks({ agent: 'second' })],
      agents: [second.agent],
    });
    const { result, events } = await drive(agent);
    expect(result?.finalOutput).toBe('done');
    expect(states).toEqual(['second instructions', {}, 1, 'second']);
    expect(promptOf(second.model)).toEqual(['system: second instructions', 'user: the task']);
    expect(resultsIn(agent)).toEqual(['42']);
    expect(model.requests[0]?.tools).toEqual(['ask']);
    // The child's events stand in the parent's stream, between start and end of the call, marked with its id.
    const child = events.filter((event) => 'childRunId' in event);
    expect(child.map(({ type }) => type)).toEqual([
      'agent.started',
      'state.snapshot',
      'turn.started',
      'state.snapshot',
      'model.started',
      'model.delta',
      'model.completed',
      'turn.completed',
      'agent.completed',
      'state.snapshot',
    ]);
    expect(child[0]).toMatchObject({ agent: 'second', parent: 'first', root: 'first' });
    expect(new Set(child.map((event) => event.childRunId)).size).toBe(1);
    expect(new Set(events.map(({ runId }) => runId)).size).toBe(1);
    expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
    const at = (type: string): number => events.findIndex((event) => event.type === type && !('childRunId' in event));
    const inside = child.map(({ seq }) => seq - 1);
    expect(Math.min(...inside)).toBeGreaterThan(at('tool.started'));
    expect(Math.max(...inside)).toBeLessThan(at('tool.completed'));
  });

  it('R97 its tokens count for the parent, and it has no more than the parent has left', async () => {
    const second = agentWith(
      [{ toolCalls: [{ toolName: 'fast' }], usage: { inputTokens: 30, outputTokens: 30 } }, 'never'],
      {
        name: 'second',
        tools: [toolNamed('fast')],
      },
    );
    const { agent } = agentWith([ask(), 'done'], {
      shims: [asks({ agent: 'second' })],
      agents: [second.agent],
      limits: { maxTotalTokens: 60 },
    });
    const { error, events } = await drive(agent);
    expect(second.model.requests).toHaveLength(1);
    expect(resultsIn(agent)[0]).toContain('maxTotalTokens');
    expect(error).toMatchObject({
      code: 'limit_exceeded',
      details: { limit: 'maxTotalTokens', allowed: 60, reached: 62 },
    });
    expect(events.at(-1)?.type).toBe('run.failed');
  });

  it.each([
    [{ error: { message: 'out of order' } }, /failed: out of order$/, 'agent_failed'],
    [() => Promise.reject(new RunCancelledError()), /failed/, 'agent_failed'],
  ] as const)('R97 a child that fails is an error result (%#)', async (answer, text, kind) => {
    const second = agentWith([answer], { name: 'second', modelMaxRetries: 0 });
    const { agent } = agentWith([ask(), 'done'], { shims: [asks({ agent: 'second' })], agents: [second.agent] });
    const { result, events } = await drive(agent);
    expect(result?.finalOutput).toBe('done');
    expect(resultsIn(agent)[0]).toMatch(text);
    expect(events.find(({ type }) => type === 'tool.completed')).toMatchObject({ ok: false, error: { kind } });
  });

  it('R97 an unknown agent is an error result', async () => {
    const { agent } = agentWith([ask(), 'done'], { shims: [asks({ agent: 'nobody' })] });
    expect((await drive(agent)).result?.finalOutput).toBe('done');
    expect(resultsIn(agent)[0]).toContain('"nobody"');
  });

  it('R97 has no timeout of its own, whatever the settings say', async () => {
    const second = agentWith([{ text: 'slow', delayMs: 80 }], { name: 'second' });
    const { agent } = agentWith([ask(), 'done'], {
      shims: [asks({ agent: 'second' })],
      agents: [second.agent],
      toolSettings: { toolCallTimeoutMs: 20 },
    });
    await drive(agent);
    expect(resultsIn(agent)).toEqual(['slow']);
  });

  it('R99 R72 is cancelled with its parent, and its clean-up comes before the parent’s, however long it takes', async () => {
    const notes: string[] = [];
    let open = (): void => undefined;
    const gate = new Promise<void>((resolve) => (open = resolve));
    const ends = (name: string, wait?: Promise<void>): ShimDefinition =>
      defineShim({
        name,
        onRunEnd: async (result) => {
          await wait;
          notes.push(`${name} end ${result === null ? 'null' : 'result'}`);
        },
      });
    const second = agentWith([{ text: ['a'], ends: 'never' }], { name: 'second', shims: [ends('child', gate)] });
    const { agent } = agentWith([ask()], {
      shims: [asks({ agent: 'second' }), ends('parent')],
      agents: [second.agent],
    });
    const controller = new AbortController();
    const running = drive(agent, 'hello', { signal: controller.signal });
    while (second.model.requests.length === 0) await settle();
    controller.abort();
    await new Promise((resolve) => setTimeout(resolve, 1200));
    expect(notes).toEqual([]);
    open();
    const { error, events } = await running;
    expect(error).toBeInstanceOf(RunCancelledError);
    expect(notes).toEqual(['child end null', 'parent end null']);
    const id = events.find((event) => 'childRunId' in event)?.childRunId;
    expect(events.at(-1)).toMatchObject({
      type: 'run.cancelled',
      cancellation: {
        inFlight: [
          { kind: 'agent', name: 'second', id, obeyed: true, sideEffects: 'none' },
          { kind: 'tool', name: 'ask', id: 'call_1', obeyed: true, sideEffects: 'none' },
        ],
      },
    });
    expect(events.filter(({ type }) => type === 'agent.completed').map(({ agent: name }) => name)).toEqual([
      'second',
      'first',
    ]);
    expect(agent.runState.history.at(-1)).toMatchObject({ role: 'tool' });
  });

  it('R99 a child that nobody waits for is over before the clean-up of its parent', async () => {
    const notes: string[] = [];
    const second = agentWith([{ text: ['a'], ends: 'never' }], {
      name: 'second',
      shims: [defineShim({ name: 'child', onRunEnd: () => void notes.push('child end') })],
    });
    const starts = defineShim({
      name: 'starts',
      prepareTurn: (turn) => {
        turn.spawnAgent({ agent: 'second', input: 'x', toolCallId: 'none' }).then(
          ({ status }) => void notes.push(status),
          () => void notes.push('rejected'),
        );
      },
      onRunEnd: () => void notes.push('parent end'),
    });
    const { agent } = agentWith([{ text: 'done', delayMs: 30 }], { shims: [starts], agents: [second.agent] });
    const { result } = await drive(agent);
    expect(result?.finalOutput).toBe('done');
    expect(notes).toEqual(['child end', 'parent end', 'cancelled']);
  });
});

describe('a helper', () => {
  it("R100 gets a fresh state and re-bound copies of the parent's shims", async () => {
    const binds: string[] = [];
    const starts: unknown[] = [];
    class Bound extends Shim {
      readonly name = 'bound';
      override bind({ task }: ShimBindingContext): BoundShim {
        binds.push(`${task.agent} ${task.depth} ${task.parentRunId === undefined ? 'root' : 'child'}`);
        return new (class extends BoundShim {
          readonly memory = binds.length;
          override prepareTurn(turn: PreparedTurn): void {
            starts.push([this.memory, turn.turnCount, turn.runState.shimState.toJSON(), turn.runState.history.length]);
            turn.runState.shimState.increment('turns');
          }
        })();
      }
    }
    const { agent, model } = agentWith([ask(), 'helped', 'done'], {
      shims: [new Bound(), asks({ instructions: 'Help.' })],
    });
    const { result } = await drive(agent);
    expect(result?.finalOutput).toBe('done');
    expect(binds).toEqual(['first 0 root', 'first 1 child']);
    expect(starts).toEqual([
      [1, 1, {}, 1],
      [2, 1, {}, 1],
      [1, 2, { turns: 1 }, 3],
    ]);
    expect(promptOf(model, 1)).toEqual(['system: Help.', 'user: the task']);
    expect(agent.runState.shimState.toJSON()).toEqual({ turns: 2 });
  });

  it('R100 R101 sees only the tools that it was given, and so does its own helper', async () => {
    const tools = [toolNamed('a'), toolNamed('b')];
    const nested = onTurn('nested', (turn) => {
      turn.addTools([
        agentTool(turn, { name: 'ask', description: '', tools: ['a', 'nest'] }),
        agentTool(turn, { name: 'nest', description: '', tools: ['a', 'b'] }),
      ]);
    });
    const { agent, model } = agentWith([ask(), ask('deeper', 'nest'), 'deep', 'helped', 'done'], {
      shims: [nested],
      tools,
    });
    await drive(agent);
    expect(model.requests.map((request) => request.tools)).toEqual([
      ['a', 'b', 'ask', 'nest'],
      ['a', 'nest'],
      ['a'],
      ['a', 'nest'],
      ['a', 'b', 'ask', 'nest'],
    ]);
  });

  it('R100 depth and thread limits answer with a tool result', async () => {
    const { agent } = agentWith([ask(), ask(), 'deepest', 'middle', 'done'], {
      shims: [asks()],
      limits: { agentMaxDepth: 1 },
    });
    const { result, events } = await drive(agent);
    expect(result?.finalOutput).toBe('middle');
    const refused = events.find((event) => event.type === 'tool.completed' && event.ok === false);
    expect(refused).toMatchObject({
      error: { kind: 'delegation_limit', message: 'Agents may be nested 1 deep; this would be one more.' },
    });

    const many = agentWith(
      [{ toolCalls: [1, 2, 3].map((n) => ({ toolName: 'ask', input: { task: `${n}` } })) }, 'done'],
      {
        shims: [asks({ agent: 'second' })],
        agents: [
          agentWith([], { name: 'second', model: new ScriptedModel([], { otherwise: { text: 'ok', delayMs: 20 } }) })
            .agent,
        ],
        limits: { agentMaxThreads: 2 },
      },
    );
    await drive(many.agent);
    expect(resultsIn(many.agent)).toEqual(['ok', 'ok', '2 sub-agents of this run are at work already.']);
  });

  it('R100 the limit of depth is 4 and that of threads 8 where nothing is said, and holds below too', async () => {
    const model = new ScriptedModel([], {
      otherwise: ({ prompt }) => (prompt.at(-1)?.role === 'tool' ? 'done' : ask()),
    });
    const { agent } = agentWith([], { model, shims: [asks()] });
    const { events } = await drive(agent);
    expect(new Set(events.flatMap((event) => event.childRunId ?? [])).size).toBe(4);
    const children = new DefaultAgent({
      name: 'second',
      model: new ScriptedModel([], { otherwise: { text: 'ok', delayMs: 20 } }),
    });
    const nine = Array.from({ length: 9 }, () => ({ toolName: 'ask', input: { task: 'x' } }));
    const many = agentWith([{ toolCalls: nine }, 'done'], {
      shims: [asks({ agent: 'second' })],
      agents: [children],
      toolSettings: { parallelToolCalls: 9 },
    });
    await drive(many.agent);
    expect(resultsIn(many.agent).filter((result) => result === 'ok')).toHaveLength(8);
  });

  it('R100 inherit says which shims it gets; a guard cannot be lost', async () => {
    const seen: string[] = [];
    const says = (name: string, inherit?: 'none' | 'children' | 'always'): ShimDefinition =>
      defineShim({
        name,
        ...(inherit === undefined ? {} : { inherit }),
        prepareTurn: () => void seen.push(name),
      });
    const shims = [says('plain'), says('private', 'none'), says('guard', 'always'), asks()];
    const { agent } = agentWith([ask(), 'helped', 'done'], { shims });
    await drive(agent);
    const all = ['plain', 'private', 'guard'];
    expect(seen).toEqual([...all, 'plain', 'guard', ...all]);
  });
});

describe('R100 guards (inherit "always")', () => {
  const guard = (notes: string[], mark: string): ShimDefinition =>
    defineShim({
      name: 'guard',
      inherit: 'always',
      prepareTurn(turn) {
        notes.push(`${mark} guards ${turn.agent}`);
      },
    });

  it('R100 hold after a handoff, in a named child, and in what that child hands over to', async () => {
    const notes: string[] = [];
    const third = agentWith(['third'], { name: 'third' });
    const second = agentWith([calls('handoff_to_third')], { name: 'second', handoffs: [third.agent] });
    const { agent } = agentWith([ask(), calls('handoff_to_third')], {
      shims: [guard(notes, 'first'), asks({ agent: 'second' })],
      agents: [second.agent],
      handoffs: [third.agent],
    });
    third.model.extend(['third again', 'and again']);
    await drive(agent);
    await drive(agent, 'more');
    expect(notes).toEqual([
      'first guards first',
      'first guards second',
      'first guards third',
      'first guards first',
      'first guards third',
      'first guards third',
    ]);
  });

  it('R100 are not lost to a shim of the same name', async () => {
    const notes: string[] = [];
    const second = agentWith(['ok'], { name: 'second', shims: [onTurn('guard', () => void notes.push('lax'))] });
    const { agent } = agentWith([ask(), 'done'], {
      shims: [guard(notes, 'strict'), asks({ agent: 'second' })],
      agents: [second.agent],
    });
    await drive(agent);
    expect(notes).toEqual(['strict guards first', 'strict guards second', 'lax', 'strict guards first']);
  });

  it('R100 of the agents before hold for what a later agent spawns', async () => {
    const notes: string[] = [];
    const third = agentWith(['third'], { name: 'third' });
    const second = agentWith([ask(), 'done'], {
      name: 'second',
      shims: [asks({ agent: 'third' })],
      agents: [third.agent],
    });
    const { agent } = agentWith([calls('handoff_to_second')], {
      shims: [guard(notes, 'first')],
      handoffs: [second.agent],
    });
    await drive(agent);
    expect(notes.filter((line) => line.endsWith('third'))).toEqual(['first guards third']);
    const helper = agentWith([ask(), 'helped', 'done'], { name: 'second', shims: [asks()] });
    const again = agentWith([calls('handoff_to_second')], { shims: [guard(notes, 'again')], handoffs: [helper.agent] });
    notes.length = 0;
    await drive(again.agent);
    expect(notes).toEqual(['again guards first', 'again guards second', 'again guards second', 'again guards second']);
  });
});

/** A shim with tools of a source: it hands down as many of them as a child may have. */
class Source extends Shim {
  readonly name: string;
  readonly log: string[];
  readonly tools: readonly string[];
  handsDown: 'restricted' | 'none' | 'normal';
  constructor(name: string, tools: readonly string[], handsDown: 'restricted' | 'none' | 'normal', log: string[] = []) {
    super();
    this.name = name;
    this.tools = tools;
    this.handsDown = handsDown;
    this.log = log;
  }
  override bind(context: ShimBindingContext): BoundShim | Promise<BoundShim> {
    const own = context.toolSourceBindings.find(({ source }) => source === this);
    if (own !== undefined) return own.bind(context);
    if (context.toolSourceBindings.length > 0) {
      this.log.push(`${this.name} inactive`);
      return new BoundShim();
    }
    return this.session(new Set(this.tools), 'normal');
  }
  session(names: ReadonlySet<string>, how: string): SourceSession {
    this.log.push(`${this.name} ${how} ${[...names].join(' ')}`);
    return new SourceSession(this, names);
  }
}

class SourceSession extends BoundShim {
  readonly source: Source;
  readonly names: ReadonlySet<string>;
  constructor(source: Source, names: ReadonlySet<string>) {
    super();
    this.source = source;
    this.names = names;
  }
  override prepareTurn(turn: PreparedTurn): void {
    turn.addTools([...this.names].map((name) => toolNamed(name)));
  }
  override inheritTools(names: ReadonlySet<string>): readonly ToolSourceBinding[] | null {
    const { source } = this;
    if (source.handsDown === 'normal') return null;
    if (source.handsDown === 'none') return [];
    const mine = new Set([...this.names].filter((name) => names.has(name)));
    return [{ source, bind: async () => source.session(mine, 'restricted') }];
  }
  override async [Symbol.asyncDispose](): Promise<void> {
    this.source.log.push(`${this.source.name} dispose ${[...this.names].join(' ')}`);
  }
}

describe('R101-R105 inheritTools and ToolSourceBinding', () => {
  const helperTools = async (
    shims: DefaultAgentOptions['shims'],
    options: Partial<SpawnRequest> = {},
  ): Promise<readonly string[]> => {
    const { agent, model } = agentWith([ask(), 'helped', 'done'], {
      shims: [...(shims ?? []), asks(options)],
    });
    expect((await drive(agent)).result?.finalOutput).toBe('done');
    await agent[Symbol.asyncDispose]();
    return model.requests[1]?.tools ?? [];
  };

  it('R101 gets the visible tools of the parent that the child may have', async () => {
    const given: string[][] = [];
    class Looks extends Shim {
      readonly name = 'looks';
      override bind(): BoundShim {
        return new (class extends BoundShim {
          override inheritTools(names: ReadonlySet<string>): null {
            given.push([...names]);
            return null;
          }
        })();
      }
    }
    const hides = onTurn('hides', (turn) => {
      turn.addTools(['a', 'b', 'hidden'].map((name) => toolNamed(name)));
      turn.excludeTools(['hidden']);
    });
    await helperTools([hides, new Looks()]);
    await helperTools([hides, new Looks()], { tools: ['b', 'hidden', 'unknown'] });
    expect(given).toEqual([['a', 'b', 'ask'], ['b']]);
  });

  it.each([
    ['restricted', ['a', 'ask'], ['s normal a b', 's restricted a', 's dispose a', 's dispose a b']],
    ['none', ['ask'], ['s normal a b', 's dispose a b']],
    ['normal', ['a', 'ask'], ['s normal a b', 's normal a b', 's dispose a b', 's dispose a b']],
  ] as const)('R101 R104 %s: %j', async (handsDown, tools, log) => {
    const source = new Source('s', ['a', 'b'], handsDown);
    expect(await helperTools([source], { tools: ['a', 'ask'] })).toEqual(tools);
    expect(source.log).toEqual(log);
  });

  it('R101 a guard that hands down nothing still guards', async () => {
    const source = new Source('s', ['a'], 'none');
    source.inherit = 'always';
    await helperTools([source]);
    expect(source.log.slice(0, 2)).toEqual(['s normal a', 's normal a']);
  });

  it('R101 a throw in inheritTools is an error result: no child runs without what it would have restricted', async () => {
    class Throws extends Shim {
      readonly name = 'throws';
      override bind(): BoundShim {
        return new (class extends BoundShim {
          override inheritTools(): never {
            throw new Error('no');
          }
        })();
      }
    }
    const { agent } = agentWith([ask(), 'done'], { shims: [new Throws(), asks()] });
    expect((await drive(agent)).result?.finalOutput).toBe('done');
    expect(resultsIn(agent)[0]).toContain('"throws" failed in inheritTools: no');
  });

  it('R102 R103 a source is matched by identity; bindings without a match leave the session inactive', async () => {
    const own = new Source('s', ['a'], 'restricted');
    const twin = new Source('s', ['a'], 'restricted', own.log);
    const context = (bindings: readonly ToolSourceBinding[]): ShimBindingContext => ({
      task: { runId: 'r', agent: 'a', model: 'm', depth: 1 },
      toolSourceBindings: bindings,
    });
    const binding = { source: own, bind: async () => own.session(new Set(['a']), 'restricted') };
    await own.bind(context([binding]));
    await twin.bind(context([binding]));
    await twin.bind(context([]));
    expect(own.log).toEqual(['s restricted a', 's inactive', 's normal a']);

    // The default bind does the same.
    class Plain extends Shim {
      readonly name = 'plain';
    }
    const plain = new Plain();
    const session = new BoundShim();
    expect(await plain.bind(context([{ source: plain, bind: async () => session }]))).toBe(session);
    const inactive = await plain.bind(context([binding]));
    expect(inactive.constructor).toBe(BoundShim);
    expect((await plain.bind(context([]))).constructor).not.toBe(BoundShim);
  });

  it('R105 wrapper chains are rebuilt around the restricted source', async () => {
    const log: string[] = [];
    class Wrapper extends DelegatingShim {
      override async prepareTurn(turn: PreparedTurn): Promise<void> {
        await super.prepareTurn(turn);
        log.push((turn.tools?.tools ?? []).map(({ name }) => name).join(' '));
      }
    }
    const source = new Source('s', ['a', 'b'], 'restricted');
    const tools = await helperTools([new Wrapper(new Wrapper(source))], { tools: ['b', 'ask'] });
    expect(tools).toEqual(['b', 'ask']);
    expect(source.log.slice(0, 2)).toEqual(['s normal a b', 's restricted b']);
    expect(log).toEqual(['a b', 'a b', 'b', 'b', 'a b', 'a b']);
  });
});

it('R100 a spawn from a callback works too, and one after the run has ended is refused', async () => {
  const outcomes: unknown[] = [];
  let kept: PreparedTurn | undefined;
  const second = agentWith(['42'], { name: 'second' });
  const spawns = defineShim({
    name: 'spawns',
    prepareTurn: async (turn) => {
      kept = turn;
      outcomes.push(
        (await turn.spawnAgent({ agent: 'second', input: ['a', { x: 1 }] as never, toolCallId: 'prep' })).output,
      );
    },
  });
  const { agent } = agentWith(['done'], { shims: [spawns], agents: [second.agent] });
  await drive(agent);
  expect(outcomes).toEqual(['42']);
  expect(promptOf(second.model).slice(1)).toEqual(['user: a', 'user: {"x":1}']);
  await expect(kept?.spawnAgent({ agent: 'second', input: 'x', toolCallId: 'late' })).rejects.toThrow(
    'No agent is running',
  );
});
