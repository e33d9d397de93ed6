import type { Database } from 'better-sqlite3';
import { type AgentDescriptor, AgentDescriptorSchema } from '../agent/descriptor.js';

export interface StoredAgent {
  readonly descriptor: AgentDescriptor;
  readonly version: number;
  readonly source: 'api' | 'file' | 'builtin';
}

interface Row {
  readonly descriptor: string;
  readonly version: number;
  readonly source: StoredAgent['source'];
}

/** The agents in all their versions: runs keep the one that they started with, so none is ever changed. */
export class AgentStore {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  current(name: string): StoredAgent | undefined {
    return stored(
      this.#database.prepare('SELECT descriptor, version, source FROM agents WHERE name = ? AND current = 1').get(name),
    );
  }

  version(name: string, version: number): StoredAgent | undefined {
    return stored(
      this.#database
        .prepare('SELECT descriptor, version, source FROM agents WHERE name = ? AND version = ?')
        .get(name, version),
    );
  }

  list(): StoredAgent[] {
    return this.#database
      .prepare('SELECT descriptor, version, source FROM agents WHERE current = 1 ORDER BY name')
      .all()
      .flatMap((row) => stored(row) ?? []);
  }

  /** Saves a new version, unless the descriptor and its source are what they were. */
  save(
    descriptor: AgentDescriptor,
    source: StoredAgent['source'],
    nowMs: number,
  ): { readonly agent: StoredAgent; readonly created: boolean } {
    const { name } = descriptor;
    const body = JSON.stringify(descriptor);
    const current = this.#database
      .prepare('SELECT descriptor, version, source FROM agents WHERE name = ? AND current = 1')
      .get(name) as Row | undefined;
    if (current?.descriptor === body && current.source === source && source !== 'api')
      return { agent: { descriptor, version: current.version, source }, created: false };
    const last = this.#database.prepare('SELECT max(version) FROM agents WHERE name = ?').pluck().get(name) as
      | number
      | null;
    const version = (last ?? 0) + 1;
    this.#database.prepare('UPDATE agents SET current = 0 WHERE name = ?').run(name);
    this.#database
      .prepare('INSERT INTO agents (name, version, descriptor, source, created_at, current) VALUES (?, ?, ?, ?, ?, 1)')
      .run(name, version, body, source, nowMs);
    return { agent: { descriptor, version, source }, created: current === undefined };
  }

  /** Takes an agent out of use; runs that have it keep it. @returns false when there was none */
  remove(name: string): boolean {
    return this.#database.prepare('UPDATE agents SET current = 0 WHERE name = ? AND current = 1').run(name).changes > 0;
  }
}

function stored(row: unknown): StoredAgent | undefined {
  if (row === undefined) return undefined;
  const { descriptor, version, source } = row as Row;
  return { descriptor: AgentDescriptorSchema.parse(JSON.parse(descriptor)), version, source };
}
