/**
 * `npm run bench`: starts everything itself, measures, prints a table. `-- --only P1,P7` for some rows, `--json FILE` for the
 * figures, `--smoke` for a minute that only checks that everything works, `--profile` for where the time of a run goes.
 * Build first where it is not `npm run` that starts it.
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { ceilings } from './rows/ceilings.js';
import { p7 } from './rows/conversation.js';
import { groupCommit } from './rows/group-commit.js';
import { memory } from './rows/memory.js';
import { p10 } from './rows/overheads.js';
import { profiles } from './rows/profiles.js';
import { library, p1, p2, p3, p4, p5 } from './rows/runs.js';
import { p11, start } from './rows/stored.js';
import { p6, p8, p9 } from './rows/streams.js';
import { type Scale, Stage } from './stage.js';
import { type Row, tableOf } from './table.js';

/** In the order in which they are measured; `--only` takes these names. */
const ROWS: Readonly<Record<string, (stage: Stage) => Promise<Row[]>>> = {
  P1: p1,
  P2: p2,
  P3: p3,
  P4: p4,
  P5: p5,
  P6: p6,
  P7: p7,
  P8: p8,
  P9: p9,
  P10: p10,
  P11: p11,
  F: library,
  C: ceilings,
  G: groupCommit,
  M: memory,
  S: start,
};

const FULL: Scale = { windowMs: 1200, warmUpMs: 2000, rounds: 5, smoke: false };
const SMOKE: Scale = { windowMs: 200, warmUpMs: 200, rounds: 1, smoke: true };

const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    json: { type: 'string' },
    smoke: { type: 'boolean', default: false },
    profile: { type: 'boolean', default: false },
  },
});
const wanted = values.only?.split(',') ?? (values.profile ? [] : Object.keys(ROWS));
const unknown = wanted.filter((name) => !(name in ROWS));
if (unknown.length > 0)
  throw new Error(`There is no row ${unknown.join(', ')}; there are ${Object.keys(ROWS).join(', ')}.`);

const stage = new Stage(values.smoke ? SMOKE : FULL);
const rows: Row[] = [];
let over = false;
// A bench that was killed, or that waits for nothing, must not look like one that has told all.
process.once('exit', (code) => {
  if (!over) process.stderr.write(`The bench ended too early, with ${code}.\n`);
});
for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
  process.once(signal, () => {
    process.stderr.write(`The bench got ${signal}.\n`);
    process.exit(1);
  });
}
try {
  for (const [name, measure] of Object.entries(ROWS)) {
    if (!wanted.includes(name)) continue;
    const startedAt = performance.now();
    rows.push(...(await measure(stage)));
    process.stderr.write(`${name}: ${((performance.now() - startedAt) / 1000).toFixed(1)} s\n`);
  }
  if (values.profile) process.stdout.write(`Profiles are in ${await profiles(stage)}\n`);
} finally {
  await stage.close();
}
over = true;
if (rows.length > 0) process.stdout.write(`${tableOf(rows)}\n`);
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify({ rows }, undefined, 2)}\n`);
