import { setTimeout as sleep } from 'node:timers/promises';
import { isObject, type JsonObject, listOf } from '../support/json-path.js';
import { lockFromOutside } from '../support/outside-lock.js';
import { openStream, type SseStream } from '../support/sse-client.js';
import { within } from '../support/wait.js';
import { checkCase } from './invariants.js';
import { type FaultCase, nameOf, type Point } from './points.js';
import { restartAndCompare } from './recovered-state.js';
import { persistently, type Stage } from './stage.js';

export interface CaseResult {
  readonly status: string;
  readonly reached: boolean;
  readonly kills: number;
  readonly violations: readonly string[];
}

export interface CaseTimes {
  readonly lockMs: number;
  readonly diskMs: number;
}

/** What clients of the run have seen: whatever they were told must still be true at the end. */
export interface Witness {
  readonly events: Map<number, string>;
  readonly conflicts: string[];
}

/** Runs the reference once with its fault, and checks everything afterwards. */
export async function runCase(stage: Stage, faultCase: FaultCase, times: CaseTimes): Promise<CaseResult> {
  const marker = `case-${faultCase.number}${faultCase.secondKillAfterMs === undefined ? '1' : '2'}-`;
  const point = watchFor(stage, faultCase.point, marker);
  const witness: Witness = { events: new Map(), conflicts: [] };
  const clients = new Clients(stage, witness, point.sawEvent);
  const input = ['one', 'two', 'three', 'four', `five ${marker}`];
  const created = await persistently(
    stage,
    'POST',
    '/v1/runs',
    { agent: 'reference', input, metadata: { marker } },
    { 'idempotency-key': marker },
  );
  const id = String(created.body.id);
  clients.follow(id);
  let injected: Injected = { kills: 0, violations: [] };
  const fault = point.reached.then(async () => {
    injected = await inject(stage, faultCase, { id, clients, times });
  });
  fault.catch(() => undefined);
  try {
    const status = await drive(stage, id);
    // A point behind the end (a cancel had come first) is never reached: the case then says so.
    const reached = await Promise.race([point.reached.then(() => true), sleep(1500, false)]);
    point.stop();
    if (reached) await fault;
    const final = reached ? await drive(stage, id) : status;
    clients.close();
    const violations = await checkCase(stage, { id, marker, witness, faultCase, reached });
    return {
      status: final,
      reached,
      kills: injected.kills,
      violations: [...injected.violations, ...violations].map((text) => `${nameOf(faultCase)}: ${text} (run ${id})`),
    };
  } finally {
    point.stop();
    clients.close();
  }
}

/** Decides what waits, until the run has ended. */
async function drive(stage: Stage, id: string): Promise<string> {
  for (let round = 0; round < 100; round += 1) {
    const { body } = await persistently(stage, 'GET', `/v1/runs/${id}`, undefined, { prefer: 'wait=2' });
    const status = String(body.status);
    if (status === 'completed' || status === 'failed' || status === 'cancelled') return status;
    if (status === 'waiting') await persistently(stage, 'POST', `/v1/runs/${id}/resume`, approvals(body));
  }
  throw new Error(`run ${id} does not end\n${stage.server.tail()}`);
}

function approvals(run: JsonObject): JsonObject {
  return {
    decisions: listOf(run.interruptions)
      .filter(isObject)
      .map(({ id }) => ({ id, decision: 'approve' })),
  };
}

interface Injected {
  readonly kills: number;
  readonly violations: readonly string[];
}

async function inject(
  stage: Stage,
  { fault, secondKillAfterMs }: FaultCase,
  on: { readonly id: string; readonly clients: Clients; readonly times: CaseTimes },
): Promise<Injected> {
  const { server, disk } = stage;
  let kills = 0;
  let violations: string[] = [];
  // A recovery that is to be killed is left alone.
  const recover = async (): Promise<void> => {
    if (secondKillAfterMs === undefined) violations = await restartAndCompare(stage, on.id);
    else await server.restart();
  };
  switch (fault) {
    case 'kill':
      await server.kill9();
      kills += 1;
      await recover();
      break;
    case 'term':
      await server.term();
      await recover();
      break;
    case 'delete':
      await persistently(stage, 'DELETE', `/v1/runs/${on.id}`);
      break;
    case 'drop':
      on.clients.drop();
      break;
    case 'lock': {
      const lock = await lockFromOutside(server.dataDir);
      await sleep(on.times.lockMs);
      await lock.release();
      break;
    }
    case 'disk-once':
      disk?.fill();
      await sleep(30);
      disk?.free();
      break;
    case 'disk-until-healed':
      disk?.fill();
      await sleep(on.times.diskMs);
      disk?.free();
      break;
    case 'stall':
      stage.stallNext();
      break;
  }
  if (secondKillAfterMs === undefined) return { kills, violations };
  await sleep(secondKillAfterMs);
  await server.kill9();
  return { kills: kills + 1, violations: await restartAndCompare(stage, on.id) };
}

interface Watch {
  readonly reached: Promise<void>;
  readonly sawEvent: (type: string) => void;
  stop(): void;
}

function watchFor(stage: Stage, point: Point, marker: string): Watch {
  let arrive = (): void => undefined;
  const reached = new Promise<void>((resolve) => (arrive = resolve));
  const seen = new Map<string, number>();
  let requests = 0;
  let stopped = false;
  stage.onRequest = ({ rawBody }) => {
    if (!rawBody.includes(marker)) return;
    requests += 1;
    if (point.kind === 'request' && requests === point.nth) arrive();
  };
  const stop = stage.ledger.onEntry((entry) => {
    if (point.kind === 'effect' && entry.marker === marker && entry.n === point.n) arrive();
  });
  return {
    reached,
    sawEvent: (type) => {
      if (stopped) return;
      const times = (seen.get(type) ?? 0) + 1;
      seen.set(type, times);
      if (point.kind === 'event' && point.type === type && point.nth === times) arrive();
    },
    stop: () => {
      stopped = true;
      stop();
      stage.onRequest = undefined;
    },
  };
}

/** Two clients that follow the run and come back with their cursor whenever their stream breaks. */
class Clients {
  readonly #stage: Stage;
  readonly #witness: Witness;
  readonly #sawEvent: (type: string) => void;
  readonly #streams = new Set<SseStream>();
  #closed = false;

  constructor(stage: Stage, witness: Witness, sawEvent: (type: string) => void) {
    this.#stage = stage;
    this.#witness = witness;
    this.#sawEvent = sawEvent;
  }

  follow(id: string): void {
    for (let client = 0; client < 2; client += 1) void this.#client(id);
  }

  drop(): void {
    for (const stream of this.#streams) stream.close();
  }

  close(): void {
    this.#closed = true;
    this.drop();
  }

  async #client(id: string): Promise<void> {
    let cursor = 0;
    while (!this.#closed) {
      try {
        const stream = await openStream(`${this.#stage.server.url}/v1/runs/${id}/events?after=${cursor}`);
        if (stream.status === 204) return;
        this.#streams.add(stream);
        for await (const event of stream) {
          if (Number(event.id) !== cursor + 1)
            this.#witness.conflicts.push(`a client at ${cursor} was sent ${event.id}`);
          cursor = Number(event.id);
          const known = this.#witness.events.get(cursor);
          if (known === undefined) {
            this.#witness.events.set(cursor, event.data);
            this.#sawEvent(event.event);
          } else if (known !== event.data) this.#witness.conflicts.push(`two clients saw different events ${cursor}`);
        }
        this.#streams.delete(stream);
      } catch {
        // The server is down; it is asked again.
      }
      await sleep(40);
    }
  }
}

/** Three fresh runs that must complete, after everything. */
export async function freshRunsSucceed(stage: Stage, from: number): Promise<string[]> {
  const faults: string[] = [];
  for (let at = 0; at < 3; at += 1) {
    const marker = `case-${from + at}-`;
    const { body } = await persistently(stage, 'POST', '/v1/runs', {
      agent: 'reference',
      input: ['a', 'b', 'c', 'd', marker],
      metadata: { marker },
    });
    const status = await within(drive(stage, String(body.id)), 30_000, 'a fresh run').catch((error: unknown) =>
      String(error),
    );
    if (status !== 'completed') faults.push(`a fresh run after the last fault ended ${status}`);
  }
  return faults;
}
