import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { mcpShim } from '../../shims/mcp/index.js';
import type { LifecycleEvent } from '../../src/agent/events.js';
import { type ScriptedReply, type TestedRun, testShim } from '../../src/testing.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess, stopAll } from '../support/server-process.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

const PROGRAM = fileURLToPath(new URL('../support/mcp-program.mjs', import.meta.url));

interface Happening {
  readonly type: string;
  readonly pid: number;
  readonly child?: number;
  readonly tool?: string;
  readonly key?: string;
}

let file = '';
beforeEach(() => {
  file = join(temporaryFolder('mcp-'), 'events.jsonl');
});
afterEach(stopAll);

type Config = Parameters<typeof mcpShim>[0];
type ServerInput = NonNullable<Config['servers']>[string];

const program = (flags: readonly string[] = [], more: Partial<ServerInput> = {}): ServerInput => ({
  command: process.execPath,
  args: [PROGRAM, ...flags],
  ...more,
  env: { EVENTS_FILE: file, ...more.env },
});
const only = (server: ServerInput, config: Config = {}): ReturnType<typeof mcpShim> =>
  mcpShim({ idleTimeoutMs: 0, ...config, servers: { prog: server } });
const call = (toolName: string, input: Readonly<Record<string, string>> = {}): ScriptedReply => ({
  toolCalls: [{ toolName, input }],
});

const outcomes = (run: TestedRun): readonly unknown[] =>
  run.events
    .filter(({ type }) => type === 'tool.completed')
    .map((event) => ('result' in event ? event.result : (event as LifecycleEvent & { error?: unknown }).error));
const statuses = (run: TestedRun): readonly { readonly state: string; readonly error?: string }[] =>
  run.events
    .filter(({ type }) => type === 'custom.mcp.status')
    .map((event) => (event as unknown as { data: { state: string; error?: string } }).data);

function happened(type: string): readonly Happening[] {
  try {
    const lines = readFileSync(file, 'utf8').split('\n').filter(Boolean);
    return lines.map((line) => JSON.parse(line) as Happening).filter((event) => event.type === type);
  } catch {
    return [];
  }
}

/** Whether a process is there and no zombie. */
function isAlive(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return false;
  }
}

function groupOf(pid: number): readonly number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((other) => {
      try {
        const [, group] = /\) \S \d+ (\d+) /.exec(readFileSync(`/proc/${other}/stat`, 'latin1')) ?? [];
        return Number(group) === pid && isAlive(other);
      } catch {
        return false;
      }
    });
}

const pidOf = async (): Promise<number> => (await waitFor(() => happened('started')[0])).pid;

describe('a server as a program', () => {
  it('is called with its minimal environment, tells progress, and what it prints beside messages does no harm', async () => {
    process.env.NOT_FOR_PROGRAMS = 'x';
    const run = await testShim(only(program(['--noisy'])), {
      script: [call('prog__echo', { text: 'hé 😀' }), call('prog__env'), call('prog__progress'), 'done'],
    });
    delete process.env.NOT_FOR_PROGRAMS;
    const [echo, env, progress] = outcomes(run);
    expect([echo, progress]).toEqual(['hé 😀', 'done']);
    expect(String(env).split(' ')).toEqual(expect.arrayContaining(['EVENTS_FILE', 'HOME', 'PATH']));
    const passed = [
      'EVENTS_FILE',
      'HOME',
      'LANG',
      'LC_ALL',
      'LOGNAME',
      'PATH',
      'PWD',
      'SHELL',
      'SHLVL',
      'TERM',
      'TMPDIR',
      'TZ',
      'USER',
      '_',
      'OLDPWD',
    ];
    expect(
      String(env)
        .split(' ')
        .filter((name) => !passed.includes(name)),
    ).toEqual([]);
    expect(
      run.events
        .filter(({ type }) => type === 'tool.progress')
        .map((event) => (event as unknown as { data: unknown }).data),
    ).toEqual([
      { progress: 1, total: 2, message: 'step 1' },
      { progress: 2, total: 2, message: 'step 2' },
    ]);
    const keys = happened('called').map(({ key }) => key);
    expect(new Set(keys).size).toBe(3);
    const started = run.events.filter(({ type }) => type === 'tool.started') as unknown as { idempotencyKey: string }[];
    expect(keys).toEqual(started.map(({ idempotencyKey }) => idempotencyKey));
    await run[Symbol.asyncDispose]();
    const pid = await pidOf();
    await waitFor(() => happened('end of input').length === 1 && !isAlive(pid));
  });

  it('that gives notice of a new tool has it called in the next turn', async () => {
    const run = await testShim(only(program(), {}), { script: [call('prog__change'), call('prog__added'), 'done'] });
    expect(outcomes(run)).toEqual(['changed', 'added']);
    const [first = [], ...later] = run.tools;
    expect(later).toEqual(Array(2).fill(['prog__added', ...first].sort()));
    await run[Symbol.asyncDispose]();
  });

  it('that crashed is started again for the next call; a call is repeated only where that does no harm', async () => {
    const kill = (): ScriptedReply => {
      process.kill(happened('started').at(-1)?.pid ?? 0, 'SIGKILL');
      return call('prog__pid');
    };
    const run = await testShim(only(program()), {
      script: [call('prog__crash'), call('prog__echo', { text: 'back' }), kill, 'done'],
    });
    expect(outcomes(run).slice(0, 2)).toEqual([
      {
        kind: 'mcp_lost',
        message:
          'The MCP server "prog" gave no answer: the connection was closed; it ended with exit code 7. Whether the call had an effect is not known.',
      },
      'back',
    ]);
    const pids = happened('started').map(({ pid }) => pid);
    expect(outcomes(run)[2]).toBe(String(pids[2]));
    expect(pids).toHaveLength(3);
    expect(happened('called').filter(({ tool }) => tool === 'crash')).toHaveLength(1);
    expect(statuses(run).map(({ state, error }) => [state, error])).toEqual([
      ['ready', undefined],
      ['down', 'the connection was closed; it ended with exit code 7'],
      ['ready', undefined],
    ]);
    await run[Symbol.asyncDispose]();
  });

  it('that does not start is told with the end of what it wrote, and without its secrets', async () => {
    process.env.MCP_CANARY = 'canary-51c7e9d0';
    const failing = program(['--fails'], { env: { CANARY_TOKEN: '${MCP_CANARY}' } });
    const run = await testShim(only(failing));
    const [status] = statuses(run);
    expect(status?.state).toBe('down');
    expect(status?.error).toMatch(/it ended with exit code 3; stderr: .*cannot start with \[hidden\]$/s);
    expect(status?.error?.length).toBeLessThan(700);
    const required = await testShim(only({ ...failing, required: true }));
    expect(required.error?.message).toContain('The required MCP server "prog" is not available: ');
    delete process.env.MCP_CANARY;
    expect(JSON.stringify([run.events, required.events, required.error])).not.toContain('canary-51c7e9d0');
    const missing = await testShim(only({ command: 'no-such-program-7f3a' }));
    expect(statuses(missing)[0]?.error).toContain('the command was not found');
  });

  it('that never answers is given up in time, and a cancel does not wait for it', async () => {
    const run = await testShim(only(program(['--silent'], { connectTimeoutMs: 1000 })));
    expect([run.output, statuses(run)[0]?.error]).toEqual(['ok', 'it did not answer within 1000 ms']);
    const pid = await pidOf();
    await waitFor(() => !isAlive(pid));
    const controller = new AbortController();
    const cancelled = testShim(only(program(['--silent', '--deaf'])), { signal: controller.signal });
    await waitFor(() => happened('started').length === 2);
    controller.abort();
    expect((await cancelled).events.filter(({ type }) => type === 'shim.orphaned')).toEqual([]);
    await (await cancelled)[Symbol.asyncDispose]();
    const deaf = happened('started')[1]?.pid ?? 0;
    await waitFor(() => !isAlive(deaf), { timeoutMs: 15_000 });
  });

  it('A02 what it says of its secrets on stderr and in an error is not shown', async () => {
    process.env.MCP_CANARY = 'canary-8d02be44';
    const run = await testShim(only(program([], { env: { CANARY_TOKEN: '${MCP_CANARY}' } })), {
      script: [call('prog__secret'), call('prog__crash'), 'done'],
    });
    delete process.env.MCP_CANARY;
    expect(outcomes(run)[0]).toEqual({ kind: 'mcp_tool_error', message: 'the token [hidden] is not right' });
    expect(statuses(run).find(({ state }) => state === 'down')?.error).toContain('stderr: using the token [hidden]');
    expect(JSON.stringify([run.events, run.history])).not.toContain('canary-8d02be44');
    await run[Symbol.asyncDispose]();
  });

  it('ends with all that it started, however deaf', async () => {
    const run = await testShim(only(program(['--deaf'])), { script: [call('prog__fork'), 'done'] });
    const pid = await pidOf();
    const [child] = await waitFor(() => (happened('forked').length === 1 ? happened('forked') : undefined));
    expect([isAlive(pid), isAlive(child?.child ?? 0)]).toEqual([true, true]);
    await run[Symbol.asyncDispose]();
    await waitFor(() => !isAlive(pid) && !isAlive(child?.child ?? 0), { timeoutMs: 10_000 });
    expect(happened('sigterm')).toHaveLength(1);
  });
});

describe('through HTTP', () => {
  const agent = (server: ServerInput): { name: string; model: string; shims: { use: string; config: object }[] } => ({
    name: 'tooled',
    model: 'openai-compatible/m',
    shims: [{ use: 'mcp', config: { servers: { prog: server } } }],
  });

  it('A02 a SIGKILL of the server takes its programs along, deaf ones and their children too; their secrets stay nowhere', async () => {
    const model = await ModelEndpoint.start();
    model.script(
      { toolCalls: [{ name: 'prog__fork', arguments: {} }] },
      { toolCalls: ['prog__hang', 'prog__once'].map((name) => ({ name, arguments: {} })) },
    );
    const server = await ServerProcess.start({ env: { ...model.environment, MCP_CANARY: 'canary-aa12bb34cc' } });
    const { name, ...body } = agent(program(['--deaf'], { env: { CANARY_TOKEN: '${MCP_CANARY}' } }));
    expect((await server.json('PUT', `/v1/agents/${name}`, body)).status).toBe(201);
    const { body: run } = await server.json('POST', '/v1/runs', { agent: name, input: 'go' });
    await waitFor(() => happened('called').length === 3);
    const [{ pid, child = 0 } = { pid: 0 }] = happened('forked');
    const group = Number(/\) \S \d+ (\d+) /.exec(readFileSync(`/proc/${pid}/stat`, 'latin1'))?.[1]);
    expect(groupOf(group)).toEqual(expect.arrayContaining([pid, child]));
    await server.kill9();
    await waitFor(() => groupOf(group).length === 0, { timeoutMs: 10_000 });
    expect([isAlive(pid), isAlive(child)]).toEqual([false, false]);
    // Of the calls that the crash interrupted only that of the read-only tool is made again, as the same call.
    model.script({ text: 'done' });
    await server.restart();
    const after = await server.json('GET', `/v1/runs/${String(run.id)}`, undefined, { prefer: 'wait=20' });
    expect(after.body).toMatchObject({
      status: 'completed',
      output: 'done',
      recoveries: 1,
      unknownToolCalls: [{ tool: 'prog__hang' }],
    });
    const called = happened('called');
    expect(called.map(({ tool }) => tool)).toEqual(['fork', 'hang', 'once', 'once']);
    expect(called[3]?.key).toBe(called[2]?.key);
    expect(await server.term()).toBe(0);
    await waitFor(() => happened('started').every(({ pid: each }) => !isAlive(each)), { timeoutMs: 10_000 });
    const files = readdirSync(server.dataDir, { recursive: true, withFileTypes: true }).filter((entry) =>
      entry.isFile(),
    );
    const kept = files.map((entry) => readFileSync(join(entry.parentPath, entry.name), 'latin1'));
    expect([...server.logs, server.stderr, ...kept].join('\n')).not.toContain('canary-aa12bb34cc');
    await model.close();
  });
});
