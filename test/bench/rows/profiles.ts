import { mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { figuresOf, profileText, type CpuProfile } from '../profile.js';
import { ourRuns, type Stage } from '../stage.js';
import { loadWindow } from '../windows.js';

const BUSY = 64;
const PROMPTS = {
  p1: 'Say something, deltas=20.',
  p2: 'Use the tool, calls=3 deltas=20.',
};

/**
 * Profiles the load of P1 and P2 and says where the time goes. With `full` the waiting for the disk stands under `exec`; with
 * `normal` hardly anything waits, so that the shares are those of the CPU. @returns the folder of profiles and tables
 */
export async function profiles(stage: Stage): Promise<string> {
  const { windowMs, warmUpMs } = stage.scale;
  const folder = join(tmpdir(), 'shimline-bench-profiles');
  mkdirSync(folder, { recursive: true });
  const client = await stage.client();
  for (const durability of ['full', 'normal'] as const) {
    const server = await stage.newServer({ probed: true, durability });
    for (const [name, prompt] of Object.entries(PROMPTS)) {
      const side = ourRuns(server, prompt);
      await loadWindow(client, side, { concurrency: BUSY, ms: warmUpMs * 2 });
      await server.probe.ask('startProfile');
      const { done, perSecond, cpuMs } = await loadWindow(client, side, { concurrency: BUSY, ms: windowMs * 5 });
      const profile = await server.probe.ask<CpuProfile>('stopProfile');
      const head = `${name}, DURABILITY=${durability}: ${perSecond.toFixed(0)} runs/s, ${cpuMs.toFixed(3)} ms of CPU a run, all threads, profiler on`;
      const text = `${head}\n${profileText(figuresOf(profile), done)}`;
      writeFileSync(join(folder, `${name}-${durability}.cpuprofile`), JSON.stringify(profile));
      writeFileSync(join(folder, `${name}-${durability}.txt`), text);
      process.stdout.write(`${text.split('\n').slice(0, 32).join('\n')}\n\n`);
    }
    await server.stop();
  }
  return folder;
}
