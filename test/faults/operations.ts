import fc from 'fast-check';

/** What the model does about an input, by the input's first word. */
const KINDS = ['say', 'gate', 'pair', 'tool', 'fail', 'hold', 'busy', 'cut'] as const;
export type Kind = (typeof KINDS)[number];

const DECISIONS = ['approve', 'deny', 'edit', 'respond'] as const;
export type Decision = (typeof DECISIONS)[number];

/** What clients and operators do to a run. */
export type Op =
  | { readonly op: 'post' | 'resume'; readonly kind: Kind }
  | { readonly op: 'decide'; readonly decision: Decision }
  | {
      readonly op: /** A run that is to be cancelled when its client goes, and a client that goes. */
        | 'abandon'
        | 'goOn'
        | 'cancel'
        | 'purge'
        | 'release'
        | 'connect'
        | 'disconnect'
        /** The server ends with no time for anything, and starts again. */
        | 'kill'
        /** The server ends with time for its runs to reach a checkpoint, and starts again. */
        | 'restart';
    };

const START: fc.Arbitrary<Op> = fc.record({
  op: fc.constantFrom('post' as const, 'resume' as const),
  // A call that is cut is made again after a pause, so it is not asked for often.
  kind: fc.oneof(
    { weight: 14, arbitrary: fc.constantFrom(...KINDS.slice(0, -1)) },
    { weight: 1, arbitrary: fc.constant('cut' as const) },
  ),
});
const DECIDE: fc.Arbitrary<Op> = fc.record({
  op: fc.constant('decide' as const),
  decision: fc.constantFrom(...DECISIONS),
});
const OTHER: fc.Arbitrary<Op> = fc.record({
  op: fc.constantFrom('abandon', 'goOn', 'cancel', 'purge', 'release', 'connect', 'disconnect', 'connect', 'release'),
});
const END: fc.Arbitrary<Op> = fc.record({ op: fc.constantFrom('kill' as const, 'restart' as const) });

const ops = (maxLength: number): fc.Arbitrary<Op[]> =>
  fc.array(
    fc.oneof(
      { weight: 5, arbitrary: START },
      { weight: 3, arbitrary: DECIDE },
      { weight: 6, arbitrary: OTHER },
      { weight: 1, arbitrary: END },
    ),
    { minLength: 1, maxLength },
  );

/** Sequences in each of which the server ends and starts again at least once, between any two of the others. */
export const SEQUENCES: fc.Arbitrary<readonly Op[]> = fc
  .tuple(ops(9), END, ops(5))
  .map(([before, end, after]) => [...before, end, ...after]);

/** A sequence in one line. */
export function sequenceText(sequence: readonly Op[]): string {
  return sequence
    .map((op) => ('kind' in op ? `${op.op} ${op.kind}` : 'decision' in op ? op.decision : op.op))
    .join(', ');
}
