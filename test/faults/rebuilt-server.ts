import { pino } from 'pino';
import { Agent, fetch } from 'undici';
import type * as App from '../../src/app.js';
import type * as ConfigModule from '../../src/config.js';
import { isObject, parseJson } from '../support/json-path.js';
import type { JsonAnswer } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';

/** Built, since the server's own modules import each other as they were built. */
const DIST = new URL('../../dist/src/', import.meta.url);
const KEPT_LINES = 200;

/** How long runs have to reach a checkpoint in a graceful end, in milliseconds; one that is held by its model reaches none. */
const GRACE_MS = 100;

/**
 * The whole server in this process, on real sockets, to be closed and built again on the same file. In an abrupt end no run has
 * time to reach a checkpoint: the file is left as its last commits made it.
 */
export class RebuiltServer {
  readonly dataDir = temporaryFolder('data-');
  /** What went astray in the process, the tests' own code included. */
  readonly strays: unknown[] = [];
  readonly #env: Readonly<Record<string, string>>;
  readonly #lines: string[] = [];
  readonly #onStray = (error: unknown): void => {
    this.strays.push(error);
  };
  #server: App.Server | undefined;
  #url = '';
  #graceMs = GRACE_MS;
  #agent = new Agent();

  private constructor(env: Readonly<Record<string, string>>) {
    this.#env = env;
    process.on('unhandledRejection', this.#onStray);
    process.on('uncaughtException', this.#onStray);
  }

  static async start(env: Readonly<Record<string, string>>): Promise<RebuiltServer> {
    const server = new RebuiltServer(env);
    await server.#build('0');
    return server;
  }

  get url(): string {
    return this.#url;
  }

  async json(
    method: string,
    path: string,
    body?: unknown,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<JsonAnswer> {
    const response = await fetch(new URL(path, this.#url), {
      dispatcher: this.#agent,
      method,
      headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const parsed = parseJson(await response.text());
    return {
      status: response.status,
      headers: Object.fromEntries(response.headers.entries()),
      body: parsed.ok && isObject(parsed.value) ? parsed.value : {},
    };
  }

  /** Ends the runtime and builds another one on the same file and port. */
  async rebuild(how: 'graceful' | 'abrupt'): Promise<void> {
    this.#graceMs = how === 'abrupt' ? 0 : GRACE_MS;
    await this.#server?.stop();
    await this.#agent.destroy();
    this.#agent = new Agent({ headersTimeout: 0, bodyTimeout: 0 });
    await this.#build(new URL(this.#url).port);
  }

  async stop(): Promise<void> {
    this.#graceMs = 0;
    await this.#server?.stop();
    await this.#agent.destroy();
    process.off('unhandledRejection', this.#onStray);
    process.off('uncaughtException', this.#onStray);
  }

  tail(): string {
    return this.#lines.slice(-20).join('');
  }

  async #build(port: string): Promise<void> {
    const { createServer } = (await import(/* @vite-ignore */ new URL('app.js', DIST).href)) as typeof App;
    const { parseConfig } = (await import(/* @vite-ignore */ new URL('config.js', DIST).href)) as typeof ConfigModule;
    const config = parseConfig({ ...this.#env, HOST: '127.0.0.1', PORT: port, DATA_DIR: this.dataDir });
    const graceMs = (): number => this.#graceMs;
    const settings = Object.defineProperty({ ...config }, 'SHUTDOWN_GRACE_MS', { get: graceMs });
    const log = pino({ level: 'info' }, { write: (line: string) => this.#keep(line) });
    this.#server = await createServer(settings, log);
    this.#url = await this.#server.listen();
  }

  #keep(line: string): void {
    this.#lines.push(line);
    if (this.#lines.length > 2 * KEPT_LINES) this.#lines.splice(0, KEPT_LINES);
  }
}
