import { isDeepStrictEqual } from 'node:util';
import { openReader } from '../../src/store/database.js';
import { RunStore } from '../../src/store/run-store.js';
import { isObject } from '../support/json-path.js';
import { persistently, type Stage } from './stage.js';

/** The keys that the start of an attempt writes: nobody outside sees the moment before. */
const OF_THE_START: readonly string[] = ['reference:marker', 'reference:starts'];

/**
 * Starts the server, which has just ended, again, and holds its runs at their first step outwards.
 * @returns how the state of a run's shim differs from what the last process had left in the file
 */
export async function restartAndCompare(stage: Stage, runId: string): Promise<string[]> {
  const left = stateInFile(stage.server.dataDir, runId);
  const release = stage.holdEverything();
  try {
    await stage.server.restart();
    const { body } = await persistently(stage, 'GET', `/v1/runs/${runId}/state`);
    const found = isObject(body.shimState) ? body.shimState : {};
    const begun = Object.keys(left).length === 0 && Object.keys(found).every((key) => OF_THE_START.includes(key));
    return begun || isDeepStrictEqual(found, left)
      ? []
      : [`12: after the recovery the shim's state is ${JSON.stringify(found)}, before it was ${JSON.stringify(left)}`];
  } finally {
    release();
  }
}

/** What is on disk while no server has the file. */
function stateInFile(dataDir: string, runId: string): Record<string, unknown> {
  const database = openReader(dataDir);
  try {
    const store = new RunStore(database);
    const row = store.find(runId);
    if (row === undefined) return {};
    return Object.fromEntries([...store.load(row.n).state].map(([key, json]) => [key, JSON.parse(json) as unknown]));
  } finally {
    database.close();
  }
}
