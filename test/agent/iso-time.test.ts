import { expect, it } from 'vitest';
import { isoTime } from '../../src/agent/iso-time.js';

const DAY_MS = 86_400_000;

it('gives what toISOString gives, whatever day and time it was before', () => {
  const times = [
    0,
    1,
    999,
    1000,
    59_999,
    60_000,
    DAY_MS - 1,
    DAY_MS,
    -1,
    -DAY_MS,
    1_709_164_800_000 - 1,
    253_402_300_800_000,
  ];
  let seed = 7;
  for (let count = 0; count < 5000; count += 1) {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    times.push(seed * 1000 + (seed % 997), 1_796_000_000_000 + (seed % (2 * DAY_MS)));
  }
  for (const ms of times) expect(isoTime(ms)).toBe(new Date(ms).toISOString());
});
