import { defineShim } from 'shimline/shims';

/** Writes one lasting line into the instructions, as most shims do, once a conversation. */
export default defineShim({
  name: 'bench-brief',
  prepareTurn(turn) {
    if (turn.isFirstForThisAgent) turn.appendSystemInstruction('Answer in one short paragraph.');
  },
});
