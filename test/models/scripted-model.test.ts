import type { LanguageModelV3Prompt } from '@ai-sdk/provider';
import { describe, expect, it } from 'vitest';
import { ModelRegistry } from '../../src/models/model-registry.js';
import { type CallResult, callModel, ECHO_TOOL } from './model-call.js';

const registry = new ModelRegistry({ idleTimeoutMs: 1_000 });
const model = registry.resolve('scripted/demo');
const NOTE_TOOL = { ...ECHO_TOOL, name: 'note' };

const user = (text: string): LanguageModelV3Prompt[number] => ({ role: 'user', content: [{ type: 'text', text }] });
const ask = (prompt: LanguageModelV3Prompt, tools = [ECHO_TOOL, NOTE_TOOL]): Promise<CallResult> =>
  callModel(model, { prompt, tools });

/** Plays a whole run, answering every call, and gives the turns as short texts. */
async function play(
  text: string,
  before: LanguageModelV3Prompt = [],
): Promise<{ turns: string[]; prompt: LanguageModelV3Prompt }> {
  const prompt: LanguageModelV3Prompt = [...before, user(text)];
  const turns: string[] = [];
  for (let n = 0; n < 20; n += 1) {
    const { calls, text: said, reasoning, failure } = await ask(prompt);
    if (failure !== undefined) throw failure;
    const called = calls.map((call) => `${call.name}${call.input}`).join(' + ');
    turns.push([reasoning && `(${reasoning})`, said, called].filter((piece) => piece !== '').join(' '));
    if (calls.length === 0) return { turns, prompt };
    const content = calls.map((call) => ({
      type: 'tool-call' as const,
      toolCallId: call.id,
      toolName: call.name,
      input: call.input,
    }));
    const results = calls.map((call) => ({
      type: 'tool-result' as const,
      toolCallId: call.id,
      toolName: call.name,
      output: { type: 'text' as const, value: 'r' },
    }));
    prompt.push({ role: 'assistant', content }, { role: 'tool', content: results });
  }
  throw new Error('the script did not end');
}

describe('scripted/demo', () => {
  it('follows lines turn by turn', async () => {
    const { turns } = await play(
      'think First.\nsay On it.\ncall echo {"x":1}\nparallel [{"tool":"echo","args":{"x":2}},{"tool":"note"}]\nsay All done.',
    );
    expect(turns).toEqual(['(First.) On it. echo{"x":1}', 'echo{"x":2} + note{}', 'All done.']);
  });

  it('counts calls with tools=K, and tokens', async () => {
    expect((await play('please tools=2 tokens=3')).turns).toEqual(['echo{"x":1}', 'echo{"x":2}', 'tok tok tok ']);
  });

  it('takes the first tool where there is no echo', async () => {
    const { calls } = await ask([user('tools=1')], [NOTE_TOOL, { ...ECHO_TOOL, name: 'other' }]);
    expect(calls.map((call) => call.name)).toEqual(['note']);
  });

  it('passes broken arguments on as they are', async () => {
    expect((await ask([user('call echo {"x":')])).calls.map((call) => call.input)).toEqual(['{"x":']);
  });

  it('goes by the last message with directives, and ids never repeat in a conversation', async () => {
    const first = await play('tools=2');
    const before: LanguageModelV3Prompt = [
      ...first.prompt,
      { role: 'assistant', content: [{ type: 'text', text: 'Done.' }] },
    ];
    const second = await play('call note {}\nsay Again.', before);
    expect(second.turns).toEqual(['note{}', 'Again.']);
    const ids = second.prompt
      .flatMap((message) => (message.role === 'assistant' ? message.content : []))
      .flatMap((part) => (part.type === 'tool-call' ? [part.toolCallId] : []));
    expect(new Set(ids).size).toBe(3);
    expect((await ask([...second.prompt, user('thanks')])).text).toBe('Again.');
  });

  it('is the same every time, from the prompt alone', async () => {
    const { prompt } = await play('tools=2 tokens=2');
    const [one, two] = [await ask(prompt), await ask(prompt)];
    expect(one.parts).toEqual(two.parts);
  });

  it('says what it can do when nothing is asked', async () => {
    const { text, parts, finish } = await ask([user('call me maybe')]);
    for (const word of [
      'say ',
      'call echo',
      'parallel',
      'think',
      'tools=',
      'tokens=',
      'delay=',
      'tokdelay=',
      'fail=',
      'finish=',
      'note',
    ]) {
      expect(text).toContain(word);
    }
    expect(parts.filter((part) => part.type === 'text-delta').length).toBeGreaterThan(20);
    expect(finish).toEqual({ unified: 'stop', raw: 'stop' });
  });

  it('ends as asked', async () => {
    expect((await ask([user('tokens=2 finish=length')])).finish?.unified).toBe('length');
    expect((await ask([user('finish=content-filter')])).finish?.unified).toBe('content-filter');
  });

  it('counts four characters as a token', async () => {
    const { usage } = await ask([{ role: 'system', content: '12345678' }, user('tokens=5')]);
    expect(usage?.inputTokens.total).toBe(4);
    expect(usage?.outputTokens).toEqual({ total: 5, text: 5, reasoning: 0 });
  });

  it.each([
    ['fail=429', { code: 'model_error', retryable: true, retryAfterMs: 100 }],
    ['fail=500', { code: 'model_error', retryable: true }],
    ['fail=401', { code: 'model_error', retryable: false }],
    ['fail=cut tokens=10', { code: 'model_stream_cut', retryable: true }],
  ])('%s: the first call fails, its repetition does not, and again for the next run', async (text, failure) => {
    for (let run = 0; run < 2; run += 1) {
      expect((await ask([user(text)])).failure).toMatchObject(failure);
      expect((await ask([user(text)])).failure).toBeUndefined();
    }
  });

  it('a cut answer has shown something', async () => {
    expect((await ask([user('fail=cut tokens=8 now')])).text).toMatch(/^(?:tok )+$/);
  });

  it.each(['delay=60000 tokens=1', 'tokdelay=60000 tokens=3'])('obeys an abort at once during %s', async (text) => {
    const abort = new AbortController();
    const at = performance.now();
    setTimeout(() => abort.abort(new Error('stop')), 30);
    const { failure } = await callModel(model, { prompt: [user(text)], abortSignal: abort.signal });
    expect(failure?.message).toBe('stop');
    expect(performance.now() - at).toBeLessThan(1_000);
  });

  it('answers whole as well', async () => {
    const { content, finishReason } = await model.languageModel.doGenerate({ prompt: [user('think Hm.\nsay Yes.')] });
    expect(content).toEqual([
      { type: 'reasoning', text: 'Hm.' },
      { type: 'text', text: 'Yes.' },
    ]);
    expect(finishReason.unified).toBe('stop');
  });
});
