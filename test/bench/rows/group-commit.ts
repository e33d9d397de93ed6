import { join } from 'node:path';
import { Program } from '../program.js';
import type { Stage } from '../stage.js';
import { median } from '../statistics.js';
import { ratioRow, type Row } from '../table.js';

interface CommitFigures {
  readonly stepsPerSecond: number;
  readonly cpuUs: number;
  readonly stepMs: number;
  readonly loopMs: number;
  readonly perCommit: number;
}

/** What a run computes between two commits: nothing, or about what a step of a real run takes. */
const WORK_US = [0, 300];

/** The group commit on a worker thread, measured against the same on the main thread; nothing is asked of it. */
export async function groupCommit(stage: Stage): Promise<Row[]> {
  const { smoke, windowMs, rounds } = stage.scale;
  const rows: Row[] = [];
  for (const sync of ['FULL', 'NORMAL']) {
    const program = await Program.start('group-commit', { file: join(stage.newFolder(), 'group.db'), sync });
    for (const workUs of WORK_US) {
      for (const concurrency of [1, 16, 256]) {
        const at = async (by: 'main' | 'worker'): Promise<CommitFigures> =>
          program.ask('measure', { by, concurrency, ms: windowMs / 4, workUs });
        await at('main');
        await at('worker');
        const pairs: { main: CommitFigures; worker: CommitFigures }[] = [];
        for (let round = 0; round < (smoke ? 1 : rounds); round += 1)
          pairs.push({ worker: await at('worker'), main: await at('main') });
        const of = (by: 'main' | 'worker', what: keyof CommitFigures): string =>
          median(pairs.map((pair) => pair[by][what])).toFixed(what === 'cpuUs' ? 0 : 1);
        const details = (by: 'main' | 'worker'): string =>
          `${by} ${of(by, 'cpuUs')} us CPU, p99 ${of(by, 'stepMs')} ms, loop p99 ${of(by, 'loopMs')} ms, ${of(by, 'perCommit')} a commit`;
        rows.push(
          ratioRow({
            id: `G.${sync === 'FULL' ? 'full' : 'normal'}.${workUs}.${concurrency}`,
            what: `steps/s, worker / main thread (${details('worker')}; ${details('main')})`,
            rounds: pairs.map(({ main, worker }) => ({ value: worker.stepsPerSecond, ceiling: main.stepsPerSecond })),
          }),
        );
      }
    }
    await program.stop();
  }
  return rows;
}
