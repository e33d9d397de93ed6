import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { toolResultsOf } from '../support/request-view.js';
import type { JsonAnswer } from '../support/server-process.js';
import { waitFor } from '../support/wait.js';
import {
  calling,
  callOf,
  DIALECTS,
  ended,
  follow,
  getRun,
  interruptionIds,
  type Lab,
  logOf,
  putAgent,
  resume,
  runToEnd,
  startLab,
  startRun,
  typesOf,
  WAIT,
} from './lab.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab();
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

const effectsOf = (run: JsonObject): number => lab.ledger.count(({ runId }) => runId === run.id);
const lastResults = (): string[] => toolResultsOf(lab.model.requests.at(-1)!).map(({ text }) => text);

/** A run that waits for the approval of as many calls. */
async function waiting(calls = 1, agent = 'chat'): Promise<JsonObject> {
  lab.model.script(calling(...Array.from({ length: calls }, (_, n) => callOf('gated', { n }))));
  const run = await runToEnd(lab, { agent });
  expect(run.status).toBe('waiting');
  expect(effectsOf(run)).toBe(0);
  return run;
}

describe.each(DIALECTS)('an approval over $dialect', ({ agent }) => {
  it('is asked for with everything that a person needs', async () => {
    const run = await waiting(1, agent);
    expect(run.interruptions).toEqual([
      {
        id: expect.any(String) as string,
        reason: 'approval',
        toolCallId: expect.any(String) as string,
        tool: 'gated',
        arguments: { n: 0 },
        message: null,
        responseSchema: expect.objectContaining({ type: 'object' }) as object,
        expiresAt: null,
      },
    ]);
    expect(run).toMatchObject({ output: null, error: null, finishedAt: null, finishReason: null });
    const events = await logOf(lab, run.id);
    expect(events.at(-1)).toMatchObject({ type: 'run.waiting', interruptions: run.interruptions });
    expect(events.find(({ type }) => type === 'tool.waiting')).toMatchObject({
      interruption: (run.interruptions as unknown[])[0],
    });
    expect(typesOf(events)).not.toContain('tool.started');
  });

  it('approved: the call runs exactly once', async () => {
    const run = await waiting(1, agent);
    lab.model.script({ text: 'thanks' });
    const answer = await resume(lab, run.id, { decisions: [{ id: interruptionIds(run)[0], decision: 'approve' }] });
    expect(answer).toMatchObject({
      status: 200,
      body: { status: 'completed', output: 'thanks', attempt: 2, turnCount: 2, interruptions: [] },
    });
    expect(effectsOf(run)).toBe(1);
  });

  it('denied: it does not run, and the model is told why', async () => {
    const run = await waiting(1, agent);
    lab.model.script({ text: 'understood' });
    const decisions = [{ id: interruptionIds(run)[0], decision: 'deny', reason: 'too dear' }];
    expect((await resume(lab, run.id, { decisions })).body).toMatchObject({
      status: 'completed',
      output: 'understood',
    });
    expect(effectsOf(run)).toBe(0);
    expect(lastResults()[0]).toContain('too dear');
    expect((await logOf(lab, run.id)).find(({ type }) => type === 'tool.completed')).toMatchObject({ ok: false });
  });

  it('edited: it runs once with the new arguments', async () => {
    const run = await waiting(1, agent);
    lab.model.script({ text: 'ok' });
    const decisions = [{ id: interruptionIds(run)[0], decision: 'edit', arguments: { n: 77 } }];
    expect((await resume(lab, run.id, { decisions })).body).toMatchObject({ status: 'completed' });
    expect(lab.ledger.entries(({ runId }) => runId === run.id).map(({ n }) => n)).toEqual([77]);
  });

  it("edited with arguments that the tool's schema refuses: 422 with their place, and the run waits on", async () => {
    const run = await waiting(1, agent);
    const decide = async (args: JsonObject): Promise<JsonAnswer> =>
      resume(lab, run.id, { decisions: [{ id: interruptionIds(run)[0], decision: 'edit', arguments: args }] });
    expect(await decide({ n: 'many' })).toMatchObject({
      status: 422,
      body: { code: 'validation_failed', errors: [{ pointer: '/decisions/0/arguments/n', message: 'must be number' }] },
    });
    expect(await getRun(lab, run.id)).toEqual(run);
    lab.model.script({ text: 'ok' });
    expect((await decide({ n: 5 })).body).toMatchObject({ status: 'completed' });
    expect(effectsOf(run)).toBe(1);
  });

  it('edited with arguments that only the tool itself refuses: it does not run, and the model is told', async () => {
    const run = await waiting(1, agent);
    lab.model.script({ text: 'ok' });
    const decisions = [{ id: interruptionIds(run)[0], decision: 'edit', arguments: { n: -1 } }];
    expect((await resume(lab, run.id, { decisions })).body).toMatchObject({ status: 'completed' });
    expect(effectsOf(run)).toBe(0);
    expect(lastResults()[0]).toMatch(/not negative/);
  });

  it('responded: it does not run, and the model gets the result', async () => {
    const run = await waiting(1, agent);
    lab.model.script({ text: 'ok' });
    const decisions = [{ id: interruptionIds(run)[0], decision: 'respond', result: { said: 'by hand' } }];
    expect((await resume(lab, run.id, { decisions })).body).toMatchObject({ status: 'completed' });
    expect(effectsOf(run)).toBe(0);
    expect(lastResults()[0]).toContain('by hand');
  });
});

describe('decisions for some of several', () => {
  it('are taken, durably, and the run waits for the rest; the calls run when all are decided', async () => {
    const run = await waiting(3);
    const [one, two, three] = interruptionIds(run);
    const part = await resume(lab, run.id, { decisions: [{ id: two, decision: 'deny' }] });
    expect(part).toMatchObject({ status: 200, body: { status: 'waiting', attempt: 1 } });
    expect(interruptionIds(part.body)).toEqual([one, three]);
    expect(Number(part.body.version)).toBeGreaterThan(Number(run.version));
    expect(await resume(lab, run.id, { decisions: [{ id: two, decision: 'approve' }] })).toMatchObject({
      status: 409,
      body: { code: 'stale_interruption' },
    });

    await lab.server.kill9();
    await lab.server.restart();
    expect(interruptionIds(await getRun(lab, run.id))).toEqual([one, three]);
    expect(effectsOf(run)).toBe(0);
    expect((await resume(lab, run.id, { decisions: [{ id: one, decision: 'approve' }] }, {})).status).toBe(202);
    expect(effectsOf(run)).toBe(0);
    lab.model.script({ text: 'all' });
    const all = await resume(lab, run.id, { decisions: [{ id: three, decision: 'approve' }] });
    expect(all).toMatchObject({ status: 200, body: { status: 'completed', output: 'all', attempt: 2 } });
    expect(
      lab.ledger
        .entries(({ runId }) => runId === run.id)
        .map(({ n }) => n)
        .sort(),
    ).toEqual([0, 2]);
    expect(lastResults()).toHaveLength(3);
  });

  it('asked for as a stream show that the run waits, and end', async () => {
    const run = await waiting(2);
    const body = { decisions: [{ id: interruptionIds(run)[0], decision: 'approve' }] };
    const stream = await follow(lab, `/v1/runs/${String(run.id)}/resume`, { body });
    expect(await stream.ended).toEqual({ how: 'end' });
    expect(stream.events.map(({ event }) => event)).toEqual(['run.waiting']);
    expect((await getRun(lab, run.id)).status).toBe('waiting');
  });

  it('are all refused when one of them is stale', async () => {
    const run = await waiting(2);
    const [one] = interruptionIds(run);
    const decisions = [
      { id: one, decision: 'approve' },
      { id: 'gone', decision: 'approve' },
    ];
    expect(await resume(lab, run.id, { decisions })).toMatchObject({
      status: 409,
      body: { code: 'stale_interruption' },
    });
    expect(interruptionIds(await getRun(lab, run.id))).toHaveLength(2);
  });
});

it('beside calls that want no approval: those run at once, the gated one when it is decided', async () => {
  lab.model.script(calling(callOf('gated', { n: 5 }), callOf('unknown_tool', { n: 6 })));
  const run = await runToEnd(lab, {});
  expect(run.status).toBe('waiting');
  expect(lab.ledger.entries(({ runId }) => runId === run.id).map(({ n }) => n)).toEqual([6]);
  lab.model.script({ text: 'both' });
  await resume(lab, run.id, { decisions: [{ id: interruptionIds(run)[0], decision: 'approve' }] });
  expect(lab.ledger.entries(({ runId }) => runId === run.id).map(({ n }) => n)).toEqual([6, 5]);
  expect(await getRun(lab, run.id)).toMatchObject({ status: 'completed', output: 'both' });
});

describe('N01 twenty at once', () => {
  it('approve one call: one wins, it runs once, the others get 409', async () => {
    const run = await waiting();
    lab.model.script({ text: 'once' });
    const decisions = [{ id: interruptionIds(run)[0], decision: 'approve' }];
    const answers = await Promise.all(Array.from({ length: 20 }, async () => resume(lab, run.id, { decisions }, {})));
    expect(answers.filter(({ status }) => status === 202)).toHaveLength(1);
    for (const { status, body } of answers.filter((answer) => answer.status !== 202)) {
      expect([status, ['run_active', 'stale_interruption'].includes(String(body.code))]).toEqual([409, true]);
    }
    expect(await ended(lab, run.id)).toMatchObject({ status: 'completed', output: 'once', attempt: 2 });
    expect(effectsOf(run)).toBe(1);
  });

  it('approve and deny: one of them holds', async () => {
    const run = await waiting();
    lab.model.script({ text: 'decided' });
    const [id] = interruptionIds(run);
    const answers = await Promise.all(
      Array.from({ length: 20 }, async (_, n) =>
        resume(lab, run.id, { decisions: [{ id, decision: n % 2 === 0 ? 'approve' : 'deny' }] }, {}),
      ),
    );
    const won = answers.findIndex(({ status }) => status === 202);
    expect(answers.filter(({ status }) => status === 202)).toHaveLength(1);
    await ended(lab, run.id);
    expect(effectsOf(run)).toBe(won % 2 === 0 ? 1 : 0);
  });
});

describe('a waiting run', () => {
  it('given input but no decisions is 409 waiting_for_decisions with the interruptions', async () => {
    const run = await waiting();
    const answer = await resume(lab, run.id, { input: 'never mind' });
    expect(answer).toMatchObject({
      status: 409,
      body: { code: 'waiting_for_decisions', interruptions: run.interruptions },
    });
    expect(await getRun(lab, run.id)).toMatchObject({ status: 'waiting', attempt: 1 });
  });

  it('given nothing is 409 too, and a stale id is 409 stale_interruption', async () => {
    const run = await waiting();
    expect(await resume(lab, run.id, {})).toMatchObject({ status: 409, body: { code: 'waiting_for_decisions' } });
    expect(await resume(lab, run.id, { decisions: [{ id: 'old', decision: 'approve' }] })).toMatchObject({
      status: 409,
      body: { code: 'stale_interruption' },
    });
  });

  it('given decisions and input goes on with both', async () => {
    const run = await waiting();
    lab.model.script({ text: 'both' });
    const answer = await resume(lab, run.id, {
      decisions: [{ id: interruptionIds(run)[0], decision: 'approve' }],
      input: 'and hurry',
    });
    expect(answer.body).toMatchObject({ status: 'completed', output: 'both' });
    expect(lab.model.requests.at(-1)!.rawBody).toContain('and hurry');
  });

  it('waits over a restart with the same interruptions, and its call runs once', async () => {
    const run = await waiting();
    await lab.server.kill9();
    await lab.server.restart();
    const after = await getRun(lab, run.id);
    expect(after).toEqual(run);
    lab.model.script({ text: 'later' });
    const answer = await resume(lab, run.id, { decisions: [{ id: interruptionIds(run)[0], decision: 'approve' }] });
    expect(answer.body).toMatchObject({ status: 'completed', output: 'later' });
    expect(effectsOf(run)).toBe(1);
  });

  it('is cancelled: its call is never run, and the conversation can go on', async () => {
    const run = await waiting(2);
    const answer = await lab.server.json('DELETE', `/v1/runs/${String(run.id)}`, undefined, WAIT);
    expect(answer).toMatchObject({ status: 200, body: { status: 'cancelled', interruptions: [] } });
    const decisions = [{ id: interruptionIds(run)[0], decision: 'approve' }];
    expect(await resume(lab, run.id, { decisions })).toMatchObject({
      status: 409,
      body: { code: 'stale_interruption' },
    });
    expect(effectsOf(run)).toBe(0);
    const events = await logOf(lab, run.id);
    expect(typesOf(events).slice(-4)).toEqual(['run.cancelling', 'tool.completed', 'tool.completed', 'run.cancelled']);
    lab.model.script({ text: 'on' });
    expect((await resume(lab, run.id, { input: 'something else' })).body).toMatchObject({
      status: 'completed',
      output: 'on',
    });
  });
});

it('expiresAt: past it the call is denied with reason expired', async () => {
  await putAgent(lab, 'hasty', { labConfig: { expiresInMs: 400 } });
  lab.model.script(calling(callOf('echo', { e: 1 })), { text: 'too late' });
  const run = await runToEnd(lab, { agent: 'hasty' });
  expect(run.interruptions).toMatchObject([{ message: 'Quick?', expiresAt: expect.stringMatching(/Z$/) as string }]);
  const over = await waitFor(async () => {
    const now = await getRun(lab, run.id);
    return now.status === 'completed' ? now : undefined;
  });
  expect(over).toMatchObject({ output: 'too late', attempt: 2 });
  const event = (await logOf(lab, run.id)).find(({ type }) => type === 'tool.completed');
  expect(JSON.stringify(event)).toContain('expired');
});

describe('reason outcome', () => {
  const asked = async (n: number): Promise<JsonObject> => {
    const held = lab.ledger.blockAfter(({ name, n: at }) => name === 'ask' && at === n);
    lab.model.script(calling(callOf('ask_tool', { n })));
    const { body } = await startRun(lab, {});
    await held.reached;
    await lab.server.kill9();
    held.release();
    await lab.server.restart();
    const run = await ended(lab, body.id);
    expect(run).toMatchObject({
      status: 'waiting',
      interruptions: [{ reason: 'outcome', tool: 'ask_tool', arguments: { n } }],
    });
    return run;
  };
  const callIdOf = (run: JsonObject): unknown => (run.interruptions as JsonObject[])[0]?.toolCallId;

  it('is settled with "happened" and its result; a second settlement is 409', async () => {
    const run = await asked(101);
    lab.model.script({ text: 'settled' });
    const settle = [{ toolCallId: callIdOf(run), outcome: 'happened', result: { receipt: 9 } }];
    expect((await resume(lab, run.id, { settle })).body).toMatchObject({ status: 'completed', output: 'settled' });
    expect(lastResults()[0]).toContain('receipt');
    expect(lab.ledger.count(({ n }) => n === 101)).toBe(1);
    expect((await resume(lab, run.id, { settle })).status).toBe(409);
  });

  it('is settled with "retry": the call is made again, with the same key', async () => {
    const run = await asked(102);
    lab.model.script({ text: 'again' });
    const settle = [{ toolCallId: callIdOf(run), outcome: 'retry' }];
    expect((await resume(lab, run.id, { settle })).body).toMatchObject({ status: 'completed', output: 'again' });
    const keys = lab.ledger.entries(({ n }) => n === 102).map(({ key }) => key);
    expect(keys).toEqual([keys[0], keys[0]]);
  });

  it('is settled with "failed": the model is told, nothing is run', async () => {
    const run = await asked(103);
    const answers = await Promise.all(
      Array.from({ length: 10 }, async () =>
        resume(
          lab,
          run.id,
          { settle: [{ toolCallId: callIdOf(run), outcome: 'failed', result: 'card declined' }] },
          {},
        ),
      ),
    );
    expect(answers.map(({ status }) => status).sort()).toEqual([202, ...Array<number>(9).fill(409)]);
    expect(await ended(lab, run.id)).toMatchObject({ status: 'completed' });
    expect(lastResults()[0]).toContain('card declined');
    expect(lab.ledger.count(({ n }) => n === 103)).toBe(1);
  });
});

it('sends nothing that either endpoint refuses', () => {
  expect(lab.model.refusedRequests.map(({ problem }) => problem)).toEqual([]);
});
