import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { ModelEndpoint } from './model-endpoint.js';
import { openStream, type SseStream } from './sse-client.js';
import { TcpProxy } from './tcp-proxy.js';
import { waitFor } from './wait.js';

let endpoint: ModelEndpoint;
let proxy: TcpProxy;
beforeEach(async () => {
  endpoint = await ModelEndpoint.start();
  proxy = await TcpProxy.start(endpoint.url);
});
afterEach(async () => {
  await proxy.close();
  await endpoint.close();
});

async function open(): Promise<SseStream> {
  const body = { model: 'm', stream: true, messages: [{ role: 'user', content: 'hi' }] };
  return openStream(`${proxy.url}/v1/chat/completions`, { body });
}

it('passes everything on, and the end too', async () => {
  endpoint.script({ text: 'x'.repeat(3_000_000) });
  const stream = await open();
  expect(await stream.ended).toEqual({ how: 'end' });
  expect(stream.rawBytes().length).toBeGreaterThan(3_000_000);
});

it.each(['reset', 'end'] as const)('cuts with %s on both sides', async (how) => {
  endpoint.script({ text: 'abcd', cut: { after: 'half-text', how: 'stall' } });
  const stream = await open();
  await waitFor(() => stream.events.length === 2);
  expect(proxy.connections).toBe(1);
  proxy.cut(how);
  // The body was chunked, so even a clean end of the connection is no clean end of the answer.
  expect(await stream.ended).toMatchObject({ how: 'reset' });
  await waitFor(() => endpoint.abortedRequests === 1 && proxy.connections === 0);
});

it('cuts after silence, but not while bytes flow', async () => {
  proxy.idleTimeoutMs = 150;
  endpoint.script(
    { text: Array<string>(10).fill('x'), tokenDelayMs: 40 },
    { text: 'abcd', cut: { after: 'half-text', how: 'stall' } },
  );
  const busy = await open();
  expect(await busy.ended).toEqual({ how: 'end' });
  const idle = await open();
  expect(await idle.ended).toMatchObject({ how: 'reset' });
  expect(proxy.idleCuts).toBeGreaterThanOrEqual(1);
});

it('holds bytes while it is paused, and refuses when told to', async () => {
  endpoint.script({ text: Array<string>(20).fill('x'), tokenDelayMs: 10 });
  const stream = await open();
  await waitFor(() => stream.events.length > 2);
  proxy.pause();
  await sleep(50);
  const held = stream.events.length;
  await sleep(100);
  expect(stream.events.length).toBe(held);
  proxy.resume();
  expect(await stream.ended).toEqual({ how: 'end' });
  proxy.refusing = true;
  await expect(open()).rejects.toMatchObject({ code: 'ECONNRESET' });
});
