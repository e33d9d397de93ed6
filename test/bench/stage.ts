import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Program } from './program.js';
import { BenchServer, type BenchServerOptions } from './server.js';
import type { Side } from './windows.js';

export interface Scale {
  /** Milliseconds of one window. */
  readonly windowMs: number;
  readonly warmUpMs: number;
  readonly rounds: number;
  /** A smoke checks that everything works and says nothing about speed: its amounts are small. */
  readonly smoke: boolean;
}

/** What the rows share: the processes, started when first needed and kept until the end. */
export class Stage {
  readonly scale: Scale;
  readonly folder: string;
  readonly #kept = new Map<string, Promise<Program | BenchServer>>();
  #folders = 0;

  constructor(scale: Scale) {
    this.scale = scale;
    this.folder = mkdtempSync(join(tmpdir(), 'shimline-bench-'));
  }

  async model(): Promise<Program> {
    return this.#keep('model', async () => Program.start('fake-model'));
  }

  async client(): Promise<Program> {
    return this.#keep('client', async () => Program.start('load-client'));
  }

  /** F1 (`hand`) or F2 (`package`), with an fsync per commit. */
  async floor(call: 'hand' | 'package'): Promise<Program> {
    return this.#keep(`floor-${call}`, async () => this.newFloor(call));
  }

  async newFloor(call: 'hand' | 'package', sync = 'FULL'): Promise<Program> {
    const model = (await this.model()).url;
    return Program.start('floor', { file: join(this.newFolder(), 'floor.db'), sync, call, model });
  }

  async server(durability: 'full' | 'normal' = 'full'): Promise<BenchServer> {
    return this.#keep(`server-${durability}`, async () => this.newServer({ durability }));
  }

  async newServer(options: Partial<BenchServerOptions> = {}): Promise<BenchServer> {
    return BenchServer.start({
      dataDir: options.dataDir ?? this.newFolder(),
      modelUrl: (await this.model()).url,
      ...options,
    });
  }

  newFolder(): string {
    this.#folders += 1;
    const folder = join(this.folder, String(this.#folders));
    mkdirSync(folder);
    return folder;
  }

  async close(): Promise<void> {
    for (const kept of this.#kept.values()) await (await kept).stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  async #keep<T extends Program | BenchServer>(name: string, start: () => Promise<T>): Promise<T> {
    const known = this.#kept.get(name) as Promise<T> | undefined;
    if (known !== undefined) return known;
    const started = start();
    this.#kept.set(name, started);
    return started;
  }
}

/** Streamed runs of our server. */
export function ourRuns(server: BenchServer, input: string, agent = 'bench'): Side {
  const headers = { accept: 'text/event-stream' };
  const requests = [{ path: '/v1/runs', headers, body: { agent, input } }];
  return { pid: server.pid, url: server.url, requests, mark: 'event: run.completed' };
}

/** Streamed runs of a floor. */
export function floorRuns(floor: Program, prompt: string): Side {
  return {
    pid: floor.pid,
    url: floor.url,
    requests: [{ path: '/runs', body: { prompt } }],
    mark: 'event: run.completed',
  };
}
