import { statSync } from 'node:fs';
import { join } from 'node:path';
import SQLite from 'better-sqlite3';
import type { Program } from '../program.js';
import type { BenchServer } from '../server.js';
import type { Stage } from '../stage.js';
import { type Row, ratioRow, valueRow } from '../table.js';
import { compare, loadWindow, type Side } from '../windows.js';

const INPUT = 'Say something, deltas=20.';
const stream = { accept: 'text/event-stream' };
const mark = 'event: run.completed';

/** One conversation that grows: what a turn writes, and what it costs at the end. */
export async function p7(stage: Stage): Promise<Row[]> {
  const { smoke, rounds } = stage.scale;
  const [early, late] = smoke ? [4, 12] : [10, 400];
  const turns = 20;
  const client = await stage.client();
  const server = await stage.newServer();
  const floor = await stage.newFloor('package');
  const id = await newRun(server);
  const grow = async (each: number): Promise<void> => {
    await loadWindow(client, ourTurns(server, [id]), { concurrency: 1, each });
  };
  // A reader that keeps its snapshot: the write-ahead log is never begun anew, so its growth is what was written.
  const reader = new SQLite(join(server.dataDir, 'shimline.db'), { readonly: true });
  reader.exec('BEGIN');
  reader.prepare('SELECT count(*) FROM sqlite_master').get();
  const written = async (): Promise<number[]> => {
    const perTurn: number[] = [];
    for (let part = 0; part < 5; part += 1) {
      const before = walBytes(server);
      await grow(smoke ? 1 : turns / 5);
      perTurn.push((walBytes(server) - before) / (smoke ? 1 : turns / 5));
    }
    return perTurn;
  };
  // The run has one turn already; its middle 20 turns are about the named one.
  await grow(Math.max(1, early - turns / 2 - 1));
  const atEarly = await written();
  await grow(late - early - turns);
  const atLate = await written();
  reader.close();
  const rows = [
    ratioRow({
      id: 'P7.bytes',
      what: `bytes written per turn at ${late} / at ${early}`,
      rounds: atLate.map((value, index) => ({ value, ceiling: atEarly[index] ?? Number.NaN })),
      atMost: 1.2,
    }),
  ];
  const lines = smoke ? 2 : 16;
  const runs = [id, ...(await forks(server, id, lines - 1))];
  const conversations = await floorConversations(stage, floor, { late, lines });
  const sides = { ours: ourTurns(server, runs), ceiling: floorTurns(floor, conversations) };
  for (const side of [sides.ours, sides.ceiling]) await loadWindow(client, side, { concurrency: lines, each: 2 });
  const pairs = await compare(client, sides, { concurrency: lines, each: 2, rounds });
  const atStart = await earlyTurns(client, server, lines);
  rows.push(
    ratioRow({
      id: 'P7.cpu',
      what: `CPU ms per turn at ${late} turns / F2`,
      rounds: pairs.map(({ ours, ceiling }) => ({ value: ours.cpuMs, ceiling: ceiling.cpuMs })),
      atMost: 1.5,
    }),
    valueRow({ id: 'P7.cpu10', what: `CPU ms per turn at ${early} turns`, values: atStart }),
  );
  await server.stop();
  await floor.stop();
  return rows;
}

export async function newRun(server: BenchServer): Promise<string> {
  const headers = { 'content-type': 'application/json', prefer: 'wait=60' };
  const body = JSON.stringify({ agent: 'bench', input: INPUT });
  const { id, status } = await server.json('/v1/runs', { method: 'POST', headers, body });
  if (status !== 'completed') throw new Error(`the run is ${String(status)}`);
  return String(id);
}

/** Copies of a long conversation, each with a turn of its own. */
export async function forks(server: BenchServer, id: string, count: number): Promise<string[]> {
  const made: string[] = [];
  for (let copy = 0; copy < count; copy += 1) {
    const headers = { 'content-type': 'application/json' };
    const fork = await server.json(`/v1/runs/${id}/fork`, {
      method: 'POST',
      headers,
      body: JSON.stringify({ input: INPUT }),
    });
    made.push(String(fork.id));
  }
  for (const copy of made) {
    const { status } = await server.json(`/v1/runs/${copy}`, { headers: { prefer: 'wait=60' } });
    if (status !== 'completed') throw new Error(`the fork is ${String(status)}`);
  }
  return made;
}

async function earlyTurns(client: Program, server: BenchServer, lines: number): Promise<number[]> {
  const values: number[] = [];
  for (let round = 0; round < 3; round += 1) {
    const runs: string[] = [];
    for (let line = 0; line < lines; line += 1) runs.push(await newRun(server));
    const side = ourTurns(server, runs);
    await loadWindow(client, side, { concurrency: lines, each: 6 });
    values.push((await loadWindow(client, side, { concurrency: lines, each: 6 })).cpuMs);
  }
  return values;
}

export function ourTurns(server: BenchServer, runs: readonly string[]): Side {
  const requests = runs.map((id) => ({ path: `/v1/runs/${id}/resume`, headers: stream, body: { input: INPUT } }));
  return { pid: server.pid, url: server.url, requests, mark };
}

function floorTurns(floor: Program, conversations: readonly string[]): Side {
  const requests = conversations.map((conversation) => ({ path: '/runs', body: { prompt: INPUT, conversation } }));
  return { pid: floor.pid, url: floor.url, requests, mark };
}

/** One conversation is grown, the others are copies of its rows. */
async function floorConversations(
  stage: Stage,
  floor: Program,
  { late, lines }: { readonly late: number; readonly lines: number },
): Promise<string[]> {
  const first = 'conversation-0';
  await loadWindow(await stage.client(), floorTurns(floor, [first]), { concurrency: 1, each: late + 12 });
  const { file } = await floor.ask<{ file: string }>('describe');
  const database = new SQLite(file);
  const copy = database.prepare('INSERT INTO message SELECT ?, place, run, json FROM message WHERE conversation = ?');
  const all = [first];
  for (let line = 1; line < lines; line += 1) {
    const name = `conversation-${line}`;
    copy.run(name, first);
    all.push(name);
  }
  database.close();
  return all;
}

function walBytes(server: BenchServer): number {
  return statSync(join(server.dataDir, 'shimline.db-wal')).size;
}
