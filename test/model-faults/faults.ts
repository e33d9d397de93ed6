import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { runToEnd, WAIT } from '../server/lab.js';
import type { DialectName } from '../support/dialects.js';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { type JsonAnswer, ServerProcess } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';

/** One model id for each provider that the server can be pointed at the endpoint with, and what its answers look like. */
export const MODELS: readonly { readonly model: string; readonly dialect: DialectName }[] = [
  { model: 'openai-compatible/m', dialect: 'openai-chat' },
  { model: 'openai-chat/gpt-test', dialect: 'openai-chat' },
  { model: 'openai/gpt-test', dialect: 'openai-responses' },
  { model: 'anthropic/claude-sonnet-4-5', dialect: 'anthropic' },
];

/** The two that most trials are driven with. */
export const TWO_MODELS = MODELS.filter(
  ({ model }) => model.startsWith('openai-compatible/') || model.startsWith('anthropic/'),
);

export interface Faults {
  readonly server: ServerProcess;
  readonly model: ModelEndpoint;
  /** Saves the agent `agent` for a model, with the shim `faults`. */
  put(model: string, fields?: JsonObject): Promise<JsonAnswer>;
  /** Runs the saved agent (or the one that `fields` names) to the end of its attempt. */
  run(input: unknown, fields?: JsonObject): Promise<JsonObject>;
  resume(id: unknown, body: JsonObject): Promise<JsonObject>;
  /** Queues replies for the requests in which this is the last of such texts, so that trials can go on side by side; gives the text back. */
  script(input: string, ...replies: readonly Reply[]): string;
  close(): Promise<void>;
}

const PLAIN_SHIM = `
import { defineShim, defineTool, z } from 'shimline/shims';
export default defineShim({
  name: 'faults',
  prepareTurn(turn) {
    turn.addTools([
      defineTool({ name: 'echo', description: 'Gives back.', parameters: z.object({ x: z.number() }), execute: ({ x }) => ({ x }) }),
      defineTool({ name: 'other', description: 'Gives back.', parameters: z.looseObject({}), execute: (args) => args }),
    ]);
  },
});`;

export interface FaultsOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly contextLimitBytes?: number;
  /** The source of the shim `faults`, in place of one with the tools `echo` and `other`. */
  readonly shim?: string;
}

/** A server whose every provider is one strict endpoint. */
export async function startFaults(options: FaultsOptions = {}): Promise<Faults> {
  const { contextLimitBytes, env, shim = PLAIN_SHIM } = options;
  const model = await ModelEndpoint.start(contextLimitBytes === undefined ? {} : { contextLimitBytes });
  const shimsDir = temporaryFolder('shims-');
  writeFileSync(join(shimsDir, 'faults.mjs'), shim);
  const server = await ServerProcess.start({ env: { ...model.environment, ...env }, shimsDir });
  const queues = new Map<string, Reply[]>();
  model.respondWith((request) => {
    const where = (key: string): number =>
      Math.max(...['text', 'content'].map((field) => request.rawBody.lastIndexOf(`"${field}":${JSON.stringify(key)}`)));
    const [input] = [...queues.keys()].filter((key) => where(key) >= 0).sort((x, y) => where(y) - where(x));
    return queues.get(input ?? '')?.shift() ?? { text: `no reply is left for ${JSON.stringify(input)}` };
  });
  for (const { model: id } of MODELS) await save(server, agentFor(id), id);
  return {
    script: (input, ...replies) => {
      queues.set(input, [...(queues.get(input) ?? []), ...replies]);
      return input;
    },
    server,
    model,
    put: async (id, fields = {}) => save(server, 'agent', id, fields),
    run: async (input, fields = {}) => runToEnd({ server }, { agent: 'agent', input, ...fields }),
    resume: async (id, body) => {
      const answer = await server.json('POST', `/v1/runs/${String(id)}/resume`, body, WAIT);
      expect(answer.status, JSON.stringify(answer.body)).toBe(200);
      return answer.body;
    },
    close: async () => {
      await Promise.all([server.stop(), model.close()]);
    },
  };
}

/** The name of the agent that is there for each of the `MODELS`. */
export const agentFor = (model: string): string => model.replace(/\W/g, '-');

async function save(server: ServerProcess, name: string, model: string, fields: JsonObject = {}): Promise<JsonAnswer> {
  const body = { model, instructions: 'You are a test.', shims: [{ use: 'faults' }], ...fields };
  const answer = await server.json('PUT', `/v1/agents/${name}`, body);
  expect(answer.body, JSON.stringify(answer.body)).toMatchObject({ name });
  return answer;
}

/** The texts that a request holds, wherever they stand in it. */
export const wire = (body: JsonObject): string => JSON.stringify(body);
