import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import { StringDecoder } from 'node:string_decoder';
import { setTimeout as sleep } from 'node:timers/promises';
import type { BashConfig } from './config.js';
import { codeOf, Refusal } from './refusal.js';

export interface CommandRequest {
  readonly command: string;
  readonly cwd: string;
  readonly config: BashConfig;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  readonly onOutput: (stream: 'stdout' | 'stderr', text: string) => void;
}

export interface CommandEnd {
  readonly how: 'exited' | 'timeout' | 'too_much_output';
  /** Null where a signal ended it. */
  readonly exitCode: number | null;
  readonly signalName: string | null;
  /** Whether processes that it had left in the background were ended. */
  readonly leftBehind: boolean;
}

/** More is no output that anybody reads: the command is ended. */
const MOST_OUTPUT_BYTES = 64_000_000;
/** Between asking a group to end and ending it; a cancelled call has a second in all. */
const CANCEL_GRACE_MS = 250;
const TIMEOUT_GRACE_MS = 2000;
/** How long what is left in the pipes may take once all is ended; a process out of reach may hold them for ever. */
const DRAIN_MS = 1000;

/**
 * Runs a command beside a watcher in its group: when the server dies, the watcher's pipe ends and it ends the group. `$0` is a
 * name for messages, `$1` the shell, `$2` the command.
 */
const WRAPPER = `{ read -r _ <&3 || kill -KILL 0; } >/dev/null 2>&1 &
watcher=$!
"$1" -c -- "$2" 3<&-
code=$?
{ kill $watcher; wait $watcher; } >/dev/null 2>&1
exit $code`;

/**
 * Runs a command in a process group of its own, and ends the group with it: at its end, at its time, when the signal aborts, and
 * when the server dies. Only what has left the group on purpose (setsid) is out of reach.
 * @throws Refusal when there is no shell; the signal's reason
 */
export async function runCommand(request: CommandRequest): Promise<CommandEnd> {
  const { command, cwd, config, timeoutMs, signal } = request;
  signal.throwIfAborted();
  const child = spawn(config.shell, ['-c', WRAPPER, 'bash', config.shell, command], {
    cwd,
    env: environmentOf(config),
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
  });
  const group = new ProcessGroup(child);
  let how: CommandEnd['how'] = 'exited';
  const stop = (reason: CommandEnd['how'], graceMs: number): void => {
    if (how === 'exited') how = reason;
    group.end(graceMs);
  };
  const onAbort = (): void => {
    group.end(CANCEL_GRACE_MS);
  };
  signal.addEventListener('abort', onAbort, { once: true });
  const timer = setTimeout(() => {
    stop('timeout', TIMEOUT_GRACE_MS);
  }, timeoutMs);
  let bytes = 0;
  const drained = [child.stdout, child.stderr].map(async (stream, index) =>
    follow(stream, (text, length) => {
      bytes += length;
      if (bytes > MOST_OUTPUT_BYTES) stop('too_much_output', 0);
      else request.onOutput(index === 0 ? 'stdout' : 'stderr', text);
    }),
  );
  // The watcher's end may break at any time; that is what it is for.
  child.stdio[3]?.on('error', () => undefined);
  try {
    const { exitCode, signalName } = await exitOf(child, config.shell);
    signal.throwIfAborted();
    const leftBehind = group.isAlive;
    group.end(0);
    await Promise.race([Promise.all(drained), sleep(DRAIN_MS, undefined, { ref: false })]);
    signal.throwIfAborted();
    return { how, exitCode, signalName, leftBehind };
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
    group.end(0);
    for (const stream of child.stdio) stream?.destroy();
    await Promise.all(drained);
  }
}

/** A child and all that it has started and that has not left. */
class ProcessGroup {
  readonly #child: ChildProcess;
  #timer: NodeJS.Timeout | undefined;

  constructor(child: ChildProcess) {
    this.#child = child;
  }

  /** Whether anybody of it is left. */
  get isAlive(): boolean {
    return this.#signal(0);
  }

  /** Asks all to end, and ends them after a while; at once with a grace of 0. */
  end(graceMs: number): void {
    clearTimeout(this.#timer);
    if (graceMs === 0) {
      this.#signal('SIGKILL');
      return;
    }
    this.#signal('SIGTERM');
    this.#timer = setTimeout(() => {
      this.#signal('SIGKILL');
    }, graceMs);
  }

  #signal(name: NodeJS.Signals | 0): boolean {
    const { pid } = this.#child;
    if (pid === undefined) return false;
    try {
      return process.kill(-pid, name);
    } catch (error) {
      // A group that is not there any more is no fault.
      if (codeOf(error) === 'ESRCH' || codeOf(error) === 'EPERM') return false;
      throw error;
    }
  }
}

async function exitOf(
  child: ChildProcess,
  shell: string,
): Promise<{ readonly exitCode: number | null; readonly signalName: string | null }> {
  try {
    const [exitCode, signalName] = (await once(child, 'exit')) as [number | null, string | null];
    return { exitCode, signalName };
  } catch (error) {
    if (codeOf(error) === 'ENOENT')
      throw new Refusal(
        'no_shell',
        `There is no shell ${JSON.stringify(shell)} on this server, so no command can be run.`,
      );
    throw error;
  }
}

async function follow(stream: Readable | null, take: (text: string, bytes: number) => void): Promise<void> {
  if (stream === null) return;
  const decoder = new StringDecoder('utf8');
  try {
    for await (const chunk of stream) {
      const bytes = chunk as Buffer;
      const text = decoder.write(bytes);
      if (text !== '') take(text, bytes.length);
    }
  } catch {
    // It was destroyed, since a process that nobody can reach holds the other end.
  }
  const rest = decoder.end();
  if (rest !== '') take(rest, 0);
}

/** What every shell needs and what holds no secret; the server's keys are among the rest. */
const PASSED = ['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'LANG', 'LC_ALL', 'LC_CTYPE', 'TZ', 'TMPDIR'];
/** Nobody is there to page or to type. */
const FIXED = { TERM: 'dumb', PAGER: 'cat', GIT_PAGER: 'cat', GIT_TERMINAL_PROMPT: '0' };

function environmentOf({ env, passEnv }: BashConfig): Record<string, string> {
  // eslint-disable-next-line no-restricted-properties -- a command needs the PATH of the server; the rest it does not get.
  const own = process.env;
  const passed = [...PASSED, ...passEnv].flatMap((name) => {
    const value = own[name];
    return value === undefined ? [] : [[name, value] as const];
  });
  return { ...FIXED, ...Object.fromEntries(passed), ...env };
}
