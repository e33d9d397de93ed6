import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { type FinishedJob, runLongJob } from '../faults/long-job.js';
import { codingJob } from './coding-job.js';

const called = ({ events }: FinishedJob): unknown[] =>
  events.filter(({ type }) => type === 'tool.completed').map(({ name, ok }) => (ok === true ? name : [name, ok]));

it.each([
  { what: 'does a job of ten turns', kill: false },
  { what: 'does it although the server is killed with -9 in each turn', kill: true },
])(
  'the coding assistant $what',
  async ({ kill }) => {
    const { job, root } = codingJob();
    const finished = await runLongJob(job, { kill });
    const file = (name: string): string => readFileSync(join(root, name), 'utf8');
    expect(finished.run).toMatchObject({
      status: 'completed',
      output: 'sum subtracted; it adds now, and the tests pass.',
      turnCount: 10,
    });
    expect(finished.kills).toBe(kill ? 10 : 0);
    expect(finished.requests).toHaveLength(10);
    // Asked for each command, and nothing else.
    expect(finished.approvals).toBe(2);
    expect(file('src/sum.js')).toContain('return a + b;');
    expect(file('CHANGELOG.md')).toBe('# Changes\n- sum adds\n');
    expect(file('runs.txt')).toBe('run\n');
    expect(called(finished)).toEqual([
      'ls',
      'read',
      'read',
      'grep',
      'bash',
      'patch',
      'bash',
      'activate_skill',
      'find',
      'write',
    ]);
    expect(JSON.stringify(finished.requests.at(-1))).toContain('# fail 0');
  },
  120_000,
);
