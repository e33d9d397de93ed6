import fc from 'fast-check';
import { messageOf } from '../../src/agent/run-errors.js';
import { within } from '../support/wait.js';
import { type Op, SEQUENCES, sequenceText } from './operations.js';
import type { RebuiltServer } from './rebuilt-server.js';
import { Sequence, type SequenceCounts, type SequencePlace } from './sequence.js';
import { type Stage, startRebuiltStage, startStage } from './stage.js';

/** One sequence in so many has its server in a process of its own, with real kills. */
const ONE_IN = 20;

/** Then the next one has a file of its own again, so that its runs are not behind thousands of others. */
const SEQUENCES_OF_A_PLACE = 250;

export interface RandomTestOptions {
  readonly seed: number;
  readonly sequences: number;
  /** Only this one, made as small as it can be where it shows a difference. */
  readonly only?: number | undefined;
  /** Told of each sequence when it is over; false ends the test there. */
  onSequence?(done: number, all: number, violation: string | undefined): boolean;
}

export interface RandomTestResult {
  /** How many were put beside the model. */
  readonly sequences: number;
  readonly steps: number;
  /** Kills and restarts of a process. */
  readonly restarts: number;
  /** Runtimes that were built again on the file of the one before, in one process. */
  readonly rebuilds: number;
  readonly violations: readonly string[];
}

/**
 * Puts random sequences of what clients and operators do to a run beside a small model of it; answers and state must agree. In each
 * the server ends and starts again: in one of twenty as a process that is killed, in the others as a runtime on the same file.
 */
export async function randomSequences(options: RandomTestOptions): Promise<RandomTestResult> {
  const { seed, sequences, only } = options;
  const all = fc.sample(SEQUENCES, { seed, numRuns: sequences });
  const violations: string[] = [];
  const counts = { process: { steps: 0, restarts: 0 }, rebuilt: { steps: 0, restarts: 0 } };
  let done = 0;
  let stopped = false;
  for (const how of ['process', 'rebuilt'] as const) {
    if (stopped) break;
    const places = new Places(how);
    try {
      for (const [index, ops] of all.entries()) {
        if ((index % ONE_IN === 0) !== (how === 'process') || (only !== undefined && index !== only)) continue;
        const difference = await places.differenceIn(ops, counts[how]);
        const named = `sequence ${index} of seed ${seed}`;
        const violation = difference === undefined ? undefined : `${named} (${sequenceText(ops)}): ${difference}`;
        if (violation !== undefined) violations.push(violation);
        if (violation !== undefined && only !== undefined) violations.push(await places.smallest(options, index));
        done += 1;
        stopped = options.onSequence?.(done, only === undefined ? sequences : 1, violation) === false;
        if (stopped) break;
      }
    } finally {
      await places.close();
    }
  }
  const { process, rebuilt } = counts;
  return {
    sequences: done,
    steps: process.steps + rebuilt.steps,
    restarts: process.restarts,
    rebuilds: rebuilt.restarts,
    violations,
  };
}

/** Where sequences happen, one after the other; after a difference the next one happens in a fresh place. */
class Places {
  readonly #how: 'process' | 'rebuilt';
  #used = 0;
  #place: (SequencePlace & { readonly strays?: unknown[] }) | undefined;

  constructor(how: 'process' | 'rebuilt') {
    this.#how = how;
  }

  async differenceIn(ops: readonly Op[], counts: SequenceCounts): Promise<string | undefined> {
    try {
      this.#used += 1;
      if (this.#used % SEQUENCES_OF_A_PLACE === 0) await this.close();
      this.#place ??= this.#how === 'process' ? await inProcess() : await rebuilt();
      await new Sequence(this.#place, counts).run(ops);
      const [stray] = this.#place.strays ?? [];
      if (stray !== undefined) throw new Error(`an error went astray: ${messageOf(stray)}`);
      return undefined;
    } catch (error) {
      const tail = this.#place?.stage.server.tail() ?? '';
      await this.close();
      return `${messageOf(error)}\n${tail}`;
    }
  }

  /** The smallest sequence that shows a difference. */
  async smallest({ seed }: RandomTestOptions, index: number): Promise<string> {
    const property = fc.asyncProperty(SEQUENCES, async (ops) => {
      const difference = await this.differenceIn(ops, { steps: 0, restarts: 0 });
      if (difference !== undefined) throw new Error(difference);
    });
    const { counterexample, errorInstance } = await fc.check(property, { seed, path: String(index) });
    const [ops] = counterexample ?? [];
    return ops === undefined
      ? 'it did not show again'
      : `as small as it gets: ${sequenceText(ops)}: ${messageOf(errorInstance)}`;
  }

  async close(): Promise<void> {
    const place = this.#place;
    this.#place = undefined;
    // Where something broke, the end may break too: the next sequence has a place of its own.
    await within(place?.stage.close() ?? Promise.resolve(), 30_000, 'the end of a stage').catch(() => undefined);
  }
}

async function inProcess(): Promise<SequencePlace> {
  const stage: Stage = await startStage();
  return {
    stage,
    restart: async (how) => {
      if (how === 'kill') await stage.server.kill9();
      await stage.server.restart();
    },
  };
}

async function rebuilt(): Promise<SequencePlace & { readonly strays: unknown[] }> {
  const stage: Stage<RebuiltServer> = await startRebuiltStage();
  return {
    stage,
    strays: stage.server.strays,
    restart: async (how) => stage.server.rebuild(how === 'kill' ? 'abrupt' : 'graceful'),
  };
}
