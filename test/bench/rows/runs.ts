import { floorRuns, ourRuns, type Stage } from '../stage.js';
import { quantile } from '../statistics.js';
import { type Row, ratioRow } from '../table.js';
import { compare, loadWindow, type Pair, type Side } from '../windows.js';

const PLAIN = 'Say something, deltas=20.';
const TOOLS = 'Use the tool, calls=3 deltas=20.';
/** The concurrency at which most rows are measured. */
const BUSY = 64;

async function measured(
  stage: Stage,
  sides: { readonly ours: Side; readonly ceiling: Side },
  concurrency: number,
): Promise<Pair[]> {
  const { windowMs, warmUpMs, rounds } = stage.scale;
  const client = await stage.client();
  for (const side of [sides.ours, sides.ceiling]) await loadWindow(client, side, { concurrency, ms: warmUpMs });
  return compare(client, sides, { concurrency, ms: windowMs, rounds });
}

async function againstF2(stage: Stage, prompt: string, concurrency: number): Promise<Pair[]> {
  const sides = {
    ours: ourRuns(await stage.server(), prompt),
    ceiling: floorRuns(await stage.floor('package'), prompt),
  };
  return measured(stage, sides, concurrency);
}

function cpuOf(pairs: readonly Pair[]): { value: number; ceiling: number }[] {
  return pairs.map(({ ours, ceiling }) => ({ value: ours.cpuMs, ceiling: ceiling.cpuMs }));
}

function speedOf(pairs: readonly Pair[]): { value: number; ceiling: number }[] {
  return pairs.map(({ ours, ceiling }) => ({ value: ours.perSecond, ceiling: ceiling.perSecond }));
}

/** The pairs of P1 serve P3 and P4 too. */
const plain = new WeakMap<Stage, Promise<Pair[]>>();

async function plainPairs(stage: Stage): Promise<Pair[]> {
  const known = plain.get(stage) ?? againstF2(stage, PLAIN, BUSY);
  plain.set(stage, known);
  return known;
}

/** CPU of a run with one model call. */
export async function p1(stage: Stage): Promise<Row[]> {
  return [
    ratioRow({
      id: 'P1',
      what: 'CPU ms per run, 1 model call / F2',
      rounds: cpuOf(await plainPairs(stage)),
      atMost: 1.6,
    }),
  ];
}

/** CPU of a run with four model calls and three tool calls. */
export async function p2(stage: Stage): Promise<Row[]> {
  const pairs = await againstF2(stage, TOOLS, BUSY);
  return [
    ratioRow({ id: 'P2', what: 'CPU ms per run, 4 model calls, 3 tools / F2', rounds: cpuOf(pairs), atMost: 1.6 }),
  ];
}

/** Runs a second at several concurrencies. */
export async function p3(stage: Stage): Promise<Row[]> {
  const rows: Row[] = [];
  const speeds = new Map<number, number>();
  for (const concurrency of [1, 16, BUSY, 256]) {
    const pairs = concurrency === BUSY ? await plainPairs(stage) : await againstF2(stage, PLAIN, concurrency);
    const row = ratioRow({
      id: `P3.${concurrency}`,
      what: `runs/s at ${concurrency} / F2`,
      rounds: speedOf(pairs),
      atLeast: 0.6,
    });
    speeds.set(concurrency, row.value);
    rows.push(row);
  }
  const server = await stage.server();
  const ours = { ...ourRuns(server, PLAIN) };
  const { windowMs, rounds } = stage.scale;
  const client = await stage.client();
  const flat: { value: number; ceiling: number }[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const at = async (concurrency: number): Promise<number> =>
      (await loadWindow(client, ours, { concurrency, ms: windowMs })).perSecond;
    const [a, b, c, d] = [await at(256), await at(BUSY), await at(BUSY), await at(256)];
    flat.push({ value: (a + d) / 2, ceiling: (b + c) / 2 });
  }
  return [...rows, ratioRow({ id: 'P3.flat', what: 'runs/s at 256 / runs/s at 64', rounds: flat, atLeast: 0.95 })];
}

/** Time to the first event. The floor's p99 has stragglers that the median has not, so both are told. */
export async function p4(stage: Stage): Promise<Row[]> {
  const pairs = await plainPairs(stage);
  const at = (share: number): { value: number; ceiling: number }[] =>
    pairs.map(({ ours, ceiling }) => ({
      value: quantile(ours.firsts, share),
      ceiling: quantile(ceiling.firsts, share),
    }));
  return [
    ratioRow({ id: 'P4', what: `ms to the first event, p99 at ${BUSY} / F2`, rounds: at(0.99), atMost: 2 }),
    ratioRow({ id: 'P4.p90', what: 'the same, p90', rounds: at(0.9) }),
    ratioRow({ id: 'P4.p50', what: 'the same, median', rounds: at(0.5) }),
  ];
}

/** What an fsync costs when it is shared. */
export async function p5(stage: Stage): Promise<Row[]> {
  const sides = {
    ours: ourRuns(await stage.server('full'), PLAIN),
    ceiling: ourRuns(await stage.server('normal'), PLAIN),
  };
  const pairs = await measured(stage, sides, BUSY);
  return [ratioRow({ id: 'P5', what: 'runs/s at 64, full / normal', rounds: speedOf(pairs), atLeast: 0.75 })];
}

/** The price of the provider package by itself; nothing is asked of it. */
export async function library(stage: Stage): Promise<Row[]> {
  const rows: Row[] = [];
  for (const [id, prompt, what] of [
    ['F2.1', PLAIN, 'CPU ms per run, F2 / F1'],
    ['F2.4', TOOLS, 'CPU ms per run, 3 tools, F2 / F1'],
  ] as const) {
    const sides = {
      ours: floorRuns(await stage.floor('package'), prompt),
      ceiling: floorRuns(await stage.floor('hand'), prompt),
    };
    rows.push(ratioRow({ id, what, rounds: cpuOf(await measured(stage, sides, BUSY)) }));
  }
  return rows;
}
