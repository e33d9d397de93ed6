import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { Lab } from '../server/lab.js';
import { isObject, type JsonObject } from '../support/json-path.js';
import { Ledger } from '../support/ledger.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { type ServerOptions, ServerProcess } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';

/** A shim whose tools misbehave in the ways that the trials want, with all their effects in the ledger. */
const TRIAL_SHIM = `
import { EventEmitter } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { defineShim, defineTool, z } from 'shimline/shims';

const effect = async (ledger, name, fields, signal) => {
  const response = await fetch(ledger + '/effect', { method: 'POST', body: JSON.stringify({ name, ...fields }), signal });
  return response.json();
};
const parameters = z.looseObject({ n: z.number().default(0), ms: z.number().default(0) });

export default defineShim({
  name: 'trial',
  config: z.strictObject({ ledger: z.string(), endMs: z.number().default(0), gate: z.array(z.string()).default([]), die: z.boolean().default(false) }),
  onRunStart(state, transientState, run) {
    if (run.metadata.marker !== undefined) state.shimState.set('trial:marker', run.metadata.marker);
  },
  async prepareTurn(turn) {
    const { ledger, gate, die } = this.config;
    if (die) {
      await sleep(400);
      process.kill(process.pid, 'SIGKILL');
    }
    const { shimState } = turn.runState;
    const tool = (name, execute, more = {}) => defineTool({ name, description: name, parameters, execute, ...more });
    const fields = (args, ctx) => ({ n: args.n, runId: ctx.runId, key: ctx.idempotencyKey });
    turn.addTools([
      tool('effect', (args, ctx) => effect(ledger, 'effect', fields(args, ctx), ctx.signal)),
      tool('gated', (args, ctx) => effect(ledger, 'gated', fields(args, ctx), ctx.signal), { needsApproval: true }),
      tool('maybe', (args, ctx) => effect(ledger, 'maybe', fields(args, ctx), ctx.signal), { needsApproval: (args) => args.n > 0 }),
      tool('nap', async (args, ctx) => {
        await effect(ledger, 'nap', fields(args, ctx));
        await sleep(args.ms, undefined, { signal: ctx.signal });
        return 'slept ' + args.n;
      }),
      tool('deaf', async (args, ctx) => {
        await effect(ledger, 'deaf', fields(args, ctx));
        await sleep(args.ms);
        return 'woke';
      }),
      tool('late_rejection', async (args, ctx) => {
        await new Promise((resolve) => ctx.signal.addEventListener('abort', resolve, { once: true }));
        throw new Error('rejected after the abort');
      }),
      tool('flood', (args) => {
        for (let n = 0; n < args.n; n += 1) turn.emit('flood', { n });
        return 'flooded';
      }),
      tool('speak', (args) => args.text),
      tool('count', () => {
        shimState.increment('trial:count');
        return shimState.get('trial:count');
      }),
      tool('marker', async (args, ctx) => {
        await sleep(Math.random() * 20);
        const mine = ctx.shimState.get('trial:marker');
        if (mine !== args.marker || mine !== turn.metadata.marker) await effect(ledger, 'foreign', { mine, theirs: args.marker });
        return mine;
      }),
      tool('stray', (args, ctx) => {
        const error = new Error('nobody waits for this');
        const fail = {
          reject: () => Promise.reject(error),
          await: async () => { await sleep(1); throw error; },
          timer: () => setTimeout(() => { throw error; }, 1),
          emitter: () => setImmediate(() => new EventEmitter().emit('error', error)),
        }[args.how];
        void (async () => {
          await effect(ledger, 'stray', fields(args, ctx));
          void fail();
        })();
        return 'gone astray';
      }),
      tool('bulk', (args) => {
        shimState.set('trial:bulk', 'x'.repeat(20_000) + args.n);
        return args.n;
      }),
      tool('throw_secrets', () => {
        throw new Error('request failed: authorization: Bearer ' + process.env.OPENAI_COMPATIBLE_API_KEY);
      }),
    ]);
    if (gate.length > 0) turn.requireApproval(gate);
  },
  async onRunEnd(result, transientState, run) {
    if (this.config.endMs === 0) return;
    await sleep(this.config.endMs);
    await effect(this.config.ledger, 'onRunEnd', { runId: run.runId });
  },
});
`;

export interface TrialOptions extends Pick<ServerOptions, 'env' | 'dataDir'> {
  /** Further shim files, by name. */
  readonly shims?: Readonly<Record<string, string>>;
}

/** A server with a strict model endpoint, a ledger, and the agents `chat` and `claude`, which have the trial shim. */
export async function startTrial(options: TrialOptions = {}): Promise<Lab> {
  const [model, ledger] = await Promise.all([ModelEndpoint.start(), Ledger.start()]);
  const shimsDir = temporaryFolder('shims-');
  for (const [file, text] of Object.entries({ 'trial.mjs': TRIAL_SHIM, ...options.shims }))
    writeFileSync(join(shimsDir, file), text);
  const env = { ...model.environment, ...options.env };
  const server = await ServerProcess.start({
    env,
    shimsDir,
    ...(options.dataDir === undefined ? {} : { dataDir: options.dataDir }),
  });
  const lab: Lab = {
    server,
    model,
    ledger,
    shimsDir,
    close: async () => {
      await Promise.all([server.stop(), model.close(), ledger.close()]);
    },
  };
  const key = options.env?.API_KEYS?.split(/[:,]/)[1];
  const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` };
  await putTrialAgent(lab, 'chat', {}, headers);
  await putTrialAgent(lab, 'claude', { model: 'anthropic/claude-sonnet-4-5' }, headers);
  return lab;
}

export async function putTrialAgent(
  lab: Lab,
  name: string,
  fields: JsonObject & { readonly trial?: JsonObject; readonly more?: readonly JsonObject[] } = {},
  headers: Readonly<Record<string, string>> = {},
): Promise<void> {
  const { trial = {}, more = [], ...rest } = fields;
  const shims = [{ use: 'trial', config: { ledger: lab.ledger.url, ...trial } }, ...more];
  const body = { model: 'openai-compatible/m', instructions: 'You are on trial.', shims, ...rest };
  const answer = await lab.server.json('PUT', `/v1/agents/${name}`, body, headers);
  expect(answer.body, JSON.stringify(answer.body)).toMatchObject({ name });
}

/** Decides every open call of a waiting run alike. */
export function decideAll(run: JsonObject, decision: 'approve' | 'deny'): JsonObject {
  const open = Array.isArray(run.interruptions) ? (run.interruptions as readonly unknown[]).filter(isObject) : [];
  return { decisions: open.map(({ id }) => ({ id, decision })) };
}

export async function cancel(
  lab: Pick<Lab, 'server'>,
  id: unknown,
  headers: Record<string, string> = {},
): Promise<JsonObject> {
  const answer = await lab.server.json('DELETE', `/v1/runs/${String(id)}`, undefined, headers);
  expect([200, 202]).toContain(answer.status);
  return answer.body;
}

/** The run of the next turn must be accepted by the strict model and complete. */
export async function nextTurnWorks(lab: Lab, id: unknown, input = 'go on'): Promise<void> {
  const refused = lab.model.refusedRequests.length;
  lab.model.script({ text: 'fine' });
  const answer = await lab.server.json('POST', `/v1/runs/${String(id)}/resume`, { input }, { prefer: 'wait=20' });
  expect(answer.body, JSON.stringify(answer.body)).toMatchObject({ status: 'completed', output: 'fine' });
  expect(lab.model.refusedRequests.slice(refused).map(({ problem }) => problem)).toEqual([]);
}
