import { describe, expect, it } from 'vitest';
import type { Message, ToolResultOutput } from '../../src/agent/messages.js';
import { sendable } from '../../src/agent/sendable.js';
import { ANTHROPIC_RULES, CHAT_RULES, COMPATIBLE_RULES, RESPONSES_RULES } from '../../src/models/prompt-rules.js';

const user = (content: string): Message => ({ role: 'user', content });
const call = (toolCallId: string, toolName = 'echo', input: unknown = {}) =>
  ({ type: 'tool-call', toolCallId, toolName, input: input as never }) as const;
const assistant = (...content: readonly object[]): Message => ({ role: 'assistant', content }) as Message;
const said = (text: string): object => ({ type: 'text', text });
const result = (toolCallId: string, output: ToolResultOutput = { type: 'text', value: 'ok' }) =>
  ({ type: 'tool-result', toolCallId, toolName: 'echo', output }) as const;
const results = (...content: readonly ReturnType<typeof result>[]): Message => ({
  role: 'tool',
  content: [...content],
});

const INTERRUPTED: ToolResultOutput = {
  type: 'error-text',
  value: 'The call was interrupted before it gave a result; whether it had an effect is not known.',
};

describe('sendable, one kind of damage after the other', () => {
  it('leaves a sound history as it is, object for object', () => {
    const history = [user('a'), assistant(said('b'), call('c1')), results(result('c1')), assistant(said('d'))];
    const { messages, repairs } = sendable(history);
    expect(repairs).toEqual([]);
    expect(messages).toEqual(history);
    expect([messages[0] === history[0], messages[1] === history[1], messages[3] === history[3]]).toEqual([
      true,
      true,
      true,
    ]);
  });

  it('a call without a result is closed as interrupted, right after it', () => {
    const { messages, repairs } = sendable([
      user('a'),
      assistant(call('c1'), call('c2')),
      results(result('c2')),
      user('b'),
    ]);
    expect(messages).toEqual([
      user('a'),
      assistant(call('c1'), call('c2')),
      results(result('c1', INTERRUPTED), result('c2')),
      user('b'),
    ]);
    expect(repairs).toEqual(['tool call c1 had no result; it was closed as interrupted']);
  });

  it('a result without its call is left out, beside others and alone', () => {
    const { messages, repairs } = sendable([
      user('a'),
      results(result('x')),
      assistant(call('c1')),
      results(result('c1'), result('y')),
    ]);
    expect(messages).toEqual([user('a'), assistant(call('c1')), results(result('c1'))]);
    expect(repairs).toEqual([
      'a tool result without its call was left out (x)',
      'a tool result without its call was left out (y)',
    ]);
  });

  it('a result that a user message came before is closed first, and left out where it stands', () => {
    const { messages } = sendable([user('a'), assistant(call('c1')), user('b'), results(result('c1'))]);
    expect(messages).toEqual([user('a'), assistant(call('c1')), results(result('c1', INTERRUPTED)), user('b')]);
  });

  it('results in several messages and in another order are put into one, in the order of the calls', () => {
    const { messages } = sendable([
      user('a'),
      assistant(call('c1'), call('c2')),
      results(result('c2')),
      results(result('c1')),
    ]);
    expect(messages).toEqual([user('a'), assistant(call('c1'), call('c2')), results(result('c1'), result('c2'))]);
  });

  it('a repeated id is renamed in call and result, in one message and over turns', () => {
    const two = { type: 'text', value: 'two' } as const;
    const { messages, repairs } = sendable([
      user('a'),
      assistant(call('c'), call('c')),
      results(result('c'), result('c', two)),
      assistant(call('c')),
      results(result('c')),
    ]);
    expect(messages.slice(1)).toEqual([
      assistant(call('c'), call('c_2')),
      results(result('c'), result('c_2', two)),
      assistant(call('c_3')),
      results(result('c_3')),
    ]);
    expect(repairs).toEqual(['tool call id "c" was sent as "c_2"', 'tool call id "c" was sent as "c_3"']);
  });

  it.each(['', ' ', 'functions.echo : 0', 'x'.repeat(500), 'ü'])(
    'the id %j is sent in letters and a length that all take',
    (id) => {
      const { messages } = sendable([user('a'), assistant(call(id)), results(result(id))]);
      const [, asked, answered] = messages;
      const sent = (asked?.content as { toolCallId: string }[])[0]?.toolCallId ?? '';
      expect(sent).toMatch(/^[a-zA-Z0-9_-]{1,40}$/);
      expect((answered?.content as { toolCallId: string }[])[0]?.toolCallId).toBe(sent);
    },
  );

  it('a name that no provider takes is sent in letters that all take', () => {
    const { messages, repairs } = sendable([user('a'), assistant(call('c1', 'functions.echo')), results(result('c1'))]);
    expect(messages[1]).toEqual(assistant(call('c1', 'functions_echo')));
    expect(messages[2]?.content).toEqual([{ ...result('c1'), toolName: 'functions_echo' }]);
    expect(repairs).toEqual(['tool name "functions.echo" was sent as "functions_echo"']);
  });

  it.each([
    ['a text', '{"x":'],
    ['a list', [1]],
    ['null', null],
    ['a number', 3],
  ])('arguments that are %s become an empty object', (_what, input) => {
    const { messages } = sendable([user('a'), assistant(call('c1', 'echo', input)), results(result('c1'))]);
    expect(messages[1]).toEqual(assistant(call('c1')));
  });

  it('blank texts go, and with them the messages that have nothing else', () => {
    const { messages, repairs } = sendable([
      { role: 'system', content: ' ' },
      user('\n'),
      user('a'),
      assistant(said(' '), call('c1')),
      results(result('c1')),
      assistant(said('')),
      { role: 'assistant', content: '  ' },
      assistant(),
      { role: 'user', content: [{ type: 'text', text: '' }] },
    ]);
    expect(messages).toEqual([user('a'), assistant(call('c1')), results(result('c1'))]);
    expect(repairs).toHaveLength(6);
  });

  it('reasoning without anything after it goes', () => {
    const thought = { type: 'reasoning', text: 'hm' };
    expect(sendable([user('a'), assistant(thought), user('b')]).messages).toEqual([user('a'), user('b')]);
    expect(sendable([user('a'), assistant(said('x'), thought), user('b')]).messages[1]).toEqual(assistant(said('x')));
    expect(sendable([user('a'), assistant(thought, said('x'))]).repairs).toEqual([]);
  });

  it('lone surrogates are replaced wherever they stand', () => {
    const { messages } = sendable([
      user('a\ud83d'),
      assistant(call('c1', 'echo', { 'k\udfff': ['\ud800'] })),
      results(result('c1', { type: 'json', value: { v: '\udc00' } })),
    ]);
    expect(JSON.stringify(messages)).not.toMatch(/\\ud[89a-f]/i);
    expect(JSON.stringify(messages).match(/\ufffd/g)).toHaveLength(4);
  });

  it('a history that begins with the assistant gets a user message before it', () => {
    const { messages, repairs } = sendable([{ role: 'system', content: 's' }, assistant(said('a')), user('b')]);
    expect(messages.map(({ role }) => role)).toEqual(['system', 'user', 'assistant', 'user']);
    expect(repairs).toHaveLength(1);
  });

  it('a call that its provider had made itself goes, since its result is nowhere', () => {
    const own = { ...call('c1', 'web_search'), providerExecuted: true };
    expect(sendable([user('a'), assistant(own, said('x'))]).messages).toEqual([user('a'), assistant(said('x'))]);
  });

  it('empty content of a result becomes a text, and text parts one text', () => {
    const empty: ToolResultOutput = { type: 'content', value: [{ type: 'text', text: ' ' }] };
    const texts: ToolResultOutput = {
      type: 'content',
      value: [
        { type: 'text', text: 'a' },
        { type: 'text', text: 'b' },
      ],
    };
    const { messages } = sendable([
      user('a'),
      assistant(call('c1'), call('c2')),
      results(result('c1', empty), result('c2', texts)),
    ]);
    expect(messages[2]).toEqual(
      results(result('c1', { type: 'text', value: '(nothing)' }), result('c2', { type: 'text', value: 'a\nb' })),
    );
  });

  it('a later system message is a user message where the provider takes none there', () => {
    const history: Message[] = [{ role: 'system', content: 's' }, user('a'), { role: 'system', content: 'now' }];
    expect(sendable(history, ANTHROPIC_RULES).messages[2]).toEqual(user('now'));
    expect(sendable(history, COMPATIBLE_RULES).messages[2]).toEqual(user('now'));
    expect(sendable(history, RESPONSES_RULES).messages[2]).toEqual({ role: 'system', content: 'now' });
  });

  it('T04: media that a result cannot hold follow it in a user message, and stay where it can', () => {
    const image: ToolResultOutput = {
      type: 'content',
      value: [
        { type: 'text', text: 'a chart' },
        { type: 'image-data', data: 'QUJD', mediaType: 'image/png' },
      ],
    };
    const zip: ToolResultOutput = {
      type: 'content',
      value: [{ type: 'file-data', data: 'QUJD', mediaType: 'application/zip', filename: 'x.zip' }],
    };
    const history = [
      user('a'),
      assistant(call('c1'), call('c2')),
      results(result('c1', image), result('c2', zip)),
      user('b'),
    ];
    const chat = sendable(history, CHAT_RULES).messages;
    expect(chat.map(({ role }) => role)).toEqual(['user', 'assistant', 'tool', 'user', 'user']);
    expect(chat[2]).toEqual(
      results(
        result('c1', {
          type: 'text',
          value: 'a chart\n[file of type image/png, about 3 bytes: it follows in the next message]',
        }),
        result('c2', {
          type: 'text',
          value: '[file x.zip of type application/zip, about 3 bytes: left out, as this model cannot be given it]',
        }),
      ),
    );
    expect(chat[3]?.content).toEqual([
      { type: 'text', text: 'What the call c1 (echo) returned besides text:' },
      { type: 'image', image: 'QUJD', mediaType: 'image/png' },
    ]);
    const claude = sendable(history, ANTHROPIC_RULES).messages;
    expect(claude.map(({ role }) => role)).toEqual(['user', 'assistant', 'tool', 'user']);
    expect(claude[2]?.content[0]).toEqual(result('c1', image));
  });

  it('errors are said in words where the wire has no mark for them', () => {
    const failed = result('c1', { type: 'error-text', value: 'no such file' });
    const history = [user('a'), assistant(call('c1')), results(failed)];
    expect(sendable(history, ANTHROPIC_RULES).messages[2]).toEqual(results(failed));
    expect(sendable(history, CHAT_RULES).messages[2]).toEqual(
      results(result('c1', { type: 'error-text', value: 'Error: no such file' })),
    );
  });

  it("what another provider made goes, and what is one's own stays", () => {
    const signed = { type: 'reasoning', text: 'hm', providerOptions: { anthropic: { signature: 'abc' } } };
    const marked = { ...call('c1'), providerOptions: { google: { thoughtSignature: 'g' } } };
    const history = [user('a'), assistant(signed, marked), results(result('c1'))];
    expect(sendable(history, ANTHROPIC_RULES).messages[1]).toEqual(assistant(signed, call('c1')));
    const compatible = sendable(history, COMPATIBLE_RULES);
    expect(compatible.messages[1]).toEqual(assistant(call('c1')));
    expect(compatible.repairs).toEqual([
      'reasoning that this provider does not take back was left out',
      'marks of another provider were left out (google)',
    ]);
  });

  it('a signature that an OpenAI-compatible server gave is handed back where its package looks for it', () => {
    const signed = { ...call('c1'), providerOptions: { openaiCompatible: { thoughtSignature: 'g' } } };
    const { messages, repairs } = sendable([user('a'), assistant(signed), results(result('c1'))], COMPATIBLE_RULES);
    expect(messages[1]).toEqual(assistant({ ...call('c1'), providerOptions: { google: { thoughtSignature: 'g' } } }));
    expect(repairs).toEqual([]);
  });

  it('files that the provider cannot be given leave a line in their place', () => {
    const history: Message[] = [
      { role: 'user', content: [{ type: 'file', data: 'QUJD', mediaType: 'audio/ogg', filename: 'a.ogg' }] },
    ];
    expect(sendable(history, ANTHROPIC_RULES).messages).toEqual([
      {
        role: 'user',
        content: [
          {
            type: 'text',
            text: '[file a.ogg of type audio/ogg, about 3 bytes: left out, as this model cannot be given it]',
          },
        ],
      },
    ]);
    expect(sendable(history).messages).toEqual(history);
  });
});
