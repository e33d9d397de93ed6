import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import type { JSONRPCMessage } from '@modelcontextprotocol/sdk/types.js';

export interface Program {
  readonly command: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string | undefined;
}

export const COMMAND_NOT_FOUND = 'the command was not found';

/** A longer message ends the connection: nothing that a model can use is that long. */
const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;
const KEPT_STDERR_CHARS = 2000;
/** How long a program may take to end after the end of its input, and again after SIGTERM. */
const GRACE_MS = [1500, 1000] as const;

/**
 * Leads the program's process group and ends it as a whole, whatever happens to us: descriptor 3 is one end of a socket whose
 * other end only this process has, so a SIGKILL closes it. It gets SIGTERM then, and SIGKILL a second later; what the program
 * leaves behind when it ends by itself is killed too. Its exit code comes back through descriptor 3.
 */
const WATCHED = `
exec 4<&0 </dev/null
"$@" <&4 4<&- 3<&- &
child=$!
exec 4<&- >/dev/null 2>&1
( trap '' TERM HUP INT; read -r _ <&3; kill -TERM 0; sleep 1; kill -KILL 0 ) &
trap : TERM HUP INT
trap '' PIPE
while :; do
  wait "$child"
  code=$?
  kill -0 "$child" || break
done
echo "$code" >&3
kill -KILL 0
`;

interface Holding {
  ref?(): void;
  unref?(): void;
}

/** A server as a child process, in a process group of its own, spoken to line by line. */
export class StdioTransport implements Transport {
  onclose?: (() => void) | undefined;
  onerror?: ((error: Error) => void) | undefined;
  onmessage?: Transport['onmessage'];
  readonly #program: Program;
  #child: ChildProcess | undefined;
  #ended: Promise<unknown> = Promise.resolve();
  #partial: Buffer[] = [];
  #partialBytes = 0;
  readonly #inbox: JSONRPCMessage[] = [];
  #delivered: Promise<void> = Promise.resolve();
  #stderr = '';
  #exit = '';

  constructor(program: Program) {
    this.#program = program;
  }

  /** How the program ended, where it did, and the last that it wrote on stderr. */
  get lastWords(): string {
    const code = this.#exit.trim();
    const how = code === '127' ? COMMAND_NOT_FOUND : code === '' ? '' : `it ended with exit code ${code}`;
    const said = this.#stderr.trim().slice(-500);
    return [how, said === '' ? '' : `stderr: ${said}`].filter((text) => text !== '').join('; ');
  }

  async start(): Promise<void> {
    const { command, args, env, cwd } = this.#program;
    const watched = process.platform !== 'win32';
    const [file, argv] = watched ? ['/bin/sh', ['-c', WATCHED, 'mcp', command, ...args]] : [command, [...args]];
    const child = spawn(file, argv, {
      env,
      ...(cwd === undefined ? {} : { cwd }),
      // A group of its own can be ended as a whole, and a Ctrl-C for us does not reach it before we close it.
      detached: watched,
      windowsHide: true,
      stdio: ['pipe', 'pipe', 'pipe', ...(watched ? (['pipe'] as const) : [])],
    });
    this.#child = child;
    const { stdin, stdout, stderr } = child;
    this.#ended = new Promise((ended) => child.once('close', ended));
    child.once('close', () => this.onclose?.());
    child.on('error', (error) => this.onerror?.(error));
    stdin.on('error', (error) => this.onerror?.(error));
    stdout.on('data', (chunk: Buffer) => {
      this.#take(chunk);
      this.#delivered = this.#delivered.then(async () => this.#deliver());
    });
    stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-KEPT_STDERR_CHARS);
    });
    const watch = child.stdio[3] as Duplex | null | undefined;
    watch?.on('data', (text: Buffer) => (this.#exit += text.toString()));
    watch?.on('error', () => undefined);
    try {
      await once(child, 'spawn');
    } catch (error) {
      // Node blames the program for a folder that is not there.
      const noFolder = cwd !== undefined && error instanceof Error && 'code' in error && error.code === 'ENOENT';
      throw noFolder ? new Error(`the folder ${cwd} is not there`) : error;
    }
  }

  async send(message: JSONRPCMessage): Promise<void> {
    const stdin = this.#child?.stdin;
    if (stdin?.writable !== true) throw new Error('the program has ended');
    if (!stdin.write(`${JSON.stringify(message)}\n`)) await Promise.race([once(stdin, 'drain'), this.#ended]);
  }

  /** Whether it keeps this process alive. */
  hold(holds: boolean): void {
    const handles = [this.#child, ...(this.#child?.stdio ?? [])] as readonly (Holding | null | undefined)[];
    for (const handle of handles) {
      if (holds) handle?.ref?.();
      else handle?.unref?.();
    }
  }

  /** Ends the program: its input first, then SIGTERM and SIGKILL for its group. */
  async close(): Promise<void> {
    const child = this.#child;
    if (child?.pid === undefined) return;
    child.stdin?.end();
    for (const [index, signal] of (['SIGTERM', 'SIGKILL'] as const).entries()) {
      if (await this.#endsWithin(GRACE_MS[index] ?? 0)) return;
      signalGroup(child, signal);
    }
    await this.#ended;
  }

  async #endsWithin(ms: number): Promise<boolean> {
    const timer = new AbortController();
    const ended = await Promise.race([
      this.#ended.then(() => true),
      sleep(ms, false, { signal: timer.signal }).catch(() => false),
    ]);
    timer.abort();
    return ended;
  }

  #take(chunk: Buffer): void {
    let start = 0;
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
      const line = Buffer.concat([...this.#partial, chunk.subarray(start, end)]).toString('utf8');
      this.#partial = [];
      this.#partialBytes = 0;
      start = end + 1;
      this.#read(line);
    }
    if (start === chunk.length) return;
    this.#partial.push(chunk.subarray(start));
    this.#partialBytes += chunk.length - start;
    if (this.#partialBytes <= MAX_MESSAGE_BYTES) return;
    this.#partial = [];
    this.#partialBytes = 0;
    this.onerror?.(new Error('a message of the server is too long'));
    this.close().catch(() => undefined);
  }

  #read(line: string): void {
    const text = line.replace(/^\uFEFF/, '').trim();
    if (text === '') return;
    try {
      this.#inbox.push(JSON.parse(text) as JSONRPCMessage);
    } catch {
      // A program that prints something else on stdout is no reason to give up on it.
      this.onerror?.(new Error('the server wrote a line that is no JSON'));
    }
  }

  /** One message per turn: the SDK hears a notice a moment after it got it, and would drop one that an answer follows at once. */
  async #deliver(): Promise<void> {
    const messages = this.#inbox.splice(0);
    for (const message of messages) {
      this.onmessage?.(message);
      await Promise.resolve();
      await Promise.resolve();
    }
  }
}

function signalGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  try {
    if (process.platform === 'win32' || child.pid === undefined) child.kill(signal);
    else process.kill(-child.pid, signal);
  } catch {
    // It ended in the meantime.
  }
}
