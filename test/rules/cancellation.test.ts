import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { calling, callOf, ended, getRun, logOf, runToEnd, startRun, typesOf, WAIT } from '../server/lab.js';
import { waitFor } from '../support/wait.js';
import { putAgent, type Seam, startSeam } from './seam.js';

const SHIMS = {
  // Tells the ledger of each callback, which may be held there.
  told: `export default defineShim({
    name: 'told',
    async bind() {
      await tell('bind');
      return new (class extends BoundShim {
        onRunStart(state, transientState, run) { return tell('onRunStart', { runId: run.runId }, run.signal); }
        async prepareTurn(turn) { await tell('prepareTurn', {}, turn.signal); turn.addTools([tool('fast', () => 'real')]); }
        async onRunEnd(result, transientState, run) {
          await tell('onRunEnd', { result: result === null ? null : result.finalOutput, aborted: run.signal.aborted });
          run.emit('cleaned', run.signal.aborted);
        }
      })();
    },
  });`,
  raises: `export default defineShim({
    name: 'raises',
    config: z.object({ how: z.string() }),
    prepareTurn() { if (this.config.how === 'after an error') throw new Error('first'); },
    onRunEnd() {
      const cancelled = new RunCancelledError();
      if (this.config.how === 'nested') throw new AggregateError([new Error('x', { cause: cancelled })]);
      if (this.config.how === 'abort') throw new DOMException('a fetch of its own', 'AbortError');
      throw cancelled;
    },
  });`,
  deaf: `export default defineShim({
    name: 'deaf',
    async prepareTurn(turn) {
      await tell('deaf');
      await tell('deaf again');
      turn.runState.history.push('late');
    },
    onRunEnd: () => tell('deaf end'),
  });`,
  slow: `export default defineShim({
    name: 'slow', onFailure: 'skip', timeouts: { prepareTurn: 60 },
    config: z.object({ skip: z.boolean().default(true) }),
    create: (config, { name }) => new (class extends Shim {
      name = name;
      onFailure = config.skip ? 'skip' : 'fail';
      async prepareTurn(turn) {
        turn.setSystemInstruction('of the slow one');
        await new Promise(() => undefined);
      }
    })(),
  });`,
  'bad-guard': `export default class BadGuard extends Shim {
    name = 'bad-guard';
    inherit = 'always';
    onFailure = 'skip';
  }`,
};

let seam: Seam;
beforeAll(async () => {
  seam = await startSeam(SHIMS, { env: { MAX_CONCURRENT_RUNS: '2' } });
  await putAgent(seam, 'plain');
  await putAgent(seam, 'told', { shims: ['told'] });
  await putAgent(seam, 'deaf', { shims: ['deaf'] });
  for (const how of ['itself', 'nested', 'abort', 'after an error']) {
    await putAgent(seam, `raises-${how.replaceAll(' ', '-')}`, { shims: [{ use: 'raises', config: { how } }] });
  }
});
afterAll(async () => {
  expect(seam.server.stderr).toBe('');
  await seam.close();
});
beforeEach(() => {
  seam.model.respondWith(undefined);
});

const cancel = async (id: unknown, headers: Record<string, string> = {}): ReturnType<typeof startRun> =>
  seam.server.json('DELETE', `/v1/runs/${String(id)}`, undefined, headers);

it('R64 a run that is cancelled in the queue calls no shim and no model', async () => {
  const block = seam.ledger.blockBefore('onRunStart');
  const held = [await startRun(seam, { agent: 'told' }), await startRun(seam, { agent: 'told' })];
  await block.reached;
  const { body } = await startRun(seam, { agent: 'told' });
  expect(body.status).toBe('queued');
  const answer = await cancel(body.id);
  expect(answer.body).toMatchObject({ status: 'cancelled' });
  expect(typesOf(await logOf(seam, body.id))).toEqual(['run.created', 'run.cancelling', 'run.cancelled']);
  expect(seam.ledger.count('bind')).toBe(2);
  block.release();
  for (const run of held) expect(await ended(seam, run.body.id)).toMatchObject({ status: 'completed' });
  expect(seam.model.requests).toHaveLength(2);
  expect(seam.ledger.count('bind')).toBe(2);
});

it.each(['onRunStart', 'prepareTurn'])('R65 a cancel interrupts an awaited %s', async (callback) => {
  const requests = seam.model.requests.length;
  const block = seam.ledger.blockBefore(callback);
  const { body } = await startRun(seam, { agent: 'told' });
  await block.reached;
  const { body: run } = await cancel(body.id, WAIT);
  block.release();
  expect(run).toMatchObject({
    status: 'cancelled',
    cancellation: { inFlight: [{ kind: 'shim', name: 'told', id: callback, obeyed: true, sideEffects: 'none' }] },
  });
  expect(seam.model.requests).toHaveLength(requests);
});

it('R67 R72 the clean-up of a cancel is not interrupted, and cancelled comes after it', async () => {
  const starts = seam.ledger.count('onRunStart');
  const block = seam.ledger.blockBefore('onRunEnd');
  seam.model.script({ text: ['a', 'b'], gate: new Promise(() => undefined), gateAt: 1 });
  const { body } = await startRun(seam, { agent: 'told' });
  await waitFor(async () => typesOf(await logOf(seam, body.id)).includes('model.delta'));
  expect((await cancel(body.id)).status).toBe(202);
  await block.reached;
  // Cancelled once more, it goes on cleaning up.
  expect((await cancel(body.id)).body).toMatchObject({ status: 'cancelling' });
  expect(await getRun(seam, body.id)).toMatchObject({ status: 'cancelling', cancellation: null });
  block.release();
  expect(await ended(seam, body.id)).toMatchObject({ status: 'cancelled', partialOutput: 'a' });
  expect(seam.ledger.entries('onRunEnd').at(-1)).toMatchObject({ result: null, aborted: false });
  expect(seam.ledger.count('onRunStart')).toBe(starts + 1);
  const log = await logOf(seam, body.id);
  expect(typesOf(log).slice(-5)).toEqual([
    'run.cancelling',
    'custom.cleaned',
    'agent.completed',
    'state.snapshot',
    'run.cancelled',
  ]);
  expect(log.at(-4)).toMatchObject({ data: false });
});

it.each([{}, WAIT])('R68 a cancel during the clean-up of a finished run changes nothing (%o)', async (headers) => {
  seam.model.script({ text: 'the answer' });
  const block = seam.ledger.blockBefore('onRunEnd');
  const { body } = await startRun(seam, { agent: 'told' });
  await block.reached;
  const cancelling = cancel(body.id, headers);
  if (headers === WAIT) {
    await cancel(body.id);
    block.release();
    expect(await cancelling).toMatchObject({ status: 200, body: { status: 'completed', output: 'the answer' } });
  } else {
    expect(await cancelling).toMatchObject({ status: 202, body: { status: 'running' } });
    block.release();
  }
  expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'the answer', cancellation: null });
  const log = await logOf(seam, body.id);
  expect(typesOf(log)).not.toContain('run.cancelling');
  expect(log.find(({ type }) => type === 'custom.cleaned')).toMatchObject({ data: false });
});

it.each(['itself', 'nested'])('R69 a cancellation raised in clean-up ends the run as cancelled (%s)', async (how) => {
  seam.model.script({ text: 'shown' });
  const run = await runToEnd(seam, { agent: `raises-${how}` });
  expect(run).toMatchObject({ status: 'cancelled', error: null, output: null, partialOutput: 'shown', turnCount: 1 });
  expect(typesOf(await logOf(seam, run.id))).not.toContain('run.cancelling');
  // The finished turn was a boundary: the conversation goes on from it.
  const again = await seam.server.json('POST', `/v1/runs/${String(run.id)}/resume`, { input: 'more' }, WAIT);
  expect(again.body).toMatchObject({ status: 'cancelled', attempt: 2, turnCount: 2 });
});

it('R69 an AbortError of a shim is no cancel', async () => {
  expect(await runToEnd(seam, { agent: 'raises-abort' })).toMatchObject({
    status: 'failed',
    error: { code: 'shim_cleanup_failed' },
    output: 'ok',
  });
});

it('R70 an earlier error beats a cancellation in clean-up', async () => {
  expect(await runToEnd(seam, { agent: 'raises-after-an-error' })).toMatchObject({
    status: 'failed',
    error: { code: 'shim_failed', shim: 'raises', phase: 'prepareTurn' },
  });
});

it('R78 a deaf callback is given up after 1 s, what it still writes is refused and logged, and the run ends', async () => {
  const requests = seam.model.requests.length;
  const block = seam.ledger.blockBefore('deaf again');
  const { body } = await startRun(seam, { agent: 'deaf' });
  await block.reached;
  const { body: run } = await cancel(body.id, WAIT);
  expect(run).toMatchObject({
    status: 'cancelled',
    cancellation: {
      inFlight: [{ kind: 'shim', name: 'deaf', id: 'prepareTurn', obeyed: false, sideEffects: 'unknown' }],
    },
  });
  const log = await logOf(seam, body.id);
  expect(log.filter(({ type }) => type === 'shim.orphaned')).toMatchObject([
    { shim: 'deaf', callback: 'prepareTurn', ms: 1000, turn: 1 },
  ]);
  expect(seam.ledger.count('deaf end')).toBe(1);
  block.release();
  await waitFor(() => seam.server.logs.some((line) => line.includes('write through a closed shim scope')));
  expect(await logOf(seam, body.id)).toHaveLength(log.length);
  const { body: state } = await seam.server.json('GET', `/v1/runs/${String(body.id)}/state`);
  expect(state.history).toEqual(['hello']);
  expect(seam.model.requests).toHaveLength(requests);
});

it('R78a a callback over its time is skipped where the shim says so, else it fails the run', async () => {
  await putAgent(seam, 'skips', { shims: ['slow'] });
  const skipped = await runToEnd(seam, { agent: 'skips' });
  expect(skipped).toMatchObject({ status: 'completed' });
  const log = await logOf(seam, skipped.id);
  expect(log.filter(({ type }) => type.startsWith('shim.'))).toMatchObject([
    { type: 'shim.timeout', shim: 'slow', callback: 'prepareTurn', ms: 60 },
    { type: 'shim.failed', shim: 'slow', callback: 'prepareTurn', error: { code: 'shim_timeout', shim: 'slow' } },
  ]);
  const { body: state } = await seam.server.json('GET', `/v1/runs/${String(skipped.id)}/state`);
  expect(state.instructions).toBe('You are skips.');
  await putAgent(seam, 'fails', { shims: [{ use: 'slow', config: { skip: false } }] });
  expect(await runToEnd(seam, { agent: 'fails' })).toMatchObject({
    status: 'failed',
    error: { code: 'shim_timeout', shim: 'slow' },
  });
});

it('R78a a guard that may skip is refused at load', async () => {
  const { body } = await seam.server.json('GET', '/v1/shims');
  const bad = (body.data as readonly { file?: string }[]).filter(({ file }) => file?.includes('bad-guard'));
  expect(bad).toMatchObject([
    { state: 'failed', error: { message: expect.stringContaining('inherited always') as string } },
  ]);
});

it('R74 a hundred cancels at random moments leave no connection, no rejection and no run', async () => {
  seam.model.respondWith((_request, index) =>
    index % 2 === 0 ? { text: ['a', 'b', 'c'], tokenDelayMs: 1 } : calling(callOf('fast')),
  );
  for (let round = 0; round < 20; round += 1) {
    const runs = await Promise.all([1, 2, 3, 4, 5].map(async () => startRun(seam, { agent: 'told' })));
    await new Promise((resolve) => setTimeout(resolve, (round * 7) % 23));
    const ends = await Promise.all(runs.map(async ({ body }) => cancel(body.id, WAIT)));
    for (const { body } of ends) expect(['cancelled', 'completed']).toContain(body.status);
  }
  await waitFor(() => seam.model.openRequests === 0);
  expect(seam.model.refusedRequests).toEqual([]);
  expect(seam.server.logs.filter((line) => /unhandled/i.test(line))).toEqual([]);
  const { body } = await seam.server.json('GET', '/v1/runs?status=running');
  expect(body.data).toEqual([]);
});
