import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Channel } from './channel.js';
import { MORE_FILES, own, plainEnvironment } from './program.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
const probe = new URL('programs/probe.mjs', import.meta.url).href;
const shimsDir = fileURLToPath(new URL('shims', import.meta.url));

export interface BenchServerOptions {
  readonly dataDir: string;
  readonly modelUrl: string;
  readonly durability?: 'full' | 'normal';
  readonly env?: Readonly<Record<string, string>>;
  /** Loads `programs/probe.mjs` first, so that `probe` can be asked for profiles and the heap. */
  readonly probed?: boolean;
}

interface BenchAgent {
  readonly shims: readonly { readonly use: string; readonly as?: string; readonly config?: object }[];
  readonly model?: string;
}

const THREE = [{ use: 'bench-echo' }, { use: 'bench-brief' }, { use: 'bench-idle' }];
const idle = (count: number): BenchAgent['shims'] =>
  Array.from({ length: count }, (_, index) => ({ use: 'bench-idle', as: `idle-${index}` }));

/** The agents that the rows run: `bench` has the three shims of P1, `plus1` and `plus10` so many more that do nothing, `bare` none. */
const AGENTS: Readonly<Record<string, BenchAgent>> = {
  bench: { shims: THREE },
  plus1: { shims: [...THREE, ...idle(1)] },
  plus10: { shims: [...THREE, ...idle(10)] },
  bare: { shims: [] },
  first: { shims: idle(1) },
  log: { shims: [{ use: 'bench-echo' }, { use: 'bench-log', config: { events: 1000 } }] },
  offline: { shims: THREE, model: 'scripted/demo' },
};

/** The built server as users start it, its log in a file. */
export class BenchServer {
  readonly url: string;
  readonly dataDir: string;
  /** Answers only where the server was started `probed`. */
  readonly probe: Channel;
  readonly #child: ChildProcess;
  /** From the start of the process until it listened. */
  readonly startMs: number;
  readonly listenedAt: number;
  /** From the start of the process until it answered `/healthz`. */
  healthyMs = 0;

  private constructor(child: ChildProcess, options: Pick<BenchServer, 'url' | 'dataDir' | 'startMs' | 'listenedAt'>) {
    this.#child = child;
    this.probe = new Channel(child);
    this.url = options.url;
    this.dataDir = options.dataDir;
    this.startMs = options.startMs;
    this.listenedAt = options.listenedAt;
  }

  static async start(options: BenchServerOptions): Promise<BenchServer> {
    const { dataDir, modelUrl, durability = 'full', env = {}, probed = false } = options;
    const logFile = join(dataDir, 'bench.log');
    const log = openSync(logFile, 'w');
    const startedAt = performance.now();
    const entry = join(root, 'dist/src/server.js');
    const child = own(
      spawn('bash', ['-c', MORE_FILES, 'bash', process.execPath, ...(probed ? ['--import', probe] : []), entry], {
        cwd: root,
        stdio: ['ignore', log, log, ...(probed ? (['ipc'] as const) : [])],
        env: {
          ...plainEnvironment(),
          PORT: '0',
          DATA_DIR: dataDir,
          SHIMS_DIR: shimsDir,
          OPENAI_COMPATIBLE_BASE_URL: `${modelUrl}/v1`,
          DURABILITY: durability,
          ...env,
        },
      }),
    );
    closeSync(log);
    const url = await listening(child, logFile);
    const listenedAt = performance.now();
    const server = new BenchServer(child, { url, dataDir, startMs: listenedAt - startedAt, listenedAt });
    await server.json('/healthz');
    server.healthyMs = performance.now() - startedAt;
    for (const [name, agent] of Object.entries(AGENTS)) await server.#putAgent(name, agent);
    return server;
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** How many files and sockets the process may have open. */
  descriptorLimit(): number {
    const limit = /^Max open files\s+(\d+)/m.exec(readFileSync(`/proc/${this.pid}/limits`, 'utf8'))?.[1];
    return Number(limit);
  }

  async json(path: string, init: RequestInit = {}): Promise<Record<string, unknown>> {
    const answer = await fetch(this.url + path, init);
    if (!answer.ok) throw new Error(`${init.method ?? 'GET'} ${path}: ${answer.status} ${await answer.text()}`);
    return (await answer.json()) as Record<string, unknown>;
  }

  async stop(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    this.#child.kill(signal);
    await once(this.#child, 'exit');
  }

  async #putAgent(name: string, { shims, model = 'openai-compatible/fake' }: BenchAgent): Promise<void> {
    const agent = { name, model, instructions: 'You are brief.', shims };
    const headers = { 'content-type': 'application/json' };
    await this.json(`/v1/agents/${name}`, { method: 'PUT', headers, body: JSON.stringify(agent) });
  }
}

async function listening(child: ChildProcess, logFile: string): Promise<string> {
  for (;;) {
    const text = readFileSync(logFile, 'utf8');
    // Fastify's own line comes first: the port is open from then on.
    const url =
      /"msg":"Server listening at (http[^"]+)"/.exec(text)?.[1] ??
      /"url":"(http[^"]+)","msg":"listening"/.exec(text)?.[1];
    if (url !== undefined) return url;
    if (child.exitCode !== null) throw new Error(`the server did not start:\n${text}`);
    await sleep(5);
  }
}
