// What the parts can do at most. `json`: a validated JSON POST (C1), with `file` also a transaction of two rows (C2);
// `stream`: events written to all open responses (C3); `replay`: rows of a table, in groups (C4), to whoever asks.
import { createServer } from 'node:http';
import Database from 'better-sqlite3';
import Fastify from 'fastify';
import { z } from 'zod';
import { listen, onCommands, options } from './parent.mjs';

/** How many rows are read, or written in one transaction, at once (C4). */
const GROUP = 100;

function openDatabase() {
  const database = new Database(options.file);
  database.pragma('journal_mode = WAL');
  database.pragma(`synchronous = ${options.sync ?? 'FULL'}`);
  database.exec('CREATE TABLE IF NOT EXISTS event (seq INTEGER PRIMARY KEY, json TEXT NOT NULL)');
  return database;
}

async function json() {
  const app = Fastify();
  app.setValidatorCompiler(({ schema }) => (value) => {
    const parsed = schema.safeParse(value);
    return parsed.success ? { value: parsed.data } : { error: parsed.error };
  });
  const body = z.object({
    agent: z.string(),
    input: z.string(),
    metadata: z.record(z.string(), z.string()).optional(),
  });
  const write = options.file === undefined ? () => undefined : twoRows();
  app.post('/', { schema: { body } }, async (request) => {
    const { agent, input, metadata = {} } = request.body;
    write(request.body);
    return { id: 'run', agent, status: 'queued', input, metadata, createdAt: new Date().toISOString() };
  });
  await app.ready();
  app.server.keepAliveTimeout = 600_000;
  listen(app.server);
}

function twoRows() {
  const database = openDatabase();
  const insert = database.prepare('INSERT INTO event (json) VALUES (?)');
  return database.transaction((value) => {
    insert.run(JSON.stringify(value));
    insert.run(JSON.stringify({ type: 'created', value }));
  });
}

/** Every response gets every event, as soon as there is one. */
function stream() {
  const readers = new Set();
  const server = createServer((request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('event: open\ndata: {}\n\n');
    readers.add(response);
    response.on('close', () => readers.delete(response));
  });
  onCommands({
    /** Writes `count` events, `gap` milliseconds apart where it can keep up, and ends the responses. */
    async emit({ count, gap }) {
      for (let seq = 1; seq <= count; seq += 1) {
        const text = eventText(seq);
        for (const response of readers) response.write(text);
        await new Promise((resolve) => (gap > 0 ? setTimeout(resolve, gap) : setImmediate(resolve)));
      }
      for (const response of readers) response.end();
    },
  });
  listen(server);
}

/** An event of the size that a delta has. */
function eventText(seq) {
  const at = new Date().toISOString();
  const data = { seq, type: 'model.delta', runId: '00000000-0000-4000-8000-000000000000', attempt: 1, at, turn: 1 };
  const delta = { modelCallId: '00000000-0000-4000-8000-000000000001', kind: 'text', text: 'word ' };
  return `id: ${seq}\nevent: model.delta\ndata: ${JSON.stringify({ ...data, ...delta })}\n\n`;
}

/** The rows of a table, in groups, as events. */
function replay() {
  const database = openDatabase();
  const page = database.prepare(`SELECT seq, json FROM event WHERE seq > ? ORDER BY seq LIMIT ${GROUP}`).raw();
  const server = createServer((request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    let cursor = 0;
    const write = () => {
      for (;;) {
        const rows = page.all(cursor);
        if (rows.length === 0) {
          response.end();
          return;
        }
        let text = '';
        for (const [seq, line] of rows) text += `id: ${seq}\nevent: custom.line\ndata: ${line}\n\n`;
        cursor = rows.at(-1)[0];
        if (!response.write(text)) {
          response.once('drain', write);
          return;
        }
      }
    };
    write();
  });
  onCommands({
    /** Puts lines into the table, in groups, and tells how many a second. */
    async fill({ lines, times }) {
      const insert = database.prepare('INSERT INTO event (json) VALUES (?)');
      const group = database.transaction((at) => {
        for (let index = at; index < at + GROUP; index += 1) insert.run(lines[index % lines.length]);
      });
      const startedAt = performance.now();
      for (let at = 0; at < times; at += GROUP) group(at);
      return { perSecond: (times / (performance.now() - startedAt)) * 1000 };
    },
  });
  listen(server);
}

const KINDS = { json, stream, replay };
await KINDS[options.kind]();
