import { AsyncLocalStorage } from 'node:async_hooks';
import { messageOf, RunError, ShimError } from '../agent/run-errors.js';
import type { Logger } from '../agent/tools.js';

/** From here on the runtime carries the context along by itself; before, it costs about a tenth of a run's time. */
const CHEAP_SINCE = 24;

/** What can be done about a stray error, once there are runs. */
export interface StrayErrorHost {
  /** Whether there is code of others that could let one go astray. */
  readonly foreignCode: () => boolean;
  /** The shim in whose file an error was made, by its stack. */
  readonly shimAt: (stack: string) => string | undefined;
  /** Ends the run's attempt as failed; does nothing where it is over. */
  readonly failRun: (runId: string, error: RunError) => void;
}

/**
 * Nothing that a client, shim, tool or model does may end the process that everybody's runs live in. A rejection that nobody awaits,
 * or a throw in somebody's timer, is logged, and the run whose code it was fails, and no other.
 */
export class StrayErrors {
  readonly #log: Logger;
  readonly #run = new AsyncLocalStorage<string>();
  readonly #isCheap = Number(process.versions.node.split('.')[0]) >= CHEAP_SINCE;
  #host: StrayErrorHost | undefined;

  constructor(log: Logger) {
    this.#log = log;
  }

  connect(host: StrayErrorHost): void {
    this.#host = host;
  }

  /** Runs what belongs to a run, so that an error which goes astray in it, then or later, is known to be of that run. */
  within<T>(runId: string, run: () => T): T {
    return this.#isCheap || this.#host?.foreignCode() === true ? this.#run.run(runId, run) : run();
  }

  /** To be called by the process's own handler, in the context of what went astray. */
  report(error: unknown, message: string): void {
    const runId = runIdOf(error) ?? this.#run.getStore();
    this.#log.error({ err: error, ...(runId === undefined ? {} : { runId }) }, message);
    if (runId === undefined) return;
    const stack = error instanceof Error ? (error.stack ?? '') : '';
    const shim = this.#host?.shimAt(stack);
    this.#host?.failRun(
      runId,
      shim === undefined
        ? new RunError('internal', `An error went astray in this run: ${messageOf(error)}`, { cause: error })
        : new ShimError(shim, 'background', error),
    );
  }
}

function runIdOf(error: unknown): string | undefined {
  if (typeof error !== 'object' || error === null || !('runId' in error)) return undefined;
  return typeof error.runId === 'string' ? error.runId : undefined;
}
