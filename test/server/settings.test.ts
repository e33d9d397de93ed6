import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess, stopAll } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';
import { logOf, putAgent, runToEnd, startLab, startRun, WAIT } from './lab.js';

afterEach(async () => {
  await stopAll();
});

const entry = fileURLToPath(new URL('../../dist/src/server.js', import.meta.url));

/** What a start says that is refused. */
function refused(env: Record<string, string>): { readonly status: number | null; readonly lines: readonly string[] } {
  const { PATH = '' } = process.env;
  const { status, stderr } = spawnSync(process.execPath, [entry], {
    env: { PATH, PORT: '0', DATA_DIR: temporaryFolder('data-'), LOG_LEVEL: 'silent', ...env },
    encoding: 'utf8',
    timeout: 20_000,
  });
  return { status, lines: stderr.trim().split('\n') };
}

describe('a bad value stops the start', () => {
  it('an AGENTS_DIR that is no folder among them: a server without its agents is not what was asked for', () => {
    const { status, lines } = refused({ AGENTS_DIR: '/not/there' });
    expect(status).toBe(1);
    expect(lines.join(' ')).toContain('AGENTS_DIR: /not/there is no folder');
  });

  it('with one clear line for each fault, and shows no secret', () => {
    const { status, lines } = refused({
      PORT: '80x',
      MODEL_IDLE_TIMEOUT_MS: '-1',
      MODEL_MAX_RETRIES: '1.5',
      MAX_CONCURRENT_RUNS: '0',
      MAX_QUEUED_RUNS: 'many',
      DURABILITY: 'most',
      MAX_BODY_BYTES: '4MB',
      RATE_LIMIT_PER_MINUTE: '0',
      RETAIN_RUNS_DAYS: 'x',
      RETAIN_EVENTS_DAYS: '-3',
      RETAIN_RUNS_COUNT: '0',
      RETAIN_EVENTS_COUNT: '1.5',
      SHUTDOWN_GRACE_MS: '1s',
      LOG_LEVEL: 'loud',
      SHIMS_WATCH: 'maybe',
      AUTH: 'some',
      API_KEYS: 'no-colon-secret',
      OPENAI_BASE_URL: 'not a url',
    });
    expect(status).not.toBe(0);
    const named = lines.map((line) => line.split(':')[0]).sort();
    expect(named).toEqual(
      [
        'API_KEYS',
        'AUTH',
        'DURABILITY',
        'LOG_LEVEL',
        'MAX_BODY_BYTES',
        'MAX_CONCURRENT_RUNS',
        'MAX_QUEUED_RUNS',
        'MODEL_IDLE_TIMEOUT_MS',
        'MODEL_MAX_RETRIES',
        'OPENAI_BASE_URL',
        'PORT',
        'RATE_LIMIT_PER_MINUTE',
        'RETAIN_EVENTS_COUNT',
        'RETAIN_EVENTS_DAYS',
        'RETAIN_RUNS_COUNT',
        'RETAIN_RUNS_DAYS',
        'SHIMS_WATCH',
        'SHUTDOWN_GRACE_MS',
      ].sort(),
    );
    expect(lines.join('\n')).not.toContain('no-colon-secret');
  });

  it('so does a HOST beyond loopback without keys, unless AUTH=none', async () => {
    const { status, lines } = refused({ HOST: '0.0.0.0' });
    expect(status).not.toBe(0);
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatch(/HOST.*API_KEYS/);
    for (const env of [{ AUTH: 'none' }, { API_KEYS: 'a:key-0123456789abcdef' }]) {
      const server = await ServerProcess.start({ env: { HOST: '0.0.0.0', ...env } });
      expect(server.isRunning).toBe(true);
    }
  });
});

it('DATA_DIR: a second server on one folder refuses to start and leaves the first alone; a dead one does not stop the next', async () => {
  const dataDir = temporaryFolder('data-');
  const first = await ServerProcess.start({ dataDir });
  const { status, lines } = refused({ DATA_DIR: dataDir });
  expect([status, lines.length]).toEqual([1, 1]);
  expect(lines[0]).toContain('Another server');
  expect((await first.json('POST', '/v1/runs', { agent: 'demo', input: 'say hi' }, WAIT)).body).toMatchObject({
    status: 'completed',
  });
  await first.kill9();
  const next = await ServerProcess.start({ dataDir });
  expect(((await next.json('GET', '/v1/runs')).body.data as unknown[]).length).toBe(1);
});

describe('SHIMS_DIR', () => {
  it("adds to the package's own; one of the same name takes its place, and GET /v1/shims says so; a broken file is told of", async () => {
    const shimsDir = temporaryFolder('shims-');
    writeFileSync(
      join(shimsDir, 'mine.ts'),
      `import { defineShim } from 'shimline/shims';
       export default defineShim({ name: 'reply-prefix', version: 7, description: 'Mine.', prepareTurn(turn: { appendSystemInstruction(text: string): void }) { turn.appendSystemInstruction('MINE'); } });`,
    );
    writeFileSync(
      join(shimsDir, 'broken.mjs'),
      `import { defineShim } from 'shimline/shims';\n\nexport default defineShim({ name: 'broken' `,
    );
    writeFileSync(join(shimsDir, '_skipped.mjs'), 'throw new Error("never loaded")');
    const model = await ModelEndpoint.start();
    const server = await ServerProcess.start({ shimsDir, env: model.environment });
    const { body } = await server.json('GET', '/v1/shims');
    const all = body.data as JsonObject[];
    const named = all.filter(({ name, state }) => name === 'reply-prefix' && state === 'loaded');
    expect(named).toHaveLength(1);
    expect(named[0]).toMatchObject({
      version: 7,
      description: 'Mine.',
      file: expect.stringContaining('mine.ts') as string,
    });
    expect(JSON.stringify(all)).toMatch(/replace|overrid|instead|shadow|place/i);
    const broken = all.find(({ file }) => String(file).endsWith('broken.mjs'));
    expect(broken?.state).not.toBe('loaded');
    expect(JSON.stringify(broken)).toMatch(/"line":3/);
    expect(JSON.stringify(all)).not.toContain('_skipped');
    await server.json('PUT', '/v1/agents/a', { model: 'openai-compatible/m', shims: [{ use: 'reply-prefix' }] });
    await server.json('POST', '/v1/runs', { agent: 'a', input: 'x' }, WAIT);
    expect(model.requests.at(-1)!.rawBody).toContain('MINE');
    await model.close();
  });

  it('may be missing', async () => {
    const server = await ServerProcess.start({ shimsDir: join(temporaryFolder(), 'not-there') });
    expect((await server.json('GET', '/readyz')).status).toBe(200);
  });
});

describe('model settings', () => {
  it('MODEL_IDLE_TIMEOUT_MS and MODEL_MAX_RETRIES: silence is retried as a marked call, then fails with its code', async () => {
    const lab = await startLab({ env: { MODEL_IDLE_TIMEOUT_MS: '1500', MODEL_MAX_RETRIES: '1' } });
    const silent = { text: ['said ', 'x'], cut: { after: 'half-text', how: 'stall' } } as const;
    lab.model.script(silent, { text: 'second try' });
    const run = await runToEnd(lab, {});
    expect(run).toMatchObject({ status: 'completed', output: 'second try' });
    const started = (await logOf(lab, run.id)).filter(({ type }) => type === 'model.started');
    expect(started).toHaveLength(2);
    expect(started[1]?.replaces).toBe(started[0]?.modelCallId);
    lab.model.script(silent, silent);
    expect(await runToEnd(lab, {})).toMatchObject({ status: 'failed', error: { code: 'model_idle_timeout' } });
    lab.model.script({ status: 503 }, { status: 429, headers: { 'retry-after': '0' } });
    const failed = await runToEnd(lab, {});
    expect(failed).toMatchObject({ status: 'failed', error: { code: 'model_error', status: 429 } });
    expect((await logOf(lab, failed.id)).filter(({ type }) => type === 'model.retrying')).toHaveLength(1);
    lab.model.script(
      { text: ['cut ', 'x'], cut: { after: 'text', how: 'reset' } },
      { text: ['cut ', 'x'], cut: { after: 'text', how: 'end' } },
    );
    expect(await runToEnd(lab, {})).toMatchObject({
      status: 'failed',
      error: { code: 'model_stream_cut' },
      partialOutput: 'cut x',
    });
    await lab.close();
  });

  it('an unknown or unconfigured model is a 422 when the agent is saved', async () => {
    const server = await ServerProcess.start({});
    for (const model of ['openai/gpt-5', 'anthropic/claude', 'nobody/x', 'scripted/other', 'x']) {
      const answer = await server.json('PUT', '/v1/agents/a', { model });
      expect([model, answer.status, (answer.body.errors as JsonObject[])[0]?.pointer]).toEqual([model, 422, '/model']);
    }
  });
});

describe('MAX_BODY_BYTES', () => {
  it('is 413 beyond, as a problem', async () => {
    const server = await ServerProcess.start({ env: { MAX_BODY_BYTES: '1000' } });
    const body = { agent: 'demo', input: 'x'.repeat(2000) };
    expect(await server.json('POST', '/v1/runs', body)).toMatchObject({
      status: 413,
      body: { status: 413, code: 'payload_too_large' },
    });
    expect((await server.json('POST', '/v1/runs', { ...body, input: 'say hi' })).status).toBe(202);
    const text = await server.json('POST', '/v1/runs', 'agent=demo', {
      'content-type': 'application/x-www-form-urlencoded',
    });
    expect(text).toMatchObject({ status: 415, body: { status: 415 } });
    expect(await server.json('GET', '/v1/nothing')).toMatchObject({ status: 404, body: { status: 404 } });
  });
});

it.each(['full', 'normal'])('DURABILITY=%s survives kill -9', async (DURABILITY) => {
  const lab = await startLab({ env: { DURABILITY } });
  const answers = await Promise.all(Array.from({ length: 10 }, async () => startRun(lab, {})));
  await lab.server.kill9();
  await lab.server.restart();
  for (const { body } of answers) {
    expect((await lab.server.json('GET', `/v1/runs/${String(body.id)}`, undefined, WAIT)).body.status).toBe(
      'completed',
    );
  }
  await putAgent(lab, 'after');
  await lab.close();
});
