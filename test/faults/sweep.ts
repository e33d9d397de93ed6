import { messageOf } from '../../src/agent/run-errors.js';
import { casesOf, type FaultCase, nameOf } from './points.js';
import { type CaseTimes, freshRunsSucceed, runCase } from './run-case.js';
import { freshStage, startStage } from './stage.js';

export interface SweepOptions {
  readonly seed: number;
  /** Of each pass; all of them unless given. */
  readonly limit?: number;
  readonly secondKills: boolean;
  readonly times: CaseTimes;
  /** Only the case of this number in each pass. */
  readonly only?: number | undefined;
  /** Told of each case when it is over; false ends the sweep there. */
  onCase?(done: number, all: number, violations: readonly string[]): boolean;
}

export interface SweepResult {
  readonly seed: number;
  readonly cases: number;
  readonly skipped: number;
  readonly skippedWhy: string | undefined;
  readonly reached: number;
  readonly kills: number;
  readonly completed: number;
  readonly cancelled: number;
  readonly violations: readonly string[];
}

/** The least share of cases that must end completed, so that a sweep cannot pass by failing. */
const LEAST_COMPLETED = 0.75;

/** Runs the cases of a seed one after the other on one stage; after one that broke off the next has a fresh stage. */
export async function sweep(options: SweepOptions): Promise<SweepResult> {
  const { seed, limit, only, secondKills } = options;
  let stage = await startStage();
  try {
    const passes = [casesOf(seed, false).slice(0, limit)];
    if (secondKills) passes.push(casesOf(seed + 1, true).slice(0, limit));
    const all = passes.flat().filter(({ number }) => only === undefined || number === only);
    const noDisk = stage.noDisk;
    const cases = all.filter(({ fault }: FaultCase) => noDisk === undefined || !fault.startsWith('disk'));
    const violations: string[] = [];
    const counts = { cases: 0, reached: 0, kills: 0, completed: 0, cancelled: 0 };
    for (const faultCase of cases) {
      let found: readonly string[];
      try {
        const result = await runCase(stage, faultCase, options.times);
        found = result.violations;
        counts.reached += result.reached ? 1 : 0;
        counts.kills += result.kills;
        counts.completed += result.status === 'completed' ? 1 : 0;
        counts.cancelled += result.status === 'cancelled' ? 1 : 0;
      } catch (error) {
        found = [`${nameOf(faultCase)}: it broke off: ${messageOf(error)}`];
        stage = await freshStage(stage, startStage);
      }
      counts.cases += 1;
      violations.push(...found);
      if (options.onCase?.(counts.cases, cases.length, found) === false) break;
    }
    violations.push(...(await freshRunsSucceed(stage, 900_000)));
    if (counts.completed < counts.cases * LEAST_COMPLETED)
      violations.push(`only ${counts.completed} of ${counts.cases} cases completed`);
    return { seed, skipped: all.length - cases.length, skippedWhy: noDisk, ...counts, violations };
  } finally {
    await stage.close();
  }
}
