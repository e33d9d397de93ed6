import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import compaction from '../../shims/compaction/index.js';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import { ModelRegistry } from '../../src/models/model-registry.js';
import { defineTool, type HistoryItem, internalMessage, isInternalMessage, type Message, z } from '../../src/shims.js';
import { ModelEndpoint } from '../support/model-endpoint.js';

// What is cut, judged by endpoints that refuse what real providers refuse.

let endpoint: ModelEndpoint;
let models: ModelRegistry;
beforeAll(async () => {
  endpoint = await ModelEndpoint.start();
  models = new ModelRegistry({
    anthropicApiKey: 'k',
    anthropicBaseUrl: `${endpoint.url}/v1`,
    openaiApiKey: 'k',
    openaiBaseUrl: `${endpoint.url}/v1`,
    openaiCompatibleBaseUrl: `${endpoint.url}/v1`,
    googleApiKey: 'k',
    googleBaseUrl: `${endpoint.url}/v1beta`,
    idleTimeoutMs: 10_000,
  });
});
afterAll(async () => {
  await models.close();
  await endpoint.close();
});

const IMAGE = 'QUJD'.repeat(2_000);
const LAST = 'and this is asked last 🎉';
const SECRET = 'the internal note';

const echo = defineTool({
  name: 'echo',
  description: 'Gives back.',
  parameters: z.looseObject({}),
  execute: (args) => args,
});

const text = fc
  .constantFrom('Grüße 🎉 ', '日本語のテキスト。', 'plain words that say a thing ', '😀', 'half \ud83d ')
  .chain((each) => fc.integer({ min: 1, max: 30 }).map((times) => each.repeat(times)));
const userPart = fc.oneof(
  text.map((value) => ({ type: 'text' as const, text: value })),
  fc.constant({ type: 'image' as const, image: IMAGE, mediaType: 'image/png' }),
);
const user: fc.Arbitrary<Message[]> = fc.oneof(
  text.map((content): Message[] => [{ role: 'user', content }]),
  fc.array(userPart, { minLength: 1, maxLength: 3 }).map((content): Message[] => [{ role: 'user', content }]),
);
const answer: fc.Arbitrary<Message[]> = text.map((content) => [{ role: 'assistant', content }]);
const internal: fc.Arbitrary<Message[]> = fc
  .boolean()
  .map((ephemeral) => [internalMessage({ role: 'user', content: SECRET }, { origin: 'host', ephemeral })]);

/** A batch of 1 to 8 calls and what became of them: all answered, in one message or in many, some, none, or out of order. */
const round: fc.Arbitrary<Message[]> = fc
  .record({
    calls: fc.integer({ min: 1, max: 8 }),
    how: fc.constantFrom('all', 'all', 'all', 'split', 'reversed', 'some', 'none', 'late'),
    text,
    media: fc.boolean(),
  })
  .map(({ calls, how, text: value, media }): Message[] => {
    const ids = Array.from({ length: calls }, (_, index) => `c${index}`);
    const content = ids.map((toolCallId) => ({
      type: 'tool-call' as const,
      toolCallId,
      toolName: 'echo',
      input: { value },
    }));
    const results = ids.map((toolCallId, index) => ({
      type: 'tool-result' as const,
      toolCallId,
      toolName: 'echo',
      output:
        media && index === 0
          ? { type: 'content' as const, value: [{ type: 'image-data' as const, data: IMAGE, mediaType: 'image/png' }] }
          : { type: 'text' as const, value },
    }));
    const head: Message = { role: 'assistant', content };
    const tool = (parts: typeof results): Message[] => (parts.length === 0 ? [] : [{ role: 'tool', content: parts }]);
    switch (how) {
      case 'split':
        return [head, ...results.flatMap((part) => tool([part]))];
      case 'reversed':
        return [head, ...tool(results.toReversed())];
      case 'some':
        return [head, ...tool(results.slice(1))];
      case 'none':
        return [head];
      case 'late':
        return [head, { role: 'user', content: 'meanwhile' }, ...tool(results)];
      case 'all':
        return [head, ...tool(results)];
    }
  });

/** 1 to 60 messages; every call has an id of its own. */
const history: fc.Arbitrary<Message[]> = fc
  .array(
    fc.oneof(
      { weight: 3, arbitrary: user },
      { weight: 2, arbitrary: answer },
      { weight: 5, arbitrary: round },
      { weight: 1, arbitrary: internal },
    ),
    {
      maxLength: 25,
    },
  )
  .map((groups) =>
    groups
      .flatMap((messages, group) => messages.map((message) => withIds(message, group)))
      .slice(0, 58)
      .concat([{ role: 'user', content: LAST }]),
  );

function withIds(message: Message, group: number): Message {
  if (message.role === 'user' || message.role === 'system' || typeof message.content === 'string') return message;
  const content = message.content.map((part) =>
    'toolCallId' in part ? { ...part, toolCallId: `g${group}${part.toolCallId}` } : part,
  );
  return { ...message, content } as Message;
}

interface Compacted {
  readonly bodies: readonly string[];
  readonly items: readonly HistoryItem[];
  readonly compactions: number;
}

async function compacted(
  model: string,
  items: readonly HistoryItem[],
  config: Readonly<Record<string, unknown>>,
): Promise<Compacted> {
  const before = endpoint.requests.length;
  endpoint.respondWith(({ rawBody }) => ({ text: rawBody.includes('Write the summary.') ? 'S' : 'done' }));
  const agent = new DefaultAgent({
    model,
    models,
    tools: [echo],
    shims: [compaction.create(config)],
  });
  const run = agent.runStream([...items]);
  let compactions = 0;
  for await (const { type } of run) compactions += type === 'custom.compaction' ? 1 : 0;
  await run.result;
  await agent[Symbol.asyncDispose]();
  const requests = endpoint.requests.slice(before);
  for (const { accepted, problem } of requests) expect([accepted, problem]).toEqual([true, undefined]);
  return { bodies: requests.map(({ rawBody }) => rawBody), items: agent.runState.history, compactions };
}

const MODELS = ['openai-compatible/m', 'openai/gpt-test', 'anthropic/claude-sonnet-4-5', 'google/gemini-2.5-flash'];

describe.each(MODELS)('P01 and M15: whatever the history and wherever it is cut, %s takes every request', (model) => {
  it('random histories of 1 to 60 messages', { timeout: 60_000 }, async () => {
    let times = 0;
    const tokens = fc.integer({ min: 10, max: 4_000 });
    const property = fc.asyncProperty(history, tokens, tokens, async (items, keepTokens, triggerTokens) => {
      const { bodies, compactions } = await compacted(model, items, { keepTokens, triggerTokens, summaryTokens: 64 });
      expect(bodies.length).toBe(1 + (compactions > 0 ? 1 : 0));
      const last = bodies.at(-1) ?? '';
      expect(last).toContain(LAST);
      // What clients do not see must not come to them by way of the summary, and the model still gets it.
      if (compactions > 0 && bodies.length === 2) expect(bodies[0]).not.toContain(SECRET);
      expect(last.includes(SECRET)).toBe(items.some((item) => isInternalMessage(item)));
      times += compactions;
    });
    await fc.assert(property, { numRuns: 60 });
    expect(times).toBeGreaterThan(10);
  });
});

describe('P01', () => {
  /** Rounds of several calls with texts between them, one of them dangling. */
  const sample: Message[] = Array.from({ length: 8 }, (_, index): Message[] => {
    const ids = Array.from({ length: (index % 3) + 1 }, (__, call) => `r${index}_${call}`);
    const results = ids.map((toolCallId) => ({
      type: 'tool-result' as const,
      toolCallId,
      toolName: 'echo',
      output: { type: 'text' as const, value: `result ${index} `.repeat(20) },
    }));
    return [
      ...(index % 2 === 0 ? [{ role: 'user' as const, content: `question ${index} `.repeat(15) }] : []),
      {
        role: 'assistant',
        content: ids.map((toolCallId) => ({ type: 'tool-call' as const, toolCallId, toolName: 'echo', input: {} })),
      },
      ...(index === 5 ? [] : [{ role: 'tool' as const, content: results }]),
      { role: 'assistant', content: `answer ${index} `.repeat(15) },
    ];
  }).flat();

  it('at every boundary, of the whole history and of each beginning of it', { timeout: 60_000 }, async () => {
    const seen = new Set<number>();
    for (let length = 4; length <= sample.length; length += 1) {
      const items: Message[] = [...sample.slice(0, length), { role: 'user', content: LAST }];
      const whole = length === sample.length;
      const triggerTokens = whole ? 1_200 : 100;
      for (let keepTokens = 0; keepTokens <= triggerTokens; keepTokens += whole ? 15 : 50) {
        const config = { keepTokens, triggerTokens, summaryTokens: 64 };
        const { items: left, bodies, compactions } = await compacted('anthropic/claude-sonnet-4-5', items, config);
        expect([compactions, bodies.length]).toEqual([1, 2]);
        expect(bodies.at(-1)).toContain(LAST);
        if (whole) seen.add(left.length);
      }
    }
    // Each unit of the sample was once the first that stayed.
    expect(seen.size).toBeGreaterThan(12);
  });
});
