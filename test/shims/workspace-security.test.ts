import { existsSync, lstatSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import workspaceTools from '../../shims/workspace-tools/index.js';
import { operationOf } from '../../shims/workspace-tools/operations.js';
import {
  type Call,
  callAll,
  folderWith,
  outcomesOf,
  refusalOf,
  runTurns,
  textOf,
  type WorkspaceInput,
} from './workspace.js';

/** A root beside a folder that is none of its business. */
function twoFolders(): { readonly root: string; readonly outside: string } {
  const both = folderWith({
    'root/inside.txt': 'inside\n',
    'root/sub/deep.txt': 'deep\n',
    'outside/secret.txt': 'secret\n',
  });
  return { root: join(both, 'root'), outside: join(both, 'outside') };
}

/** Every tool that takes a path, aimed at one. */
const aimedAt = (file: string, folder: string): readonly Call[] => [
  ['read', { path: file }],
  ['write', { path: file, content: 'changed' }],
  ['patch', { path: file, search: 'secret', replace: 'changed' }],
  ['grep', { pattern: 'secret', path: file }],
  ['grep', { pattern: 'secret', path: folder }],
  ['ls', { path: folder }],
  ['find', { pattern: '*', path: folder }],
  ['bash', { command: 'echo ran > ran.txt', cwd: folder }],
];

async function expectOutside(root: string, outside: string, calls: readonly Call[]): Promise<void> {
  const outcomes = await callAll({ root }, ...calls);
  expect(outcomes.map(({ name, error }) => [name, error?.kind])).toEqual(calls.map(([name]) => [name, 'outside_root']));
  expect(JSON.stringify(outcomes)).not.toContain('secret\\n');
  expect(readFileSync(join(outside, 'secret.txt'), 'utf8')).toBe('secret\n');
  expect(existsSync(join(outside, 'ran.txt'))).toBe(false);
}

describe('paths', () => {
  it('.. does not lead out', async () => {
    const { root, outside } = twoFolders();
    await expectOutside(root, outside, aimedAt('../outside/secret.txt', '../outside'));
    await expectOutside(root, outside, aimedAt('sub/../../outside/secret.txt', 'sub/../../outside'));
  });

  it('an absolute path does not lead out, nor does it tell what is there', async () => {
    const { root, outside } = twoFolders();
    await expectOutside(root, outside, aimedAt(join(outside, 'secret.txt'), outside));
    symlinkSync(join(outside, 'none'), join(outside, 'dangling'));
    symlinkSync('loop', join(outside, 'loop'));
    const told = async (name: string): Promise<string> =>
      (await refusalOf({ root }, 'read', { path: `../outside/${name}` }))[1].replace(name, '');
    const nothing = await told('none');
    for (const name of ['secret.txt', 'dangling', 'loop', 'secret.txt/x'])
      expect([name, await told(name)]).toEqual([name, nothing]);
  });

  it('a folder that only begins with the name of the root is outside', async () => {
    const { root } = twoFolders();
    mkdirSync(`${root}-beside`);
    writeFileSync(`${root}-beside/secret.txt`, 'secret\n');
    expect((await refusalOf({ root }, 'read', { path: `${root}-beside/secret.txt` }))[0]).toBe('outside_root');
    expect((await refusalOf({ root }, 'read', { path: '../root-beside/secret.txt' }))[0]).toBe('outside_root');
  });

  it('a symbolic link to a file outside is not followed, and not replaced', async () => {
    const { root, outside } = twoFolders();
    symlinkSync(join(outside, 'secret.txt'), join(root, 'link.txt'));
    symlinkSync(outside, join(root, 'link'));
    await expectOutside(root, outside, aimedAt('link.txt', 'link'));
    expect(lstatSync(join(root, 'link.txt')).isSymbolicLink()).toBe(true);
  });

  it('a new file under a link that leads out is not made, at whatever depth', async () => {
    const { root, outside } = twoFolders();
    symlinkSync(outside, join(root, 'link'));
    for (const path of ['link/new.txt', 'link/a/b/new.txt', 'link/../new.txt/../link/new.txt'])
      expect([path, (await refusalOf({ root }, 'write', { path, content: 'x' }))[0]]).toEqual([path, 'outside_root']);
    expect(existsSync(join(outside, 'new.txt')) || existsSync(join(outside, 'a'))).toBe(false);
  });

  it('a new file in the place of a link that leads to nothing is not made', async () => {
    const { root, outside } = twoFolders();
    symlinkSync(join(outside, 'new.txt'), join(root, 'dangling'));
    for (const path of ['dangling', 'dangling/new.txt'])
      expect([path, (await refusalOf({ root }, 'write', { path, content: 'x' }))[0]]).toEqual([path, 'dangling_link']);
    expect(existsSync(join(outside, 'new.txt'))).toBe(false);
  });

  it('links in a circle, NUL and names that are too long are refused in words', async () => {
    const { root } = twoFolders();
    symlinkSync('b', join(root, 'a'));
    symlinkSync('a', join(root, 'b'));
    expect(await refusalOf({ root }, 'read', { path: 'a' })).toEqual([
      'file_error',
      'The symbolic links in this path go in a circle: a',
    ]);
    expect((await refusalOf({ root }, 'read', { path: 'a\0b' }))[0]).toBe('invalid_path');
    const policy = { bash: 'allow' } as const;
    for (const [tool, key, more] of [
      ['bash', 'command', {}],
      ['grep', 'pattern', {}],
      ['grep', 'pattern', { literal: true }],
    ] as const)
      expect(await refusalOf({ root, policy }, tool, { [key]: 'a\0b', ...more })).toEqual([
        'invalid_arguments',
        `The arguments of ${tool} are refused: /${key}: cannot hold the character NUL`,
      ]);
    for (const bash of [{ shell: 'a\0b' }, { env: { A: 'a\0b' } }])
      expect(() => workspaceTools.create({ root, bash })).toThrow('cannot hold the character NUL');
    expect(await refusalOf({ root }, 'write', { path: 'n'.repeat(300), content: '' })).toEqual([
      'file_error',
      `A name in this path is too long: ${'n'.repeat(300)}`,
    ]);
    expect((await refusalOf({ root }, 'write', { path: 'inside.txt/new.txt', content: '' }))[0]).toBe('file_error');
  });

  it('what stays inside is allowed however it is written: absolute, by .., by a link, by a link to the root', async () => {
    const { root } = twoFolders();
    symlinkSync('sub', join(root, 'link'));
    symlinkSync(root, `${root}-link`);
    for (const path of [join(root, 'sub/deep.txt'), 'sub/../sub/deep.txt', './link/deep.txt', 'sub//deep.txt'])
      expect([path, await textOf({ root }, 'read', { path })]).toEqual([path, 'deep\n']);
    expect(await textOf({ root: `${root}-link` }, 'read', { path: join(`${root}-link`, 'sub/deep.txt') })).toBe(
      'deep\n',
    );
    await textOf({ root }, 'write', { path: 'link/new.txt', content: 'new' });
    expect(readFileSync(join(root, 'sub/new.txt'), 'utf8')).toBe('new');
    expect(lstatSync(join(root, 'link')).isSymbolicLink()).toBe(true);
  });

  it('a link to a file inside is written through, and stays a link', async () => {
    const { root } = twoFolders();
    symlinkSync('sub/deep.txt', join(root, 'link.txt'));
    await textOf({ root }, 'write', { path: 'link.txt', content: 'changed' });
    expect(readFileSync(join(root, 'sub/deep.txt'), 'utf8')).toBe('changed');
    expect(lstatSync(join(root, 'link.txt')).isSymbolicLink()).toBe(true);
  });

  it('find, grep and ls do not enter links', async () => {
    const { root, outside } = twoFolders();
    symlinkSync(outside, join(root, 'link'));
    symlinkSync('..', join(root, 'sub/up'));
    expect(await textOf({ root }, 'find', { pattern: '**' })).toBe('inside.txt\nlink@\nsub/\nsub/deep.txt\nsub/up@');
    expect(await textOf({ root }, 'grep', { pattern: 'secret|deep' })).toBe('sub/deep.txt:1:deep');
    expect(await textOf({ root }, 'ls')).toBe('inside.txt 7\nlink@\nsub/');
  });

  it('a pipe or device is refused, and does not block', async () => {
    const { root } = twoFolders();
    await textOf({ root }, 'bash', { command: 'mkfifo pipe' });
    for (const [tool, args] of [
      ['read', {}],
      ['write', { content: 'x' }],
      ['patch', { search: 'a', replace: 'b' }],
    ] as const)
      expect([tool, (await refusalOf({ root }, tool, { path: 'pipe', ...args }))[0]]).toEqual([tool, 'not_a_file']);
    expect(await textOf({ root }, 'grep', { pattern: 'inside' })).toBe('inside.txt:1:inside');
  });

  it('a root that is missing or a file fails the run before the model is asked', async () => {
    const { root } = twoFolders();
    for (const bad of [join(root, 'none'), join(root, 'inside.txt')]) {
      const { error, requests } = await runTurns({ root: bad });
      expect([error?.code, requests]).toEqual(['shim_failed', []]);
      expect(error?.message).toContain('The root of the workspace');
    }
  });
});

const files = { 'a.txt': 'a text\n', 'keys/.env': 'KEY=secret\n', 'src/app.ts': 'secret code\n' };
const denying = (operations: readonly string[], more: object = {}): WorkspaceInput['policy'] => ({
  rules: [{ operations, action: 'deny', ...more }] as never,
});

describe('policy', () => {
  it('names the operation of a call by its tool, and for write by whether there is such a file', () => {
    const operations = (['read', 'ls', 'find', 'grep', 'patch', 'bash'] as const).map((tool) =>
      operationOf(tool, () => true),
    );
    expect(operations).toEqual(['read', 'read:ls', 'read:find', 'read:grep', 'write:patch', 'bash:execute_command']);
    expect(operationOf('write', () => true)).toBe('write:overwrite');
    expect(operationOf('write', () => false)).toBe('write:create_file');
  });

  const each: readonly (readonly [operation: string, call: Call])[] = [
    ['read', ['read', { path: 'a.txt' }]],
    ['read:ls', ['ls', {}]],
    ['read:find', ['find', { pattern: '*' }]],
    ['read:grep', ['grep', { pattern: 'text' }]],
    ['write:create_file', ['write', { path: 'new.txt', content: 'x' }]],
    ['write:overwrite', ['write', { path: 'a.txt', content: 'x' }]],
    ['write:patch', ['patch', { path: 'a.txt', search: 'a text', replace: 'x' }]],
    ['bash:execute_command', ['bash', { command: 'echo x > a.txt' }]],
  ];

  it.each(each)(
    '%s can be denied, alone, by its family and by *, with a message that says why',
    async (operation, call) => {
      const root = folderWith(files);
      const family = operation.split(':')[0]!;
      for (const name of [operation, family, '*']) {
        const policy = denying([name], { message: 'Not on Mondays.' });
        const [kind, message] = await refusalOf({ root, policy }, ...call);
        expect([name, kind]).toEqual([name, 'denied']);
        expect(message).toMatch(new RegExp(`^The policy of this workspace denies ${operation}.* Not on Mondays\\.$`));
      }
      expect(readFileSync(join(root, 'a.txt'), 'utf8')).toBe('a text\n');
      const others = each.map(([name]) => name).filter((name) => name !== operation && name !== 'read');
      const [outcome] = await callAll({ root, policy: denying(others) }, call);
      expect(outcome?.ok).toBe(true);
    },
  );

  it.each(each)('%s can be asked for: without a person who says yes it is not done', async (operation, call) => {
    const root = folderWith(files);
    const policy = { rules: [{ operations: [operation], action: 'ask' }] } as WorkspaceInput['policy'];
    const run = await runTurns({ root, policy }, [call]);
    expect(run.error?.message).toContain('The run waits for a decision');
    expect(run.events.filter(({ type }) => type === 'tool.waiting')).toHaveLength(1);
    expect(readFileSync(join(root, 'a.txt'), 'utf8')).toBe('a text\n');
    expect(existsSync(join(root, 'new.txt'))).toBe(false);
  });

  it('the strictest of the rules that match wins, in whatever order, and a rule wins over the default', async () => {
    const root = folderWith(files);
    const rules = ['allow', 'ask', 'deny'].map((action) => ({ operations: ['read'], action, message: action }));
    for (const order of [rules, rules.toReversed()]) {
      const [kind] = await refusalOf({ root, policy: { rules: order } as never }, 'read', { path: 'a.txt' });
      expect(kind).toBe('denied');
      const asked = await runTurns(
        { root, policy: { rules: order.filter(({ action }) => action !== 'deny') } as never },
        [['read', { path: 'a.txt' }]],
      );
      expect(asked.events.find(({ type }) => type === 'tool.waiting')).toMatchObject({
        interruption: { message: 'ask' },
      });
    }
    const allowed = { read: 'deny', rules: [{ operations: ['read'], action: 'allow', paths: ['a.txt'] }] } as const;
    expect(await textOf({ root, policy: allowed as never }, 'read', { path: 'a.txt' })).toBe('a text\n');
    expect((await refusalOf({ root, policy: allowed as never }, 'read', { path: 'src/app.ts' }))[0]).toBe('denied');
  });

  it('a bash command is asked for by default, and the folder of git is not written', async () => {
    const root = folderWith({ ...files, '.git/config': '[core]\n' });
    const run = await runTurns({ root, policy: { bash: undefined } }, [['bash', { command: 'touch ran' }]]);
    expect(run.error?.message).toContain('The run waits for a decision');
    expect(run.events.find(({ type }) => type === 'tool.waiting')).toMatchObject({
      interruption: { message: 'May it run this command?' },
    });
    expect(existsSync(join(root, 'ran'))).toBe(false);
    for (const path of ['.git/config', '.git/hooks/pre-commit', 'sub/.git/config'])
      expect([path, (await refusalOf({ root }, 'write', { path, content: 'x' }))[0]]).toEqual([path, 'denied']);
  });

  it('a path rule holds for the real path and for the written one, and covers what a folder holds', async () => {
    const root = folderWith({ ...files, 'keys/deep/key.pem': 'secret\n' });
    symlinkSync('keys/.env', join(root, 'harmless.txt'));
    symlinkSync('keys', join(root, 'harmless'));
    symlinkSync('../a.txt', join(root, 'keys/a.txt'));
    const policy = denying(['read'], { paths: ['keys'] });
    for (const path of [
      'keys/.env',
      'KEYS/../keys/.env',
      'harmless.txt',
      'harmless/.env',
      'keys/deep/key.pem',
      'keys/a.txt',
    ])
      expect([path, (await refusalOf({ root, policy }, 'read', { path }))[0]]).toEqual([path, 'denied']);
    expect(await textOf({ root, policy }, 'read', { path: 'a.txt' })).toBe('a text\n');
  });

  it('what is allowed by a path is not allowed by a link to somewhere else', async () => {
    const root = folderWith(files);
    symlinkSync('../keys/.env', join(root, 'src/link.txt'));
    const policy = { read: 'deny', rules: [{ operations: ['read'], action: 'allow', paths: ['src/'] }] } as never;
    expect((await refusalOf({ root, policy }, 'read', { path: 'src/link.txt' }))[0]).toBe('denied');
    expect(await textOf({ root, policy }, 'read', { path: 'src/app.ts' })).toBe('secret code\n');
  });

  it.each(['deny', 'ask'])('grep, find and ls leave out what the rules %s, and say so', async (action) => {
    const root = folderWith(files);
    const policy = { rules: [{ operations: ['read'], action, paths: ['.env', '*.ts'] }] } as never;
    const note = (count: number): string =>
      count === 1 ? '[1 entry is left out by the policy.]' : `[${count} entries are left out by the policy.]`;
    expect(await textOf({ root, policy }, 'grep', { pattern: 'secret|text' })).toBe(`a.txt:1:a text\n${note(2)}`);
    expect(await textOf({ root, policy }, 'find', { pattern: '**' })).toBe(`a.txt\nkeys/\nsrc/\n${note(2)}`);
    expect(await textOf({ root, policy }, 'ls', { path: 'src' })).toBe(`[src is empty.]\n${note(1)}`);
    expect((await textOf({ root, policy }, 'grep', { pattern: 'secret', path: 'keys' })).split('\n')[0]).toBe(
      '[No match.]',
    );
  });

  it('a failing patch and a misspelt name do not tell what may not be read', async () => {
    const root = folderWith(files);
    const policy = denying(['read'], { paths: ['keys', 'src'] });
    const [, patched] = await refusalOf({ root, policy }, 'patch', {
      path: 'src/app.ts',
      search: 'secret cody',
      replace: 'x',
    });
    const [, missed] = await refusalOf({ root, policy }, 'patch', { path: 'src/app.js', search: 'a', replace: 'b' });
    expect([patched, missed]).toEqual(['The text to replace does not stand in src/app.ts.', 'There is no src/app.js.']);
  });

  it('a rule that allows a command allows it alone: nothing appended, substituted or redirected', async () => {
    const root = folderWith(files);
    const policy = {
      bash: 'deny',
      rules: [{ operations: ['bash'], action: 'allow', commands: ['echo *', 'ls'] }],
    } as never;
    expect(await textOf({ root, policy }, 'bash', { command: ' echo hello ' })).toBe('hello');
    expect(await textOf({ root, policy }, 'bash', { command: 'ls' })).toBe('a.txt\nkeys\nsrc');
    const tricks = [
      '; id',
      '& id',
      '&& id',
      '| id',
      '\nid',
      '$(id)',
      '`id`',
      '> a.txt',
      '< a.txt',
      '${PATH}',
      '\\\nid',
      '(id)',
    ];
    for (const trick of [...tricks.map((trick) => `echo x ${trick}`), 'ls -a', 'lsof', 'echo', 'Xecho x'])
      expect([trick, (await refusalOf({ root, policy }, 'bash', { command: trick }))[0]]).toEqual([trick, 'denied']);
    expect(readFileSync(join(root, 'a.txt'), 'utf8')).toBe('a text\n');
  });

  it('a rule that denies a command finds it in any part of another', async () => {
    const root = folderWith(files);
    const policy = denying(['bash'], { commands: ['rm *', '*sudo*'] });
    for (const command of [
      'rm a.txt',
      'true; rm a.txt',
      'true && (rm a.txt)',
      'echo $(rm a.txt)',
      'true\nrm a.txt',
      'rm\ta.txt',
      `'rm' "a.txt"`,
      'x=1 sudo id',
    ])
      expect([command, (await refusalOf({ root, policy }, 'bash', { command }))[0]]).toEqual([command, 'denied']);
    expect(await textOf({ root, policy }, 'bash', { command: 'echo farm a' })).toBe('farm a');
    expect(existsSync(join(root, 'a.txt'))).toBe(true);
  });

  it('a call that has become another one since it was judged is not run unasked', async () => {
    const root = folderWith();
    const policy = { rules: [{ operations: ['write:overwrite'], action: 'ask' }] } as never;
    const write = (content: string): Call => ['write', { path: 'new.txt', content }];
    const { events } = await runTurns({ root, policy }, [write('first'), write('second')]);
    expect(outcomesOf(events).map(({ ok, error }) => [ok, error?.kind])).toEqual([
      [true, undefined],
      [false, 'needs_approval'],
    ]);
    expect(readFileSync(join(root, 'new.txt'), 'utf8')).toBe('first');
  });

  it('a rule with a name that is no operation is refused when the agent is saved', () => {
    const rules = [{ operations: ['write:delete'], action: 'deny' }] as never;
    expect(() => workspaceTools.create({ policy: { rules } })).toThrow('/policy/rules/0/operations/0');
  });

  it.each([
    ['paths for commands', { operations: ['bash'], paths: ['a.txt'] }, '/policy/rules/0/paths'],
    ['commands for files', { operations: ['read', 'write'], commands: ['rm *'] }, '/policy/rules/0/commands'],
    ['a path from here', { operations: ['read'], paths: ['.env', './secrets'] }, '/policy/rules/0/paths/1'],
    ['a path upwards', { operations: ['*'], paths: ['src/../.env'] }, '/policy/rules/0/paths/0'],
    ['a path upwards out', { operations: ['*'], paths: ['..'] }, '/policy/rules/0/paths/0'],
    ['a comment', { operations: ['read'], paths: ['#secrets'] }, '/policy/rules/0/paths/0'],
    ['an exception from nothing', { operations: ['read'], paths: ['!ok.txt', '*.txt'] }, '/policy/rules/0/paths/0'],
    ['blanks', { operations: ['read'], paths: [' '] }, '/policy/rules/0/paths/0'],
    ['the root itself before it', { operations: ['read'], paths: ['/srv/x/.env'] }, '/policy/rules/0/paths/0'],
  ])('a rule that would never hold is refused, not silently without effect: %s', (_what, rule, pointer) => {
    const rules = [{ ...rule, action: 'deny' }] as never;
    expect(() => workspaceTools.create({ root: '/srv/x', policy: { rules } })).toThrow(`${pointer}:`);
  });

  it('a rule with paths and commands for all operations holds for both', async () => {
    const root = folderWith({ 'a.txt': 'a' });
    const policy = denying(['*'], { paths: ['*.txt', '!b.txt', '\\#c'], commands: ['echo *'] });
    expect((await refusalOf({ root, policy }, 'read', { path: 'a.txt' }))[0]).toBe('denied');
    expect((await refusalOf({ root, policy }, 'bash', { command: 'echo a' }))[0]).toBe('denied');
  });
});
