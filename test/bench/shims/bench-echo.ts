import { defineShim, defineTool, z } from 'shimline/shims';

const echo = defineTool({
  name: 'echo',
  description: 'Doubles a number.',
  parameters: z.object({ x: z.number() }),
  execute: ({ x }) => ({ y: x * 2 }),
});

/** The tool of the measured runs. */
export default defineShim({
  name: 'bench-echo',
  prepareTurn(turn) {
    turn.addTools([echo]);
  },
});
