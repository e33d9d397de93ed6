import { defineShim, z } from 'shimline/shims';

/** A shim of the demo's own: the tools that it is given wait for a person before they run. */
export default defineShim({
  name: 'ask-first',
  description: 'Lets named tools wait for an approval.',
  config: z.strictObject({ tools: z.array(z.string().min(1)) }),
  prepareTurn(turn) {
    turn.requireApproval(this.config.tools, { message: 'May this tool run?' });
  },
});
