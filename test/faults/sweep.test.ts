import { expect, it } from 'vitest';
import { sweep } from './sweep.js';

it('K01 K06 D01 C03: a short sweep of faults over the reference run leaves every invariant standing', async () => {
  const result = await sweep({ seed: 20_260, limit: 12, secondKills: true, times: { lockMs: 300, diskMs: 300 } });
  expect(result.violations).toEqual([]);
  expect(result.reached).toBeGreaterThan(result.cases / 2);
}, 170_000);
