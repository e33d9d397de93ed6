import { casesOf, type FaultCase } from './points.js';
import { type CaseTimes, freshRunsSucceed, runCase } from './run-case.js';
import { startStage } from './stage.js';

export interface SweepOptions {
  readonly seed: number;
  /** Of each pass; all of them unless given. */
  readonly limit?: number;
  readonly secondKills: boolean;
  readonly times: CaseTimes;
  /** Told of each case when it is over. */
  onCase?(done: number, all: number, violations: readonly string[]): void;
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

/** Runs the cases of a seed one after the other on one stage. */
export async function sweep(options: SweepOptions): Promise<SweepResult> {
  const stage = await startStage();
  try {
    const passes = [casesOf(options.seed, false).slice(0, options.limit)];
    if (options.secondKills) passes.push(casesOf(options.seed + 1, true).slice(0, options.limit));
    const all = passes.flat();
    const cases = all.filter(({ fault }: FaultCase) => stage.disk !== undefined || !fault.startsWith('disk'));
    const violations: string[] = [];
    const counts = { reached: 0, kills: 0, completed: 0, cancelled: 0 };
    for (const [at, faultCase] of cases.entries()) {
      const result = await runCase(stage, faultCase, options.times);
      counts.reached += result.reached ? 1 : 0;
      counts.kills += result.kills;
      counts.completed += result.status === 'completed' ? 1 : 0;
      counts.cancelled += result.status === 'cancelled' ? 1 : 0;
      violations.push(...result.violations);
      options.onCase?.(at + 1, cases.length, result.violations);
    }
    violations.push(...(await freshRunsSucceed(stage, 900_000)));
    if (counts.completed < cases.length * LEAST_COMPLETED)
      violations.push(`only ${counts.completed} of ${cases.length} cases completed`);
    return {
      seed: options.seed,
      cases: cases.length,
      skipped: all.length - cases.length,
      skippedWhy: stage.noDisk,
      ...counts,
      violations,
    };
  } finally {
    await stage.close();
  }
}
