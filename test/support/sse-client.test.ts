import { createServer, type Server, type ServerResponse } from 'node:http';
import { afterEach, expect, it } from 'vitest';
import { closeServer, listenOnLoopback } from './loopback.js';
import { neverReads } from './never-reads.js';
import { openStream } from './sse-client.js';
import { type SseEvent, SseParser } from './sse-parser.js';
import { waitFor } from './wait.js';

const servers: Server[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    await closeServer(server);
  }
});

async function serve(handler: (response: ServerResponse) => void): Promise<string> {
  const server = createServer((_request, response) => {
    response.setHeader('content-type', 'text/event-stream');
    handler(response);
  });
  servers.push(server);
  return `http://127.0.0.1:${await listenOnLoopback(server)}/`;
}

function parse(text: string, size: number): { events: string[]; comments: string[]; retries: number[] } {
  const seen = { events: [] as string[], comments: [] as string[], retries: [] as number[] };
  const parser = new SseParser({
    onEvent: ({ id, event, data }: SseEvent) => seen.events.push(`${id}|${event}|${data}`),
    onComment: (comment) => seen.comments.push(comment),
    onRetry: (ms) => seen.retries.push(ms),
  });
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += size) parser.push(bytes.subarray(at, at + size));
  return seen;
}

it.each<readonly [string, string, string[]]>([
  ['plain', 'id: 1\nevent: a\ndata: x\n\n', ['1|a|x']],
  ['CRLF', 'id: 1\r\nevent: a\r\ndata: x\r\n\r\ndata: y\r\n\r\n', ['1|a|x', '1|message|y']],
  ['CR', 'data: x\r\rdata: y\r\r', ['|message|x', '|message|y']],
  ['a mark at the start, once', '\uFEFFdata: \uFEFF🙂\n\n', ['|message|\uFEFF🙂']],
  ['several data lines', 'data: a\ndata:\ndata:  b\n\n', ['|message|a\n\n b']],
  ['no value', 'data\n\n', ['|message|']],
  ['an event without data', 'event: a\nid: 7\n\ndata: x\n\n', ['7|message|x']],
  ['an id with NUL', 'id: 1\ndata: x\n\nid: 2\0\ndata: y\n\n', ['1|message|x', '1|message|y']],
  ['no last blank line', 'data: x\n\ndata: lost\n', ['|message|x']],
  ['a comment and then a blank line', ': hb\n\ndata: x\n\n', ['|message|x']],
])('parses %s', (_name, text, events) => {
  for (const size of [1, 2, 1000]) expect(parse(text, size).events).toEqual(events);
});

it('tells comments and the retry time', () => {
  expect(parse(': hb\n:\nretry: 2000\nretry: x\n\n', 3)).toEqual({
    events: [],
    comments: [' hb', ''],
    retries: [2000],
  });
});

it('collects up to an event, reads on from there, and tells how it ended', async () => {
  const url = await serve((response) => {
    response.write('retry: 2000\n: hb\n');
    for (const id of [1, 2, 3]) response.write(`id: ${id}\nevent: e\ndata: {"n":${id}}\n\n`);
    response.end();
  });
  const stream = await openStream(url, { headers: { 'last-event-id': '0' } });
  const first = await stream.collect({ until: ({ id }) => id === '2' });
  expect(first.map(({ json }) => json)).toEqual([{ n: 1 }, { n: 2 }]);
  const rest: string[] = [];
  for await (const event of stream) rest.push(event.id);
  expect([stream.status, rest, stream.lastEventId, stream.retry, stream.comments[0]?.text]).toEqual([
    200,
    ['3'],
    '3',
    2000,
    ' hb',
  ]);
  expect(await stream.ended).toEqual({ how: 'end' });
});

it('tells a reset from an end and from its own close, and a timeout says what was seen', async () => {
  const url = await serve((response) => {
    response.write('id: 1\ndata: x\n\n');
    if (servers.length === 1) setTimeout(() => response.socket?.resetAndDestroy(), 30);
  });
  const reset = await openStream(url);
  expect(await reset.ended).toMatchObject({ how: 'reset' });
  servers.push(createServer());
  const open = await openStream(url);
  await expect(open.collect({ timeoutMs: 50 })).rejects.toThrow('still open, with 1 events: 1:message');
  open.close();
  expect(await open.ended).toEqual({ how: 'closed' });
});

it('a reader that never reads stops the writer, and sees from outside that it was dropped', async () => {
  let drop = (): void => undefined;
  let stuck = false;
  const url = await serve((response) => {
    drop = () => response.socket?.destroy();
    const chunk = `data: ${'x'.repeat(1 << 20)}\n\n`;
    for (let n = 0; n < 30; n += 1) stuck = !response.write(chunk);
  });
  const reader = await neverReads(url);
  await waitFor(() => stuck);
  expect(reader.bytesRead).toBe(0);
  let closed = false;
  const watched = reader.closed.then(() => (closed = true));
  expect(closed).toBe(false);
  drop();
  await watched;
  expect((await reader.resume()).subarray(0, 12).toString()).toBe('HTTP/1.1 200');
});
