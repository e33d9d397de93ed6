import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import {
  calling,
  callOf,
  ended,
  getRun,
  interruptionIds,
  logOf,
  resume,
  runToEnd,
  startRun,
  typesOf,
} from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess } from '../support/server-process.js';
import { waitFor } from '../support/wait.js';
import { folderWith, isAlive, type Outcome, outcomesOf, type WorkspaceInput } from './workspace.js';

let lab: { readonly server: ServerProcess; readonly model: ModelEndpoint };
beforeAll(async () => {
  const model = await ModelEndpoint.start();
  const server = await ServerProcess.start({ env: { ...model.environment, SERVER_CANARY: 'canary-secret' } });
  lab = { server, model };
});
afterAll(async () => {
  await Promise.all([lab.server.stop(), lab.model.close()]);
});

let agents = 0;

/** Saves an agent with the tools and gives its name. */
async function agentWith(config: WorkspaceInput, model = 'openai-compatible/m'): Promise<string> {
  agents += 1;
  const name = `agent-${agents}`;
  const shims = [{ use: 'workspace-tools', config }];
  const { body } = await lab.server.json('PUT', `/v1/agents/${name}`, {
    model,
    instructions: 'You are a test.',
    shims,
  });
  expect(body, JSON.stringify(body)).toMatchObject({ name });
  return name;
}

const allowed = (root: string): WorkspaceInput => ({ root, policy: { bash: 'allow' } });
const outcomes = async (id: unknown): Promise<Outcome[]> => outcomesOf(await logOf(lab, id));

/** A command that says its own process id and that of a deaf child in the background, and stays. */
const STAYS = 'echo $$ > shell.pid; (trap "" TERM; sleep 1000) & echo $! > child.pid; echo started; sleep 1000';

async function processesIn(root: string): Promise<readonly number[]> {
  const files = ['shell.pid', 'child.pid'].map((name) => join(root, name));
  await waitFor(() => files.every((file) => existsSync(file) && readFileSync(file, 'utf8').endsWith('\n')));
  return files.map((file) => Number(readFileSync(file, 'utf8')));
}

it('T02 T04 A02 a model reads, patches, runs a command and sees an image, and the server’s variables are not among what it sees', async () => {
  const png = Buffer.from('89504e470d0a1a0a', 'hex');
  for (const model of ['openai-compatible/m', 'anthropic/claude-sonnet-4-5']) {
    const root = folderWith({ 'src/add.js': 'console.log(1 - 2);\n', 'dot.png': png });
    const agent = await agentWith(allowed(root), model);
    lab.model.script(
      calling(callOf('read', { path: 'src/add.js' })),
      calling(callOf('patch', { path: 'src/add.js', search: '1 - 2', replace: '1 + 2' })),
      calling(callOf('bash', { command: 'node src/add.js; env' }), callOf('read', { path: 'dot.png' })),
      { text: 'It prints 3 now.' },
    );
    const from = lab.model.requests.length;
    const run = await runToEnd(lab, { agent });
    expect(run).toMatchObject({ status: 'completed', output: 'It prints 3 now.' });
    expect(readFileSync(join(root, 'src/add.js'), 'utf8')).toBe('console.log(1 + 2);\n');
    const events = await logOf(lab, run.id);
    const [read, patched, ...others] = outcomesOf(events);
    expect([read?.result, patched?.result]).toEqual([
      'console.log(1 - 2);\n',
      'Replaced the text in src/add.js, at line 1.',
    ]);
    const bash = others.find(({ name }) => name === 'bash');
    expect(bash?.result).toMatch(/^3\n/);
    const progress = events
      .filter(({ type }) => type === 'tool.progress')
      .map(({ data }) => (data as { text: string }).text);
    expect(progress.join('').trimEnd()).toBe(bash?.result);
    const sent = lab.model.requests.slice(from).map(({ rawBody }) => rawBody);
    expect(JSON.stringify([sent, events])).not.toMatch(/canary-secret|test-(?:openai|anthropic|compatible)-key/);
    // The bytes are sent as a block of their own and in no text.
    const last = sent.at(-1) ?? '';
    expect(last.split(png.toString('base64'))).toHaveLength(2);
    expect(last).toMatch(model.startsWith('anthropic') ? /"type":"base64"/ : /"url":"data:image\/png;base64,/);
  }
});

it('C01 C02 a cancel ends the processes of a command, keeps what was finished, and the conversation goes on', async () => {
  const root = folderWith();
  const agent = await agentWith(allowed(root));
  lab.model.script(calling(callOf('write', { path: 'a.txt', content: 'a' }), callOf('bash', { command: STAYS })));
  const { body } = await startRun(lab, { agent });
  const processes = await processesIn(root);
  await waitFor(async () => {
    const types = typesOf(await logOf(lab, body.id));
    return types.includes('tool.progress') && types.includes('tool.completed');
  });
  expect(processes.map(isAlive)).toEqual([true, true]);
  await lab.server.json('DELETE', `/v1/runs/${String(body.id)}`);
  const run = await ended(lab, body.id);
  expect(run).toMatchObject({
    status: 'cancelled',
    cancellation: { inFlight: [{ kind: 'tool', name: 'bash', obeyed: true, sideEffects: 'unknown' }] },
  });
  await waitFor(() => !processes.some(isAlive));
  expect((await outcomes(body.id)).map(({ name, ok, error }) => [name, ok, error?.kind])).toEqual([
    ['write', true, undefined],
    ['bash', false, 'cancelled'],
  ]);
  lab.model.script({ text: 'on' });
  expect((await resume(lab, body.id, { input: 'go on' })).body).toMatchObject({ status: 'completed', output: 'on' });
});

it('K01 a command dies with the server, is not run again after a restart, and the model is told that nobody knows', async () => {
  const root = folderWith();
  const agent = await agentWith(allowed(root));
  lab.model.script(calling(callOf('bash', { command: `echo x >> ran; ${STAYS}` })), { text: 'I see.' });
  const { body } = await startRun(lab, { agent });
  const processes = await processesIn(root);
  await lab.server.kill9();
  await waitFor(() => !processes.some(isAlive));
  await lab.server.restart();
  expect(await ended(lab, body.id)).toMatchObject({
    status: 'completed',
    output: 'I see.',
    unknownToolCalls: [{ tool: 'bash' }],
  });
  expect(readFileSync(join(root, 'ran'), 'utf8')).toBe('x\n');
});

/** A run that waits for a person's word on one call. */
async function waiting(
  agent: string,
  ...call: Parameters<typeof callOf>
): Promise<{ readonly id: unknown; readonly interruption: string }> {
  lab.model.script(calling(callOf(...call)));
  const run = await runToEnd(lab, { agent });
  expect(run.status).toBe('waiting');
  return { id: run.id, interruption: interruptionIds(run)[0] ?? '' };
}

const decide = async (id: unknown, decision: JsonObject): Promise<readonly [unknown, unknown]> => {
  lab.model.script({ text: 'I see.' });
  const { body } = await resume(lab, id, { decisions: [decision] });
  const [outcome] = await outcomes(id);
  return [body.status, outcome?.ok === true ? outcome.result : outcome?.error?.kind];
};

it('what the policy asks for waits for a person, also over a restart, and runs once when approved', async () => {
  const root = folderWith();
  const agent = await agentWith({ root });
  const { id, interruption } = await waiting(agent, 'bash', { command: 'echo x >> ran; cat ran' });
  expect(existsSync(join(root, 'ran'))).toBe(false);
  await lab.server.kill9();
  await lab.server.restart();
  expect(await decide(id, { id: interruption, decision: 'approve' })).toEqual(['completed', 'x']);
});

it('failure R01 what a person denies is not run, also when the policy has become milder since', async () => {
  const root = folderWith();
  const agent = await agentWith({ root });
  const { id, interruption } = await waiting(agent, 'bash', { command: 'touch ran' });
  const shims = [{ use: 'workspace-tools', config: allowed(root) }];
  await lab.server.json('PUT', `/v1/agents/${agent}`, { model: 'openai-compatible/m', instructions: 'x', shims });
  expect(await decide(id, { id: interruption, decision: 'deny', reason: 'no' })).toEqual(['completed', 'denied']);
  expect(existsSync(join(root, 'ran'))).toBe(false);
});

it('arguments that a person has edited are checked again', async () => {
  const root = folderWith({ 'keys/.env': 'KEY=1\n' });
  const rules = [
    { operations: ['write'], action: 'ask', message: 'May it write?' },
    { operations: ['*'], action: 'deny', paths: ['keys'], message: 'Keys are nobody’s business.' },
  ] as const;
  const agent = await agentWith({ root, policy: { rules: rules as never } });
  const write = async (path: string): Promise<readonly [unknown, unknown]> => {
    const { id, interruption } = await waiting(agent, 'write', { path: 'a.txt', content: 'a' });
    const run = await getRun(lab, id);
    expect(run.interruptions).toMatchObject([{ tool: 'write', message: 'May it write?' }]);
    return decide(id, { id: interruption, decision: 'edit', arguments: { path, content: 'edited' } });
  };
  expect(await write('keys/.env')).toEqual(['completed', 'denied']);
  expect(await write('../outside.txt')).toEqual(['completed', 'outside_root']);
  expect(await write('b.txt')).toEqual(['completed', 'Made b.txt (1 line).']);
  expect(readFileSync(join(root, 'keys/.env'), 'utf8')).toBe('KEY=1\n');
  expect(existsSync(join(root, 'a.txt'))).toBe(false);
});

it('a search that was approved shows what it was approved for, and not what another rule asks for', async () => {
  const root = folderWith({ 'a.txt': 'x\n', 'keys/.env': 'x\n' });
  const rules = [{ operations: ['read'], action: 'ask', paths: ['keys'] }] as const;
  const agent = await agentWith({ root, policy: { read: 'ask', rules: rules as never } });
  const { id, interruption } = await waiting(agent, 'grep', { pattern: 'x' });
  expect(await decide(id, { id: interruption, decision: 'approve' })).toEqual([
    'completed',
    'a.txt:1:x\n[1 entry is left out by the policy.]',
  ]);
});

it('a run without a root has a folder of its own, and a fork has another', async () => {
  const agent = await agentWith({});
  lab.model.script(calling(callOf('write', { path: 'a.txt', content: 'a' })), { text: 'done' });
  const { id } = await runToEnd(lab, { agent });
  const folder = join(lab.server.dataDir, 'workspaces', String(id));
  expect(readFileSync(join(folder, 'a.txt'), 'utf8')).toBe('a');
  lab.model.script(calling(callOf('ls')), { text: 'done' });
  await resume(lab, id, { input: 'look' });
  expect((await outcomes(id)).at(-1)?.result).toBe('a.txt 1');
  lab.model.script(calling(callOf('ls')), { text: 'done' });
  const fork = await lab.server.json('POST', `/v1/runs/${String(id)}/fork`, { input: 'look' });
  await ended(lab, fork.body.id);
  expect((await outcomes(fork.body.id)).at(-1)?.result).toBe('[. is empty.]');
});
