import { appendFileSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import replyPrefix from '../../shims/reply-prefix.js';
import structuredLog from '../../shims/structured-log/index.js';
import { LineFile } from '../../shims/structured-log/line-file.js';
import { defineShim, defineTool, z } from '../../src/shims.js';
import { type ScriptedReply, testShim } from '../../src/testing.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess, stopAll } from '../support/server-process.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

afterAll(stopAll);

interface Line {
  readonly type: string;
  readonly [field: string]: unknown;
}
const fileIn = (dataDir: string, name = 'audit.jsonl'): string => join(dataDir, 'structured-log', name);
const linesOf = (path: string): Line[] =>
  readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Line);

const lookup = defineTool({
  name: 'lookup',
  description: 'Looks it up.',
  parameters: z.object({ q: z.string() }),
  execute: ({ q }) => {
    if (q === 'bad') throw new Error('the secret is 42');
    return { found: `the secret of ${q}` };
  },
});
const call = (q: string): ScriptedReply => ({ toolCalls: [{ toolName: 'lookup', input: { q } }] });

describe('the lines', () => {
  it('tell of a run what happened, how large it was and how long it took, and nothing of what was said', async () => {
    const dataDir = temporaryFolder('log-');
    const run = await testShim(structuredLog, {
      dataDir,
      tools: [lookup],
      after: [replyPrefix],
      input: 'a private question',
      script: [call('my private life'), call('bad'), 'a private answer'],
    });
    await run[Symbol.asyncDispose]();
    const lines = linesOf(fileIn(dataDir));
    expect(lines.map(({ type }) => type).filter((type) => !/^(shim|state|agent|custom)\./.test(type))).toEqual([
      'log.started',
      ...['turn.started', 'model.started', 'model.completed', 'tool.started', 'tool.completed', 'turn.completed'],
      ...['turn.started', 'model.started', 'model.completed', 'tool.started', 'tool.completed', 'turn.completed'],
      ...['turn.started', 'model.started', 'model.completed', 'turn.completed', 'run.completed'],
    ]);
    const picture = { size: expect.any(Number) as number, digest: expect.stringMatching(/^[0-9a-f]{16}$/) as string };
    const common = { at: expect.any(String) as string, runId: lines[0]?.runId, agent: 'agent', key: null };
    const of = (type: string): Line | undefined => lines.find((line) => line.type === type);
    expect(of('tool.started')).toEqual({
      ...common,
      type: 'tool.started',
      turn: 1,
      toolCallId: 'call_1',
      name: 'lookup',
      idempotencyKey: expect.any(String) as string,
      arguments: picture,
    });
    expect(of('model.completed')).toMatchObject({
      turn: 1,
      finishReason: 'tool-calls',
      message: picture,
      ms: expect.any(Number) as number,
    });
    expect(lines.filter(({ type }) => type === 'tool.completed').at(1)).toMatchObject({
      ok: false,
      error: { message: picture },
    });
    expect(of('run.completed')).toMatchObject({ output: { size: 16 }, turnCount: 3 });
    expect(of('turn.completed')).toHaveProperty('ms');
    expect(lines.find(({ type, shim }) => type === 'shim.effect' && shim === 'reply-prefix')).toMatchObject({
      callback: 'prepareTurn',
      changes: [{ what: 'instructions', before: picture, after: picture }],
    });
    expect(readFileSync(fileIn(dataDir), 'utf8')).not.toMatch(/private|secret|Care note/);
    expect(statSync(fileIn(dataDir)).mode & 0o777).toBe(0o600);
  });

  it('have the contents where the config says so', async () => {
    const dataDir = temporaryFolder('log-');
    const run = await testShim(structuredLog, {
      dataDir,
      config: { content: true, file: 'full/all.jsonl' },
      tools: [lookup],
      script: [call('x'), 'ok'],
    });
    await run[Symbol.asyncDispose]();
    const lines = linesOf(fileIn(dataDir, 'full/all.jsonl'));
    expect(lines.find(({ type }) => type === 'tool.completed')).toMatchObject({
      result: { value: { found: 'the secret of x' } },
    });
  });

  it('cannot be forged, whatever a text holds', async () => {
    const dataDir = temporaryFolder('log-');
    const evil = 'x\n{"type":"run.completed","forged":true}\u2028{"forged":true}\u0085{"forged":true}\r';
    const emitting = defineShim({
      name: 'emitting',
      onRunStart: (_s, _t, run) => run.emit('said', { type: evil, runId: evil, at: evil }),
    });
    const run = await testShim(structuredLog, {
      dataDir,
      config: { content: true },
      after: [emitting],
      input: evil,
      script: [{ text: [evil], finishReason: 'stop' }],
    });
    await run[Symbol.asyncDispose]();
    const text = readFileSync(fileIn(dataDir), 'utf8');
    const lines = text
      .split(/[\n\r\u2028\u2029\u0085]/)
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as Line);
    expect(lines.some((line) => 'forged' in line)).toBe(false);
    expect(new Set(lines.map(({ runId }) => runId)).size).toBe(1);
  });

  it('is a file below the folder of the log only', async () => {
    for (const file of [
      '../x.jsonl',
      '/tmp/x.jsonl',
      'a/../../x.jsonl',
      '.x.jsonl',
      'shimline.db',
      'a\\x.jsonl',
      'x.jsonl\n',
    ])
      await expect(testShim(structuredLog, { config: { file } }), file).rejects.toThrow('/file');
  });
});

describe('a disk that fails', () => {
  /** Where the file should be there is a folder. */
  const broken = (): string => {
    const dataDir = temporaryFolder('log-');
    mkdirSync(fileIn(dataDir), { recursive: true });
    return dataDir;
  };

  it('fails no run, and what is missing is told once it works again', async () => {
    const dataDir = broken();
    const run = await testShim(structuredLog, { dataDir });
    await run[Symbol.asyncDispose]();
    expect(run.output).toBe('ok');
    rmSync(fileIn(dataDir), { recursive: true });
    const again = await testShim(structuredLog, { dataDir });
    await again[Symbol.asyncDispose]();
    const [first, second] = linesOf(fileIn(dataDir));
    expect(first).toEqual({
      at: expect.any(String) as string,
      type: 'log.dropped',
      lines: expect.any(Number) as number,
    });
    expect(second?.type).toBe('log.started');
  });

  it('fails the run before the model is asked, where the config says so', async () => {
    const run = await testShim(structuredLog, { dataDir: broken(), config: { onFailure: 'fail' } });
    expect([run.error?.shim, run.error?.phase, run.requests]).toEqual(['structured-log', 'prepareTurn', []]);
    expect(run.error?.message).toContain('EISDIR');
  });
});

describe('the file', () => {
  const options = { maxBytes: 1000, keep: 2 };
  const pathIn = (): string => join(temporaryFolder('log-'), 'x.jsonl');

  it('is put aside when it is full, so many are kept, and no line is lost between them', async () => {
    const path = pathIn();
    const file = new LineFile(path, options);
    for (let n = 0; n < 60; n += 1) {
      file.write({ type: 'line', n, text: 'x'.repeat(20) });
      if (n % 7 === 0) await file.flush();
    }
    await file.flush();
    const names = readdirSync(join(path, '..')).sort();
    expect(names).toEqual(['x.jsonl', 'x.jsonl.1', 'x.jsonl.2']);
    const kept = ['x.jsonl.2', 'x.jsonl.1', 'x.jsonl'].flatMap((name) =>
      linesOf(join(path, '..', name)).map(({ n }) => n as number),
    );
    expect(kept).toEqual(Array.from({ length: kept.length }, (_, index) => 60 - kept.length + index));
    for (const name of names) expect(statSync(join(path, '..', name)).size).toBeLessThanOrEqual(1000);
  });

  it('takes a line that is too long for any file, and keeps none where none are to be kept', async () => {
    const path = pathIn();
    const file = new LineFile(path, { maxBytes: 1000, keep: 0 });
    file.write({ type: 'long', text: 'x'.repeat(3000) });
    file.write({ type: 'short' });
    await file.flush();
    expect([readdirSync(join(path, '..')), linesOf(path).map(({ type }) => type)]).toEqual([['x.jsonl'], ['short']]);
  });

  it('goes on after a line that a crash cut short', async () => {
    const path = pathIn();
    writeFileSync(path, '{"type":"whole"}\n');
    appendFileSync(path, '{"type":"cut sho');
    const file = new LineFile(path, options);
    file.write({ type: 'next' });
    await file.flush();
    expect(readFileSync(path, 'utf8')).toBe('{"type":"whole"}\n{"type":"cut sho\n{"type":"next"}\n');
  });

  it('holds the whole lines of many runs at once', async () => {
    const dataDir = temporaryFolder('log-');
    const shared = structuredLog.create();
    await Promise.all(
      Array.from({ length: 20 }, async (_, index) => {
        const run = await testShim(shared, {
          dataDir,
          input: `run ${index}`,
          tools: [lookup],
          script: [call('x'), 'ok'],
        });
        await run[Symbol.asyncDispose]();
      }),
    );
    const lines = linesOf(fileIn(dataDir));
    expect(lines.filter(({ type }) => type === 'run.completed')).toHaveLength(20);
    expect(lines.filter(({ type }) => type === 'tool.completed')).toHaveLength(20);
  });
});

it('over HTTP: the file has the whole run, its end and a failure included, and survives a kill -9', async () => {
  const model = await ModelEndpoint.start();
  const server = await ServerProcess.start({
    env: { ...model.environment, API_KEYS: 'ops:a-key-of-the-operators' },
    agents: [{ name: 'watched', model: 'openai-compatible/m', shims: [{ use: 'structured-log' }] }],
  });
  const headers = { authorization: 'Bearer a-key-of-the-operators', prefer: 'wait=20' };
  const post = async (): Promise<string> =>
    String((await server.json('POST', '/v1/runs', { agent: 'watched', input: 'a private question' }, headers)).body.id);
  model.script({ text: 'fine' }, { status: 400 });
  const path = fileIn(server.dataDir);
  const endsOf = async (count: number): Promise<readonly Line[]> =>
    waitFor(
      () => {
        const found = linesOf(path).filter(({ type }) => /^run\.(completed|failed)$/.test(type));
        return found.length === count ? found : undefined;
      },
      { what: `${count} ends in the log` },
    );
  const ids = [await post(), await post()];
  // The line of an end follows the commit that the client was told of.
  await endsOf(2);
  await server.kill9();
  await server.restart();
  ids.push(await post());
  const ends = await endsOf(3);
  expect(
    ends.map(({ runId, type, key, error }) => [runId, type, key, (error as { code?: string } | undefined)?.code]),
  ).toEqual([
    [ids[0], 'run.completed', 'ops', undefined],
    [ids[1], 'run.failed', 'ops', 'model_error'],
    [ids[2], 'run.completed', 'ops', undefined],
  ]);
  expect(readFileSync(path, 'utf8')).not.toContain('private');
  await model.close();
});
