import { z } from 'shimline/shims';

/** What an agent may write into the config of `skills`. */
export const skillsConfig = z.strictObject({
  directories: z.array(z.string().min(1)).min(1).meta({
    description:
      'Folders that hold skill folders; relative ones are below the working directory of the server. Of two skills of one name the first counts.',
  }),
  only: z
    .array(z.string())
    .optional()
    .meta({ description: 'Names of the skills that the agent has; all where nothing is said.' }),
  applyTools: z.boolean().default(true).meta({
    description: 'Whether the allowed and disallowed tools of active skills are applied to what the model is given.',
  }),
  showPaths: z.boolean().default(false).meta({
    description: 'Whether the model is told where the folder of an active skill lies, e.g. to run its scripts.',
  }),
  maxChars: z
    .int()
    .min(100)
    .default(50_000)
    .meta({ description: 'Characters of a body or a file that are given at once; the rest is read with an offset.' }),
  reloadChars: z.int().nonnegative().default(20_000).meta({
    description:
      'An active body that is gone from the history is put back where it has no more characters; of a longer one the model is told to activate it again.',
  }),
});

export type SkillsConfig = z.output<typeof skillsConfig>;
