import { createHash } from 'node:crypto';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { InvalidShimConfigError } from '../../src/agent/define-shim.js';
import type { Logger } from '../../src/agent/tools.js';
import { ShimLoader, type ShimReport } from '../../src/runtime/shim-loader.js';
import { BoundShim, Shim } from '../../src/shims.js';
import { temporaryFolder } from '../support/wait.js';

const quiet: Logger = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
const entryUrl = new URL('../../src/shims.ts', import.meta.url);

let folder: string;
const loaders: ShimLoader[] = [];
beforeEach(() => {
  folder = temporaryFolder();
});
afterEach(async () => {
  for (const loader of loaders.splice(0)) await loader.close();
});

function write(file: string, text: string, root = folder): string {
  const path = join(root, file);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return path;
}

async function load(
  folders: readonly string[] = [folder],
  options: { readonly importTimeoutMs?: number } = {},
): Promise<ShimLoader> {
  const loader = new ShimLoader({ folders, watch: false, entryUrl, log: quiet, ...options });
  loaders.push(loader);
  await loader.load();
  return loader;
}

/** The error of the one file that did not load. */
function errorOf(loader: ShimLoader, name: string): NonNullable<ShimReport['error']> {
  const error = loader.list().find((report) => report.name === name)?.error;
  if (error === undefined) throw new Error(`${name} has no error`);
  return error;
}

const plain = (name: string): string =>
  `import { defineShim } from 'shimline/shims';\nexport default defineShim({ name: '${name}' });\n`;

describe('what is a shim file', () => {
  it('loads .ts, .mts, .js, .mjs and folders with an index, outside the package', async () => {
    write('a.ts', plain('a'));
    write('b.mts', plain('b'));
    write('c.js', plain('c'));
    write('d.mjs', plain('d'));
    write('e/index.ts', plain('e'));
    expect((await load()).names()).toEqual(['a', 'b', 'c', 'd', 'e']);
  });

  it('loads .js and .ts as modules whatever the package.json beside them says', async () => {
    write('package.json', '{ "type": "commonjs" }');
    write('a.js', plain('a'));
    write('sub/package.json', '{ "type": "module" }');
    write('sub/index.js', plain('sub'));
    expect((await load()).names()).toEqual(['a', 'sub']);
  });

  it('skips helpers, hidden files, tests, declarations, packages and folders without an index', async () => {
    for (const file of [
      '_helper.ts',
      '.hidden.ts',
      'a.test.ts',
      'a.spec.js',
      'a.d.ts',
      'a.d.mts',
      '_folder/index.ts',
      'node_modules/index.js',
      'data/x.ts',
      'notes.md',
      'x.cjs',
      'a.ts~',
    ]) {
      write(file, plain('never'));
    }
    const loader = await load();
    expect(loader.list()).toEqual([]);
  });

  it('takes a missing folder for an empty one, and the same folder twice for one', async () => {
    write('a.ts', plain('a'));
    const loader = await load([join(folder, 'nowhere'), folder, join(folder, '..', folder.split('/').at(-1)!)]);
    expect(loader.list().map(({ name, state, overrides }) => ({ name, state, overrides }))).toEqual([
      { name: 'a', state: 'loaded', overrides: undefined },
    ]);
  });
});

describe('what a shim file exports', () => {
  it('takes the result of defineShim, with config schema, version and description', async () => {
    const text = `import { defineShim, Shim, z, type PreparedTurn } from 'shimline/shims';
      enum Mode { Soft = 'soft' }
      class Mine extends Shim { constructor(readonly name: string, readonly prefix: string) { super(); } override prepareTurn(_turn: PreparedTurn): void {} }
      export default defineShim({ name: 'mine', version: 3, description: 'Does it ' + Mode.Soft, inherit: 'none',
        config: z.strictObject({ prefix: z.string().default('Hi') }), create: ({ prefix }, { name }) => new Mine(name, prefix) });`;
    const file = write('mine.ts', text);
    const loader = await load();
    const loaded = loader.get('mine')!;
    expect(loaded).toMatchObject({
      name: 'mine',
      version: 3,
      description: 'Does it soft',
      inherit: 'none',
      file,
      hash: createHash('sha256').update(text).digest('hex').slice(0, 16),
    });
    expect(loaded.configSchema).toMatchObject({
      type: 'object',
      properties: { prefix: { type: 'string', default: 'Hi' } },
      additionalProperties: false,
    });
    const shim = loaded.create({ prefix: 'Yo' }, { name: 'second' });
    expect(shim).toBeInstanceOf(Shim);
    expect(shim).toMatchObject({ name: 'second', prefix: 'Yo' });
    expect(() => loaded.create({ prefix: 7 }, { name: 'mine' })).toThrow(InvalidShimConfigError);
    expect(Object.isFrozen(loaded)).toBe(true);
  });

  it('takes a class that extends Shim, honours its static config, and names it by an instance', async () => {
    write(
      'greeter.js',
      `import { Shim, z } from 'shimline/shims';
      export default class Greeter extends Shim {
        static config = z.object({ word: z.string().default('hello') });
        static version = 2;
        name = 'greeter';
        inherit = 'always';
        constructor(config) { super(); this.word = config.word; }
      }`,
    );
    const loader = await load();
    const greeter = loader.get('greeter')!;
    expect(greeter).toMatchObject({ version: 2, inherit: 'always' });
    expect(greeter.configSchema).toMatchObject({ properties: { word: { type: 'string', default: 'hello' } } });
    expect(greeter.create(undefined, { name: 'greeter' })).toMatchObject({ name: 'greeter', word: 'hello' });
    expect(greeter.create({ word: 'hi' }, { name: 'other' })).toMatchObject({ name: 'other', word: 'hi' });
    expect(() => greeter.create({ word: 1 }, { name: 'greeter' })).toThrow('/word');
    expect(() => greeter.create({ wrod: 'x' }, { name: 'greeter' })).toThrow('wrod');
  });

  it('holds instanceof for shims, sessions and delegates: one identity', async () => {
    write(
      'wrapped.mts',
      `import { BoundShim, DelegatingShim, DelegatingBoundShim, Shim, defineShim } from 'shimline/shims';
      import inner from './_inner.mjs';
      class Session extends DelegatingBoundShim {}
      class Outer extends DelegatingShim { override async bind(context) { return new Session(await this.inner.bind(context)); } }
      export default defineShim({ name: 'wrapped', create: (_config, { name }) => new Outer(inner.create({}, { name })) });`,
    );
    write('_inner.mjs', plain('inner'));
    const loader = await load();
    const shim = loader.get('wrapped')!.create({}, { name: 'wrapped' });
    expect(shim).toBeInstanceOf(Shim);
    expect(
      await shim.bind({ task: { runId: 'r', agent: 'a', model: 'm', depth: 0 }, toolSourceBindings: [] }),
    ).toBeInstanceOf(BoundShim);
  });

  it.each([
    ['no default export', `export const a = 1;\n`, 'not nothing', null],
    ['an empty file', '', 'not nothing', null],
    ['a plain object', `\nexport default { name: 'x' };\n`, 'not an object with name', 2],
    ['a function', `export default () => {};\n`, 'not a function', 1],
    ['a foreign class', `\n\nexport default class Mine {}\n`, 'not the class Mine, which does not', 3],
    [
      'an instance',
      `import { Shim } from 'shimline/shims';\nclass A extends Shim { name = 'a'; }\nexport default new A();\n`,
      'not an instance of one',
      3,
    ],
    [
      'a guard that may skip (R78a)',
      `import { Shim, defineShim } from 'shimline/shims';\nclass A extends Shim { name = 'a'; inherit = 'always'; onFailure = 'skip'; }\nexport default defineShim({ name: 'a', create: () => new A() });\n`,
      'inherited always',
      3,
    ],
    [
      'a create without a Shim',
      `import { defineShim } from 'shimline/shims';\nexport default defineShim({ name: 'a', create: () => ({}) });\n`,
      'gave no Shim',
      2,
    ],
    [
      'a class that needs config',
      `import { Shim } from 'shimline/shims';\nexport default class A extends Shim {\n  constructor(config) { super(); this.name = config.names[0]; } }\n`,
      'its constructor threw for an empty config',
      2,
    ],
    [
      'a bad name',
      `import { defineShim } from 'shimline/shims';\nexport default\n  defineShim({ name: 'a b' });\n`,
      "A shim's name is",
      3,
    ],
  ])('refuses %s', async (_what, text, message, line) => {
    write('broken.js', text);
    write('good.ts', plain('good'));
    const loader = await load();
    expect(loader.names()).toEqual(['good']);
    const error = errorOf(loader, 'broken');
    expect(error.message).toContain(message);
    expect(error.line).toBe(line);
  });
});

describe('broken files', () => {
  it('reports a syntax error with line and column, and loads the others', async () => {
    write('broken.ts', `import { defineShim } from 'shimline/shims';\n\nconst a: number = ;\n`);
    write('good.ts', plain('good'));
    const loader = await load();
    expect(loader.names()).toEqual(['good']);
    expect(loader.list().find(({ name }) => name === 'broken')).toEqual({
      name: 'broken',
      version: null,
      description: '',
      file: join(folder, 'broken.ts'),
      hash: expect.stringMatching(/^[0-9a-f]{16}$/) as string,
      configSchema: null,
      state: 'failed',
      error: { message: 'Unexpected token', line: 3, column: 19 },
    });
  });

  it('reports a throw while loading with its line, through type annotations and blank lines', async () => {
    write(
      'throws.ts',
      `import { defineShim } from 'shimline/shims';\ninterface A {\n  a: string;\n}\n\nconst make = (a: A): A => {\n  throw new TypeError('no ' + a.a);\n};\nmake({ a: 'way' });\nexport default defineShim({ name: 'throws' });\n`,
    );
    const loader = await load();
    expect(errorOf(loader, 'throws')).toMatchObject({ message: 'TypeError: no way', line: 7 });
  });

  it('names the helper in which it was thrown', async () => {
    write('uses.ts', `import './_helper.js';\n${plain('uses')}`);
    write('_helper.ts', `\n\nexport const a = (() => { throw new Error('bad helper'); })();\n`);
    expect(errorOf(await load(), 'uses')).toMatchObject({
      message: `bad helper (in ${join(folder, '_helper.ts')})`,
      line: 3,
    });
  });

  it.each([
    ['./_gone.js', 'there is no file "./_gone.js"'],
    ['some-package-that-is-not-there', 'there is no package "some-package-that-is-not-there"'],
    ['shimline', 'a shim imports "shimline/shims" and nothing else of shimline'],
    ['shimline/testing', 'a shim imports "shimline/shims" and nothing else of shimline'],
  ])('says which import of %s has no target, and its line', async (specifier, message) => {
    write(
      'a.ts',
      `import { defineShim } from 'shimline/shims';\nimport * as it from '${specifier}';\nexport default defineShim({ name: 'a', description: String(it) });\n`,
    );
    const error = errorOf(await load(), 'a');
    expect(error.message).toContain(message);
    expect(error.line).toBe(2);
  });

  it('says which name shimline/shims does not export', async () => {
    write('a.ts', `import { defineShimm } from 'shimline/shims';\n\nexport default defineShimm({ name: 'a' });\n`);
    expect(errorOf(await load(), 'a')).toMatchObject({
      message: 'SyntaxError: "shimline/shims" has no export named "defineShimm"',
      line: 3,
    });
  });

  it('bounds an import that never settles, and keeps the others', async () => {
    write('hangs.ts', `await new Promise(() => {});\n${plain('hangs')}`);
    write('waits.ts', `await new Promise((resolve) => setTimeout(resolve, 20));\n${plain('waits')}`);
    const loader = await load([folder], { importTimeoutMs: 300 });
    expect(loader.names()).toEqual(['waits']);
    expect(errorOf(loader, 'hangs').message).toContain('not evaluated within 300 ms');
  });

  it('survives a throw of something that is no error', async () => {
    write('a.ts', 'throw null;');
    write('b.ts', 'throw Object.create(null);');
    expect(errorOf(await load(), 'a').message).toBe('it threw null');
  });
});

describe('names', () => {
  it('lets another folder take the place of ours, and says so', async () => {
    const ours = temporaryFolder();
    write('reply.ts', plain('reply'), ours);
    write('only.ts', plain('only'), ours);
    write('my-reply.ts', plain('reply'));
    const loader = await load([ours, folder]);
    expect(loader.list().map(({ name, file, state, overrides }) => ({ name, file, state, overrides }))).toEqual([
      { name: 'only', file: join(ours, 'only.ts'), state: 'loaded', overrides: undefined },
      { name: 'reply', file: join(folder, 'my-reply.ts'), state: 'loaded', overrides: join(ours, 'reply.ts') },
    ]);
    rmSync(join(folder, 'my-reply.ts'));
    await loader.load();
    expect(loader.get('reply')?.file).toBe(join(ours, 'reply.ts'));
  });

  it('R3: refuses the second of two files of one name in one folder, naming both', async () => {
    const first = write('a.ts', plain('same'));
    const second = write('b.ts', plain('same'));
    const loader = await load();
    expect(loader.get('same')?.file).toBe(first);
    const { message } = errorOf(loader, 'b');
    expect(message).toContain(first);
    expect(message).toContain(second);
    rmSync(first);
    await loader.load();
    expect(loader.get('same')?.file).toBe(second);
    expect(loader.list()).toHaveLength(1);
  });

  it('lets two files swap their names in one go', async () => {
    const a = write('a.ts', plain('one'));
    const b = write('b.ts', plain('two'));
    const loader = await load();
    write('a.ts', plain('two'));
    write('b.ts', plain('one'));
    await loader.load();
    expect([loader.get('one')?.file, loader.get('two')?.file]).toEqual([b, a]);
  });
});

describe('R118: content hash', () => {
  it('covers the files that a shim imports, and all source files of its folder', async () => {
    write('a.ts', `import './_helper.js';\n${plain('a')}`);
    write('_helper.ts', 'export const a = 1;\n');
    write('b/index.ts', plain('b'));
    write('b/other.ts', 'export const b = 1;\n');
    write('b/other.test.ts', 'export const c = 1;\n');
    write('c.ts', plain('c'));
    const loader = await load();
    const hashes = (): (string | undefined)[] => ['a', 'b', 'c'].map((name) => loader.get(name)?.hash);
    const [a, b, c] = hashes();
    expect(new Set([a, b, c]).size).toBe(3);
    write('b/other.test.ts', 'export const c = 2;\n');
    await loader.load();
    expect(hashes()).toEqual([a, b, c]);
    write('_helper.ts', 'export const a = 2;\n');
    write('b/other.ts', 'export const b = 2;\n');
    await loader.load();
    const after = hashes();
    expect(after[0]).not.toBe(a);
    expect(after[1]).not.toBe(b);
    expect(after[2]).toBe(c);
  });
});

describe('what a shim may import', () => {
  it('gets helpers in all kinds, JSON, Node and packages; cycles of helpers resolve', async () => {
    write(
      'node_modules/some-esm/package.json',
      '{ "name": "some-esm", "type": "module", "exports": { "import": "./x.js" } }',
    );
    write(
      'node_modules/some-esm/x.js',
      'globalThis.evaluations = (globalThis.evaluations ?? 0) + 1; export default "esm"; export const named = "named";',
    );
    write('node_modules/some-cjs/package.json', '{ "name": "some-cjs", "main": "x.js" }');
    write('node_modules/some-cjs/x.js', 'module.exports = { cjs: true };');
    write('_a.ts', `import { b } from './_b.js';\nexport const a = 'a';\nexport const both = (): string => a + b;\n`);
    write('_b.ts', `import { a } from './_a.js';\nexport const b = 'b';\nexport const late = (): string => a;\n`);
    write('_c.cjs', `module.exports = { c: 'c' };`);
    write('_d.json', `{ "d": "d" }`);
    write('lib/index.js', `export default 1;`);
    const text = (version: number): string => `import { defineShim } from 'shimline/shims';
      import { both } from './_a.js';
      import { late } from './_b';
      import c from './_c.cjs';
      import d from './_d.json' with { type: 'json' };
      import { basename } from 'node:path';
      import esm, { named } from 'some-esm';
      import cjs from 'some-cjs';
      import * as all from './_a.ts';
      const { default: lazy } = await import('./lib/index.js');
      const here = [basename(import.meta.url), basename(import.meta.filename), import.meta.dirname === ${JSON.stringify(folder)}];
      export default defineShim({ name: 'a', description: JSON.stringify([${version}, both(), late(), c.c, d.d, esm, named, cjs.cjs, all.a, lazy, here]) });`;
    write('a.ts', text(1));
    const loader = await load();
    expect(
      loader
        .list()
        .filter(({ name }) => name === 'a')
        .map(({ error }) => error),
    ).toEqual([undefined]);
    const values = ['ab', 'a', 'c', 'd', 'esm', 'named', true, 'a', 1, ['a.ts', 'a.ts', true]];
    expect(JSON.parse(loader.get('a')!.description)).toEqual([1, ...values]);
    write('a.ts', text(2));
    await loader.load();
    expect(JSON.parse(loader.get('a')!.description)).toEqual([2, ...values]);
    expect((globalThis as { evaluations?: number }).evaluations).toBe(1);
  });
});

it('refuses an entry that is another copy of our module', async () => {
  const url = write('copy.mjs', 'export class Shim {}');
  const loader = new ShimLoader({ folders: [folder], watch: false, entryUrl: `file://${url}`, log: quiet });
  await expect(loader.load()).rejects.toThrow('another copy');
  await loader.close();
});
