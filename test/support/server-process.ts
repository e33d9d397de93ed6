import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Agent, fetch, type RequestInit, type Response } from 'undici';
import { isObject, type JsonObject, parseJson } from './json-path.js';
import { temporaryFolder, within } from './wait.js';

export interface ServerOptions {
  readonly env?: Readonly<Record<string, string>>;
  /** A fresh temporary folder unless given. */
  readonly dataDir?: string;
  readonly shimsDir?: string;
  /** A folder of agent files, or descriptors that are written into one. */
  readonly agents?: string | readonly ({ readonly name: string } & JsonObject)[];
  readonly startTimeoutMs?: number;
  /** Another program in place of the server, for the tests of this class. */
  readonly entry?: string;
}

export interface JsonAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** The JSON body; empty when there is none. */
  readonly body: JsonObject;
}

export interface Exit {
  readonly code: number | undefined;
  readonly signal: string | undefined;
}

const root = fileURLToPath(new URL('../..', import.meta.url));
const running = new Set<ChildProcess>();
const started = new Set<ServerProcess>();

// A test runner that dies must not leave servers behind.
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/** Ends every server that this file's tests have started; for `afterEach`. */
export async function stopAll(): Promise<void> {
  await Promise.all([...started].map(async (server) => server.stop()));
  started.clear();
}

/** The real server as a child process, to be started, killed and started again on the same data and port. */
export class ServerProcess {
  readonly dataDir: string;
  /** The lines of stdout, over all restarts. */
  readonly logs: string[] = [];
  stderr = '';
  #options: ServerOptions;
  #child: ChildProcess | undefined;
  #exit: Promise<Exit> | undefined;
  #url = '';
  #agent = new Agent();

  private constructor(options: ServerOptions) {
    this.#options = options;
    this.dataDir = options.dataDir ?? temporaryFolder('data-');
    started.add(this);
  }

  static async start(options: ServerOptions = {}): Promise<ServerProcess> {
    const server = new ServerProcess(options);
    await server.#launch(0);
    return server;
  }

  get url(): string {
    return this.#url;
  }

  get pid(): number {
    const pid = this.#child?.pid;
    if (pid === undefined) throw new Error('the server does not run');
    return pid;
  }

  get isRunning(): boolean {
    return this.#child !== undefined && running.has(this.#child);
  }

  /** How the newest process ended, whenever it does. */
  get exited(): Promise<Exit> {
    if (this.#exit === undefined) throw new Error('the server was never started');
    return this.#exit;
  }

  /** The log lines that are JSON. */
  logObjects(): readonly JsonObject[] {
    return this.logs.flatMap((line) => {
      const parsed = parseJson(line);
      return parsed.ok && isObject(parsed.value) ? [parsed.value] : [];
    });
  }

  async kill9(): Promise<Exit> {
    return this.#end('SIGKILL');
  }

  /** SIGTERM; resolves with the exit code, or rejects when it takes too long. */
  async term(timeoutMs = 40_000): Promise<number | undefined> {
    const { code } = await within(this.#end('SIGTERM'), timeoutMs, `the end after SIGTERM\n${this.tail()}`);
    return code;
  }

  signal(name: NodeJS.Signals): void {
    if (this.isRunning) this.#child?.kill(name);
  }

  /** A new process on the same data and port; one that still runs is ended with SIGTERM first. */
  async restart(overrides: Omit<ServerOptions, 'dataDir'> = {}): Promise<this> {
    if (this.isRunning) await this.term();
    const env = { ...this.#options.env, ...overrides.env };
    this.#options = { ...this.#options, ...overrides, env };
    await this.#launch(Number(new URL(this.#url).port));
    return this;
  }

  /** Ends it by SIGTERM, and by SIGKILL when that takes more than a few seconds. */
  async stop(): Promise<void> {
    if (this.isRunning) {
      await this.term(5_000).catch(async () => this.kill9());
    }
    await this.#agent.destroy();
    started.delete(this);
  }

  /** Rejects with the end of the log when the process dies in the meantime. */
  async fetch(path: string, init: RequestInit = {}): Promise<Response> {
    const answer = fetch(new URL(path, this.#url), { dispatcher: this.#agent, ...init });
    const died = this.exited.then(({ code, signal }) => {
      throw new Error(
        `the server died (${signal ?? code ?? ''}) during ${init.method ?? 'GET'} ${path}\n${this.tail()}`,
      );
    });
    died.catch(() => undefined);
    try {
      return await Promise.race([answer, died]);
    } catch (error) {
      // A broken connection is often seen before the end of the process that caused it.
      const exit = await Promise.race([this.exited, sleep(100, undefined)]);
      if (exit !== undefined) await died;
      throw error;
    }
  }

  async json(
    method: string,
    path: string,
    body?: unknown,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<JsonAnswer> {
    const sent = body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) };
    const type: Record<string, string> = body === undefined ? {} : { 'content-type': 'application/json' };
    const response = await this.fetch(path, { method, ...sent, headers: { ...type, ...headers } });
    const parsed = parseJson(await response.text());
    return {
      status: response.status,
      headers: Object.fromEntries(response.headers.entries()),
      body: parsed.ok && isObject(parsed.value) ? parsed.value : {},
    };
  }

  /** The end of the log and of stderr, for error messages. */
  tail(lines = 20): string {
    return [...this.logs.slice(-lines), ...this.stderr.split('\n').slice(-lines)].join('\n');
  }

  async #launch(port: number): Promise<void> {
    const entry = resolve(root, this.#options.entry ?? 'dist/src/server.js');
    const child = spawn(process.execPath, [entry], {
      cwd: root,
      env: this.#environment(port),
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    running.add(child);
    this.#child = child;
    this.#exit = exitOf(child);
    const before = this.#agent;
    this.#agent = new Agent({ headersTimeout: 0, bodyTimeout: 0 });
    await before.destroy();
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text;
    });
    const lines = createInterface({ input: child.stdout });
    const listening = new Promise<string>((found) => {
      lines.on('line', (line) => {
        this.logs.push(line);
        const url = listeningUrl(line);
        if (url !== undefined) found(url);
      });
    });
    const died = this.#exit.then(({ code, signal }) => {
      throw new Error(`the server ended (${signal ?? code ?? ''}) before it listened\n${this.tail()}`);
    });
    died.catch(() => undefined);
    const timeoutMs = this.#options.startTimeoutMs ?? 20_000;
    try {
      this.#url = await within(Promise.race([listening, died]), timeoutMs, 'the server to listen');
    } catch (error) {
      await this.kill9();
      throw error;
    }
  }

  #environment(port: number): Record<string, string> {
    const { env, shimsDir, agents } = this.#options;
    const { PATH = '', HOME = '' } = process.env;
    return {
      PATH,
      HOME,
      NODE_ENV: 'production', // or it would read a .env of the checkout
      HOST: '127.0.0.1',
      DATA_DIR: this.dataDir,
      ...(shimsDir === undefined ? {} : { SHIMS_DIR: shimsDir }),
      ...(agents === undefined ? {} : { AGENTS_DIR: agentsFolder(agents) }),
      ...env,
      PORT: String(port),
    };
  }

  async #end(signal: NodeJS.Signals): Promise<Exit> {
    this.signal(signal);
    return this.exited;
  }
}

/** Resolves after the last log line, but does not wait for a grandchild that keeps the pipes open. */
async function exitOf(child: ChildProcess): Promise<Exit> {
  const drained = once(child, 'close');
  const [code, signal] = (await once(child, 'exit')) as unknown[];
  running.delete(child);
  await Promise.race([drained, sleep(300, undefined, { ref: false })]);
  child.stdout?.destroy();
  child.stderr?.destroy();
  return {
    code: typeof code === 'number' ? code : undefined,
    signal: typeof signal === 'string' ? signal : undefined,
  };
}

function agentsFolder(agents: NonNullable<ServerOptions['agents']>): string {
  if (typeof agents === 'string') return agents;
  const folder = temporaryFolder('agents-');
  for (const agent of agents) writeFileSync(join(folder, `${agent.name}.json`), JSON.stringify(agent));
  return folder;
}

function listeningUrl(line: string): string | undefined {
  const parsed = parseJson(line);
  if (!parsed.ok || !isObject(parsed.value) || parsed.value.msg !== 'listening') return undefined;
  const { url } = parsed.value;
  return typeof url === 'string' ? url : undefined;
}
