import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import promptCache from '../../shims/prompt-cache.js';
import { handleOf } from '../../src/agent/default-agent.js';
import { DefaultAgent, type DefaultAgentOptions } from '../../src/index.js';
import { defineShim, defineTool, type PreparedTurn, type Tool, z } from '../../src/shims.js';
import { type ScriptedAnswer, ScriptedModel } from '../../src/testing.js';
import { putAgent, type Seam, startSeam } from '../rules/seam.js';
import { calling, callOf, logOf, resume, runToEnd } from '../server/lab.js';
import { isObject, type JsonObject, listOf } from '../support/json-path.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import { toolNamesOf } from '../support/request-view.js';

type Config = Parameters<typeof promptCache.create>[0];

const tool = (name: string, description = name): Tool =>
  defineTool({ name, description, parameters: z.object({}), execute: () => 'ran' });
const call = (...names: string[]): ScriptedAnswer => ({ toolCalls: names.map((toolName) => ({ toolName })) });
const onTurn = (prepareTurn: (turn: PreparedTurn) => void): ReturnType<typeof defineShim> =>
  defineShim({ name: 'other', prepareTurn });

interface Ran {
  readonly model: ScriptedModel;
  readonly agent: DefaultAgent;
  readonly events: readonly JsonObject[];
  /** What `cache.prefix_changed` told, in order. */
  readonly told: readonly unknown[];
}

/** An agent of the model `id`; each of the inputs is a run of its own. */
async function ran(
  id: string,
  script: readonly ScriptedAnswer[],
  {
    config = {},
    inputs = ['hello'],
    shims = [],
    ...rest
  }: Partial<DefaultAgentOptions> & { readonly config?: Config; readonly inputs?: readonly string[] } = {},
): Promise<Ran> {
  const model = new ScriptedModel(script);
  const agent = new DefaultAgent({
    model: id,
    models: { resolve: (asked) => ({ ...handleOf(model), id: asked }) },
    instructions: 'You are kind.',
    shims: [...shims, promptCache.create(config)],
    ...rest,
  });
  const events: JsonObject[] = [];
  for (const input of inputs) {
    const run = agent.runStream(input);
    for await (const event of run) events.push(event);
    await run.result;
  }
  const told = events.filter(({ type }) => type === 'custom.cache.prefix_changed').map(({ data }) => data);
  return { model, agent, events, told };
}

/** Where the marks of a request stand: `tools.0`, `1.0` for the first part of the second message, `0` for a message itself. */
function marksOf({ options }: { readonly options: JsonObject }): string[] {
  const marked = (item: unknown): boolean =>
    isObject(item) && isObject(item.providerOptions) && isObject(item.providerOptions.anthropic);
  return [
    ...listOf(options.tools).flatMap((each, index) => (marked(each) ? [`tools.${index}`] : [])),
    ...listOf(options.prompt).flatMap((message, index) => [
      ...(marked(message) ? [String(index)] : []),
      ...listOf(isObject(message) ? message.content : []).flatMap((part, at) =>
        marked(part) ? [`${index}.${at}`] : [],
      ),
    ]),
  ];
}
const seenMarks = ({ model }: Ran): string[][] =>
  model.requests.map((request) => marksOf({ options: request.options }));

describe('breakpoints for Anthropic', () => {
  const id = 'anthropic/claude-sonnet-4-5';
  it('stand after the last tool, the system message, the end of the request and that of the one before', async () => {
    const run = await ran(id, [call('a', 'b'), 'one', 'two'], {
      tools: [tool('a'), tool('b')],
      inputs: ['hello', 'more'],
    });
    expect(seenMarks(run)).toEqual([
      ['tools.1', '0', '1.0'],
      ['tools.1', '0', '1.0', '3.1'],
      ['tools.1', '0', '3.1', '5.0'],
    ]);
    const [first] = run.model.requests;
    expect(first?.prompt[0]?.providerOptions).toEqual({ anthropic: { cacheControl: { type: 'ephemeral' } } });
    expect(JSON.stringify(run.agent.runState.history)).not.toContain('cacheControl');
  });

  it('are those that the config wants, for as long as it wants', async () => {
    const run = await ran(id, ['one'], { tools: [tool('a')], config: { breakpoints: ['system'], ttl: '1h' } });
    expect(seenMarks(run)).toEqual([['0']]);
    expect(run.model.requests[0]?.prompt[0]?.providerOptions).toEqual({
      anthropic: { cacheControl: { type: 'ephemeral', ttl: '1h' } },
    });
    expect(seenMarks(await ran(id, ['one'], { tools: [tool('a')], config: { breakpoints: [] } }))).toEqual([[]]);
    expect(seenMarks(await ran(id, ['one'], { instructions: '' }))).toEqual([['0.0']]);
  });

  it('are four at most, with those that others have set', async () => {
    const own = { anthropic: { cacheControl: { type: 'ephemeral' }, other: 1 } };
    const input = ['a', 'b', 'c'].map((text) => ({
      role: 'user' as const,
      content: [{ type: 'text' as const, text, providerOptions: own }],
    }));
    const shim = defineShim({
      name: 'marks',
      transformMessages: (_turn, messages) => [...messages.slice(0, 1), ...input, ...messages.slice(1)],
    });
    const run = await ran(id, ['one'], { tools: [tool('a')], shims: [shim] });
    expect(seenMarks(run)).toEqual([['1.0', '2.0', '3.0', '4.0']]);
  });

  it('keep the other options of a part, and stand on no blank text', async () => {
    const shim = defineShim({
      name: 'last',
      transformMessages: (_turn, messages) => [
        ...messages,
        {
          role: 'user',
          content: [
            { type: 'text', text: 'x', providerOptions: { anthropic: { a: 1 } } },
            { type: 'text', text: ' ' },
          ],
        },
      ],
    });
    const run = await ran(id, ['one'], { shims: [shim], instructions: '' });
    expect(run.model.requests[0]?.prompt[1]?.content).toMatchObject([
      { text: 'x', providerOptions: { anthropic: { a: 1, cacheControl: { type: 'ephemeral' } } } },
    ]);
  });

  it('are set for no other provider', async () => {
    for (const other of ['openai/gpt-5', 'google/gemini-3', 'openai-compatible/m'])
      expect(seenMarks(await ran(other, ['one'], { tools: [tool('a')] }))).toEqual([[]]);
  });
});

describe('the cache key of OpenAI', () => {
  const keyOf = ({ model }: Ran): unknown =>
    model.requests[0]?.options.providerOptions?.['scripted-test']?.promptCacheKey;
  it('is one for each run, one for the agent, or none', async () => {
    const run = await ran('openai/gpt-5', ['one']);
    expect(keyOf(run)).toBe(run.events[0]?.runId);
    expect(keyOf(await ran('openai-chat/gpt-4o', ['one'], { config: { key: 'agent' }, name: 'kind' }))).toBe('kind');
    expect(keyOf(await ran('openai/gpt-5', ['one'], { config: { key: 'none' } }))).toBeUndefined();
    expect(keyOf(await ran('openai-compatible/m', ['one']))).toBeUndefined();
  });
  it('that the agent has set stays', async () => {
    expect(keyOf(await ran('openai/gpt-5', ['one'], { modelArgs: { promptCacheKey: 'mine' } }))).toBe('mine');
    const providerOptions = { openai: { promptCacheKey: 'mine' } };
    const run = await ran('openai/gpt-5', ['one'], { modelArgs: { providerOptions } });
    expect(run.model.requests[0]?.options.providerOptions).toEqual(providerOptions);
  });
});

describe('the order of the tools', () => {
  const changing = onTurn((turn) => {
    turn.addTools([tool('c')]);
    if (turn.turnCount !== 2) turn.addTools([tool('b')]);
    if (turn.turnCount > 1) turn.addTools([tool('d')]);
    if (turn.turnCount > 1 && turn.tools !== null) turn.tools = { ...turn.tools, tools: turn.tools.tools.toReversed() };
  });
  const script = [call('c'), 'one', 'two'];
  it.each([
    [
      'first-seen',
      [
        ['a', 'c', 'b'],
        ['a', 'c', 'd'],
        ['a', 'c', 'b', 'd'],
      ],
    ],
    [
      'name',
      [
        ['a', 'b', 'c'],
        ['a', 'c', 'd'],
        ['a', 'b', 'c', 'd'],
      ],
    ],
    [
      'as-given',
      [
        ['a', 'c', 'b'],
        ['d', 'c', 'a'],
        ['d', 'b', 'c', 'a'],
      ],
    ],
  ] as const)('%s', async (toolOrder, orders) => {
    const run = await ran('m', script, {
      tools: [tool('a')],
      shims: [changing],
      config: { toolOrder },
      inputs: ['hello', 'more'],
    });
    expect(run.model.requests.map(({ tools }) => tools)).toEqual(orders);
  });
  it('leaves a request without tools without', async () => {
    const run = await ran('anthropic/claude-sonnet-4-5', ['one']);
    expect(run.model.requests[0]?.options.tools).toBeUndefined();
  });
});

describe('a beginning that changed', () => {
  it('is told with what changed, and one that only grew is not', async () => {
    const rename = onTurn((turn) => {
      if (turn.turnCount === 2) turn.addTools([tool('new')]);
      turn.addTools([tool('a', turn.turnCount < 4 ? 'a' : 'another')]);
      if (turn.turnCount === 3) turn.appendSystemInstruction('It is late.');
      if (turn.turnCount === 5) turn.replaceHistory(['begin', 'anew']);
    });
    const run = await ran('m', ['1', '2', '3', '4', '5', '6'], {
      shims: [rename],
      inputs: ['a', 'b', 'c', 'd', 'e', 'f'],
    });
    expect(run.told).toEqual([
      { changed: ['tools'], tools: { added: ['new'] } },
      { changed: ['tools', 'system'], tools: { removed: ['new'] } },
      { changed: ['tools'], tools: { edited: ['a'] } },
      { changed: ['messages'], message: 0 },
    ]);
  });

  it('tells of another model, of tools that only moved, and of a message that is gone', async () => {
    const shim = defineShim({
      name: 'other',
      prepareTurn(turn) {
        turn.addTools([tool('a'), tool('b')]);
        if (turn.turnCount === 2 && turn.tools !== null)
          turn.tools = { ...turn.tools, tools: turn.tools.tools.toReversed() };
      },
      transformMessages: (turn, messages) => (turn.turnCount === 3 ? messages.slice(0, -2) : messages),
      wrapModelCall: (turn, request, next) => next({ ...request, model: turn.turnCount > 1 ? 'n' : 'm' }),
    });
    const run = await ran('m', ['1', '2', '3'], {
      shims: [shim],
      config: { toolOrder: 'as-given' },
      inputs: ['x', 'y', 'z'],
    });
    expect(run.told).toEqual([
      { changed: ['model', 'tools'], tools: { moved: ['b', 'a'] } },
      { changed: ['tools'], tools: { moved: ['a', 'b'] } },
    ]);
    const shorter = await ran('m', ['1', '2', '3'], {
      shims: [
        defineShim({
          name: 'cuts',
          transformMessages: (turn, messages) => (turn.turnCount === 2 ? messages.slice(0, 1) : messages),
        }),
      ],
      inputs: ['x', 'y', 'z'],
    });
    expect(shorter.told).toEqual([{ changed: ['messages'], message: 0 }]);
  });

  it('is not told where nobody wants it, and then nothing is kept of it', async () => {
    const shim = onTurn((turn) => {
      turn.appendSystemInstruction('x');
    });
    const run = await ran('m', ['1', '2'], { shims: [shim], config: { report: false }, inputs: ['x', 'y'] });
    expect([run.told, run.agent.runState.shimState.toJSON()]).toEqual([[], {}]);
  });
});

describe('in the server', () => {
  let seam: Seam;
  const tools = `export default defineShim({
    name: 'tools',
    prepareTurn: (turn) => turn.addTools(['b', 'a', ...(turn.turnCount > 2 ? ['A'] : [])].toSorted().map((name) => tool(name, () => 'ran'))),
  });`;
  beforeAll(async () => {
    seam = await startSeam({ tools });
    for (const model of ['anthropic/claude-sonnet-4-5', 'openai/gpt-5', 'openai-chat/gpt-4o', 'openai-compatible/m'])
      await putAgent(seam, `of-${model.split('/')[0] ?? ''}`, { model, shims: ['prompt-cache', 'tools'] });
  });
  afterEach(() => {
    expect(seam.model.refusedRequests).toEqual([]);
    expect(seam.model.unusedReplies).toBe(0);
  });
  afterAll(async () => {
    await seam.close();
  });
  const last = (back = 1): ReceivedRequest => seam.model.requests.at(-back)!;
  const isMarked = (item: unknown): boolean => isObject(item) && item.cache_control !== undefined;

  it('Anthropic gets its breakpoints, and takes them, turn for turn', async () => {
    seam.model.script({ reasoning: 'Hm.', ...calling(callOf('a'), callOf('b')) }, { text: 'done' });
    const run = await runToEnd(seam, { agent: 'of-anthropic' });
    expect(run).toMatchObject({ status: 'completed' });
    for (const back of [2, 1]) {
      const { body } = last(back);
      expect(listOf(body.tools).map(isMarked)).toEqual([false, true]);
      expect(listOf(body.system).map(isMarked)).toEqual([true]);
    }
    const blocks = listOf(last().body.messages).map((message) => listOf((message as JsonObject).content).map(isMarked));
    expect(blocks).toEqual([[true], [false, false, false], [false, true]]);
    // A new tool comes last, whatever the shim's own order; after a restart too.
    await seam.server.restart();
    seam.model.script({ text: 'again' });
    await resume(seam, run.id, { input: 'more' });
    expect(toolNamesOf(last())).toEqual(['a', 'b', 'A']);
    const told = (await logOf(seam, run.id)).filter(({ type }) => type === 'custom.cache.prefix_changed');
    expect(told.map(({ data }) => data)).toEqual([{ changed: ['tools'] }]);
  });

  it.each([
    ['of-openai', true],
    ['of-openai-chat', true],
    ['of-openai-compatible', false],
  ])('%s gets a cache key: %s', async (agent, keyed) => {
    seam.model.script(calling(callOf('a')), { text: 'done' });
    const run = await runToEnd(seam, { agent });
    expect(run).toMatchObject({ status: 'completed' });
    expect([last(2), last()].map(({ body }) => body.prompt_cache_key)).toEqual(
      Array(2).fill(keyed ? run.id : undefined),
    );
    expect(last().rawBody).not.toContain('cache_control');
  });
});
