import { type CpuProfile, figuresOf } from '../profile.js';
import { ourRuns, type Stage } from '../stage.js';
import { median } from '../statistics.js';
import { type Row, valueRow } from '../table.js';
import { compare, loadWindow } from '../windows.js';

const PLAIN = 'Say something, deltas=20.';
const BUSY = 64;

/** What a shim that does nothing costs beside the three of P1, and what recording the effects of those that do something costs. */
export async function p10(stage: Stage): Promise<Row[]> {
  const { smoke, windowMs, warmUpMs, rounds } = stage.scale;
  const client = await stage.client();
  const server = await stage.server();
  const overheads = async (agent: string, base: string, times: number): Promise<number[]> => {
    const sides = { ours: ourRuns(server, PLAIN, agent), ceiling: ourRuns(server, PLAIN, base) };
    for (const side of [sides.ours, sides.ceiling]) await loadWindow(client, side, { concurrency: BUSY, ms: warmUpMs });
    const pairs = await compare(client, sides, { concurrency: BUSY, ms: windowMs, rounds: smoke ? 1 : rounds * times });
    return pairs.map(({ ours, ceiling }) => (ours.cpuMs / ceiling.cpuMs - 1) * 100);
  };
  // One per cent is far below what one window tells; ten shims tell it.
  const ten = (await overheads('plus10', 'bench', 2)).map((percent) => percent / 10);
  const one = await overheads('plus1', 'bench', 1);
  const first = await overheads('first', 'bare', 1);
  return [
    {
      ...valueRow({
        id: 'P10.shim',
        what: 'per cent of a run for an idle shim: a tenth of that of ten more',
        values: ten,
        atMost: 1,
        unit: '%',
      }),
      spread: quarters(ten),
    },
    valueRow({ id: 'P10.one', what: 'the same of one more, which a window hardly tells', values: one, unit: '%' }),
    valueRow({
      id: 'P10.first',
      what: 'per cent of a run without shims for one that has a clean-up, before which the end is committed',
      values: first,
      unit: '%',
    }),
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
