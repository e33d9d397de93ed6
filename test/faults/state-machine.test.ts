import { expect, it } from 'vitest';
import { randomSequences } from './state-machine.js';

it('N01 C03 D08 S01: random sequences of requests, kills and restarts agree with a small model of the run', async () => {
  const result = await randomSequences({ seed: 4711, sequences: 40 });
  expect(result.violations).toEqual([]);
  expect(result.sequences).toBe(40);
  expect(result.restarts).toBeGreaterThan(0);
  expect(result.rebuilds).toBeGreaterThanOrEqual(38);
}, 150_000);
