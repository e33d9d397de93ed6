import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const stamp = join(root, 'dist', '.built');
const lock = join(root, 'dist', '.building');
const STALE_LOCK_MS = 120_000;

/** Builds `dist` when a source is newer than it: tests that need a real process start `node dist/src/server.js`. */
export default async function setup(): Promise<void> {
  mkdirSync(join(root, 'dist'), { recursive: true });
  await takeLock();
  try {
    if (newestSource() >= modified(stamp)) await build();
  } finally {
    rmSync(lock, { recursive: true, force: true });
  }
}

/** Two test runs at once must not write `dist` together; a lock that a killed run left behind expires. */
async function takeLock(): Promise<void> {
  for (;;) {
    try {
      mkdirSync(lock);
      return;
    } catch {
      if (Date.now() - modified(lock) > STALE_LOCK_MS) rmSync(lock, { recursive: true, force: true });
      else await delay(100);
    }
  }
}

/**
 * Type errors are printed and do not stop the tests, since `tsc` has written the code all the same and
 * `npm run typecheck` is what judges it; without a stamp the next run builds again.
 */
async function build(): Promise<void> {
  const startedAt = new Date();
  rmSync(stamp, { force: true });
  try {
    await run(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', 'tsconfig.json'], { cwd: root });
    writeFileSync(stamp, '');
    utimesSync(stamp, startedAt, startedAt); // what was saved while tsc ran is newer, and builds again
  } catch (error) {
    const { stdout = '' } = error as { readonly stdout?: string };
    if (!stdout.includes('error TS')) throw error;
    console.error(`The build has type errors; testing what it wrote.\n${stdout}`);
  }
  await run(process.execPath, [join(root, '.config/prune-dist.mjs')], { cwd: root });
}

function newestSource(): number {
  const folders = ['src', 'shims'].map((name) => join(root, name)).filter((folder) => existsSync(folder));
  const files = folders.flatMap((folder) =>
    readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((file) => join(folder, file)),
  );
  return Math.max(...[join(root, 'tsconfig.json'), ...folders, ...files].map(modified));
}

/** When a file, or a folder's list of files, last changed; 0 when it is not there. */
function modified(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}
