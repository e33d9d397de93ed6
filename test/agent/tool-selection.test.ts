import { describe, expect, it } from 'vitest';
import { agentTool, BoundShim, defineShim, defineTool, type PreparedTurn, Shim, z } from '../../src/shims.js';
import { attemptUntilKilled, recoveredAttempt } from '../../src/testing/interrupted-run.js';
import { type ScriptedAnswer, ScriptedModel, testShim } from '../../src/testing.js';
import { calls, onTurn, toolNamed } from './drive.js';

/** Selects by name, in the order of the names. */
const only = (name: string, ...wanted: string[]): ReturnType<typeof onTurn> =>
  onTurn(name, (turn) => {
    turn.selectTools((tools) => wanted.flatMap((each) => tools.find((tool) => tool.name === each) ?? []));
  });
const late = onTurn('late', (turn) => {
  turn.addTools([toolNamed('late'), toolNamed('last')]);
});

describe('selectTools', () => {
  it('R41 sees the tools of all shims, hides and sorts them, for this turn', async () => {
    const seen: unknown[] = [];
    const shim = onTurn('selects', (turn) => {
      turn.selectTools((tools) => {
        seen.push(tools.map(({ name }) => name));
        return turn.turnCount === 1 ? tools.toReversed().filter(({ name }) => name !== 'late') : tools;
      });
    });
    const run = await testShim(shim, {
      tools: [toolNamed('base'), toolNamed('hidden')],
      before: [
        onTurn('excludes', (turn) => {
          turn.excludeTools(['hidden', 'nobody']);
        }),
      ],
      after: [late],
      script: [calls('last'), 'done'],
    });
    expect(seen).toEqual([
      ['base', 'late', 'last'],
      ['base', 'late', 'last'],
    ]);
    expect(run.tools).toEqual([
      ['last', 'base'],
      ['base', 'late', 'last'],
    ]);
  });

  it('R41 several select one after the other; none can add, and a choice of a tool that is gone is dropped', async () => {
    const stranger = toolNamed('stranger');
    const adds = onTurn('adds', (turn) => {
      turn.selectTools((tools) => [...tools, ...tools, stranger]);
    });
    const run = await testShim(only('first', 'last', 'base'), {
      tools: [toolNamed('base')],
      toolSettings: { toolChoice: { type: 'tool', toolName: 'base' }, toolCallLimits: { base: 3 } },
      after: [late, adds, only('second', 'last', 'late')],
    });
    expect(run.tools).toEqual([['last']]);
    expect(run.requests[0]?.options.toolChoice).toBeUndefined();
  });

  it('R42 without anything left the model gets no tools at all', async () => {
    const run = await testShim(only('none'), { tools: [toolNamed('base')], toolSettings: { toolChoice: 'required' } });
    expect([run.tools, run.requests[0]?.options.toolChoice]).toEqual([[[]], undefined]);
  });

  it('R45 a call of a hidden tool gets an error result that names those that are shown', async () => {
    const run = await testShim(only('selects', 'base'), {
      tools: [toolNamed('base'), toolNamed('hidden')],
      script: [calls('hidden'), 'done'],
    });
    expect(run.events.find(({ type }) => type === 'tool.completed')).toMatchObject({
      ok: false,
      error: { kind: 'unknown_tool', message: 'There is no tool "hidden". The tools are: base.' },
    });
  });

  it('R101 a helper may have what is only hidden, since it selects for itself, and not what is excluded', async () => {
    const allowed: string[][] = [];
    class Source extends Shim {
      readonly name = 'source';
      override bind(): BoundShim {
        const session = new BoundShim();
        session.prepareTurn = (turn) => {
          turn.addTools([
            toolNamed('shown'),
            toolNamed('hidden'),
            toolNamed('excluded'),
            agentTool(turn, { name: 'help', description: '' }),
          ]);
          turn.excludeTools('excluded');
        };
        session.inheritTools = (names) => {
          allowed.push([...names]);
          return null;
        };
        return session;
      }
    }
    const ask = { toolCalls: [{ toolName: 'help', input: { task: 'x' } }] };
    const run = await testShim(only('selects', 'help', 'shown'), {
      after: [new Source()],
      script: [ask, 'helped', 'done'],
    });
    expect(run.tools).toEqual(Array<string[]>(3).fill(['help', 'shown']));
    expect(allowed).toEqual([['shown', 'hidden', 'help']]);
  });

  it('R50 a selection that comes too late throws', async () => {
    const shim = defineShim({
      name: 'too-late',
      transformMessages(turn: PreparedTurn) {
        turn.selectTools((tools) => tools);
      },
    });
    const { error } = await testShim(shim);
    expect(error).toMatchObject({ code: 'shim_failed', shim: 'too-late', phase: 'transformMessages' });
  });

  it('R61 R78a a throw in it is a failure of prepareTurn, and is undone where the shim may skip', async () => {
    const failing = (onFailure: 'fail' | 'skip'): ReturnType<typeof onTurn> =>
      defineShim({
        name: 'fails',
        onFailure,
        state: z.object({ marks: z.number().default(0) }),
        prepareTurn(turn) {
          turn.selectTools(async () => {
            turn.state.marks += 1;
            throw new Error('no');
          });
        },
      });
    const failed = await testShim(failing('fail'), { tools: [toolNamed('base')] });
    expect(failed.error).toMatchObject({ shim: 'fails', phase: 'prepareTurn', cause: 'no' });
    const skipped = await testShim(failing('skip'), { tools: [toolNamed('base')] });
    expect([skipped.output, skipped.tools, skipped.state]).toEqual(['ok', [['base']], {}]);
    expect(skipped.events.find(({ type }) => type === 'shim.failed')).toMatchObject({ shim: 'fails' });
  });

  it('R115 what it hid and what it wrote are effects of its shim', async () => {
    const shim = defineShim({
      name: 'selects',
      state: z.object({ seen: z.number().default(0) }),
      prepareTurn(turn) {
        turn.selectTools((tools) => {
          turn.state.seen = tools.length;
          return tools.slice(0, 1);
        });
      },
    });
    const run = await testShim(shim, { tools: [toolNamed('base'), toolNamed('other')], after: [late] });
    expect(run.state).toMatchObject({ selects: { seen: 4 } });
    expect(run.effects.find(({ shim: name }) => name === 'selects')).toMatchObject({
      callback: 'prepareTurn',
      changes: [
        { what: 'tools-', names: ['other', 'late', 'last'] },
        { what: 'state', key: 'selects' },
        { what: 'state', key: 'selects:version' },
      ],
    });
  });

  it('R79a selects again where a tool round is entered again, and what it writes then is discarded', async () => {
    let selections = 0;
    const shim = defineShim({
      name: 'selects',
      state: z.object({ count: z.number().default(0) }),
      prepareTurn(turn) {
        turn.selectTools((tools) => {
          selections += 1;
          turn.state.count += 1;
          return tools.filter(({ name }) => name !== 'hidden');
        });
      },
    }).create();
    let dying = (): void => undefined;
    const killed = new Promise<void>((resolve) => (dying = resolve));
    let attempt = 1;
    const slow = defineTool({
      name: 'slow',
      description: '',
      parameters: z.object({}),
      onCrash: 'retry',
      execute: async () => {
        if (attempt > 1) return 'ran';
        dying();
        return new Promise<never>(() => undefined);
      },
    });
    const setup = (script: readonly ScriptedAnswer[]): Parameters<typeof recoveredAttempt>[0] => ({
      model: new ScriptedModel(script),
      shims: [shim],
      dataDir: '',
      instructions: '',
      tools: [slow, toolNamed('hidden')],
    });
    const first = await attemptUntilKilled(setup([calls('slow')]), 'hello', killed);
    attempt = 2;
    const second = await recoveredAttempt(setup(['done']), first.saved);
    expect(second.end?.status).toBe('completed');
    expect(selections).toBe(3);
    expect(new Map(second.saved.state).get('selects')).toBe('{"count":2}');
  });
});
