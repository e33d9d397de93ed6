import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { library, p1, p2, p3, p4, p5 } from './rows/runs.js';
import { Stage, type Scale } from './stage.js';
import { type Row, tableOf } from './table.js';

/** In the order in which they are measured; `--only` takes these names. */
const ROWS: Readonly<Record<string, (stage: Stage) => Promise<Row[]>>> = { P1: p1, P2: p2, P3: p3, P4: p4, P5: p5, F: library };

const FULL: Scale = { windowMs: 2000, warmUpMs: 3000, rounds: 5, smoke: false };
const SMOKE: Scale = { windowMs: 200, warmUpMs: 200, rounds: 1, smoke: true };

const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    json: { type: 'string' },
    smoke: { type: 'boolean', default: false },
  },
});
const wanted = values.only?.split(',') ?? Object.keys(ROWS);
const unknown = wanted.filter((name) => !(name in ROWS));
if (unknown.length > 0) throw new Error(`There is no row ${unknown.join(', ')}; there are ${Object.keys(ROWS).join(', ')}.`);

const stage = new Stage(values.smoke ? SMOKE : FULL);
const rows: Row[] = [];
try {
  for (const [name, measure] of Object.entries(ROWS)) {
    if (!wanted.includes(name)) continue;
    const startedAt = performance.now();
    const measured = await measure(stage);
    rows.push(...measured);
    process.stderr.write(`${name}: ${((performance.now() - startedAt) / 1000).toFixed(1)} s\n`);
  }
} finally {
  await stage.close();
}
process.stdout.write(`${tableOf(rows)}\n`);
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify({ rows }, undefined, 2)}\n`);
