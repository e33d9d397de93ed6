import { afterEach, beforeEach, expect, it } from 'vitest';
import { Ledger } from './ledger.js';
import { waitFor } from './wait.js';

let ledger: Ledger;
beforeEach(async () => {
  ledger = await Ledger.start();
});
afterEach(async () => {
  await ledger.close();
});

async function effect(name: string, signal?: AbortSignal): Promise<unknown> {
  const body = JSON.stringify({ name, key: 'k', amount: 3 });
  const response = await fetch(ledger.effectUrl, { method: 'POST', body, ...(signal === undefined ? {} : { signal }) });
  return response.json();
}

it('writes each effect down once and counts by name', async () => {
  const heard: string[] = [];
  ledger.onEntry((entry) => heard.push(entry.name));
  expect(await effect('pay')).toEqual({ ok: true, seq: 1, count: 1 });
  await effect('mail');
  expect([ledger.count('pay'), ledger.count(), heard]).toEqual([1, 2, ['pay', 'mail']]);
  const [entry] = ledger.entries('pay');
  expect(entry).toEqual({ seq: 1, at: entry?.at, name: 'pay', key: 'k', amount: 3 });
});

it('a caller that dies at a block before the effect leaves no entry, one after it does', async () => {
  for (const [where, left] of [
    ['before', 0],
    ['after', 1],
  ] as const) {
    const block = where === 'before' ? ledger.blockBefore(where) : ledger.blockAfter(where);
    const caller = new AbortController();
    const call = effect(where, caller.signal).catch(() => 'died');
    await block.reached;
    caller.abort();
    expect(await call).toBe('died');
    await waitFor(async () => (await effect('other')) !== undefined);
    block.release();
    expect(ledger.count(where)).toBe(left);
  }
});

it('a released block lets everyone on', async () => {
  const block = ledger.blockBefore((found) => found.name === 'pay');
  const calls = [effect('pay'), effect('pay')];
  await block.reached;
  expect(ledger.count('pay')).toBe(0);
  block.release();
  await Promise.all(calls);
  expect((await ledger.waitForCount('pay', 2)).map(({ seq }) => seq)).toEqual([1, 2]);
});

it('refuses what has no name', async () => {
  const response = await fetch(ledger.effectUrl, { method: 'POST', body: '{}' });
  expect([response.status, ledger.count()]).toEqual([400, 0]);
});
