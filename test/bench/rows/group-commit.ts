import { join } from 'node:path';
import { Program } from '../program.js';
import type { Stage } from '../stage.js';
import { median } from '../statistics.js';
import { type Row, ratioRow } from '../table.js';

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
          program.ask('measure', { by, concurrency, ms: windowMs / 8, workUs });
        await at('main');
        await at('worker');
        const pairs: { main: CommitFigures; worker: CommitFigures }[] = [];
        for (let round = 0; round < (smoke ? 1 : rounds); round += 1) {
          const [a, b, c, d] = [await at('worker'), await at('main'), await at('main'), await at('worker')];
          pairs.push({ worker: mean(a, d), main: mean(b, c) });
        }
        const id = `G.${sync === 'FULL' ? 'full' : 'normal'}.${workUs}.${concurrency}`;
        const rounded = (by: 'main' | 'worker', what: keyof CommitFigures): string =>
          median(pairs.map((pair) => pair[by][what])).toFixed(1);
        const both = (what: keyof CommitFigures): string => `${rounded('worker', what)} / ${rounded('main', what)}`;
        rows.push(
          ratioRow({
            id,
            what: `commits by a worker / by the main thread, steps/s (p99 of a step ${both('stepMs')} ms, of the loop ${both('loopMs')} ms)`,
            rounds: pairs.map(({ main, worker }) => ({ value: worker.stepsPerSecond, ceiling: main.stepsPerSecond })),
          }),
          ratioRow({
            id: `${id}.cpu`,
            what: `the same, us of CPU a step, all threads (steps in a commit ${both('perCommit')})`,
            rounds: pairs.map(({ main, worker }) => ({ value: worker.cpuUs, ceiling: main.cpuUs })),
          }),
        );
      }
    }
    await program.stop();
  }
  return rows;
}

function mean(a: CommitFigures, b: CommitFigures): CommitFigures {
  const of = (what: keyof CommitFigures): number => (a[what] + b[what]) / 2;
  return {
    stepsPerSecond: of('stepsPerSecond'),
    cpuUs: of('cpuUs'),
    stepMs: of('stepMs'),
    loopMs: of('loopMs'),
    perCommit: of('perCommit'),
  };
}
