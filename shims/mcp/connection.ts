import { setTimeout as sleep } from 'node:timers/promises';
import type { Client } from '@modelcontextprotocol/sdk/client/index.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { type Catalogue, listTools } from './catalogue.js';
import type { HeadersHook, ServerConfig } from './config.js';
import { type Fault, faultOf } from './faults.js';
import { HttpLink } from './http-link.js';
import { type CallResult, CallResultSchema } from './results.js';
import { minimalEnvironment, resolveRecord, resolveReferences, Secrets } from './secrets.js';
import { COMMAND_NOT_FOUND, StdioTransport } from './stdio-transport.js';
import { unlessAborted, whileAsking } from './waits.js';

/** Which server, how to reach it, and how long to wait for it: what runs with the same of all this share. */
export interface Target {
  readonly name: string;
  readonly config: ServerConfig;
  readonly hook: HeadersHook | undefined;
}

/** What is known of a server, kept up to date with each thing that happens to it. */
export interface Status {
  readonly state: 'unused' | 'ready' | 'down';
  readonly error?: string;
}

/** The server cannot be reached, in words without secrets. */
export class UnavailableError extends Error {}

export interface CallRequest {
  readonly tool: string;
  readonly args: unknown;
  readonly idempotencyKey: string;
  /** Whether asking twice does no harm. */
  readonly repeatable: boolean;
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
  readonly onProgress: (progress: {
    readonly progress: number;
    readonly total?: number;
    readonly message?: string;
  }) => void;
}
export type CallOutcome = { readonly result: CallResult } | { readonly fault: Fault; readonly renewed: boolean };

interface Live {
  readonly client: Client;
  readonly link: HttpLink | undefined;
  readonly transport: Transport;
  readonly end: () => Promise<void>;
  catalogue: Catalogue;
  /** The server said that its tools have changed. */
  stale: boolean;
  closed: boolean;
  /** Its session is lost: no new calls; it is closed when those under way are over. */
  retired: boolean;
  calls: number;
}

const TRIES = 4;
const FIRST_PAUSE_MS = 150;
const FIRST_COOLING_MS = 1000;
const LONGEST_COOLING_MS = 30_000;
const RETRY_PAUSE_MS = 200;
const CLOSING_MS = 2000;
const MAX_PROGRESS = 1000;
const NO_LIMIT_MS = 2_147_483_647;

/** One connection to one server, made when it is first needed and made anew when it is lost. All who use it share each attempt. */
export class Connection {
  readonly secrets = new Secrets();
  readonly #target: Target;
  #status: Status = { state: 'unused' };
  #live: Live | undefined;
  #connecting: Promise<Live> | undefined;
  #refreshing: Promise<void> | undefined;
  #failures = 0;
  #notBefore = 0;
  readonly #ending = new AbortController();
  #isHeld = true;

  constructor(target: Target) {
    this.#target = target;
  }

  get status(): Status {
    return this.#status;
  }

  /**
   * The server's tools: those of the last listing, or a new one when there was none on this connection or the server gave notice.
   * @param options.urgent tries at once even where the last attempts failed
   * @throws UnavailableError, or the signal's reason
   */
  async catalogue(signal: AbortSignal, options: { readonly urgent: boolean }): Promise<Catalogue> {
    const live = await this.#alive(signal, options);
    if (live.stale) {
      this.#refreshing ??= this.#refresh(live).finally(() => (this.#refreshing = undefined));
      await unlessAborted(this.#refreshing, signal);
    }
    // Or that of the session that the listing had to begin.
    return (this.#live ?? live).catalogue;
  }

  /**
   * Calls a tool. What the server did not take is sent again once, and only where that does no harm; a session that it has
   * forgotten is made anew by whoever sees it first, for all.
   * @throws the signal's reason
   */
  async call(request: CallRequest): Promise<CallOutcome> {
    for (let again = request.repeatable; ; again = false) {
      const { signal } = request;
      const live = await this.#alive(signal, { urgent: true });
      try {
        const result = await this.#send(live, request);
        this.#set({ state: 'ready' });
        return { result };
      } catch (error) {
        signal.throwIfAborted();
        const fault = this.#faultOf(error, live);
        const renewed = await this.#afterFault(live, fault, signal);
        const mayPass = fault.kind === 'session' || fault.kind === 'unavailable' || fault.kind === 'lost';
        if (!again || !mayPass || !(await this.#offers(request.tool, signal))) return { fault, renewed };
        if (fault.kind !== 'session') await sleep(RETRY_PAUSE_MS, undefined, { signal });
      }
    }
  }

  /** Whether somebody has a lease; a program that nobody uses does not keep this process alive. */
  hold(holds: boolean): void {
    this.#isHeld = holds;
    const transport = this.#live?.transport;
    if (transport instanceof StdioTransport) transport.hold(holds);
  }

  async close(): Promise<void> {
    this.#ending.abort(new UnavailableError('the connection was closed'));
    const live = this.#live ?? (await this.#connecting?.catch(() => undefined));
    this.#live = undefined;
    await live?.end();
  }

  async #alive(signal: AbortSignal, { urgent }: { readonly urgent: boolean }): Promise<Live> {
    signal.throwIfAborted();
    if (this.#live?.closed === false && !this.#live.retired) return this.#live;
    if (!urgent && this.#connecting === undefined && performance.now() < this.#notBefore)
      throw new UnavailableError(this.#status.error ?? 'it was not available a moment ago');
    return unlessAborted(this.#connect(), signal);
  }

  async #connect(): Promise<Live> {
    this.#connecting ??= this.#tryToConnect().finally(() => (this.#connecting = undefined));
    return this.#connecting;
  }

  async #tryToConnect(): Promise<Live> {
    const until = performance.now() + this.#target.config.connectTimeoutMs;
    for (let tries = 1, pause = FIRST_PAUSE_MS; ; tries += 1, pause *= 2) {
      const timeout = AbortSignal.timeout(Math.max(1, Math.ceil(until - performance.now())));
      const opened = await this.#open(AbortSignal.any([timeout, this.#ending.signal]));
      if ('live' in opened) return this.#take(opened.live);
      const { kind, message } = opened.fault;
      const mayPass = kind === 'session' || kind === 'unavailable' || kind === 'lost';
      if (mayPass && tries < TRIES && !this.#ending.signal.aborted && performance.now() + pause < until) {
        await sleep(pause);
        continue;
      }
      this.#failures += 1;
      this.#notBefore = performance.now() + Math.min(LONGEST_COOLING_MS, FIRST_COOLING_MS * 2 ** (this.#failures - 1));
      this.#set({ state: 'down', error: message });
      throw new UnavailableError(message);
    }
  }

  async #take(live: Live): Promise<Live> {
    this.#failures = 0;
    this.#live = live;
    this.hold(this.#isHeld);
    this.#set({ state: 'ready' });
    if (this.#ending.signal.aborted) await live.end();
    return live;
  }

  async #open(signal: AbortSignal): Promise<{ readonly live: Live } | { readonly fault: Fault }> {
    let transport: Transport | undefined;
    let client: Client | undefined;
    let live: Live | undefined;
    try {
      const { Client: SdkClient } = await import('@modelcontextprotocol/sdk/client/index.js');
      const link = this.#link();
      transport = link === undefined ? this.#program() : await link.transport();
      client = new SdkClient({ name: 'shimline', version: '1' });
      live = {
        client,
        link,
        transport,
        end: endOf(client, transport),
        catalogue: { tools: [], setAside: [] },
        stale: false,
        closed: false,
        retired: false,
        calls: 0,
      };
      this.#listen(live);
      const { catalogue } = await this.#greet(live, signal);
      return { live: Object.assign(live, { catalogue }) };
    } catch (error) {
      live?.end().catch(() => undefined);
      const words = transport instanceof StdioTransport ? transport.lastWords : '';
      const late = `it did not answer within ${this.#target.config.connectTimeoutMs} ms`;
      const fault: Fault = signal.aborted ? { kind: 'timeout', message: late } : faultOf(error, live?.closed === true);
      // Without a transport, or a program to start, further tries find the same.
      const hopeless = transport === undefined || words.startsWith(COMMAND_NOT_FOUND);
      const message = words === '' ? fault.message : `${fault.message}; ${words}`;
      return { fault: this.#shown({ kind: hopeless ? 'refused' : fault.kind, message }) };
    }
  }

  async #greet({ client, transport }: Live, signal: AbortSignal): Promise<{ readonly catalogue: Catalogue }> {
    return whileAsking(signal, async (inner) => {
      const options = { signal: inner, timeout: NO_LIMIT_MS };
      await unlessAborted(client.connect(transport, options), inner);
      return { catalogue: await listTools(client, this.#target.name, this.secrets, options) };
    });
  }

  #listen(live: Live): void {
    // Bad lines and broken streams are told by what fails because of them.
    live.client.onerror = () => undefined;
    live.client.onclose = () => {
      live.closed = true;
      if (this.#live === live && !this.#ending.signal.aborted)
        this.#set({ state: 'down', error: this.#closing(live.transport) });
    };
    live.client.fallbackNotificationHandler = async ({ method }) => {
      if (method === 'notifications/tools/list_changed') live.stale = true;
    };
  }

  #link(): HttpLink | undefined {
    const { name, config, hook } = this.#target;
    if (config.url === undefined) return undefined;
    const url = resolveReferences(config.url, this.secrets);
    for (const value of new URL(url).searchParams.values()) this.secrets.add(value);
    const headers = resolveRecord(config.headers, this.secrets, { allSecret: true });
    return new HttpLink({ name, url, headers, hook }, this.secrets);
  }

  #program(): StdioTransport {
    const { command = '', args, env, cwd } = this.#target.config;
    const own = resolveRecord(env, this.secrets, { allSecret: false });
    return new StdioTransport({ command, args, env: { ...minimalEnvironment(), ...own }, cwd });
  }

  async #send(live: Live, request: CallRequest): Promise<CallResult> {
    let told = 0;
    const ask = async (
      signal: AbortSignal,
      meta: Readonly<Record<string, unknown>>,
      onresumptiontoken?: (token: string) => void,
    ): Promise<CallResult> =>
      live.client.request(
        {
          method: 'tools/call',
          params: {
            name: request.tool,
            arguments: request.args as Record<string, unknown>,
            _meta: { 'shimline/idempotencyKey': request.idempotencyKey, ...meta },
          },
        },
        CallResultSchema,
        {
          signal,
          timeout: Math.min(request.timeoutMs + CLOSING_MS, NO_LIMIT_MS),
          onprogress: ({ progress, total, message }) => {
            told += 1;
            if (told > MAX_PROGRESS) return;
            request.onProgress({
              progress,
              ...(total === undefined ? {} : { total }),
              ...(message === undefined ? {} : { message: this.secrets.hide(message).slice(0, 1000).toWellFormed() }),
            });
          },
          ...(onresumptiontoken === undefined ? {} : { onresumptiontoken }),
        },
      );
    live.calls += 1;
    try {
      return await whileAsking(request.signal, async (signal) =>
        live.link === undefined
          ? ask(signal, {})
          : live.link.follow(signal, async (meta, onToken) => ask(signal, meta, onToken)),
      );
    } finally {
      live.calls -= 1;
      if (live.retired && live.calls === 0) live.end().catch(() => undefined);
    }
  }

  /** @returns whether there is a new session in the place of the one that failed */
  async #afterFault(live: Live, fault: Fault, signal: AbortSignal): Promise<boolean> {
    switch (fault.kind) {
      case 'answered':
      case 'timeout':
        return false;
      case 'refused':
      case 'unavailable':
      case 'lost':
        this.#set({ state: 'down', error: fault.message });
        return false;
      case 'session':
        live.retired = true;
        if (live.calls === 0) live.end().catch(() => undefined);
        return this.#alive(signal, { urgent: true }).then(
          () => true,
          () => false,
        );
    }
  }

  async #offers(tool: string, signal: AbortSignal): Promise<boolean> {
    try {
      const { tools } = await this.catalogue(signal, { urgent: true });
      return tools.some(({ name }) => name === tool);
    } catch {
      return false;
    }
  }

  async #refresh(live: Live): Promise<void> {
    // What is noticed from here on is about another list.
    live.stale = false;
    const { connectTimeoutMs } = this.#target.config;
    try {
      live.catalogue = await whileAsking(AbortSignal.timeout(connectTimeoutMs), async (signal) =>
        listTools(live.client, this.#target.name, this.secrets, { signal, timeout: NO_LIMIT_MS }),
      );
    } catch (error) {
      live.stale = true;
      const fault = this.#faultOf(error, live);
      if (fault.kind === 'session' && this.#live === live) {
        await this.#afterFault(live, fault, AbortSignal.timeout(connectTimeoutMs));
        return;
      }
      this.#set({ state: 'down', error: fault.message });
      throw new UnavailableError(fault.message);
    }
  }

  #closing(transport: Transport): string {
    const words = transport instanceof StdioTransport ? transport.lastWords : '';
    return this.secrets.hide(`the connection was closed${words === '' ? '' : `; ${words}`}`);
  }

  #faultOf(error: unknown, live: Live): Fault {
    const fault = this.#shown(faultOf(error, live.closed));
    return live.closed && fault.kind === 'lost' ? { kind: 'lost', message: this.#closing(live.transport) } : fault;
  }

  #shown(fault: Fault): Fault {
    return { kind: fault.kind, message: this.secrets.hide(fault.message).toWellFormed() };
  }

  #set(status: Status): void {
    this.#status = status;
  }
}

/** Says goodbye where the protocol has a word for it, and ends the transport whatever the server makes of that. */
function endOf(client: Client, transport: Transport): () => Promise<void> {
  let ending: Promise<void> | undefined;
  const end = async (): Promise<void> => {
    if ('terminateSession' in transport && typeof transport.terminateSession === 'function') {
      const goodbye = (transport.terminateSession as () => Promise<void>).call(transport);
      const timer = new AbortController();
      await Promise.race([
        goodbye.catch(() => undefined),
        sleep(CLOSING_MS, undefined, { signal: timer.signal, ref: false }).catch(() => undefined),
      ]);
      timer.abort();
    }
    await client.close();
    await transport.close();
  };
  return async () => (ending ??= end());
}
