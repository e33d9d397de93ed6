import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import SQLite from 'better-sqlite3';
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import memory from '../../shims/memory/index.js';
import { acquireStore, type NoteScope, NoteStore } from '../../shims/memory/note-store.js';
import redact from '../../shims/redact/index.js';
import { isInternalMessage } from '../../src/shims.js';
import { type ScriptedReply, type TestedRun, testShim } from '../../src/testing.js';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess, stopAll } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';

afterAll(stopAll);

const save = (text: string): ScriptedReply => ({ toolCalls: [{ toolName: 'memory_save', input: { text } }] });
const search = (query: string): ScriptedReply => ({ toolCalls: [{ toolName: 'memory_search', input: { query } }] });
const forget = (id: number): ScriptedReply => ({ toolCalls: [{ toolName: 'memory_forget', input: { id } }] });
const outcomes = ({ events }: TestedRun): unknown[] =>
  events.flatMap(({ type, result, error }) => (type === 'tool.completed' ? [result ?? error] : []));
const texts = (run: TestedRun): string[] => {
  const [{ notes } = { notes: [] }] = outcomes(run) as { readonly notes: readonly { readonly text: string }[] }[];
  return notes.map(({ text }) => text);
};
const told = ({ history }: TestedRun): string[] =>
  history.flatMap((item) =>
    isInternalMessage(item, { origin: 'memory' }) ? [(item as { readonly content: string }).content] : [],
  );
const ada = { metadata: { user: 'ada' }, config: { scope: ['user'] } };
/** The kit has no option for it: its agents have one name. */
const named = (name: string): object => ({ name });
const nurse = named('nurse');
const bob = { ...ada, metadata: { user: 'bob' } };

describe('the tools', () => {
  it('save, search and forget notes that outlive the conversation', async () => {
    const dataDir = temporaryFolder('memory-');
    const first = await testShim(memory, {
      dataDir,
      script: [save('Ada likes green tea.'), save('The ward is 3B.'), 'ok'],
    });
    expect(outcomes(first)).toEqual([{ id: 1 }, { id: 2 }]);
    const second = await testShim(memory, {
      dataDir,
      script: [search('TEA?'), search(''), forget(1), search('tea'), forget(1), 'ok'],
    });
    expect(outcomes(second)).toEqual([
      { notes: [{ id: 1, text: 'Ada likes green tea.', savedAt: expect.any(String) as string }] },
      { notes: [expect.objectContaining({ id: 2 }), expect.objectContaining({ id: 1 })] },
      { forgotten: 1 },
      { notes: [] },
      { message: 'There is no note 1.', kind: 'not_found' },
    ]);
  });

  it('keep within their limits, and a text is noted once', async () => {
    const dataDir = temporaryFolder('memory-');
    const run = await testShim(memory, {
      dataDir,
      config: { maxNotes: 2, maxNoteLength: 10 },
      script: [save('one'), save('one'), save('two'), save('three'), save('x'.repeat(11)), save(' '), 'ok'],
    });
    expect(outcomes(run)).toEqual([
      { id: 1 },
      { id: 1 },
      { id: 2 },
      { message: 'The memory is full: it holds 2 notes. Forget some first.', kind: 'memory_full' },
      expect.objectContaining({ kind: 'invalid_arguments' }),
      { message: 'There is nothing to note.', kind: 'empty' },
    ]);
  });

  it('R100 a helper gets those that it is allowed', async () => {
    const session = await memory.create().bind({ task: {} as never, toolSourceBindings: [] });
    expect(session.inheritTools(new Set(['read']))).toEqual([]);
    expect(session.inheritTools(new Set(['memory_search', 'memory_save']))).toHaveLength(1);
  });
});

describe('whose notes they are', () => {
  it("a user's notes are not found, told or forgotten for another user, agent, memory or API key", async () => {
    const dataDir = temporaryFolder('memory-');
    await testShim(memory, { ...ada, ...nurse, dataDir, script: [save('Ada is pregnant.'), 'ok'] });
    const others = [
      { ...bob, ...nurse },
      { ...ada, ...named('doctor') },
      { ...ada, ...nurse, as: 'second' },
      { ...nurse, config: {} },
      { ...nurse, config: { scope: ['user', 'ward'] }, metadata: { user: 'ada', ward: '3B' } },
    ];
    for (const other of others) {
      const run = await testShim(memory, {
        ...other,
        dataDir,
        script: [search('Ada pregnant'), search(''), forget(1), 'ok'],
      });
      expect(outcomes(run)).toEqual([{ notes: [] }, { notes: [] }, expect.objectContaining({ kind: 'not_found' })]);
      expect(told(run)).toEqual([]);
    }
    expect(texts(await testShim(memory, { ...ada, ...nurse, dataDir, script: [search('pregnant'), 'ok'] }))).toEqual([
      'Ada is pregnant.',
    ]);
  });

  it('a run that does not say whose it is has no memory at all', async () => {
    for (const metadata of [{}, { user: '' }, { User: 'ada' }] as readonly Record<string, string>[]) {
      const run = await testShim(memory, { ...ada, metadata, dataDir: temporaryFolder('memory-') });
      expect([run.tools, told(run)]).toEqual([[[]], []]);
    }
  });

  it('scopes that only look alike are not one', () => {
    const dataDir = temporaryFolder('memory-');
    const store = new NoteStore(dataDir);
    const scopes: NoteScope[] = [
      { memory: 'memory', agent: 'a', key: null, metadata: {} },
      { memory: 'memory', agent: 'a', key: 'null', metadata: {} },
      { memory: 'memory', agent: 'a', key: null, metadata: { user: 'x' } },
      { memory: 'memory', agent: 'a', key: null, metadata: { user: 'x","y":"z' } },
      { memory: 'memory', agent: 'a","key":null', key: null, metadata: {} },
    ];
    for (const [index, scope] of scopes.entries()) store.save(scope, `note ${index}`, { key: 'k', most: 5 });
    expect(scopes.map((scope) => store.newest(scope, 9).map(({ text }) => text))).toEqual(
      scopes.map((_, index) => [`note ${index}`]),
    );
    store.close();
  });
});

describe('what the model is told', () => {
  it('relevant and newest notes at the end of the input, once, and bounded', async () => {
    const dataDir = temporaryFolder('memory-');
    await testShim(memory, {
      ...ada,
      dataDir,
      script: [save('Ada likes green tea.'), save('The ward\nis 3B.'), save('No nuts.'), 'ok'],
    });
    const config = { ...ada.config, injectRelevant: 1, injectNewest: 1 };
    const run = await testShim(memory, { ...ada, config, dataDir, input: 'Tea, please' });
    const [note = ''] = told(run);
    expect(note.split('\n').slice(1)).toEqual(['- [1] Ada likes green tea.', '- [3] No nuts.']);
    expect(run.requests[0]?.prompt.map(({ content }) => JSON.stringify(content))).toEqual([
      expect.stringContaining('Tea, please'),
      expect.stringContaining('green tea'),
    ]);
    expect(JSON.stringify(run.events)).not.toContain('green tea');
    const same = await run.resume('More tea');
    expect(told(same)).toEqual([note]);
    const other = await same.resume('Which ward?');
    expect(told(other).map((message) => message.split('\n').slice(1))).toEqual([
      note.split('\n').slice(1),
      ['- [2] The ward is 3B.'],
    ]);
    const none = await testShim(memory, { ...ada, config: { ...config, injectBytes: 100 }, dataDir, input: 'tea' });
    expect(told(none)[0]?.split('\n')).toHaveLength(2);
    const off = await testShim(memory, {
      ...ada,
      config: { ...ada.config, injectRelevant: 0, injectNewest: 0 },
      dataDir,
    });
    expect(told(off)).toEqual([]);
  });

  it('is not told again where another shim redacts it', async () => {
    const dataDir = temporaryFolder('memory-');
    await testShim(memory, { dataDir, script: [save('Write to ada@example.com.'), 'ok'] });
    const run = await testShim(memory, { dataDir, after: [redact] });
    const again = await run.resume('and now?');
    expect(told(again).map((message) => message.split('\n')[1])).toEqual(['- [1] Write to [email].']);
  });

  it('a memory that cannot be read costs the run its notes only', async () => {
    const dataDir = temporaryFolder('memory-');
    const newer = new NoteStore(dataDir);
    newer.close();
    const database = new SQLite(join(dataDir, 'memory', 'notes.db'));
    database.pragma('user_version = 9');
    database.close();
    const run = await testShim(memory, { dataDir, script: [save('x'), 'ok'] });
    expect([run.output, outcomes(run)]).toEqual([
      'ok',
      [{ message: 'The notes have version 9; this code knows up to 1.' }],
    ]);
  });
});

describe('the store', () => {
  const scope: NoteScope = { memory: 'memory', agent: 'a', key: null, metadata: {} };

  it('a call that is made again after a crash has its effect once', () => {
    const dataDir = temporaryFolder('memory-');
    const store = new NoteStore(dataDir);
    const first = store.save(scope, 'one', { key: 'call-1', most: 5 });
    expect(store.save(scope, 'one', { key: 'call-1', most: 5 })).toEqual(first);
    expect(store.forget(scope, first.id, { key: 'call-2' })).toBe(true);
    expect(store.forget(scope, first.id, { key: 'call-2' })).toBe(true);
    expect(store.save(scope, 'one', { key: 'call-1', most: 5 })).toEqual(first);
    expect(store.newest(scope, 5)).toEqual([]);
    store.close();
  });

  it('any text is safe to search for and to save', () => {
    const store = new NoteStore(mkdtempSync(join(tmpdir(), 'memory-')));
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string(),
          fc.string({ unit: 'binary' }),
          fc.constantFrom('"', "a' OR 1=1 --", 'text:', 'NEAR(a b)', '*', 'a AND', '-x', '(', 'scope : "x"'),
        ),
        (text) => {
          store.search(scope, text, 5);
          const note = `word ${text.toWellFormed().replaceAll('\0', '')}`;
          const { id } = store.save(scope, note, { key: String(Math.random()), most: 1000 });
          expect(store.search(scope, 'word', 1000).find((each) => each.id === id)?.text).toBe(note);
        },
      ),
      { numRuns: 150 },
    );
    store.close();
  });

  it('R6 is shared by all that use it at once, and closed with the last of them', () => {
    const dataDir = temporaryFolder('memory-');
    const [one, two] = [acquireStore(dataDir), acquireStore(dataDir)];
    expect(one.store).toBe(two.store);
    one.release();
    one.release();
    two.store.save(scope, 'still open', { key: 'k', most: 5 });
    two.release();
    expect(() => two.store.newest(scope, 5)).toThrow('not open');
  });
});

it('over HTTP: notes outlive a kill -9, and each API key and user has its own', async () => {
  const model = await ModelEndpoint.start();
  const server = await ServerProcess.start({
    env: { ...model.environment, API_KEYS: 'one:first-key-of-two,two:second-key-of-two' },
    agents: [{ name: 'nurse', model: 'openai-compatible/m', shims: [{ use: 'memory', config: { scope: ['user'] } }] }],
  });
  const run = async (key: string, user: string, input: string): Promise<JsonObject> => {
    const headers = { authorization: `Bearer ${key}`, prefer: 'wait=20' };
    return (await server.json('POST', '/v1/runs', { agent: 'nurse', input, metadata: { user } }, headers)).body;
  };
  model.script(
    { toolCalls: [{ name: 'memory_save', arguments: { text: 'Ada likes green tea.' } }] },
    { text: 'Noted.' },
  );
  expect(await run('first-key-of-two', 'ada', 'I like green tea')).toMatchObject({
    status: 'completed',
    output: 'Noted.',
  });
  await server.kill9();
  await server.restart();
  await run('first-key-of-two', 'ada', 'Tea?');
  await run('first-key-of-two', 'bob', 'Tea?');
  await run('second-key-of-two', 'ada', 'Tea?');
  expect(model.requests.slice(2).map(({ rawBody }) => rawBody.includes('Ada likes green tea.'))).toEqual([
    true,
    false,
    false,
  ]);
  await model.close();
});
