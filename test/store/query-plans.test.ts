import type { Database } from 'better-sqlite3';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Checkpoint, firstPosition, type ToolCallRecord } from '../../src/agent/journal.js';
import type { ModelResponse } from '../../src/agent/messages.js';
import { NO_USAGE } from '../../src/agent/model.js';
import { AgentStore } from '../../src/store/agent-store.js';
import { openDatabase, openReader } from '../../src/store/database.js';
import { EventReader } from '../../src/store/event-reader.js';
import { type RunQuery, RunReader } from '../../src/store/run-reader.js';
import { type NewRun, RunStore } from '../../src/store/run-store.js';
import { temporaryFolder } from '../support/wait.js';

/** Indexes that hold only rows of a kind of which there are never many: to read one from end to end is cheap. */
const SMALL_INDEXES = ['runs_unfinished', 'agents_current'];

interface Planned {
  readonly sql: string;
  readonly plan: readonly string[];
}

/** A connection that remembers what was prepared on it. */
function recording(database: Database, seen: Set<string>): Database {
  return new Proxy(database, {
    get: (target, name) => {
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]): unknown => {
        if (name === 'prepare') seen.add(args[0] as string);
        return Reflect.apply(value, target, args) as unknown;
      };
    },
  });
}

/** An object that remembers which of its methods were called. */
function watched<T extends object>(object: T, called: Set<string>): T {
  return new Proxy(object, {
    get: (target, name) => {
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]): unknown => {
        called.add(String(name));
        return Reflect.apply(value, target, args) as unknown;
      };
    },
  });
}

/** What a store does for itself and its subclass: asked through the public functions. */
const PROTECTED = ['sql', 'append', 'applyHistory', 'copyState', 'putCheckpoint', 'putState'];

function methodsOf(type: { readonly prototype: object }): string[] {
  const names: string[] = [];
  for (let proto: object = type.prototype; proto !== Object.prototype; proto = Object.getPrototypeOf(proto) as object) {
    names.push(
      ...Object.getOwnPropertyNames(proto).filter((name) => name !== 'constructor' && !PROTECTED.includes(name)),
    );
  }
  return names;
}

const response: ModelResponse = {
  id: 'answer',
  modelCallId: 'call',
  modelId: 'model',
  message: { role: 'assistant', content: 'text' },
  finishReason: 'stop',
  usage: NO_USAGE,
};
const position = firstPosition('agent');
const toolCall: ToolCallRecord = {
  toolCallId: 'tool-call',
  turn: 1,
  index: 0,
  name: 'tool',
  arguments: {},
  idempotencyKey: 'key',
  onCrash: 'unknown',
  state: 'pending',
};
const checkpoint: Checkpoint = {
  position: { ...position, at: 'tools' },
  turnCount: 1,
  instructions: 'instructions',
  state: [
    { key: 'kept', json: '1' },
    { key: 'dropped', json: undefined },
  ],
  history: {
    mode: 'append',
    items: [response, { role: 'user', content: 'text' }],
    dropEphemeral: true,
  },
  responses: [response],
  usage: NO_USAGE,
  toolCalls: [toolCall],
  unknownToolCalls: [],
  turnEnd: true,
  settles: true,
};

function newRun(id: string, more: Partial<NewRun> = {}): NewRun {
  return {
    id,
    owner: 'owner',
    agent: 'agent',
    agentVersion: 1,
    request: { input: 'hello', metadata: { team: 'a' }, values: {}, limits: {}, shims: {} },
    instructions: 'instructions',
    items: [{ role: 'user', content: 'hello' }],
    position,
    usage: NO_USAGE,
    lines: ['"type":"run.created"}'],
    nowMs: 1,
    ...more,
  };
}

let database: Database;
let reader: Database;
const statements = new Set<string>();
const called = {
  store: new Set<string>(),
  runs: new Set<string>(),
  events: new Set<string>(),
  agents: new Set<string>(),
};

/** Asks everything that the store can be asked, so that every statement of it is prepared. */
beforeAll(async () => {
  const folder = temporaryFolder('plans-');
  database = openDatabase(folder, 'normal');
  reader = openReader(folder);
  const store = watched(new RunStore(recording(database, statements)), called.store);
  const runs = watched(new RunReader(recording(reader, statements)), called.runs);
  const events = watched(new EventReader(recording(reader, statements)), called.events);
  const agents = watched(new AgentStore(recording(database, statements)), called.agents);
  askStore(store);
  await askReaders(runs, events);
  askAgents(agents);
});

afterAll(() => {
  reader.close();
  database.close();
});

function askStore(store: RunStore): void {
  const n = store.create(newRun('run', { idempotency: { key: 'key', bodyHash: 'hash' } }));
  store.create(newRun('child', { parent: { runId: 'run', toolCallId: 'call', depth: 1 } }));
  store.find('run');
  store.findByKey('owner', 'key');
  store.findChild('run', 'call');
  store.descendants('run');
  store.unfinishedChildren('run');
  store.unfinished();
  store.transition(n, 'running', 2);
  const { epoch } = store.takeLease(n, 2);
  const { lastSeq: seq } = store.appendEvents(n, epoch, ['"type":"run.started"}'], 3);
  store.appendMirrored(n, ['"type":"turn.started"}'], 3);
  store.addEvents(n, ['"type":"turn.completed"}'], 3);
  store.applyCheckpoint(n, checkpoint, { seq, nowMs: 3, responseIds: new Set() });
  store.keep(store.load(n));
  store.load(n);
  store.applyCheckpoint(
    n,
    {
      ...checkpoint,
      position,
      history: { mode: 'replace', items: [], dropEphemeral: false },
      unknownToolCalls: [{ toolCallId: 'a', tool: 'tool', arguments: {}, startedAt: '', idempotencyKey: '' }],
    },
    { seq, nowMs: 3, responseIds: new Set() },
  );
  store.putCall(n, toolCall);
  store.calls(n);
  store.dropCalls(n);
  store.touch(n, 4);
  store.lastFrames(n, 5);
  store.appendItems(n, ['more']);
  store.dropEphemeral(n);
  store.putPosition(n, position);
  store.markCheckpoint(n, seq, 4, position);
  store.checkpointAt(n, 1);
  const last = store.checkpointAt(n, undefined);
  if (last === undefined) throw new Error('the run has no checkpoint');
  store.endsOpen(n, last);
  const row = store.find('run');
  if (row === undefined) throw new Error('the run is not there');
  store.create(newRun('fork', { forkedFrom: { run: row, checkpoint: last } }));
  store.isOver('run');
  store.standing('run');
  store.isCancelling(n);
  store.releaseLease(n, epoch);
  store.acquit(n, 1);
  store.raiseAttempt(n);
  store.raiseRecoveries(n);
  store.putUsage(n, NO_USAGE);
  store.request(n);
  store.position(n);
  store.doc(n, 'request');
  store.putDoc(n, 'partial', 'null');
  store.putDoc(n, 'partial', undefined);
  store.addEvents(n, ['"type":"custom.x"}'], 4);
  store.applyEnd(n, { status: 'completed', output: 'done', finishReason: 'stop' }, { seq: 100, attempt: 2, nowMs: 5 });
  store.putEndDocs(n, { status: 'completed', output: 'done', finishReason: 'stop' });
  store.endedUpTo({ finishedAt: 10, n }, 5, true);
  store.endedUpTo({ finishedAt: 10, n }, 5, false);
  store.newestEndBeyond(1);
  store.pruneEvents(n);
}

/** Every set of filters that a list can have. */
function queries(): RunQuery[] {
  const filters: Partial<RunQuery>[] = [
    { agent: 'agent' },
    { status: 'completed' },
    { metadata: { team: 'a', user: 'b' } },
    { createdAfterMs: 0 },
    { createdBeforeMs: 10 },
    { parent: 'run' },
    { before: 100 },
  ];
  return Array.from({ length: 2 ** filters.length }, (_, bits) =>
    filters
      .filter((_filter, index) => (bits & (1 << index)) !== 0)
      .reduce<RunQuery>((query, filter) => ({ ...query, ...filter }), { owner: 'owner', metadata: {}, limit: 10 }),
  );
}

async function askReaders(runs: RunReader, events: EventReader): Promise<void> {
  const row = runs.row('run', 'owner');
  if (row === undefined) throw new Error('the run is not there');
  expect((await runs.polled('run', 'owner'))?.version).toBe(row.version);
  runs.run(row);
  runs.checkpoints(row.n, 0, 10);
  runs.countByStatus();
  runs.stillestAt();
  for (const query of queries()) runs.list(query);
  events.page('run', 0, 1000);
  for (const { lastSeq } of events.newest('run')) if (lastSeq < 0) throw new Error('no seq is negative');
}

function askAgents(agents: AgentStore): void {
  const descriptor = { name: 'agent', model: 'scripted/demo' } as Parameters<AgentStore['save']>[0];
  agents.save(descriptor, 'api', 1);
  agents.current('agent');
  agents.version('agent', 1);
  agents.list();
  agents.remove('agent');
}

/** How SQLite goes about every statement that was prepared. */
function plans(): Planned[] {
  return [...statements].map((sql) => ({
    sql,
    plan: (database.prepare(`EXPLAIN QUERY PLAN ${sql}`).all(...parametersOf(sql)) as { detail: string }[]).map(
      ({ detail }) => detail,
    ),
  }));
}

/** The plan does not depend on the values; there only must be enough of them. */
function parametersOf(sql: string): undefined[] {
  return Array.from<undefined>({ length: sql.split('?').length - 1 });
}

function growingTables(): string[] {
  const tables = database.prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'");
  return tables.pluck().all() as string[];
}

/** `SCAN runs`, and `SCAN runs USING INDEX x`, which reads it from end to end all the same. */
function scansOf(plan: readonly string[]): string[] {
  const tables = growingTables();
  return plan.filter((step) => {
    const table = /^SCAN (\w+)/.exec(step)?.[1];
    if (table === undefined || !tables.includes(table)) return false;
    const index = /USING (?:COVERING )?INDEX (\w+)/.exec(step)?.[1];
    return index === undefined || !SMALL_INDEXES.includes(index);
  });
}

describe('the plans of all queries', () => {
  it('are asked of every public function of the store', () => {
    const purged = watched(new RunStore(recording(database, statements)), called.store);
    const fork = purged.find('fork');
    if (fork === undefined) throw new Error('the fork is not there');
    purged.purge(fork.n);
    expect([...called.store].sort()).toEqual(methodsOf(RunStore).sort());
    expect([...called.runs].sort()).toEqual(methodsOf(RunReader).sort());
    expect([...called.events].sort()).toEqual(methodsOf(EventReader).sort());
    expect([...called.agents].sort()).toEqual(methodsOf(AgentStore).sort());
  });

  it('see a scan where there is one', () => {
    const plan = database.prepare('EXPLAIN QUERY PLAN SELECT * FROM runs WHERE turn_count = 1').all() as {
      detail: string;
    }[];
    expect(scansOf(plan.map(({ detail }) => detail))).toEqual(['SCAN runs']);
  });

  it('scan no table that grows', () => {
    expect(plans().flatMap(({ sql, plan }) => scansOf(plan).map((step) => ({ sql, step })))).toEqual([]);
  });

  it('sort no page of runs: the order is that of an index', () => {
    const lists = plans().filter(({ sql }) => sql.startsWith('SELECT runs.* FROM runs WHERE'));
    expect(lists).toHaveLength(queries().length);
    expect(lists.filter(({ plan }) => plan.some((step) => step.includes('TEMP B-TREE FOR ORDER BY')))).toEqual([]);
  });
});
