import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export interface WaitOptions {
  readonly timeoutMs?: number;
  readonly everyMs?: number;
  /** Named in the error, so that a failed wait says what it waited for. */
  readonly what?: string;
}

/** Polls until the probe gives something other than `undefined` or `false`; a probe that throws ends the wait. */
export async function waitFor<T>(
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  options: WaitOptions = {},
): Promise<T> {
  const { timeoutMs = 5_000, everyMs = 20, what = 'the condition' } = options;
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const value = await probe();
    if (value !== undefined && value !== false) return value;
    if (performance.now() >= deadline) throw new Error(`waited ${timeoutMs} ms for ${what}`);
    await sleep(everyMs);
  }
}

/** Rejects when the promise has not settled in time; the promise itself goes on. */
export async function within<T>(promise: Promise<T>, timeoutMs: number, what: string): Promise<T> {
  const timer = new AbortController();
  const late = sleep(timeoutMs, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`waited ${timeoutMs} ms for ${what}`);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer.abort();
    late.catch(() => undefined);
  }
}

const folders = new Set<string>();

/** A fresh folder, removed when the test file (or, outside of a test run, the process) ends. */
export function temporaryFolder(prefix = 'shimline-'): string {
  const folder = mkdtempSync(join(tmpdir(), prefix));
  folders.add(folder);
  return folder;
}

function removeTemporaryFolders(): void {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
  folders.clear();
}

// A worker of the test runner may be ended without its exit hooks, a plain script has no afterAll: so both.
process.once('exit', removeTemporaryFolders);
if (process.env.VITEST !== undefined) {
  const { afterAll } = await import('vitest');
  afterAll(removeTemporaryFolders);
}
