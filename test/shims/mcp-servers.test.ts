import { type ChildProcess, spawn } from 'node:child_process';
import { realpathSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { isObject, type JsonObject, listOf } from '../support/json-path.js';
import { closeServer, listenOnLoopback } from '../support/loopback.js';
import { McpServer } from '../support/mcp-server.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { toolNamesOf, toolResultsOf } from '../support/request-view.js';
import { ServerProcess, stopAll } from '../support/server-process.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

// The servers that others wrote, as they come from the registry, behind our own server, both really started.

const require = createRequire(import.meta.url);
const everything = require.resolve('@modelcontextprotocol/server-everything/dist/index.js');
const filesystem = require.resolve('@modelcontextprotocol/server-filesystem/dist/index.js');
const folder = realpathSync(temporaryFolder('mcp-files-'));

let model: ModelEndpoint;
let server: ServerProcess;
let remote: ChildProcess;
let port = 0;

beforeAll(async () => {
  writeFileSync(join(folder, 'note.txt'), 'what is noted');
  model = await ModelEndpoint.start();
  port = await freePort();
  remote = startRemote();
  await waitFor(isListening, { timeoutMs: 20_000, what: 'the MCP server' });
  server = await ServerProcess.start({ env: { ...model.environment, MCP_REMOTE_TOKEN: 'canary-remote-c04d2e' } });
  const agents: Readonly<Record<string, object>> = {
    remote: {
      everything: {
        url: `http://127.0.0.1:${port}/mcp`,
        headers: { authorization: 'Bearer ${MCP_REMOTE_TOKEN}' },
        required: true,
        exclude: ['toggle-*'],
      },
    },
    local: {
      everything: {
        command: process.execPath,
        args: [everything, 'stdio'],
        include: ['echo', 'get-*', 'trigger-long*'],
      },
      files: { command: process.execPath, args: [filesystem, folder], required: true, approval: 'destructive' },
    },
  };
  for (const [name, servers] of Object.entries(agents)) {
    // One call after the other: the results come in the order of the calls.
    const tools = { parallelToolCalls: false };
    const body = { model: 'anthropic/claude-sonnet-4-5', tools, shims: [{ use: 'mcp', config: { servers } }] };
    const answer = await server.json('PUT', `/v1/agents/${name}`, body);
    expect(answer.status, JSON.stringify(answer.body)).toBe(201);
  }
}, 60_000);
afterAll(async () => {
  await stopAll();
  await model.close();
  remote.kill('SIGKILL');
});

async function freePort(): Promise<number> {
  const probe = createServer();
  const free = await listenOnLoopback(probe);
  await closeServer(probe);
  return free;
}

function startRemote(): ChildProcess {
  const { PATH = '' } = process.env;
  return spawn(process.execPath, [everything, 'streamableHttp'], {
    env: { PATH, PORT: String(port) },
    stdio: 'ignore',
  });
}

async function isListening(): Promise<boolean> {
  return fetch(`http://127.0.0.1:${port}/mcp`).then(
    () => true,
    () => false,
  );
}

const call = (name: string, given: object = {}): { name: string; arguments: object } => ({ name, arguments: given });

async function run(agent: string): Promise<JsonObject> {
  const { status, body } = await server.json('POST', '/v1/runs', { agent, input: 'go' }, { prefer: 'wait=25' });
  expect(status, JSON.stringify(body)).toBe(200);
  return body;
}

async function put(name: string, modelId: string, servers: object): Promise<void> {
  const body = { model: modelId, shims: [{ use: 'mcp', config: { servers, idleTimeoutMs: 0 } }] };
  const answer = await server.json('PUT', `/v1/agents/${name}`, body);
  expect(answer.status, JSON.stringify(answer.body)).toBe(201);
}

async function eventsOf(id: unknown, type: string): Promise<readonly JsonObject[]> {
  const { body } = await server.json('GET', `/v1/runs/${String(id)}/events?limit=1000`);
  return listOf(body.data)
    .filter(isObject)
    .filter((event) => event.type === type);
}

it('server-everything over Streamable HTTP: tools, images, resources, progress, and a restart of the server', async () => {
  model.script(
    {
      toolCalls: [
        call('everything__echo', { message: 'hello' }),
        call('everything__get-sum', { a: 2, b: 3 }),
        call('everything__get-tiny-image'),
        call('everything__get-structured-content', { location: 'Chicago' }),
        call('everything__get-resource-links', { count: 2 }),
        call('everything__trigger-long-running-operation', { duration: 0.2, steps: 2 }),
      ],
    },
    { text: 'all done' },
  );
  const done = await run('remote');
  expect(done).toMatchObject({ status: 'completed', output: 'all done' });
  expect(model.refusedRequests).toEqual([]);
  const [first, second] = model.requests;
  const names = first === undefined ? [] : toolNamesOf(first);
  expect(names).toEqual(names.toSorted());
  expect(names).toContain('everything__echo');
  expect(names.filter((name) => name.includes('toggle'))).toEqual([]);
  const results = second === undefined ? [] : toolResultsOf(second).map(({ text }) => text);
  expect(results.slice(0, 2)).toEqual(['Echo: hello', 'The sum of 2 and 3 is 5.']);
  expect(results[3]).toMatch(/^\{"temperature":\d+/);
  expect(results[4]).toContain('[resource demo://resource/');
  expect(results[5]).toContain('Long running operation completed');
  const image = /"type":"image","source":\{"type":"base64","media_type":"image\/png"/g;
  expect(second?.rawBody.match(image)).toHaveLength(1);
  expect((await eventsOf(done.id, 'tool.progress')).length).toBeGreaterThan(0);
  expect(await eventsOf(done.id, 'custom.mcp.status')).toMatchObject([
    { shim: 'mcp', data: { server: 'everything', state: 'ready', tools: names.length } },
  ]);
  expect(JSON.stringify(await eventsOf(done.id, 'custom.mcp.status'))).not.toContain('canary-remote');

  // Between two runs of one connection the server is restarted: it answers 400 to the session that it does not know.
  remote.kill('SIGKILL');
  await waitFor(async () => !(await isListening()));
  remote = startRemote();
  await waitFor(isListening, { timeoutMs: 20_000, what: 'the MCP server' });
  model.script(
    { toolCalls: [call('everything__echo', { message: 'again' })] },
    { toolCalls: [call('everything__echo', { message: 'and again' })] },
    { text: 'back' },
  );
  const after = await run('remote');
  expect(after).toMatchObject({ status: 'completed', output: 'back' });
  const completed = await eventsOf(after.id, 'tool.completed');
  expect(completed.at(-1)).toMatchObject({ ok: true, result: 'Echo: and again' });
  expect(await eventsOf(after.id, 'custom.mcp.status')).toMatchObject([{ data: { state: 'ready' } }]);
});

it('server-everything and server-filesystem over stdio: one run with both, and a person who decides what is written', async () => {
  const before = model.requests.length;
  const target = join(folder, 'new.txt');
  model.script(
    {
      toolCalls: [
        call('everything__get-env'),
        call('files__read_text_file', { path: join(folder, 'note.txt') }),
        call('files__read_text_file', { path: '/etc/hostname' }),
      ],
    },
    { toolCalls: [call('files__write_file', { path: target, content: 'written' })] },
    { toolCalls: [call('files__read_text_file', { path: target })] },
    { text: 'all done' },
  );
  const waiting = await run('local');
  expect(waiting).toMatchObject({
    status: 'waiting',
    interruptions: [{ reason: 'approval', tool: 'files__write_file' }],
  });
  const [interruption] = listOf(waiting.interruptions).filter(isObject);
  const decisions = [{ id: interruption?.id, decision: 'approve' }];
  const path = `/v1/runs/${String(waiting.id)}/resume`;
  const { body } = await server.json('POST', path, { decisions }, { prefer: 'wait=25' });
  expect(body).toMatchObject({ status: 'completed', output: 'all done' });
  expect(model.refusedRequests).toEqual([]);
  const completed = await eventsOf(waiting.id, 'tool.completed');
  expect(completed.map(({ name, ok }) => [name, ok])).toEqual([
    ['everything__get-env', true],
    ['files__read_text_file', true],
    ['files__read_text_file', false],
    ['files__write_file', true],
    ['files__read_text_file', true],
  ]);
  expect([completed[1]?.result, completed[4]?.result]).toEqual(['what is noted', 'written']);
  expect(String(completed[0]?.result)).not.toContain('MCP_REMOTE_TOKEN');
  const [first] = model.requests.slice(before);
  const names = first === undefined ? [] : toolNamesOf(first);
  expect(names).toEqual(expect.arrayContaining(['everything__echo', 'files__read_text_file', 'files__write_file']));
  const rounds = model.requests.slice(before).map(toolNamesOf);
  expect(rounds).toEqual(rounds.map(() => names));
});

it('a cancel reaches a call that a server is at work on, which obeys at once', async () => {
  model.script({ toolCalls: [call('everything__trigger-long-running-operation', { duration: 600, steps: 600 })] });
  const { body } = await server.json('POST', '/v1/runs', { agent: 'remote', input: 'go' });
  const path = `/v1/runs/${String(body.id)}`;
  await waitFor(async () => (await eventsOf(body.id, 'tool.progress')).length > 0, { timeoutMs: 20_000 });
  await server.json('DELETE', path, undefined, { prefer: 'wait=20' });
  const { body: cancelled } = await server.json('GET', path);
  expect(cancelled).toMatchObject({
    status: 'cancelled',
    cancellation: {
      inFlight: [
        { kind: 'tool', name: 'everything__trigger-long-running-operation', obeyed: true, sideEffects: 'none' },
      ],
    },
  });
});

it.each(['openai/gpt-5', 'openai-compatible/m', 'anthropic/claude-sonnet-4-5'])(
  'X04 %s takes every request, whatever the servers declare',
  async (modelId) => {
    const fake = await McpServer.start();
    const names = ['a.b', 'a b', 'a_b', 'x'.repeat(90)];
    for (const name of names) fake.offer(name, () => `ran ${name}`, { description: '' });
    const definitions = { $defs: { node: { type: 'object', properties: { next: { $ref: '#/$defs/node' } } } } };
    const bad: readonly unknown[] = [
      { type: 'string' },
      { type: 'object', oneOf: [{ required: ['a'] }] },
      { type: 'object', properties: { next: { $ref: '#/$defs/node' } }, ...definitions },
      { type: 'object', properties: { a: { $ref: '#/$defs/none' } } },
      { type: 'object', properties: { a: { type: 'string' }, required: ['a'] } },
      { type: 'object', properties: { a: { type: 'string', description: 'x'.repeat(5_000_000) } } },
      undefined,
    ];
    fake.tools = [...fake.tools, ...bad.map((inputSchema, index) => ({ name: `bad${index}`, inputSchema }))];
    const agent = `strict-${modelId.split('/')[0] ?? ''}`;
    await put(agent, modelId, { one: { url: fake.url }, two: { url: fake.url } });
    const before = model.requests.length;
    model.respondWith((request, index) =>
      index === before ? { toolCalls: toolNamesOf(request).map((name) => call(name)) } : { text: 'done' },
    );
    const done = await run(agent);
    model.respondWith(undefined);
    expect(done).toMatchObject({ status: 'completed', output: 'done' });
    expect(model.refusedRequests).toEqual([]);
    const results = toolResultsOf(model.requests[before + 1]!).map(({ text }) => text);
    expect(results.toSorted()).toEqual([...names, ...names].map((name) => `ran ${name}`).toSorted());
    const statuses = await eventsOf(done.id, 'custom.mcp.status');
    expect(statuses.map(({ data }) => (isObject(data) ? [data.tools, listOf(data.setAside).length] : []))).toEqual([
      [4, 7],
      [4, 7],
    ]);
    await fake.close();
  },
);
