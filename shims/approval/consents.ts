import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import Database from 'better-sqlite3';
import { z } from 'shimline/shims';

/** Whose decision it is: one agent's, under one API key (empty where the server has none), for one instance of the shim. */
export interface ConsentOwner {
  readonly dataDir: string;
  readonly shim: string;
  readonly agent: string;
  readonly key: string | null;
}

const rowSchema = z.object({ decision: z.enum(['approve', 'deny']), reason: z.string() });
export type Consent = z.output<typeof rowSchema>;

const FILE = 'approval.db';
/** One connection per file of this process. */
const open = new Map<string, Database.Database>();

/** What was decided for every run of the agent under this key; undefined where nothing was. */
export function findConsent(owner: ConsentOwner, grant: string): Consent | undefined {
  const file = join(owner.dataDir, FILE);
  // Nobody has decided anything for an agent yet: a question makes no file.
  if (!open.has(file) && !existsSync(file)) return undefined;
  const row = databaseAt(file)
    .prepare('SELECT decision, reason FROM consents WHERE shim = ? AND agent = ? AND key = ? AND call_grant = ?')
    .get(owner.shim, owner.agent, owner.key ?? '', grant);
  return row === undefined ? undefined : rowSchema.parse(row);
}

/** Keeps a decision beyond the conversation; a later one takes its place. */
export function keepConsent(owner: ConsentOwner, grant: string, tool: string, { decision, reason }: Consent): void {
  mkdirSync(owner.dataDir, { recursive: true });
  databaseAt(join(owner.dataDir, FILE))
    .prepare(
      `INSERT INTO consents (shim, agent, key, call_grant, tool, decision, reason, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
       ON CONFLICT DO UPDATE SET decision = excluded.decision, reason = excluded.reason, at = excluded.at`,
    )
    .run(owner.shim, owner.agent, owner.key ?? '', grant, tool, decision, reason, new Date().toISOString());
}

function databaseAt(file: string): Database.Database {
  const known = open.get(file);
  if (known !== undefined && existsSync(file)) return known;
  known?.close();
  const database = new Database(file, { timeout: 5000 });
  database.pragma('journal_mode = WAL');
  database.exec(
    `CREATE TABLE IF NOT EXISTS consents (
       shim TEXT NOT NULL, agent TEXT NOT NULL, key TEXT NOT NULL, call_grant TEXT NOT NULL,
       tool TEXT NOT NULL, decision TEXT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL,
       PRIMARY KEY (shim, agent, key, call_grant))`,
  );
  open.set(file, database);
  return database;
}
