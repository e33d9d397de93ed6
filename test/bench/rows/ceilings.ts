import { join } from 'node:path';
import { Program } from '../program.js';
import { ourRuns, type Stage } from '../stage.js';
import { type Row, ratioRow, valueRow } from '../table.js';
import { compare, loadWindow } from '../windows.js';
import { jsonPosts } from './stored.js';

const BUSY = 64;

/** The ceilings by themselves, and whole runs against C2, which writes two rows where a run writes dozens; nothing is asked. */
export async function ceilings(stage: Stage): Promise<Row[]> {
  const { windowMs, warmUpMs, rounds, smoke } = stage.scale;
  const client = await stage.client();
  const c1 = await Program.start('ceiling', { kind: 'json' });
  const c2 = await Program.start('ceiling', {
    kind: 'json',
    file: join(stage.newFolder(), 'ceiling.db'),
    sync: 'FULL',
  });
  const sides = { ours: jsonPosts(c2), ceiling: jsonPosts(c1) };
  for (const side of [sides.ours, sides.ceiling]) await loadWindow(client, side, { concurrency: BUSY, ms: warmUpMs });
  const pairs = await compare(client, sides, { concurrency: BUSY, ms: windowMs, rounds });
  const runs = { ours: ourRuns(await stage.server(), 'Say something, deltas=20.'), ceiling: jsonPosts(c2) };
  const runPairs = await compare(client, runs, { concurrency: BUSY, ms: windowMs, rounds });
  const c4 = await Program.start('ceiling', { kind: 'replay', file: join(stage.newFolder(), 'ceiling.db') });
  const perSecond: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    perSecond.push(
      (await c4.ask<{ perSecond: number }>('fill', { lines: ['x'.repeat(300)], times: smoke ? 1000 : 20_000 }))
        .perSecond,
    );
  }
  for (const program of [c1, c2, c4]) await program.stop();
  const speeds = (all: typeof pairs): { value: number; ceiling: number }[] =>
    all.map(({ ours, ceiling }) => ({ value: ours.perSecond, ceiling: ceiling.perSecond }));
  return [
    ratioRow({ id: 'C2', what: 'requests/s, C2 / C1', rounds: speeds(pairs) }),
    ratioRow({ id: 'C2.runs', what: 'runs/s at 64 / C2', rounds: speeds(runPairs) }),
    valueRow({ id: 'C4', what: 'rows/s in groups of 100', values: perSecond }),
  ];
}
