import { defineShim, defineTool, toolFailure, z } from 'shimline/shims';

const clock = defineTool({
  name: 'clock',
  description: 'Tells the present date and time in a time zone.',
  parameters: z.strictObject({
    zone: z.string().default('UTC').meta({ description: 'IANA time zone, e.g. Europe/Berlin.' }),
  }),
  // It only reads: after a crash it may simply be asked again.
  onCrash: 'retry',
  execute({ zone }) {
    const now = new Date();
    try {
      const local = new Intl.DateTimeFormat('en-GB', { timeZone: zone, dateStyle: 'full', timeStyle: 'long' }).format(
        now,
      );
      return { zone, local, utc: now.toISOString() };
    } catch {
      return toolFailure(`There is no time zone "${zone}". Use an IANA name, e.g. Europe/Berlin.`, {
        kind: 'unknown_zone',
      });
    }
  },
});

/** Contributes a tool: for this turn, as every turn starts from the agent's own tools. */
export default defineShim({
  name: 'clock',
  description: 'Gives the model a tool that tells the time in a time zone.',
  prepareTurn(turn) {
    turn.addTools([clock]);
  },
});
