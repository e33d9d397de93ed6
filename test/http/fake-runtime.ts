import type { FastifyInstance } from 'fastify';
import { pino } from 'pino';
import { onTestFinished } from 'vitest';
import type { Run } from '../../src/agent/run.js';
import { buildApp } from '../../src/app.js';
import { parseConfig } from '../../src/config.js';
import { RunNotFoundError } from '../../src/errors.js';
import type { AgentRuntime, ResumeRun, RunFilter, StartRun } from '../../src/runtime/agent-runtime.js';
import { EventLog } from '../../src/runtime/event-log.js';

export const RUN: Run = {
  id: 'run-1',
  agent: 'demo',
  agentVersion: 1,
  status: 'running',
  attempt: 1,
  recoveries: 0,
  version: 7,
  input: 'hello',
  output: null,
  partialOutput: null,
  finishReason: null,
  error: null,
  usage: { inputTokens: 0, outputTokens: 0, totalTokens: 0, cachedInputTokens: 0, reasoningTokens: 0 },
  turnCount: 0,
  createdAt: '2026-01-01T00:00:00.000Z',
  startedAt: null,
  updatedAt: '2026-01-01T00:00:00.000Z',
  finishedAt: null,
  lastSeq: 3,
  interruptions: [],
  unknownToolCalls: [],
  cancellation: null,
  metadata: {},
  parentRunId: null,
  forkedFrom: null,
  shims: [],
};

/** Answers with constants and writes down what it was asked: only for what HTTP does before and after the runtime. */
export class FakeRuntime implements AgentRuntime {
  readonly calls: (readonly [method: string, ...args: readonly unknown[]])[] = [];
  run = RUN;
  waited: (signal: AbortSignal) => Promise<Run> = async () => this.run;
  faults: readonly string[] = [];
  draining = false;
  replayed = false;
  /** Thrown by the next start. */
  failure: Error | undefined;

  async startRun(request: StartRun): ReturnType<AgentRuntime['startRun']> {
    this.calls.push(['startRun', request]);
    if (this.failure !== undefined) throw this.failure;
    return { runId: this.run.id, run: this.run, after: 0, replayed: this.replayed };
  }
  async resumeRun(runId: string, request: ResumeRun): ReturnType<AgentRuntime['resumeRun']> {
    this.calls.push(['resumeRun', runId, request]);
    return { runId: this.run.id, run: this.run, after: 3 };
  }
  async cancelRun(runId: string): ReturnType<AgentRuntime['cancelRun']> {
    this.calls.push(['cancelRun', runId]);
    return { runId: this.run.id, run: this.run, after: 3 };
  }
  async forkRun(runId: string, request: unknown): ReturnType<AgentRuntime['forkRun']> {
    this.calls.push(['forkRun', runId, request]);
    return { runId: 'run-2', run: { ...this.run, id: 'run-2' }, after: 0 };
  }
  async purgeRun(runId: string): Promise<void> {
    this.calls.push(['purgeRun', runId]);
  }
  getRun(runId: string): Run {
    if (runId !== this.run.id) throw new RunNotFoundError(runId);
    return this.run;
  }
  async getRunJson(runId: string): ReturnType<AgentRuntime['getRunJson']> {
    const run = this.getRun(runId);
    return { json: JSON.stringify(run), version: run.version };
  }
  async waitForRun(...[runId, , { timeoutMs, signal }]: Parameters<AgentRuntime['waitForRun']>): Promise<Run> {
    this.calls.push(['waitForRun', runId, timeoutMs]);
    this.run = await this.waited(signal);
    return this.run;
  }
  listRuns(filter: RunFilter): ReturnType<AgentRuntime['listRuns']> {
    this.calls.push(['listRuns', filter]);
    return { data: [this.run], nextCursor: null };
  }
  getState(): ReturnType<AgentRuntime['getState']> {
    return { instructions: '', history: [], shimState: {}, turnCount: 0, responses: [] };
  }
  listCheckpoints(
    ...[, , page]: Parameters<AgentRuntime['listCheckpoints']>
  ): ReturnType<AgentRuntime['listCheckpoints']> {
    this.calls.push(['listCheckpoints', page]);
    return { data: [], nextCursor: null };
  }
  listEffects(): ReturnType<AgentRuntime['listEffects']> {
    return { data: [], nextCursor: null };
  }
  readEvents(...[, , page]: Parameters<AgentRuntime['readEvents']>): ReturnType<AgentRuntime['readEvents']> {
    this.calls.push(['readEvents', page]);
    return { data: [], lastSeq: this.run.lastSeq };
  }
  listAgents(): ReturnType<AgentRuntime['listAgents']> {
    return [];
  }
  getAgent(): ReturnType<AgentRuntime['getAgent']> {
    return { ...AGENT, source: 'api' };
  }
  async saveAgent(name: string, descriptor: unknown): ReturnType<AgentRuntime['saveAgent']> {
    this.calls.push(['saveAgent', name, descriptor]);
    return { agent: AGENT, created: true };
  }
  async deleteAgent(name: string): Promise<void> {
    this.calls.push(['deleteAgent', name]);
  }
  async previewAgent(): Promise<unknown> {
    return {};
  }
  listShims(): readonly unknown[] {
    return [];
  }
  listModels(): readonly unknown[] {
    return [];
  }
  readinessFaults(): readonly string[] {
    return this.faults;
  }
}

const AGENT = {
  name: 'demo',
  description: '',
  model: 'scripted/demo',
  instructions: '',
  shims: [],
  tools: {},
  modelArgs: {},
  handoffs: [],
  limits: {},
  metadata: {},
  version: 1,
};

export interface TestApp {
  readonly app: FastifyInstance;
  readonly runtime: FakeRuntime;
  /** The parsed log lines. */
  readonly logged: Record<string, unknown>[];
}

/** The HTTP side over a fake runtime, closed with the test. */
export async function testApp(env: Readonly<Record<string, string>> = {}): Promise<TestApp> {
  const runtime = new FakeRuntime();
  const logged: Record<string, unknown>[] = [];
  const log = pino({ level: 'debug' }, { write: (line) => logged.push(JSON.parse(line) as Record<string, unknown>) });
  const eventLog = Object.create(EventLog.prototype) as EventLog; // Streams are tested with a real one.
  const app = await buildApp({ config: parseConfig(env), runtime, eventLog, runCounts: () => ({ running: 2 }), log });
  onTestFinished(async () => app.close());
  return { app, runtime, logged };
}
