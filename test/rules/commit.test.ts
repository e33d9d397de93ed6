import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import {
  calling,
  callOf,
  ended,
  getRun,
  interruptionIds,
  logOf,
  resume,
  runToEnd,
  startRun,
  typesOf,
  WAIT,
} from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { waitFor } from '../support/wait.js';
import { putAgent, type Seam, startSeam, textsOf } from './seam.js';

const SHIMS = {
  // Writes in every callback, tells of each, and contributes its tools by the turn's flags.
  works: `export default defineShim({
    name: 'works',
    config: z.object({ fails: z.string().default(''), flags: z.boolean().default(false) }),
    async onRunStart(state, transientState, run) {
      await tell('onRunStart', { recovered: run.recovered, turnCount: state.turnCount, transient: [...transientState.keys()], instructions: state.instructions });
      state.shimState.increment('works:starts');
      state.history.push(internalMessage({ role: 'user', content: 'the page' }, { origin: 'works', ephemeral: true }));
      transientState.set('started', true);
    },
    async prepareTurn(turn) {
      const { turnCount, runTurn, isFirstOfRun, isFirstForThisAgent, transientState } = turn;
      await tell('prepareTurn', { turnCount, runTurn, isFirstOfRun, isFirstForThisAgent, started: transientState.get('started') });
      turn.runState.shimState.increment('works:turns');
      turn.appendSystemInstruction('+' + turnCount, { separator: ' ' });
      if (this.config.fails === 'prepareTurn ' + turnCount) throw new Error('as asked');
      const write = (name) => async (args) => {
        await tell(name, args);
        turn.runState.shimState.increment('works:' + name);
        return name + ' done';
      };
      const tools = [tool('a', write('a'), { onCrash: 'retry' }), tool('b', write('b')), tool('gated', write('gated'), { needsApproval: true })];
      if (!this.config.flags || turn.isFirstForThisAgent) turn.addTools(tools);
      if (!this.config.flags || turn.isFirstOfRun) turn.addTools([tool('of-first', write('of-first'), { needsApproval: true })]);
    },
    async transformMessages(turn, messages) { await tell('transformMessages'); },
    async onModelResponse(turn, response) {
      await tell('onModelResponse');
      turn.runState.shimState.increment('works:responses');
      turn.appendHistoryItem('noted ' + turn.turnCount);
      if (this.config.fails === 'onModelResponse ' + turn.turnCount) throw new Error('as asked');
    },
    onRunEnd: async (result) => { await tell('onRunEnd', { result: result === null ? null : result.finalOutput }); },
  });`,
};

let seam: Seam;
beforeAll(async () => {
  seam = await startSeam(SHIMS);
  await putAgent(seam, 'plain');
  await putAgent(seam, 'works', { shims: ['works'], instructions: 'own' });
  await putAgent(seam, 'flags', { shims: [{ use: 'works', config: { flags: true } }] });
  for (const fails of ['prepareTurn 2', 'onModelResponse 2']) {
    await putAgent(seam, `fails-${fails.replace(' ', '-')}`, {
      shims: [{ use: 'works', config: { fails } }],
      instructions: 'own',
    });
  }
});
afterAll(async () => {
  await seam.close();
});
let told = 0;
beforeEach(() => {
  seam.model.respondWith(undefined);
  told = seam.ledger.count();
});

/** What the shims told since the test began, by name. */
const entries = (name: string): JsonObject[] =>
  seam.ledger
    .entries()
    .slice(told)
    .filter((entry) => entry.name === name)
    .map(({ seq: _seq, at: _at, name: _name, ...rest }) => rest);
const names = (): string[] =>
  seam.ledger
    .entries()
    .slice(told)
    .map(({ name }) => name);
const stateOf = async (id: unknown): Promise<JsonObject> =>
  (await seam.server.json('GET', `/v1/runs/${String(id)}/state`)).body;
const decide = async (run: JsonObject, decision = 'approve'): Promise<JsonObject> =>
  (await resume(seam, run.id, { decisions: interruptionIds(run).map((id) => ({ id, decision })) })).body;

/** History as kinds of things, so that a test reads it at a glance. */
async function historyOf(id: unknown): Promise<string[]> {
  return ((await stateOf(id)).history as readonly unknown[]).map((item) => {
    if (typeof item === 'string') return item;
    const fields = item as {
      role?: string;
      finishReason?: string;
      content?: readonly { output: { value: unknown } }[];
    };
    if (fields.finishReason !== undefined) return `response ${fields.finishReason}`;
    return `${String(fields.role)}: ${fields.content?.map(({ output }) => String(output.value)).join(' | ') ?? ''}`;
  });
}

it('R79 creation and each resume’s input are a checkpoint', async () => {
  const run = await runToEnd(seam, { agent: 'plain', input: 'one' });
  await resume(seam, run.id, { input: 'two' });
  const { body } = await seam.server.json('GET', `/v1/runs/${String(run.id)}/checkpoints`);
  expect(body.data).toMatchObject([
    { turn: 0, turnCount: 0, historyLength: 1, seq: 1 },
    { turn: 1, turnCount: 1, historyLength: 2 },
    { turn: 1, turnCount: 1, historyLength: 3 },
    { turn: 2, turnCount: 2, historyLength: 4 },
  ]);
});

it.each(['prepareTurn 2', 'onModelResponse 2'])(
  'R79 R61 a run that fails in %s keeps its last boundary, the end of the tool round',
  async (fails) => {
    seam.model.script(calling(callOf('a')));
    seam.model.respondWith(() => ({ text: 'shown' }));
    const run = await runToEnd(seam, { agent: `fails-${fails.replace(' ', '-')}` });
    const shown = fails.startsWith('onModel') ? 'shown' : null;
    expect(run).toMatchObject({
      status: 'failed',
      error: { code: 'shim_failed', shim: 'works' },
      turnCount: 1,
      partialOutput: shown,
    });
    expect(await historyOf(run.id)).toEqual(['hello', 'response tool-calls', 'tool: a done', 'noted 1']);
    expect(await stateOf(run.id)).toMatchObject({
      instructions: 'own +1',
      turnCount: 1,
      shimState: { 'works:starts': 1, 'works:turns': 1, 'works:responses': 1, 'works:a': 1 },
    });
    expect(entries('onRunEnd')).toEqual([{ result: null }]);
  },
);

it('R79 the response and what onModelResponse wrote commit together; each outcome commits as it ends', async () => {
  seam.model.script(calling(callOf('a', { n: 1 }), callOf('b', { n: 2 })), { text: 'done' });
  const block = seam.ledger.blockBefore('b');
  const { body } = await startRun(seam, { agent: 'works' });
  await block.reached;
  await waitFor(
    async () => typesOf(await logOf(seam, body.id)).filter((type) => type === 'tool.completed').length === 1,
  );
  // Killed here, the next start has the response with its writes, and the outcome of the call that had ended.
  await seam.server.kill9();
  block.release();
  await seam.server.restart();
  const run = await ended(seam, body.id);
  expect(run).toMatchObject({
    status: 'completed',
    output: 'done',
    recoveries: 1,
    turnCount: 2,
    unknownToolCalls: [{ tool: 'b' }],
  });
  expect(await historyOf(body.id)).toEqual([
    'hello',
    'response tool-calls',
    'tool: a done | The server stopped while this call ran; whether it had its effect is not known.',
    'noted 1',
    'response stop',
    'noted 2',
  ]);
  expect(entries('a')).toHaveLength(1);
  expect((await stateOf(body.id)).shimState).toEqual({
    'works:starts': 1,
    'works:turns': 2,
    'works:responses': 2,
    'works:a': 1,
  });
});

it('R79a a turn that is entered again calls prepareTurn only to rebuild the tools; R79b the wait ends the attempt', async () => {
  seam.model.script(calling(callOf('gated', {}, 'call_1'), callOf('a')), { text: 'done' });
  const waiting = await runToEnd(seam, { agent: 'works' });
  expect(waiting).toMatchObject({ status: 'waiting', turnCount: 1, attempt: 1 });
  const first = ['onRunStart', 'prepareTurn', 'transformMessages', 'onModelResponse', 'a', 'onRunEnd'];
  expect(names()).toEqual(first);
  expect(entries('onRunEnd')).toEqual([{ result: null }]);
  const run = await decide(waiting);
  expect(run).toMatchObject({ status: 'completed', output: 'done', turnCount: 2, attempt: 2 });
  const again = ['onRunStart', 'prepareTurn', 'gated'];
  const second = ['prepareTurn', 'transformMessages', 'onModelResponse', 'onRunEnd'];
  expect(names()).toEqual([...first, ...again, ...second]);
  expect(entries('prepareTurn').map(({ turnCount }) => turnCount)).toEqual([1, 1, 2]);
  expect(await stateOf(run.id)).toMatchObject({
    instructions: 'own +1 +2',
    turnCount: 2,
    shimState: { 'works:starts': 1, 'works:turns': 2, 'works:responses': 2, 'works:a': 1, 'works:gated': 1 },
  });
  expect(await historyOf(run.id)).toEqual([
    'hello',
    'response tool-calls',
    'tool: gated done | a done',
    'noted 1',
    'response stop',
    'noted 2',
  ]);
  const log = await logOf(seam, run.id);
  expect(typesOf(log).filter((type) => type === 'turn.started')).toHaveLength(2);
  expect(log.filter(({ type }) => type.startsWith('run.')).map(({ type, attempt }) => `${type} ${attempt}`)).toEqual([
    'run.created 1',
    'run.started 1',
    'run.waiting 1',
    'run.resumed 2',
    'run.completed 2',
  ]);
  // What was rebuilt is nobody's effect.
  const effects = log.filter(({ type, callback }) => type === 'shim.effect' && callback === 'prepareTurn');
  expect(effects.map(({ turn }) => turn)).toEqual([1, 2]);
});

it('R79a the flags of a turn that is entered again are those it had, so its tools are the same', async () => {
  seam.model.script(calling(callOf('gated'), callOf('of-first')), { text: 'done' });
  const waiting = await runToEnd(seam, { agent: 'flags' });
  const run = await decide(waiting);
  expect(run).toMatchObject({ status: 'completed', output: 'done' });
  expect((await historyOf(run.id))[2]).toBe('tool: gated done | of-first done');
  expect(
    entries('prepareTurn').map(({ isFirstOfRun, isFirstForThisAgent }) => [isFirstOfRun, isFirstForThisAgent]),
  ).toEqual([
    [true, true],
    [true, true],
    [true, false],
  ]);
});

it('R79b after run.waiting only a cancel writes into the attempt', async () => {
  seam.model.script(calling(callOf('gated')));
  const waiting = await runToEnd(seam, { agent: 'works' });
  const { body: run } = await seam.server.json('DELETE', `/v1/runs/${String(waiting.id)}`, undefined, WAIT);
  expect(run).toMatchObject({ status: 'cancelled', attempt: 1 });
  const log = await logOf(seam, run.id);
  expect(typesOf(log).slice(-4)).toEqual(['run.waiting', 'run.cancelling', 'tool.completed', 'run.cancelled']);
  expect(names().filter((name) => name === 'onRunEnd')).toHaveLength(1);
  expect(await historyOf(run.id)).toEqual([
    'hello',
    'response tool-calls',
    'tool: The run was cancelled before this call was run.',
    'noted 1',
  ]);
});

it('R81 a resume sees what the shims left: instructions, history, responses, state, turns; transientState is empty', async () => {
  seam.model.script({ text: 'first' }, { text: 'second' });
  const run = await runToEnd(seam, { agent: 'works' });
  await resume(seam, run.id, { input: 'more' });
  expect(entries('onRunStart')).toEqual([
    { recovered: false, turnCount: 0, transient: [], instructions: 'own' },
    { recovered: false, turnCount: 1, transient: [], instructions: 'own +1' },
  ]);
  expect(textsOf(seam.model.requests.at(-1) ?? { body: {} })).toEqual([
    'system: own +1 +2',
    'user: hello',
    'assistant: first',
    'user: noted 1',
    'user: more',
    'user: the page',
  ]);
  const state = await stateOf(run.id);
  expect(state).toMatchObject({
    instructions: 'own +1 +2',
    turnCount: 2,
    shimState: { 'works:starts': 2, 'works:turns': 2 },
  });
  expect(state.responses).toHaveLength(2);
});

it('R82 runs of one conversation are serial', async () => {
  let open = (): void => undefined;
  seam.model.script({ text: 'slow', gate: new Promise<void>((resolve) => (open = resolve)), gateAt: 'start' });
  const { body } = await startRun(seam, { agent: 'plain' });
  const answers = await Promise.all([1, 2, 3].map(async (n) => resume(seam, body.id, { input: `${n}` }, {})));
  expect(answers.map(({ status, body: problem }) => [status, problem.code])).toEqual(
    Array(3).fill([409, 'run_active']),
  );
  open();
  await ended(seam, body.id);
  const more = await Promise.all([1, 2, 3].map(async (n) => resume(seam, body.id, { input: `${n}` })));
  expect(more.map(({ status }) => status).sort()).toEqual([200, 409, 409]);
  expect(await getRun(seam, body.id)).toMatchObject({ status: 'completed', attempt: 2, turnCount: 2 });
});

it('R86 after a crash and after a wait onRunStart rebuilds transient state; its writes are not applied twice', async () => {
  let reached = (): void => undefined;
  const inSecond = new Promise<void>((resolve) => (reached = resolve));
  seam.model.script(calling(callOf('a')));
  seam.model.respondWith(() => {
    reached();
    return { text: 'never', gate: new Promise(() => undefined), gateAt: 'start' };
  });
  const { body } = await startRun(seam, { agent: 'works' });
  await inSecond;
  await seam.server.kill9();
  seam.model.respondWith(undefined);
  seam.model.script(calling(callOf('gated')), { text: 'done' });
  await seam.server.restart();
  const waiting = await ended(seam, body.id);
  expect(waiting).toMatchObject({ status: 'waiting', recoveries: 1, turnCount: 2 });
  const run = await decide(waiting);
  expect(run).toMatchObject({ status: 'completed', output: 'done' });
  expect(entries('onRunStart').map(({ recovered, transient }) => [recovered, transient])).toEqual([
    [false, []],
    [true, []],
    [true, []],
  ]);
  expect(entries('prepareTurn').every(({ started }) => started === true)).toBe(true);
  // The ephemeral message was sent on every call, once.
  for (const request of seam.model.requests.slice(-3)) {
    expect(textsOf(request).filter((text) => text === 'user: the page')).toHaveLength(1);
    expect(textsOf(request).slice(1, 3)).toEqual(['user: hello', 'user: the page']);
  }
  expect(await stateOf(run.id)).toMatchObject({ shimState: { 'works:starts': 1, 'works:turns': 3 }, turnCount: 3 });
});

it('R86 a crash before the run start was committed has it again, and then it counts', async () => {
  const block = seam.ledger.blockBefore('onRunStart');
  const { body } = await startRun(seam, { agent: 'works' });
  await block.reached;
  await seam.server.kill9();
  block.release();
  await seam.server.restart();
  expect(await ended(seam, body.id)).toMatchObject({ status: 'completed' });
  expect(entries('onRunStart').at(-1)).toMatchObject({ recovered: true });
  expect(await stateOf(body.id)).toMatchObject({ shimState: { 'works:starts': 1 } });
  expect(textsOf(seam.model.requests.at(-1) ?? { body: {} }).filter((text) => text === 'user: the page')).toHaveLength(
    1,
  );
});
