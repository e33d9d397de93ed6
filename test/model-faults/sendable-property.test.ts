import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import type { LanguageModelV3 } from '@ai-sdk/provider';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Message } from '../../src/agent/messages.js';
import type { PromptRules } from '../../src/agent/model.js';
import { assertPairing, BrokenPairingError } from '../../src/agent/run-state.js';
import { sendable, toPrompt } from '../../src/agent/sendable.js';
import {
  ANTHROPIC_RULES,
  CHAT_RULES,
  COMPATIBLE_RULES,
  googleRules,
  RESPONSES_RULES,
} from '../../src/models/prompt-rules.js';
import { createDialects, type DialectName } from '../support/dialects.js';
import type { JsonObject } from '../support/json-path.js';
import { loneSurrogateAt, RequestRefused } from '../support/strict-checks.js';

/** Over all providers. */
const CASES = 10_000;

// What may stand in a history: what was meant to, and what should not have got there.

const text = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom('hello', 'a\nb ', 'Grüße 🎉') },
  { weight: 3, arbitrary: fc.constantFrom('', ' ', '\n\t', 'half \ud83d', '\ude00', '\u0000') },
);
const id = fc.constantFrom('c1', 'c2', 'c3', 'call_0', '', ' ', 'a b:c', 'x'.repeat(120), 'ü');
const toolName = fc.constantFrom('echo', 'echo', 'functions.echo', '', 'n'.repeat(80));
const options = fc.option(
  fc.constantFrom(
    { anthropic: { signature: 'sig' } },
    { anthropic: { signature: '' } },
    { openai: { itemId: 'rs_1', reasoningEncryptedContent: 'enc' } },
    { openai: { itemId: 'rs_1', reasoningEncryptedContent: null } },
    { google: { thoughtSignature: 'g' } },
    { openaiCompatible: { own: 'x' }, anthropic: { cacheControl: { type: 'ephemeral' } } },
  ),
  { nil: undefined },
);
const mediaType = fc.constantFrom(
  'image/png',
  'image/*',
  'image/bmp',
  'application/pdf',
  'audio/ogg',
  'audio/wav',
  'text/plain',
  'x/y',
);
const data = fc.constantFrom('QUJD', 'data:image/png;base64,QUJD', 'https://example.com/a.png');
const json = fc.constantFrom({}, { x: 1 }, { deep: { s: '\ud800' } }, [1], 'text', null, 3);

const withOptions = (part: fc.Arbitrary<object>): fc.Arbitrary<object> =>
  fc.tuple(part, options).map(([each, given]) => (given === undefined ? each : { ...each, providerOptions: given }));
const textPart = text.map((value) => ({ type: 'text', text: value }));
const filePart = fc.record({ type: fc.constant('file'), data, mediaType });
const userMessage = fc.oneof(
  text.map((content) => ({ role: 'user', content })),
  fc
    .array(withOptions(fc.oneof(textPart, filePart, fc.record({ type: fc.constant('image'), image: data }))), {
      minLength: 1,
      maxLength: 3,
    })
    .map((content) => ({ role: 'user', content })),
);
const callPart = fc.record({ type: fc.constant('tool-call'), toolCallId: id, toolName, input: json });
const assistantMessage = fc.oneof(
  text.map((content) => ({ role: 'assistant', content })),
  fc
    .array(
      withOptions(
        fc.oneof(
          { weight: 2, arbitrary: textPart },
          { weight: 2, arbitrary: text.map((value) => ({ type: 'reasoning', text: value })) },
          { weight: 4, arbitrary: callPart },
          { weight: 1, arbitrary: callPart.map((part) => ({ ...part, providerExecuted: true })) },
          { weight: 1, arbitrary: filePart },
        ),
      ),
      { maxLength: 8 },
    )
    .map((content) => ({ role: 'assistant', content })),
);
const output = fc.oneof(
  text.map((value) => ({ type: 'text', value })),
  text.map((value) => ({ type: 'error-text', value })),
  json.map((value) => ({ type: 'json', value })),
  fc
    .array(
      fc.oneof(
        textPart,
        fc.record({ type: fc.constant('image-data'), data: fc.constant('QUJD'), mediaType }),
        fc.record({ type: fc.constant('file-data'), data: fc.constant('QUJD'), mediaType }),
      ),
      { maxLength: 3 },
    )
    .map((value) => ({ type: 'content', value })),
);
const stray = fc
  .array(fc.record({ type: fc.constant('tool-result'), toolCallId: id, toolName, output }), { maxLength: 3 })
  .map((content) => ({ role: 'tool', content }));
const system = text.map((content) => ({ role: 'system', content }));

/** What becomes of the calls of an answer: all answered, some of them (a cancel, a crash), none, in another order, or twice. */
const fate = fc.record({
  outputs: fc.array(output, { minLength: 8, maxLength: 8 }),
  answered: fc.array(fc.boolean(), { minLength: 8, maxLength: 8 }),
  how: fc.constantFrom('all', 'all', 'all', 'some', 'none', 'reversed', 'twice', 'split', 'late'),
});
const turn = fc.tuple(
  fc.oneof({ weight: 4, arbitrary: userMessage }, { weight: 1, arbitrary: system }, { weight: 1, arbitrary: stray }),
  assistantMessage,
  fate,
);

interface Fate {
  readonly outputs: readonly object[];
  readonly answered: readonly boolean[];
  readonly how: string;
}

function resultsFor(message: object, { outputs, answered, how }: Fate): object[] {
  const { content } = message as { readonly content: unknown };
  const calls = Array.isArray(content)
    ? (content as { type: string; toolCallId: string; toolName: string }[]).filter(({ type }) => type === 'tool-call')
    : [];
  const parts = calls
    .map((each, index) => ({
      type: 'tool-result',
      toolCallId: each.toolCallId,
      toolName: each.toolName,
      output: outputs[index % 8],
    }))
    .filter((_, index) => how !== 'none' && (how !== 'some' || answered[index % 8] === true));
  if (parts.length === 0) return [];
  if (how === 'reversed') return [{ role: 'tool', content: parts.toReversed() }];
  if (how === 'twice') return [{ role: 'tool', content: [...parts, ...parts] }];
  if (how === 'split') return parts.map((part) => ({ role: 'tool', content: [part] }));
  if (how === 'late')
    return [
      { role: 'user', content: 'meanwhile' },
      { role: 'tool', content: parts },
    ];
  return [{ role: 'tool', content: parts }];
}

/** Random conversations, out of which random compactions cut random stretches, by position and without looking. */
const history = fc
  .tuple(
    fc.option(system, { nil: undefined }),
    fc.array(turn, { minLength: 1, maxLength: 7 }),
    fc.array(fc.tuple(fc.nat(25), fc.nat(6)), { maxLength: 2 }),
  )
  .map(([first, turns, cuts]) => {
    const items: object[] = first === undefined ? [] : [first];
    for (const [opening, answer, how] of turns) items.push(opening, answer, ...resultsFor(answer, how));
    for (const [at, length] of cuts)
      items.splice(at % items.length, length, { role: 'user', content: 'Summary of what was before.' });
    return [...items, { role: 'user', content: 'go on' }] as unknown as Message[];
  });

// The requests as the packages write them, without sending them.

class Captured extends Error {}

type Send = (prompt: ReturnType<typeof toPrompt>) => Promise<JsonObject>;

function sender(make: (fetch: typeof globalThis.fetch) => LanguageModelV3): Send {
  let body: JsonObject = {};
  const model = make(async (_url, init) => {
    body = JSON.parse(init?.body as string) as JsonObject;
    throw new Captured();
  });
  const tools = [
    { type: 'function' as const, name: 'echo', description: 'x', inputSchema: { type: 'object' as const } },
  ];
  return async (prompt) => {
    body = {};
    try {
      await model.doStream({ prompt, tools, providerOptions: { openai: { store: false } } });
    } catch (error) {
      if (!(error instanceof Captured)) throw error;
    }
    return body;
  };
}

const providers: readonly {
  readonly name: string;
  readonly dialect: DialectName;
  readonly rules: PromptRules;
  readonly send: Send;
}[] = [
  {
    name: 'openai',
    dialect: 'openai-responses',
    rules: RESPONSES_RULES,
    send: sender((fetch) => createOpenAI({ apiKey: 'k', fetch }).responses('gpt-test')),
  },
  {
    name: 'openai-chat',
    dialect: 'openai-chat',
    rules: CHAT_RULES,
    send: sender((fetch) => createOpenAI({ apiKey: 'k', fetch }).chat('gpt-test')),
  },
  {
    name: 'openai-compatible',
    dialect: 'openai-chat',
    rules: COMPATIBLE_RULES,
    send: sender((fetch) =>
      createOpenAICompatible({ name: 'openaiCompatible', baseURL: 'http://localhost/v1', fetch }).chatModel('m'),
    ),
  },
  {
    name: 'anthropic',
    dialect: 'anthropic',
    rules: ANTHROPIC_RULES,
    send: sender((fetch) => createAnthropic({ apiKey: 'k', fetch }).languageModel('claude-sonnet-4-5')),
  },
  {
    name: 'google',
    dialect: 'google',
    rules: googleRules('gemini-3-pro', () => ({})),
    send: sender((fetch) => createGoogleGenerativeAI({ apiKey: 'k', fetch }).languageModel('gemini-3-pro')),
  },
  {
    name: 'an older google',
    dialect: 'google',
    rules: googleRules('gemini-2.5-flash', () => ({})),
    send: sender((fetch) => createGoogleGenerativeAI({ apiKey: 'k', fetch }).languageModel('gemini-2.5-flash')),
  },
];

describe('P01: whatever the history, what is sent is taken', () => {
  it.each(providers)('by $name', { timeout: 120_000 }, async ({ dialect, rules, send }) => {
    const judge = createDialects()[dialect];
    const property = fc.asyncProperty(history, async (messages) => {
      const first = sendable(messages, rules);
      const body = await send(toPrompt(first.messages));
      expect(loneSurrogateAt(body)).toBeUndefined();
      try {
        judge.check({ body, headers: { 'anthropic-version': '2023-06-01' }, path: '/' });
      } catch (error) {
        throw error instanceof RequestRefused ? new Error(`${error.message}\n${JSON.stringify(body)}`) : error;
      }
      // Once is enough: what was mended needs no mending, and comes out the same.
      const again = sendable(first.messages, rules);
      expect(again.repairs).toEqual([]);
      expect(again.messages).toEqual(first.messages);
      // What was said last is never lost.
      expect(JSON.stringify(body)).toContain('go on');
    });
    await fc.assert(property, { numRuns: Math.ceil(CASES / providers.length) });
  });
});

describe('P01: a compaction', () => {
  const pairs = (messages: readonly Message[]): readonly string[] =>
    sendable(messages).repairs.filter((repair) => /no result|without its call/.test(repair));

  it('that separates a call from its result is refused, and one that is not refused needs no repair', () => {
    const sound = fc
      .array(fc.tuple(fc.integer({ min: 0, max: 8 }), fc.boolean()), { minLength: 1, maxLength: 12 })
      .map((rounds) =>
        rounds.flatMap(([calls, asks], round): Message[] => {
          const ids = Array.from({ length: calls }, (_, index) => `c${round}_${index}`);
          const asked = ids.map((toolCallId) => ({
            type: 'tool-call' as const,
            toolCallId,
            toolName: 'echo',
            input: {},
          }));
          const answered = ids.map((toolCallId) => ({
            type: 'tool-result' as const,
            toolCallId,
            toolName: 'echo',
            output: { type: 'text' as const, value: 'ok' },
          }));
          const question: Message[] = asks ? [{ role: 'user', content: `q${round}` }] : [];
          if (calls === 0) return [...question, { role: 'assistant', content: `a${round}` }];
          return [...question, { role: 'assistant', content: asked }, { role: 'tool', content: answered }];
        }),
      );
    fc.assert(
      fc.property(sound, (messages) => {
        expect(pairs(messages)).toEqual([]);
        for (let at = 0; at <= messages.length; at += 1) {
          const cut: Message[] = [{ role: 'user', content: 'Summary.' }, ...messages.slice(at)];
          const separates = messages[at]?.role === 'tool';
          let refused = false;
          try {
            assertPairing(cut, new Set());
          } catch (error) {
            expect(error).toBeInstanceOf(BrokenPairingError);
            refused = true;
          }
          expect([at, refused]).toEqual([at, separates]);
          expect(pairs(cut).length > 0).toBe(separates);
        }
      }),
      { numRuns: 300 },
    );
  });
});
