import { mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type CpuProfile, figuresOf, profileText } from '../profile.js';
import type { BenchServer } from '../server.js';
import { ourRuns, type Stage } from '../stage.js';
import { type LoadOptions, loadWindow, type Side } from '../windows.js';
import { forks, newRun, ourTurns } from './conversation.js';

const BUSY = 64;
const PROMPTS = {
  p1: 'Say something, deltas=20.',
  p2: 'Use the tool, calls=3 deltas=20.',
};

/**
 * Profiles the load of P1, P2 and P7 and says where the time goes. With `full` the waiting for the disk stands under `exec`;
 * with `normal` hardly anything waits, so that the shares are those of the CPU. @returns the folder of profiles and tables
 */
export async function profiles(stage: Stage): Promise<string> {
  const folder = join(tmpdir(), 'shimline-bench-profiles');
  mkdirSync(folder, { recursive: true });
  for (const durability of ['full', 'normal'] as const) {
    const server = await stage.newServer({ probed: true, durability });
    const { windowMs, warmUpMs } = stage.scale;
    for (const [name, prompt] of Object.entries(PROMPTS)) {
      const side = ourRuns(server, prompt);
      await loadWindow(await stage.client(), side, { concurrency: BUSY, ms: warmUpMs * 2 });
      await profiled(stage, {
        server,
        side,
        folder,
        name: `${name}-${durability}`,
        load: { concurrency: BUSY, ms: windowMs * 5 },
      });
    }
    if (durability === 'normal') await longConversation(stage, server, folder);
    await server.stop();
  }
  return folder;
}

interface Profiled {
  readonly server: BenchServer;
  readonly side: Side;
  readonly folder: string;
  readonly name: string;
  readonly load: LoadOptions;
}

async function profiled(stage: Stage, { server, side, folder, name, load }: Profiled): Promise<void> {
  await server.probe.ask('startProfile');
  const { done, perSecond, cpuMs } = await loadWindow(await stage.client(), side, load);
  const profile = await server.probe.ask<CpuProfile>('stopProfile');
  const head = `${name}: ${perSecond.toFixed(0)} runs/s, ${cpuMs.toFixed(3)} ms of CPU a run, all threads, profiler on`;
  const text = `${head}\n${profileText(figuresOf(profile), done)}`;
  writeFileSync(join(folder, `${name}.cpuprofile`), JSON.stringify(profile));
  writeFileSync(join(folder, `${name}.txt`), text);
  process.stdout.write(`${text.split('\n').slice(0, 32).join('\n')}\n\n`);
}

/** Turns of conversations that are 400 turns long. */
async function longConversation(stage: Stage, server: BenchServer, folder: string): Promise<void> {
  const [turns, lines] = stage.scale.smoke ? [4, 2] : [400, 16];
  const id = await newRun(server);
  await loadWindow(await stage.client(), ourTurns(server, [id]), { concurrency: 1, each: turns });
  const side = ourTurns(server, [id, ...(await forks(server, id, lines - 1))]);
  await profiled(stage, { server, side, folder, name: 'p7-normal', load: { concurrency: lines, each: 15 } });
}
