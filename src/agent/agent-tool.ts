import { z } from 'zod';
import { DelegationLimitError } from './inheritance.js';
import type { RunScope } from './scope.js';
import { defineTool, type Tool, toolFailure } from './tools.js';

export interface AgentToolOptions {
  readonly name: string;
  readonly description: string;
  /** A saved agent by name; without it a helper: this agent with a fresh state and re-bound copies of its shims. */
  readonly agent?: string | undefined;
  /** For a helper: its instructions in place of this agent's. */
  readonly instructions?: string | undefined;
  /** For a helper: the only tools of this agent that it may use. */
  readonly tools?: readonly string[] | undefined;
  readonly needsApproval?: boolean | undefined;
}

/**
 * A tool that gives a task to another agent, which works on it in a run of its own; the result is that run's output. It takes as
 * long as the child does, is cancelled with its call, and a restart finds the same child again. Used-up limits, and a child that
 * fails or is cancelled, are error results.
 * @param turn the turn that the tool is contributed to
 */
export function agentTool(turn: Pick<RunScope, 'spawnAgent'>, options: AgentToolOptions): Tool {
  const { name, description, agent, instructions, tools, needsApproval = false } = options;
  return defineTool({
    name,
    description,
    parameters: z.strictObject({
      task: z.string().min(1).describe('The task in full: the agent sees nothing else of this conversation.'),
    }),
    onCrash: 'retry',
    timeoutMs: Number.POSITIVE_INFINITY,
    maxRetries: 0,
    needsApproval,
    execute: async ({ task }, { toolCallId, signal }) => {
      try {
        const result = await turn.spawnAgent({ agent, instructions, tools, input: task, toolCallId, signal });
        if (result.status === 'completed') return result.output;
        const why = result.error === undefined ? '' : `: ${result.error}`;
        return toolFailure(
          `The agent's run ${result.runId} ${result.status === 'failed' ? 'failed' : 'was cancelled'}${why}`,
          { kind: `agent_${result.status}` },
        );
      } catch (error) {
        if (error instanceof DelegationLimitError) return toolFailure(error.message, { kind: error.kind });
        throw error;
      }
    },
  });
}
