import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { buildApp } from '../app.js';
import { parseConfig } from '../config.js';
import type { AgentRuntime } from '../runtime/agent-runtime.js';
import type { EventLog } from '../runtime/event-log.js';

/** Writes `openapi/openapi.json` from the routes' schemas; with `--check` it only compares, and fails when the file is not up to date. */
const file = fileURLToPath(new URL('../../openapi/openapi.json', import.meta.url));

/** Describing the routes must touch neither runtime nor database. */
const neverCalled: object = new Proxy(
  {},
  {
    get: (_target, name) => {
      throw new TypeError(`Describing the routes called ${String(name)}.`);
    },
  },
);

const app = await buildApp({
  config: parseConfig({}),
  runtime: neverCalled as AgentRuntime,
  eventLog: neverCalled as EventLog,
  runCounts: () => ({}),
});
await app.ready();
const document = `${JSON.stringify(app.swagger(), null, 2)}\n`;
await app.close();

if (!process.argv.includes('--check')) {
  writeFileSync(file, document);
} else if (readFileSync(file, 'utf8') !== document) {
  process.stderr.write('openapi/openapi.json is not what the routes say: run "npm run openapi".\n');
  process.exitCode = 1;
}
