import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Program } from '../program.js';
import { folderWithRuns, multiply, someRunIds } from '../seed.js';
import type { BenchServer } from '../server.js';
import { ourRuns, type Stage } from '../stage.js';
import { type Row, ratioRow, valueRow } from '../table.js';
import { compare, loadWindow, type Side } from '../windows.js';

const BUSY = 64;

/** Reading runs out of many. */
export async function p11(stage: Stage): Promise<Row[]> {
  const { smoke, windowMs, warmUpMs, rounds } = stage.scale;
  const count = smoke ? 1000 : 100_000;
  const dataDir = await folderWithRuns(stage, count);
  const ids = someRunIds(dataDir, smoke ? 100 : 20_000);
  const server = await stage.newServer({ dataDir });
  const ceiling = await Program.start('ceiling', { kind: 'json' });
  const client = await stage.client();
  const sides = {
    ours: {
      pid: server.pid,
      url: server.url,
      requests: ids.map((id) => ({ method: 'GET' as const, path: `/v1/runs/${id}` })),
    },
    ceiling: jsonPosts(ceiling),
  };
  for (const side of [sides.ours, sides.ceiling]) await loadWindow(client, side, { concurrency: BUSY, ms: warmUpMs });
  const pairs = await compare(client, sides, { concurrency: BUSY, ms: windowMs, rounds });
  await server.stop();
  await ceiling.stop();
  return [
    ratioRow({
      id: 'P11',
      what: `GET of a run/s, ${count} stored / C1`,
      rounds: pairs.map((pair) => ({ value: pair.ours.perSecond, ceiling: pair.ceiling.perSecond })),
      atLeast: 0.6,
    }),
    ratioRow({
      id: 'P11.cpu',
      what: 'us of CPU per GET of a run / per request of C1',
      rounds: pairs.map((pair) => ({ value: pair.ours.cpuMs * 1000, ceiling: pair.ceiling.cpuMs * 1000 })),
    }),
  ];
}

/** Requests of C1 and C2. */
export function jsonPosts(ceiling: Program): Side {
  const body = { agent: 'bench', input: 'Say something, deltas=20.', metadata: { team: 'bench' } };
  return { pid: ceiling.pid, url: ceiling.url, requests: [{ path: '/', body }] };
}

/** A start with much on disk, and with much that an earlier process left unfinished. */
export async function start(stage: Stage): Promise<Row[]> {
  const { smoke } = stage.scale;
  const [finished, unfinished] = smoke ? [1000, 20] : [100_000, 1000];
  const [model, client] = [await stage.model(), await stage.client()];
  const dataDir = await folderWithRuns(stage, finished);
  const killed = await stage.newServer({ dataDir });
  const opened = client.ask('open', {
    handle: 'killed',
    ...ourRuns(killed, 'Say something, hold=1 deltas=20.'),
    count: 10,
  });
  while ((await model.ask<number>('held')) < 10) await sleep(10);
  await opened;
  await killed.stop();
  await client.ask('ended', { handle: 'killed' });
  multiply(join(dataDir, 'shimline.db'), { to: unfinished, status: 'running' });
  const empty = await stage.newServer();
  await empty.stop();
  const server = await stage.newServer({ dataDir });
  const { listenedAt } = server;
  const held = async (): Promise<number> => model.ask<number>('held');
  while ((await held()) < unfinished) {
    if (performance.now() - listenedAt > 120_000) throw new Error(`only ${await held()} of ${unfinished} runs went on`);
    await sleep(20);
  }
  const goneOnMs = performance.now() - listenedAt;
  await model.ask('release');
  await untilNoneIsRunning(server);
  const endedMs = performance.now() - listenedAt;
  await server.stop();
  return [
    valueRow({
      id: 'S.listen',
      what: `ms to listen, ${finished} finished and ${unfinished} unfinished runs`,
      values: [server.startMs],
      atMost: 1000,
    }),
    valueRow({ id: 'S.health', what: 'ms to the first answer of healthz', values: [server.healthyMs] }),
    valueRow({ id: 'S.empty', what: 'ms to listen with nothing on disk', values: [empty.startMs] }),
    valueRow({
      id: 'S.on',
      what: `ms until all ${unfinished} have called the model again`,
      values: [goneOnMs],
      atMost: 5000,
    }),
    valueRow({ id: 'S.ended', what: 'ms until all have ended', values: [endedMs] }),
  ];
}

async function untilNoneIsRunning(server: BenchServer): Promise<void> {
  for (;;) {
    const { data } = await server.json('/v1/runs?status=running&limit=1');
    if ((data as unknown[]).length === 0) return;
    await sleep(20);
  }
}
