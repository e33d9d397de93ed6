import { defineShim, z } from 'shimline/shims';

/** Takes tools away from the model, whoever contributes them and whether before or after this shim. */
export default defineShim({
  name: 'exclude-tools',
  description: 'Hides tools from the model by name.',
  config: z.strictObject({
    names: z.array(z.string().min(1)).meta({ description: 'Names of the tools; one that nobody has is no fault.' }),
  }),
  prepareTurn(turn) {
    turn.excludeTools(this.config.names);
  },
});
