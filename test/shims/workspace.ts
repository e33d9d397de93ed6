import { mkdirSync, readFileSync, realpathSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import workspaceTools from '../../shims/workspace-tools/index.js';
import type { LifecycleEvent } from '../../src/agent/events.js';
import { type TestedRun, testShim } from '../../src/testing.js';
import { temporaryFolder } from '../support/wait.js';

/** What an agent may write into the shim's config. */
export type WorkspaceInput = NonNullable<Parameters<typeof workspaceTools.create>[0]>;
export type Call = readonly [tool: string, args?: Readonly<Record<string, unknown>>];

export interface Outcome {
  readonly name: string;
  readonly ok: boolean;
  readonly result?: unknown;
  readonly error?: { readonly message: string; readonly kind?: string };
}

/** A fresh folder with files in it, as its real path. */
export function folderWith(files: Readonly<Record<string, string | Buffer>> = {}): string {
  const folder = realpathSync(temporaryFolder('workspace-'));
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), text);
  }
  return folder;
}

/** What each completed call came to, in the order of their ends. */
export function outcomesOf(events: readonly (LifecycleEvent | Readonly<Record<string, unknown>>)[]): Outcome[] {
  return events
    .filter((event) => event.type === 'tool.completed')
    .map((event) => {
      const { name, ok, result, error } = event as unknown as Outcome;
      return { name, ok, ...(ok ? { result } : { error: error! }) };
    });
}

/** Runs turns of calls, one list a turn, in an agent with the tools. */
export async function runTurns(config: WorkspaceInput, ...turns: readonly (readonly Call[])[]): Promise<TestedRun> {
  const script = turns.map((calls) => ({
    toolCalls: calls.map(([toolName, input = {}]) => ({ toolName, input: input as never })),
  }));
  return testShim(workspaceTools, {
    config: { ...config, policy: { bash: 'allow', ...config.policy } },
    script: [...script, 'done'],
  });
}

/** Runs calls one after the other and gives their outcomes. */
export async function callAll(config: WorkspaceInput, ...calls: readonly Call[]): Promise<Outcome[]> {
  const { events, error } = await runTurns(config, ...calls.map((call) => [call]));
  if (error !== undefined) throw new Error(`the run failed: ${error.message}`);
  return outcomesOf(events);
}

/** The text of one call's result; throws what it failed with. */
export async function textOf(config: WorkspaceInput, ...call: Call): Promise<string> {
  const [outcome] = await callAll(config, call);
  if (outcome?.ok !== true || typeof outcome.result !== 'string') throw new Error(JSON.stringify(outcome));
  return outcome.result;
}

/** What one call was refused with: kind and words. */
export async function refusalOf(
  config: WorkspaceInput,
  ...call: Call
): Promise<readonly [kind: unknown, message: string]> {
  const [outcome] = await callAll(config, call);
  if (outcome?.ok !== false) throw new Error(JSON.stringify(outcome));
  return [outcome.error?.kind, outcome.error?.message ?? ''];
}

/** Whether a process lives; one that has ended may wait for its parent to notice. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return process.platform !== 'linux' || !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ');
  } catch {
    return false;
  }
}
