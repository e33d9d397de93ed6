import { chmodSync, existsSync, linkSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import workspaceTools from '../../shims/workspace-tools/index.js';
import { type Query, ripgrepPath, searchHere, searchWith } from '../../shims/workspace-tools/search.js';
import { agentTool, type BoundShim, defineShim, Shim, type ShimBindingContext } from '../../src/shims.js';
import { type ScriptedReply, testShim } from '../../src/testing.js';
import { temporaryFolder, waitFor } from '../support/wait.js';
import { callAll, folderWith, isAlive, outcomesOf, refusalOf, runTurns, textOf } from './workspace.js';

const numbered = (count: number): string => Array.from({ length: count }, (_, index) => `line ${index + 1}\n`).join('');
const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
);

describe('the tools', () => {
  it('are seven, or those that the config names, with its prefix', async () => {
    const root = folderWith();
    const all = await testShim(workspaceTools, { config: { root } });
    expect(all.tools).toEqual([['read', 'write', 'patch', 'find', 'grep', 'ls', 'bash']]);
    const some = await testShim(workspaceTools, {
      config: { root, tools: ['ls', 'read'] },
      after: [workspaceTools.create({ root, tools: ['read'], prefix: 'docs_' }, { name: 'docs' })],
    });
    expect(some.tools).toEqual([['read', 'ls', 'docs_read']]);
    const twice = await testShim(workspaceTools, {
      config: { root },
      after: [workspaceTools.create({ root }, { name: 'b' })],
    });
    expect(twice.error?.message).toContain('"read"');
  });

  it('K01 are made again after a crash where they only read; of the others nobody knows', async () => {
    const found: unknown[] = [];
    const watch = defineShim({
      name: 'watch',
      prepareTurn: (turn) => void found.push(...(turn.tools?.tools ?? []).map(({ name, onCrash }) => [name, onCrash])),
    });
    await testShim(workspaceTools, { config: { root: folderWith() }, after: [watch] });
    const rules = {
      read: 'retry',
      write: 'unknown',
      patch: 'unknown',
      find: 'retry',
      grep: 'retry',
      ls: 'retry',
      bash: 'unknown',
    };
    expect(found).toEqual(Object.entries(rules));
  });

  it('work in a folder of the conversation by default, which stays over its runs and is made by the first tool', async () => {
    const dataDir = temporaryFolder('data-');
    const write = { toolCalls: [{ toolName: 'write', input: { path: 'a.txt', content: 'kept' } }] };
    const read = { toolCalls: [{ toolName: 'read', input: { path: 'a.txt' } }] };
    const run = await testShim(workspaceTools, { dataDir, script: ['nothing'] });
    expect(readdirSync(dataDir)).toEqual([]);
    await run.resume('go on', { script: [write, 'done'] });
    const [id] = readdirSync(join(dataDir, 'workspaces'));
    expect(readFileSync(join(dataDir, 'workspaces', id!, 'a.txt'), 'utf8')).toBe('kept');
    const third = await run.resume('go on', { script: [read, 'done'] });
    expect(outcomesOf(third.events)).toEqual([{ name: 'read', ok: true, result: 'kept' }]);
    expect(readdirSync(join(dataDir, 'workspaces'))).toEqual([id]);
  });

  it('R101 are handed down to a helper as far as it may have them, in the same folder, and to none that may have none', async () => {
    const dataDir = temporaryFolder('data-');
    const delegate = defineShim({
      name: 'delegate',
      inherit: 'none',
      prepareTurn(turn) {
        for (const [name, tools] of [
          ['ask_reader', ['read']],
          ['ask_thinker', []],
        ] as const)
          turn.addTools([agentTool(turn, { name, description: 'Asks a helper.', tools })]);
      },
    });
    const call = (toolName: string, input: Readonly<Record<string, string>>): ScriptedReply => ({
      toolCalls: [{ toolName, input }],
    });
    const run = await testShim(workspaceTools, {
      dataDir,
      before: [delegate],
      script: [
        call('write', { path: 'a.txt', content: 'of the parent' }),
        call('ask_reader', { task: 'read' }),
        call('read', { path: 'a.txt' }),
        'the helper has read',
        call('ask_thinker', { task: 'think' }),
        'the helper has thought',
        'done',
      ],
    });
    expect(run.output).toBe('done');
    expect(run.tools[2]).toEqual(['read']);
    expect(JSON.stringify(run.requests[3]?.prompt)).toContain('of the parent');
    expect(run.tools[5]).toEqual([]);
    expect(readdirSync(join(dataDir, 'workspaces'))).toHaveLength(1);
  });

  it('R103 R104 a session from a restricted source has its tools only, and one beside other sources has none', async () => {
    const root = folderWith();
    const definition = workspaceTools.create({ root });
    /** Binds the definition as a parent that hands down what its session says. */
    class Child extends Shim {
      readonly name = 'child';
      readonly #source: Shim;
      constructor(source: Shim) {
        super();
        this.#source = source;
      }
      override async bind({ task }: ShimBindingContext): Promise<BoundShim> {
        const parent = await this.#source.bind({ task, toolSourceBindings: [] });
        const bindings = parent.inheritTools(new Set(['read', 'bash', 'of_another_shim']));
        return definition.bind({ task, toolSourceBindings: bindings ?? [] });
      }
    }
    const restricted = await testShim(new Child(definition), { script: ['ok', 'ok'] });
    expect(restricted.tools).toEqual([['read', 'bash']]);
    const beside = await testShim(new Child(workspaceTools.create({ root })), { script: ['ok', 'ok'] });
    expect(beside.tools).toEqual([[]]);
  });
});

describe('read', () => {
  it('gives a text as it is, and says what is not shown and how to get it', async () => {
    const root = folderWith({ 'a.txt': numbered(10), 'open.txt': 'no newline', 'empty.txt': '' });
    expect(await textOf({ root }, 'read', { path: 'a.txt' })).toBe(numbered(10));
    expect(await textOf({ root }, 'read', { path: 'open.txt' })).toBe('no newline');
    expect(await textOf({ root }, 'read', { path: 'empty.txt' })).toBe('[empty.txt is empty.]');
    expect(await textOf({ root }, 'read', { path: 'a.txt', limit: 2 })).toBe(
      'line 1\nline 2\n[Lines 1 to 2 of 10. Read on with offset 3.]',
    );
    expect(await textOf({ root }, 'read', { path: 'a.txt', offset: 9 })).toBe(
      'line 9\nline 10\n[Lines 9 to 10 of 10. This is the end.]',
    );
    expect(await textOf({ root }, 'read', { path: 'a.txt', offset: 4, limit: 1 })).toBe(
      'line 4\n[Line 4 of 10. Read on with offset 5.]',
    );
    expect(await refusalOf({ root }, 'read', { path: 'a.txt', offset: 11 })).toEqual([
      'out_of_range',
      'a.txt has 10 lines: there is no line 11.',
    ]);
  });

  it('M15 cuts whole lines, or a long line between characters, and every part can be had', async () => {
    for (const before of [496, 497, 498, 499, 500, 501, 502]) {
      const line = `${'x'.repeat(before)}😀${'y'.repeat(700)}`;
      const root = folderWith({ 'a.txt': `${line}\nshort\n` });
      const parts: string[] = [];
      let next: object | undefined = {};
      while (next !== undefined) {
        const text: string = await textOf({ root, maxChars: 500 }, 'read', { path: 'a.txt', ...next });
        expect([text.isWellFormed(), text.includes('\ufffd')]).toEqual([true, false]);
        const at = text.lastIndexOf('\n[Line');
        const note = /offset (\d+)(?: and column (\d+))?/.exec(text.slice(at));
        const kept: string = text.slice(0, at + 1);
        parts.push(note?.[2] === undefined ? kept : kept.slice(0, -1));
        next = note === null ? undefined : { offset: Number(note[1]), column: Number(note[2] ?? 1) };
      }
      expect(parts.join('')).toBe(`${line}\nshort\n`);
      expect(parts.length).toBeGreaterThanOrEqual(3);
    }
  });

  it('reads the middle of a file of many megabytes without having all of it at once', async () => {
    const root = folderWith({ 'big.txt': `${'a line of some length, to make many\n'.repeat(400_000)}the end\n` });
    expect(await textOf({ root }, 'read', { path: 'big.txt', offset: 400_001 })).toBe(
      'the end\n[Line 400001 of 400001. This is the end.]',
    );
    expect(await refusalOf({ root }, 'patch', { path: 'big.txt', search: 'the end', replace: 'x' })).toEqual([
      'too_large',
      'big.txt has 14400008 bytes: it is too large to be patched.',
    ]);
  });

  it('refuses binary files and folders, and names what was perhaps meant', async () => {
    const root = folderWith({ 'a.bin': Buffer.from([1, 0, 2]), 'src/index.ts': 'x' });
    expect(await refusalOf({ root }, 'read', { path: 'a.bin' })).toEqual([
      'binary',
      'a.bin is a binary file of 3 bytes: it cannot be read as text.',
    ]);
    expect(await refusalOf({ root }, 'read', { path: 'src' })).toEqual(['is_folder', 'src is a folder. Use ls.']);
    expect(await refusalOf({ root }, 'read', { path: 'src/indx.ts' })).toEqual([
      'not_found',
      'There is no src/indx.ts. Did you mean src/index.ts?',
    ]);
    expect(await refusalOf({ root }, 'ls', { path: 'scr' })).toEqual(['not_found', 'There is no scr.']);
  });

  it('T02 T04 gives an image as an image, not as text, and says when it is too large', async () => {
    const root = folderWith({ 'dot.dat': PNG });
    const [outcome] = await callAll({ root }, ['read', { path: 'dot.dat' }]);
    expect(outcome?.result).toEqual([
      { type: 'text', text: `dot.dat: image/png, ${PNG.length} bytes` },
      { type: 'image', image: PNG.toString('base64'), mediaType: 'image/png' },
    ]);
    expect(JSON.parse(JSON.stringify(outcome))).toEqual(outcome);
    expect(await refusalOf({ root, maxImageBytes: 10 }, 'read', { path: 'dot.dat' })).toEqual([
      'too_large',
      `dot.dat is an image (image/png) of ${PNG.length} bytes; at most 10 are shown.`,
    ]);
  });
});

describe('write', () => {
  it('makes files and folders, and replaces a file whole: others who hold the old one keep it', async () => {
    const root = folderWith({ 'old.txt': 'old' });
    linkSync(join(root, 'old.txt'), join(root, 'held.txt'));
    chmodSync(join(root, 'old.txt'), 0o750);
    expect(await textOf({ root }, 'write', { path: 'a/b/new.txt', content: 'one\ntwo\n' })).toBe(
      'Made a/b/new.txt (2 lines).',
    );
    expect(await textOf({ root }, 'write', { path: 'old.txt', content: 'new' })).toBe('Wrote over old.txt (1 line).');
    expect(readFileSync(join(root, 'a/b/new.txt'), 'utf8')).toBe('one\ntwo\n');
    expect(readFileSync(join(root, 'old.txt'), 'utf8')).toBe('new');
    expect(readFileSync(join(root, 'held.txt'), 'utf8')).toBe('old');
    expect(statSync(join(root, 'old.txt')).mode & 0o777).toBe(0o750);
    expect(readdirSync(root).toSorted()).toEqual(['a', 'held.txt', 'old.txt']);
    expect((await refusalOf({ root }, 'write', { path: 'a', content: '' }))[0]).toBe('is_folder');
  });

  it('M15 writes half a pair as a replacement character', async () => {
    const root = folderWith();
    await textOf({ root }, 'write', { path: 'a.txt', content: 'a\ud83d b' });
    expect(readFileSync(join(root, 'a.txt'), 'utf8')).toBe('a\ufffd b');
  });
});

describe('patch', () => {
  const code = 'function add(a, b) {\n  return a + b;\n}\n\nfunction sub(a, b) {\n  return a - b;\n}\n';

  it('replaces a text that stands there once, as it is written', async () => {
    const root = folderWith({ 'a.js': code });
    chmodSync(join(root, 'a.js'), 0o755);
    expect(
      await textOf({ root }, 'patch', { path: 'a.js', search: '  return a - b;', replace: "  return '$&$1' - b;" }),
    ).toBe('Replaced the text in a.js, at line 6.');
    expect(readFileSync(join(root, 'a.js'), 'utf8')).toBe(code.replace('a - b', () => "'$&$1' - b"));
    expect(statSync(join(root, 'a.js')).mode & 0o777).toBe(0o755);
  });

  it('says where a text stands that is there several times, and replaces all when asked to', async () => {
    const root = folderWith({ 'a.js': code });
    expect(await refusalOf({ root }, 'patch', { path: 'a.js', search: '(a, b)', replace: '()' })).toEqual([
      'several_matches',
      'The text to replace stands in a.js 2 times, at lines 1, 5. Take more of the lines around the one that is meant, or set replaceAll.',
    ]);
    expect(await textOf({ root }, 'patch', { path: 'a.js', search: '(a, b)', replace: '()', replaceAll: true })).toBe(
      'Replaced 2 texts in a.js, at lines 1, 5.',
    );
    expect(readFileSync(join(root, 'a.js'), 'utf8')).toBe(code.replaceAll('(a, b)', '()'));
  });

  it('shows the place that is most like a text that is not there', async () => {
    const root = folderWith({ 'a.js': code });
    const refused = async (search: string): Promise<string> =>
      (await refusalOf({ root }, 'patch', { path: 'a.js', search, replace: 'x' }))[1];
    expect(await refused('function sub(a, b) {\n    return a - b;')).toBe(
      'The text to replace does not stand in a.js. The nearest is lines 5 to 6 (it differs in spaces only):\nfunction sub(a, b) {\n  return a - b;',
    );
    expect(await refused('  return a * b;\n}\n\nfunction sub')).toContain(
      'The nearest is lines 2 to 5:\n  return a + b;',
    );
    expect(await refused('nothing of the kind')).toBe('The text to replace does not stand in a.js.');
    expect(readFileSync(join(root, 'a.js'), 'utf8')).toBe(code);
    expect(await refusalOf({ root }, 'patch', { path: 'a.js', search: 'add', replace: 'add' })).toEqual([
      'no_change',
      'search and replace are the same: nothing would change.',
    ]);
  });

  it('keeps the line ends and the byte order mark of a file, and refuses one that is not UTF-8', async () => {
    const latin = Buffer.from([0x63, 0x61, 0x66, 0xe9, 0x0a]);
    const root = folderWith({ 'dos.txt': '\ufeffone\r\ntwo\r\nthree\r\n', 'latin.txt': latin });
    await textOf({ root }, 'patch', { path: 'dos.txt', search: 'one\ntwo\n', replace: '1\n2\n' });
    expect(readFileSync(join(root, 'dos.txt'), 'utf8')).toBe('\ufeff1\r\n2\r\nthree\r\n');
    expect(await refusalOf({ root }, 'patch', { path: 'latin.txt', search: 'caf', replace: 'x' })).toEqual([
      'binary',
      'latin.txt is not UTF-8 text: it cannot be patched.',
    ]);
    expect(readFileSync(join(root, 'latin.txt'))).toEqual(latin);
  });

  it('names the first lines of a text that stands there very often, and refuses to fill the memory', async () => {
    const root = folderWith({ 'a.txt': 'x\n'.repeat(1_000_000) });
    const args = { path: 'a.txt', search: 'x', replaceAll: true };
    expect(await refusalOf({ root }, 'patch', { ...args, replace: 'y'.repeat(1000) })).toEqual([
      'too_large',
      'a.txt would become too large.',
    ]);
    expect(await textOf({ root }, 'patch', { ...args, replace: 'y' })).toBe(
      'Replaced 1000000 texts in a.txt, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ….',
    );
  });

  it('several patches of one file in one answer are all kept', async () => {
    const root = folderWith({ 'a.txt': numbered(8) });
    const { events } = await runTurns(
      { root },
      Array.from(
        { length: 8 },
        (_, index) => ['patch', { path: 'a.txt', search: `line ${index + 1}\n`, replace: 'x\n' }] as const,
      ),
    );
    expect(outcomesOf(events).map(({ ok }) => ok)).toEqual(Array(8).fill(true));
    expect(readFileSync(join(root, 'a.txt'), 'utf8')).toBe('x\n'.repeat(8));
  });
});

describe('find, grep and ls', () => {
  const tree = {
    '.gitignore': 'dist/\n*.log\n!kept.log\n',
    '.git/HEAD': 'ref',
    'a.ts': 'needle\n',
    'b.log': 'needle\n',
    'kept.log': 'needle\n',
    'dist/a.js': 'needle\n',
    'sub/.gitignore': 'private.txt\n!b.log\n',
    'sub/b.log': 'needle\n',
    'sub/private.txt': 'needle\n',
    'sub/c.ts': 'nothing\n',
    'sub/bin': Buffer.from('needle\0'),
  };

  it('honour .gitignore, nested and with exceptions, and show all when asked to', async () => {
    const root = folderWith(tree);
    expect(await textOf({ root }, 'find', { pattern: '**' })).toBe(
      '.gitignore\na.ts\nkept.log\nsub/\nsub/.gitignore\nsub/b.log\nsub/bin\nsub/c.ts\n[4 ignored entries are left out.]',
    );
    expect(await textOf({ root }, 'grep', { pattern: 'needle' })).toBe(
      'a.ts:1:needle\nkept.log:1:needle\nsub/b.log:1:needle\n[4 ignored entries are left out.]',
    );
    expect(await textOf({ root }, 'ls', { path: 'sub' })).toBe(
      '.gitignore 19\nb.log 7\nbin 7\nc.ts 8\n[1 ignored entry is left out.]',
    );
    expect(await textOf({ root }, 'find', { pattern: '*.{js,log}', includeIgnored: true })).toBe(
      'b.log\ndist/a.js\nkept.log\nsub/b.log\n[1 ignored entry is left out.]',
    );
    // What is named itself is looked into.
    expect(await textOf({ root }, 'find', { pattern: '*', path: 'dist' })).toBe('dist/a.js');
    expect(await textOf({ root }, 'grep', { pattern: 'needle', path: 'b.log' })).toBe('b.log:1:needle');
    expect(await textOf({ root }, 'find', { pattern: 'sub/*.ts', path: 'sub' })).toBe(
      'sub/c.ts\n[1 ignored entry is left out.]',
    );
  });

  it('give pages, and say how to get the next one', async () => {
    const root = folderWith(
      Object.fromEntries(Array.from({ length: 12 }, (_, index) => [`f${10 + index}.txt`, 'x y\nx\n'])),
    );
    expect(await textOf({ root }, 'find', { pattern: '*', limit: 2, offset: 3 })).toBe(
      'f12.txt\nf13.txt\n[Entries 3 to 4 of 12. Go on with offset 5.]',
    );
    expect(await textOf({ root }, 'ls', { offset: 12 })).toBe('f21.txt 6\n[Entries 12 to 12 of 12.]');
    expect(await textOf({ root }, 'ls', { offset: 13 })).toBe('[There are 12 entries: none has the number 13.]');
    expect(await textOf({ root }, 'grep', { pattern: 'x', limit: 2, offset: 2 })).toBe(
      'f10.txt:2:x\nf11.txt:1:x y\n[Matches 2 to 3. There are more: go on with offset 4, or narrow the search.]',
    );
    expect(await textOf({ root }, 'grep', { pattern: 'x', offset: 24 })).toBe('f21.txt:2:x\n[Matches 24 to 24.]');
    expect(await textOf({ root }, 'grep', { pattern: 'x', offset: 25 })).toBe(
      '[There are 24 matches: none has the number 25.]',
    );
    expect(await textOf({ root }, 'grep', { pattern: 'z' })).toBe('[No match.]');
  });

  it('a name cannot look like two', async () => {
    const root = folderWith({ 'a\nb\u001b.txt': 'x' });
    expect(await textOf({ root }, 'find', { pattern: '*' })).toBe('a\\nb\\u001b.txt');
    expect(await textOf({ root }, 'ls')).toBe('a\\nb\\u001b.txt 1');
    expect(await textOf({ root }, 'grep', { pattern: 'x' })).toBe('a\\nb\\u001b.txt:1:x');
  });

  it('grep shows lines around a match, and a part of a line that is long', async () => {
    const root = folderWith({ 'a.txt': numbered(9), 'long.txt': `${'😀'.repeat(400)}needle${'😀'.repeat(400)}\n` });
    expect(await textOf({ root }, 'grep', { pattern: 'line [3489]', path: 'a.txt', context: 1 })).toBe(
      [
        ...['a.txt-2-line 2', 'a.txt:3:line 3', 'a.txt:4:line 4', 'a.txt-5-line 5'],
        ...['--', 'a.txt-7-line 7', 'a.txt:8:line 8', 'a.txt:9:line 9'],
      ].join('\n'),
    );
    const long = await textOf({ root }, 'grep', { pattern: 'needle', glob: 'long*' });
    expect([/^[^\ufffd]+$/u.test(long), long.length < 330, long.includes('needle')]).toEqual([true, true, true]);
  });

  it('a pattern that is none, or would take for ever, is refused or answered at once', async () => {
    const root = folderWith({ 'a.txt': `${'a'.repeat(5000)}b\n` });
    expect((await refusalOf({ root }, 'grep', { pattern: '(a' }))[0]).toBe('bad_pattern');
    expect((await refusalOf({ root }, 'grep', { pattern: '(?<=a)b' }))[0]).toBe('bad_pattern');
    expect(await textOf({ root }, 'grep', { pattern: '(a+)+$' })).toBe('[No match.]');
    expect((await refusalOf({ root }, 'find', { pattern: '*a*a*a*a*a*a*a*c' }))[0]).toBe('bad_pattern');
  });

  it('ripgrep and the engine in its place find the same', async () => {
    const root = folderWith({
      ...tree,
      'dos.txt': 'one\r\nneedle two\r\n',
      'bad.txt': Buffer.from([0xff, 0x6e, 0x0a]),
      '-e': 'needle',
    });
    const program = await ripgrepPath(async () => import('@vscode/ripgrep'));
    expect(program).toBeDefined();
    const files = ['-e', 'a.ts', 'bad.txt', 'dos.txt', 'gone.txt', 'sub/bin', 'sub/c.ts'];
    const all = async (search: typeof searchHere, query: Partial<Query>): Promise<unknown[]> => {
      const found: unknown[] = [];
      const whole = { pattern: 'needle', literal: false, ignoreCase: false, context: 0, maxCount: 10, ...query };
      for await (const file of search(root, files, whole, new AbortController().signal)) found.push(file);
      return found;
    };
    const queries: readonly Partial<Query>[] = [
      ...[
        {},
        { ignoreCase: true, pattern: 'NEEDLE' },
        { context: 1 },
        { pattern: '^needle$' },
        { pattern: '\\w+ two' },
      ],
      ...[
        { literal: true, pattern: 'needle t' },
        { pattern: '[a-z]', maxCount: 1 },
        { pattern: 'n$' },
        { pattern: 'é|\\d' },
      ],
    ];
    for (const query of queries)
      expect([query, await all(searchHere, query)]).toEqual([query, await all(searchWith(program!), query)]);
    for (const search of [searchHere, searchWith(program!)])
      await expect(all(search, { pattern: '(a' })).rejects.toThrow('is not a regular expression');
  });

  it('without the package of ripgrep, or a program that works, the other engine is taken', async () => {
    expect(await ripgrepPath(async () => Promise.reject(new Error('not installed')))).toBeUndefined();
    expect(await ripgrepPath(async () => ({ rgPath: join(folderWith(), 'none') }))).toBeUndefined();
    expect(await ripgrepPath(async () => ({ rgPath: '/bin/false' }))).toBeUndefined();
  });
});

describe('bash', () => {
  const pidIn = (file: string): number => Number(readFileSync(file, 'utf8'));

  it('answers what was printed, in the folder that was asked for, and the exit code of a failure', async () => {
    const root = folderWith({ 'sub/a.txt': '' });
    expect(await textOf({ root }, 'bash', { command: 'ls; echo err >&2', cwd: 'sub' })).toBe('a.txt\nerr');
    expect(await textOf({ root }, 'bash', { command: 'true' })).toBe('[It printed nothing.]');
    expect(await refusalOf({ root }, 'bash', { command: 'echo no; exit 3' })).toEqual([
      'exit_code',
      'Exit code 3.\nno',
    ]);
    expect(await refusalOf({ root }, 'bash', { command: '-x' })).toEqual([
      'exit_code',
      expect.stringContaining('Exit code 127.') as string,
    ]);
    expect(await textOf({ root }, 'bash', { command: 'cat; echo nobody types' })).toBe('nobody types');
    expect(await refusalOf({ root, bash: { shell: 'no-such-shell' } }, 'bash', { command: 'ls' })).toEqual([
      'no_shell',
      'There is no shell "no-such-shell" on this server, so no command can be run.',
    ]);
  });

  it('M15 keeps the beginning and the end of a long output, cut between characters', async () => {
    for (const before of [247, 248, 249, 250, 251, 252]) {
      const command = `printf 'x%.0s' $(seq ${before}); printf '😀%.0s' $(seq 600); printf 'y%.0s' $(seq ${before})`;
      const text = await textOf({ root: folderWith(), maxChars: 500 }, 'bash', { command });
      expect([text.isWellFormed(), text.includes('\ufffd')]).toEqual([true, false]);
      const [head = '', note = '', tail = ''] = text.split('\n');
      const left = /^\[(\d+) of (\d+) characters are left out here\./.exec(note);
      expect(Number(left?.[2])).toBe(2 * before + 1200);
      expect(head.length + tail.length + Number(left?.[1])).toBe(2 * before + 1200);
      expect(head.length).toBeGreaterThanOrEqual(249);
      expect(tail.length).toBeGreaterThanOrEqual(249);
    }
  });

  it('A02 does not get the variables of the server, but those of the config', async () => {
    process.env.WORKSPACE_CANARY = 'canary-secret';
    process.env.WORKSPACE_PASSED = 'passed';
    const root = folderWith();
    const bash = { env: { GIVEN: 'given' }, passEnv: ['WORKSPACE_PASSED'] };
    const text = await textOf({ root, bash }, 'bash', { command: 'env' });
    expect(text).not.toContain('canary');
    expect(text.split('\n')).toEqual(expect.arrayContaining(['GIVEN=given', 'WORKSPACE_PASSED=passed', 'PAGER=cat']));
    delete process.env.WORKSPACE_CANARY;
    delete process.env.WORKSPACE_PASSED;
  });

  it('is ended at its time with all that it has started, and tells what it had printed', async () => {
    const root = folderWith();
    const command = 'sleep 1000 & echo $! > a.pid; (trap "" TERM; sleep 1000) & echo $! > b.pid; echo before; wait';
    expect(await refusalOf({ root }, 'bash', { command, timeoutMs: 300 })).toEqual([
      'timeout',
      'The command was ended after 300 ms; it had not finished.\nbefore',
    ]);
    for (const name of ['a.pid', 'b.pid']) await waitFor(() => !isAlive(pidIn(join(root, name))));
  });

  it('ends what it has left in the background, whether it holds the output or not', async () => {
    const root = folderWith();
    for (const redirect of ['', '>/dev/null 2>&1'])
      expect(await textOf({ root }, 'bash', { command: `sleep 1000 ${redirect} & echo $! > a.pid; echo done` })).toBe(
        'done\n[Processes that it left in the background were ended.]',
      );
    await waitFor(() => !isAlive(pidIn(join(root, 'a.pid'))));
  });

  it('does not wait for a process that has left the group and holds its output', async () => {
    const root = folderWith();
    const leaves = "setsid bash -c 'echo $$ > a.pid; exec sleep 1000'";
    const command = `${leaves} & until [ -s a.pid ]; do sleep 0.01; done; echo done`;
    try {
      expect(await textOf({ root }, 'bash', { command })).toBe('done');
    } finally {
      const pid = pidIn(join(root, 'a.pid'));
      if (isAlive(pid)) process.kill(pid, 'SIGKILL');
    }
  });

  it('C01 a cancel ends the group of a command, background and deaf processes included', async () => {
    const root = folderWith();
    const controller = new AbortController();
    const command = '(trap "" TERM; sleep 1000) & echo $! > a.pid; sleep 1000';
    const run = testShim(workspaceTools, {
      config: { root, policy: { bash: 'allow' } },
      script: [{ toolCalls: [{ toolName: 'bash', input: { command } }] }],
      signal: controller.signal,
    });
    const file = join(root, 'a.pid');
    await waitFor(() => existsSync(file) && readFileSync(file, 'utf8').endsWith('\n'));
    controller.abort();
    const { events } = await run;
    expect(outcomesOf(events).map(({ error }) => error?.kind)).toEqual(['cancelled']);
    await waitFor(() => !isAlive(pidIn(file)));
  });

  it('streams its output as progress, and ends what prints without end', async () => {
    const root = folderWith();
    const { events } = await runTurns(
      { root },
      [['bash', { command: 'echo out; echo err >&2' }]],
      [['bash', { command: 'yes' }]],
    );
    const progress = events
      .filter(({ type }) => type === 'tool.progress')
      .map((event) => (event as never as { data: { stream?: string; text: string } }).data);
    expect(progress.slice(0, 2).toSorted((a, b) => a.text.localeCompare(b.text))).toEqual([
      { stream: 'stderr', text: 'err\n' },
      { stream: 'stdout', text: 'out\n' },
    ]);
    const streamed = progress.slice(2);
    expect(streamed.at(-1)).toEqual({ note: 'There was more output than is streamed.' });
    expect(streamed.slice(0, -1).reduce((sum, { text }) => sum + text.length, 0)).toBe(100_000);
    expect(outcomesOf(events)[1]?.error?.kind).toBe('too_much_output');
  });

  it('has its own time, whatever the agent says of its tools', async () => {
    const root = folderWith();
    const run = await testShim(workspaceTools, {
      config: { root, policy: { bash: 'allow' } },
      toolSettings: { toolCallTimeoutMs: 1, toolCallMaxRetries: 3 },
      script: [{ toolCalls: [{ toolName: 'bash', input: { command: 'echo x >> ran; sleep 0.2; exit 1' } }] }, 'done'],
    });
    expect(outcomesOf(run.events).map(({ error }) => error?.kind)).toEqual(['exit_code']);
    expect(readFileSync(join(root, 'ran'), 'utf8')).toBe('x\n');
  });
});
