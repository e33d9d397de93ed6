import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { cancelStorm, type StormResult } from './cancel-storm.js';
import { type JobsResult, killedJobs } from './jobs.js';
import { type RandomTestResult, randomSequences } from './state-machine.js';
import { type SweepResult, sweep } from './sweep.js';

// `npm run test:faults`: the reference run with every fault at every point, then again with a second kill during the recovery
// (`sweep`). Then the jobs of the ready agents with a kill in each turn (`jobs`), runs that are cancelled at random moments (`cancels`),
// and random sequences beside a model of the run (`sequences`).
//
//   --full            everything, with the long times; leaves RESULTS.md
//   --seed N          repeats a run
//   --only A,B        only these of sweep, jobs, cancels, sequences
//   --minutes N       begins nothing new after so many minutes
//   --limit N         the first N cases of each pass of the sweep; --cancels N, --sequences N: so many of the others
//   --case N          of the sweep only this case, in both passes
//   --sequence N      of the sequences only this one, made as small as it can be where it differs from the model

const { values } = parseArgs({
  options: {
    full: { type: 'boolean', default: false },
    seed: { type: 'string' },
    only: { type: 'string' },
    minutes: { type: 'string' },
    limit: { type: 'string' },
    cancels: { type: 'string' },
    sequences: { type: 'string' },
    case: { type: 'string' },
    sequence: { type: 'string' },
  },
});

const PARTS = ['sweep', 'jobs', 'cancels', 'sequences'] as const;
type Part = (typeof PARTS)[number];

const FULL_MINUTES = 120;
const startedAt = Date.now();
const seed = numberOf(values.seed) ?? Date.now() % 1_000_000;
const minutes = numberOf(values.minutes) ?? FULL_MINUTES;
const limit = numberOf(values.limit) ?? (values.full || values.case !== undefined ? undefined : 40);
const cancels = numberOf(values.cancels) ?? (values.full ? 3000 : 300);
const sequences = numberOf(values.sequences) ?? (values.full ? 2000 : 100);
const only = numberOf(values.case);
const onlySequence = numberOf(values.sequence);
const parts = partsAsked();

const violations: string[] = [];
let swept: SweepResult | undefined;
let jobs: JobsResult | undefined;
let storm: StormResult | undefined;
let random: RandomTestResult | undefined;
/** The parts that ended before they were through, because the time was over. */
const cutShort: Part[] = [];

say(`seed ${seed}: ${parts.join(', ')}, at most ${minutes} minutes`);
if (parts.includes('sweep')) {
  swept = await sweep({
    seed,
    ...(limit === undefined ? {} : { limit }),
    only,
    secondKills: true,
    times: values.full ? { lockMs: 6000, diskMs: 3000 } : { lockMs: 1000, diskMs: 1000 },
    onCase: (done, all, found) => progress('sweep', { done, all, every: 10 }, found),
  });
  took('sweep', swept.violations);
}
if (parts.includes('jobs')) {
  jobs = await killedJobs();
  took('jobs', jobs.violations);
}
if (parts.includes('cancels')) {
  storm = await cancelStorm(seed, cancels, () => goesOn('cancels'));
  took('cancels', storm.violations);
}
if (parts.includes('sequences')) {
  random = await randomSequences({
    seed,
    sequences: Math.max(sequences, (onlySequence ?? 0) + 1),
    only: onlySequence,
    onSequence: (done, all, found) =>
      progress('sequences', { done, all, every: 50 }, found === undefined ? [] : [found]),
  });
  took('sequences', random.violations);
}
process.stdout.write(`\n${report()}`);
process.exitCode = violations.length === 0 ? 0 : 1;

function partsAsked(): readonly Part[] {
  if (only !== undefined) return ['sweep'];
  if (onlySequence !== undefined) return ['sequences'];
  const asked = values.only?.split(',') ?? PARTS;
  const unknown = asked.filter((part) => !PARTS.some((known) => known === part));
  if (unknown.length > 0) throw new Error(`There is no part ${unknown.join()}; there are ${PARTS.join()}.`);
  return PARTS.filter((part) => asked.includes(part));
}

function numberOf(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^\d+$/.test(text)) throw new Error(`${JSON.stringify(text)} is no whole number.`);
  return Number(text);
}

function goesOn(part: Part): boolean {
  if (Date.now() < startedAt + minutes * 60_000) return true;
  cutShort.push(part);
  return false;
}

function progress(
  part: Part,
  { done, all, every }: { readonly done: number; readonly all: number; readonly every: number },
  found: readonly string[],
): boolean {
  for (const violation of found) say(`VIOLATION ${violation}`);
  if (done % every === 0 || done === all) say(`${part}: ${done} of ${all}`);
  return done === all || goesOn(part);
}

/** What a part has found is in the file also when a later part should break off. */
function took(part: Part, found: readonly string[]): void {
  violations.push(...found);
  say(`${part}: over, ${found.length} violations`);
  if (values.full && parts.length === PARTS.length && limit === undefined)
    writeFileSync(new URL('RESULTS.md', import.meta.url), report());
}

function say(line: string): void {
  process.stdout.write(`${((Date.now() - startedAt) / 1000).toFixed(0).padStart(5)} s  ${line}\n`);
}

function report(): string {
  const rows: [string, number | string][] = [];
  if (swept !== undefined) {
    const { skipped, skippedWhy } = swept;
    rows.push(
      ['cases of the sweep', swept.cases],
      ['in which the fault struck', swept.reached],
      ['cases left out', skippedWhy === undefined ? skipped : `${skipped} (${skippedWhy})`],
      ['kills with SIGKILL', swept.kills],
      ['runs completed', swept.completed],
      ['runs cancelled', swept.cancelled],
    );
  }
  if (jobs !== undefined) rows.push(['jobs of ten turns', `${jobs.jobs}, with ${jobs.kills} kills`]);
  if (storm !== undefined)
    rows.push(['cancels at random moments', `${storm.runs}, of which ${storm.cancelled} came before the end`]);
  if (random !== undefined)
    rows.push(
      ['random sequences beside the model', `${random.sequences} with ${random.steps} steps`],
      ['kills and restarts of the process in them', random.restarts],
      ['runtimes built again on the same file in them', random.rebuilds],
    );
  if (cutShort.length > 0) rows.push(['ended early, the time was over', cutShort.join(', ')]);
  rows.push(['violations', violations.length]);
  const table = rows.map(([name, value]) => `| ${name} | ${value} |`).join('\n');
  const list = violations.map((violation) => `- ${violation.replaceAll('\n', '\n  ')}\n`).join('');
  const took = ((Date.now() - startedAt) / 60_000).toFixed(1);
  const command = `npm run test:faults -- ${values.full ? '--full ' : ''}--seed ${seed}`;
  return `# Faults\n\n\`${command}\`, ${took} minutes, Node ${process.versions.node}.\n\n| | |\n|---|---|\n${table}\n${list === '' ? '' : `\n${list}`}`;
}
