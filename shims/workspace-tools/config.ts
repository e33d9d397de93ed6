import { isAbsolute } from 'node:path';
import { z } from 'shimline/shims';
import { covers, familyOf, OPERATION_NAMES, OPERATIONS, TOOL_NAMES } from './operations.js';
import { withoutNul } from './text.js';

/** From the mildest to the strictest. */
export const ACTIONS = ['allow', 'ask', 'deny'] as const;
const ActionSchema = z.enum(ACTIONS);
export type Action = z.infer<typeof ActionSchema>;

/** Why a pattern of .gitignore could match nothing. */
function faultOf(pattern: string, index: number): string | undefined {
  const path = pattern.trim();
  if (path === '' || path.startsWith('#')) return 'matches nothing: .gitignore knows a blank and a comment so';
  if (path.startsWith('!') && index === 0)
    return 'excepts something from nothing: it must follow what it is excepted from';
  if (
    path
      .replace(/^!/, '')
      .split('/')
      .some((name, _at, names) => name === '..' || (name === '.' && names.length > 1))
  )
    return 'matches nothing: paths are written from the root, without "." and ".."';
  return undefined;
}

const RuleSchema = z
  .strictObject({
    operations: z.array(z.enum(OPERATION_NAMES)).min(1).meta({
      description: 'Operations it is for; a family ("read", "write", "bash") covers all of its own, "*" all.',
    }),
    action: ActionSchema.meta({ description: 'What becomes of a call that it matches.' }),
    paths: z.array(z.string().min(1)).min(1).optional().meta({
      description: 'Paths it is for, from the root, as .gitignore writes them. A folder covers what is in it.',
    }),
    commands: z
      .array(z.string().min(1))
      .min(1)
      .optional()
      .meta({ description: 'Commands it is for; * stands for any text.' }),
    message: z.string().optional().meta({ description: 'What a person is asked, or the model told.' }),
  })
  .superRefine(({ operations, paths, commands }, context) => {
    // A rule that can never hold looks like protection and is none.
    const refuse = (message: string, ...path: (string | number)[]): void => {
      context.addIssue({ code: 'custom', message, path });
    };
    const families = new Set(
      OPERATIONS.filter((operation) => operations.some((name) => covers(name, operation))).map(familyOf),
    );
    if (paths !== undefined && !families.has('read') && !families.has('write'))
      refuse('is never looked at: none of the operations is one of files', 'paths');
    if (commands !== undefined && !families.has('bash'))
      refuse('is never looked at: "bash" is not among the operations', 'commands');
    for (const [index, path] of (paths ?? []).entries()) {
      const fault = faultOf(path, index);
      if (fault !== undefined) refuse(fault, 'paths', index);
    }
  });
export type PolicyRule = z.output<typeof RuleSchema>;

const PolicySchema = z.strictObject({
  read: ActionSchema.default('allow').meta({ description: 'Reading, where no rule matches.' }),
  write: ActionSchema.default('allow').meta({ description: 'Writing, where no rule matches.' }),
  bash: ActionSchema.default('ask').meta({ description: 'Commands, where no rule matches.' }),
  rules: z
    .array(RuleSchema)
    .default([
      {
        operations: ['write'],
        action: 'deny',
        paths: ['.git'],
        message: 'The files of git are not written by hand; use git.',
      },
    ])
    .meta({ description: 'Rules in no order: of all that match, the strictest holds.' }),
});
export type Policy = z.output<typeof PolicySchema>;

const BashSchema = z.strictObject({
  shell: withoutNul(z.string().min(1))
    .default('bash')
    .meta({ description: 'The shell, by name or path; it must be a bash.' }),
  timeoutMs: z
    .int()
    .positive()
    .default(120_000)
    .meta({ description: 'Milliseconds a command has when the call does not say.' }),
  maxTimeoutMs: z
    .int()
    .positive()
    .max(86_400_000)
    .default(600_000)
    .meta({ description: 'Most milliseconds that a call may ask for.' }),
  env: z
    .record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/), withoutNul(z.string()))
    .default({})
    .meta({ description: 'Variables that commands get, beside the few of every shell (PATH, HOME, LANG, …).' }),
  passEnv: z
    .array(z.string().min(1))
    .default([])
    .meta({ description: 'Names of variables of the server that commands get too. The others they do not get.' }),
});
export type BashConfig = z.output<typeof BashSchema>;

export const ConfigSchema = z
  .strictObject({
    root: z
      .string()
      .min(1)
      .optional()
      .meta({
        description:
          'The folder to work in, absolute or from the folder that the server was started in; it must be there. ' +
          'Default: a folder of the conversation’s own, <DATA_DIR>/workspaces/<run id>.',
      }),
    tools: z
      .array(z.enum(TOOL_NAMES))
      .default([...TOOL_NAMES])
      .meta({ description: 'Which of the tools the agent gets.' }),
    prefix: z
      .string()
      .regex(/^[a-zA-Z0-9_-]{0,40}$/)
      .default('')
      .meta({ description: 'What the names of the tools begin with, for a second workspace of one agent.' }),
    policy: PolicySchema.prefault({}).meta({ description: 'What is allowed, what a person is asked, what is denied.' }),
    maxChars: z
      .int()
      .min(500)
      .max(150_000)
      .default(40_000)
      .meta({ description: 'Most characters of one result; what is left out is said, and how to get it.' }),
    maxImageBytes: z
      .int()
      .nonnegative()
      .max(15_000_000)
      .default(4_000_000)
      .meta({ description: 'Largest image that is shown to the model.' }),
    bash: BashSchema.prefault({}).meta({ description: 'Shell, time and environment of commands.' }),
  })
  .superRefine(({ root, policy }, context) => {
    // Below / every path begins with it.
    if (root === undefined || root === '/' || !isAbsolute(root)) return;
    const before = root.endsWith('/') ? root : `${root}/`;
    for (const [rule, { paths = [] }] of policy.rules.entries())
      for (const [index, path] of paths.entries())
        if (path.replace(/^!/, '').startsWith(before))
          context.addIssue({
            code: 'custom',
            message: 'matches nothing: paths are written from the root, without it',
            path: ['policy', 'rules', rule, 'paths', index],
          });
  });
export type WorkspaceConfig = z.output<typeof ConfigSchema>;
