import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { cpuMs, residentMib } from '../process-figures.js';
import { Program } from '../program.js';
import type { BenchServer } from '../server.js';
import { floorRuns, ourRuns, type Stage } from '../stage.js';
import { quantile } from '../statistics.js';
import { type Row, ratioRow, valueRow } from '../table.js';
import type { Side } from '../windows.js';

const stream = { accept: 'text/event-stream' };
const json = { 'content-type': 'application/json' };

interface Ended {
  readonly events: number;
  readonly bytes: number;
  readonly whole: number;
  readonly faults: Readonly<Record<string, number>>;
}

interface Delivery {
  readonly perSecond: number;
  readonly events: number;
  readonly cpuMs: number;
}

let handles = 0;

/** Streams that stay open in the client's process. */
class OpenStreams {
  readonly #client: Program;
  readonly #handle: string;

  private constructor(client: Program, handle: string) {
    this.#client = client;
    this.#handle = handle;
  }

  static async open(client: Program, side: Omit<Side, 'pid'>, count: number): Promise<OpenStreams> {
    handles += 1;
    const handle = `streams-${handles}`;
    const { url, requests, mark } = side;
    await client.ask('open', { handle, url, requests, count, mark });
    return new OpenStreams(client, handle);
  }

  /** What came of them. @throws when one was not answered to its end */
  async ended(): Promise<Ended> {
    const ended = await this.#client.ask<Ended>('ended', { handle: this.#handle });
    if (Object.keys(ended.faults).length > 0) throw new Error(`streams failed: ${JSON.stringify(ended.faults)}`);
    return ended;
  }
}

async function untilHeld(model: Program, count: number): Promise<void> {
  while ((await model.ask<number>('held')) < count) await sleep(10);
}

async function startRun(server: BenchServer, agent: string, input: string): Promise<string> {
  const { id } = await server.json('/v1/runs', {
    method: 'POST',
    headers: json,
    body: JSON.stringify({ agent, input }),
  });
  return String(id);
}

/** One run's deltas to many readers. */
export async function p8(stage: Stage): Promise<Row[]> {
  const { smoke, rounds } = stage.scale;
  const [readers, deltas] = smoke ? [20, 20] : [1000, 200];
  const [server, model, client] = [await stage.server(), await stage.model(), await stage.client()];
  const ceiling = await Program.start('ceiling', { kind: 'stream' });
  const ours = async (): Promise<Delivery> => {
    const id = await startRun(server, 'bench', `Say something, hold=1 gap=1 deltas=${deltas}.`);
    await untilHeld(model, 1);
    const requests = [{ method: 'GET' as const, path: `/v1/runs/${id}/events`, headers: stream }];
    const open = await OpenStreams.open(client, { url: server.url, requests }, readers);
    return delivered(server.pid, open, async () => model.ask('release'));
  };
  const theirs = async (): Promise<Delivery> => {
    const open = await OpenStreams.open(
      client,
      { url: ceiling.url, requests: [{ method: 'GET', path: '/' }] },
      readers,
    );
    return delivered(ceiling.pid, open, async () => ceiling.ask('emit', { count: deltas, gap: 1 }));
  };
  await ours();
  await theirs();
  const pairs: { ours: Delivery; ceiling: Delivery }[] = [];
  for (let round = 0; round < rounds; round += 1) pairs.push({ ours: await ours(), ceiling: await theirs() });
  await ceiling.stop();
  const deltasPerSecond = pairs.map(({ ours: { perSecond, events } }) => (perSecond / events) * readers * deltas);
  return [
    ratioRow({
      id: 'P8',
      what: `events/s, one run to ${readers} readers / C3`,
      rounds: pairs.map((pair) => ({ value: pair.ours.perSecond, ceiling: pair.ceiling.perSecond })),
      atLeast: 0.5,
    }),
    ratioRow({
      id: 'P8.deltas',
      what: 'the same in deltas of the model, which may share an event',
      rounds: pairs.map((pair, index) => ({
        value: deltasPerSecond[index] ?? Number.NaN,
        ceiling: pair.ceiling.perSecond,
      })),
    }),
    ratioRow({
      id: 'P8.cpu',
      what: 'CPU us per delta and reader / C3',
      rounds: pairs.map((pair) => ({
        value: (pair.ours.cpuMs * 1000) / (readers * deltas),
        ceiling: (pair.ceiling.cpuMs * 1000) / (readers * deltas),
      })),
    }),
  ];
}

/** From the word to begin until the last reader has everything. */
async function delivered(pid: number, open: OpenStreams, begin: () => Promise<unknown>): Promise<Delivery> {
  const cpuBefore = cpuMs(pid);
  const startedAt = performance.now();
  const [, { events }] = await Promise.all([begin(), open.ended()]);
  const seconds = (performance.now() - startedAt) / 1000;
  return { perSecond: events / seconds, events, cpuMs: cpuMs(pid) - cpuBefore };
}

/** A long log, read from its beginning. */
export async function p9(stage: Stage): Promise<Row[]> {
  const { smoke, rounds } = stage.scale;
  const turns = smoke ? 2 : 100;
  const [server, client] = [await stage.server(), await stage.client()];
  const id = await startRun(server, 'log', `Use the tool, calls=${turns - 1}.`);
  const { status, lastSeq } = await server.json(`/v1/runs/${id}`, { headers: { prefer: 'wait=120' } });
  if (status !== 'completed') throw new Error(`the run is ${String(status)}`);
  const page = await server.json(`/v1/runs/${id}/events?after=100&limit=100`);
  const lines = (page.data as object[]).map((event) => JSON.stringify(event));
  const ceiling = await Program.start('ceiling', { kind: 'replay', file: join(stage.newFolder(), 'ceiling.db') });
  await ceiling.ask('fill', { lines, times: Math.ceil(Number(lastSeq) / 100) * 100 });
  const read = async (pid: number, side: Omit<Side, 'pid'>): Promise<Delivery> => {
    const startedAt = performance.now();
    const cpuBefore = cpuMs(pid);
    const { events } = await (await OpenStreams.open(client, side, 1)).ended();
    return { events, perSecond: (events / (performance.now() - startedAt)) * 1000, cpuMs: cpuMs(pid) - cpuBefore };
  };
  const headers = { ...stream, 'last-event-id': '1' };
  const ours = async (): Promise<Delivery> => {
    const got = await read(server.pid, {
      url: server.url,
      requests: [{ method: 'GET', path: `/v1/runs/${id}/events`, headers }],
    });
    if (got.events !== Number(lastSeq) - 1) throw new Error(`${got.events} events of ${Number(lastSeq) - 1}`);
    return got;
  };
  const theirs = async (): Promise<Delivery> =>
    read(ceiling.pid, { url: ceiling.url, requests: [{ method: 'GET', path: '/' }] });
  await ours();
  await theirs();
  const pairs: { value: number; ceiling: number }[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const [a, b, c, d] = [await ours(), await theirs(), await theirs(), await ours()];
    pairs.push({ value: (a.perSecond + d.perSecond) / 2, ceiling: (b.perSecond + c.perSecond) / 2 });
  }
  await ceiling.stop();
  return [
    ratioRow({
      id: 'P9',
      what: `events/s, replay of ${String(lastSeq)} events / rows to a socket`,
      rounds: pairs,
      atLeast: 0.5,
    }),
  ];
}

/** Descriptors that a stream needs at the server: the client's socket and the model's. */
const PER_STREAM = 2;
const MODEL_IDLE_MS = 3_600_000;

/** Streams whose run waits on a model that says nothing yet. */
export async function p6(stage: Stage): Promise<Row[]> {
  const { smoke } = stage.scale;
  const mib: { ours: number; floor: number }[] = [];
  for (let round = 0; round < (smoke ? 1 : 3); round += 1) {
    const server = await waitingServer(stage);
    const ours = await residentPerThousand(stage, ourRuns(server, WAITING));
    await server.stop();
    const floor = await stage.newFloor('package');
    mib.push({ ours, floor: await residentPerThousand(stage, floorRuns(floor, WAITING)) });
    await floor.stop();
  }
  return [
    valueRow({
      id: 'P6.rss',
      what: 'MiB per 1,000 waiting streams over F2',
      values: mib.map(({ ours, floor }) => ours - floor),
      atMost: 45,
    }),
    valueRow({ id: 'P6.ours', what: 'MiB per 1,000 waiting streams', values: mib.map(({ ours }) => ours) }),
    valueRow({ id: 'P6.floor', what: 'the same of F2', values: mib.map(({ floor }) => floor) }),
    ...(await manyStreams(stage)),
  ];
}

const WAITING = 'Say something, hold=1 deltas=20.';

async function waitingServer(stage: Stage): Promise<BenchServer> {
  const env = {
    MAX_CONCURRENT_RUNS: '20000',
    MAX_QUEUED_RUNS: '20000',
    MODEL_IDLE_TIMEOUT_MS: String(MODEL_IDLE_MS),
  };
  return stage.newServer({ env });
}

/** What a process, warm from a few runs, grows by. */
async function residentPerThousand(stage: Stage, side: Side): Promise<number> {
  const [warm, some] = stage.scale.smoke ? [10, 20] : [200, 2000];
  const [model, client] = [await stage.model(), await stage.client()];
  const grownBy = async (count: number): Promise<number> => {
    const before = residentMib(side.pid);
    const open = await OpenStreams.open(client, side, count);
    await untilHeld(model, count);
    const grown = residentMib(side.pid) - before;
    await model.ask('release');
    await open.ended();
    return grown;
  };
  await grownBy(warm);
  return ((await grownBy(some)) / some) * 1000;
}

/** Ten thousand at once, or as many as the descriptors of a process allow. */
async function manyStreams(stage: Stage): Promise<Row[]> {
  const { smoke } = stage.scale;
  const many = smoke ? 100 : 10_000;
  const [model, client] = [await stage.model(), await stage.client()];
  const server = await waitingServer(stage);
  const count = Math.min(many, Math.floor((server.descriptorLimit() - 500) / PER_STREAM));
  const health = new HealthProbe(server);
  const open = await OpenStreams.open(client, ourRuns(server, WAITING), count);
  await untilHeld(model, count);
  const whileOpening = health.take();
  await sleep(smoke ? 100 : 5000);
  const whileWaiting = health.take();
  const resident = residentMib(server.pid);
  await model.ask('release');
  const { whole } = await open.ended();
  await health.stop();
  const whileAnswered = health.take();
  await server.stop();
  const p99 = (values: readonly number[]): number[] => [quantile(values, 0.99)];
  return [
    ratioRow({
      id: 'P6.all',
      what: `streams served of ${count} at once${count < many ? ' (as many as descriptors allow)' : ''}`,
      rounds: [{ value: whole, ceiling: count }],
      atLeast: 1,
    }),
    valueRow({
      id: 'P6.healthz',
      what: `ms, p99 of healthz while ${count} are open and wait`,
      values: p99(whileWaiting),
      atMost: 100,
    }),
    valueRow({ id: 'P6.opening', what: 'the same while they are opened, 128 at a time', values: p99(whileOpening) }),
    valueRow({
      id: 'P6.answered',
      what: 'the same while all of them are answered at once',
      values: p99(whileAnswered),
    }),
    valueRow({ id: 'P6.total', what: `MiB of the process with ${count} streams`, values: [resident] }),
  ];
}

/** Asks for the health every 20 ms and keeps how long each answer took. */
class HealthProbe {
  #latencies: number[] = [];
  #stopped = false;
  readonly #done: Promise<void>;

  constructor(server: BenchServer) {
    this.#done = this.#run(server);
  }

  /** The latencies since the last time. */
  take(): number[] {
    const taken = this.#latencies;
    this.#latencies = [];
    return taken;
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#done;
  }

  async #run(server: BenchServer): Promise<void> {
    while (!this.#stopped) {
      const startedAt = performance.now();
      await server.json('/healthz');
      this.#latencies.push(performance.now() - startedAt);
      await sleep(20);
    }
  }
}
