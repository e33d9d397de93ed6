import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { Ledger } from '../support/ledger.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import type { Reply, ReplyToolCall } from '../support/model-reply.js';
import { type JsonAnswer, type ServerOptions, ServerProcess } from '../support/server-process.js';
import { type OpenOptions, openStream, type SseStream } from '../support/sse-client.js';
import { temporaryFolder } from '../support/wait.js';

/** The two dialects that the trials are driven in; both endpoints refuse an invalid history as the real ones do. */
export const DIALECTS = [
  { agent: 'chat', dialect: 'openai-chat' },
  { agent: 'claude', dialect: 'anthropic' },
] as const;

/** A shim whose tools have their effects in the ledger, by every crash rule, and whose callbacks can be held there. */
const LAB_SHIM = `
import { defineShim, defineTool, toolFailure, z } from 'shimline/shims';

const effect = async (ledger, name, fields = {}, signal) => {
  const response = await fetch(ledger + '/effect', { method: 'POST', body: JSON.stringify({ name, ...fields }), signal });
  return response.json();
};
const parameters = z.object({ n: z.number().refine((n) => n >= 0, 'not negative').default(0) });

export default defineShim({
  name: 'lab',
  version: 1,
  config: z.strictObject({
    ledger: z.string(),
    hold: z.array(z.string()).default([]),
    die: z.string().default(''),
    expiresInMs: z.number().optional(),
    mark: z.string().default(''),
  }),
  async onRunStart(state, transientState, run) {
    if (this.config.die === 'onRunStart') process.kill(process.pid, 'SIGKILL');
    if (this.config.hold.includes('onRunStart')) await effect(this.config.ledger, 'onRunStart', { runId: run.runId }, run.signal);
    if (this.config.mark !== '') state.shimState.set('lab:mark', this.config.mark);
  },
  prepareTurn(turn) {
    const { ledger, expiresInMs } = this.config;
    if (this.config.die === 'prepareTurn') process.kill(process.pid, 'SIGKILL');
    const crashTool = (onCrash) => defineTool({
      name: onCrash + '_tool', description: 'Has an effect.', parameters, onCrash,
      execute: async (args, ctx) => effect(ledger, onCrash, { n: args.n, key: ctx.idempotencyKey, runId: ctx.runId }, ctx.signal),
    });
    turn.addTools([
      ...['retry', 'unknown', 'ask', 'fail'].map(crashTool),
      defineTool({ name: 'echo', description: 'Gives back.', parameters: z.looseObject({}), execute: (args) => args }),
      defineTool({ name: 'fails', description: 'Fails.', parameters, execute: () => toolFailure('no such thing', { kind: 'not_found' }) }),
      defineTool({ name: 'progress', description: 'Tells.', parameters, execute: (args, ctx) => { ctx.progress('half'); return 'done'; } }),
      defineTool({
        name: 'gated', description: 'Wants approval.', parameters, needsApproval: true,
        execute: async (args, ctx) => effect(ledger, 'gated', { n: args.n, key: ctx.idempotencyKey, runId: ctx.runId }, ctx.signal),
      }),
      defineTool({
        name: 'deaf', description: 'Ignores the signal.', parameters,
        execute: async (args, ctx) => effect(ledger, 'deaf', { n: args.n, runId: ctx.runId }),
      }),
    ]);
    if (expiresInMs !== undefined) turn.requireApproval(['echo'], { expiresInMs, message: 'Quick?' });
  },
  async onRunEnd(result, transientState, run) {
    if (result !== null && this.config.mark !== undefined) run.runState.shimState.set('lab:ended', this.config.mark);
    if (this.config.hold.includes('onRunEnd')) {
      await effect(this.config.ledger, 'onRunEnd', { runId: run.runId, output: result?.finalOutput ?? null });
    }
  },
});
`;

export interface Lab {
  readonly server: ServerProcess;
  readonly model: ModelEndpoint;
  readonly ledger: Ledger;
  readonly shimsDir: string;
  close(): Promise<void>;
}

/** A server with a strict model endpoint, a ledger, the lab's shim, and one agent for each dialect. */
export async function startLab(options: Pick<ServerOptions, 'env' | 'dataDir'> = {}): Promise<Lab> {
  const [model, ledger] = await Promise.all([ModelEndpoint.start(), Ledger.start()]);
  const shimsDir = temporaryFolder('shims-');
  writeFileSync(join(shimsDir, 'lab.mjs'), LAB_SHIM);
  const env = { ...model.environment, ...options.env };
  const server = await ServerProcess.start({ ...options, env, shimsDir });
  const lab: Lab = {
    server,
    model,
    ledger,
    shimsDir,
    close: async () => {
      await Promise.all([server.stop(), model.close(), ledger.close()]);
    },
  };
  const auth = options.env?.API_KEYS === undefined ? {} : bearer(options.env.API_KEYS.split(/[:,]/)[1] ?? '');
  await putAgent(lab, 'chat', { model: 'openai-compatible/m' }, auth);
  await putAgent(lab, 'claude', { model: 'anthropic/claude-sonnet-4-5' }, auth);
  return lab;
}

export const bearer = (key: string): Record<string, string> => ({ authorization: `Bearer ${key}` });

/** Saves an agent that has the lab's shim, with `labConfig` for it. */
export async function putAgent(
  lab: Lab,
  name: string,
  fields: JsonObject & { readonly labConfig?: JsonObject } = {},
  headers: Readonly<Record<string, string>> = {},
): Promise<JsonAnswer> {
  const { labConfig = {}, ...rest } = fields;
  const shims = [{ use: 'lab', config: { ledger: lab.ledger.url, ...labConfig } }];
  const body = { model: 'openai-compatible/m', instructions: 'You are a test.', shims, ...rest };
  const answer = await lab.server.json('PUT', `/v1/agents/${name}`, body, headers);
  expect(answer.body, JSON.stringify(answer.body)).toMatchObject({ name });
  return answer;
}

export const WAIT = { prefer: 'wait=20' };

export async function startRun(
  lab: Pick<Lab, 'server'>,
  body: JsonObject,
  headers: Readonly<Record<string, string>> = {},
): Promise<JsonAnswer> {
  return lab.server.json('POST', '/v1/runs', { agent: 'chat', input: 'hello', ...body }, headers);
}

/** Starts a run and waits for the end of its attempt. */
export async function runToEnd(
  lab: Pick<Lab, 'server'>,
  body: JsonObject,
  headers: Readonly<Record<string, string>> = {},
): Promise<JsonObject> {
  const answer = await startRun(lab, body, { ...WAIT, ...headers });
  expect(answer.status, JSON.stringify(answer.body)).toBe(200);
  return answer.body;
}

export async function getRun(lab: Pick<Lab, 'server'>, id: unknown): Promise<JsonObject> {
  return (await lab.server.json('GET', `/v1/runs/${String(id)}`)).body;
}

/** The run once its attempt is over. */
export async function ended(lab: Pick<Lab, 'server'>, id: unknown): Promise<JsonObject> {
  return (await lab.server.json('GET', `/v1/runs/${String(id)}`, undefined, WAIT)).body;
}

export async function resume(
  lab: Pick<Lab, 'server'>,
  id: unknown,
  body: JsonObject,
  headers: Readonly<Record<string, string>> = WAIT,
): Promise<JsonAnswer> {
  return lab.server.json('POST', `/v1/runs/${String(id)}/resume`, body, headers);
}

export async function follow(lab: Pick<Lab, 'server'>, path: string, options: OpenOptions = {}): Promise<SseStream> {
  return openStream(`${lab.server.url}${path}`, options);
}

export interface LoggedEvent extends JsonObject {
  readonly seq: number;
  readonly type: string;
  readonly attempt: number;
}

/** The whole log of a run by pages. */
export async function logOf(lab: Pick<Lab, 'server'>, id: unknown): Promise<LoggedEvent[]> {
  const found: LoggedEvent[] = [];
  for (;;) {
    const { body } = await lab.server.json('GET', `/v1/runs/${String(id)}/events?after=${found.length}`);
    found.push(...(body.data as LoggedEvent[]));
    if (found.length >= Number(body.lastSeq)) break;
  }
  assertLog(found);
  return found;
}

const ENDINGS = new Set(['run.completed', 'run.failed', 'run.cancelled', 'run.waiting']);

/** What holds for every log: contiguous from 1, one end for each attempt, and nothing of an attempt after its end. */
function assertLog(events: readonly LoggedEvent[]): void {
  expect(events.map((event) => event.seq)).toEqual(events.map((_, index) => index + 1));
  const endedBy = new Map<number, string>();
  for (const event of events) {
    const end = endedBy.get(event.attempt);
    const afterWait =
      end === 'run.waiting' && ['run.cancelling', 'run.cancelled', 'tool.completed'].includes(event.type);
    if (end !== undefined && !afterWait) expect.fail(`${event.seq}:${event.type} follows ${end}`);
    if (ENDINGS.has(event.type)) endedBy.set(event.attempt, event.type);
  }
}

export const typesOf = (events: readonly { readonly type: string }[]): string[] => events.map((event) => event.type);

export const callOf = (name: string, args: object = {}, id?: string): ReplyToolCall =>
  id === undefined ? { name, arguments: args } : { name, arguments: args, id };

export const calling = (...toolCalls: readonly ReplyToolCall[]): Reply => ({ toolCalls });

export const interruptionIds = (run: JsonObject): string[] =>
  (run.interruptions as readonly { readonly id: string }[]).map(({ id }) => id);

/** A gate that a reply can stand at, and its key. */
export function gate(): { readonly gate: Promise<void>; readonly open: () => void } {
  let open = (): void => undefined;
  const promise = new Promise<void>((resolve) => (open = resolve));
  return { gate: promise, open };
}
