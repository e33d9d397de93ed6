import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  calling,
  callOf,
  ended,
  follow,
  getRun,
  interruptionIds,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startRun,
} from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import type { Reply } from '../support/model-reply.js';
import { toolResultsOf } from '../support/request-view.js';
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

let unique = 5000;
const fresh = (): number => (unique += 1);
const has = (n: number) => (effect: { readonly n?: unknown }) => effect.n === n;
const effects = (n: number): number => lab.ledger.count(has(n));

async function waiting(n: number, reply: Reply = calling(callOf('gated', { n })), agent = 'chat'): Promise<JsonObject> {
  lab.model.script(reply);
  const run = await runToEnd(lab, { agent });
  expect(run.status, JSON.stringify(run)).toBe('waiting');
  return run;
}

describe('failure R01 a denied call is not run', () => {
  const POLICIES = [
    { policy: 'of the tool', agent: 'chat', tool: 'gated' },
    { policy: 'of the tool, by its arguments', agent: 'chat', tool: 'maybe' },
    { policy: 'of a shim', agent: 'guarded', tool: 'effect' },
  ];
  const WHENS = [
    'at once',
    'after a restart',
    'after the agent lost its gate',
    'after the shim was loaded anew without it',
  ];

  it.each(POLICIES.flatMap((row) => WHENS.map((when) => ({ ...row, when }))))(
    'failure R01: gated by a policy $policy, denied $when',
    async ({ agent, tool, when }) => {
      await putTrialAgent(lab, 'guarded', { trial: { gate: ['effect'] } });
      const shimFile = join(lab.shimsDir, 'trial.mjs');
      const shim = readFileSync(shimFile, 'utf8');
      const n = fresh();
      const run = await waiting(n, calling(callOf(tool, { n })), agent);
      if (when === 'after a restart') await lab.server.restart();
      if (when === 'after the agent lost its gate') await putTrialAgent(lab, agent, {});
      if (when === 'after the shim was loaded anew without it') {
        writeFileSync(shimFile, shim.replaceAll(/needsApproval: [^}]+ }/g, 'needsApproval: false }'));
        await putTrialAgent(lab, agent, {});
        await lab.server.restart();
      }
      lab.model.script({ text: 'understood' });
      const decisions = interruptionIds(run).map((id) => ({ id, decision: 'deny', reason: 'too dear' }));
      expect((await resume(lab, run.id, { decisions })).body).toMatchObject({
        status: 'completed',
        output: 'understood',
      });
      expect(effects(n)).toBe(0);
      expect(toolResultsOf(lab.model.requests.at(-1)!)[0]?.text).toContain('too dear');
      writeFileSync(shimFile, shim);
      if (when === 'after the shim was loaded anew without it') await lab.server.restart();
    },
  );
});

describe('failure R02 two answers to one question', () => {
  it('failure R02: of twenty approvals at once one wins and the call runs once', async () => {
    for (let round = 0; round < 8; round += 1) {
      const n = fresh();
      const run = await waiting(n);
      const answers = await Promise.all(
        Array.from({ length: 20 }, async () => resume(lab, run.id, decideAll(run, 'approve'), {})),
      );
      expect(answers.map(({ status }) => status).sort()).toEqual([202, ...Array.from({ length: 19 }, () => 409)]);
      expect(await ended(lab, run.id)).toMatchObject({ status: 'completed' });
      expect(effects(n)).toBe(1);
    }
  });

  it('failure R02: of an approval and a denial at once the first stands', async () => {
    for (let round = 0; round < 8; round += 1) {
      const n = fresh();
      const run = await waiting(n);
      const kinds = round % 2 === 0 ? (['approve', 'deny'] as const) : (['deny', 'approve'] as const);
      const answers = await Promise.all(
        kinds.map(async (kind) => ({ kind, answer: await resume(lab, run.id, decideAll(run, kind), {}) })),
      );
      const won = answers.filter(({ answer }) => answer.status === 202);
      expect(won).toHaveLength(1);
      await ended(lab, run.id);
      expect(effects(n)).toBe(won[0]?.kind === 'approve' ? 1 : 0);
    }
  });

  it('failure R02: an approval, kill -9 within moments, a restart, and the approval again', async () => {
    for (let round = 0; round < 6; round += 1) {
      const n = fresh();
      const run = await waiting(n);
      const first = resume(lab, run.id, decideAll(run, 'approve'), {}).catch(() => undefined);
      await sleep(Math.random() * 30);
      await lab.server.kill9();
      await first;
      await lab.server.restart();
      const second = await resume(lab, run.id, decideAll(run, 'approve'), {});
      expect([202, 409]).toContain(second.status);
      expect(await ended(lab, run.id)).toMatchObject({ status: 'completed' });
      const { unknownToolCalls } = await getRun(lab, run.id);
      expect(effects(n)).toBeLessThanOrEqual(1);
      if (effects(n) === 0) expect(unknownToolCalls).toHaveLength(1);
      await logOf(lab, run.id);
    }
  }, 60_000);
});

it('failure R04: three gated calls and a free one; each answer lands on its own call, the model is called once with four results', async () => {
  const n = fresh();
  const calls = [
    callOf('gated', { n }, 'call_a'),
    callOf('gated', { n: n + 0.25 }, 'call_b'),
    callOf('maybe', { n: n + 0.5 }, 'call_c'),
    callOf('effect', { n: n + 0.75 }, 'call_d'),
  ];
  const run = await waiting(n, calling(...calls));
  const open = run.interruptions as { id: string; toolCallId: string; arguments: { n: number } }[];
  expect(new Set(open.map(({ id }) => id)).size).toBe(3);
  expect(open.map(({ toolCallId, arguments: args }) => [toolCallId, args.n])).toEqual([
    ['call_a', n],
    ['call_b', n + 0.25],
    ['call_c', n + 0.5],
  ]);
  const idOf = (call: string): string => open.find(({ toolCallId }) => toolCallId === call)!.id;
  const before = lab.model.requests.length;
  const taken = await resume(lab, run.id, { decisions: [{ id: idOf('call_c'), decision: 'approve' }] }, {});
  expect(taken.body).toMatchObject({ status: 'waiting', attempt: 1 });
  await resume(lab, run.id, { decisions: [{ id: idOf('call_b'), decision: 'deny', reason: 'no' }] }, {});
  expect(effects(n + 0.5)).toBe(0);
  lab.model.script({ text: 'four' });
  const edited = { id: idOf('call_a'), decision: 'edit', arguments: { n: n + 0.9 } };
  expect((await resume(lab, run.id, { decisions: [edited] })).body).toMatchObject({
    status: 'completed',
    output: 'four',
  });
  expect(lab.model.requests.length - before).toBe(1);
  const results = toolResultsOf(lab.model.requests.at(-1)!);
  expect(results.map(({ id }) => id)).toEqual(['call_a', 'call_b', 'call_c', 'call_d']);
  expect([n, n + 0.25, n + 0.5, n + 0.75, n + 0.9].map(effects)).toEqual([0, 0, 1, 1, 1]);
  expect(results[1]?.text).toContain('no');
});

it('failure R06, failure R12: five steps with gates in between go on where they were, also after restarts, and nothing is done twice', async () => {
  const first = fresh();
  const steps = ['effect', 'effect', 'gated', 'gated', 'gated'].map((tool, at) => ({ tool, n: first + at / 10 }));
  lab.model.script(...steps.map(({ tool, n }) => calling(callOf(tool, { n }))), { text: 'all five' });
  const before = lab.model.requests.length;
  let run = await runToEnd(lab, {});
  for (let gateAt = 3; gateAt <= 5; gateAt += 1) {
    expect(run.status).toBe('waiting');
    expect(lab.model.requests.length - before).toBe(gateAt);
    expect(steps.slice(0, gateAt).map(({ n }) => effects(n))).toEqual([
      ...Array.from({ length: gateAt - 1 }, () => 1),
      0,
    ]);
    if (gateAt !== 4) await lab.server.restart();
    if (gateAt === 4) {
      const stream = await follow(lab, `/v1/runs/${String(run.id)}/resume`, { body: decideAll(run, 'approve') });
      await stream.ended;
      run = await getRun(lab, run.id);
    } else run = (await resume(lab, run.id, decideAll(run, 'approve'))).body;
  }
  expect(run).toMatchObject({ status: 'completed', output: 'all five', turnCount: 6, attempt: 4 });
  const requests = lab.model.requests.slice(before);
  expect(requests).toHaveLength(6);
  requests.forEach((request, at) => {
    const ids = toolResultsOf(request).map(({ id }) => id);
    expect([ids.length, new Set(ids).size]).toEqual([at, at]);
  });
  unique += 10;
});

it('failure R08, failure R14: what was stored at the wait is what is there after kill -9, and what the resume goes on from', async () => {
  const n = fresh();
  lab.model.script(
    { text: 'one ', ...calling(callOf('count')) },
    { text: 'two ', ...calling(callOf('effect', { n })) },
    { text: 'three ', ...calling(callOf('gated', { n: n + 0.5 })) },
  );
  const run = await runToEnd(lab, { input: ['hello', { nested: [1, 'é\u2028'] }] });
  expect(run.status).toBe('waiting');
  const path = `/v1/runs/${String(run.id)}`;
  const stored = await Promise.all(
    [path, `${path}/state`, `${path}/events`, `${path}/checkpoints`].map(async (each) =>
      (await lab.server.fetch(each)).text(),
    ),
  );
  const state = (await lab.server.json('GET', `${path}/state`)).body;
  expect(JSON.stringify(state.history)).toMatch(/one .*two .*three /);
  expect(state.shimState).toMatchObject({ 'trial:count': 1 });
  await lab.server.kill9();
  await lab.server.restart();
  const again = await Promise.all(
    [path, `${path}/state`, `${path}/events`, `${path}/checkpoints`].map(async (each) =>
      (await lab.server.fetch(each)).text(),
    ),
  );
  expect(again).toEqual(stored);
  lab.model.script(calling(callOf('count')), { text: 'counted' });
  expect((await resume(lab, run.id, decideAll(run, 'approve'))).body).toMatchObject({
    status: 'completed',
    output: 'counted',
  });
  expect(toolResultsOf(lab.model.requests.at(-1)!).at(-1)?.text).toBe('2');
  expect([effects(n), effects(n + 0.5)]).toEqual([1, 1]);
});

describe('failure R10 the stored state decides', () => {
  it('failure R10: a decision on a run that is over is a 409 and executes nothing', async () => {
    const outcomes: Record<string, (run: JsonObject) => Promise<void>> = {
      completed: async (run) => {
        await resume(lab, run.id, decideAll(run, 'approve'));
      },
      denied: async (run) => {
        await resume(lab, run.id, decideAll(run, 'deny'));
      },
      cancelled: async (run) => {
        await cancel(lab, run.id);
      },
      failed: async (run) => {
        lab.model.script({ status: 400 });
        await resume(lab, run.id, decideAll(run, 'deny'));
      },
    };
    for (const [name, finish] of Object.entries(outcomes)) {
      const n = fresh();
      const run = await waiting(n);
      await finish(run);
      const before = { run: await getRun(lab, run.id), count: effects(n) };
      for (const kind of ['approve', 'deny'] as const) {
        expect([name, (await resume(lab, run.id, decideAll(run, kind), {})).status]).toEqual([name, 409]);
      }
      expect({ run: await getRun(lab, run.id), count: effects(n) }).toEqual(before);
    }
  });

  it('failure R10: a pause that streaming clients read to its end stays a wait', async () => {
    lab.model.respondWith(({ rawBody }) =>
      rawBody.includes('pause-') ? calling(callOf('gated', { n: 0 })) : { text: 'ok' },
    );
    const streams = await Promise.all(
      Array.from({ length: 40 }, async (_, at) =>
        follow(lab, '/v1/runs', { body: { agent: 'chat', input: `pause-${at}`, onDisconnect: 'cancel' } }),
      ),
    );
    await Promise.all(streams.map(async (stream) => stream.ended));
    const ids = streams.map((stream) => (stream.events[0]!.json as { runId: string }).runId);
    const statuses = await Promise.all(ids.map(async (id) => (await getRun(lab, id)).status));
    expect(new Set(statuses)).toEqual(new Set(['waiting']));
    await lab.server.restart();
    for (const id of ids) expect((await getRun(lab, id)).status).toBe('waiting');
    lab.model.respondWith(undefined);
    await Promise.all(ids.map(async (id) => cancel(lab, id)));
    await nextTurnWorks(lab, ids[0]);
  });
});

it('failure R16: a start that is asked for twice with the same wait never begins the run anew', async () => {
  const n = fresh();
  const run = await waiting(n);
  const posts = await Promise.all([resume(lab, run.id, { input: 'anew' }, {}), startRun(lab, {})]);
  expect(posts[0]).toMatchObject({ status: 409, body: { code: 'waiting_for_decisions' } });
  expect(await getRun(lab, run.id)).toEqual(run);
  await cancel(lab, run.id);
});
