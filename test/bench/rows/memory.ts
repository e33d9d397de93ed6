import type { BenchServer } from '../server.js';
import { ourRuns, type Stage } from '../stage.js';
import { type Row, valueRow } from '../table.js';
import { loadWindow } from '../windows.js';

const LINES = 64;

/** The heap after a collection, as runs are served and long logs are read. */
export async function memory(stage: Stage): Promise<Row[]> {
  const { smoke } = stage.scale;
  const [warm, total] = smoke ? [640, 1280] : [10_000, 100_000];
  const client = await stage.client();
  const server = await stage.newServer({ probed: true, durability: 'normal' });
  const side = ourRuns(server, 'hello', 'offline');
  const serve = async (runs: number): Promise<void> => {
    await loadWindow(client, side, { concurrency: LINES, each: Math.ceil(runs / LINES) });
  };
  await serve(warm);
  const first = await heapMib(server);
  const grown: number[] = [];
  for (let part = 0; part < 5; part += 1) {
    await serve((total - warm) / 5);
    grown.push(((await heapMib(server)) / first - 1) * 100);
  }
  const before = await heapMib(server);
  await readLongLog(stage, server);
  const after = await heapMib(server);
  await server.stop();
  const last = grown.at(-1) ?? Number.NaN;
  return [
    {
      ...valueRow({
        id: 'M.runs',
        what: `per cent of heap from ${warm} to ${total} runs (${first.toFixed(1)} MiB)`,
        values: [last],
        atMost: 5,
        unit: '%',
      }),
      spread: [Math.min(...grown), Math.max(...grown)],
    },
    valueRow({
      id: 'M.events',
      what: 'per cent of heap for a long log that was written and read',
      values: [(after / before - 1) * 100],
      atMost: 5,
      unit: '%',
    }),
  ];
}

async function heapMib(server: BenchServer): Promise<number> {
  const { heapUsed, external } = await server.probe.ask<{ heapUsed: number; external: number }>('heap');
  return (heapUsed + external) / 1024 ** 2;
}

async function readLongLog(stage: Stage, server: BenchServer): Promise<void> {
  const turns = stage.scale.smoke ? 2 : 50;
  const body = JSON.stringify({ agent: 'log', input: `Use the tool, calls=${turns - 1}.` });
  const headers = { 'content-type': 'application/json', prefer: 'wait=120' };
  const { id } = await server.json('/v1/runs', { method: 'POST', headers, body });
  const answer = await fetch(`${server.url}/v1/runs/${String(id)}/events`, {
    headers: { accept: 'text/event-stream' },
  });
  for await (const chunk of answer.body ?? [])
    if ((chunk as Uint8Array).length === 0) throw new Error('an empty chunk');
}
