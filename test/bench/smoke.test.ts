import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../support/wait.js';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** All but the comparisons of the parts that the others are made of. */
const ROWS = 'P1,P2,P3,P4,P5,P6,P7,P8,P9,P10,P11,M,S';

interface Figure {
  readonly id: string;
  readonly value: number;
  /** null for a row that is no ratio. */
  readonly ratio: number | null;
}

it('the bench measures each of its rows', async () => {
  const file = join(temporaryFolder(), 'figures.json');
  const program = join(root, 'test/bench/bench.ts');
  await promisify(execFile)(process.execPath, ['--import', 'tsx', program, '--smoke', '--only', ROWS, '--json', file], {
    cwd: root,
  });
  const { rows } = JSON.parse(readFileSync(file, 'utf8')) as { readonly rows: readonly Figure[] };
  const wanted = [
    'P1',
    'P2',
    'P3.1',
    'P3.16',
    'P3.64',
    'P3.256',
    'P3.flat',
    'P4',
    'P5',
    'P6.rss',
    'P6.all',
    'P6.healthz',
  ];
  wanted.push('P7.bytes', 'P7.cpu', 'P8', 'P9', 'P10.shim', 'P10.effects', 'P11', 'S.listen', 'S.on', 'M.runs');
  expect(rows.map(({ id }) => id)).toEqual(expect.arrayContaining(wanted));
  // How large they are says nothing here: the amounts are small and the machine is busy.
  const broken = rows.filter(
    ({ value, ratio }) => !Number.isFinite(value) || (ratio !== null && !Number.isFinite(ratio)),
  );
  expect(broken).toEqual([]);
  // What is a share of all that were asked for is whole at any size.
  expect(rows.find(({ id }) => id === 'P6.all')?.ratio).toBe(1);
}, 300_000);
