import { createHash } from 'node:crypto';
import { LogicEngine } from 'json-logic-engine';
import picomatch from 'picomatch';
import { z } from 'shimline/shims';

/** Interpreted, never compiled: no code is made from a config. */
const engine = new LogicEngine(undefined, { disableInline: true });
/** Operators whose operand is data, not logic. */
const QUOTING = new Set(['preserve']);

/** What is no JSON Logic in an expression; undefined when it is. */
function logicFault(logic: unknown): string | undefined {
  if (Array.isArray(logic)) return logic.map(logicFault).find((fault) => fault !== undefined);
  if (typeof logic !== 'object' || logic === null) return undefined;
  const entries: readonly (readonly [string, unknown])[] = Object.entries(logic);
  const [only] = entries;
  if (only === undefined || entries.length > 1) return 'an expression is an object with one operator';
  const [operator, operand] = only;
  if (!Object.hasOwn(engine.methods as object, operator)) return `${JSON.stringify(operator)} is no operator`;
  return QUOTING.has(operator) ? undefined : logicFault(operand);
}

const logic = z.json().superRefine((value, context) => {
  const fault = logicFault(value);
  if (fault !== undefined) context.addIssue(`must be JSON Logic: ${fault}`);
});

const globs = z.array(z.string().min(1)).min(1).optional();
const scopes = z.array(z.enum(['once', 'run', 'agent']));

const ruleSchema = z
  .strictObject({
    action: z.enum(['allow', 'ask', 'deny']).meta({ description: 'What becomes of a call that the rule matches.' }),
    tools: globs.meta({ description: 'Names of tools, globs allowed (`mcp_*`); any when absent.' }),
    operations: globs.meta({
      description: 'Operations, globs allowed; `write` stands for `write:*` too. Any when absent.',
    }),
    when: logic.optional().meta({
      description:
        'JSON Logic over `arguments`, `tool`, `operation`, `agent`, `key` and `metadata`; true when absent. One that fails matches, unless the rule allows.',
    }),
    message: z.string().optional().meta({ description: 'What the person is asked.' }),
    reason: z.string().optional().meta({ description: 'Why the model may not; for `deny`.' }),
    expiresInMs: z.int().positive().optional().meta({ description: 'In place of the `expiresInMs` of the config.' }),
    covers: z.enum(['tool', 'arguments']).default('tool').meta({
      description:
        'What a decision for the run or the agent covers: the calls of this tool that this rule asks about, or only those with the same arguments.',
    }),
    scopes: scopes.optional().meta({ description: 'In place of the `scopes` of the config.' }),
  })
  .refine(({ tools, operations, when }) => tools !== undefined || operations !== undefined || when !== undefined, {
    error: 'must name tools, operations or a condition; for all other calls there is "otherwise"',
  });
type Rule = z.output<typeof ruleSchema>;

/** The operations of tools of these names that do not say them; of a tool with several the strictest verdict counts. */
const OPERATIONS: Readonly<Record<string, readonly string[]>> = {
  read: ['read'],
  find: ['read:find'],
  grep: ['read:grep'],
  ls: ['read:ls'],
  write: ['write:create_file', 'write:overwrite'],
  patch: ['write:patch'],
  bash: ['bash:execute_command'],
};

export const configSchema = z.strictObject({
  rules: z
    .array(ruleSchema)
    .default([{ operations: ['read'], action: 'allow', covers: 'tool' }])
    .meta({ description: 'In order: the first rule that matches a call decides. By default reading is allowed.' }),
  otherwise: z
    .enum(['allow', 'ask', 'deny'])
    .default('ask')
    .meta({ description: 'What becomes of a call that no rule matches.' }),
  operations: z
    .record(z.string(), z.array(z.string().min(1)).min(1))
    .default({})
    .meta({
      description: 'The operations of a tool, by its name, in place of those that the tool itself says.',
    }),
  expiresInMs: z
    .int()
    .positive()
    .optional()
    .meta({ description: 'Past it a call that nobody decided is denied; never when absent.' }),
  scopes: scopes.default(['once', 'run', 'agent']).meta({
    description: 'How far a decision may reach: this call, this run, or every run of the agent under the same key.',
  }),
  maxDenials: z.int().positive().default(1).meta({
    description: 'After so many denials of one call the same call is answered without asking, until new input comes.',
  }),
});
export type ApprovalConfig = z.output<typeof configSchema>;

/** A call as the rules see it. `variants` are its arguments as the model gave them and as the tool gets them. */
export interface Subject {
  readonly tool: string;
  /** What the tool says that its calls may do. */
  readonly operations: readonly string[] | undefined;
  readonly variants: readonly unknown[];
  readonly agent: string;
  readonly key: string | null;
  readonly metadata: Readonly<Record<string, string>>;
}

/** One thing that a person has to say yes to. `grant` is what a wider decision is remembered by. */
export interface Ask {
  readonly rule: number;
  readonly grant: string;
}
export type Verdict =
  | { readonly action: 'allow' }
  | { readonly action: 'ask'; readonly asks: readonly Ask[] }
  | { readonly action: 'deny'; readonly reason: string | undefined };

/** A rule that asks, with what it asks; the last one stands for the calls that no rule matches. */
export interface AskingRule {
  readonly index: number;
  readonly message: string | undefined;
  readonly expiresInMs: number | undefined;
  readonly scopes: readonly ('once' | 'run' | 'agent')[];
}

interface CompiledRule {
  readonly rule: Rule;
  readonly digest: string;
  readonly matchesTool: (tool: string) => boolean;
  readonly matchesOperation: (operation: string | undefined) => boolean;
}

/** The rules of one config, made ready. */
export class Rules {
  readonly #config: ApprovalConfig;
  readonly #rules: readonly CompiledRule[];

  constructor(config: ApprovalConfig) {
    this.#config = config;
    this.#rules = config.rules.map(compile);
  }

  /** Those that can ask, each with its own question. */
  asking(): readonly AskingRule[] {
    const { rules, otherwise, expiresInMs, scopes: all } = this.#config;
    const asking = rules.flatMap((rule, index) =>
      rule.action === 'ask'
        ? [
            {
              index,
              message: rule.message,
              expiresInMs: rule.expiresInMs ?? expiresInMs,
              scopes: rule.scopes ?? all,
            },
          ]
        : [],
    );
    if (otherwise === 'ask') asking.push({ index: rules.length, message: undefined, expiresInMs, scopes: all });
    return asking;
  }

  /** What becomes of a call: the strictest of what the first matching rule says of each of its operations and forms. */
  judge(subject: Subject): Verdict {
    const { otherwise, operations } = this.#config;
    const own = Object.hasOwn(operations, subject.tool) ? operations[subject.tool] : undefined;
    const known = Object.hasOwn(OPERATIONS, subject.tool) ? OPERATIONS[subject.tool] : undefined;
    const asks = new Map<string, Ask>();
    const said = subject.operations?.length === 0 ? undefined : subject.operations;
    for (const operation of own ?? said ?? known ?? [undefined]) {
      for (const args of subject.variants) {
        const found = this.#rules.findIndex((compiled) => matches(compiled, subject, operation, args));
        const compiled = this.#rules[found];
        const action = compiled?.rule.action ?? otherwise;
        if (action === 'deny') return { action, reason: compiled?.rule.reason };
        if (action === 'allow') continue;
        const rule = compiled === undefined ? this.#rules.length : found;
        const exact = compiled?.rule.covers === 'arguments' ? [digestOf(args)] : [];
        const grant = digestOf([subject.tool, operation ?? null, compiled?.digest ?? 'otherwise', ...exact]);
        asks.set(grant, { rule, grant });
      }
    }
    return asks.size === 0 ? { action: 'allow' } : { action: 'ask', asks: [...asks.values()] };
  }
}

function compile(rule: Rule): CompiledRule {
  const { tools, operations, when = null, covers } = rule;
  const ofTool = globOf(tools);
  const ofOperation = globOf(operations?.flatMap((glob) => (glob.includes(':') ? [glob] : [glob, `${glob}:*`])));
  return {
    rule,
    // A decision is remembered for what the rule said then: another rule asks anew.
    digest: digestOf([tools ?? null, operations ?? null, when, covers]),
    matchesTool: ofTool,
    matchesOperation: (operation) => operations === undefined || (operation !== undefined && ofOperation(operation)),
  };
}

function globOf(globs: readonly string[] | undefined): (text: string) => boolean {
  return globs === undefined ? () => true : picomatch([...globs], { bash: true, dot: true, nonegate: true });
}

function matches(
  { rule, matchesTool, matchesOperation }: CompiledRule,
  { tool, agent, key, metadata }: Subject,
  operation: string | undefined,
  args: unknown,
): boolean {
  if (!matchesTool(tool) || !matchesOperation(operation)) return false;
  if (rule.when === undefined) return true;
  try {
    const data = { arguments: args, tool, operation: operation ?? null, agent, key, metadata };
    return engine.truthy(engine.run(rule.when, data)) as boolean;
  } catch {
    // What cannot be judged is not let through.
    return rule.action !== 'allow';
  }
}

/** The same for equal JSON, whatever the order of its keys. */
export function digestOf(value: unknown): string {
  return createHash('sha256')
    .update(JSON.stringify([sorted(value)]))
    .digest('hex')
    .slice(0, 32);
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== 'object' || value === null) return value;
  return Object.entries(value)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, inner]) => [name, sorted(inner)]);
}
