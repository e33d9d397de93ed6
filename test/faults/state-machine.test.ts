import { expect, it } from 'vitest';
import { randomSequences } from './state-machine.js';

it('N01 C03 D08 S01: random sequences of requests, kills and restarts agree with a small model of the run', async () => {
  const result = await randomSequences(4711, 60);
  expect(result.sequences).toBe(60);
  expect(result.restarts).toBeGreaterThan(0);
}, 150_000);
