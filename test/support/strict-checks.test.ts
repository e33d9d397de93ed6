import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { pick } from './json-path.js';
import { ModelEndpoint } from './model-endpoint.js';
import { schemaFault } from './strict-checks.js';

let endpoint: ModelEndpoint;
beforeAll(async () => {
  endpoint = await ModelEndpoint.start();
});
afterAll(async () => {
  await endpoint.close();
});

async function post(path: string, body: unknown): Promise<{ status: number; text: string }> {
  const response = await fetch(`${endpoint.url}${path}`, {
    method: 'POST',
    headers: { 'anthropic-version': '2023-06-01', 'content-type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  return { status: response.status, text: await response.text() };
}

type Case = readonly [name: string, change: object | string, answer: RegExp | 200];
const hi = { role: 'user', content: 'hi' };

describe('Chat Completions', () => {
  const call = (id: unknown, args: unknown = '{}', name = 'f'): object => ({
    id,
    type: 'function',
    function: { name, arguments: args },
  });
  const calls = (...list: object[]): object => ({ role: 'assistant', content: null, tool_calls: list });
  const result = (id: string): object => ({ role: 'tool', tool_call_id: id, content: 'r' });
  const tool = (name: unknown, parameters: unknown = { type: 'object' }): object => ({
    type: 'function',
    function: { name, parameters },
  });
  const cases: readonly Case[] = [
    ['a plain question', {}, 200],
    ['an answered call', { messages: [hi, calls(call('a'), call('b')), result('b'), result('a'), hi] }, 200],
    [
      'an id used again in a later turn',
      { messages: [hi, calls(call('a')), result('a'), calls(call('a')), result('a')] },
      200,
    ],
    ['an unanswered call', { messages: [hi, calls(call('a'))] }, /must be followed by tool messages.*: a"/],
    ['a call answered too late', { messages: [hi, calls(call('a')), hi, result('a')] }, /must be followed/],
    ['half of the answers', { messages: [hi, calls(call('a'), call('b')), result('a'), hi] }, /response messages: b/],
    ['a result without a call', { messages: [hi, result('a')] }, /preceeding message/],
    ['a result twice', { messages: [hi, calls(call('a')), result('a'), result('a')] }, /preceeding message/],
    ['one id twice', { messages: [hi, calls(call('a'), call('a')), result('a'), result('a')] }, /Duplicate/],
    ['an empty id', { messages: [hi, calls(call('')), result('')] }, /tool_calls\[0\]\.id/],
    ['a long id', { messages: [hi, calls(call('x'.repeat(41))), result('x'.repeat(41))] }, /too long/],
    ['arguments as an object', { messages: [hi, calls(call('a', {})), result('a')] }, /expected a string/],
    ['arguments that are no JSON', { messages: [hi, calls(call('a', '{"x":')), result('a')] }, /holds an object/],
    ['arguments that are a list', { messages: [hi, calls(call('a', '[]')), result('a')] }, /holds an object/],
    ['a call with a bad name', { messages: [hi, calls(call('a', '{}', 'f g')), result('a')] }, /pattern/],
    ['an assistant without anything', { messages: [hi, { role: 'assistant', content: null }] }, /got null/],
    ['a blank assistant', { messages: [hi, { role: 'assistant', content: ' ' }, hi] }, /blank/],
    ['a blank user', { messages: [{ role: 'user', content: '\n' }] }, /blank/],
    ['a blank block', { messages: [{ role: 'user', content: [{ type: 'text', text: '' }] }] }, /non-whitespace/],
    ['no content blocks', { messages: [{ role: 'user', content: [] }] }, /empty array/],
    ['no model', { model: undefined }, /model parameter/],
    ['no messages', { messages: [] }, /non-empty/],
    ['an unknown role', { messages: [{ role: 'bot', content: 'x' }] }, /role/],
    ['tools', { tools: [tool('f'), tool('g')], tool_choice: { type: 'function', function: { name: 'g' } } }, 200],
    ['no tools in the list', { tools: [] }, /empty array/],
    ['two tools of one name', { tools: [tool('f'), tool('f')] }, /unique/],
    ['a bad tool name', { tools: [tool('a.b')] }, /pattern/],
    ['a name of 65 characters', { tools: [tool('a'.repeat(65))] }, /pattern/],
    ['a schema of a string', { tools: [tool('f', { type: 'string' })] }, /Invalid schema for function 'f'/],
    ['a tool choice without tools', { tool_choice: 'auto' }, /only allowed/],
    [
      'a choice of an unknown tool',
      { tools: [tool('f')], tool_choice: { type: 'function', function: { name: 'x' } } },
      /not found/,
    ],
    ['parallel calls without tools', { parallel_tool_calls: false }, /only allowed/],
    ['a lone surrogate', { messages: [{ role: 'user', content: 'x\ud83d' }] }, /surrogate/],
    [
      'a lone surrogate in arguments',
      { messages: [hi, calls(call('a', '{"x":"\\ud83d"}')), result('a')] },
      /surrogate/,
    ],
    ['a whole emoji', { messages: [{ role: 'user', content: 'x🙂' }] }, 200],
    ['no JSON', '{"model"', /could not parse/],
  ];
  it.each(cases)('%s', async (_name, change, answer) => {
    const body = typeof change === 'string' ? change : { model: 'm', messages: [hi], ...change };
    const { status, text } = await post('/v1/chat/completions', body);
    expect([status, text]).toEqual(answer === 200 ? [200, expect.any(String)] : [400, expect.stringMatching(answer)]);
    if (answer !== 200) expect(JSON.parse(text)).toMatchObject({ error: { type: 'invalid_request_error' } });
  });
});

describe('Anthropic Messages', () => {
  const use = (id: string, input: unknown = {}): object => ({ type: 'tool_use', id, name: 'f', input });
  const result = (id: string, content: unknown = 'r'): object => ({ type: 'tool_result', tool_use_id: id, content });
  const assistant = (...content: object[]): object => ({ role: 'assistant', content });
  const user = (...content: object[]): object => ({ role: 'user', content });
  const text = (value: string): object => ({ type: 'text', text: value });
  const tool = (name: string, schema: unknown = { type: 'object' }): object => ({ name, input_schema: schema });
  const cached = (ttl: string): object => ({ ...text('x'), cache_control: { type: 'ephemeral', ttl } });
  const cases: readonly Case[] = [
    ['a plain question', { system: [text('be brief')] }, 200],
    [
      'an answered call',
      { messages: [hi, assistant(use('a'), use('b')), user(result('b'), result('a'), text('more'))] },
      200,
    ],
    [
      'results in two user messages',
      { messages: [hi, assistant(use('a'), use('b')), user(result('a')), user(result('b'))] },
      200,
    ],
    [
      'an unanswered call',
      { messages: [hi, assistant(use('a'))] },
      /without `tool_result` blocks immediately after: a/,
    ],
    ['a call that is not answered next', { messages: [hi, assistant(use('a')), hi] }, /immediately after/],
    [
      'text before the result',
      { messages: [hi, assistant(use('a')), user(text('x'), result('a'))] },
      /immediately after/,
    ],
    [
      'a result without a call',
      { messages: [hi, assistant(text('x')), user(result('a'))] },
      /unexpected `tool_use_id`/,
    ],
    ['a result twice', { messages: [hi, assistant(use('a')), user(result('a'), result('a'))] }, /single result/],
    [
      'an id used again',
      { messages: [hi, assistant(use('a')), user(result('a')), assistant(use('a')), user(result('a'))] },
      /unique/,
    ],
    ['an id with a space', { messages: [hi, assistant(use('a b')), user(result('a b'))] }, /pattern/],
    ['an input that is text', { messages: [hi, assistant(use('a', '{}')), user(result('a'))] }, /valid dictionary/],
    ['an empty text', { messages: [user(text(''))] }, /must be non-empty/],
    ['a blank text', { messages: [hi, assistant(text('\n')), hi] }, /non-whitespace/],
    [
      'a blank text in a result',
      { messages: [hi, assistant(use('a')), user(result('a', [text(' ')]))] },
      /non-whitespace/,
    ],
    ['no content', { messages: [hi, { role: 'assistant', content: [] }, hi] }, /non-empty content/],
    ['trailing white space in the last answer', { messages: [hi, assistant(text('x '))] }, /trailing whitespace/],
    ['an assistant first', { messages: [assistant(text('x')), hi] }, /first message/],
    ['a system message', { messages: [{ role: 'system', content: 'x' }, hi] }, /Unexpected role/],
    ['a blank system text', { system: [text('')] }, /non-empty/],
    ['no max_tokens', { max_tokens: undefined }, /max_tokens: Field required/],
    ['no model', { model: undefined }, /model/],
    ['a tool', { tools: [tool('f')], tool_choice: { type: 'tool', name: 'f' } }, 200],
    ['anyOf at the top', { tools: [tool('f', { type: 'object', anyOf: [{}] })] }, /anyOf/],
    ['no schema', { tools: [{ name: 'f' }] }, /Schema object/],
    ['two tools of one name', { tools: [tool('f'), tool('f')] }, /unique/],
    ['a tool choice without tools', { tool_choice: { type: 'auto' } }, /only allowed/],
    [
      'four cache breakpoints',
      { system: [cached('5m')], messages: [user(cached('5m'), cached('5m'), cached('5m'))] },
      200,
    ],
    [
      'five cache breakpoints',
      { system: [cached('1h'), cached('1h')], messages: [user(cached('5m'), cached('5m'), cached('5m'))] },
      /Found 5/,
    ],
    [
      'a longer cache after a shorter',
      { system: [cached('5m')], messages: [user(cached('1h'))] },
      /must not come after/,
    ],
    ['an unknown time to cache', { messages: [user(cached('2h'))] }, /cache_control\.ttl/],
    [
      'a thinking block without a signature',
      { messages: [hi, assistant({ type: 'thinking', thinking: 'x' }, text('y')), hi] },
      /signature/,
    ],
    [
      'an escaped lone surrogate',
      '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"\\ud83d"}]}',
      /surrogate/,
    ],
  ];
  it.each(cases)('%s', async (_name, change, answer) => {
    const body = typeof change === 'string' ? change : { model: 'm', max_tokens: 9, messages: [hi], ...change };
    const { status, text: shown } = await post('/v1/messages', body);
    expect([status, shown]).toEqual(answer === 200 ? [200, expect.any(String)] : [400, expect.stringMatching(answer)]);
    if (answer !== 200)
      expect(JSON.parse(shown)).toMatchObject({ type: 'error', error: { type: 'invalid_request_error' } });
  });
});

describe('the Responses API and Gemini', () => {
  const call = { type: 'function_call', call_id: 'a', name: 'f', arguments: '{}' };
  const output = { type: 'function_call_output', call_id: 'a', output: 'r' };
  const content = (role: string, ...parts: object[]): object => ({ role, parts });
  const asked = content('user', { text: 'hi' });
  const functionCall = content('model', { functionCall: { name: 'f', args: {} } });
  const functionResponse = content('user', { functionResponse: { name: 'f', response: {} } });
  const google = '/v1beta/models/m:generateContent';
  it.each<readonly [string, string, object, RegExp | 200]>([
    ['an answered call', '/v1/responses', { input: [hi, call, output] }, 200],
    ['an unanswered call', '/v1/responses', { input: [hi, call, hi] }, /No tool output found for function call a/],
    ['an output without a call', '/v1/responses', { input: [hi, output] }, /No tool call found/],
    ['an unknown previous response', '/v1/responses', { input: 'hi', previous_response_id: 'x' }, /not found/],
    [
      'reasoning that nothing follows',
      '/v1/responses',
      { input: [hi, { type: 'reasoning', id: 'r' }] },
      /required following/,
    ],
    [
      'a blank text',
      '/v1/responses',
      { input: [{ role: 'user', content: [{ type: 'input_text', text: ' ' }] }] },
      /blank/,
    ],
    ['an answered call', google, { contents: [asked, functionCall, functionResponse] }, 200],
    ['an unanswered call', google, { contents: [asked, functionCall] }, /number of function response parts/],
    ['a response without a call', google, { contents: [asked, functionResponse] }, /immediately after/],
    ['no parts', google, { contents: [content('user')] }, /must not be empty/],
  ])('%s at %s', async (_name, path, body, answer) => {
    const { status, text } = await post(path, { model: 'm', ...body });
    expect([status, text]).toEqual(answer === 200 ? [200, expect.any(String)] : [400, expect.stringMatching(answer)]);
  });

  it('an unknown item is not found', async () => {
    const input = [hi, { type: 'item_reference', id: 'fc_x' }];
    expect(await post('/v1/responses', { model: 'm', input })).toMatchObject({ status: 404 });
  });
});

it.each<readonly [string, unknown, boolean]>([
  ['an empty object', { type: 'object' }, true],
  ['properties', { type: 'object', properties: { a: { type: ['string', 'null'] } }, required: ['a'] }, true],
  ['another dialect', { $schema: 'http://json-schema.org/draft-07/schema#', type: 'object' }, true],
  ['a cyclic reference', { type: 'object', properties: { next: { $ref: '#' } } }, true],
  ['a definition', { type: 'object', properties: { a: { $ref: '#/$defs/x' } }, $defs: { x: {} } }, true],
  ['a reference to nothing', { type: 'object', properties: { a: { $ref: '#/$defs/x' } } }, false],
  ['required inside a property', { type: 'object', properties: { a: { type: 'string', required: true } } }, false],
  ['required among the properties', { type: 'object', properties: { required: ['a'] } }, false],
  ['an unknown type', { type: 'object', properties: { a: { type: 'text' } } }, false],
  ['oneOf at the top', { type: 'object', oneOf: [{}] }, false],
  ['no schema', undefined, false],
])('a tool schema: %s', (_name, schema, good) => {
  expect(schemaFault(schema) === undefined).toBe(good);
});

it('a context over the limit is refused in the words of each provider', async () => {
  endpoint.contextLimitBytes = 300;
  const long = [{ role: 'user', content: 'x'.repeat(400) }];
  const openai = await post('/v1/chat/completions', { model: 'm', messages: long });
  const anthropic = await post('/v1/messages', { model: 'm', max_tokens: 9, messages: long });
  endpoint.contextLimitBytes = undefined;
  expect(JSON.parse(openai.text)).toMatchObject({ error: { code: 'context_length_exceeded' } });
  const message = pick(JSON.parse(anthropic.text), 'error.message');
  expect(message).toMatch(/^prompt is too long: \d+ tokens > 300 maximum$/);
});
