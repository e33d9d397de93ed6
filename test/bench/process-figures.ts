import { readdirSync, readFileSync } from 'node:fs';

/** Milliseconds of CPU that all threads of a process have had so far. */
export function cpuMs(pid: number): number {
  let nanoseconds = 0;
  for (const task of readdirSync(`/proc/${pid}/task`)) {
    try {
      nanoseconds += Number(readFileSync(`/proc/${pid}/task/${task}/schedstat`, 'utf8').split(' ')[0]);
    } catch {
      // The thread has ended between the listing and the reading.
    }
  }
  return nanoseconds / 1e6;
}

/** Resident memory of a process in MiB. */
export function residentMib(pid: number): number {
  const kib = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  return Number(kib) / 1024;
}
