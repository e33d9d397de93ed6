import type {
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3StreamPart,
  LanguageModelV3StreamResult,
} from '@ai-sdk/provider';
import { expect, it } from 'vitest';
import clock from '../../shims/clock.js';
import excludeTools from '../../shims/exclude-tools.js';
import replyPrefix from '../../shims/reply-prefix.js';
import turnCounter from '../../shims/turn-counter.js';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import { defineShim, defineTool, type RunContext, type Tool, z } from '../../src/shims.js';

type Answer = string | { readonly tool: string; readonly input: object };

/** A model that gives the answers in order and keeps what it was asked. */
class AnswersInOrder implements LanguageModelV3 {
  readonly specificationVersion = 'v3';
  readonly provider = 'test';
  readonly modelId = 'in-order';
  readonly supportedUrls = {};
  readonly asked: LanguageModelV3CallOptions[] = [];
  readonly #answers: Answer[];

  constructor(...answers: Answer[]) {
    this.#answers = answers;
  }

  async doStream(options: LanguageModelV3CallOptions): Promise<LanguageModelV3StreamResult> {
    this.asked.push(options);
    const answer = this.#answers.shift();
    if (answer === undefined) throw new Error('no answer is left');
    const id = `c${this.asked.length}`;
    const isText = typeof answer === 'string';
    const parts: LanguageModelV3StreamPart[] = [
      { type: 'stream-start', warnings: [] },
      ...(isText
        ? ([
            { type: 'text-start', id },
            { type: 'text-delta', id, delta: answer },
            { type: 'text-end', id },
          ] as const)
        : ([
            { type: 'tool-call', toolCallId: id, toolName: answer.tool, input: JSON.stringify(answer.input) },
          ] as const)),
      {
        type: 'finish',
        finishReason: { unified: isText ? 'stop' : 'tool-calls', raw: undefined },
        usage: {
          inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
          outputTokens: { total: 1, text: 1, reasoning: 0 },
        },
      },
    ];
    return {
      stream: new ReadableStream({
        start(controller) {
          for (const part of parts) controller.enqueue(part);
          controller.close();
        },
      }),
    };
  }

  async doGenerate(): Promise<never> {
    throw new Error('the loop streams');
  }

  system(call: number): unknown {
    return this.asked[call]?.prompt.find(({ role }) => role === 'system')?.content;
  }
  toolNames(call: number): readonly string[] {
    return this.asked[call]?.tools?.map(({ name }) => name) ?? [];
  }
  /** The output of the tool result that the given call was sent. */
  result(call: number): unknown {
    const message = this.asked[call]?.prompt.findLast(({ role }) => role === 'tool');
    return message?.role === 'tool' && message.content[0]?.type === 'tool-result'
      ? message.content[0].output
      : undefined;
  }
}

const tool = (name: string): Tool =>
  defineTool({ name, description: 'Runs it.', parameters: z.object({}), execute: () => 'ran' });
const bash = tool('bash');

it('reply-prefix appends its instruction once per conversation, with its default prefix or the configured one', async () => {
  const model = new AnswersInOrder('one', 'two');
  const agent = new DefaultAgent({ model, instructions: 'You are kind.', shims: [replyPrefix] });
  await agent.run('hello');
  await agent.run('again');
  expect([model.system(0), model.system(1)]).toEqual(
    Array(2).fill('You are kind.\n\nBegin every reply with "Care note:".'),
  );

  const other = new AnswersInOrder('one');
  await new DefaultAgent({ model: other, shims: [replyPrefix.create({ prefix: 'NB:' })] }).run('hello');
  expect(other.system(0)).toBe('Begin every reply with "NB:".');
});

it('turn-counter counts the turns of the conversation in its state and those of the attempt in the transient state', async () => {
  const seen: unknown[] = [];
  const watch = defineShim({
    name: 'watch',
    onRunEnd: (_result, transient: RunContext) => void seen.push(transient.toJSON()),
  });
  const model = new AnswersInOrder({ tool: 'bash', input: {} }, 'one', 'two');
  const agent = new DefaultAgent({
    model,
    tools: [bash],
    shims: [turnCounter, turnCounter.create({}, { name: 'second' }), watch],
  });
  await agent.run('hello');
  await agent.run('again');
  expect(agent.runState.shimState.toJSON()).toEqual({
    'turn-counter': { turns: 3 },
    'turn-counter:version': 1,
    second: { turns: 3 },
    'second:version': 1,
  });
  expect(seen).toEqual([
    { 'turn-counter:turns': 2, 'second:turns': 2 },
    { 'turn-counter:turns': 1, 'second:turns': 1 },
  ]);
});

it('exclude-tools hides tools of the agent and of shims on either side of it', async () => {
  const model = new AnswersInOrder('one');
  const late = defineShim({
    name: 'late',
    prepareTurn: (turn) => {
      turn.addTools([tool('late')]);
    },
  });
  const agent = new DefaultAgent({
    model,
    tools: [bash],
    shims: [clock, excludeTools.create({ names: ['bash', 'late', 'nobody'] }), late],
  });
  await agent.run('hello');
  expect(model.toolNames(0)).toEqual(['clock']);
  expect(() => excludeTools.create()).toThrow('/names');
});

it('clock contributes a tool that tells the time in a zone, and says what is wrong with a bad one', async () => {
  const model = new AnswersInOrder(
    { tool: 'clock', input: { zone: 'Asia/Tokyo' } },
    { tool: 'clock', input: { zone: 'Mars/Base' } },
    { tool: 'clock', input: {} },
    'done',
  );
  const agent = new DefaultAgent({ model, shims: [clock] });
  const before = Date.now();
  await agent.run('What time is it?');
  const { value } = model.result(1) as {
    readonly value: { readonly zone: string; readonly local: string; readonly utc: string };
  };
  expect(value.zone).toBe('Asia/Tokyo');
  const tokyo = new Date(Date.parse(value.utc) + 9 * 3_600_000);
  expect(value.local).toContain(tokyo.toISOString().slice(11, 19));
  expect(Date.parse(value.utc) - before).toBeLessThan(10_000);
  expect(model.result(2)).toEqual({
    type: 'error-text',
    value: 'There is no time zone "Mars/Base". Use an IANA name, e.g. Europe/Berlin.',
  });
  expect(model.result(3)).toMatchObject({ type: 'json', value: { zone: 'UTC' } });
});
