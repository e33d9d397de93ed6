import { cpuMs } from './process-figures.js';
import type { Program } from './program.js';

export interface HttpRequest {
  readonly method?: 'GET' | 'POST';
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: object;
}

/** One side of a comparison: a process and what is asked of it. */
export interface Side {
  readonly pid: number;
  readonly url: string;
  /** The n-th connection sends the n-th request. */
  readonly requests: readonly HttpRequest[];
  /** What a whole answer contains. */
  readonly mark?: string;
}

/** What a window has shown. */
export interface Figures {
  readonly done: number;
  readonly perSecond: number;
  /** Milliseconds of the server's CPU per answer, all threads. */
  readonly cpuMs: number;
  /** Milliseconds from the request to the first event, one per answer. */
  readonly firsts: readonly number[];
}

interface LoadResult {
  readonly done: number;
  readonly ms: number;
  readonly firsts: readonly number[];
  readonly faults: Readonly<Record<string, number>>;
}

export interface LoadOptions {
  readonly concurrency: number;
  readonly ms?: number;
  /** How many requests each connection sends, where it is not the time that ends the window. */
  readonly each?: number;
}

/** Loads one side for a while. @throws when an answer is not what it must be: figures of failing requests say nothing */
export async function loadWindow(client: Program, side: Side, options: LoadOptions): Promise<Figures> {
  const { pid, url, requests, mark } = side;
  const before = cpuMs(pid);
  const { done, ms, firsts, faults } = await client.ask<LoadResult>('load', { url, requests, mark, ...options });
  const used = cpuMs(pid) - before;
  if (Object.keys(faults).length > 0) throw new Error(`${url}${requests[0]?.path ?? ''}: ${JSON.stringify(faults)}`);
  return { done, perSecond: (done / ms) * 1000, cpuMs: used / done, firsts };
}

export interface Pair {
  readonly ours: Figures;
  readonly ceiling: Figures;
}

export interface CompareOptions extends LoadOptions {
  readonly rounds: number;
}

/**
 * Loads both sides in turn. A round is ours, ceiling, ceiling, ours, so a machine that grows slower or faster meanwhile does not
 * tell; only ratios within a round mean anything.
 */
export async function compare(
  client: Program,
  sides: { readonly ours: Side; readonly ceiling: Side },
  options: CompareOptions,
): Promise<Pair[]> {
  const { rounds, ...window } = options;
  const pairs: Pair[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const first = await loadWindow(client, sides.ours, window);
    const second = await loadWindow(client, sides.ceiling, window);
    const third = await loadWindow(client, sides.ceiling, window);
    const fourth = await loadWindow(client, sides.ours, window);
    pairs.push({ ours: joined(first, fourth), ceiling: joined(second, third) });
  }
  return pairs;
}

function joined(a: Figures, b: Figures): Figures {
  const done = a.done + b.done;
  return {
    done,
    perSecond: (a.perSecond + b.perSecond) / 2,
    cpuMs: (a.cpuMs * a.done + b.cpuMs * b.done) / done,
    firsts: [...a.firsts, ...b.firsts],
  };
}
