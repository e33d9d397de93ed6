import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { Channel } from './channel.js';

const folder = new URL('programs/', import.meta.url);
const children = new Set<ChildProcess>();

// A bench that dies leaves nothing behind.
process.once('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});

/** A shell's way to a process with as many open files as it may have; ten thousand streams need more than the usual limit. */
export const MORE_FILES = 'ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -H -n)"; exec "$@"';

/** Kills a child with this process, whatever happens. */
export function own(child: ChildProcess): ChildProcess {
  children.add(child);
  child.once('exit', () => children.delete(child));
  return child;
}

/**
 * A program of `programs/` as a process of its own: plain JavaScript without any loader, so that what is measured is the program.
 */
export class Program {
  readonly url: string;
  readonly #child: ChildProcess;
  readonly #channel: Channel;

  private constructor(child: ChildProcess, url: string) {
    this.#child = child;
    this.#channel = new Channel(child);
    this.url = url;
  }

  /** Starts it and waits until it says where it listens. */
  static async start(name: string, options: object = {}, nodeOptions: readonly string[] = []): Promise<Program> {
    const file = fileURLToPath(new URL(`${name}.mjs`, folder));
    const child = own(
      spawn('bash', ['-c', MORE_FILES, 'bash', process.execPath, ...nodeOptions, file, JSON.stringify(options)], {
        stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
        env: plainEnvironment(),
      }),
    );
    const ended = once(child, 'exit').then(([code]) => {
      throw new Error(`${name} ended (${String(code)}) before it was ready`);
    });
    const [{ url = '' }] = (await Promise.race([once(child, 'message'), ended])) as [{ readonly url?: string }];
    ended.catch(() => undefined);
    return new Program(child, url);
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Has it do something and resolves with the result. */
  async ask<T>(command: string, input: object = {}): Promise<T> {
    return this.#channel.ask<T>(command, input);
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    this.#child.kill('SIGKILL');
    await once(this.#child, 'exit');
  }
}

/** Loaders and flags of the bench itself are no business of the measured processes. */
export function plainEnvironment(): Record<string, string> {
  const { PATH = '', HOME = '' } = process.env;
  return { PATH, HOME };
}
