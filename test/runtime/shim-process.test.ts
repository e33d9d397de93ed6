import { execFile } from 'node:child_process';
import { cpSync, existsSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../support/wait.js';

const run = promisify(execFile);
const root = fileURLToPath(new URL('../..', import.meta.url));

/** The two ways in which the server runs: compiled under plain node, and its sources under tsx. */
const modes = [
  {
    mode: 'dist under node',
    rounds: 500,
    flags: [],
    loader: 'dist/src/runtime/shim-loader.js',
    entry: 'dist/src/shims.js',
    builtIn: 'dist/shims',
  },
  {
    mode: 'src under tsx',
    rounds: 100,
    flags: ['--import', 'tsx', '--conditions=shimline-source'],
    loader: 'src/runtime/shim-loader.ts',
    entry: 'src/shims.ts',
    builtIn: 'shims',
  },
];

const quiet = '{ debug() {}, info() {}, warn() {}, error() {} }';

async function script(mode: (typeof modes)[number], text: string, flags: readonly string[] = []): Promise<unknown> {
  const url = (path: string): string => JSON.stringify(pathToFileURL(join(root, path)).href);
  const head = `import { ShimLoader } from ${url(mode.loader)};
    import * as own from ${url(mode.entry)};
    const entryUrl = ${url(mode.entry)};
    const builtIn = ${JSON.stringify(join(root, mode.builtIn))};
    const log = ${quiet};\n`;
  const file = join(temporaryFolder(), 'probe.mjs');
  writeFileSync(file, head + text);
  const { stdout } = await run(process.execPath, [...flags, ...mode.flags, file], { cwd: root, timeout: 120_000 });
  return JSON.parse(stdout);
}

describe.each(modes)('$mode', (mode) => {
  it('loads the first-party shims and those of a folder outside the package with one identity', async () => {
    expect(existsSync(join(root, mode.loader))).toBe(true);
    const folder = temporaryFolder();
    for (const [file, name] of [
      ['a.ts', 'a'],
      ['b.mts', 'b'],
      ['c.js', 'c'],
      ['d.mjs', 'd'],
    ] as const) {
      writeFileSync(
        join(folder, file),
        `import { Shim, defineShim, ToolNameCollisionError } from 'shimline/shims';
        class Mine extends Shim { name = '${name}'; }
        globalThis.collisions = [...(globalThis.collisions ?? []), ToolNameCollisionError];
        export default ${name < 'c' ? `defineShim({ name: '${name}', create: () => new Mine() })` : 'Mine'};`,
      );
    }
    const result = await script(
      mode,
      `const loader = new ShimLoader({ folders: [builtIn, ${JSON.stringify(folder)}], watch: true, entryUrl, log });
      await loader.load();
      const shims = ['a', 'b', 'c', 'd'].map((name) => loader.get(name).create({}, { name }));
      console.log(JSON.stringify({
        faults: loader.list().filter(({ state }) => state !== 'loaded'),
        names: loader.names(),
        instances: shims.map((shim) => shim instanceof own.Shim),
        errors: globalThis.collisions.map((each) => each === own.ToolNameCollisionError),
        files: loader.list().filter(({ name }) => name === 'clock').map(({ file }) => file),
      }));`,
      // The watchers do not keep the process: it ends by itself.
    );
    expect(result).toEqual({
      faults: [],
      names: expect.arrayContaining([
        'a',
        'b',
        'c',
        'd',
        'clock',
        'exclude-tools',
        'reply-prefix',
        'turn-counter',
      ]) as string[],
      instances: [true, true, true, true],
      errors: [true, true, true, true],
      files: [`${mode.builtIn}/clock.${mode.builtIn === 'shims' ? 'ts' : 'js'}`],
    });
  });

  it(`R117: ${mode.rounds} reloads of a file leave no old version in memory`, async () => {
    const folder = temporaryFolder();
    const figures = (await script(
      mode,
      `import { writeFileSync } from 'node:fs';
      const folder = ${JSON.stringify(folder)};
      const loader = new ShimLoader({ folders: [folder], watch: false, entryUrl, log });
      // Each version is of some size in code and in data, as a real shim is.
      const text = (name, version) => \`import { defineShim, z } from 'shimline/shims';
        import { helper } from './_helper.\${name === 'ts' ? 'js' : 'mjs'}';
        const table = Array.from({ length: 20000 }, (_, index) => index + \${version});
        \${Array.from({ length: 20 }, (_, index) => \`export function f\${index}() { return [\${version}, table.length, 'x\${index}']; }\`).join('\\n')}
        export default defineShim({ name: '\${name}', description: 'v\${version}' + helper, config: z.strictObject({ a: z.string().default('\${version}') }), prepareTurn() { return table.length; } });\`;
      const kinds = ['ts', 'mjs'];
      const collected = { versions: 0 };
      const registry = new FinalizationRegistry(() => { collected.versions += 1; });
      const reload = async (version) => {
        writeFileSync(folder + '/_helper.ts', 'export const helper = ' + version);
        writeFileSync(folder + '/_helper.mjs', 'export const helper = ' + version);
        for (const kind of kinds) writeFileSync(folder + '/' + kind + '.' + kind, text(kind, version));
        await loader.load();
        for (const kind of kinds) {
          const shim = loader.get(kind);
          if (shim.description !== 'v' + version + version) throw new Error(JSON.stringify(loader.list()));
          shim.create({}, { name: kind }).prepareTurn();
          registry.register(shim, kind);
        }
      };
      const settled = async () => {
        for (let round = 0; round < 5; round += 1) { globalThis.gc(); await new Promise((resolve) => setTimeout(resolve, 20)); }
        return process.memoryUsage().heapUsed / 1048576;
      };
      for (let version = 0; version < 50; version += 1) await reload(version);
      const before = await settled();
      const startedAt = performance.now();
      for (let version = 50; version < 50 + ${mode.rounds}; version += 1) await reload(version);
      const ms = (performance.now() - startedAt) / ${mode.rounds};
      const after = await settled();
      console.log(JSON.stringify({ before, after, ms, collected: collected.versions }));`,
      ['--expose-gc'],
    )) as { readonly before: number; readonly after: number; readonly ms: number; readonly collected: number };
    const versions = 2 * (mode.rounds + 50);
    console.log(
      `${mode.mode}: heap ${figures.before.toFixed(2)} MiB after 50 reloads of 2 files, ${figures.after.toFixed(2)} MiB after ${mode.rounds + 50}; ${figures.collected} of ${versions} versions collected; ${figures.ms.toFixed(1)} ms a round`,
    );
    // A kept version holds a table of 160 kB, all of them 32 MB and more; what grows a little and then stops is machine code of the loader.
    expect(figures.after - figures.before).toBeLessThan(12);
    expect(figures.collected).toBeGreaterThan(versions - 20);
  }, 120_000);
});

it('of the shims of a checkout only those are compiled at the start that were changed since the build, or are new', async () => {
  const checkout = temporaryFolder();
  const source = join(checkout, 'shims');
  for (const path of ['package.json', 'dist', 'shims'])
    cpSync(join(root, path), join(checkout, path), { recursive: true });
  symlinkSync(join(root, 'node_modules'), join(checkout, 'node_modules'));
  // Copied after its sources, as a build writes it.
  cpSync(join(root, 'dist/shims'), join(checkout, 'dist/shims'), { recursive: true, force: true });
  const file = join(checkout, 'probe.mjs');
  writeFileSync(
    file,
    `import { writeFileSync } from 'node:fs';
    import { ShimLoader } from './dist/src/runtime/shim-loader.js';
    const [folder, source] = ${JSON.stringify([join(checkout, 'dist/shims'), source])};
    const options = { watch: false, entryUrl: new URL('./dist/src/shims.js', import.meta.url), log: ${quiet} };
    const loader = new ShimLoader({ ...options, folders: [folder, source], builtIn: { folder, source } });
    const told = async () => {
      await loader.load();
      return loader.list().filter(({ overrides, file }) => overrides !== undefined || !file.includes('dist/'))
        .map(({ name, state, description }) => ({ name, state, description }));
    };
    const shim = (name, description) => writeFileSync(source + '/' + name + '.ts',
      \`import { defineShim } from 'shimline/shims'; export default defineShim({ name: '\${name}', description: '\${description}' });\`);
    const atStart = await told();
    shim('clock', 'changed');
    shim('mine', 'new');
    const after = await told();
    // Built again: the module that this process has loaded is the old one all the same.
    writeFileSync(folder + '/clock.js', 'export default 1;');
    const rebuilt = await told();
    console.log(JSON.stringify({ all: loader.names().includes('exclude-tools'), atStart, after, rebuilt }));`,
  );
  const { stdout } = await run(process.execPath, [file], { cwd: checkout, timeout: 120_000 });
  const changed = [
    { name: 'clock', state: 'loaded', description: 'changed' },
    { name: 'mine', state: 'loaded', description: 'new' },
  ];
  expect(JSON.parse(stdout)).toEqual({ all: true, atStart: [], after: changed, rebuilt: changed });
});
