import { DefaultAgent, type DefaultAgentOptions } from '../../src/agent/default-agent.js';
import type { LifecycleEvent } from '../../src/agent/events.js';
import {
  BoundShim,
  defineShim,
  defineTool,
  type HistoryItem,
  type PreparedTurn,
  type RunResult,
  type Shim,
  type ShimDefinition,
  type Tool,
  z,
} from '../../src/shims.js';
import { type ScriptedAnswer, ScriptedModel } from '../../src/testing.js';

/** The two ways to run an agent in code: whole, or watched. What a rule promises holds for both. */
export const WAYS = ['run', 'runStream'] as const;
export type Way = (typeof WAYS)[number];

export interface Driven {
  readonly result: RunResult | undefined;
  readonly error: unknown;
  /** Empty for `run`, which shows none. */
  readonly events: readonly LifecycleEvent[];
}

type Input = HistoryItem | readonly HistoryItem[];

/** One run, whatever becomes of it. */
export async function drive(
  agent: DefaultAgent,
  input: Input = 'hello',
  { way = 'runStream', signal }: { readonly way?: Way; readonly signal?: AbortSignal } = {},
): Promise<Driven> {
  const options = signal === undefined ? {} : { signal };
  const events: LifecycleEvent[] = [];
  try {
    if (way === 'run') return { result: await agent.run(input, options), error: undefined, events };
    const stream = agent.runStream(input, options);
    for await (const event of stream) events.push(event);
    return { result: await stream.result, error: undefined, events };
  } catch (error) {
    return { result: undefined, error, events };
  }
}

export interface Ran extends Driven {
  readonly agent: DefaultAgent;
  readonly model: ScriptedModel;
}

/** A fresh agent with a scripted model, run once. */
export async function runOnce(
  shims: readonly (Shim | ShimDefinition)[],
  script: readonly ScriptedAnswer[] = ['done'],
  options: Partial<DefaultAgentOptions> & { readonly input?: Input; readonly way?: Way } = {},
): Promise<Ran> {
  const { input = 'hello', way = 'runStream', ...rest } = options;
  const model = new ScriptedModel(script);
  const agent = new DefaultAgent({ model, shims, ...rest });
  return { agent, model, ...(await drive(agent, input, { way })) };
}

/** The text of a prompt's messages, as `role: text`. */
export function promptOf(model: ScriptedModel, request = 0): string[] {
  return (model.requests[request]?.prompt ?? []).map(({ role, content }) => {
    if (typeof content === 'string') return `${role}: ${content}`;
    const parts = content.map((part) => {
      switch (part.type) {
        case 'text':
        case 'reasoning':
          return part.text;
        case 'tool-call':
          return `call ${part.toolName}`;
        case 'tool-result':
          return `result ${'value' in part.output ? JSON.stringify(part.output.value) : ''}`;
        case 'file':
        case 'tool-approval-response':
          return part.type;
      }
    });
    return `${role}: ${parts.join(' + ')}`;
  });
}

/** A tool that says which definition ran. */
export function toolNamed(name: string, says: string = name): Tool {
  return defineTool({ name, description: says, parameters: z.looseObject({}), execute: () => says });
}

/** The descriptions of the tools that a request had, so that definitions of one name can be told apart. */
export function definitionsOf(model: ScriptedModel, request = 0): string[] {
  return (model.requests[request]?.options.tools ?? []).map((tool) =>
    tool.type === 'function' ? (tool.description ?? '') : tool.name,
  );
}

export const calls = (...names: string[]): ScriptedAnswer => ({ toolCalls: names.map((toolName) => ({ toolName })) });

/** A shim with one `prepareTurn`. */
export function onTurn(name: string, prepareTurn: (turn: PreparedTurn) => void | Promise<void>): ShimDefinition {
  return defineShim({ name, prepareTurn });
}

/** A session whose callbacks and end are written down under a label. */
export class NotedSession extends BoundShim {
  readonly #note: (line: string) => void;
  readonly label: string;
  constructor(label: string, note: (line: string) => void) {
    super();
    this.label = label;
    this.#note = note;
  }
  override onRunStart(): void {
    this.#note(`${this.label} start`);
  }
  override prepareTurn(): void {
    this.#note(`${this.label} prepare`);
  }
  override transformMessages(): void {
    this.#note(`${this.label} transform`);
  }
  override onModelResponse(): void {
    this.#note(`${this.label} response`);
  }
  override onRunEnd(): void {
    this.#note(`${this.label} end`);
  }
  override async [Symbol.asyncDispose](): Promise<void> {
    this.#note(`${this.label} dispose`);
  }
}
