import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { ServerProcess } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';
import { calling, callOf, getRun, type Lab, putAgent, resume, runToEnd, startLab, WAIT } from './lab.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab();
});
afterAll(async () => {
  await lab.close();
});

const like = (text: string): string => expect.stringContaining(text) as string;
const put = async (name: string, body: object): ReturnType<typeof putAgent> =>
  lab.server.json('PUT', `/v1/agents/${name}`, body);

describe('PUT /v1/agents/{name}', () => {
  it('creates with 201, replaces with 200, each change a new version', async () => {
    const body = {
      description: 'Helps.',
      model: 'openai-compatible/qwen3',
      instructions: 'You are one.',
      shims: [
        { use: 'reply-prefix', config: { prefix: 'Care note:' } },
        { use: 'exclude-tools', as: 'no-bash', config: { names: ['bash'] } },
      ],
      tools: {
        toolChoice: 'auto',
        parallelToolCalls: true,
        toolCallTimeoutMs: 60000,
        toolCallMaxRetries: 0,
        toolCallLimits: { search: 3 },
        maxToolRoundTrips: 10,
      },
      modelArgs: { temperature: 0 },
      output: { type: 'object' },
      handoffs: ['chat'],
      limits: { maxTurns: 128, maxDurationMs: 3600000, maxTotalTokens: 2000000 },
      metadata: { team: 'a' },
    };
    const created = await put('clinical-assistant', { name: 'clinical-assistant', ...body });
    expect(created).toMatchObject({
      status: 201,
      headers: { location: '/v1/agents/clinical-assistant' },
      body: { name: 'clinical-assistant', version: 1, ...body },
    });
    const replaced = await put('clinical-assistant', { ...body, instructions: 'You are two.' });
    expect(replaced).toMatchObject({ status: 200, body: { version: 2, instructions: 'You are two.' } });
    const read = await lab.server.json('GET', '/v1/agents/clinical-assistant');
    expect(read).toMatchObject({ status: 200, body: { ...body, instructions: 'You are two.', version: 2 } });
    const { body: list } = await lab.server.json('GET', '/v1/agents');
    expect(list.nextCursor).toBeNull();
    expect((list.data as JsonObject[]).find(({ name }) => name === 'clinical-assistant')).toMatchObject({ version: 2 });
  });

  it.each([
    [{ shims: [{ use: 'nobody' }] }, '/shims/0/use'],
    [{ shims: [{ use: 'reply-prefix', config: { prefix: 5 } }] }, '/shims/0/config/prefix'],
    [{ shims: [{ use: 'reply-prefix', config: { prefx: 'x' } }] }, '/shims/0/config'],
    [{ model: 'openai-compatible/' }, '/model'],
    [{ model: 'nobody/x' }, '/model'],
    [{ handoffs: ['chat', 'nobody'] }, '/handoffs/1'],
    [{ tools: { parallelToolCalls: 0 } }, '/tools/parallelToolCalls'],
    [{ limits: { maxTurns: 'many' } }, '/limits/maxTurns'],
    [{ bogus: true }, '/bogus'],
    [{ name: 'another' }, '/name'],
  ])('%j is 422 at %s', async (fields, pointer) => {
    const answer = await put('bad', { model: 'openai-compatible/m', ...fields });
    expect(answer.status).toBe(422);
    expect((answer.body.errors as JsonObject[]).map((error) => error.pointer)).toContain(pointer);
    expect((await lab.server.json('GET', '/v1/agents/bad')).status).toBe(404);
  });

  it('an output schema whose pattern would take for ever holds nobody up; what needs a look-ahead is 422', async () => {
    const output = (pattern: string): JsonObject => ({
      model: 'scripted/demo',
      output: { type: 'object', properties: { a: { type: 'string', pattern } } },
    });
    expect((await put('patient', output('^(a+)+$'))).status).toBe(201);
    const body = { agent: 'patient', input: `say {"a": "${'a'.repeat(40)}!"}` };
    expect((await lab.server.json('POST', '/v1/runs', body, WAIT)).body).toMatchObject({
      status: 'failed',
      error: { code: 'output_invalid', message: like('must match pattern') },
    });
    const ahead = await put('ahead', output('^(?!b)'));
    expect(ahead).toMatchObject({
      status: 422,
      body: { errors: [{ pointer: '/output', message: like('the pattern "^(?!b)" is not RE2 syntax') }] },
    });
  });

  it('an answer that goes on with empty lines in a fence holds nobody up either', async () => {
    expect((await put('lines', { model: 'openai-compatible/m', output: { type: 'object' } })).status).toBe(201);
    lab.model.script({ text: `\`\`\`json${'\n'.repeat(20_000)}x` }, { text: `\`\`\`json\n{"a": 1}\n  \`\`\`\n` });
    expect(await runToEnd(lab, { agent: 'lines' })).toMatchObject({ status: 'completed', output: { a: 1 } });
  });

  it('R3 refuses two shims of one name, naming both positions; "as" gives the second its own', async () => {
    const twice = [{ use: 'reply-prefix' }, { use: 'reply-prefix' }];
    const answer = await put('twins', { model: 'openai-compatible/m', shims: twice });
    expect(answer.status).toBe(422);
    expect(JSON.stringify(answer.body)).toMatch(/shims\/1.*0|0.*shims\/1/);
    expect(
      (await put('twins', { model: 'openai-compatible/m', shims: [twice[0], { ...twice[1], as: 'second' }] })).status,
    ).toBe(201);
  });
});

describe('runs', () => {
  it('keep the version that they started with, over resumes and a restart', async () => {
    await putAgent(lab, 'changing', { instructions: 'Version one.' });
    const run = await runToEnd(lab, { agent: 'changing' });
    lab.model.script(calling(callOf('gated')));
    const waiting = await runToEnd(lab, { agent: 'changing' });
    await putAgent(lab, 'changing', { instructions: 'Version two.', shims: [], model: 'anthropic/claude-sonnet-4-5' });
    await lab.server.restart();
    expect((await resume(lab, run.id, { input: 'more' })).body).toMatchObject({ status: 'completed', agentVersion: 1 });
    expect(lab.model.requests.at(-1)).toMatchObject({ dialect: 'openai-chat' });
    expect(lab.model.requests.at(-1)!.rawBody).toContain('Version one.');
    const [asked] = waiting.interruptions as { id: string }[];
    expect((await resume(lab, waiting.id, { decisions: [{ id: asked?.id, decision: 'approve' }] })).body).toMatchObject(
      { status: 'completed', agentVersion: 1 },
    );
    expect(lab.ledger.count(({ runId }) => runId === waiting.id)).toBe(1);
    expect(await runToEnd(lab, { agent: 'changing' })).toMatchObject({ agentVersion: 2 });
    expect(lab.model.requests.at(-1)).toMatchObject({ dialect: 'anthropic' });
  });

  it('of a deleted agent can be read and resumed; a new one is 422, and the name can be used again', async () => {
    await putAgent(lab, 'going', { instructions: 'Old.' });
    const run = await runToEnd(lab, { agent: 'going' });
    const gone = await lab.server.json('DELETE', '/v1/agents/going');
    expect([gone.status, gone.body]).toEqual([204, {}]);
    expect((await lab.server.json('GET', '/v1/agents/going')).body).toMatchObject({
      status: 404,
      code: 'agent_not_found',
    });
    expect((await lab.server.json('DELETE', '/v1/agents/going')).status).toBe(404);
    expect((await lab.server.json('POST', '/v1/runs', { agent: 'going', input: 'x' })).status).toBe(422);
    expect((await getRun(lab, run.id)).status).toBe('completed');
    expect((await resume(lab, run.id, { input: 'still there?' })).body).toMatchObject({
      status: 'completed',
      agentVersion: 1,
    });
    const again = await putAgent(lab, 'going', { instructions: 'New.' });
    expect([again.status, again.body.version]).toEqual([201, 2]);
  });
});

describe('templates', () => {
  it('are Mustache with values of the agent and of the run; a missing value is a 422 that names it', async () => {
    const body = {
      model: 'openai-compatible/m',
      instructions: { template: 'A {{ one }} and {{ two }}.', values: { one: '<1>' } },
    };
    expect((await put('templated', body)).status).toBe(201);
    const missing = await lab.server.json('POST', '/v1/runs', { agent: 'templated', input: 'x' });
    expect(missing.status).toBe(422);
    expect(JSON.stringify(missing.body)).toContain('two');
    expect(await runToEnd(lab, { agent: 'templated', values: { two: '"2"' } })).toMatchObject({ status: 'completed' });
    expect(lab.model.requests.at(-1)!.rawBody).toContain(JSON.stringify('A <1> and "2".').slice(1, -1));
    expect((await put('broken', { ...body, instructions: { template: '{{#open}', values: {} } })).status).toBe(422);
  });
});

describe('POST /v1/agents/{name}/preview', () => {
  it('shows the first model request and which shim changed what, and calls no model', async () => {
    await putAgent(lab, 'shown', { shims: [{ use: 'reply-prefix', config: { prefix: 'Hey:' } }, { use: 'clock' }] });
    const requests = lab.model.requests.length;
    const answer = await lab.server.json('POST', '/v1/agents/shown/preview', { input: 'what is it' });
    expect(answer.status).toBe(200);
    const text = JSON.stringify(answer.body);
    for (const part of ['what is it', 'Hey:', '"clock"', 'reply-prefix', 'instructions']) expect(text).toContain(part);
    expect(lab.model.requests.length).toBe(requests);
    expect((await lab.server.json('POST', '/v1/agents/nobody/preview', { input: 'x' })).status).toBe(404);
    expect((await lab.server.json('POST', '/v1/agents/shown/preview', { input: ' ' })).status).toBe(422);
  });
});

describe('GET /v1/shims', () => {
  it('lists each shim with its schema and state', async () => {
    const { status, body } = await lab.server.json('GET', '/v1/shims');
    expect(status).toBe(200);
    const found = (body.data as JsonObject[]).find(({ name }) => name === 'reply-prefix');
    expect(found).toMatchObject({
      version: 1,
      description: expect.any(String) as string,
      file: expect.stringContaining('reply-prefix') as string,
      hash: expect.any(String) as string,
      state: 'loaded',
    });
    expect(JSON.stringify(found)).toContain('"prefix"');
    expect((body.data as JsonObject[]).map(({ name }) => name)).toEqual(
      expect.arrayContaining(['clock', 'exclude-tools', 'lab', 'reply-prefix', 'turn-counter']),
    );
  });
});

describe('AGENTS_DIR', () => {
  const model = 'scripted/demo';

  it('loads JSON and Markdown files, owned by the files; a broken one does not stop the others', async () => {
    const folder = temporaryFolder('agents-');
    writeFileSync(
      join(folder, 'json-agent.json'),
      JSON.stringify({ name: 'json-agent', model, instructions: 'J', handoffs: ['md-agent'] }),
    );
    writeFileSync(
      join(folder, 'md-agent.md'),
      `---\nname: md-agent\nmodel: ${model}\nhandoffs: [json-agent]\n---\nYou are **marked** down.\n`,
    );
    writeFileSync(join(folder, 'broken.json'), '{"name": "broken", ');
    const server = await ServerProcess.start({ agents: folder });
    const names = async (): Promise<unknown[]> =>
      ((await server.json('GET', '/v1/agents')).body.data as JsonObject[]).map(({ name }) => name);
    expect(await names()).toEqual(['json-agent', 'md-agent']);
    expect((await server.json('GET', '/v1/agents/md-agent')).body).toMatchObject({
      instructions: expect.stringContaining('**marked**') as string,
      version: 1,
    });
    for (const [method, body] of [
      ['PUT', { model }],
      ['DELETE', undefined],
    ] as const) {
      expect([method, (await server.json(method, '/v1/agents/md-agent', body)).status]).toEqual([method, 409]);
    }
    const run = await server.json('POST', '/v1/runs', { agent: 'md-agent', input: 'say hi' }, WAIT);
    expect(run.body).toMatchObject({ status: 'completed', output: 'hi', agentVersion: 1 });

    // The files are looked at again at the next start: one changed, one gone, one mended.
    writeFileSync(join(folder, 'md-agent.md'), `---\nname: md-agent\nmodel: ${model}\n---\nChanged.\n`);
    rmSync(join(folder, 'json-agent.json'));
    writeFileSync(join(folder, 'broken.json'), JSON.stringify({ name: 'mended', model }));
    await server.restart();
    expect(await names()).toEqual(['md-agent', 'mended']);
    expect((await server.json('GET', '/v1/agents/md-agent')).body).toMatchObject({
      version: 2,
      instructions: expect.stringContaining('Changed.') as string,
    });
    await server.restart();
    expect((await server.json('GET', '/v1/agents/md-agent')).body.version).toBe(2);
    await server.stop();
  });

  it('of an empty server leaves one agent, demo, on the offline model', async () => {
    const folder = temporaryFolder('none-');
    mkdirSync(folder, { recursive: true });
    const server = await ServerProcess.start({});
    const { body } = await server.json('GET', '/v1/agents');
    expect(body.data).toMatchObject([{ name: 'demo', model: 'scripted/demo' }]);
    expect((await server.json('POST', '/v1/runs', { agent: 'demo', input: 'say hello' }, WAIT)).body).toMatchObject({
      status: 'completed',
      output: 'hello',
    });
    await server.stop();
  });
});
