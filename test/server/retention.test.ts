import { join } from 'node:path';
import SQLite from 'better-sqlite3';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { waitFor } from '../support/wait.js';
import { calling, callOf, follow, getRun, type Lab, logOf, resume, runToEnd, startLab, startRun } from './lab.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab();
});
afterAll(async () => {
  await lab.close();
});

const DAY_MS = 86_400_000;

/** Lets so many days pass for the runs that have ended. */
async function daysLater(days: number, env: Record<string, string>): Promise<void> {
  await lab.server.term();
  const database = new SQLite(join(lab.server.dataDir, 'shimline.db'));
  database
    .prepare('UPDATE runs SET finished_at = finished_at - ?, created_at = created_at - ? WHERE finished_at IS NOT NULL')
    .run(days * DAY_MS, days * DAY_MS);
  database.close();
  await lab.server.restart({ env });
}

it('RETAIN_EVENTS_DAYS prunes the events of finished runs: an old cursor is 410 cursor_expired with the oldest seq', async () => {
  const keyed = await startRun(lab, { input: 'once' }, { 'idempotency-key': 'pruned', prefer: 'wait=20' });
  const run = keyed.body;
  lab.model.script(calling(callOf('gated')));
  const waiting = await runToEnd(lab, {});
  await daysLater(3, { RETAIN_EVENTS_DAYS: '2' });
  const fresh = await runToEnd(lab, {});
  const last = Number(run.lastSeq);
  const path = `/v1/runs/${String(run.id)}/events`;
  const expired = await waitFor(async () => {
    const answer = await lab.server.json('GET', `${path}?after=1`);
    return answer.status === 200 ? undefined : answer;
  });
  expect(expired).toMatchObject({ status: 410, body: { status: 410, code: 'cursor_expired', oldestSeq: last } });
  const stream = await follow(lab, path, { headers: { 'last-event-id': '1' } });
  expect([stream.status, (JSON.parse(await stream.text()) as JsonObject).code]).toEqual([410, 'cursor_expired']);

  // How it ended is kept, and everything else of the run.
  const page = await lab.server.json('GET', `${path}?after=${last - 1}`);
  expect(page.body).toMatchObject({ data: [{ seq: last, type: 'run.completed', output: 'ok' }], lastSeq: last });
  const end = await follow(lab, path, { headers: { 'last-event-id': String(last - 1) } });
  await end.ended;
  expect(end.events.map(({ id, event }) => [id, event])).toEqual([[String(last), 'run.completed']]);
  const atEnd = await follow(lab, path, { headers: { 'last-event-id': String(last) } });
  expect(atEnd.status).toBe(204);
  for (const [method, where, body] of [
    ['DELETE', '', undefined],
    ['POST', 'again', { agent: 'chat', input: 'once' }],
  ] as const) {
    const answer = await follow(lab, where === '' ? `/v1/runs/${String(run.id)}` : '/v1/runs', {
      method,
      ...(body === undefined ? {} : { body, headers: { 'idempotency-key': 'pruned' } }),
    });
    expect(await answer.ended).toEqual({ how: 'end' });
    expect(answer.events.map(({ id }) => id)).toEqual([String(last)]);
  }
  expect(await getRun(lab, run.id)).toMatchObject({ status: 'completed', output: 'ok', lastSeq: last });
  expect(await getRun(lab, waiting.id)).toEqual(waiting);
  await logOf(lab, waiting.id);
  await logOf(lab, fresh.id);

  const more = await resume(lab, run.id, { input: 'go on' });
  expect(more.body).toMatchObject({ status: 'completed', attempt: 2 });
  const rest = await follow(lab, path, { headers: { 'last-event-id': String(last) } });
  await rest.ended;
  expect(rest.events[0]).toMatchObject({ id: String(last + 1), event: 'run.resumed' });
});

it('RETAIN_RUNS_DAYS prunes finished runs with everything of theirs, and no others', async () => {
  const old = await runToEnd(lab, { metadata: { age: 'old' } });
  lab.model.script(calling(callOf('gated')));
  const waiting = await runToEnd(lab, { metadata: { age: 'old' } });
  await daysLater(3, { RETAIN_EVENTS_DAYS: '', RETAIN_RUNS_DAYS: '2' });
  const fresh = await runToEnd(lab, { metadata: { age: 'old' } });
  await waitFor(async () => (await lab.server.json('GET', `/v1/runs/${String(old.id)}`)).status === 404);
  const { body } = await lab.server.json('GET', '/v1/runs?metadata.age=old');
  expect((body.data as JsonObject[]).map(({ id }) => id)).toEqual([fresh.id, waiting.id]);
  expect((await lab.server.json('GET', `/v1/runs/${String(old.id)}/events`)).status).toBe(404);
});

it('RETAIN_RUNS_COUNT and RETAIN_EVENTS_COUNT keep the newest finished runs and their events, while others are served', async () => {
  const metadata = { count: 'yes' };
  const runs: JsonObject[] = [];
  for (let made = 0; made < 45; made += 1) runs.push(await runToEnd(lab, { metadata }));
  lab.model.script(calling(callOf('gated')));
  const waiting = await runToEnd(lab, { metadata });
  await lab.server.restart({
    env: { RETAIN_RUNS_DAYS: '', RETAIN_EVENTS_DAYS: '', RETAIN_RUNS_COUNT: '4', RETAIN_EVENTS_COUNT: '2' },
  });
  const fresh = await runToEnd(lab, { metadata });
  const idsLeft = async (): Promise<unknown[]> => {
    const { body } = await lab.server.json('GET', '/v1/runs?metadata.count=yes&limit=100');
    return (body.data as JsonObject[]).map(({ id }) => id);
  };
  // What has ended since the pruning began is counted the next time.
  const kept = await waitFor(async () => {
    const ids = await idsLeft();
    return ids.length <= 6 ? ids : undefined;
  });
  const newest = runs.slice(2 - kept.length).map(({ id }) => id);
  expect(kept.toReversed()).toEqual([...newest, waiting.id, fresh.id]);
  expect(newest.length).toBeGreaterThanOrEqual(3);
  const full = await Promise.all(
    kept.map(async (id) => (await lab.server.json('GET', `/v1/runs/${String(id)}/events?after=1`)).status === 200),
  );
  const last = kept.indexOf(runs.at(-1)?.id);
  expect(full.slice(0, last + 1)).toEqual(full.slice(0, last + 1).map(() => true));
  expect(full.at(-1)).toBe(false);
  expect(await getRun(lab, waiting.id)).toEqual(waiting);
});
