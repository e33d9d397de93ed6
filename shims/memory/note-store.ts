import { createHash } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import SQLite, { type Database } from 'better-sqlite3';
import type { JsonValue } from 'shimline/shims';

export interface Note {
  readonly id: number;
  readonly text: string;
  readonly savedAt: string;
}

/** Whose notes: nobody else's are ever read or changed. */
export interface NoteScope {
  /** The shim's name in the agent, so that two memories are two. */
  readonly memory: string;
  readonly agent: string;
  readonly key: string | null;
  readonly metadata: Readonly<Record<string, string>>;
}

/** The scope has as many notes as it may have. */
export class MemoryFullError extends Error {
  constructor(most: number) {
    super(`The memory is full: it holds ${most} notes. Forget some first.`);
    this.name = 'MemoryFullError';
  }
}

const SCHEMA = `
CREATE TABLE IF NOT EXISTS scopes (hash TEXT PRIMARY KEY, scope TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, scope TEXT NOT NULL REFERENCES scopes (hash), text TEXT NOT NULL, saved_at TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS notes_of_scope ON notes (scope, id);
CREATE VIRTUAL TABLE IF NOT EXISTS note_words USING fts5 (
  scope, text, content = 'notes', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2');
CREATE TRIGGER IF NOT EXISTS note_added AFTER INSERT ON notes BEGIN
  INSERT INTO note_words (rowid, scope, text) VALUES (new.id, new.scope, new.text); END;
CREATE TRIGGER IF NOT EXISTS note_gone AFTER DELETE ON notes BEGIN
  INSERT INTO note_words (note_words, rowid, scope, text) VALUES ('delete', old.id, old.scope, old.text); END;
CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, result TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_by_age ON calls (at);
PRAGMA user_version = 1;`;

const VERSION = 1;
const BUSY_TIMEOUT_MS = 5000;
/** How long it is known what a call came to; a run that is recovered later than this is none. */
const CALLS_KEPT_MS = 30 * 24 * 3_600_000;

/** The notes of a data folder, in a file of their own. */
export class NoteStore {
  readonly #database: Database;

  /** @throws SqliteError; Error for a file of a newer version */
  constructor(dataDir: string) {
    const folder = join(dataDir, 'memory');
    mkdirSync(folder, { recursive: true });
    this.#database = new SQLite(join(folder, 'notes.db'), { timeout: BUSY_TIMEOUT_MS });
    try {
      const version = Number(this.#database.pragma('user_version', { simple: true }));
      if (version > VERSION) throw new Error(`The notes have version ${version}; this code knows up to ${VERSION}.`);
      this.#database.pragma('journal_mode = WAL');
      this.#database.pragma('synchronous = FULL');
      this.#database.transaction(() => this.#database.exec(SCHEMA)).immediate();
    } catch (error) {
      this.#database.close();
      throw error;
    }
  }

  /**
   * Saves a note, once for a key and once for a text.
   * @throws MemoryFullError
   */
  save(scope: NoteScope, text: string, call: { readonly key: string; readonly most: number }): { readonly id: number } {
    return this.#once(scope, call.key, () => {
      const hash = this.#register(scope);
      const same = this.#all<{ id: number }>('SELECT id FROM notes WHERE scope = ? AND text = ?', hash, text)[0];
      if (same !== undefined) return { id: same.id };
      const [{ count } = { count: 0 }] = this.#all<{ count: number }>(
        'SELECT count(*) AS count FROM notes WHERE scope = ?',
        hash,
      );
      if (count >= call.most) throw new MemoryFullError(call.most);
      const { lastInsertRowid } = this.#database
        .prepare('INSERT INTO notes (scope, text, saved_at) VALUES (?, ?, ?)')
        .run(hash, text, new Date().toISOString());
      return { id: Number(lastInsertRowid) };
    });
  }

  /** Whether there was such a note in the scope. */
  forget(scope: NoteScope, id: number, call: { readonly key: string }): boolean {
    return this.#once(scope, call.key, () => {
      const { changes } = this.#database.prepare('DELETE FROM notes WHERE scope = ? AND id = ?').run(hashOf(scope), id);
      return changes > 0;
    });
  }

  /** The notes of the scope that have a word of a text, the best first. Any text will do. */
  search(scope: NoteScope, text: string, most: number): readonly Note[] {
    const words = wordsOf(text);
    if (words.length === 0) return [];
    const query = `scope : "${hashOf(scope)}" AND text : (${words.map(quoted).join(' OR ')})`;
    return this.#all<Note>(
      `SELECT notes.id, notes.text, notes.saved_at AS savedAt FROM note_words JOIN notes ON notes.id = note_words.rowid
       WHERE note_words MATCH ? AND notes.scope = ? ORDER BY bm25(note_words, 0.0, 1.0), notes.id DESC LIMIT ?`,
      query,
      hashOf(scope),
      most,
    );
  }

  /** The newest notes of the scope, the newest first. */
  newest(scope: NoteScope, most: number): readonly Note[] {
    return this.#all<Note>(
      'SELECT id, text, saved_at AS savedAt FROM notes WHERE scope = ? ORDER BY id DESC LIMIT ?',
      hashOf(scope),
      most,
    );
  }

  close(): void {
    this.#database.close();
  }

  /** What the call came to, if it was made before: a crash may have come between it and the run's own record of it. */
  #once<T extends JsonValue | { readonly id: number }>(scope: NoteScope, call: string, run: () => T): T {
    const key = `${hashOf(scope)}:${call}`;
    return this.#database
      .transaction((): T => {
        const known = this.#all<{ result: string }>('SELECT result FROM calls WHERE key = ?', key)[0];
        if (known !== undefined) return JSON.parse(known.result) as T;
        const result = run();
        const now = Date.now();
        this.#database.prepare('DELETE FROM calls WHERE at < ?').run(now - CALLS_KEPT_MS);
        this.#database
          .prepare('INSERT INTO calls (key, result, at) VALUES (?, ?, ?)')
          .run(key, JSON.stringify(result), now);
        return result;
      })
      .immediate();
  }

  #register(scope: NoteScope): string {
    const hash = hashOf(scope);
    this.#database
      .prepare('INSERT INTO scopes (hash, scope) VALUES (?, ?) ON CONFLICT DO NOTHING')
      .run(hash, told(scope));
    return hash;
  }

  #all<T>(sql: string, ...values: readonly (string | number)[]): T[] {
    return this.#database.prepare(sql).all(...values) as T[];
  }
}

/** The scope in words, the same for the same one. */
function told({ memory, agent, key, metadata }: NoteScope): string {
  const sorted = Object.fromEntries(Object.entries(metadata).sort(([a], [b]) => (a < b ? -1 : 1)));
  return JSON.stringify({ memory, agent, key, metadata: sorted });
}

function hashOf(scope: NoteScope): string {
  return createHash('sha256').update(told(scope)).digest('hex');
}

const MOST_WORDS = 48;

/** The words of a text, as the index has them: nothing else of it gets into a query. */
function wordsOf(text: string): readonly string[] {
  return [...new Set(text.toLowerCase().match(/[\p{L}\p{N}]+/gu))].slice(-MOST_WORDS);
}

/** A longer word stands for those that begin with it, too. */
function quoted(word: string): string {
  return word.length < 4 ? `"${word}"` : `"${word}"*`;
}

const open = new Map<string, { readonly store: NoteStore; users: number }>();

/** The store of a folder, shared by all that use it at the same time; give it back with `release`. */
export function acquireStore(dataDir: string): { readonly store: NoteStore; readonly release: () => void } {
  const entry = open.get(dataDir) ?? { store: new NoteStore(dataDir), users: 0 };
  entry.users += 1;
  open.set(dataDir, entry);
  let held = true;
  const release = (): void => {
    if (!held) return;
    held = false;
    entry.users -= 1;
    if (entry.users > 0) return;
    open.delete(dataDir);
    entry.store.close();
  };
  return { store: entry.store, release };
}
