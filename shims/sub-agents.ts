import {
  cutText,
  DelegationLimitError,
  defineShim,
  defineTool,
  type PreparedTurn,
  type SpawnRequest,
  type SpawnResult,
  type Tool,
  toolFailure,
  z,
} from 'shimline/shims';

const AGENT_NAME = /^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$/;
/** What the model calls the helper. */
const HELPER = 'helper';

const config = z
  .strictObject({
    tool: z
      .string()
      .regex(/^[a-zA-Z0-9_-]{1,64}$/)
      .default('agent')
      .meta({ description: 'Name of the tool that gives a task to another agent.' }),
    agents: z
      .array(
        z.strictObject({
          name: z.string().regex(AGENT_NAME).meta({ description: 'A saved agent.' }),
          description: z.string().min(1).meta({ description: 'What it is for, in words for the model.' }),
        }),
      )
      .default([])
      .meta({ description: 'Saved agents that may be given a task, each with what it is for.' }),
    helper: z
      .union([
        z.literal(false),
        z.strictObject({
          description: z.string().min(1).optional().meta({ description: 'What it is for, in words for the model.' }),
          instructions: z
            .string()
            .min(1)
            .optional()
            .meta({ description: "Its instructions, in place of the agent's own." }),
          tools: z.array(z.string().min(1)).optional().meta({ description: 'The only tools that it may use.' }),
        }),
      ])
      .prefault({})
      .meta({ description: 'A copy of this agent with a fresh state; false for none.' }),
    maxResultChars: z
      .int()
      .min(100)
      .default(20_000)
      .meta({ description: 'Characters of an answer that the model gets at most; the rest is cut.' }),
    timeoutMs: z
      .int()
      .positive()
      .max(2_147_000_000)
      .optional()
      .meta({ description: 'Time for one task, after which its agent is cancelled; without it, as long as it takes.' }),
  })
  .refine(({ agents, helper }) => agents.length > 0 || helper !== false, {
    path: ['agents'],
    error: 'without a helper, at least one agent',
  })
  .refine(({ agents }) => new Set(agents.map(({ name }) => name)).size === agents.length, {
    path: ['agents'],
    error: 'each agent once',
  })
  .refine(({ agents, helper }) => helper === false || agents.every(({ name }) => name !== HELPER), {
    path: ['agents'],
    error: `an agent called ${HELPER} only without a helper`,
  });
type Config = z.output<typeof config>;

/** What one call asks for: a saved agent, or a helper as the config has it. */
type Asked = Pick<SpawnRequest, 'agent' | 'instructions' | 'tools'>;

/**
 * Gives the model a tool that hands a task to another agent. The other agent's run is the core's: it has an id and a log of its own,
 * ends with this one, and is found again by the call's id after a crash.
 */
export default defineShim({
  name: 'sub-agents',
  description: 'Gives the model a tool that hands a task to another agent, or to a helper like itself.',
  config,
  prepareTurn(turn) {
    turn.addTools([agentTool(turn, this.config)]);
  },
});

function agentTool(turn: PreparedTurn, settings: Config): Tool {
  const { tool, agents, helper, timeoutMs } = settings;
  const choices = new Map<string, Asked>(agents.map(({ name }) => [name, { agent: name }]));
  if (helper !== false) choices.set(HELPER, { instructions: helper.instructions, tools: helper.tools });
  const names = [...choices.keys()] as [string, ...string[]];
  return defineTool({
    name: tool,
    description: describe(settings),
    parameters: z.strictObject({
      agent: (agents.length === 0 ? z.enum(names).default(HELPER) : z.enum(names)).meta({
        description: 'Who gets the task.',
      }),
      task: z
        .string()
        .min(1)
        .meta({ description: 'The task in full: the agent sees nothing else of this conversation.' }),
    }),
    // The child is found by the call's id, so asking again after a crash goes on with it.
    onCrash: 'retry',
    timeoutMs: Number.POSITIVE_INFINITY,
    maxRetries: 0,
    async execute({ agent, task }, { toolCallId, signal }) {
      const time = timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs);
      const stop = time === undefined ? signal : AbortSignal.any([signal, time]);
      try {
        const result = await turn.spawnAgent({ ...choices.get(agent), input: task, toolCallId, signal: stop });
        return answerOf(agent, result, { settings, late: time?.aborted === true && !signal.aborted });
      } catch (error) {
        if (error instanceof DelegationLimitError)
          return toolFailure(`${error.message} Do the task yourself, or try again later.`, { kind: error.kind });
        throw error;
      }
    },
  });
}

function describe({ agents, helper }: Config): string {
  const lines = agents.map(({ name, description }) => `- ${name}: ${description}`);
  if (helper !== false) {
    const { description = 'a copy of you that knows nothing of this conversation, for work that would fill it up' } =
      helper;
    lines.push(`- ${HELPER}: ${description}`);
  }
  return [
    'Gives a task to another agent, which works on it by itself and answers once. Several calls in one answer work at the same time.',
    'The agents:',
    ...lines,
  ].join('\n');
}

function answerOf(
  agent: string,
  result: SpawnResult,
  how: { readonly settings: Config; readonly late: boolean },
): unknown {
  const { status, output, error = '', runId } = result;
  const { maxResultChars, timeoutMs } = how.settings;
  switch (status) {
    case 'completed':
      return bounded(output, maxResultChars, runId);
    case 'failed': {
      const partial = typeof output === 'string' && output !== '' ? `\nWhat it had written by then:\n${output}` : '';
      return toolFailure(cut(`The agent ${agent} failed (run ${runId}): ${error}${partial}`, maxResultChars), {
        kind: 'agent_failed',
      });
    }
    case 'cancelled':
      return how.late
        ? toolFailure(`The agent ${agent} was not done after ${timeoutMs ?? 0} ms and was cancelled (run ${runId}).`, {
            kind: 'agent_timeout',
          })
        : toolFailure(`The agent ${agent} was cancelled before it was done (run ${runId}).`, {
            kind: 'agent_cancelled',
          });
  }
}

function bounded(output: unknown, most: number, runId: string): unknown {
  if (output === null || output === '') return `The agent answered nothing (run ${runId}).`;
  const text = typeof output === 'string' ? output : JSON.stringify(output);
  return text.length <= most ? output : cut(text, most, ` The whole answer is the output of run ${runId}.`);
}

/** Cuts between characters, and says so. */
function cut(text: string, most: number, where = ''): string {
  if (text.length <= most) return text;
  const kept = cutText(text, most);
  return `${kept}\n[cut: ${text.length - kept.length} of ${text.length} characters left out.${where}]`;
}
