/**
 * The schema, as ordered steps; `PRAGMA user_version` counts how many were applied. Steps are never edited once released, only added.
 *
 * Bodies go into append-only rowid tables with a small index: appending in rowid order is several times cheaper than a table
 * clustered by run, and a turn then costs what it adds, not what the conversation weighs.
 */
export const MIGRATIONS: readonly string[] = [
  `
  CREATE TABLE runs (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    agent TEXT NOT NULL,
    agent_version INTEGER NOT NULL,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 1,
    recoveries INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 1,
    epoch INTEGER NOT NULL DEFAULT 0,
    settled INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    last_seq INTEGER NOT NULL,
    oldest_seq INTEGER NOT NULL DEFAULT 1,
    turn_count INTEGER NOT NULL DEFAULT 0,
    history_gen INTEGER NOT NULL DEFAULT 0,
    history_length INTEGER NOT NULL,
    history_n INTEGER NOT NULL DEFAULT 0,
    state_n INTEGER NOT NULL DEFAULT 0,
    response_n INTEGER NOT NULL DEFAULT 0,
    response_count INTEGER NOT NULL DEFAULT 0,
    finish_reason TEXT,
    usage TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    updated_at INTEGER NOT NULL,
    finished_at INTEGER,
    parent TEXT,
    parent_call TEXT,
    depth INTEGER NOT NULL DEFAULT 0,
    forked_from TEXT,
    forked_turn INTEGER
  );
  CREATE INDEX runs_by_owner ON runs (owner, n);
  CREATE INDEX runs_by_agent ON runs (owner, agent, n);
  CREATE INDEX runs_by_status ON runs (owner, status, n);
  CREATE INDEX runs_by_parent ON runs (parent, n) WHERE parent IS NOT NULL;
  CREATE UNIQUE INDEX runs_by_call ON runs (parent, parent_call) WHERE parent_call IS NOT NULL;
  CREATE INDEX runs_unfinished ON runs (status) WHERE status IN ('queued', 'running', 'cancelling', 'waiting');
  CREATE INDEX runs_by_end ON runs (finished_at) WHERE finished_at IS NOT NULL;
  CREATE INDEX runs_with_events ON runs (finished_at) WHERE finished_at IS NOT NULL AND oldest_seq < last_seq;

  CREATE TABLE run_docs (
    run INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run, kind)
  ) WITHOUT ROWID;

  CREATE TABLE run_metadata (
    k TEXT NOT NULL,
    v TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (k, v, run)
  ) WITHOUT ROWID;
  CREATE INDEX run_metadata_by_run ON run_metadata (run);

  CREATE TABLE events (
    n INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    body TEXT NOT NULL
  );
  CREATE UNIQUE INDEX events_by_run ON events (run, last_seq);

  CREATE TABLE endings (
    run INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (run, attempt)
  ) WITHOUT ROWID;

  CREATE TABLE history (
    n INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    gen INTEGER NOT NULL,
    kind TEXT NOT NULL,
    ephemeral INTEGER NOT NULL,
    gone INTEGER NOT NULL DEFAULT 0,
    body TEXT NOT NULL
  );
  CREATE INDEX history_by_run ON history (run, gen, n);
  CREATE INDEX history_ephemeral ON history (run, gen) WHERE ephemeral = 1 AND gone = 0;

  CREATE TABLE responses (
    n INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    body TEXT NOT NULL
  );
  CREATE INDEX responses_by_run ON responses (run, n);

  CREATE TABLE state_values (
    n INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    body TEXT
  );
  CREATE INDEX state_by_run ON state_values (run, name, n);

  CREATE TABLE state_now (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run, name)
  ) WITHOUT ROWID;

  CREATE TABLE checkpoints (
    n INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    at INTEGER NOT NULL,
    turn_count INTEGER NOT NULL,
    turn_end INTEGER NOT NULL,
    history_gen INTEGER NOT NULL,
    history_n INTEGER NOT NULL,
    history_length INTEGER NOT NULL,
    state_n INTEGER NOT NULL,
    response_n INTEGER NOT NULL,
    agent TEXT NOT NULL,
    seen_agents TEXT NOT NULL
  );
  CREATE INDEX checkpoints_by_run ON checkpoints (run, n);

  CREATE TABLE tool_calls (
    n INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    tool_call_id TEXT NOT NULL,
    idx INTEGER NOT NULL,
    body TEXT NOT NULL
  );
  CREATE UNIQUE INDEX tool_calls_by_run ON tool_calls (run, tool_call_id);

  CREATE TABLE idempotency (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    run INTEGER NOT NULL,
    body_hash TEXT NOT NULL,
    PRIMARY KEY (owner, key)
  ) WITHOUT ROWID;
  CREATE INDEX idempotency_by_run ON idempotency (run);

  CREATE TABLE agents (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    descriptor TEXT NOT NULL,
    source TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    current INTEGER NOT NULL,
    PRIMARY KEY (name, version)
  ) WITHOUT ROWID;
  CREATE INDEX agents_current ON agents (name) WHERE current = 1;
  `,
  // Events as they are sent (see agent/event-frames.ts) instead of lines of JSON.
  `
  ALTER TABLE events RENAME COLUMN body TO frames;
  UPDATE events SET frames = (
    SELECT group_concat(
      'id: ' || (value ->> 'seq') || char(10) || 'event: ' || (value ->> 'type') || char(10) || 'data: ' || value || char(10, 10), ''
      ORDER BY key
    )
    FROM json_each('[' || replace(events.frames, char(10), ',') || ']')
  );
  `,
];
