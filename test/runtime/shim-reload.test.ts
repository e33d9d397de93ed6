import { mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { Logger } from '../../src/agent/tools.js';
import { ShimLoader, type ShimReport } from '../../src/runtime/shim-loader.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

const entryUrl = new URL('../../src/shims.ts', import.meta.url);
const quiet: Logger = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

let folder: string;
let loader: ShimLoader;
let changes: number;
beforeEach(() => {
  folder = temporaryFolder();
  changes = 0;
});
afterEach(async () => {
  await loader.close();
});

function write(file: string, text: string): string {
  const path = join(folder, file);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return path;
}
const shim = (name: string, description: string, head = ''): string =>
  `${head}import { defineShim } from 'shimline/shims';\nexport default defineShim({ name: '${name}', description: '${description}' });\n`;

async function start(folders = [folder]): Promise<void> {
  loader = new ShimLoader({
    folders,
    watch: true,
    entryUrl,
    log: quiet,
    importTimeoutMs: 500,
    onChange: () => (changes += 1),
  });
  await loader.load();
}

/** Waits until the shim says so, and tells how long that took. */
async function described(name: string, description: string | undefined): Promise<number> {
  const startedAt = performance.now();
  await waitFor(() => loader.get(name)?.description === description, {
    everyMs: 5,
    what: `${name} to say ${description ?? 'nothing'}`,
  });
  return performance.now() - startedAt;
}
async function reported(name: string, state: ShimReport['state']): Promise<ShimReport> {
  return waitFor(() => loader.list().find((report) => report.name === name && report.state === state), {
    everyMs: 5,
    what: `${name} to be ${state}`,
  });
}

it('R117: an edit is served to those who ask from then on; who has the old version keeps it', async () => {
  write('a.ts', shim('a', 'one'));
  await start();
  const old = loader.get('a')!;
  write('a.ts', shim('a', 'two'));
  const ms = await described('a', 'two');
  expect(ms).toBeLessThan(1000);
  expect(old.description).toBe('one');
  expect(old.create({}, { name: 'a' }).name).toBe('a');
  expect(loader.get('a')!.hash).not.toBe(old.hash);
  expect(changes).toBe(2);
});

it('R117: a file that an editor replaces by renaming is followed every time', async () => {
  write('a.mjs', shim('a', 'v0'));
  await start();
  for (const version of ['v1', 'v2', 'v3']) {
    renameSync(write('a.mjs.tmp', shim('a', version)), join(folder, 'a.mjs'));
    await described('a', version);
  }
  renameSync(join(folder, 'a.mjs'), join(folder, 'a.mjs~'));
  renameSync(write('4913', shim('a', 'v4')), join(folder, 'a.mjs'));
  await described('a', 'v4');
});

it('R117: a mounted folder whose links are swapped all at once is followed', async () => {
  write('..v1/a.ts', shim('a', 'one'));
  write('..v2/a.ts', shim('a', 'two'));
  symlinkSync('..v1', join(folder, '..data'));
  symlinkSync('..data/a.ts', join(folder, 'a.ts'));
  await start();
  expect(loader.get('a')?.description).toBe('one');
  symlinkSync('..v2', join(folder, '..data_tmp'));
  renameSync(join(folder, '..data_tmp'), join(folder, '..data'));
  await described('a', 'two');
});

it('R117: files and folders come and go', async () => {
  write('a.ts', shim('a', 'one'));
  await start();
  write('b.ts', shim('b', 'one'));
  await described('b', 'one');
  write('c/index.ts', shim('c', 'one'));
  await described('c', 'one');
  write('c/index.ts', shim('c', 'two'));
  await described('c', 'two');
  rmSync(join(folder, 'c'), { recursive: true });
  await described('c', undefined);
  rmSync(join(folder, 'b.ts'));
  await described('b', undefined);
  expect(loader.names()).toEqual(['a']);
});

it('R117: a broken file keeps the old version serving and is reported with line and message', async () => {
  write('a.ts', shim('a', 'one'));
  await start();
  const { hash } = loader.get('a')!;
  write('a.ts', `\nconst = 1;\n`);
  const report = await reported('a', 'stale');
  expect(report).toMatchObject({
    name: 'a',
    description: 'one',
    hash,
    error: { message: 'Unexpected token', line: 2, column: 7 },
  });
  expect(loader.get('a')?.description).toBe('one');
  write('a.ts', shim('a', 'two'));
  await described('a', 'two');
  expect(loader.list()[0]).toMatchObject({ state: 'loaded' });
  expect(loader.list()[0]).not.toHaveProperty('error');
});

it('R117: an edit that never settles is given up, and the old version serves', async () => {
  write('a.ts', shim('a', 'one'));
  await start();
  write('a.ts', shim('a', 'two', 'await new Promise(() => {});\n'));
  expect((await reported('a', 'stale')).error?.message).toContain('does not settle');
  expect(loader.get('a')?.description).toBe('one');
});

it('R117: a name that another file of the folder has is refused, and the old version serves', async () => {
  const first = write('a.ts', shim('a', 'one'));
  write('b.ts', shim('b', 'one'));
  await start();
  write('b.ts', shim('a', 'two'));
  expect((await reported('b', 'stale')).error?.message).toContain('a.ts');
  rmSync(first);
  await described('a', 'two');
  expect(loader.names()).toEqual(['a']);
});

it('R117: a changed helper reloads every shim that imports it, and no other', async () => {
  const uses = (name: string): string =>
    `import { defineShim } from 'shimline/shims';\nimport { text } from './_middle.js';\nexport default defineShim({ name: '${name}', description: text });\n`;
  write('_helper.mjs', `export const text = 'one';`);
  write('_middle.ts', `export { text } from './_helper.mjs';`);
  write('a.ts', uses('a'));
  write('b.js', uses('b'));
  write('c.ts', shim('c', 'one'));
  await start();
  const untouched = loader.get('c');
  write('_helper.mjs', `export const text = 'two';`);
  await described('a', 'two');
  await described('b', 'two');
  expect(loader.get('c')).toBe(untouched);
});

it('R117: a helper that appears mends the shim that wanted it', async () => {
  write('a.ts', `${shim('a', 'one')}import { text } from './lib/text.js';\nexport const again = text;\n`);
  await start();
  await reported('a', 'failed');
  write('lib/text.ts', `export const text = 1;`);
  await described('a', 'one');
});

it('R117: helpers outside of the folders are watched too', async () => {
  const outside = temporaryFolder();
  writeFileSync(join(outside, 'text.mjs'), `export const text = 'one';`);
  write(
    'a.ts',
    `import { defineShim } from 'shimline/shims';\nimport { text } from '${join(outside, 'text.mjs')}';\nexport default defineShim({ name: 'a', description: text });\n`,
  );
  await start();
  expect(loader.get('a')?.description).toBe('one');
  writeFileSync(join(outside, 'text.mjs'), `export const text = 'two';`);
  await described('a', 'two');
});

it('R117: a folder that is made, removed and made again is followed', async () => {
  const later = join(folder, 'deep', 'later');
  await start([later]);
  expect(loader.list()).toEqual([]);
  for (const version of ['one', 'two']) {
    write('deep/later/a.ts', shim('a', version));
    await described('a', version);
    rmSync(join(folder, 'deep'), { recursive: true });
    await described('a', undefined);
  }
});

it('looks at the files once more on load(), without watching', async () => {
  write('a.ts', shim('a', 'one'));
  loader = new ShimLoader({ folders: [folder], watch: false, entryUrl, log: quiet });
  await loader.load();
  const first = loader.get('a');
  await loader.load();
  expect(loader.get('a')).toBe(first);
  write('a.ts', shim('a', 'two'));
  await Promise.all([loader.load(), loader.load()]);
  expect(loader.get('a')?.description).toBe('two');
});

it('sees nothing more once it is closed', async () => {
  write('a.ts', shim('a', 'one'));
  await start();
  write('a.ts', shim('a', 'two'));
  await loader.close();
  await loader.load();
  expect(loader.get('a')?.description).toBe('one');
});
