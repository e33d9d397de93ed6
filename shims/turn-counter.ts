import { defineShim, z } from 'shimline/shims';

/** Counts turns twice: in a state that survives with the conversation, and in the memory of one attempt. */
export default defineShim({
  name: 'turn-counter',
  version: 1,
  description:
    'Counts the turns of the conversation in its own state, and those of this attempt in the transient state.',
  state: z.object({ turns: z.int().nonnegative().default(0) }),
  prepareTurn(turn) {
    turn.state.turns += 1;
    turn.transientState.increment(`${this.name}:turns`);
  },
});
