import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { isObject, type JsonObject, parseJson } from './json-path.js';
import { closeServer, listenOnLoopback } from './loopback.js';
import { temporaryFolder, waitFor } from './wait.js';

export interface LedgerEntry {
  readonly seq: number;
  readonly at: number;
  readonly name: string;
  readonly key?: string;
  /** Everything that the caller sent. */
  readonly [field: string]: unknown;
}

export type EffectFilter = string | ((effect: JsonObject) => boolean);

export interface LedgerBlock {
  /** Resolves when the first effect that matches stands at the block. */
  readonly reached: Promise<void>;
  /** Lets all who wait go on, and everyone after them. */
  release(): void;
}

interface Gate {
  readonly where: 'before' | 'after';
  readonly matches: (effect: JsonObject) => boolean;
  readonly opened: Promise<void>;
  readonly arrive: () => void;
}

/** The judge of how often an effect happened: an append-only file behind a small HTTP service. */
export class Ledger {
  readonly file = join(temporaryFolder('ledger-'), 'effects.jsonl');
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #gates = new Set<Gate>();
  readonly #listeners = new Set<(entry: LedgerEntry) => void>();
  #port = 0;
  #seq = 0;

  private constructor() {
    writeFileSync(this.file, '');
    this.#server = createServer({ requestTimeout: 0 }, (request, response) => {
      // A caller that dies in the middle of its request has asked for nothing.
      this.#take(request, response).catch(() => response.destroy());
    });
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
      socket.on('error', () => undefined);
    });
  }

  static async start(): Promise<Ledger> {
    const ledger = new Ledger();
    ledger.#port = await listenOnLoopback(ledger.#server);
    return ledger;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Where tools POST `{ name, key?, … }`. */
  get effectUrl(): string {
    return `${this.url}/effect`;
  }

  entries(filter?: EffectFilter): readonly LedgerEntry[] {
    const lines = readFileSync(this.file, 'utf8').split('\n').filter(Boolean);
    const all = lines.map((line) => JSON.parse(line) as LedgerEntry);
    return filter === undefined ? all : all.filter(matcher(filter));
  }

  count(filter?: EffectFilter): number {
    return this.entries(filter).length;
  }

  async waitForCount(filter: EffectFilter, n: number, timeoutMs = 5_000): Promise<readonly LedgerEntry[]> {
    return waitFor(
      () => {
        const found = this.entries(filter);
        return found.length >= n ? found : undefined;
      },
      { timeoutMs, everyMs: 5, what: `${n} ledger entries` },
    );
  }

  /** Called in the same tick as the write, so before the caller has its answer. Gives the way to stop. */
  onEntry(listener: (entry: LedgerEntry) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Holds callers before the effect; one that dies there leaves no entry. */
  blockBefore(filter: EffectFilter): LedgerBlock {
    return this.#block('before', filter);
  }

  /** Holds callers after the effect is written and before the answer. */
  blockAfter(filter: EffectFilter): LedgerBlock {
    return this.#block('after', filter);
  }

  async close(): Promise<void> {
    const closed = closeServer(this.#server);
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  #block(where: 'before' | 'after', filter: EffectFilter): LedgerBlock {
    let arrive = (): void => undefined;
    let open = (): void => undefined;
    const reached = new Promise<void>((resolve) => (arrive = resolve));
    const opened = new Promise<void>((resolve) => (open = resolve));
    const gate: Gate = { where, matches: matcher(filter), opened, arrive };
    this.#gates.add(gate);
    const release = (): void => {
      this.#gates.delete(gate);
      open();
    };
    return { reached, release };
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    if (request.method === 'GET') {
      answer(response, 200, { entries: this.entries() });
      return;
    }
    const parsed = parseJson(Buffer.concat(chunks).toString());
    if (request.url !== '/effect' || !parsed.ok || !isObject(parsed.value) || typeof parsed.value.name !== 'string') {
      answer(response, 400, { error: 'POST /effect with a JSON object that has a name' });
      return;
    }
    const effect = parsed.value;
    const gone = new Promise<void>((resolve) => response.once('close', resolve));
    if (!(await this.#pass('before', effect, gone))) return;
    const entry = this.#append(effect, parsed.value.name);
    if (!(await this.#pass('after', effect, gone))) return;
    answer(response, 200, { ok: true, seq: entry.seq, count: this.count(entry.name) });
  }

  /** False when the caller went away at a block. */
  async #pass(where: 'before' | 'after', effect: JsonObject, gone: Promise<void>): Promise<boolean> {
    for (const gate of [...this.#gates].filter((found) => found.where === where && found.matches(effect))) {
      gate.arrive();
      const open = await Promise.race([gate.opened.then(() => true), gone.then(() => false)]);
      if (!open) return false;
    }
    return true;
  }

  #append(effect: JsonObject, name: string): LedgerEntry {
    this.#seq += 1;
    const entry: LedgerEntry = { ...effect, name, seq: this.#seq, at: Date.now() };
    appendFileSync(this.file, `${JSON.stringify(entry)}\n`);
    for (const listener of this.#listeners) listener(entry);
    return entry;
  }
}

function matcher(filter: EffectFilter): (effect: JsonObject) => boolean {
  return typeof filter === 'string' ? (effect) => effect.name === filter : filter;
}

function answer(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}
