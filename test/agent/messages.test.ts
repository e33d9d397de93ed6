import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  defineShim,
  internalMessage,
  isInternalMessage,
  type Message,
  ModelCallError,
  type PreparedTurn,
  textOf,
} from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, drive, onTurn, promptOf, runOnce, toolNamed, WAYS } from './drive.js';

const user = (content: string): Message => ({ role: 'user', content });

type Transform = (turn: PreparedTurn, messages: Message[]) => Message[] | void | Promise<Message[] | void>;
const onMessages = (name: string, transformMessages: Transform) => defineShim({ name, transformMessages });

describe.each(WAYS)('%s', (way) => {
  it('R47 it gets the rendered list, system first; what it returns goes to the next shim and the model, and is kept nowhere', async () => {
    const seen: unknown[] = [];
    const wraps = onMessages('wraps', (_turn, messages) => {
      seen.push(structuredClone(messages));
      return [...messages.slice(0, -1), user('reworded'), internalMessage(user('a hint'), { origin: 'wraps' })];
    });
    const looks = onMessages(
      'looks',
      async (_turn, messages) => void seen.push(messages.map(({ content }) => content)),
    );
    const { agent, model } = await runOnce([wraps, looks], ['one'], {
      way,
      instructions: 'Be brief.',
      input: ['hello', { n: 1 }],
    });
    expect(seen).toEqual([
      [{ role: 'system', content: 'Be brief.' }, user('hello'), user('{"n":1}')],
      ['Be brief.', 'hello', 'reworded', 'a hint'],
    ]);
    expect(promptOf(model)).toEqual(['system: Be brief.', 'user: hello', 'user: reworded', 'user: a hint']);
    expect(agent.runState.history).toEqual(['hello', { n: 1 }, agent.runState.responses[0]]);
    expect(agent.runState.instructions).toBe('Be brief.');
  });

  it('R47 an empty list really is empty', async () => {
    const empties = onMessages('empties', () => []);
    const { model, result } = await runOnce([empties], ['said to nobody'], { way, instructions: 'Be brief.' });
    expect(model.requests[0]?.prompt).toEqual([]);
    expect(result?.finalOutput).toBe('said to nobody');
  });

  it('R48 to persist as well, the same marked message goes into the history too', async () => {
    const origin = 'recall';
    const recalls = onMessages('recall', (turn, messages) => {
      if (turn.runState.history.some((item) => isInternalMessage(item, { origin }))) return;
      const message = internalMessage(user('You met before.'), { origin });
      turn.runState.history.push(message);
      return [...messages, message];
    });
    const { agent, model } = await runOnce([recalls], ['one', 'two'], { way });
    await drive(agent, 'again', { way });
    expect(promptOf(model, 0)).toEqual(['user: hello', 'user: You met before.']);
    expect(promptOf(model, 1)).toEqual(['user: hello', 'user: You met before.', 'assistant: one', 'user: again']);
    expect(agent.runState.history.filter((item) => isInternalMessage(item, { origin }))).toHaveLength(1);
  });

  it('R49 it runs once per turn; retries of the call see the same list', async () => {
    let times = 0;
    let mine: { role: 'user'; content: string } | undefined;
    const counts = onMessages('counts', (_turn, messages) => {
      times += 1;
      mine = { role: 'user', content: `call ${times}` };
      return [...messages, mine];
    });
    const busy = { error: { retryable: true } } as const;
    const spoils = (): typeof busy => {
      mine!.content = 'changed behind the call';
      return busy;
    };
    const { model } = await runOnce([counts], [busy, spoils, calls('echo'), 'done'], {
      way,
      tools: [toolNamed('echo')],
    });
    expect(times).toBe(2);
    expect(model.requests.map((_request, index) => promptOf(model, index).at(-1))).toEqual([
      'user: call 1',
      'user: call 1',
      'user: call 1',
      'user: call 2',
    ]);
  });

  it('R51 onModelResponse fires once per call, before any tool runs, and the responses already have it', async () => {
    const seen: unknown[] = [];
    const hears = defineShim({
      name: 'hears',
      onModelResponse: (turn, response) => {
        const { responses, history } = turn.runState;
        seen.push([textOf(response), responses.at(-1) === response, history.at(-1) === response, responses.length]);
      },
      wrapToolCall: async (_turn, call, next) => {
        seen.push(call.name);
        return next(call);
      },
    });
    const cut = { text: ['partial'], ends: 'cut' } as const;
    await runOnce([hears], [{ text: 'first', toolCalls: [{ toolName: 'echo' }] }, cut, 'second'], {
      way,
      tools: [toolNamed('echo')],
    });
    expect(seen).toEqual([['first', true, true, 1], 'echo', ['second', true, true, 2]]);
  });
});

it('R49 after the first delta a retry is a new, marked call; before it the call is just made again', async () => {
  const script = [
    { error: { retryable: true } },
    { text: ['Hel', 'lo'], ends: 'cut' as const },
    { error: { retryable: true } },
    'Hello again',
  ];
  const model = new ScriptedModel(script);
  const { events, result } = await drive(new DefaultAgent({ model, modelMaxRetries: 3 }));
  const shown = events.flatMap((event) => {
    switch (event.type) {
      case 'model.started':
        return [['started', event.modelCallId, event.replaces]];
      case 'model.delta':
        return [['delta', event.modelCallId, event.text]];
      case 'model.retrying':
        return [['retrying', event.modelCallId]];
      case 'model.completed':
        return [['completed', event.modelCallId]];
      default:
        return [];
    }
  });
  const [a, b, c, d] = events.flatMap((event) => (event.type === 'model.started' ? [event.modelCallId] : []));
  expect(shown).toEqual([
    ['started', a, undefined],
    ['retrying', a],
    ['started', b, undefined],
    ['delta', b, 'Hel'],
    ['delta', b, 'lo'],
    ['retrying', b],
    ['started', c, b],
    ['retrying', c],
    ['started', d, b],
    ['delta', d, 'Hello again'],
    ['completed', d],
  ]);
  expect(new Set([a, b, c, d]).size).toBe(4);
  expect(result?.finalOutput).toBe('Hello again');
  expect(result?.responses).toHaveLength(1);
});

it('R49 a wrap that calls again makes a new, marked call; one that cannot be retried is not', async () => {
  const twice = defineShim({
    name: 'twice',
    wrapModelCall: async (_turn, request, next) => {
      await next(request);
      return next({ ...request, messages: [...request.messages, user('once more')] });
    },
  });
  const { model, events, result } = await runOnce([twice], ['first', 'second']);
  const started = events.filter(({ type }) => type === 'model.started');
  expect(started.map(({ replaces }) => replaces)).toEqual([undefined, started[0]?.modelCallId]);
  expect(promptOf(model, 1)).toEqual(['user: hello', 'user: once more']);
  expect(result?.finalOutput).toBe('second');
  const fatal = await runOnce([], [{ text: ['a'], error: { retryable: false, code: 'model_error' } }, 'never']);
  expect(fatal.error).toBeInstanceOf(ModelCallError);
  expect(fatal.model.requests).toHaveLength(1);
});

it('R50 it gets a deep copy: what it does to the list without returning it is nobody else its', async () => {
  const spoils = onMessages('spoils', (_turn, messages) => {
    (messages[0] as { content: string }).content = 'spoiled';
    messages.push(user('more'));
  });
  const seen: unknown[] = [];
  const looks = onMessages('looks', (_turn, messages) => void seen.push(messages));
  const { model, agent } = await runOnce([spoils, looks], ['one', 'two']);
  await drive(agent, 'again');
  expect(seen[0]).toEqual([user('hello')]);
  expect(promptOf(model, 0)).toEqual(['user: hello']);
  expect(promptOf(model, 1)).toEqual(['user: hello', 'assistant: one', 'user: again']);
});

describe('R50 tools and modelArgs are frozen by then', () => {
  const writes: readonly [string, (turn: PreparedTurn) => unknown][] = [
    ['addTools', (turn) => turn.addTools([toolNamed('late')])],
    ['excludeTools', (turn) => turn.excludeTools(['echo'])],
    ['assigning tools', (turn) => (turn.tools = null)],
    ['a setting', (turn) => (turn.tools!.toolChoice = 'required')],
    ['a limit', (turn) => (turn.tools!.toolCallLimits!.echo = 9)],
    ['the list', (turn) => (turn.tools!.tools as unknown[]).push(toolNamed('late'))],
    ['assigning modelArgs', (turn) => (turn.modelArgs = {})],
    ['an argument', (turn) => (turn.modelArgs!.temperature = 1)],
    ['a nested argument', (turn) => ((turn.modelArgs!.providerOptions as { x: { y: number } }).x.y = 2)],
  ];
  it.each(writes)('R50 a late write throws: %s', async (_what, write) => {
    const caught: unknown[] = [];
    const attempt = (turn: PreparedTurn): void => {
      try {
        write(turn);
      } catch (error) {
        caught.push(error instanceof TypeError);
      }
    };
    const late = defineShim({ name: 'late', transformMessages: attempt, onModelResponse: attempt });
    const { model, error } = await runOnce([late], ['done'], {
      tools: [toolNamed('echo')],
      toolSettings: { toolCallLimits: { echo: 1 } },
      modelArgs: { temperature: 0, providerOptions: { x: { y: 1 } } },
    });
    expect(error).toBeUndefined();
    expect(caught).toEqual([true, true]);
    const { options, tools } = model.requests[0]!;
    expect([tools, options.toolChoice, options.temperature, options.providerOptions]).toEqual([
      ['echo'],
      undefined,
      0,
      { x: { y: 1 } },
    ]);
  });

  it('R50 a write that nobody catches fails the run with the shim', async () => {
    const late = onMessages('late', (turn) => turn.addTools([toolNamed('late')]));
    const { error, model } = await runOnce([late]);
    expect(error).toMatchObject({ shim: 'late', phase: 'transformMessages', cause: expect.any(TypeError) as unknown });
    expect(model.requests).toHaveLength(0);
  });
});

it.each<[string, unknown]>([
  ['a text', 'just a text'],
  ['a message without content', { role: 'user' }],
  ['an unknown role', { role: 'robot', content: 'x' }],
  ['a malformed part', { role: 'user', content: [{ type: 'text' }] }],
  ['a response', { id: 'r', modelCallId: 'm', message: user('x') }],
])('R47 R61 a list that holds no messages fails the run with the shim: %s', async (_what, item) => {
  const { error, model } = await runOnce([onMessages('careless', (_turn, messages) => [...messages, item as Message])]);
  expect(error).toMatchObject({ shim: 'careless', phase: 'transformMessages' });
  expect(model.requests).toHaveLength(0);
});

it('R51 a response that a wrap made is checked, completed and kept like any other', async () => {
  const heard: unknown[] = [];
  const cached = defineShim({
    name: 'cached',
    wrapModelCall: async (turn, request, next) => {
      if (turn.turnCount === 1) return { message: { role: 'assistant', content: 'from the cache' } } as never;
      const response = await next(request);
      return { ...response, message: { ...response.message, content: `${textOf(response)}!` } };
    },
    onModelResponse: (_turn, response) =>
      void heard.push([response.finishReason, response.usage.totalTokens, Object.isFrozen(response.message)]),
  });
  const { agent, result } = await runOnce([cached], ['real']);
  expect(result?.finalOutput).toBe('from the cache');
  expect((await drive(agent)).result?.finalOutput).toBe('real!');
  expect(heard).toEqual([
    ['stop', 0, true],
    ['stop', 2, true],
  ]);
  expect(agent.runState.responses.every(({ modelCallId, id }) => modelCallId !== '' && id !== '')).toBe(true);

  for (const wrong of [undefined, {}, { message: user('not mine') }, { message: { role: 'assistant', content: 1 } }]) {
    const bad = defineShim({ name: 'bad', wrapModelCall: async () => wrong as never });
    expect((await runOnce([bad])).error).toMatchObject({ shim: 'bad', phase: 'wrapModelCall' });
  }
});

it('R51 arguments that were broken stay broken when a wrap copies the response', async () => {
  const ran: unknown[] = [];
  const copies = defineShim({
    name: 'copies',
    wrapModelCall: async (_turn, request, next) => ({ ...(await next(request)) }),
  });
  const echo = { ...toolNamed('echo'), execute: (args: unknown) => ran.push(args) };
  const { model } = await runOnce([copies], [{ toolCalls: [{ toolName: 'echo', input: '{"broken' }] }, 'done'], {
    tools: [echo],
  });
  expect(ran).toEqual([]);
  expect(promptOf(model, 1).at(-1)).toContain('The arguments were no JSON object');
});

it('R47 R49 a call that is made once more after the context was exceeded goes through the transforms and wraps again', async () => {
  const compacts = defineShim({
    name: 'compacts',
    transformMessages: (_turn, messages) => [
      ...messages.slice(0, -1),
      user(`redacted ${JSON.stringify(messages.at(-1)?.content)}`),
    ],
    wrapModelCall: async (_turn, request, next) =>
      next({ ...request, messages: [...request.messages, user('wrapped')] }),
    onContextExceeded: (turn) => {
      turn.replaceHistory(['short']);
      return true;
    },
  });
  const { model, result } = await runOnce([compacts], [{ error: { code: 'context_exceeded' } }, 'fits'], {
    input: ['much', 'secret'],
  });
  expect(promptOf(model, 0)).toEqual(['user: much', 'user: redacted "secret"', 'user: wrapped']);
  expect(promptOf(model, 1)).toEqual(['user: redacted "short"', 'user: wrapped']);
  expect(result?.finalOutput).toBe('fits');
  const still = await runOnce(
    [compacts],
    [{ error: { code: 'context_exceeded' } }, { error: { code: 'context_exceeded' } }, 'never'],
  );
  expect(still.error).toMatchObject({ code: 'context_exceeded' });
  const keeps = onTurn('keeps', () => undefined);
  expect((await runOnce([keeps], [{ error: { code: 'context_exceeded' } }, 'never'])).error).toMatchObject({
    code: 'context_exceeded',
  });
});
