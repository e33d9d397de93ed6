import type { z } from 'zod';
import { DefaultAgent, type DefaultAgentOptions } from '../agent/default-agent.js';
import type { ShimDefinition } from '../agent/define-shim.js';
import type { LifecycleEvent } from '../agent/events.js';
import type { RunResult } from '../agent/hooks.js';
import type { JsonValue } from '../agent/json.js';
import type { HistoryItem } from '../agent/messages.js';
import { RunCancelledError, type RunErrorData, runErrorData } from '../agent/run-errors.js';
import type { RunState } from '../agent/run-state.js';
import { Shim } from '../agent/shim.js';
import type { PromptSpec } from '../agent/template.js';
import { loadedShim } from '../runtime/shim-definition.js';
import { type RecordedRequest, type ScriptedAnswer, ScriptedModel } from './scripted-model.js';

type AnyConfig = z.ZodType<Record<string, unknown>>;

/** A class as a shim file may export it. */
export type ShimClass = new (config: Readonly<Record<string, unknown>>, context: { readonly name?: string }) => Shim;

/** What `testShim` can test: an instance, what `defineShim` gives, or a class. */
export type TestableShim<C extends AnyConfig = AnyConfig> = Shim | ShimDefinition<C> | ShimClass;

/** How a shim is tested. What is not named here is as in `DefaultAgentOptions`. */
export interface TestShimOptions<C extends AnyConfig = AnyConfig>
  extends Omit<DefaultAgentOptions, 'model' | 'models' | 'shims' | 'name'> {
  /** The shim's config, as an agent would have it; refused as the server would refuse it. */
  readonly config?: z.input<C> | undefined;
  /** The instance's own name, as the `as` of an agent's entry. */
  readonly as?: string | undefined;
  /** What the model answers, request by request. Default: one answer, `"ok"`. */
  readonly script?: readonly ScriptedAnswer[] | undefined;
  /** The answer to requests that the script has none for; without it they fail the run. */
  readonly otherwise?: ScriptedAnswer | undefined;
  /** A text or a list of items. Default `"hello"`. */
  readonly input?: HistoryItem | readonly HistoryItem[] | undefined;
  /** Shims that stand before and after it in the agent's list. */
  readonly before?: readonly (Shim | ShimDefinition)[] | undefined;
  readonly after?: readonly (Shim | ShimDefinition)[] | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** One change that a shim made, as a `shim.effect` event tells it. */
export type ShimEffect = LifecycleEvent & {
  readonly type: 'shim.effect';
  readonly shim: string;
  readonly callback: string;
  readonly changes: readonly { readonly what: string; readonly [field: string]: unknown }[];
};

/** What a run with the shim came to. */
export interface TestedRun {
  /** The requests of this run, in order. */
  readonly requests: readonly RecordedRequest[];
  /** Names of the tools that the model was given, request by request. */
  readonly tools: readonly (readonly string[])[];
  /** The saved state of all shims, by key. */
  readonly state: Readonly<Record<string, JsonValue>>;
  readonly instructions: string | PromptSpec;
  readonly history: readonly HistoryItem[];
  readonly events: readonly LifecycleEvent[];
  /** What was changed, and by which shim. */
  readonly effects: readonly ShimEffect[];
  /** The answer; undefined unless the run completed. */
  readonly output: unknown;
  /** Why the run failed; a cancelled run has the `RunCancelledError` in `thrown` only. */
  readonly error: RunErrorData | undefined;
  readonly thrown: unknown;
  readonly model: ScriptedModel;
  readonly agent: DefaultAgent;
  /** Goes on in the same conversation, as a resume does: another run, the same shim. `script` is added to what is left of it. */
  resume(
    input: HistoryItem | readonly HistoryItem[],
    options?: { readonly script?: readonly ScriptedAnswer[]; readonly signal?: AbortSignal },
  ): Promise<TestedRun>;
  /** Ends the agent: its sessions are disposed of. */
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Runs a shim in an agent with a scripted model and tells what it did. A failed or cancelled run is told, not thrown.
 * @throws InvalidShimConfigError
 */
export async function testShim<C extends AnyConfig>(
  shim: TestableShim<C>,
  options: TestShimOptions<C> = {},
): Promise<TestedRun> {
  const { config, as, script = ['ok'], otherwise, input = 'hello', before = [], after = [], signal, ...rest } = options;
  const model = new ScriptedModel(script, otherwise === undefined ? {} : { otherwise });
  const instance = shimOf(shim, config as Readonly<Record<string, unknown>> | undefined, as);
  const agent = new DefaultAgent({ ...rest, model, shims: [...before, instance, ...after] });
  return runOnce(agent, model, input, signal);
}

/** One instance of a shim, made as the server makes it from a file's default export. */
export function shimOf<C extends AnyConfig>(
  shim: TestableShim<C>,
  config?: Readonly<Record<string, unknown>>,
  as?: string,
): Shim {
  if (shim instanceof Shim) return as === undefined ? shim : renamed(shim, as);
  const loaded = loadedShim(shim, { file: '', hash: '' });
  return loaded.create(config, { name: as ?? loaded.name });
}

function renamed(shim: Shim, name: string): never {
  throw new TypeError(
    `The instance ${JSON.stringify(shim.name)} has its name already; give its definition to have it called ${JSON.stringify(name)}.`,
  );
}

async function runOnce(
  agent: DefaultAgent,
  model: ScriptedModel,
  input: HistoryItem | readonly HistoryItem[],
  signal: AbortSignal | undefined,
): Promise<TestedRun> {
  const before = model.requests.length;
  const events: LifecycleEvent[] = [];
  let result: RunResult | undefined;
  let thrown: unknown;
  try {
    const run = agent.runStream(input, signal === undefined ? {} : { signal });
    for await (const event of run) events.push(event);
    result = await run.result;
  } catch (error) {
    thrown = error;
  }
  const requests = model.requests.slice(before);
  const runState: RunState = agent.runState;
  return {
    requests,
    tools: requests.map((request) => request.tools),
    state: runState.shimState.toJSON(),
    instructions: runState.instructions,
    history: runState.history,
    events,
    effects: events.filter((event): event is ShimEffect => event.type === 'shim.effect'),
    output: result?.finalOutput,
    error: thrown === undefined || thrown instanceof RunCancelledError ? undefined : runErrorData(thrown),
    thrown,
    model,
    agent,
    resume: async (next, { script = model.remaining > 0 ? [] : ['ok'], signal: nextSignal } = {}) => {
      model.extend(script);
      return runOnce(agent, model, next, nextSignal);
    },
    [Symbol.asyncDispose]: async () => {
      await agent[Symbol.asyncDispose]();
    },
  };
}
