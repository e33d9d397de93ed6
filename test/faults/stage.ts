import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { JsonObject } from '../support/json-path.js';
import { Ledger } from '../support/ledger.js';
import { ModelEndpoint, type ReceivedRequest } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { toolResultsOf } from '../support/request-view.js';
import { type JsonAnswer, ServerProcess } from '../support/server-process.js';
import { mountSmallDisk, type SmallDisk, whyNoSmallDisk } from '../support/small-disk.js';
import { temporaryFolder } from '../support/wait.js';
import { RebuiltServer } from './rebuilt-server.js';

/** The shim of the reference run: tools with effects in the ledger, state of its own, and a compaction of the history. */
const REFERENCE_SHIM = `
import { defineShim, defineTool, z } from 'shimline/shims';

const parameters = z.object({ n: z.number(), marker: z.string() });

export default defineShim({
  name: 'reference',
  config: z.strictObject({ ledger: z.string() }),
  onRunStart(state, transientState, run) {
    state.shimState.set('reference:marker', run.metadata.marker);
    state.shimState.increment('reference:starts');
  },
  prepareTurn(turn) {
    const { ledger } = this.config;
    const { shimState } = turn.runState;
    shimState.increment('reference:turns');
    if (turn.turnCount === 2 && turn.runState.history.length >= 7 && !shimState.has('reference:compacted')) {
      const { history } = turn.runState;
      turn.replaceHistory([{ role: 'user', content: 'summary of ' + run(turn) }, ...history.slice(4)]);
      shimState.set('reference:compacted', true);
    }
    const tool = (name, needsApproval) => defineTool({
      name, description: name, parameters, needsApproval,
      execute: async ({ n, marker }, ctx) => {
        const body = JSON.stringify({ name, n, marker, runId: ctx.runId });
        const response = await fetch(ledger + '/effect', { method: 'POST', body, signal: ctx.signal });
        shimState.increment('reference:effects');
        return { did: n, status: response.status };
      },
    });
    turn.addTools([tool('effect', false), tool('gated', true)]);
  },
});

const run = (turn) => turn.metadata.marker;
`;

/** Cleans something up at each end, which takes a moment. */
const CLEAN_UP_SHIM = `
import { setImmediate } from 'node:timers/promises';
import { defineShim } from 'shimline/shims';

export default defineShim({ name: 'clean-up', onRunEnd: async () => setImmediate() });
`;

/** What every server of a stage can be asked. */
export type StageServer = Pick<ServerProcess, 'url' | 'json' | 'tail' | 'stop'>;

/** A server with the model and the ledger of the reference run. */
export interface Stage<Server extends StageServer = ServerProcess> {
  readonly server: Server;
  readonly model: ModelEndpoint;
  readonly ledger: Ledger;
  /** Undefined where none can be mounted; then the cases with a full disk are left out. */
  readonly disk: SmallDisk | undefined;
  readonly noDisk: string | undefined;
  /** What the model of the reference run says. */
  readonly reply: (request: ReceivedRequest) => Reply;
  stallNext(): void;
  /** Holds every model request and every effect that comes from now on, until the returned function is called. */
  holdEverything(): () => void;
  /** How many effects a marker has in the ledger. */
  effectsOf(marker: string): number;
  /** Told of each model request as it comes in. */
  onRequest: ((request: ReceivedRequest) => void) | undefined;
  close(): Promise<void>;
}

const IDLE_TIMEOUT_MS = 1500;

/** With the server as a process of its own. */
export async function startStage(): Promise<Stage> {
  const noDisk = whyNoSmallDisk();
  const disk = noDisk === undefined ? mountSmallDisk(96) : undefined;
  return stageWith(
    async (setting) => ServerProcess.start({ ...setting, ...(disk === undefined ? {} : { dataDir: disk.path }) }),
    { disk, noDisk },
  );
}

const START_TRIES = 5;

/** A stage in place of one on which something broke off. What broke may be the machine, so it is tried again after a while. */
export async function freshStage<S extends Stage<StageServer>>(
  broken: S | undefined,
  start: () => Promise<S>,
): Promise<S> {
  await broken?.close().catch(() => undefined);
  for (let tries = 1; ; tries += 1) {
    try {
      return await start();
    } catch (error) {
      if (tries === START_TRIES) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 5000));
  }
}

/** With the server in this process. */
export async function startRebuiltStage(): Promise<Stage<RebuiltServer>> {
  return stageWith(
    async ({ env, shimsDir, agents }) => {
      const agentsDir = temporaryFolder('agents-');
      for (const agent of agents) writeFileSync(join(agentsDir, `${agent.name}.json`), JSON.stringify(agent));
      return RebuiltServer.start({ ...env, SHIMS_DIR: shimsDir, AGENTS_DIR: agentsDir });
    },
    { disk: undefined, noDisk: undefined },
  );
}

interface Setting {
  readonly env: Readonly<Record<string, string>>;
  readonly shimsDir: string;
  readonly agents: readonly ({ readonly name: string } & JsonObject)[];
}

async function stageWith<Server extends StageServer>(
  startServer: (setting: Setting) => Promise<Server>,
  { disk, noDisk }: Pick<Stage, 'disk' | 'noDisk'>,
): Promise<Stage<Server>> {
  const [model, ledger] = await Promise.all([ModelEndpoint.start(), Ledger.start()]);
  const shimsDir = temporaryFolder('shims-');
  writeFileSync(join(shimsDir, 'reference.mjs'), REFERENCE_SHIM);
  const env = { ...model.environment, MODEL_IDLE_TIMEOUT_MS: String(IDLE_TIMEOUT_MS), SHUTDOWN_GRACE_MS: '3000' };
  writeFileSync(join(shimsDir, 'clean-up.mjs'), CLEAN_UP_SHIM);
  const reference = {
    name: 'reference',
    model: 'openai-compatible/m',
    instructions: 'You are the reference.',
    shims: [{ use: 'reference', config: { ledger: ledger.url } }],
  };
  const agents = [reference, { ...reference, name: 'cleaned', shims: [...reference.shims, { use: 'clean-up' }] }];
  const server = await startServer({ env, shimsDir, agents });
  let stalls = 0;
  let closed = false;
  let held: Promise<void> | undefined;
  const effects = new Map<unknown, number>();
  ledger.onEntry(({ marker }) => effects.set(marker, (effects.get(marker) ?? 0) + 1));
  const stage: Stage<Server> = {
    server,
    model,
    ledger,
    disk,
    noDisk,
    onRequest: undefined,
    reply: replyTo,
    stallNext: () => {
      stalls = 1;
    },
    holdEverything: () => {
      let open = (): void => undefined;
      held = new Promise((resolve) => (open = resolve));
      const block = ledger.blockBefore(() => true);
      return () => {
        held = undefined;
        open();
        block.release();
      };
    },
    effectsOf: (marker) => effects.get(marker) ?? 0,
    close: async () => {
      if (closed) return;
      closed = true;
      await Promise.all([server.stop(), model.close(), ledger.close()]);
      disk?.unmount();
    },
  };
  model.respondWith(async (request) => {
    await held;
    stage.onRequest?.(request);
    if (stalls-- > 0) return { text: ['never ', 'more'], cut: { after: 'half-text', how: 'stall' } };
    stalls = 0;
    return replyTo(request);
  });
  return stage;
}

/** What the model says next follows from the history alone, so a call that is made again gets the same answer. */
function replyTo(request: ReceivedRequest): Reply {
  const marker = /case-\d+-/.exec(request.rawBody)?.[0] ?? 'case-0-';
  const deltas = { tokenDelayMs: 2 };
  if (request.rawBody.includes('one more')) return { text: ['and ', `more of ${marker}`], ...deltas };
  if (toolResultsOf(request).length === 0) {
    const call = (name: string, n: number): { name: string; arguments: object } => ({ name, arguments: { n, marker } });
    return {
      text: ['I ', 'call ', 'three.'],
      toolCalls: [call('effect', 1), call('effect', 2), call('gated', 3)],
      ...deltas,
    };
  }
  return { text: ['All ', 'done ', 'for ', marker], ...deltas };
}

/** An HTTP call that a fault may break: asked again until it is answered by something else than a 503. */
export async function persistently(
  stage: { readonly server: StageServer },
  method: string,
  path: string,
  body?: JsonObject,
  headers: Record<string, string> = {},
): Promise<JsonAnswer> {
  const giveUpAt = performance.now() + 40_000;
  for (;;) {
    try {
      const answer = await stage.server.json(method, path, body, headers);
      if (answer.status !== 503) return answer;
      if (answer.headers['retry-after'] === undefined) throw new Error(`a 503 without Retry-After: ${method} ${path}`);
    } catch (error) {
      if (performance.now() > giveUpAt || (error instanceof Error && error.message.startsWith('a 503'))) throw error;
    }
    if (performance.now() > giveUpAt)
      throw new Error(`no answer to ${method} ${path} for 40 s\n${stage.server.tail()}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
