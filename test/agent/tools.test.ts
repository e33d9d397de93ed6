import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  defineShim,
  defineTool,
  type PreparedTurn,
  ShimError,
  type ToolConfig,
  ToolNameCollisionError,
  z,
} from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, definitionsOf, drive, onTurn, runOnce, toolNamed, WAYS } from './drive.js';

/** The outputs of the results that a request carried. */
function resultsOf(model: ScriptedModel, request: number): unknown[] {
  return (model.requests[request]?.prompt ?? []).flatMap((message) =>
    message.role === 'tool'
      ? message.content.flatMap((part) => (part.type === 'tool-result' ? [part.output] : []))
      : [],
  );
}

const names = (turn: PreparedTurn): string[] | undefined => turn.tools?.tools.map(({ name }) => name);

describe.each(WAYS)('%s', (way) => {
  it('R32 every turn starts from the agent its own tools; contributions, exclusions and reservations last one turn', async () => {
    const seen: unknown[] = [];
    const first = onTurn('first', (turn) => {
      seen.push(names(turn));
      if (turn.turnCount !== 1) return;
      turn.addTools([toolNamed('reserved')], { requireUniqueNames: true });
      turn.addTools([toolNamed('mine')]);
      turn.excludeTools(['base']);
      turn.tools!.toolChoice = 'required';
    });
    const second = onTurn('second', (turn) => {
      if (turn.turnCount === 2) turn.addTools([toolNamed('reserved', 'now free'), toolNamed('base', 'too late')]);
    });
    const { agent, model } = await runOnce([first, second], [calls('mine'), 'one', 'two'], {
      way,
      tools: [toolNamed('base', 'the agent its own')],
      toolSettings: { toolChoice: 'auto' },
    });
    await drive(agent, 'again', { way });
    expect(seen).toEqual([['base'], ['base'], ['base']]);
    expect([0, 1, 2].map((request) => definitionsOf(model, request))).toEqual([
      ['reserved', 'mine'],
      ['the agent its own', 'now free'],
      ['the agent its own'],
    ]);
    expect(model.requests.map(({ options }) => options.toolChoice?.type)).toEqual(['required', 'auto', 'auto']);
  });

  it('R33 addTools is first-wins: a name that is there keeps the earlier definition', async () => {
    const [a, b] = ['a', 'b'].map((shim) =>
      onTurn(shim, (turn) => turn.addTools([toolNamed('base', `${shim} base`), toolNamed('new', `${shim} new`)])),
    );
    const { model } = await runOnce([a!, b!], [calls('base', 'new'), 'done'], {
      way,
      tools: [toolNamed('base', 'own base')],
    });
    expect(definitionsOf(model)).toEqual(['own base', 'a new']);
    expect(resultsOf(model, 1)).toEqual([
      { type: 'text', value: 'own base' },
      { type: 'text', value: 'a new' },
    ]);
  });

  it('R38 a unique name collides in either order, and the model is not called', async () => {
    const unique = onTurn('unique', (turn) =>
      turn.addTools([toolNamed('tool'), toolNamed('other')], { requireUniqueNames: true }),
    );
    const plain = onTurn('plain', (turn) => turn.addTools([toolNamed('tool')]));
    for (const [shims, culprit] of [
      [[unique, plain], 'plain'],
      [[plain, unique], 'unique'],
      [[unique, unique.create({}, { name: 'twice' })], 'twice'],
    ] as const) {
      const { error, model } = await runOnce(shims, [], { way });
      expect(error).toBeInstanceOf(ShimError);
      expect(error).toMatchObject({ shim: culprit, phase: 'prepareTurn', cause: { toolName: 'tool' } });
      expect((error as ShimError).cause).toBeInstanceOf(ToolNameCollisionError);
      expect(model.requests).toHaveLength(0);
    }
  });

  it('R43 R44 limits bind contributed tools too, per run, and a surplus call of one response gets an error result', async () => {
    const ran: string[] = [];
    const search = defineTool({
      name: 'search',
      description: 's',
      parameters: z.object({}),
      execute: () => void ran.push('search'),
    });
    const adds = onTurn('adds', (turn) => turn.addTools([search, toolNamed('echo')]));
    const model = new ScriptedModel([calls('search'), calls('search', 'search'), 'one', calls('search'), 'two']);
    const agent = new DefaultAgent({ model, shims: [adds], toolSettings: { toolCallLimits: { search: 2 } } });
    await drive(agent, 'a', { way });
    expect(ran).toHaveLength(2);
    expect(resultsOf(model, 2).slice(1)).toEqual([
      { type: 'text', value: 'Done; the tool returned nothing.' },
      { type: 'error-text', value: 'The tool search has reached its limit of 2 call(s) in this run.' },
    ]);
    expect(model.requests.map(({ tools }) => tools)).toEqual([['search', 'echo'], ['search', 'echo'], ['echo']]);
    await drive(agent, 'b', { way });
    expect(ran).toHaveLength(3);
    expect(model.requests[3]?.tools).toEqual(['search', 'echo']);
  });

  it('R45 a call to an unknown or hidden tool gets an error result that names the visible ones', async () => {
    const hides = onTurn('hides', (turn) => turn.excludeTools(['hidden']));
    const { model } = await runOnce([hides], [calls('nobody', 'echo'), calls('hidden'), 'done'], {
      way,
      tools: [toolNamed('hidden'), toolNamed('echo'), toolNamed('other')],
    });
    const text = (name: string) => `There is no tool "${name}". The tools are: echo, other.`;
    expect(resultsOf(model, 2)).toEqual([
      { type: 'error-text', value: text('nobody') },
      { type: 'text', value: 'echo' },
      { type: 'error-text', value: text('hidden') },
    ]);
  });

  it('R45 three such responses in a row fail the run, and only in a row', async () => {
    const tools = [toolNamed('echo')];
    const failed = await runOnce([], [calls('x'), calls('y', 'echo'), calls('z'), 'never'], { way, tools });
    expect(failed.error).toMatchObject({ code: 'model_behaviour' });
    expect(failed.model.requests).toHaveLength(3);
    const fine = await runOnce([], [calls('x'), calls('y'), calls('echo'), calls('x'), calls('y'), 'done'], {
      way,
      tools,
    });
    expect(fine.result?.finalOutput).toBe('done');
    expect((await drive(failed.agent, 'again', { way })).result?.finalOutput).toBe('never');
    expect(resultsOf(failed.model, 3)).toHaveLength(4);
  });

  it('R46 modelArgs is a fresh copy each turn', async () => {
    const seen: unknown[] = [];
    const edits = onTurn('edits', (turn) => {
      seen.push(structuredClone(turn.modelArgs));
      turn.modelArgs!.temperature = 1;
      (turn.modelArgs!.providerOptions as Record<string, object>).x = { y: 1 };
      if (turn.turnCount === 2) turn.modelArgs = null;
    });
    const modelArgs = { temperature: 0, providerOptions: {} };
    const { model } = await runOnce([edits], [calls('echo'), calls('echo'), 'done'], {
      way,
      modelArgs,
      tools: [toolNamed('echo')],
    });
    expect(seen).toEqual(Array(3).fill({ temperature: 0, providerOptions: {} }));
    expect(model.requests.map(({ options }) => [options.temperature, options.providerOptions])).toEqual([
      [1, { x: { y: 1 } }],
      [undefined, undefined],
      [1, { x: { y: 1 } }],
    ]);
    expect(modelArgs).toEqual({ temperature: 0, providerOptions: {} });
  });
});

const SETTINGS = {
  toolChoice: 'required',
  parallelToolCalls: 3,
  toolCallTimeoutMs: 5000,
  toolCallMaxRetries: 1,
  toolCallLimits: { a: 4 },
  maxToolRoundTrips: 5,
} as const;

it('R34 addTools keeps all tool settings', async () => {
  let seen: unknown;
  const adds = onTurn('adds', (turn) => {
    turn.addTools([toolNamed('a')]);
    seen = turn.tools;
  });
  await runOnce([adds], [calls('a'), 'done'], { toolSettings: SETTINGS });
  expect(seen).toMatchObject({ ...SETTINGS, tools: [{ name: 'a' }] });
});

it('R35 excludeTools works now and again after all shims: the order does not matter', async () => {
  const seen: unknown[] = [];
  const excludes = onTurn('excludes', (turn) => {
    turn.excludeTools(['base', 'later']);
    turn.excludeTools('single');
    turn.excludeTools(new Set(['assigned']));
    seen.push(names(turn));
  });
  const adds = onTurn('adds', (turn) => {
    turn.addTools([toolNamed('later'), toolNamed('kept')]);
    turn.tools = { ...turn.tools, tools: [...turn.tools!.tools, toolNamed('assigned'), toolNamed('base')] };
    seen.push(names(turn));
  });
  for (const shims of [
    [excludes, adds],
    [adds, excludes],
  ]) {
    const { model } = await runOnce(shims, ['done'], {
      tools: [toolNamed('base'), toolNamed('single'), toolNamed('own')],
    });
    expect(model.requests[0]?.tools).toEqual(['own', 'kept']);
  }
  expect(seen[0]).toEqual(['own']);
});

it('R36 excluding an unknown name does nothing; excluding everything leaves settings that a later addTools keeps', async () => {
  let seen: unknown;
  const none = onTurn('none', (turn) => turn.excludeTools(['nobody']));
  const all = onTurn('all', (turn) => {
    turn.excludeTools(['base']);
    seen = turn.tools;
  });
  const first = await runOnce([none], ['done'], { tools: [toolNamed('base')] });
  expect(first.model.requests[0]?.tools).toEqual(['base']);
  const { toolChoice, ...rest } = SETTINGS;
  const adds = onTurn('adds', (turn) => turn.addTools([toolNamed('fresh')]));
  const { model } = await runOnce([all, adds], [calls('fresh'), 'done'], {
    tools: [toolNamed('base')],
    toolSettings: SETTINGS,
  });
  expect(seen).toEqual({ toolChoice, ...rest, tools: [] });
  expect(model.requests[0]?.tools).toEqual(['fresh']);
  expect(model.requests[0]?.options.toolChoice).toEqual({ type: 'required' });
  const alone = await runOnce([all], ['done'], { tools: [toolNamed('base')], toolSettings: SETTINGS });
  expect(alone.model.requests[0]?.options).not.toHaveProperty('tools');
  const nothing = await runOnce([onTurn('n', (turn) => turn.excludeTools(['x']))]);
  expect(nothing.error).toBeUndefined();
});

it('R37 filtering turn.tools by assignment affects only what is there at that step', async () => {
  const before = onTurn('before', (turn) => turn.addTools([toolNamed('bash-a'), toolNamed('a')]));
  const filters = onTurn('filters', (turn) => {
    turn.tools = { ...turn.tools, tools: turn.tools!.tools.filter(({ name }) => !name.startsWith('bash')) };
  });
  const after = onTurn('after', (turn) => turn.addTools([toolNamed('bash-b')]));
  const { model } = await runOnce([before, filters, after], ['done'], { tools: [toolNamed('bash')] });
  expect(model.requests[0]?.tools).toEqual(['a', 'bash-b']);
});

it('R40 assignment bypasses registration; what is no tool is refused', async () => {
  const assigns = onTurn('assigns', (turn) => {
    turn.tools = { tools: [toolNamed('a', 'assigned'), toolNamed('b')], toolChoice: 'required' };
  });
  const { model } = await runOnce([assigns], [calls('a'), 'done'], { tools: [toolNamed('a', 'base'), toolNamed('c')] });
  expect(definitionsOf(model)).toEqual(['assigned', 'b']);
  expect(model.requests[0]?.options.toolChoice).toEqual({ type: 'required' });
  expect(resultsOf(model, 1)).toEqual([{ type: 'text', value: 'assigned' }]);
  const cleared = await runOnce([onTurn('clears', (turn) => (turn.tools = null) as never)], ['done'], {
    tools: [toolNamed('a')],
  });
  expect(cleared.model.requests[0]?.options).not.toHaveProperty('tools');

  const raw = { name: 'raw', description: 'r', parameters: {}, execute: () => 1 };
  for (const put of [
    (turn: PreparedTurn) => turn.addTools([raw as never]),
    (turn: PreparedTurn) => void (turn.tools = { tools: [raw as never] }),
  ]) {
    const { error } = await runOnce([onTurn('raw', put)]);
    expect(error).toMatchObject({ shim: 'raw', cause: { message: 'The tool "raw" was not made by defineTool.' } });
  }
});

describe('R41 R42 what the model gets after all shims', () => {
  const turnTools = (settings: Omit<ToolConfig, 'tools'>, ...tools: string[]) =>
    onTurn('sets', (turn) => {
      turn.tools = { ...settings, tools: tools.map((name) => toolNamed(name)) };
    });
  const given = (model: ScriptedModel, request = 0) => {
    const { options, tools } = model.requests[request]!;
    return { tools: 'tools' in options ? tools : 'none at all', toolChoice: options.toolChoice };
  };
  const NOTHING = { tools: 'none at all', toolChoice: undefined };

  it('R41 R42 an empty list is no configuration, not even a required choice', async () => {
    expect(given((await runOnce([turnTools({ toolChoice: 'required' })])).model)).toEqual(NOTHING);
    const settings = await runOnce([], ['done'], { toolSettings: { toolChoice: 'required' } });
    expect(given(settings.model)).toEqual(NOTHING);
  });

  it('R41 the choice none is kept, whatever is spent', async () => {
    const { model } = await runOnce([
      turnTools({ toolChoice: 'none', maxToolRoundTrips: 0, toolCallLimits: { a: 0 } }, 'a'),
    ]);
    expect(given(model)).toEqual({ tools: ['a'], toolChoice: { type: 'none' } });
  });

  it('R41 spent round trips are no configuration', async () => {
    const { model } = await runOnce([], [calls('a'), calls('a'), 'done'], {
      tools: [toolNamed('a')],
      toolSettings: { maxToolRoundTrips: 2, toolChoice: 'required' },
    });
    expect([0, 1, 2].map((request) => given(model, request))).toEqual([
      { tools: ['a'], toolChoice: { type: 'required' } },
      { tools: ['a'], toolChoice: { type: 'required' } },
      NOTHING,
    ]);
  });

  it('R41 tools at their limit are dropped; all dropped is no configuration', async () => {
    const toolChoice = { type: 'tool', toolName: 'a' } as const;
    const { model } = await runOnce([], [calls('a'), calls('b'), 'done'], {
      tools: [toolNamed('a'), toolNamed('b')],
      toolSettings: { toolCallLimits: { a: 1, b: 1 }, toolChoice },
    });
    expect([0, 1, 2].map((request) => given(model, request))).toEqual([
      { tools: ['a', 'b'], toolChoice },
      // Nobody can choose a tool that is gone.
      { tools: ['b'], toolChoice: undefined },
      NOTHING,
    ]);
  });

  it('R41 each name is sent once, whatever was assigned', async () => {
    expect(given((await runOnce([turnTools({}, 'a', 'a', 'b')])).model)).toMatchObject({ tools: ['a', 'b'] });
  });

  it('R42 a call all the same gets an error result that says there are none', async () => {
    const { model } = await runOnce([onTurn('hides', (turn) => turn.excludeTools(['a']))], [calls('a'), 'done'], {
      tools: [toolNamed('a')],
    });
    expect(resultsOf(model, 1)).toEqual([
      { type: 'error-text', value: 'There is no tool "a". There are no tools now.' },
    ]);
  });
});

it('R43 the agent its settings hold for tools of shims: time, retries and how many at once', async () => {
  let running = 0;
  let most = 0;
  const tries: string[] = [];
  const adds = defineShim({
    name: 'adds',
    prepareTurn: (turn) =>
      turn.addTools([
        defineTool({
          name: 'slow',
          description: 's',
          parameters: z.object({}),
          execute: async () => {
            running += 1;
            most = Math.max(most, running);
            await new Promise((resolve) => setTimeout(resolve, 5));
            running -= 1;
          },
        }),
        defineTool({
          name: 'flaky',
          description: 'f',
          parameters: z.object({}),
          execute: (_args, ctx) => {
            tries.push(ctx.idempotencyKey);
            if (tries.length === 1) throw new Error('once');
            return 'fine';
          },
        }),
        defineTool({
          name: 'hangs',
          description: 'h',
          parameters: z.object({}),
          maxRetries: 0,
          execute: async () => new Promise(() => undefined),
        }),
      ]),
  });
  const { model } = await runOnce([adds], [calls('slow', 'slow', 'slow', 'slow', 'flaky', 'hangs'), 'done'], {
    toolSettings: { parallelToolCalls: 2, toolCallMaxRetries: 1, toolCallTimeoutMs: 50 },
  });
  expect(most).toBe(2);
  expect(resultsOf(model, 1).slice(4)).toEqual([
    { type: 'text', value: 'fine' },
    { type: 'error-text', value: 'The tool did not finish within 50 ms; whether it had an effect is not known.' },
  ]);
  expect(tries).toHaveLength(2);
  expect(new Set(tries).size).toBe(1);
});
