import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { messagesOf } from '../support/request-view.js';
import { ServerProcess } from '../support/server-process.js';
import { mountSmallDisk, type SmallDisk } from '../support/small-disk.js';
import { temporaryFolder } from '../support/wait.js';
import { logOf, resume, runToEnd } from './lab.js';

/** What is kept of a conversation between its attempts must be what a cold start reads: these conversations are long enough to be kept. */
const LONG = 'x'.repeat(3000);
const SHIM = `
import { defineShim, internalMessage } from 'shimline/shims';
export default defineShim({
  name: 'rewriter',
  onRunStart(state) {
    const input = String(state.history.at(-1));
    if (input.startsWith('VIEW')) state.history.push(internalMessage({ role: 'user', content: 'seen now' }, { origin: 'rewriter', ephemeral: true }));
  },
  prepareTurn(turn) {
    const input = String(turn.runState.history.at(-1));
    if (input.startsWith('REWRITE')) turn.replaceHistory(['in short', input]);
  },
});
`;

let model: ModelEndpoint;
let disk: SmallDisk;
let server: ServerProcess;
const shimsDir = temporaryFolder('shims-');

beforeAll(async () => {
  writeFileSync(join(shimsDir, 'rewriter.mjs'), SHIM);
  model = await ModelEndpoint.start();
  disk = mountSmallDisk(24);
  server = await ServerProcess.start({ env: { ...model.environment }, shimsDir, dataDir: disk.path });
  const agent = { model: 'openai-compatible/m', shims: [{ use: 'rewriter' }] };
  expect((await server.json('PUT', '/v1/agents/chat', agent)).status).toBeLessThan(300);
});
afterAll(async () => {
  await server.stop();
  await model.close();
  disk.unmount();
});

/** What the model is sent, each message by its role and its text without the ballast. */
const sent = (): string[] =>
  messagesOf(model.requests.at(-1)!).map(
    ({ role, content }) => `${String(role)}:${text(content).replace(LONG, '').trim()}`,
  );
const text = (content: unknown): string =>
  typeof content === 'string' ? content : ((content as readonly JsonObject[])[0]?.text as string);

async function turn(id: unknown, input: string): Promise<JsonObject> {
  const answer = await resume({ server }, id, { input });
  expect(answer.body).toMatchObject({ status: 'completed' });
  return answer.body;
}

const lines = (from: number, to: number): string[] =>
  Array.from({ length: to - from + 1 }, (_, index) => [
    `user:${from + index}`,
    `assistant:answer ${from + index}`,
  ]).flat();

async function grown(turns: number): Promise<unknown> {
  model.respondWith(undefined);
  model.script(...Array.from({ length: turns }, (_, index) => ({ text: `answer ${index + 1} ${LONG}` })));
  const { id } = await runToEnd({ server }, { input: `1 ${LONG}` });
  for (let at = 2; at <= turns; at += 1) await turn(id, `${at} ${LONG}`);
  return id;
}

it('R81 each resume of a long conversation sends all of it, whatever was rewritten or shown for one run, also after kill -9', async () => {
  const id = await grown(5);
  expect(sent()).toEqual([...lines(1, 4), 'user:5']);
  model.script({ text: 'with a view' }, { text: 'without' }, { text: 'short' }, { text: 'on' });
  await turn(id, 'VIEW');
  expect(sent()).toEqual([...lines(1, 5), 'user:VIEW', 'user:seen now']);
  await turn(id, 'no view');
  expect(sent()).toEqual([...lines(1, 5), 'user:VIEW', 'assistant:with a view', 'user:no view']);
  await turn(id, 'REWRITE');
  expect(sent()).toEqual(['user:in short', 'user:REWRITE']);
  await turn(id, 'after');
  const warm = ['user:in short', 'user:REWRITE', 'assistant:short', 'user:after'];
  expect(sent()).toEqual(warm);
  await server.kill9();
  await server.restart();
  model.script({ text: 'cold' });
  await turn(id, 'again');
  expect(sent()).toEqual([...warm, 'assistant:on', 'user:again']);
});

it('a digest of a history does not depend on what was kept of it', async () => {
  const id = await grown(4);
  model.script({ text: 'kept' }, { text: 'read' });
  await turn(id, 'next');
  const fork = await server.json('POST', `/v1/runs/${String(id)}/fork`, { turn: 4, input: 'next' });
  const forked = await server.json('GET', `/v1/runs/${String(fork.body.id)}`, undefined, { prefer: 'wait=20' });
  expect(forked.body).toMatchObject({ status: 'completed' });
  const pictures = async (run: unknown): Promise<unknown[]> =>
    (await logOf({ server }, run)).filter(({ type }) => type === 'state.snapshot').map(({ history }) => history);
  const [kept, read] = [await pictures(id), await pictures(fork.body.id)];
  expect(read.length).toBeGreaterThan(1);
  expect(kept.slice(-read.length)[0]).toEqual(read[0]);
});

it('D01 a resume that a full disk refused leaves nothing in what the next one sends', async () => {
  const id = await grown(4);
  disk.fill();
  const refused = await resume({ server }, id, { input: 'never accepted' });
  expect(refused.status).toBe(503);
  disk.free();
  model.script({ text: 'fine' });
  await turn(id, 'accepted');
  expect(sent()).toEqual([...lines(1, 4), 'user:accepted']);
});
