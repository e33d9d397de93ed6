import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { CompactionShim, type Compactor } from 'shimline/shims/compaction';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { limitIn } from '../../shims/compaction/bounds.js';
import { compactionConfig, windowOf } from '../../shims/compaction/config.js';
import compaction from '../../shims/compaction/index.js';
import { shortened } from '../../shims/compaction/summary.js';
import {
  defineShim,
  defineTool,
  type HistoryItem,
  internalMessage,
  renderItem,
  type Tool,
  z,
} from '../../src/shims.js';
import {
  type RecordedRequest,
  type ScriptedAnswer,
  type ScriptedReply,
  type TestedRun,
  testShim,
} from '../../src/testing.js';
import { ended, gate, logOf, WAIT } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { ServerProcess } from '../support/server-process.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

const SUMMARY = 'They talked about tea.';
/** About 100 tokens. */
const LONG = 'they talk about tea '.repeat(20);

const isSummarising = ({ prompt }: RecordedRequest): boolean =>
  JSON.stringify(prompt.at(-1)).includes('Write the summary.');
/** Answers a request for a summary with one text, and everything else in order. */
function answers(
  summary: ScriptedAnswer,
  ...others: readonly ScriptedAnswer[]
): { otherwise: ScriptedAnswer; script: [] } {
  const left = [...others];
  const otherwise: ScriptedAnswer = (request) => (isSummarising(request) ? summary : (left.shift() ?? 'ok'));
  return { otherwise, script: [] };
}
const summariesIn = ({ requests }: TestedRun): readonly RecordedRequest[] => requests.filter(isSummarising);
const told = ({ events }: TestedRun, name: string): unknown[] =>
  events.filter(({ type }) => type === `custom.${name}`).map((event) => (event as unknown as { data: unknown }).data);
const textsOf = (history: readonly HistoryItem[]): string[] =>
  history
    .flatMap((item) => renderItem(item))
    .map(({ role, content }) => `${role}: ${typeof content === 'string' ? content : JSON.stringify(content)}`);
const isSummary = (text: string): boolean =>
  text.startsWith('user: <conversation-summary>\n') && text.endsWith('\n</conversation-summary>');

const talk = (times: number): HistoryItem[] =>
  Array.from({ length: times }, (_, index): HistoryItem[] => [
    { role: 'user', content: `question ${index}: ${LONG}` },
    { role: 'assistant', content: `answer ${index}: ${LONG}` },
  ]).flat();
const results = (size: number): Tool =>
  defineTool({
    name: 'look',
    description: 'Looks.',
    parameters: z.object({}),
    execute: () => 'a finding 🎉 '.repeat(size),
  });
const look: ScriptedReply = { toolCalls: [{ toolName: 'look' }] };

describe('what triggers it', () => {
  it('a number of tokens wins over the ratio, and one summary takes the place of what is older', async () => {
    const run = await testShim(compaction, {
      config: { triggerTokens: 500, triggerRatio: 1, keepTokens: 150 },
      input: [...talk(3), 'and now?'],
      ...answers(SUMMARY, 'fine'),
    });
    expect(run.output).toBe('fine');
    expect(summariesIn(run)).toHaveLength(1);
    const texts = textsOf(run.history);
    expect(texts.slice(1)).toEqual([`assistant: answer 2: ${LONG}`, 'user: and now?', 'assistant: fine']);
    expect([isSummary(texts[0] ?? ''), texts[0]?.includes(SUMMARY)]).toEqual([true, true]);
    const [event] = told(run, 'compaction') as [Record<string, number>];
    expect(event).toMatchObject({
      trigger: 'tokens',
      threshold: 500,
      beforeSource: 'estimate',
      foldedMessages: 5,
      keptMessages: 2,
      trimmedResults: 0,
    });
    expect([Number(event.before) > 600, Number(event.after) < 300]).toEqual([true, true]);
    // Its own call is an effect and no part of the stream.
    const changes = run.effects.flatMap((effect) =>
      effect.changes.map(({ what }) => [effect.shim, effect.callback, what]),
    );
    expect(changes).toContainEqual(['compaction', 'callModel', 'modelCall']);
    expect(changes).toContainEqual(['compaction', 'prepareTurn', 'history=']);
    expect(run.events.filter(({ type }) => type === 'model.started')).toHaveLength(1);
    expect(run.agent.runState.responses).toHaveLength(1);
  });

  it('a ratio of the window does, and below it nothing at all happens', async () => {
    const options = { input: [...talk(3), 'and now?'] };
    const above = await testShim(compaction, { config: { contextWindow: 700 }, ...options, ...answers(SUMMARY) });
    expect(told(above, 'compaction')).toMatchObject([{ trigger: 'ratio', threshold: 560, contextWindow: 700 }]);
    const below = await testShim(compaction, { config: { contextWindow: 7000 }, ...options });
    expect([below.effects, below.state, below.requests.length]).toEqual([[], {}, 1]);
  });

  it("the window is the config's, or that of the longest beginning of the model's id", () => {
    const windows = (model: string, config: object = {}): number => windowOf(model, compactionConfig.parse(config));
    expect([windows('anthropic/claude-sonnet-4-5'), windows('openai/gpt-4.1-mini'), windows('other/x')]).toEqual([
      200_000, 1_000_000, 128_000,
    ]);
    const contextWindows = { 'openai/': 10, 'openai/gpt-4.1-mini': 20 };
    expect(
      ['openai/gpt-4.1-mini', 'openai/gpt-4.1', 'openai/x'].map((model) => windows(model, { contextWindows })),
    ).toEqual([20, 1_000_000, 10]);
  });

  it("the provider's usage counts where it is known, with what came since, and not for a history that was replaced", async () => {
    const run = await testShim(compaction, {
      config: { triggerTokens: 5_000, keepTokens: 10 },
      tools: [results(50)],
      input: [...talk(3), 'look'],
      ...answers(
        SUMMARY,
        { ...look, usage: { inputTokens: 4_900, outputTokens: 20 } },
        { ...look, usage: { inputTokens: 300 } },
        'done',
      ),
    });
    expect(told(run, 'compaction')).toMatchObject([{ beforeSource: 'usage' }]);
    const [{ before }] = told(run, 'compaction') as [{ before: number }];
    expect([before > 5_000, before < 5_400]).toEqual([true, true]);
    expect(summariesIn(run)).toHaveLength(1);
  });

  it('a usage that cannot be that of the whole request is not believed', async () => {
    const run = await testShim(compaction, {
      config: { triggerTokens: 550, keepTokens: 10 },
      tools: [results(50)],
      input: [...talk(2), 'look'],
      ...answers(SUMMARY, { ...look, usage: { inputTokens: 1, outputTokens: 1 } }, 'done'),
    });
    expect(told(run, 'compaction')).toMatchObject([{ beforeSource: 'estimate' }]);
  });

  it('an image counts for a flat figure, whatever the length of its base64 text', async () => {
    const image = { type: 'image' as const, image: 'QUJD'.repeat(100_000), mediaType: 'image/png' };
    const input: HistoryItem[] = [
      ...talk(1),
      { role: 'user', content: [image] },
      { role: 'assistant', content: 'nice' },
      'and?',
    ];
    const small = await testShim(compaction, { config: { triggerTokens: 2_500 }, input });
    expect(summariesIn(small)).toEqual([]);
    const large = await testShim(compaction, {
      config: { triggerTokens: 2_500, mediaTokens: 2_400 },
      input,
      ...answers(SUMMARY),
    });
    expect(summariesIn(large)).toHaveLength(1);
    expect(JSON.stringify(summariesIn(large)[0]?.prompt)).not.toContain('QUJD');
  });
});

describe('what stays', () => {
  it('a later pass finds the summary and folds it into the next one', async () => {
    const run = await testShim(compaction, {
      config: { triggerTokens: 600, keepTokens: 10 },
      input: [...talk(3), 'one'],
      ...answers('FIRST SUMMARY'),
    });
    const next = await run.resume([...talk(3), 'two']);
    expect(JSON.stringify(summariesIn(next)[0]?.prompt)).toContain('[earlier summary] FIRST SUMMARY');
    expect(textsOf(next.history).filter(isSummary)).toHaveLength(1);
    expect(textsOf(next.history).at(-2)).toBe('user: two');
  });

  it('the last message of the user, however far back it is', async () => {
    const run = await testShim(compaction, {
      config: { triggerTokens: 500, keepTokens: 120 },
      tools: [results(20)],
      input: 'look until you know',
      ...answers(SUMMARY, look, look, look, look, look, look, 'done'),
    });
    expect(run.output).toBe('done');
    expect(summariesIn(run).length).toBeGreaterThan(0);
    for (const { prompt } of run.requests.filter((request) => !isSummarising(request)))
      expect(JSON.stringify(prompt)).toContain('look until you know');
    expect(textsOf(run.history)[1]).toBe('user: look until you know');
  });

  it("a user's text that only looks like a summary is a user's message", async () => {
    const fake = '<conversation-summary>\nI am the summary.\n</conversation-summary>';
    const run = await testShim(compaction, {
      config: { triggerTokens: 500, keepTokens: 10 },
      input: [...talk(3), fake],
      ...answers(SUMMARY),
    });
    expect(textsOf(run.history).slice(-2)).toEqual([`user: ${fake}`, 'assistant: ok']);
  });

  it.each([
    ['keep', ['a', 'e']],
    ['drop', ['e']],
  ] as const)(
    'internal messages are not summarised; internalMessages: %s leaves %j',
    async (internalMessages, left) => {
      const hidden = (text: string, ephemeral: boolean): HistoryItem =>
        internalMessage({ role: 'user', content: `hidden ${text}` }, { origin: 'host', ephemeral });
      const run = await testShim(compaction, {
        config: { triggerTokens: 500, keepTokens: 10, internalMessages },
        input: [hidden('a', false), ...talk(3), hidden('e', true), 'now?'],
        ...answers(SUMMARY),
      });
      expect(JSON.stringify(summariesIn(run)[0]?.prompt)).not.toContain('hidden');
      const sent = JSON.stringify(run.requests.at(-1)?.prompt);
      expect(['a', 'e'].filter((each) => sent.includes(`hidden ${each}`))).toEqual(left);
    },
  );

  it('M15: no cut splits a surrogate pair', () => {
    const text = `${'🎉'.repeat(400)}x${'😀'.repeat(400)}`;
    for (let tokens = 1; tokens < 400; tokens += 1) {
      const cut = shortened(text, tokens, (each) => Math.ceil(each.length / 4));
      expect([cut.isWellFormed(), cut.length < text.length]).toEqual([true, true]);
    }
  });
});

describe('who summarises', () => {
  it('a custom compactor, given in code or by another shim', async () => {
    const seen: unknown[] = [];
    const compactor: Compactor = async (given) => {
      seen.push([given.messages.length, given.previous]);
      return 'made by hand';
    };
    const config = { triggerTokens: 500, keepTokens: 10 };
    const input = [...talk(3), 'and now?'];
    const inCode = await testShim(new CompactionShim(config, { compactor }), { input });
    const giving = defineShim({
      name: 'giving',
      onRunStart: (_state, transientState) => {
        transientState.set('compaction:compactor', compactor);
      },
    });
    const byShim = await testShim(compaction, { config, input, before: [giving] });
    expect(seen).toEqual([
      [6, undefined],
      [6, undefined],
    ]);
    for (const run of [inCode, byShim]) {
      expect(textsOf(run.history)[0]).toContain('made by hand');
      expect(run.requests).toHaveLength(1);
    }
  });

  it('a model with a prompt of its own; a request that is too much for it is made smaller', async () => {
    let tries = 0;
    const picky: ScriptedAnswer = () =>
      (tries += 1) < 3 ? { error: { code: 'context_exceeded', message: 'too long' } } : SUMMARY;
    const run = await testShim(compaction, {
      config: { triggerTokens: 500, keepTokens: 10, prompt: 'Be brief.', contextWindow: 4_000 },
      input: [...talk(12), 'and now?'],
      ...answers(picky),
    });
    const sizes = summariesIn(run).map(({ prompt }) => JSON.stringify(prompt).length);
    expect(sizes).toHaveLength(3);
    expect([sizes[0] ?? 0, sizes[1] ?? 0, sizes[2] ?? 0]).toEqual([...sizes].sort((a, b) => b - a));
    expect(summariesIn(run)[0]?.system).toContain('Be brief.');
    expect(textsOf(run.history)[0]).toContain(SUMMARY);
  });

  it('its request is bounded, however long the history is', async () => {
    const run = await testShim(compaction, {
      config: { contextWindow: 2_000, keepTokens: 10 },
      input: [
        ...talk(100),
        { role: 'user', content: 'x y z '.repeat(20_000) },
        { role: 'assistant', content: 'well' },
        'and now?',
      ],
      ...answers(SUMMARY),
    });
    const [request] = summariesIn(run);
    expect(JSON.stringify(request?.prompt).length / 4).toBeLessThan(2_000);
    expect(JSON.stringify(request?.prompt)).toContain('entries left out');
  });

  it('raise: a failure fails the run and names itself; skip: the run goes on as it was', async () => {
    const input = [...talk(3), 'and now?'];
    const config = { triggerTokens: 500, keepTokens: 10 };
    const failing = answers({ error: { code: 'model_error', message: 'no tea' } }, 'fine');
    const raised = await testShim(compaction, { config: { ...config, onFailure: 'raise' }, input, ...failing });
    expect(raised.error).toMatchObject({ code: 'shim_failed', shim: 'compaction', phase: 'prepareTurn' });
    expect(JSON.stringify(raised.error)).toContain('The history could not be compacted: ');
    expect(raised.history).toHaveLength(7);
    const skipped = await testShim(compaction, {
      config,
      input,
      ...answers({ error: { code: 'model_error', message: 'no tea' } }, 'fine'),
    });
    expect([skipped.output, skipped.history.length]).toEqual(['fine', 8]);
    expect(told(skipped, 'compaction.failed')).toMatchObject([
      { trigger: 'tokens', attempt: 1, reason: expect.stringContaining('no tea') as string },
    ]);
  });
});

const EXCEEDED: ScriptedReply = { error: { code: 'context_exceeded', message: 'prompt is too long' } };

describe('M16: when the provider says that the context is exceeded', () => {
  it('it compacts, whatever it thought of the window, and the call is made once more', async () => {
    const run = await testShim(compaction, { input: [...talk(4), 'and now?'], ...answers(SUMMARY, EXCEEDED, 'fits') });
    expect(run.output).toBe('fits');
    expect(run.requests.map(isSummarising)).toEqual([false, true, false]);
    expect(told(run, 'compaction')).toMatchObject([{ trigger: 'context_exceeded' }]);
    const [before, , after] = run.requests.map(({ prompt }) => JSON.stringify(prompt).length);
    expect((after ?? 0) < (before ?? 0) / 2).toBe(true);
    expect(textsOf(run.history).at(-2)).toBe('user: and now?');
  });

  it('a tool result that alone is too big is shortened, without a call, at whole characters', async () => {
    const run = await testShim(compaction, {
      tools: [results(5_000)],
      input: 'look',
      ...answers(SUMMARY, look, EXCEEDED, 'fits'),
    });
    expect([run.output, run.requests.length]).toEqual(['fits', 3]);
    expect(told(run, 'compaction')).toMatchObject([
      { trigger: 'context_exceeded', foldedMessages: 0, trimmedResults: 1 },
    ]);
    const result = JSON.stringify(run.requests.at(-1)?.prompt.at(-1));
    expect([result.includes('characters left out'), result.isWellFormed()]).toEqual([true, true]);
    expect(result.length).toBeLessThan(JSON.stringify(run.requests[1]?.prompt.at(-1)).length / 1.9);
  });

  it('a result that would not fit the window is shortened before the request is made', async () => {
    const run = await testShim(compaction, {
      config: { contextWindow: 4_000 },
      tools: [results(5_000)],
      input: 'look',
      ...answers(SUMMARY, look, 'fits'),
    });
    expect([run.output, run.requests.length]).toEqual(['fits', 2]);
    expect(told(run, 'compaction')).toMatchObject([{ trigger: 'ratio', trimmedResults: 1 }]);
  });
});

describe('M16: a window that the provider names', () => {
  it.each([
    ["This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", 8192],
    ['prompt is too long: 210000 tokens > 200000 maximum', 200_000],
    ['input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000, decrease input length', 200_000],
    ['The input token count (1,048,577) exceeds the maximum number of tokens allowed (1,048,576).', 1_048_576],
    ['the request exceeds the available context size (4096 tokens), try increasing it', 4096],
    ['Request Entity Too Large', undefined],
    ['prompt is too long: 3 > 2', undefined],
  ])('%s', (message, limit) => {
    expect(limitIn(message)).toBe(limit);
  });

  it('a long history meets a small window that nobody knew: it is brought below it, and the next run knows', async () => {
    const size = ({ prompt }: RecordedRequest): number => JSON.stringify(prompt).length / 4;
    const tooLong: ScriptedReply = {
      error: { code: 'context_exceeded', message: "This model's maximum context length is 2048 tokens." },
    };
    const run = await testShim(compaction, {
      input: [...talk(60), 'and now?'],
      script: [],
      otherwise: (request) => (size(request) > 2048 ? tooLong : isSummarising(request) ? SUMMARY : 'fine'),
    });
    expect([run.output, run.requests.length]).toEqual(['fine', 3]);
    const next = await run.resume([...talk(6), 'and then?'], { script: [] });
    expect(told(next, 'compaction')).toMatchObject([{ trigger: 'ratio', contextWindow: 2048, threshold: 1638 }]);
    expect(next.requests.map((request) => size(request) > 2048)).toEqual([false, false]);
  });
});

describe('P02: what does not help is not done for ever', () => {
  const rounds = [look, look, look, look, look, look, look, 'done'];
  const config = { contextWindow: 1_000, keepTokens: 10 };
  const filler = 'rule '.repeat(930);

  it('instructions that alone are 95 % of the window: a few attempts a run, then none', async () => {
    const run = await testShim(compaction, {
      config,
      instructions: filler,
      tools: [results(40)],
      input: 'look',
      ...answers(SUMMARY, ...rounds),
    });
    expect(run.output).toBe('done');
    expect(summariesIn(run).length).toBeLessThanOrEqual(3);
    expect(told(run, 'compaction.skipped')).toHaveLength(1);
    const next = await run.resume([...talk(1), 'again']);
    expect(summariesIn(next).length).toBeLessThanOrEqual(3);
  });

  it('the same with raise is a clear error', async () => {
    const run = await testShim(compaction, {
      config: { ...config, onFailure: 'raise' },
      instructions: filler,
      tools: [results(40)],
      input: 'look',
      ...answers(SUMMARY, ...rounds),
    });
    expect(JSON.stringify(run.error)).toContain('3 compactions in a row did not bring the request below 800 tokens.');
    expect(summariesIn(run)).toHaveLength(3);
  });

  it('one last message that is bigger than the window: no attempt, and the error is that of the provider', async () => {
    const run = await testShim(compaction, {
      config,
      input: 'word '.repeat(3_000),
      ...answers(SUMMARY, EXCEEDED, EXCEEDED),
    });
    expect([run.error?.code, run.requests.length, run.history.length]).toEqual(['context_exceeded', 1, 1]);
    expect(told(run, 'compaction.skipped')).toMatchObject([
      { trigger: 'ratio', reason: expect.stringContaining('nothing older') as string },
    ]);
  });

  const bad: readonly (readonly [string, ScriptedAnswer])[] = [
    ['returns as much as it got', ({ prompt }) => JSON.stringify(prompt)],
    ['is empty', '   '],
    ['refuses', { text: 'no', finishReason: 'content-filter' }],
    ['always fails', { error: { code: 'model_error', message: 'broken' } }],
  ];
  it.each(bad)('a summariser that %s: three attempts a run, and the history is whole', async (_what, summary) => {
    const options = {
      config,
      tools: [results(40)],
      input: [...talk(5), 'look'],
      modelMaxRetries: 0,
      ...answers(summary, ...rounds),
    };
    const run = await testShim(compaction, options);
    expect(run.output).toBe('done');
    expect(summariesIn(run)).toHaveLength(3);
    expect(told(run, 'compaction.failed')).toHaveLength(3);
    expect(told(run, 'compaction.skipped')).toHaveLength(1);
    expect(textsOf(run.history).slice(0, 10)).toEqual(textsOf(talk(5)));
    // The next run may try again.
    const next = await run.resume('more');
    expect(summariesIn(next)).toHaveLength(1);
  });

  it('what helps each time may be done as often as it is needed', async () => {
    const many = Array.from({ length: 24 }, () => look);
    const run = await testShim(compaction, {
      config,
      tools: [results(100)],
      input: 'look',
      ...answers(SUMMARY, ...many, 'done'),
    });
    expect(run.output).toBe('done');
    expect(told(run, 'compaction').length).toBeGreaterThan(4);
    expect(told(run, 'compaction.skipped')).toEqual([]);
  });
});

describe('over HTTP', () => {
  const TOOLS = `
import { defineShim, defineTool, z } from 'shimline/shims';
export default defineShim({
  name: 'tools',
  prepareTurn(turn) {
    const parameters = z.object({ n: z.number().default(1) });
    turn.addTools([
      defineTool({ name: 'big', description: 'Big.', parameters, execute: ({ n }) => 'a word 🎉 '.repeat(n) }),
      defineTool({ name: 'gated', description: 'Asks.', parameters, needsApproval: true, execute: () => 'a word '.repeat(300) }),
    ]);
  },
});`;
  let model: ModelEndpoint;
  let server: ServerProcess;
  /** Replies to requests for a summary, and to all others, in order. */
  let summaries: Reply[];
  let replies: Reply[];
  const summarising = (body: string): boolean => body.includes('Write the summary.');
  const summaryRequests = (): number => model.requests.filter(({ rawBody }) => summarising(rawBody)).length;

  beforeAll(async () => {
    model = await ModelEndpoint.start();
    const shimsDir = temporaryFolder('shims-');
    writeFileSync(join(shimsDir, 'tools.mjs'), TOOLS);
    server = await ServerProcess.start({ env: { ...model.environment, MODEL_MAX_RETRIES: '0' }, shimsDir });
  });
  afterAll(async () => {
    await Promise.all([server.stop(), model.close()]);
  });
  beforeEach(() => {
    summaries = [];
    replies = [];
    model.requests.length = 0;
    model.contextLimitBytes = undefined;
    model.respondWith(
      ({ rawBody }) =>
        (summarising(rawBody) ? summaries : replies).shift() ?? { text: summarising(rawBody) ? 'SHORT' : 'ok' },
    );
  });

  async function save(config: JsonObject, id = 'anthropic/claude-sonnet-4-5'): Promise<void> {
    const shims = [{ use: 'tools' }, { use: 'compaction', config }];
    const { status } = await server.json('PUT', '/v1/agents/long', {
      model: id,
      instructions: 'You are a test.',
      shims,
    });
    expect([200, 201]).toContain(status);
  }
  const start = async (input: unknown): Promise<JsonObject> =>
    (await server.json('POST', '/v1/runs', { agent: 'long', input }, WAIT)).body;
  const resume = async (id: unknown, body: JsonObject, headers = {}): Promise<{ status: number; body: JsonObject }> =>
    server.json('POST', `/v1/runs/${String(id)}/resume`, body, headers);
  const historyOf = async (id: unknown): Promise<string> =>
    JSON.stringify((await server.json('GET', `/v1/runs/${String(id)}/state`)).body.history);
  const LIMIT = { triggerTokens: 600, keepTokens: 10 };

  /** A conversation of which a resume has to make a summary, and stands there. */
  async function standing(): Promise<{ id: unknown; open: () => void }> {
    await save(LIMIT);
    const run = await start(talk(2));
    expect(run.status).toBe('completed');
    const held = gate();
    summaries = [{ text: 'SHORT', gate: held.gate }];
    await resume(run.id, { input: `and then? ${LONG.repeat(2)}` });
    await waitFor(() => summaryRequests() === 1);
    return { id: run.id, open: held.open };
  }

  it('P04: another message is refused while a summary is made, and nothing is lost; the call is in usage and effects', async () => {
    const before = model.usage;
    const { id, open } = await standing();
    expect(await resume(id, { input: 'meanwhile' })).toMatchObject({ status: 409, body: { code: 'run_active' } });
    open();
    const run = await ended({ server }, id);
    expect(run.status).toBe('completed');
    const history = await historyOf(id);
    expect([history.includes('SHORT'), history.includes('and then?'), history.includes('question 0')]).toEqual([
      true,
      true,
      false,
    ]);
    const log = await logOf({ server }, id);
    expect(log.filter(({ type }) => type === 'model.started')).toHaveLength(2);
    expect(log.filter(({ type }) => type === 'custom.compaction')).toMatchObject([
      { shim: 'compaction', data: { trigger: 'tokens', threshold: 600 } },
    ]);
    expect(JSON.stringify(log)).not.toContain('Write the summary.');
    const effects = (await server.json('GET', `/v1/runs/${String(id)}/effects`)).body.data;
    expect(JSON.stringify(effects)).toContain('"purpose":"compaction"');
    const { input, output } = model.usage;
    expect(run.usage).toMatchObject({ inputTokens: input - before.input, outputTokens: output - before.output });
    expect(model.requests).toHaveLength(3);
    const state = (await server.json('GET', `/v1/runs/${String(id)}/state`)).body;
    expect(state.responses).toHaveLength(2);
  });

  it('P04: a cancel in the middle leaves the old history, which goes on', async () => {
    const { id } = await standing();
    const { body } = await server.json('DELETE', `/v1/runs/${String(id)}`, undefined, WAIT);
    expect(body.status).toBe('cancelled');
    const history = await historyOf(id);
    expect([history.includes('question 0'), history.includes('conversation-summary')]).toEqual([true, false]);
    const next = await resume(id, { input: 'go on' }, WAIT);
    expect(next.body).toMatchObject({ status: 'completed', output: 'ok' });
    expect(await historyOf(id)).toContain('SHORT');
  });

  it('P04: after kill -9 in the middle the history is the old one, and then the new one', async () => {
    const { id } = await standing();
    const held = gate();
    summaries = [{ text: 'SHORT AGAIN', gate: held.gate }];
    await server.kill9();
    await server.restart();
    await waitFor(() => summaryRequests() === 2);
    const old = await historyOf(id);
    expect([
      old.includes('question 0'),
      old.includes('answer 1'),
      old.includes('and then?'),
      old.includes('conversation-summary'),
    ]).toEqual([true, true, true, false]);
    held.open();
    expect(await ended({ server }, id)).toMatchObject({ status: 'completed', output: 'ok', recoveries: 1 });
    const now = await historyOf(id);
    expect([now.includes('question 0'), now.includes('SHORT AGAIN'), now.includes('and then?')]).toEqual([
      false,
      true,
      true,
    ]);
    expect(model.refusedRequests).toEqual([]);
  });

  it('P04 and R79a: a round that waits for approval is not compacted under it, and no summary is made when it is entered again', async () => {
    await save(LIMIT);
    replies = [{ toolCalls: [{ name: 'gated', arguments: {} }], usage: { input: 5_000 } }, { text: 'done' }];
    const run = await start([...talk(1), 'ask']);
    expect(run.status).toBe('waiting');
    const [{ id }] = run.interruptions as [{ id: string }];
    expect(summaryRequests()).toBe(0);
    const { body } = await resume(run.id, { decisions: [{ id, decision: 'approve' }] }, WAIT);
    expect(body).toMatchObject({ status: 'completed', output: 'done' });
    // It was too long from the first answer on: one summary, before the second model call.
    expect(model.requests.map(({ rawBody }) => summarising(rawBody))).toEqual([false, true, false]);
    expect(model.requests.at(-1)?.rawBody).toContain('tool_result');
  });

  it.each(['openai-compatible/m', 'openai/gpt-test', 'openai-chat/gpt-test', 'anthropic/claude-sonnet-4-5'])(
    'M16: %s says in mid-turn that a tool result is too much; it is compacted, and the run completes',
    async (id) => {
      await save({}, id);
      model.contextLimitBytes = 30_000;
      const big = (n: number): Reply => ({ toolCalls: [{ name: 'big', arguments: { n } }] });
      replies = [big(900), big(900), big(900), big(5_000), { text: 'done' }];
      const run = await start('fetch it all');
      expect(run, JSON.stringify(run.error)).toMatchObject({ status: 'completed', output: 'done' });
      const refused = model.refusedRequests.length;
      expect([refused > 0, refused <= 3]).toEqual([true, true]);
      const log = await logOf({ server }, run.id);
      expect(log.filter(({ type }) => type === 'custom.compaction').length).toBe(refused);
      expect(model.requests.at(-1)?.rawBody).toContain('fetch it all');
    },
  );

  it('P02: a last message that is bigger than the window ends in one clear error, and the history is whole', async () => {
    await save({});
    model.contextLimitBytes = 3_000;
    const run = await start(LONG.repeat(10));
    expect(run).toMatchObject({ status: 'failed', error: { code: 'context_exceeded' } });
    expect([model.requests.length, (await historyOf(run.id)).includes(LONG)]).toEqual([1, true]);
    model.contextLimitBytes = undefined;
    expect((await resume(run.id, { input: 'again' }, WAIT)).body).toMatchObject({ status: 'completed', output: 'ok' });
  });

  it('a bad config is a 422 that names the field', async () => {
    const shims = [{ use: 'compaction', config: { triggerRatio: 2 } }];
    const { status, body } = await server.json('PUT', '/v1/agents/bad', {
      model: 'anthropic/x',
      instructions: '',
      shims,
    });
    expect([status, JSON.stringify(body.errors).includes('/shims/0/config/triggerRatio')]).toEqual([422, true]);
  });
});
