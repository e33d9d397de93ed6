import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import SQLite from 'better-sqlite3';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { eventsOf, framed, lastTypeOf } from '../../src/agent/event-frames.js';
import { openDatabase, openReader } from '../../src/store/database.js';
import { EventReader } from '../../src/store/event-reader.js';
import { MIGRATIONS } from '../../src/store/migrations.js';
import { RunStore } from '../../src/store/run-store.js';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'event-log-'));
});
afterEach(() => {
  rmSync(folder, { recursive: true, force: true });
});

/** Texts that a careless cut or a careless join would break. */
const TEXTS = [
  'plain',
  'two\n\nlines',
  'data: {"seq":1}\n\nid: 9\n',
  '\u2028{"seq":7,"type":"x"',
  '…日本語🙂',
  'x'.repeat(9000),
];
const line = (type: string, text = ''): string => JSON.stringify({ type, runId: 'run', text }).slice(1);
const json = (lines: readonly string[], firstSeq: number): string[] =>
  lines.map((each, index) => `{"seq":${firstSeq + index},${each}`);

/** A log of three rows, the first of which ends an attempt. */
const rows = [
  [...TEXTS.map((text) => line('model.delta', text)), line('run.waiting')],
  [line('run.resumed'), ...TEXTS.map((text) => line('model.delta', text))],
  [line('run.completed', 'over')],
];

function write(insert: (firstSeq: number, lastSeq: number, lines: readonly string[]) => void): string[] {
  let seq = 1;
  return rows.flatMap((lines) => {
    insert(seq, seq + lines.length - 1, lines);
    const all = json(lines, seq);
    seq += lines.length;
    return all;
  });
}

function reader(): { readonly log: EventReader; readonly all: readonly string[]; readonly close: () => void } {
  const database = openDatabase(folder, 'normal');
  insertRun(database);
  const insert = database.prepare('INSERT INTO events (run, first_seq, last_seq, frames) VALUES (1, ?, ?, ?)');
  const all = write((firstSeq, lastSeq, lines) => insert.run(firstSeq, lastSeq, framed(lines, lastSeq).frames));
  const reading = openReader(folder);
  return {
    log: new EventReader(reading),
    all,
    close: () => {
      reading.close();
      database.close();
    },
  };
}

function insertRun(database: SQLite.Database): void {
  database.exec(
    "INSERT INTO runs (n, id, owner, agent, agent_version, status, last_seq, history_length, usage, created_at, updated_at) VALUES (1, 'run', '', 'a', 1, 'completed', 14, 0, '{}', 1, 1)",
  );
}

it.each([1, 40, 200, 8000, 9200, 1_000_000])('pages of %i bytes give every event once, from any cursor', (maxBytes) => {
  const { log, all, close } = reader();
  for (let after = 0; after <= all.length; after += 1) {
    const got: string[] = [];
    let cursor = after;
    for (let page = log.page('run', cursor, maxBytes); page !== undefined; page = log.page('run', cursor, maxBytes)) {
      const frames = page.frames.toString();
      const events = eventsOf(frames);
      expect([page.firstSeq, page.lastSeq - page.firstSeq + 1]).toEqual([cursor + 1, events.length]);
      expect([page.lastType, lastTypeOf(frames)]).toEqual([events.at(-1)!.type, events.at(-1)!.type]);
      if (events.length > 1) expect(page.frames.length).toBeLessThanOrEqual(maxBytes);
      // What ends an attempt is the last of its page.
      expect(events.slice(0, -1).map(({ type }) => type)).not.toContain('run.waiting');
      got.push(...events.map((event) => event.json));
      cursor = page.lastSeq;
    }
    expect(got).toEqual(all.slice(after));
  }
  close();
});

it('what is committed together is in rows that a reader can take one by one', () => {
  const database = openDatabase(folder, 'normal');
  insertRun(database);
  const lines = Array.from({ length: 300 }, (_, index) =>
    line('tool.progress', 'é'.repeat(index % 50 === 0 ? 200_000 : 5000)),
  );
  const batch = new RunStore(database).addEvents(1, lines, 1);
  const sizes = database.prepare('SELECT length(frames) FROM events').pluck().all() as number[];
  expect(sizes.length).toBeGreaterThan(10);
  expect(Math.max(...sizes)).toBeLessThan(200_000 + 131_072 + 6000);
  const reading = openReader(folder);
  const log = new EventReader(reading);
  const got: string[] = [];
  for (let page = log.page('run', 14, 262_144); page !== undefined; page = log.page('run', page.lastSeq, 262_144))
    got.push(page.frames.toString());
  expect(got.join('')).toBe(batch.frames);
  expect([batch.firstSeq, batch.lastSeq]).toEqual([15, 314]);
  reading.close();
  database.close();
});

it('a log that was written as lines of JSON is brought into the present form', () => {
  const old = new SQLite(join(folder, 'shimline.db'));
  old.exec(MIGRATIONS[0]!);
  old.pragma('user_version = 1');
  insertRun(old);
  const insert = old.prepare('INSERT INTO events (run, first_seq, last_seq, body) VALUES (1, ?, ?, ?)');
  const all = write((firstSeq, lastSeq, lines) => insert.run(firstSeq, lastSeq, json(lines, firstSeq).join('\n')));
  old.close();
  const database = openDatabase(folder, 'normal');
  const frames = database.prepare('SELECT frames FROM events ORDER BY n').pluck().all() as string[];
  expect(frames.flatMap(eventsOf).map((event) => event.json)).toEqual(all);
  expect(frames).toEqual(rows.map((lines, index) => framed(lines, [7, 14, 15][index]!).frames));
  database.close();
});
