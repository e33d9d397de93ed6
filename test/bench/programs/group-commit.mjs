// Commits of many runs at once, by the main thread or by a worker thread that gets everything over a port. A run writes a step,
// waits for its commit, computes for a moment, and writes the next one; the rows are those of a step of a real run.
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { isMainThread, parentPort, receiveMessageOnPort, Worker, workerData } from 'node:worker_threads';
import Database from 'better-sqlite3';
import { onCommands, options, tell } from './parent.mjs';

const EVENTS = JSON.stringify({ type: 'model.completed', text: 'x'.repeat(640) });
const HISTORY = JSON.stringify({ role: 'assistant', content: 'word '.repeat(20) });
const POSITION = JSON.stringify({ at: 'turn', agents: ['bench'], seenAgents: ['bench'], turn: 1 });

/** The writes of a step. */
class Store {
  #database;
  #statements;

  constructor({ file, sync }) {
    const database = new Database(file);
    database.pragma('journal_mode = WAL');
    database.pragma(`synchronous = ${sync}`);
    database.exec(`
      CREATE TABLE IF NOT EXISTS run (n INTEGER PRIMARY KEY, seq INTEGER NOT NULL, status TEXT NOT NULL, at INTEGER NOT NULL);
      CREATE TABLE IF NOT EXISTS doc (run INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, kind)) WITHOUT ROWID;
      CREATE TABLE IF NOT EXISTS event (n INTEGER PRIMARY KEY, run INTEGER NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL);
      CREATE UNIQUE INDEX IF NOT EXISTS event_by_run ON event (run, seq);
      CREATE TABLE IF NOT EXISTS history (n INTEGER PRIMARY KEY, run INTEGER NOT NULL, body TEXT NOT NULL);
      CREATE INDEX IF NOT EXISTS history_by_run ON history (run, n);`);
    this.#database = database;
    this.#statements = {
      make: database.prepare("INSERT INTO run (seq, status, at) VALUES (0, 'running', ?) RETURNING n").pluck(),
      raise: database.prepare('UPDATE run SET seq = seq + 1, at = ? WHERE n = ? RETURNING seq').pluck(),
      event: database.prepare('INSERT INTO event (run, seq, body) VALUES (?, ?, ?)'),
      history: database.prepare('INSERT INTO history (run, body) VALUES (?, ?)'),
      doc: database.prepare('INSERT INTO doc VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET body = excluded.body'),
    };
  }

  make() {
    return this.#statements.make.get(Date.now());
  }

  commit(steps) {
    const { raise, event, history, doc } = this.#statements;
    this.#database.exec('BEGIN IMMEDIATE');
    for (const step of steps) {
      const seq = raise.get(Date.now(), step.run);
      event.run(step.run, seq, step.events);
      history.run(step.run, step.history);
      doc.run(step.run, 'position', step.position);
    }
    this.#database.exec('COMMIT');
  }
}

/** Groups what became due in one turn of the event loop, and writes it here. */
class MainWriter {
  #store;
  #due = [];
  commits = 0;

  constructor(store) {
    this.#store = store;
  }

  async write(step) {
    return new Promise((resolve) => {
      if (this.#due.length === 0) setImmediate(() => this.#flush());
      this.#due.push({ step, resolve });
    });
  }

  #flush() {
    const group = this.#due;
    this.#due = [];
    this.#store.commit(group.map(({ step }) => step));
    this.commits += 1;
    for (const { resolve } of group) resolve();
  }
}

/** Groups in the same way, and again in the worker, which takes everything that has come when it begins a transaction. */
class WorkerWriter {
  #worker;
  #due = [];
  #sent = [];
  commits = 0;

  constructor(worker) {
    this.#worker = worker;
    worker.on('message', (count) => {
      this.commits += 1;
      for (const resolve of this.#sent.splice(0, count)) resolve();
    });
  }

  async write(step) {
    return new Promise((resolve) => {
      if (this.#due.length === 0) setImmediate(() => this.#send());
      this.#due.push(step);
      this.#sent.push(resolve);
    });
  }

  #send() {
    this.#worker.postMessage(this.#due);
    this.#due = [];
  }
}

/** What a run computes between two steps, in microseconds. */
function compute(microseconds) {
  const until = performance.now() + microseconds / 1000;
  while (performance.now() < until);
}

async function measure({ writer, runs, ms, workUs }) {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  const latencies = [];
  const commitsBefore = writer.commits;
  const cpuBefore = process.cpuUsage();
  const startedAt = performance.now();
  delay.enable();
  let steps = 0;
  await Promise.all(
    runs.map(async (run) => {
      while (performance.now() - startedAt < ms) {
        const at = performance.now();
        // Each step has texts of its own, as those of a real run.
        await writer.write({
          run,
          events: EVENTS.slice(0, -2) + steps,
          history: HISTORY + steps,
          position: POSITION + steps,
        });
        latencies.push(performance.now() - at);
        steps += 1;
        if (workUs > 0) compute(workUs);
      }
    }),
  );
  delay.disable();
  const seconds = (performance.now() - startedAt) / 1000;
  const { user, system } = process.cpuUsage(cpuBefore);
  latencies.sort((a, b) => a - b);
  return {
    stepsPerSecond: steps / seconds,
    cpuUs: (user + system) / steps,
    stepMs: latencies[Math.floor(latencies.length * 0.99)],
    loopMs: delay.percentile(99) / 1e6,
    perCommit: steps / (writer.commits - commitsBefore),
  };
}

function serve() {
  const store = new Store(options);
  const worker = new Worker(new URL(import.meta.url), { workerData: options });
  const writers = { main: new MainWriter(store), worker: new WorkerWriter(worker) };
  onCommands({
    async measure({ by, concurrency, ms, workUs }) {
      const runs = Array.from({ length: concurrency }, () => store.make());
      return measure({ writer: writers[by], runs, ms, workUs });
    },
  });
  worker.once('online', () => tell({ url: '' }));
}

function work() {
  const store = new Store(workerData);
  parentPort.on('message', (first) => {
    const steps = first;
    for (let more = receiveMessageOnPort(parentPort); more !== undefined; more = receiveMessageOnPort(parentPort)) {
      steps.push(...more.message);
    }
    store.commit(steps);
    parentPort.postMessage(steps.length);
  });
}

if (isMainThread) serve();
else work();
