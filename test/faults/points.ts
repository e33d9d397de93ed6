/** A moment of the reference run that can be seen from outside. */
export type Point =
  | { readonly kind: 'event'; readonly type: string; readonly nth: number }
  | { readonly kind: 'request'; readonly nth: number }
  | { readonly kind: 'effect'; readonly n: number };

const event = (type: string, nth = 1): Point => ({ kind: 'event', type, nth });

const POINTS: readonly Point[] = [
  event('run.created'),
  event('run.started'),
  event('turn.started'),
  { kind: 'request', nth: 1 },
  event('model.started'),
  event('model.delta'),
  event('model.delta', 3),
  event('model.completed'),
  event('tool.waiting'),
  event('tool.started'),
  event('tool.started', 2),
  { kind: 'effect', n: 1 },
  { kind: 'effect', n: 2 },
  event('tool.completed'),
  event('tool.completed', 2),
  event('run.waiting'),
  event('run.resumed'),
  event('tool.started', 3),
  { kind: 'effect', n: 3 },
  event('tool.completed', 3),
  event('turn.completed'),
  event('turn.started', 2),
  { kind: 'request', nth: 2 },
  event('model.started', 2),
  event('model.delta', 8),
  event('model.completed', 2),
  event('run.completed'),
];

export const FAULTS = ['kill', 'term', 'delete', 'drop', 'lock', 'disk-once', 'disk-until-healed', 'stall'] as const;
export type Fault = (typeof FAULTS)[number];

export interface FaultCase {
  readonly number: number;
  readonly point: Point;
  readonly fault: Fault;
  /** A kill -9 during the recovery from the first fault, so many milliseconds after it began. */
  readonly secondKillAfterMs: number | undefined;
}

export function nameOf({ number, point, fault, secondKillAfterMs }: FaultCase): string {
  const where =
    point.kind === 'event'
      ? `${point.type} #${point.nth}`
      : point.kind === 'request'
        ? `model request ${point.nth}`
        : `effect ${point.n}`;
  return `${number}: ${fault} at ${where}${secondKillAfterMs === undefined ? '' : `, kill again after ${secondKillAfterMs} ms`}`;
}

/** All cases, in an order and with delays that follow from the seed. */
export function casesOf(seed: number, second: boolean): FaultCase[] {
  const random = randomOf(seed);
  const pairs = POINTS.flatMap((point) => FAULTS.map((fault) => ({ point, fault })));
  for (let at = pairs.length - 1; at > 0; at -= 1) {
    const other = Math.floor(random() * (at + 1));
    [pairs[at], pairs[other]] = [pairs[other]!, pairs[at]!];
  }
  return pairs.map((pair, at) => ({
    ...pair,
    number: at + 1,
    secondKillAfterMs: second ? Math.floor(random() * 250) : undefined,
  }));
}

/** A small generator (mulberry32), so that a seed means the same everywhere. */
export function randomOf(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
