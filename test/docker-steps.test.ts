// Runs the steps of the Dockerfile without Docker: the same COPY, RUN, HEALTHCHECK and CMD, in a clean folder.
// It compiles better-sqlite3 (over a minute), so it runs when asked for: DOCKER_STEPS=1 npm test -- docker-steps
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const repository = join(dirname(fileURLToPath(import.meta.url)), '..');
const BUILD_MS = 600_000;

interface Instruction {
  readonly name: string;
  readonly text: string;
}

/** The stages of a Dockerfile; comments dropped, continued lines joined. */
function stagesOf(dockerfile: string): Instruction[][] {
  const lines = dockerfile
    .replace(/^#.*\n/gm, '')
    .replace(/\\\n\s*/g, '')
    .split('\n')
    .filter((line) => line !== '');
  const stages: Instruction[][] = [];
  for (const line of lines) {
    const [, name = '', text = ''] = /^(\w+)\s+(.*)$/.exec(line) ?? [];
    if (name === 'FROM') stages.push([]);
    stages.at(-1)?.push({ name, text });
  }
  return stages;
}

const execForm = (text: string): string[] => JSON.parse(text.slice(text.indexOf('['))) as string[];

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  return typeof address === 'object' && address !== null ? address.port : 0;
}

describe.skipIf(process.env.DOCKER_STEPS !== '1')('the steps of the Dockerfile (DOCKER_STEPS=1)', () => {
  const image = mkdtempSync(join(tmpdir(), 'shimline-image-'));
  const build = join(image, 'build');
  const app = join(image, 'app');
  const stages = stagesOf(readFileSync(join(repository, 'Dockerfile'), 'utf8'));
  const [buildStage = [], runtimeStage = []] = stages;
  const find = (name: string): string => runtimeStage.find((step) => step.name === name)!.text;
  let server: ChildProcess | undefined;

  function copy(text: string, from: string, to: string): void {
    const paths = text.split(' ').filter((word) => !word.startsWith('--'));
    const target = paths.pop()!;
    for (const path of paths) {
      const intoFolder = target.endsWith('/');
      cpSync(join(from, path), join(to, target, intoFolder ? basename(path) : ''), { recursive: true });
    }
  }

  beforeAll(() => {
    mkdirSync(build);
    mkdirSync(app);
    for (const { name, text } of buildStage) {
      if (name === 'COPY') copy(text, repository, build);
      if (name === 'RUN' && !text.startsWith('apt-get')) execFileSync('sh', ['-c', text], { cwd: build });
    }
    for (const { name, text } of runtimeStage) {
      if (name === 'COPY') copy(text, image, app);
      if (name === 'RUN') {
        const command = text.replaceAll(/ (\/app|\/data)/g, ` ${image}$1`).replace(/ && chown .*/, '');
        execFileSync('sh', ['-c', command], { cwd: app });
      }
    }
  }, BUILD_MS);

  afterAll(() => {
    server?.kill('SIGKILL');
    rmSync(image, { recursive: true, force: true });
  });

  it('leaves the compiled program and no development package', () => {
    expect(stages).toHaveLength(2);
    for (const path of [
      'dist/src/server.js',
      'dist/shims',
      'my-shims',
      'node_modules/better-sqlite3',
      'package.json',
    ]) {
      expect(existsSync(join(app, path)), path).toBe(true);
    }
    for (const path of ['src', 'test', 'node_modules/typescript', 'node_modules/vitest']) {
      expect(existsSync(join(app, path)), path).toBe(false);
    }
    expect(find('USER')).toBe('node');
  });

  it('starts, reports health, and ends with 0 on SIGTERM', async () => {
    const set = new Map(
      find('ENV')
        .split(' ')
        .map((pair) => pair.split('=') as [string, string]),
    );
    const env = {
      PATH: process.env.PATH,
      ...Object.fromEntries(set),
      AUTH: 'none',
      PORT: String(await freePort()),
      DATA_DIR: join(image, 'data'),
      SHIMS_DIR: join(app, 'my-shims'),
    };
    const [command = '', ...args] = execForm(find('CMD'));
    const started = spawn(command, args, { cwd: app, env, stdio: ['ignore', 'ignore', 'inherit'] });
    server = started;
    const exited: Promise<unknown[]> = once(started, 'exit');

    const [check = '', ...checkArgs] = execForm(find('HEALTHCHECK'));
    const healthy = (): boolean => spawnSync(check, checkArgs, { env }).status === 0;
    await expect.poll(healthy, { timeout: 20_000, interval: 200 }).toBe(true);

    started.kill('SIGTERM');
    expect(await exited).toEqual([0, null]);
    expect(healthy()).toBe(false);
  });
});
