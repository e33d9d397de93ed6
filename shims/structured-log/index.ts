import { join } from 'node:path';
import {
  type AgentTask,
  BoundShim,
  defineShim,
  type PreparedTurn,
  type RunContext,
  type RunEvent,
  type RunResult,
  type RunScope,
  type RunState,
  Shim,
  type ShimBindingContext,
  z,
} from 'shimline/shims';
import { type LineFile, lineFile } from './line-file.js';
import { lineOf } from './lines.js';

const ConfigSchema = z.strictObject({
  file: z
    .string()
    .max(200)
    .regex(/^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*\/)*[A-Za-z0-9_][A-Za-z0-9_.-]*\.jsonl$/)
    .default('audit.jsonl')
    .meta({ description: 'The file, below `structured-log/` in the data folder; it ends with `.jsonl`.' }),
  maxBytes: z
    .int()
    .min(1000)
    .default(10_000_000)
    .meta({ description: 'A file that would become larger is put aside, as `<file>.1`, `<file>.2`, ….' }),
  keep: z.int().min(0).max(1000).default(5).meta({ description: 'How many files that were put aside are kept.' }),
  content: z
    .boolean()
    .default(false)
    .meta({ description: 'Log arguments, results, answers and messages too, and not only their sizes and digests.' }),
  onFailure: z
    .enum(['skip', 'fail'])
    .default('skip')
    .meta({ description: 'What a disk that fails does to runs: `skip` is told to the server log, `fail` fails them.' }),
});
type Config = z.output<typeof ConfigSchema>;

class StructuredLogShim extends Shim {
  readonly name: string;
  readonly #config: Config;

  constructor(name: string, config: Config) {
    super();
    this.name = name;
    this.#config = config;
  }

  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    const bound = await super.bind(context);
    return context.toolSourceBindings.length > 0 ? bound : new LogSession(this.#config, context.task);
  }
}

class LogSession extends BoundShim {
  readonly #config: Config;
  readonly #task: AgentTask;
  /** When what has no duration of its own began. */
  readonly #begun = new Map<string, number>();
  #file: LineFile | undefined;

  constructor(config: Config, task: AgentTask) {
    super();
    this.#config = config;
    this.#task = task;
  }

  override onRunStart(_state: RunState, _transient: RunContext, run: RunScope): void {
    const { file: name, maxBytes, keep } = this.#config;
    const file = lineFile(join(run.dataDir, 'structured-log', name), { maxBytes, keep });
    this.#file = file;
    const { runId, agent, parentRunId } = this.#task;
    const who = { runId, ...(parentRunId === undefined ? {} : { parentRunId }), agent, key: run.key };
    const write = (fields: Readonly<Record<string, unknown>>): void => {
      file.write({ at: new Date().toISOString(), ...who, ...fields });
    };
    write({ type: 'log.started', recovered: run.recovered });
    run.watch((event) => {
      const line = lineOf(event, this.#config);
      // The event's own fields never replace whose line it is.
      if (line !== undefined) write({ ...line, ...who, ...this.#took(event) });
    });
  }

  override async prepareTurn(turn: PreparedTurn): Promise<void> {
    await this.#settled(turn);
  }

  override async onRunEnd(_result: RunResult | null, _transient: RunContext, run: RunScope): Promise<void> {
    await this.#settled(run);
  }

  /** The last lines are those of the run's end. A disk that hangs is waited for no longer than a clean-up is. */
  override async [Symbol.asyncDispose](): Promise<void> {
    await this.#file?.flush().catch(() => undefined);
  }

  async #settled({ log }: RunScope): Promise<void> {
    const file = this.#file;
    if (file === undefined) return;
    if (this.#config.onFailure === 'fail') await file.flush();
    else if (file.failure !== undefined) log.warn({ reason: file.failure.message }, 'the structured log has a gap');
  }

  /** How long a turn or a model call took. */
  #took(event: RunEvent): { readonly ms?: number } {
    const [what = '', step] = event.type.split('.');
    if (what !== 'turn' && what !== 'model') return {};
    const key = what === 'turn' ? 'turn' : `model ${String(event.modelCallId)}`;
    const begun = this.#begun.get(key);
    if (step === 'started') this.#begun.set(key, performance.now());
    if (step !== 'completed' || begun === undefined) return {};
    this.#begun.delete(key);
    return { ms: Math.round(performance.now() - begun) };
  }
}

/** A guard: what children do is logged as well. */
export default defineShim({
  name: 'structured-log',
  description: 'Writes what happens in runs, and what each shim changed, to an audit file: a line of JSON each.',
  config: ConfigSchema,
  inherit: 'always',
  create: (config, { name }) => new StructuredLogShim(name, config),
});
