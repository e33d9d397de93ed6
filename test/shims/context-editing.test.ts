import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import contextEditing from '../../shims/context-editing.js';
import { defineShim, defineTool, type HistoryItem, toolFailure, z } from '../../src/shims.js';
import { type RecordedRequest, type ScriptedAnswer, testShim } from '../../src/testing.js';
import { putAgent, type Seam, startSeam } from '../rules/seam.js';
import { calling, callOf, ended, gate, logOf, resume, runToEnd, startRun } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';

const NOTE = '[The old result of this call was cleared to save context. Call the tool again if you need it.]';
/** About a thousand tokens. */
const long = (n: number): string => `${n}:`.padEnd(4000, 'x');
let number = 0;
const named = (name: string, execute: () => unknown): ReturnType<typeof defineTool> =>
  defineTool({ name, description: '', parameters: z.object({}), execute });
const tools = [
  named('read', () => long((number += 1))),
  named('keepsake', () => long((number += 1))),
  named('short', () => 'short'),
  named('broken', () => toolFailure(long((number += 1)))),
  named('picture', () => [
    { type: 'text', text: long((number += 1)) },
    { type: 'image', image: 'aGk=', mediaType: 'image/png' },
  ]),
];
const call = (...names: string[]): ScriptedAnswer => ({ toolCalls: names.map((toolName) => ({ toolName })) });
const reads = (count: number): ScriptedAnswer[] => Array.from({ length: count }, () => call('read'));

/** Of each result in a request: the number of the call that gave it, or what stands in its place. */
function shown(request: RecordedRequest | undefined): unknown[] {
  return (request?.prompt ?? []).flatMap((message) =>
    message.role !== 'tool'
      ? []
      : message.content.flatMap((part) => {
          if (part.type !== 'tool-result' || !('value' in part.output)) return [];
          const { value } = part.output;
          const text = typeof value === 'string' ? value : JSON.stringify(value);
          return [text === NOTE ? 'cleared' : /^\d+:/.test(text) ? Number.parseInt(text, 10) : text];
        }),
  );
}

/** How many requests do not begin with the whole of the one before. */
function changedPrefixes(requests: readonly RecordedRequest[]): number {
  return requests.filter(({ prompt }, index) => {
    const before = requests[index - 1]?.prompt ?? [];
    return JSON.stringify(prompt.slice(0, before.length)) !== JSON.stringify(before);
  }).length;
}

const config = { triggerTokens: 5_000, keep: 2, clearAtLeastTokens: 2_000 };

describe('context-editing', () => {
  it('R47 clears old results for the call only: the history keeps them', async () => {
    number = 0;
    const run = await testShim(contextEditing, { config, tools, script: [...reads(6), 'done'] });
    expect(run.requests.map(shown)).toEqual([
      [],
      [1],
      [1, 2],
      [1, 2, 3],
      [1, 2, 3, 4],
      ['cleared', 'cleared', 'cleared', 4, 5],
      ['cleared', 'cleared', 'cleared', 4, 5, 6],
    ]);
    expect(JSON.stringify(run.history)).not.toContain('cleared');
    expect(run.events.filter(({ type }) => type === 'custom.context.cleared').map(({ data }) => data)).toEqual([
      { results: 3, tokens: 3 * (1000 - Math.ceil(NOTE.length / 4)) },
    ]);
    expect(run.effects.filter(({ callback }) => callback === 'transformMessages').length).toBeGreaterThan(0);
  });

  it('is stable: the beginning of the request changes rarely, also over runs', async () => {
    number = 0;
    const run = await testShim(contextEditing, { config, tools, script: [...reads(10), 'done'] });
    const next = await run.resume('more', { script: [...reads(10), 'done'] });
    const requests = [...run.requests, ...next.requests];
    expect(requests).toHaveLength(22);
    const cleared = [...run.events, ...next.events].filter(({ type }) => type === 'custom.context.cleared');
    expect(changedPrefixes(requests)).toBe(cleared.length);
    // Each time frees three results and begins when about five are there.
    expect(cleared.length).toBe(6);
    expect(shown(requests.at(-1)).slice(-2)).toEqual([19, 20]);
  });

  it('keeps the last ones, and what the model has not seen yet', async () => {
    number = 0;
    const run = await testShim(contextEditing, {
      config: { triggerTokens: 1_500, keep: 0, clearAtLeastTokens: 0 },
      tools,
      script: [call('read', 'read', 'read'), call('read'), 'done'],
    });
    expect(run.requests.map(shown)).toEqual([[], [1, 2, 3], ['cleared', 'cleared', 'cleared', 4]]);
    number = 0;
    const kept = await testShim(contextEditing, {
      config: { triggerTokens: 1_500, keep: 9, clearAtLeastTokens: 0 },
      tools,
      script: [...reads(4), 'done'],
    });
    expect(shown(kept.requests.at(-1))).toEqual([1, 2, 3, 4]);
  });

  it('clears nothing where it would free too little', async () => {
    number = 0;
    const run = await testShim(contextEditing, {
      config: { triggerTokens: 1_500, keep: 1, clearAtLeastTokens: 2_500 },
      tools,
      script: [...reads(5), 'done'],
    });
    expect(run.requests.map(shown).slice(3)).toEqual([
      [1, 2, 3],
      ['cleared', 'cleared', 'cleared', 4],
      ['cleared', 'cleared', 'cleared', 4, 5],
    ]);
  });

  it('never clears the results of excluded tools, nor what is shorter than the note; a failure stays one', async () => {
    number = 0;
    const run = await testShim(contextEditing, {
      config: { triggerTokens: 3_000, keep: 1, clearAtLeastTokens: 0, excludeTools: ['keepsake'] },
      tools,
      script: [call('keepsake', 'short', 'broken', 'picture'), call('keepsake'), call('read'), 'done'],
    });
    expect(shown(run.requests[3])).toEqual([1, 'short', 'cleared', 'cleared', 4, 5]);
    const results = (run.requests[3]?.prompt ?? []).flatMap(({ role, content }) => (role === 'tool' ? content : []));
    expect(results.map((part) => (part.type === 'tool-result' ? part.output.type : ''))).toEqual([
      'text',
      'text',
      'error-text',
      'text',
      'text',
      'text',
    ]);
  });

  it('takes another note, and counts letters of more than a byte for more', async () => {
    number = 0;
    const wide = named('wide', () => '漢'.repeat(2_000));
    const run = await testShim(contextEditing, {
      config: { triggerTokens: 2_900, keep: 0, clearAtLeastTokens: 0, note: 'gone' },
      tools: [wide],
      script: [call('wide'), call('wide'), 'done'],
    });
    expect(run.requests.map((request) => shown(request).map((text) => String(text).slice(0, 4)))).toEqual([
      [],
      ['漢漢漢漢'],
      ['gone', '漢漢漢漢'],
    ]);
  });

  it('failure P01 keeps pairs, what was not seen yet, and the beginning, whatever the rounds are', async () => {
    const sizes = fc.array(fc.array(fc.integer({ min: 0, max: 6000 }), { minLength: 1, maxLength: 4 }), {
      minLength: 1,
      maxLength: 10,
    });
    const settings = fc.record({
      triggerTokens: fc.integer({ min: 1, max: 8000 }),
      keep: fc.integer({ min: 0, max: 5 }),
      clearAtLeastTokens: fc.integer({ min: 0, max: 4000 }),
    });
    await fc.assert(
      fc.asyncProperty(sizes, settings, async (rounds, given) => {
        const sized = defineTool({
          name: 'sized',
          description: '',
          parameters: z.object({ size: z.int() }),
          execute: ({ size }) => 'x'.repeat(size),
        });
        const script = rounds.map((round) => ({
          toolCalls: round.map((size) => ({ toolName: 'sized', input: { size } })),
        }));
        const run = await testShim(contextEditing, { config: given, tools: [sized], script: [...script, 'done'] });
        expect(run.output).toBe('done');
        const cleared = run.events.filter(({ type }) => type === 'custom.context.cleared');
        expect(changedPrefixes(run.requests)).toBe(cleared.length);
        for (const [index, request] of run.requests.entries()) {
          const parts: readonly { readonly type: string; readonly toolCallId?: string }[] = request.prompt.flatMap(
            (message) => (message.role === 'assistant' || message.role === 'tool' ? [...message.content] : []),
          );
          const ids = (type: string): unknown[] =>
            parts.filter((part) => part.type === type).map((part) => part.toolCallId);
          expect(ids('tool-result')).toEqual(ids('tool-call'));
          const unseen = rounds[index - 1] ?? [];
          const lengths = shown(request).map((value) => String(value));
          expect(lengths.slice(lengths.length - unseen.length)).toEqual(unseen.map((size) => 'x'.repeat(size)));
        }
        expect(JSON.stringify(run.history)).not.toContain(NOTE);
        for (const { data } of cleared)
          expect((data as JsonObject).tokens).toBeGreaterThanOrEqual(given.clearAtLeastTokens);
      }),
      { numRuns: 40 },
    );
  });

  it('failure P01 begins anew where the history was replaced, and keeps pairs whatever it holds', async () => {
    number = 0;
    const forget = defineShim({
      name: 'forget',
      prepareTurn(turn) {
        if (turn.turnCount !== 7) return;
        const { history } = turn.runState;
        turn.replaceHistory(['It went on.', ...history.slice(-2)]);
      },
    });
    const run = await testShim(contextEditing, { config, tools, after: [forget], script: [...reads(8), 'done'] });
    expect(run.requests.map(shown).slice(5)).toEqual([['cleared', 'cleared', 'cleared', 4, 5], [6], [6, 7], [6, 7, 8]]);
    expect(run.state).toEqual({ 'context-editing': { upTo: null }, 'context-editing:version': 1 });
    const strays: HistoryItem[] = [
      {
        role: 'tool',
        content: [
          { type: 'tool-result', toolCallId: 'x', toolName: 'read', output: { type: 'json', value: { a: long(1) } } },
        ],
      },
      { role: 'assistant', content: 'And now?' },
      'hello',
    ];
    const odd = await testShim(contextEditing, {
      config: { triggerTokens: 500, keep: 0, clearAtLeastTokens: 0 },
      input: strays,
    });
    expect(odd.output).toBe('ok');
  });
});

describe('in the server', () => {
  let seam: Seam;
  const reader = `let n = 0;
  export default defineShim({
    name: 'reader',
    prepareTurn: (turn) => turn.addTools([tool('read', () => \`\${(n += 1)}:\`.padEnd(4000, 'x'), { onCrash: 'retry' })]),
  });`;
  beforeAll(async () => {
    seam = await startSeam({ reader });
    for (const model of ['openai-compatible/m', 'anthropic/claude-sonnet-4-5', 'openai/gpt-5'])
      await putAgent(seam, `of-${model.split('/')[0] ?? ''}`, {
        model,
        shims: [{ use: 'context-editing', config }, 'reader'],
      });
  });
  afterEach(() => {
    expect(seam.model.refusedRequests).toEqual([]);
    expect(seam.model.unusedReplies).toBe(0);
  });
  afterAll(async () => {
    await seam.close();
  });
  const lengths = (): number[] => toolResultsOf(seam.model.requests.at(-1)!).map(({ text }) => text.length);
  const round = calling(callOf('read'), callOf('read'));

  it.each([['of-openai-compatible'], ['of-anthropic'], ['of-openai']])(
    'failure P01 %s: what is sent is valid, and the state keeps everything',
    async (agent) => {
      seam.model.script(round, round, round, round, { text: 'done' });
      const run = await runToEnd(seam, { agent });
      expect(run).toMatchObject({ status: 'completed', output: 'done' });
      expect(lengths()).toEqual([...Array<number>(4).fill(NOTE.length), ...Array<number>(4).fill(4000)]);
      const { body } = await seam.server.json('GET', `/v1/runs/${String(run.id)}/state`);
      expect(JSON.stringify(body.history)).not.toContain(NOTE);
      seam.model.script({ text: 'again' });
      await resume(seam, run.id, { input: 'more' });
      expect(lengths()).toEqual([...Array<number>(4).fill(NOTE.length), ...Array<number>(4).fill(4000)]);
    },
  );

  it('failure K01 after kill -9 in a model call the same request is sent again', async () => {
    const held = gate();
    seam.model.script(round, round, round, { text: 'lost', gate: held.gate });
    const { body } = await startRun(seam, { agent: 'of-openai-compatible' });
    await waitFor(() => seam.model.unusedReplies === 0 && seam.model.openRequests === 1);
    const sent = seam.model.requests.at(-1)?.rawBody;
    await seam.server.kill9();
    held.open();
    seam.model.script({ text: 'done' });
    await seam.server.restart();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done', recoveries: 1 });
    expect(seam.model.requests.at(-1)?.rawBody).toBe(sent);
    const told = (await logOf(seam, body.id)).filter(({ type }) => type === 'custom.context.cleared');
    expect(told.map(({ data }) => (data as JsonObject).results)).toEqual([4, 4]);
  });
});
