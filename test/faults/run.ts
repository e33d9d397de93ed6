import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { cancelStorm } from './cancel-storm.js';
import { randomSequences } from './state-machine.js';
import { type SweepResult, sweep } from './sweep.js';

// `npm run test:faults`: the reference run with every fault at every point, then again with a second kill during the recovery.
// Then runs that are cancelled at random moments, and random sequences beside a model of the run.
// `--full` takes all cases with the long times; `--seed N` repeats a run; `--limit N` takes the first N cases of each pass.

const { values } = parseArgs({
  options: { full: { type: 'boolean', default: false }, seed: { type: 'string' }, limit: { type: 'string' } },
});
const seed = values.seed === undefined ? Date.now() % 1_000_000 : Number(values.seed);
const limit = values.limit === undefined ? (values.full ? undefined : 40) : Number(values.limit);
const startedAt = Date.now();
process.stdout.write(`seed ${seed}${limit === undefined ? '' : `, the first ${limit} cases of each pass`}\n`);
const result = await sweep({
  seed,
  ...(limit === undefined ? {} : { limit }),
  secondKills: true,
  times: values.full ? { lockMs: 6000, diskMs: 3000 } : { lockMs: 1000, diskMs: 1000 },
  onCase: (done, all, violations) => {
    for (const text of violations) process.stdout.write(`VIOLATION ${text}\n`);
    if (done % 10 === 0 || done === all) process.stdout.write(`${done} of ${all} cases\n`);
  },
});
const storm = await cancelStorm(seed, values.full ? 3000 : 300);
for (const violation of storm.violations) process.stdout.write(`VIOLATION ${violation}\n`);
process.stdout.write(`${storm.runs} cancels at random moments\n`);
const random = await randomSequences(seed, values.full ? 2000 : 100);
process.stdout.write(`${random.sequences} random sequences\n`);
const violations = [...result.violations, ...storm.violations];
const text = report(result);
process.stdout.write(`\n${text}`);
if (limit === undefined) writeFileSync(new URL('RESULTS.md', import.meta.url), text);
process.exitCode = violations.length === 0 ? 0 : 1;

function report({ cases, skipped, skippedWhy, reached, kills, completed, cancelled }: SweepResult): string {
  const minutes = ((Date.now() - startedAt) / 60_000).toFixed(1);
  const rows = [
    ['cases', cases],
    ['in which the fault struck', reached],
    ['cases left out', skippedWhy === undefined ? skipped : `${skipped} (${skippedWhy})`],
    ['kills with SIGKILL', kills],
    ['runs completed', completed],
    ['runs cancelled', cancelled],
    ['cancels at random moments', `${storm.runs}, of which ${storm.cancelled} came before the end`],
    [
      'random sequences beside the model',
      `${random.sequences} with ${random.steps} steps and ${random.restarts} kills and restarts`,
    ],
    ['violations', violations.length],
  ];
  const table = rows.map(([name, value]) => `| ${String(name)} | ${String(value)} |`).join('\n');
  const list = violations.map((violation) => `- ${violation}`).join('\n');
  return `# Faults\n\n\`npm run test:faults -- ${values.full ? '--full ' : ''}--seed ${seed}\`, ${minutes} minutes, Node ${process.versions.node}.\n\n| | |\n|---|---|\n${table}\n${list === '' ? '' : `\n${list}\n`}`;
}
