import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { violationsOf } from '../faults/jobs.js';
import { runLongJob } from '../faults/long-job.js';
import { codingJob } from './coding-job.js';

it.each([
  { what: 'does a job of ten turns', kill: false },
  { what: 'does it although the server is killed with -9 in each turn', kill: true },
])(
  'the coding assistant $what',
  async ({ kill }) => {
    const { job, root } = codingJob();
    const finished = await runLongJob(job, { kill });
    const file = (name: string): string => readFileSync(join(root, name), 'utf8');
    expect(violationsOf(job, finished, { kill })).toEqual([]);
    // Asked for each command, and nothing else.
    expect(finished.approvals).toBe(2);
    expect(file('src/sum.js')).toContain('return a + b;');
    expect(file('CHANGELOG.md')).toBe('# Changes\n- sum adds\n');
    expect(file('runs.txt')).toBe('run\n');
    expect(JSON.stringify(finished.requests.at(-1))).toContain('# fail 0');
  },
  120_000,
);
