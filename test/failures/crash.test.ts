import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { calling, callOf, ended, follow, getRun, type Lab, logOf, resume, runToEnd, startRun } from '../server/lab.js';
import { editDatabase } from '../support/database-check.js';
import { lastUserText, toolResultsOf } from '../support/request-view.js';
import { ServerProcess } from '../support/server-process.js';
import { waitFor } from '../support/wait.js';
import { cancel, decideAll, nextTurnWorks, putTrialAgent, startTrial } from './trial.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startTrial();
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

let unique = 9000;
const fresh = (): number => (unique += 1);
const has = (n: number) => (effect: { readonly n?: unknown }) => effect.n === n;

async function crashAndRestart(): Promise<void> {
  await lab.server.kill9();
  await lab.server.restart();
}

describe('K01 a crash around an effect never repeats it', () => {
  const PLACES = ['before the effect', 'after the effect and before the reply', 'moments after the reply'] as const;
  it.each(PLACES.flatMap((place) => ['effect', 'gated'].map((tool) => ({ place, tool }))))(
    'K01 $place, tool $tool',
    async ({ place, tool }) => {
      const n = fresh();
      const block = place === 'before the effect' ? lab.ledger.blockBefore(has(n)) : lab.ledger.blockAfter(has(n));
      lab.model.script(calling(callOf(tool, { n })), { text: 'told' }, { text: 'told' });
      let run = (await startRun(lab, {})).body;
      if (tool === 'gated') {
        run = await ended(lab, run.id);
        await resume(lab, run.id, decideAll(run, 'approve'), {});
      }
      await block.reached;
      if (place === 'moments after the reply') {
        block.release();
        await sleep(Math.random() * 20);
      }
      await crashAndRestart();
      block.release();
      const done = await ended(lab, run.id);
      expect(done).toMatchObject({ status: 'completed', output: 'told' });
      const count = lab.ledger.count(has(n));
      const { text = '' } = toolResultsOf(lab.model.requests.at(-1)!).at(-1) ?? {};
      if (place === 'moments after the reply') {
        expect(count).toBe(1);
        expect(text).toMatch(/"ok":true|not known/);
      } else {
        expect(count).toBe(place === 'before the effect' ? 0 : 1);
        expect(text).toMatch(/not known/);
        expect(done).toMatchObject({ unknownToolCalls: [{ tool, arguments: { n } }] });
      }
      await logOf(lab, run.id);
      lab.model.respondWith(undefined);
      while (lab.model.unusedReplies > 0) await runToEnd(lab, {});
    },
  );

  it('K01 in a batch of three with two done: those keep their results, and only the third is unknown', async () => {
    const n = fresh();
    const block = lab.ledger.blockAfter(has(n + 0.3));
    lab.model.script(
      calling(callOf('effect', { n: n + 0.1 }), callOf('effect', { n: n + 0.2 }), callOf('effect', { n: n + 0.3 })),
    );
    const { body } = await startRun(lab, {});
    await waitFor(async () => (await logOf(lab, body.id)).filter(({ type }) => type === 'tool.completed').length === 2);
    await block.reached;
    lab.model.script({ text: 'batch' });
    await crashAndRestart();
    block.release();
    expect(await ended(lab, body.id)).toMatchObject({ status: 'completed', output: 'batch', recoveries: 1 });
    expect([0.1, 0.2, 0.3].map((part) => lab.ledger.count(has(n + part)))).toEqual([1, 1, 1]);
    const texts = toolResultsOf(lab.model.requests.at(-1)!).map(({ text }) => text);
    expect(texts.map((text) => text.includes('not known'))).toEqual([false, false, true]);
    expect(texts[0]).toContain('"ok":true');
  });
});

describe('K02 a run that kills the process', () => {
  it('K02 is given up after three deaths that are counted before each execution; every start serves the others', async () => {
    await putTrialAgent(lab, 'poison', { trial: { die: true } });
    const { body } = await startRun(lab, { agent: 'poison' });
    let starts = 0;
    await waitFor(
      async () => {
        await lab.server.exited;
        starts += 1;
        await lab.server.restart();
        expect((await lab.server.json('GET', '/healthz').catch(() => ({ status: 200 }))).status).toBe(200);
        await Promise.race([lab.server.exited, sleep(2500)]);
        return lab.server.isRunning;
      },
      { timeoutMs: 25_000, what: 'the poison to be given up' },
    );
    expect(starts).toBeLessThanOrEqual(3);
    expect(await getRun(lab, body.id)).toMatchObject({ status: 'failed', error: { code: 'crash_loop' } });
    lab.model.script({ text: 'alive' });
    expect(await runToEnd(lab, {})).toMatchObject({ status: 'completed', output: 'alive' });
    await logOf(lab, body.id);
  });

  it('K02 a record that cannot be read fails that run at the first start, and no other', async () => {
    const n = fresh();
    lab.model.respondWith(() => ({ text: 'never', gate: new Promise(() => undefined), gateAt: 'start' }));
    const before = lab.model.requests.length;
    const broken = (await startRun(lab, {})).body;
    const whole = (await startRun(lab, {})).body;
    await lab.model.waitForRequest(before + 2);
    await lab.server.kill9();
    const where = 'run = (SELECT n FROM runs WHERE id = ?)';
    editDatabase(
      lab.server.dataDir,
      `UPDATE run_docs SET body = '{"broken' WHERE kind = 'position' AND ${where}`,
      broken.id,
    );
    lab.model.respondWith(() => ({ text: `fine ${n}` }));
    await lab.server.restart();
    expect(await ended(lab, whole.id)).toMatchObject({ status: 'completed', output: `fine ${n}` });
    expect(await ended(lab, broken.id)).toMatchObject({ status: 'failed', error: { code: 'internal' } });
  });
});

describe('K04 one folder serves one server', () => {
  it('K04 a second one refuses to start, also while the first is stopped, and the first goes on unharmed', async () => {
    const n = fresh();
    const block = lab.ledger.blockBefore(has(n));
    lab.model.script(calling(callOf('effect', { n })), { text: 'mine' });
    const { body } = await startRun(lab, {});
    await block.reached;
    const { dataDir } = lab.server;
    await expect(ServerProcess.start({ dataDir })).rejects.toThrow(/Another server uses the data folder/);
    lab.server.signal('SIGSTOP');
    await expect(ServerProcess.start({ dataDir })).rejects.toThrow(/Another server uses the data folder/);
    lab.server.signal('SIGCONT');
    block.release();
    expect(await ended(lab, body.id)).toMatchObject({ status: 'completed', output: 'mine', recoveries: 0 });
    expect(lab.ledger.count(has(n))).toBe(1);
  });

  it('K04 the lock of a server that was killed does not stop the next start', async () => {
    await crashAndRestart();
    lab.model.script({ text: 'next' });
    expect(await runToEnd(lab, {})).toMatchObject({ output: 'next' });
  });
});

describe('K06 nothing that a client, tool or model does ends the process', () => {
  it('K06 over streams dropped and runs cancelled at random moments', async () => {
    const { pid } = lab.server;
    const linesBefore = lab.server.logs.length;
    const tools = ['nap', 'late_rejection', 'flood', 'gated'];
    lab.model.respondWith(async ({ rawBody }, index) => {
      await sleep(Math.random() * 8);
      if (rawBody.includes('"tool"') || index % 3 === 0) return { text: ['a', 'b', 'c'], tokenDelayMs: 3 };
      if (index % 7 === 0) return { text: ['a', 'b'], cut: { after: 'half-text', how: 'reset' } };
      return calling(callOf(tools[index % tools.length] ?? 'nap', { n: index, ms: 20 }));
    });
    const round = async (at: number): Promise<string> => {
      const stream = await follow(lab, '/v1/runs', {
        body: { agent: 'chat', input: `round ${at}`, onDisconnect: at % 2 === 0 ? 'cancel' : 'continue' },
      });
      const { runId } = (await stream.next())!.json as { runId: string };
      await sleep(Math.random() * 40);
      if (at % 3 !== 1) stream.close();
      if (at % 3 !== 0) await cancel(lab, runId);
      return runId;
    };
    const ids: string[] = [];
    for (let block = 0; block < 8; block += 1)
      ids.push(...(await Promise.all(Array.from({ length: 15 }, async (_, at) => round(block * 15 + at)))));
    await Promise.all(ids.map(async (id) => cancel(lab, id)));
    for (const id of ids) {
      const run = await ended(lab, id);
      expect(['completed', 'cancelled', 'failed']).toContain(run.status);
      await logOf(lab, id);
    }
    expect(lab.server.pid).toBe(pid);
    const stray = lab.server.logs
      .slice(linesBefore)
      .filter((line) => /unhandled rejection|uncaught exception/.test(line));
    expect(stray).toEqual([]);
    lab.model.respondWith(undefined);
    await nextTurnWorks(lab, ids.at(-1));
  }, 60_000);

  const strayLines = (id: unknown): number =>
    lab.server
      .logObjects()
      .filter(({ msg, runId }) => runId === id && /^(unhandled rejection|uncaught exception)$/.test(String(msg)))
      .length;

  it('K06 an error that a tool lets go astray is logged with the id of its run and fails that run; nobody else feels it', async () => {
    const { pid } = lab.server;
    const n = fresh();
    const block = lab.ledger.blockAfter(has(n));
    lab.model.respondWith((request) => {
      const [, how] = lastUserText(request).split(' ');
      if (toolResultsOf(request).length === 0) return calling(callOf('stray', { n: how === 'calm' ? 0 : n, how }));
      return how === 'calm' ? { text: 'unharmed' } : { text: ['a', 'b'], cut: { after: 'half-text', how: 'stall' } };
    });
    const start = async (how: string): Promise<string> => String((await startRun(lab, { input: `go ${how}` })).body.id);
    const strays = await Promise.all(['reject', 'await', 'timer', 'emitter'].map(start));
    for (const id of strays) {
      const stream = await follow(lab, `/v1/runs/${id}/events`);
      await stream.collect({ until: ({ event }) => event === 'model.delta' });
      stream.close();
    }
    lab.model.respondWith(undefined);
    const held = lab.ledger.blockAfter(has(n + 0.5));
    lab.model.script(calling(callOf('effect', { n: n + 0.5 })), { text: 'unharmed' });
    const calm = await start('calm');
    await held.reached;
    block.release();
    for (const id of strays) {
      expect(await ended(lab, id)).toMatchObject({
        status: 'failed',
        partialOutput: 'a',
        error: { code: 'shim_failed', shim: 'trial', phase: 'background', cause: 'nobody waits for this' },
      });
      expect(strayLines(id)).toBe(1);
      await logOf(lab, id);
    }
    held.release();
    expect(await ended(lab, calm)).toMatchObject({ status: 'completed', output: 'unharmed' });
    expect(lab.server.pid).toBe(pid);
    expect((await lab.server.json('GET', '/readyz')).status).toBe(200);
    await nextTurnWorks(lab, strays[0]);
  });

  it('K06 an error that goes astray after the end of its run is logged with its id, and changes nothing', async () => {
    const n = fresh();
    const block = lab.ledger.blockAfter(has(n));
    lab.model.script(calling(callOf('stray', { n, how: 'reject' })), { text: 'unharmed' });
    const run = await runToEnd(lab, {});
    expect(run).toMatchObject({ status: 'completed', output: 'unharmed' });
    block.release();
    await waitFor(() => strayLines(run.id) === 1);
    expect(await getRun(lab, run.id)).toEqual(run);
  });
});
