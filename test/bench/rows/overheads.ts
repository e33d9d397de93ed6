import { type CpuProfile, figuresOf } from '../profile.js';
import { ourRuns, type Stage } from '../stage.js';
import { median } from '../statistics.js';
import { type Row, valueRow } from '../table.js';
import { compare, loadWindow } from '../windows.js';

const PLAIN = 'Say something, deltas=20.';
const BUSY = 64;

/** What a shim that does nothing costs, and what recording the effects of those that do something costs. */
export async function p10(stage: Stage): Promise<Row[]> {
  const { smoke, windowMs, warmUpMs, rounds } = stage.scale;
  const client = await stage.client();
  const server = await stage.server();
  const overheads = async (agent: string, times: number): Promise<number[]> => {
    const sides = { ours: ourRuns(server, PLAIN, agent), ceiling: ourRuns(server, PLAIN, 'bare') };
    for (const side of [sides.ours, sides.ceiling]) await loadWindow(client, side, { concurrency: BUSY, ms: warmUpMs });
    const pairs = await compare(client, sides, { concurrency: BUSY, ms: windowMs, rounds: smoke ? 1 : rounds * times });
    return pairs.map(({ ours, ceiling }) => (ours.cpuMs / ceiling.cpuMs - 1) * 100);
  };
  // One per cent is far below what one window tells, so there are many; ten shims tell it more surely.
  const one = await overheads('idle', 2);
  const ten = (await overheads('idle10', 1)).map((percent) => percent / 10);
  return [
    {
      ...valueRow({ id: 'P10.shim', what: 'per cent of a run for an idle shim', values: one, atMost: 1, unit: '%' }),
      spread: quarters(one),
    },
    valueRow({ id: 'P10.tenth', what: 'a tenth of that of ten idle shims', values: ten, atMost: 1, unit: '%' }),
    valueRow({
      id: 'P10.effects',
      what: 'per cent of a run for recording effects, by profile',
      values: [await effectsShare(stage)],
      atMost: 5,
      unit: '%',
    }),
  ];
}

/** The middle half. */
function quarters(values: readonly number[]): readonly [number, number] {
  const sorted = [...values].sort((a, b) => a - b);
  const half = Math.ceil(sorted.length / 2);
  return [median(sorted.slice(0, half)), median(sorted.slice(-half))];
}

/** A profile tells it, since recording cannot be switched off; without fsync, whose waiting would hide it. */
async function effectsShare(stage: Stage): Promise<number> {
  const { windowMs, warmUpMs } = stage.scale;
  const server = await stage.newServer({ probed: true, durability: 'normal' });
  const client = await stage.client();
  const side = ourRuns(server, PLAIN);
  await loadWindow(client, side, { concurrency: BUSY, ms: warmUpMs });
  await server.probe.ask('startProfile');
  await loadWindow(client, side, { concurrency: BUSY, ms: windowMs * 3 });
  const profile = await server.probe.ask<CpuProfile>('stopProfile');
  await server.stop();
  const figures = figuresOf(profile, ({ place }) => (place === 'src/agent/effects.js' ? 'effects' : 'other'));
  const effects = figures.groups.find(({ name }) => name === 'effects');
  return ((effects?.totalMs ?? 0) / figures.busyMs) * 100;
}
