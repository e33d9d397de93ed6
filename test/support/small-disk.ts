import { execFileSync } from 'node:child_process';
import { closeSync, fsyncSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from './wait.js';

/** A file system of its own for a data folder, small enough to be filled. */
export interface SmallDisk {
  readonly path: string;
  /** Leaves not a byte free. */
  fill(): void;
  free(): void;
  /** Only while no file on it is open for writing. */
  readOnly(readOnly: boolean): void;
  unmount(): void;
}

const mounted = new Set<string>();
process.once('exit', () => {
  for (const path of mounted) unmount(path);
});

/** Mounts a tmpfs on a temporary folder; wants the right to mount. */
export function mountSmallDisk(megabytes: number): SmallDisk {
  const path = temporaryFolder('disk-');
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'tmpfs', path], { stdio: 'pipe' });
  mounted.add(path);
  const ballast = join(path, 'ballast');
  return {
    path,
    fill: () => {
      const file = openSync(ballast, 'a');
      try {
        fillUp(file);
        fsyncSync(file);
      } finally {
        closeSync(file);
      }
    },
    free: () => {
      rmSync(ballast, { force: true });
    },
    readOnly: (readOnly) => {
      execFileSync('mount', ['-o', `remount,${readOnly ? 'ro' : 'rw'}`, path], { stdio: 'pipe' });
    },
    unmount: () => {
      unmount(path);
    },
  };
}

function fillUp(file: number): void {
  for (let size = 1024 * 1024; size >= 1; ) {
    try {
      writeSync(file, Buffer.alloc(size));
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
      size = Math.floor(size / 2);
    }
  }
}

function unmount(path: string): void {
  mounted.delete(path);
  // Lazily, since a server that was killed a moment ago may still hold it.
  execFileSync('umount', ['-l', path], { stdio: 'pipe' });
}

/** Why no small disk can be made here, or undefined where one can. */
export function whyNoSmallDisk(): string | undefined {
  if (process.platform !== 'linux') return 'small disks are made with tmpfs, which is of Linux';
  if (process.getuid?.() !== 0) return 'only root may mount a small disk';
  try {
    mountSmallDisk(1).unmount();
    return undefined;
  } catch {
    return 'mounting is not allowed here';
  }
}
