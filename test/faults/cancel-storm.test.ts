import { expect, it } from 'vitest';
import { cancelStorm } from './cancel-storm.js';

it('C03 C01: hundreds of runs cancelled at random moments have one end each, and a history that can be sent', async () => {
  const { violations, cancelled } = await cancelStorm(11, 200);
  expect(violations).toEqual([]);
  expect(cancelled).toBeGreaterThan(50);
}, 60_000);
