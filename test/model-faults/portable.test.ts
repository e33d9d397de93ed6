import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import { defineTool, z } from '../../src/shims.js';
import { registryFor } from '../models/model-call.js';
import { ended, logOf } from '../server/lab.js';
import { listOf, pick } from '../support/json-path.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { messagesOf, toolResultsOf } from '../support/request-view.js';
import { agentFor, type Faults, MODELS, startFaults, wire } from './faults.js';

let faults: Faults;
beforeAll(async () => {
  faults = await startFaults();
});
afterAll(async () => {
  await faults.close();
});

const requestsOf = (input: string): readonly ReceivedRequest[] =>
  faults.model.requests.filter((each) => each.rawBody.includes(JSON.stringify(input)));
const bodyText = (request: ReceivedRequest | undefined): string => (request === undefined ? '' : wire(request.body));
const SIGNATURE = 'c2lnbmF0dXJl';
const PNG = { type: 'image', image: 'iVBORw0KGgo=', mediaType: 'image/png' };
const PDF = { type: 'file', data: 'JVBERi0xLjQ=', mediaType: 'application/pdf', filename: 'a.pdf' };
const OGG = { type: 'file', data: 'T2dnUw==', mediaType: 'audio/ogg', filename: 'a.ogg' };

/** A conversation with everything that a history can hold: an image, a document, reasoning, parallel calls, text. */
async function fullConversation(model: string, name: string): Promise<unknown> {
  const input = faults.script(
    name,
    {
      reasoning: ['let me ', 'see'],
      text: 'First I look.',
      toolCalls: [1, 2].map((x) => ({ name: 'echo', arguments: { x } })),
    },
    { reasoning: 'so', text: 'All seen.' },
  );
  const content = [PNG, PDF, OGG, { type: 'text', text: input }];
  const run = await faults.run([{ role: 'user', content }], { agent: agentFor(model) });
  expect(run, JSON.stringify(run.error)).toMatchObject({ status: 'completed', output: 'All seen.' });
  return run.id;
}

describe.each(MODELS)('round trip over $model', ({ model, dialect }) => {
  it('text, reasoning, parallel calls, image and document go out and come back', async () => {
    const name = `round ${model}`;
    const id = await fullConversation(model, name);
    const [first, second] = requestsOf(name);
    expect([first?.accepted, second?.accepted]).toEqual([true, true]);
    expect(bodyText(first)).toContain('iVBORw0KGgo=');
    expect(bodyText(first)).toContain('JVBERi0xLjQ=');
    expect(bodyText(first)).not.toContain('T2dnUw==');
    expect(bodyText(first)).toContain(
      '[file a.ogg of type audio/ogg, about 6 bytes: left out, as this model cannot be given it]',
    );
    expect(toolResultsOf(second!).map(({ text }) => text)).toEqual(['{"x":1}', '{"x":2}']);
    expect(bodyText(second)).toContain('First I look.');
    if (dialect === 'anthropic')
      expect(bodyText(second)).toContain(`"thinking":"let me see","signature":"${SIGNATURE}"`);
    if (model.startsWith('openai-compatible/')) expect(bodyText(second)).toContain('"reasoning_content":"let me see"');
    const completed = (await logOf(faults, id)).filter(({ type }) => type === 'model.completed');
    expect(listOf(pick(completed[0], 'message.content')).map((part) => pick(part, 'type'))).toEqual(
      model.startsWith('openai-chat/')
        ? ['text', 'tool-call', 'tool-call']
        : ['reasoning', 'text', 'tool-call', 'tool-call'],
    );
  });
});

describe("what one provider's history holds is sent to another", () => {
  const pairs = MODELS.flatMap((from) =>
    MODELS.filter((to) => to !== from).map((to) => [from.model, to.model, to.dialect] as const),
  );

  it.each(pairs)('from %s to %s, by a fork', async (from, to, dialect) => {
    const id = await fullConversation(from, `fork ${from} ${to}`);
    const input = faults.script(`forked ${from} ${to}`, { text: 'taken over' });
    const fork = await faults.server.json('POST', `/v1/runs/${String(id)}/fork`, { agent: agentFor(to), input });
    expect(fork.status).toBe(201);
    expect(await ended(faults, fork.body.id)).toMatchObject({ status: 'completed', output: 'taken over' });
    const [request] = requestsOf(input);
    expect(request).toMatchObject({ dialect, accepted: true });
    expect(bodyText(request)).not.toContain(SIGNATURE);
    expect(bodyText(request)).toContain('iVBORw0KGgo=');
    expect(bodyText(request)).toContain('All seen.');
    expect(toolResultsOf(request!).map(({ text }) => text)).toEqual(['{"x":1}', '{"x":2}']);
    const started = (await logOf(faults, fork.body.id)).find(({ type }) => type === 'model.started');
    const dropped =
      from === 'openai-chat/gpt-test' ? [] : ['reasoning that this provider does not take back was left out'];
    expect(listOf(started?.repairs)).toEqual(expect.arrayContaining(dropped));
    // A resume of the source goes on with its own provider, untouched.
    const own = faults.script(`own ${from} ${to}`, { text: 'as before' });
    expect(await faults.resume(id, { input: own })).toMatchObject({ output: 'as before' });
    if (from.startsWith('anthropic/')) expect(bodyText(requestsOf(own)[0])).toContain(SIGNATURE);
  });
});

describe('Google, in the process of the test', () => {
  const chat = (model: string, ...replies: readonly Reply[]): DefaultAgent => {
    faults.model.script(...replies);
    const tools = [
      defineTool({
        name: 'echo',
        description: 'Gives back.',
        parameters: z.object({ x: z.number() }),
        execute: ({ x }) => ({ x }),
      }),
      defineTool({
        name: 'image',
        description: 'An image.',
        parameters: z.looseObject({}),
        execute: () => [
          { type: 'text', text: 'a dot' },
          { type: 'image', image: 'iVBORw0KGgo=', mediaType: 'image/png' },
        ],
      }),
      defineTool({
        name: 'broken',
        description: 'Fails.',
        parameters: z.looseObject({}),
        execute: () => {
          throw new Error('it broke');
        },
      }),
    ];
    return new DefaultAgent({
      model: `google/${model}`,
      models: registryFor(faults.model.url),
      tools,
      instructions: 'You are a test.',
    });
  };

  it.each(['gemini-3-pro', 'gemini-2.5-flash'])(
    '%s takes its own history back: reasoning, parallel calls, media, errors',
    async (model) => {
      const before = faults.model.requests.length;
      const agent = chat(
        model,
        {
          reasoning: 'hm',
          text: 'Look.',
          toolCalls: ['echo', 'image', 'broken', 'nobody'].map((name) => ({ name, arguments: { x: 1 } })),
        },
        { text: 'done', usage: { input: 50, output: 9, cached: 20, reasoning: 4 } },
        { text: 'again' },
      );
      const result = await agent.run([
        { role: 'user', content: [PNG, OGG, { type: 'text', text: 'google' }] },
      ] as never);
      expect(result.finalOutput).toBe('done');
      expect(result.responses.at(-1)?.usage).toEqual({
        inputTokens: 50,
        outputTokens: 9,
        totalTokens: 59,
        cachedInputTokens: 20,
        reasoningTokens: 4,
      });
      expect((await agent.run('and now?')).finalOutput).toBe('again');
      const requests = faults.model.requests.slice(before);
      expect(requests.map(({ dialect, accepted, problem }) => [dialect, accepted, problem])).toEqual(
        Array(3).fill(['google', true, undefined]),
      );
      const results = toolResultsOf(requests[1]!).map(({ text }) => text);
      expect(results.join(' ')).toContain('Error: it broke');
      expect(bodyText(requests[1])).toContain('"inlineData":{"mimeType":"image/png","data":"iVBORw0KGgo="}');
      expect(results.join(' ')).not.toContain('iVBOR');
    },
  );

  it('a blocked prompt is a refusal or a failure that names it, and is not asked again for ever', async () => {
    const before = faults.model.requests.length;
    const raw = `data: ${JSON.stringify({ promptFeedback: { blockReason: 'SAFETY' }, usageMetadata: { promptTokenCount: 4, totalTokenCount: 4 } })}\n\n`;
    const agent = chat('gemini-3-pro', { raw });
    await expect(agent.run('blocked')).resolves.toMatchObject({ finalOutput: '' });
    expect(faults.model.requests.length - before).toBe(1);
    expect(agent.runState.responses.at(-1)?.finishReason).toBe('refusal');
  });

  it('a malformed call is asked for again', async () => {
    const agent = chat('gemini-3-pro', { finish: 'MALFORMED_FUNCTION_CALL' }, { text: 'better' });
    expect((await agent.run('hello')).finalOutput).toBe('better');
  });
});

describe('the prefix of requests stays the same, byte for byte', () => {
  const withShims = [
    { use: 'reply-prefix' },
    { use: 'faults' },
    { use: 'clock' },
    { use: 'exclude-tools', config: { names: ['other'] } },
    { use: 'turn-counter' },
  ];

  it.each(MODELS)('over 20 turns, resumes and a restart, and cached tokens are counted: $model', async ({ model }) => {
    await faults.put(model, { shims: withShims });
    let id: unknown;
    let cached = 0;
    const inputs: string[] = [];
    for (let run = 0; run < 5; run += 1) {
      const usage = { input: 1000, output: 10, cached: 100 * run };
      const calling: Reply = {
        reasoning: 'hm',
        text: 'Now:',
        toolCalls: [{ name: 'echo', arguments: { x: run } }],
        usage,
      };
      const input = faults.script(`prefix ${model} ${run}`, calling, calling, calling, { text: 'so', usage });
      inputs.push(input);
      cached += 4 * usage.cached;
      if (run === 3 && model === 'openai-compatible/m') await faults.server.restart();
      const ran = id === undefined ? await faults.run(input) : await faults.resume(id, { input });
      expect(ran).toMatchObject({ status: 'completed', output: 'so', usage: { cachedInputTokens: cached } });
      id = ran.id;
    }
    const requests = requestsOf(inputs[0] ?? '');
    expect(requests).toHaveLength(20);
    for (const [index, request] of requests.entries()) {
      expect(request.problem).toBeUndefined();
      const next = requests[index + 1];
      if (next === undefined) break;
      const sent = JSON.stringify(messagesOf(request)).slice(0, -1);
      const at = request.rawBody.indexOf(sent);
      expect(at).toBeGreaterThan(0);
      expect(next.rawBody.startsWith(request.rawBody.slice(0, at + sent.length))).toBe(true);
      expect([pick(next.body, 'system'), pick(next.body, 'tools')]).toEqual([
        pick(request.body, 'system'),
        pick(request.body, 'tools'),
      ]);
    }
  });
});
