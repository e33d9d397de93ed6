import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { type JsonAnswer, ServerProcess } from '../support/server-process.js';
import { openStream } from '../support/sse-client.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

const WAIT = { prefer: 'wait=20' };
const shimsDir = temporaryFolder('shims-');
const notes = join(temporaryFolder('notes-'), 'notes.txt');

const HEAD = `import { BoundShim, Shim, defineShim, defineTool, z } from 'shimline/shims';
import { appendFileSync } from 'node:fs';
const note = (text) => appendFileSync(${JSON.stringify(notes)}, text + '\\n');
`;

function writeShim(name: string, body: string): void {
  writeFileSync(join(shimsDir, `${name}.mjs`), `${HEAD}${body}`);
}

/** A session that is noted; it can fail its bind, and its tool can hold the server for a kill. */
const SESSIONS = `
export default defineShim({
  name: 'sessions',
  config: z.strictObject({ failBind: z.boolean().default(false) }),
  create(config, { name }) {
    let bound = 0;
    return new (class extends Shim {
      name = name;
      bind({ task }) {
        if (config.failBind) throw new Error('no lease for ' + name);
        note('bind ' + name);
        bound += 1;
        const session = new (class extends BoundShim {
          memory = 0;
          onRunStart(state, transientState, run) {
            note('start ' + name + ' memory ' + this.memory + ' recovered ' + run.recovered);
            this.memory += 1;
          }
          prepareTurn(turn) {
            turn.runState.shimState.increment(name + ':turns');
            turn.addTools([
              defineTool({
                name: 'hold', description: 'Holds.', parameters: z.object({}), onCrash: 'retry',
                execute: async () => { note('hold'); await new Promise((resolve) => setTimeout(resolve, turn.recovered ? 0 : 60000)); return 'held'; },
              }),
            ]);
          }
          onRunEnd() { note('end ' + name); }
          async [Symbol.asyncDispose]() { note('dispose ' + name); }
        })();
        return session;
      }
    })();
  },
});
`;

/** One instance of many callbacks that tells the name it goes by, and fails where it is told. */
const NAMED = `
export default defineShim({
  name: 'named',
  config: z.strictObject({ fail: z.string().default('') }),
  state: z.object({ runs: z.number().default(0) }),
  onRunStart(state, transientState, run) {
    run.state.runs += 1;
    run.emit('hello', { name: this.name });
    if (this.config.fail === 'onRunStart') throw new Error('told to fail');
  },
  prepareTurn(turn) {
    if (turn.isFirstOfConversation) turn.appendSystemInstruction('by ' + this.name);
    if (this.config.fail === 'prepareTurn') throw new Error('told to fail');
  },
  onRunEnd(result, transientState, run) {
    if (this.config.fail === 'onRunEnd') throw new Error('told to fail');
  },
});
`;

/** Contributes its gated tool in the first turn only, and keeps nothing but texts of the history there. */
const FIRST_ONLY = `
export default defineShim({
  name: 'first-only',
  prepareTurn(turn) {
    if (turn.isFirstForThisAgent) turn.replaceHistory(turn.runState.history.filter((item) => typeof item === 'string'));
    if (!turn.isFirstForThisAgent || !turn.isFirstOfRun || turn.runTurn !== 1) return;
    turn.addTools([defineTool({ name: 'gated', description: 'Asks.', parameters: z.object({}), needsApproval: true, execute: () => 'approved' })]);
  },
});
`;

const versioned = (version: number, state: string, migrate = ''): string => `
export default defineShim({
  name: 'versioned', version: ${version}, state: z.object(${state}), ${migrate}
  prepareTurn(turn) { turn.state.n += 1; },
});
`;

let server: ServerProcess;

beforeAll(async () => {
  writeShim('sessions', SESSIONS);
  writeShim('named', NAMED);
  writeShim('first-only', FIRST_ONLY);
  writeShim('versioned', versioned(1, '{ n: z.number().default(0) }'));
  writeFileSync(notes, '');
  server = await ServerProcess.start({ shimsDir, env: { SHIMS_WATCH: 'true' } });
});
afterAll(async () => server.stop());

async function putAgent(name: string, fields: JsonObject): Promise<JsonAnswer> {
  return server.json('PUT', `/v1/agents/${name}`, { name, model: 'scripted/demo', ...fields });
}
async function run(agent: string, input: unknown, fields: JsonObject = {}): Promise<JsonObject> {
  const answer = await server.json('POST', '/v1/runs', { agent, input, ...fields }, WAIT);
  expect(answer.status, JSON.stringify(answer.body)).toBe(200);
  return answer.body;
}
async function resume(id: unknown, body: JsonObject): Promise<JsonObject> {
  const answer = await server.json('POST', `/v1/runs/${String(id)}/resume`, body, WAIT);
  expect(answer.status, JSON.stringify(answer.body)).toBe(200);
  return answer.body;
}
async function get(id: unknown, part = ''): Promise<JsonObject> {
  return (await server.json('GET', `/v1/runs/${String(id)}${part}`)).body;
}
async function eventsOf(id: unknown): Promise<(JsonObject & { readonly type: string })[]> {
  return (await get(id, '/events?limit=1000')).data as (JsonObject & { readonly type: string })[];
}
/** The lines noted up to one, which may come after the answer: sessions are disposed of when the end is written. */
async function notedUntil(last: string, times = 1): Promise<string[]> {
  const lines: string[] = [];
  await waitFor(
    () => {
      lines.push(...noted());
      return lines.filter((line) => line === last).length >= times;
    },
    { what: last },
  );
  return lines;
}
/** The lines noted since the last look. */
function noted(): string[] {
  const lines = readFileSync(notes, 'utf8').split('\n').filter(Boolean);
  writeFileSync(notes, '');
  return lines;
}

describe('R3 names', () => {
  it('R3 two shims of the same name are refused when the agent is saved, naming both positions', async () => {
    for (const shims of [
      [{ use: 'named' }, { use: 'sessions' }, { use: 'named' }],
      [{ use: 'named', as: 'x' }, { use: 'sessions' }, { use: 'sessions', as: 'x' }],
      [{ use: 'named' }, { use: 'reply-prefix' }, { use: 'sessions', as: 'named' }],
    ]) {
      const { status, body } = await putAgent('twins', { shims });
      expect(status).toBe(422);
      const text = JSON.stringify(body.errors);
      expect(text).toMatch(/\/shims\/2/);
      expect(text).toMatch(/\/shims\/0|position 0|shims\[0\]/);
    }
    expect((await server.json('GET', '/v1/agents/twins')).status).toBe(404);
  });

  it('R2 R3 an as name is the one that errors, events, effects and state keys use, and the callbacks see', async () => {
    const shims = [{ use: 'named' }, { use: 'named', as: 'other' }, { use: 'sessions', as: 'third' }];
    expect((await putAgent('named-twice', { shims })).status).toBe(201);
    noted();
    const { id } = await run('named-twice', 'say done');
    const { shimState, instructions } = await get(id, '/state');
    expect(shimState).toEqual({
      named: { runs: 1 },
      'named:version': 1,
      other: { runs: 1 },
      'other:version': 1,
      'third:turns': 1,
    });
    expect(instructions).toBe('by named\n\nby other');
    expect(await notedUntil('dispose third')).toEqual([
      'bind third',
      'start third memory 0 recovered false',
      'end third',
      'dispose third',
    ]);
    const events = await eventsOf(id);
    expect(events.filter(({ type }) => type === 'custom.hello').map(({ shim, data }) => [shim, data])).toEqual([
      ['named', { name: 'named' }],
      ['other', { name: 'other' }],
    ]);
    const effects = (await get(id, '/effects')).data as JsonObject[];
    expect(new Set(effects.map(({ shim }) => shim))).toEqual(new Set(['named', 'other', 'third']));
    expect((await get(id)).shims).toMatchObject([{ name: 'named' }, { name: 'other' }, { name: 'third' }]);
    const failed = await run('named-twice', 'say done', { shims: { other: { fail: 'prepareTurn' } } });
    expect(failed.error).toMatchObject({ code: 'shim_failed', shim: 'other', phase: 'prepareTurn' });
  });
});

describe('R4 R7 R8 sessions', () => {
  it('R4 R7 R8 each attempt binds once and disposes at its end; a resumed run meets a fresh session', async () => {
    await putAgent('bound', {
      shims: [
        { use: 'sessions', as: 'a' },
        { use: 'sessions', as: 'b' },
      ],
    });
    noted();
    const { id } = await run('bound', 'say one');
    await resume(id, { input: 'say two' });
    const attempt = [
      'bind a',
      'bind b',
      ...['a', 'b'].map((name) => `start ${name} memory 0 recovered false`),
      'end a',
      'end b',
      'dispose a',
      'dispose b',
    ];
    // The next attempt binds when the sessions of the one before are gone.
    expect(await notedUntil('dispose b', 2)).toEqual([...attempt, ...attempt]);
    expect((await get(id, '/state')).shimState).toEqual({ 'a:turns': 2, 'b:turns': 2 });
  });

  it('R7 a bind that throws fails the run before any callback, and bound siblings are disposed', async () => {
    const shims = [
      { use: 'sessions', as: 'a' },
      { use: 'sessions', as: 'b', config: { failBind: true } },
      { use: 'sessions', as: 'c' },
    ];
    await putAgent('unbound', { shims });
    noted();
    const failed = await run('unbound', 'say one');
    expect(failed).toMatchObject({
      status: 'failed',
      turnCount: 0,
      error: { code: 'shim_failed', shim: 'b', phase: 'bind', cause: 'no lease for b' },
    });
    expect(await notedUntil('dispose a')).toEqual(['bind a', 'dispose a']);
    expect(
      (await eventsOf(failed.id)).map(({ type }) => type).filter((type) => /^(model|turn|shim)\./.test(type)),
    ).toEqual([]);
  });
});

it('R10 the state of a run over HTTP', async () => {
  await putAgent('plain', { instructions: 'Be brief.' });
  const { id } = await run('plain', 'say one');
  const state = await get(id, '/state');
  expect(Object.keys(state).toSorted()).toEqual(['history', 'instructions', 'responses', 'shimState', 'turnCount']);
  expect(state).toMatchObject({ instructions: 'Be brief.', shimState: {}, turnCount: 1 });
  const [response] = state.responses as JsonObject[];
  expect(state.history).toEqual(['say one', response]);
  expect(response).toMatchObject({ message: { role: 'assistant', content: 'one' }, finishReason: 'stop' });
});

it('R11 R12 R21 a saved run keeps its own instructions when those of the agent change, and its turn count goes on', async () => {
  const shims = [{ use: 'named' }];
  await putAgent('changing', { instructions: 'Version one.', shims });
  const { id } = await run('changing', 'say one');
  expect((await putAgent('changing', { instructions: 'Version two.', shims })).status).toBe(200);
  const resumed = await resume(id, { input: 'say two' });
  expect(resumed).toMatchObject({ status: 'completed', output: 'two', turnCount: 2, attempt: 2 });
  expect(await get(id, '/state')).toMatchObject({ instructions: 'Version one.\n\nby named', turnCount: 2 });
  const fresh = await run('changing', 'say three');
  expect((await get(fresh.id, '/state')).instructions).toBe('Version two.\n\nby named');
});

it('R14 limits of the agent and of the run count the turns of the attempt', async () => {
  const tools = { shims: [{ use: 'clock' }], limits: { maxTurns: 2 } };
  await putAgent('limited', tools);
  const { id } = await run('limited', 'tools=1\nsay one');
  for (const text of ['two', 'three']) expect((await resume(id, { input: `tools=1\nsay ${text}` })).output).toBe(text);
  const failed = await resume(id, { input: 'tools=2\nsay four' });
  expect(failed).toMatchObject({
    status: 'failed',
    turnCount: 8,
    error: { code: 'limit_exceeded', limit: 'maxTurns', allowed: 2 },
  });
  const raised = await resume(id, { input: 'tools=2\nsay five', limits: { maxTurns: 3 } });
  expect(raised).toMatchObject({ status: 'completed', output: 'five', turnCount: 11 });
});

it('R59 R62 a clean-up that fails keeps the answer on the run and in the event, and the run can be resumed', async () => {
  await putAgent('unclean', {
    shims: [
      { use: 'named', config: { fail: 'onRunEnd' } },
      { use: 'named', as: 'also', config: { fail: 'onRunEnd' } },
    ],
  });
  const failed = await run('unclean', 'say the answer');
  const shape = (shim: string) => ({
    code: 'shim_failed',
    message: `Shim "${shim}" failed in onRunEnd: told to fail`,
    shim,
    phase: 'onRunEnd',
    cause: 'told to fail',
  });
  expect(failed).toMatchObject({
    status: 'failed',
    output: 'the answer',
    error: { code: 'shim_cleanup_failed', errors: [shape('named'), shape('also')] },
  });
  expect((await eventsOf(failed.id)).at(-1)).toMatchObject({
    type: 'run.failed',
    output: 'the answer',
    error: failed.error,
  });
  expect(await get(failed.id, '/state')).toMatchObject({ turnCount: 1, history: ['say the answer', {}] });
  const resumed = await resume(failed.id, { input: 'say more' });
  expect(resumed).toMatchObject({ status: 'failed', output: 'more', turnCount: 2 });
});

it('R62 one shape of a shim failure on the run, in the stream and in the log', async () => {
  await putAgent('fails', { shims: [{ use: 'named', as: 'culprit', config: { fail: 'onRunStart' } }] });
  const stream = await openStream(`${server.url}/v1/runs`, { body: { agent: 'fails', input: 'say one' } });
  await stream.ended;
  const last = JSON.parse(stream.events.at(-1)?.data ?? '{}') as JsonObject;
  const error = {
    code: 'shim_failed',
    message: 'Shim "culprit" failed in onRunStart: told to fail',
    shim: 'culprit',
    phase: 'onRunStart',
    cause: 'told to fail',
  };
  expect(last).toMatchObject({ type: 'run.failed', error });
  expect((await get(last.runId)).error).toMatchObject(error);
  const logged = await waitFor(
    () => server.logObjects().find((line) => line.runId === last.runId && line.error !== undefined),
    { what: 'the failure in the log' },
  );
  expect(logged.error).toMatchObject({
    code: 'shim_failed',
    shim: 'culprit',
    phase: 'onRunStart',
    cause: 'told to fail',
  });
});

describe('R20a versions of a state', () => {
  const hash = async (): Promise<unknown> => {
    const { data } = (await server.json('GET', '/v1/shims')).body as { readonly data: readonly JsonObject[] };
    return data.find(({ name }) => name === 'versioned')?.hash;
  };
  const replace = async (body: string): Promise<void> => {
    const before = await hash();
    writeShim('versioned', body);
    await waitFor(async () => (await hash()) !== before, { what: 'the new version of the shim' });
  };

  it('R20a is migrated by newer code, refused by older code, and left by a shim that is gone', async () => {
    await putAgent('keeps', { shims: [{ use: 'versioned' }, { use: 'named' }] });
    await putAgent('without', { shims: [{ use: 'named' }] });
    const { id } = await run('keeps', 'say one');
    expect((await get(id, '/state')).shimState).toMatchObject({ versioned: { n: 1 }, 'versioned:version': 1 });

    const second = versioned(
      3,
      '{ n: z.number().default(0), from: z.number().optional() }',
      'migrate: (old, fromVersion) => ({ n: old.n * 10, from: fromVersion }),',
    );
    await replace(second);
    await resume(id, { input: 'say two' });
    const migrated = { versioned: { n: 11, from: 1 }, 'versioned:version': 3, named: { runs: 2 }, 'named:version': 1 };
    expect((await get(id, '/state')).shimState).toEqual(migrated);
    await resume(id, { input: 'say three' });
    expect((await get(id, '/state')).shimState).toMatchObject({ versioned: { n: 12, from: 1 } });

    await replace(versioned(2, '{ n: z.number().default(0) }'));
    const failed = await resume(id, { input: 'say four' });
    expect(failed).toMatchObject({
      status: 'failed',
      error: { code: 'shim_failed', shim: 'versioned', phase: 'state' },
    });
    expect(String((failed.error as JsonObject).message)).toMatch(/version 3.*knows up to 2/);
    const untouched = { versioned: { n: 12, from: 1 }, 'versioned:version': 3, named: { runs: 3 } };
    expect((await get(id, '/state')).shimState).toMatchObject(untouched);

    // A shim that is gone from the agent keeps its bytes.
    const forked = await server.json(
      'POST',
      `/v1/runs/${String(id)}/fork`,
      { agent: 'without', input: 'say five' },
      WAIT,
    );
    const fork = (await server.json('GET', `/v1/runs/${String(forked.body.id)}`, undefined, WAIT)).body;
    expect(fork).toMatchObject({ status: 'completed', output: 'five' });
    expect((await get(fork.id, '/state')).shimState).toMatchObject({
      versioned: { n: 12, from: 1 },
      'versioned:version': 3,
      named: { runs: 4 },
    });

    await replace(second);
    expect(await resume(id, { input: 'say six' })).toMatchObject({ status: 'completed', output: 'six' });
    expect((await get(id, '/state')).shimState).toMatchObject({ versioned: { n: 13, from: 1 } });
  });

  it('R20a a stored state that its schema refuses fails the run and is left as it is', async () => {
    await replace(versioned(1, '{ n: z.number().default(0) }'));
    await putAgent('refused', { shims: [{ use: 'versioned' }] });
    const { id } = await run('refused', 'say one');
    await replace(versioned(1, '{ n: z.number().max(0).default(0) }'));
    const failed = await resume(id, { input: 'say two' });
    expect(failed).toMatchObject({ status: 'failed', error: { shim: 'versioned', phase: 'state' } });
    expect(String((failed.error as JsonObject).message)).toContain('/n');
    expect((await get(id, '/state')).shimState).toEqual({ versioned: { n: 1 }, 'versioned:version': 1 });
    await replace(versioned(1, '{ n: z.number().default(0) }'));
  });
});

it('R8 R17 after a kill the state is there, the session is a fresh one, and nothing is applied twice', async () => {
  await putAgent('killed', { shims: [{ use: 'sessions' }, { use: 'named' }] });
  noted();
  const { body } = await server.json('POST', '/v1/runs', { agent: 'killed', input: 'call hold {}\nsay done' });
  await waitFor(() => readFileSync(notes, 'utf8').includes('hold'), { what: 'the tool to hold' });
  await server.kill9();
  expect(noted()).toEqual(['bind sessions', 'start sessions memory 0 recovered false', 'hold']);
  await server.restart();
  const recovered = (await server.json('GET', `/v1/runs/${String(body.id)}`, undefined, WAIT)).body;
  expect(recovered).toMatchObject({ status: 'completed', output: 'done', turnCount: 2, recoveries: 1, attempt: 1 });
  expect(await notedUntil('dispose sessions')).toEqual([
    'bind sessions',
    'start sessions memory 0 recovered true',
    'hold',
    'end sessions',
    'dispose sessions',
  ]);
  const state = await get(body.id, '/state');
  expect(state.shimState).toEqual({ 'sessions:turns': 2, named: { runs: 1 }, 'named:version': 1 });
  expect(state.instructions).toBe('by named');
  expect(await resume(body.id, { input: 'say more' })).toMatchObject({ output: 'more', turnCount: 3 });
  expect((await get(body.id, '/state')).shimState).toMatchObject({ 'sessions:turns': 3, named: { runs: 2 } });
});

it('R15 R31a a turn that is entered again to run what was approved is told the same of itself, and what it drops is discarded', async () => {
  await putAgent('asks', { shims: [{ use: 'first-only' }] });
  const waiting = await run('asks', 'call gated {}\nsay done');
  const [interruption] = waiting.interruptions as JsonObject[];
  expect(waiting).toMatchObject({ status: 'waiting', interruptions: [{ tool: 'gated' }] });
  const resumed = await resume(waiting.id, { decisions: [{ id: interruption?.id, decision: 'approve' }] });
  const outcomes = (await eventsOf(waiting.id)).filter(({ type }) => type === 'tool.completed');
  expect(outcomes.map(({ ok, result }) => [ok, result])).toEqual([[true, 'approved']]);
  expect(resumed).toMatchObject({ status: 'completed', output: 'done', turnCount: 2 });
});
