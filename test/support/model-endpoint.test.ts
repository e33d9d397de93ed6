import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { inBandError } from './dialects.js';
import { isObject, pick } from './json-path.js';
import { ModelEndpoint } from './model-endpoint.js';
import type { CutPlace, Reply } from './model-reply.js';
import { openStream, type SseStream } from './sse-client.js';
import { waitFor } from './wait.js';

let endpoint: ModelEndpoint;
beforeEach(async () => {
  endpoint = await ModelEndpoint.start();
});
afterEach(async () => {
  await endpoint.close();
});

async function chat(reply: Reply): Promise<SseStream> {
  endpoint.script(reply);
  const messages = [{ role: 'user', content: 'hi' }];
  const body = { model: 'm', stream: true, stream_options: { include_usage: true }, messages };
  return openStream(`${endpoint.url}/v1/chat/completions`, { body });
}

async function claude(reply: Reply): Promise<SseStream> {
  endpoint.script(reply);
  const body = { model: 'm', max_tokens: 9, stream: true, messages: [{ role: 'user', content: 'hi' }] };
  return openStream(`${endpoint.url}/v1/messages`, { body, headers: { 'anthropic-version': '2023-06-01' } });
}

/** What of the answer arrived, in one word an event. */
function chatShape(stream: SseStream): string {
  const words = stream.events.map(({ data, json }) => {
    if (data === '[DONE]') return 'done';
    const delta = pick(json, 'choices.0.delta');
    if (isObject(pick(json, 'usage'))) return 'usage';
    if (pick(json, 'choices.0.finish_reason') !== null) return 'finish';
    if (pick(delta, 'role') !== undefined) return 'role';
    if (pick(delta, 'tool_calls') !== undefined) return pick(delta, 'tool_calls.0.id') === undefined ? 'args' : 'call';
    return 'text';
  });
  return words.join(' ');
}

const reply: Reply = { text: ['a', 'b', 'c', 'd'], toolCalls: [{ name: 'f', arguments: { x: 1 }, argumentChunks: 2 }] };
const claudeStart = 'message_start ping content_block_start';
it.each<readonly [CutPlace, string, string]>([
  ['headers', '', ''],
  ['role', 'role', 'message_start ping'],
  ['half-text', 'role text text', `${claudeStart} delta delta`],
  ['text', 'role text text text text', `${claudeStart} delta delta delta delta`],
  [
    'half-tool',
    'role text text text text call args',
    `${claudeStart} delta delta delta delta content_block_stop content_block_start delta`,
  ],
  [
    'tool',
    'role text text text text call args args',
    `${claudeStart} delta delta delta delta content_block_stop content_block_start delta delta content_block_stop`,
  ],
  [
    'finish',
    'role text text text text call args args finish',
    `${claudeStart} delta delta delta delta content_block_stop content_block_start delta delta content_block_stop message_delta`,
  ],
  [
    'before-done',
    'role text text text text call args args finish usage',
    `${claudeStart} delta delta delta delta content_block_stop content_block_start delta delta content_block_stop message_delta`,
  ],
])('cut after %s, as an end and as a reset', async (after, chatSeen, claudeSeen) => {
  const ended = await chat({ ...reply, cut: { after, how: 'end' } });
  expect(await ended.ended).toEqual({ how: 'end' });
  expect(chatShape(ended)).toBe(chatSeen);
  const reset = await claude({ ...reply, cut: { after, how: 'reset' } });
  expect(await reset.ended).toMatchObject({ how: 'reset' });
  expect(reset.events.map(({ event }) => event.replace('content_block_delta', 'delta')).join(' ')).toBe(claudeSeen);
  expect(endpoint.abortedRequests).toBe(0);
});

it('a stall keeps the connection open until the client goes, which is counted', async () => {
  const stream = await chat({ text: 'abcd', cut: { after: 'half-text', how: 'stall' } });
  await waitFor(() => stream.events.length === 2);
  await sleep(100);
  expect([endpoint.openConnections, endpoint.openRequests, endpoint.abortedRequests]).toEqual([1, 1, 0]);
  stream.close();
  await waitFor(() => endpoint.abortedRequests === 1 && endpoint.openConnections === 0);
  expect(endpoint.usage.total).toBe(0);
});

it('pings go on for ever, alone or after a stall', async () => {
  const alone = await chat({ pings: true, pingEveryMs: 5 });
  await waitFor(() => alone.comments.length > 3);
  expect(alone.events).toEqual([]);
  const stalled = await claude({
    text: 'abcd',
    pings: true,
    pingEveryMs: 5,
    cut: { after: 'half-text', how: 'stall' },
  });
  await waitFor(() => stalled.events.filter(({ event }) => event === 'ping').length > 3);
  alone.close();
  stalled.close();
});

it('a gate holds back the last delta, and a count any other', async () => {
  let open = (): void => undefined;
  const gate = new Promise<void>((resolve) => (open = resolve));
  const last = await chat({ text: ['a', 'b', 'c'], gate });
  const first = await chat({ text: ['a', 'b', 'c'], gate, gateAt: 1 });
  await waitFor(() => last.events.length === 3 && first.events.length === 2);
  await sleep(50);
  expect([chatShape(last), chatShape(first)]).toEqual(['role text text', 'role text']);
  open();
  await last.ended;
  await first.ended;
  expect([chatShape(last), chatShape(first)]).toEqual(Array(2).fill('role text text text finish usage done'));
});

it('an in-band error stands after the given number of deltas and ends the stream', async () => {
  const body = inBandError('openai-chat', 'overloaded');
  const early = await chat({ text: ['a', 'b'], errorInStream: { after: 1, body } });
  await early.ended;
  expect(early.events.map(({ json }) => pick(json, 'error.message') ?? 'ok')).toEqual(['ok', 'ok', 'Overloaded']);
  const late = await claude({ ...reply, errorInStream: { after: 99, body: inBandError('anthropic', 'overloaded') } });
  await late.ended;
  expect(late.events.slice(-2).map(({ event, json }) => [event, pick(json, 'error.type')])).toEqual([
    ['content_block_stop', undefined],
    ['error', 'overloaded_error'],
  ]);
  const bare = await chat({ text: ['a', 'b'], errorInStream: { after: 0, body, bare: true } });
  await bare.ended;
  expect([
    bare.events.length,
    bare
      .rawBytes()
      .toString()
      .endsWith(`${JSON.stringify(body)}\n`),
  ]).toEqual([1, true]);
});

it('a status is answered with the dialect or the given body, and with headers', async () => {
  const limited = await chat({ status: 429, headers: { 'retry-after': '7' } });
  expect([limited.status, limited.headers['retry-after']]).toEqual([429, '7']);
  expect(JSON.parse(await limited.text())).toMatchObject({ error: { code: 'rate_limit_exceeded' } });
  const overloaded = await claude({ status: 529 });
  expect(JSON.parse(await overloaded.text())).toMatchObject({ error: { type: 'overloaded_error' } });
  const own = await chat({ status: 500, errorBody: { oops: true } });
  expect(JSON.parse(await own.text())).toEqual({ oops: true });
});

it('raw bytes are the body', async () => {
  const stream = await chat({ raw: 'data: {"x":1}\r\rdata: lost' });
  await stream.ended;
  expect(stream.rawBytes().toString()).toBe('data: {"x":1}\r\rdata: lost');
  expect(stream.events.map(({ json }) => json)).toEqual([{ x: 1 }]);
});

it('ids, arguments and finish reasons go out as they are scripted', async () => {
  const toolCalls = [
    { id: '', name: 'f', arguments: '{"x":' },
    { id: null, name: 'g', arguments: '{}', argumentChunks: 0 },
  ];
  const stream = await chat({ toolCalls, finish: 'pause_turn' });
  await stream.ended;
  const calls = stream.events.flatMap(({ json }) => pick(json, 'choices.0.delta.tool_calls.0') ?? []);
  expect(calls).toEqual([
    { index: 0, id: '', type: 'function', function: { name: 'f', arguments: '' } },
    { index: 0, function: { arguments: '{"x":' } },
    { index: 1, type: 'function', function: { name: 'g', arguments: '{}' } },
  ]);
  expect(stream.events.map(({ json }) => pick(json, 'choices.0.finish_reason'))).toContain('pause_turn');
});

it('a responder answers what the queue does not, and sees the request', async () => {
  endpoint.respondWith(({ body }, index) => ({ text: `${index} ${String(pick(body, 'messages.0.content'))}` }));
  const first = await chat({ text: 'queued' });
  await first.ended;
  const body = { model: 'm', stream: true, messages: [{ role: 'user', content: 'hello' }] };
  const second = await openStream(`${endpoint.url}/v1/chat/completions`, { body });
  await second.ended;
  expect(second.events.map(({ json }) => pick(json, 'choices.0.delta.content'))).toContain('1 hello');
  expect(await endpoint.waitForRequest(2)).toMatchObject({
    dialect: 'openai-chat',
    path: '/v1/chat/completions',
    aborted: false,
  });
});

it('a reply that cannot be cut so is refused where it is written', () => {
  expect(() => {
    endpoint.script({ text: 'x', cut: { after: 'tool', how: 'end' } });
  }).toThrow('a reply without tool calls has no tool to cut after');
});
