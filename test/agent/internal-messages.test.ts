import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  defineShim,
  type HistoryItem,
  internalMessage,
  isInternalMessage,
  type Message,
  type ModelRequest,
  RunCancelledError,
  type RunResult,
  type UserMessage,
} from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, drive, promptOf, runOnce, toolNamed, WAYS } from './drive.js';

const secret = (content: string, ephemeral = false, origin = 'host'): UserMessage =>
  internalMessage({ role: 'user', content }, { origin, ephemeral });

describe('R87 internalMessage and isInternalMessage', () => {
  it('R87 marks by metadata, never by provider fields, and leaves the message that it was given', () => {
    const message: UserMessage = { role: 'user', content: 'x', providerOptions: { openai: { user: 'u' } } };
    const marked = internalMessage(message, { origin: 'mine' });
    expect(marked).toEqual({ ...message, metadata: { internal: { origin: 'mine', ephemeral: false } } });
    expect(internalMessage(message, { origin: 'mine', ephemeral: true }).metadata).toEqual({
      internal: { origin: 'mine', ephemeral: true },
    });
    expect(message).toEqual({ role: 'user', content: 'x', providerOptions: { openai: { user: 'u' } } });
  });

  it('R87 finds it by its origin, and nothing else', () => {
    const marked = secret('x', false, 'mine');
    expect(isInternalMessage(marked)).toBe(true);
    expect(isInternalMessage(marked, { origin: 'mine' })).toBe(true);
    expect(isInternalMessage(marked, { origin: 'other' })).toBe(false);
    const others = [
      'x',
      null,
      1,
      [],
      {},
      { role: 'user', content: 'x' },
      { metadata: { internal: { origin: 'mine' } } },
    ];
    for (const other of others) expect(isInternalMessage(other)).toBe(false);
  });

  it('R87 injects nothing and deduplicates nothing', async () => {
    const twice = defineShim({
      name: 'twice',
      prepareTurn: (turn) => {
        internalMessage({ role: 'user', content: 'never appended' }, { origin: 'twice' });
        turn.appendHistoryItems([secret('same'), secret('same')]);
      },
    });
    const { model } = await runOnce([twice]);
    expect(promptOf(model)).toEqual(['user: hello', 'user: same', 'user: same']);
  });
});

describe.each(WAYS)('%s', (way) => {
  it('R88 R89 the model gets the contents without the metadata; the history and live hooks keep it', async () => {
    const seen: (readonly Message[])[] = [];
    const transformed: Message[][] = [];
    const shim = defineShim({
      name: 'context',
      onRunStart: (state) => void state.history.push(secret('kept')),
      transformMessages: (_turn, messages) => {
        transformed.push(messages);
        return [...messages, secret('for one call')];
      },
      runnerHooks: () => [{ onLlmStart: (_task, request) => void seen.push(request.messages) }],
    });
    const { agent, model } = await runOnce([shim], ['done'], { way });
    expect(model.requests[0]?.prompt).toEqual([
      { role: 'user', content: [{ type: 'text', text: 'hello' }] },
      { role: 'user', content: [{ type: 'text', text: 'kept' }] },
      { role: 'user', content: [{ type: 'text', text: 'for one call' }] },
    ]);
    const marked = seen[0]?.map((message) => isInternalMessage(message, { origin: 'host' }));
    expect(marked).toEqual([false, true, true]);
    expect(transformed[0]?.map((message) => isInternalMessage(message))).toEqual([false, true]);
    expect(agent.runState.history.map((item) => isInternalMessage(item))).toEqual([false, true, false]);
  });

  it('R90 written as JSON, results and model requests leave internal messages out, nested history included', async () => {
    const results: RunResult[] = [];
    const requests: ModelRequest[] = [];
    const shim = defineShim({
      name: 'context',
      onRunStart: (state) => void state.history.push(secret('do not tell')),
      onRunEnd: (result) => {
        if (result !== null) results.push(result);
      },
    });
    const hooks = [
      {
        onLlmStart: (_task: unknown, request: ModelRequest) => void requests.push(request),
        onAgentEnd: (_task: unknown, result: RunResult | null) => {
          if (result !== null) results.push(result);
        },
      },
    ];
    const ran = await runOnce([shim], ['done'], { way, hooks });
    if (ran.result !== undefined) results.push(ran.result);
    expect(results).toHaveLength(3);
    for (const result of results) {
      expect(result.runState.history.some((item) => isInternalMessage(item))).toBe(true);
      expect(JSON.stringify(result)).not.toContain('do not tell');
      expect((JSON.parse(JSON.stringify(result)) as RunResult).runState.history[0]).toBe('hello');
    }
    expect(requests).toHaveLength(1);
    expect(requests[0]?.messages).toHaveLength(2);
    expect(JSON.stringify(requests)).not.toContain('do not tell');
    expect(JSON.stringify(ran.events)).not.toContain('do not tell');
  });
});

const pages = (text: string): Parameters<DefaultAgent['run']>[0] => ['hello', secret(text, true)];

describe('R92 R93 an ephemeral message', () => {
  it('R92 R93 from the list input is sent on every call of the run at one position, and is gone from the state', async () => {
    const tools = [toolNamed('fast')];
    const model = new ScriptedModel([calls('fast'), calls('fast'), 'done', 'again']);
    const agent = new DefaultAgent({ model, tools });
    await drive(agent, pages('page 1'));
    for (const request of [0, 1, 2]) {
      expect(promptOf(model, request).slice(0, 2)).toEqual(['user: hello', 'user: page 1']);
    }
    expect(JSON.stringify(agent.runState)).not.toContain('page 1');
    expect(agent.runState.history[0]).toBe('hello');
    await drive(agent, ['more', secret('page 2', true)]);
    expect(promptOf(model, 3)).not.toContain('user: page 1');
    expect(promptOf(model, 3).slice(-2)).toEqual(['user: more', 'user: page 2']);
  });

  it("R93 from a shim's onRunStart follows the run input, and each run has its own", async () => {
    let page = 0;
    const view = defineShim({
      name: 'view',
      onRunStart: (state) => {
        page += 1;
        state.history.push(secret(`page ${page}`, true, 'view'));
      },
    });
    const model = new ScriptedModel([calls('fast'), 'done', 'again']);
    const agent = new DefaultAgent({ model, shims: [view], tools: [toolNamed('fast')] });
    await drive(agent);
    await drive(agent, 'more');
    expect(promptOf(model, 0)).toEqual(['user: hello', 'user: page 1']);
    expect(promptOf(model, 1).slice(0, 2)).toEqual(['user: hello', 'user: page 1']);
    expect(promptOf(model, 2)).toEqual([
      'user: hello',
      'assistant: call fast',
      'tool: result "fast"',
      'assistant: done',
      'user: more',
      'user: page 2',
    ]);
    expect(agent.runState.history.some((item) => isInternalMessage(item))).toBe(false);
  });

  it.each(['failed', 'cancelled'])('R94 is stripped from the state that a %s run leaves', async (how) => {
    const ends = defineShim({
      name: 'ends',
      onModelResponse: () => {
        throw how === 'failed' ? new Error('no') : new RunCancelledError();
      },
    });
    const { agent, error } = await runOnce([ends], ['done'], { input: pages('page 1') as HistoryItem[] });
    expect(error).toBeInstanceOf(Error);
    expect(agent.runState.history).toEqual(['hello']);
  });

  it('R94 is stripped on handoff; an internal one that is not ephemeral goes along', async () => {
    const second = new ScriptedModel(['done']);
    const target = new DefaultAgent({ name: 'second', model: second });
    const input = ['hello', secret('page 1', true), secret('stays')];
    const { model } = await runOnce([], [calls('handoff_to_second')], { handoffs: [target], input });
    expect(promptOf(model)).toEqual(['user: hello', 'user: page 1', 'user: stays']);
    expect(promptOf(second).slice(0, 2)).toEqual(['user: hello', 'user: stays']);
  });

  it('R92 keeps its place through replaceHistory when it is passed on, and goes when it is not', async () => {
    const compacts = defineShim({
      name: 'compacts',
      prepareTurn: (turn) => {
        const kept = turn.runState.history.filter((item) => isInternalMessage(item, { origin: 'host' }));
        if (turn.turnCount === 2) turn.replaceHistory(['summary', ...kept]);
        if (turn.turnCount === 3) turn.replaceHistory(['summary']);
      },
    });
    const { model, agent } = await runOnce([compacts], [calls('fast'), calls('fast'), 'done'], {
      tools: [toolNamed('fast')],
      input: pages('page 1') as HistoryItem[],
    });
    expect(promptOf(model, 1)).toEqual(['user: summary', 'user: page 1']);
    expect(promptOf(model, 2)).toEqual(['user: summary']);
    expect(agent.runState.history).toEqual(['summary', expect.objectContaining({ finishReason: 'stop' })]);
  });
});

it('R95 content that looks like something else stays content through copies and forks', async () => {
  const posing = { template: 'as a prompt', values: {} };
  const { agent, model } = await runOnce([], ['done', 'again'], { input: [posing] });
  // In code the author says what it is: a prompt spec is one.
  expect(promptOf(model)).toEqual(['user: as a prompt']);
  const fork = agent.fork();
  await drive(fork, 'more');
  expect(promptOf(model, 1)).toEqual(['user: as a prompt', 'assistant: done', 'user: more']);
});
