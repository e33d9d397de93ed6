import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DefaultAgent } from '../agent/default-agent.js';
import { type CallbackName, DelegatingBoundShim, DelegatingShim } from '../agent/delegating.js';
import type { LifecycleEvent } from '../agent/events.js';
import { strictStringify } from '../agent/json.js';
import { type HistoryItem, kindOf } from '../agent/messages.js';
import { RunCancelledError } from '../agent/run-errors.js';
import { type Awaitable, BoundShim, Shim, type ShimBindingContext } from '../agent/shim.js';
import { defineTool, type Tool } from '../agent/tools.js';
import type { PreparedTurn } from '../agent/turn.js';
import { type AttemptSetup, attemptUntilKilled, firstAttempt, recoveredAttempt } from './interrupted-run.js';
import { type ScriptedAnswer, ScriptedModel, type ScriptedReply } from './scripted-model.js';
import { shimOf, type TestableShim, testShim } from './test-shim.js';
import { WatchedShim } from './watched-shim.js';

/** What registers the tests: vitest's, or any runner's with functions of these shapes (`node:test` has them). */
export interface TestRunner {
  readonly describe: (name: string, body: () => void) => unknown;
  readonly it: (name: string, body: () => Promise<void>) => unknown;
}

export interface ContractOptions {
  /** Stands in the title of the suite; default: the shim's name. */
  readonly title?: string;
  /** Config for a factory that gives a definition or a class. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** The model's answers in each conversation; what comes after them is a text. Default: one call of a tool, then a text. */
  readonly script?: readonly ScriptedAnswer[];
  /** Tools of the agent beside the kit's own `contract_probe`. */
  readonly tools?: readonly Tool[];
  /** Default: the running vitest. */
  readonly runner?: TestRunner;
}

// Optional: everything else of this entry works without vitest, and a server in production has none.
const vitest: TestRunner | undefined = await import('vitest').catch(() => undefined);

const PROBE = 'contract_probe';
const INSTRUCTIONS = 'You are the agent of a contract test.';
/** In this order a run meets them; each awaits, so each can be cancelled. */
const AWAITED = ['onRunStart', 'prepareTurn', 'transformMessages', 'onModelResponse'] as const;

/**
 * Registers tests of the rules that hold for every shim, whatever it does. Call it in a vitest file, once per shim.
 * @param factory makes the shim anew on each call: an instance, what `defineShim` gave, or a class
 */
export function shimContractTests(factory: () => TestableShim, options: ContractOptions = {}): void {
  const runner = options.runner ?? vitest;
  if (runner === undefined) {
    throw new Error('shimContractTests registers its tests with vitest, which is not installed; or give it a runner.');
  }
  const { describe, it } = runner;
  const make = (): Shim => shimOf(factory(), options.config);
  const kit = new ContractKit(make, options);
  describe(`the shim contract, kept by ${options.title ?? make().name}`, () => {
    it('R2 its name is stable, and the keys of its state begin with it', async () => kit.nameAndKeys());
    it('R4 it is bound once per agent, also when two first runs start together', async () => kit.boundOnce());
    it('R6 one definition serves two conversations at once and leaks nothing between them', async () => kit.noLeak());
    it('R18 its state is JSON', async () => kit.stateIsJson());
    it('R54 its session ends once, with the result, in each run', async () => kit.endsOnce());
    it('R55 its session ends once, with null, when another shim fails', async () => kit.endsAfterFailure());
    it('R64 it is not called in a run that was cancelled before it began', async () => kit.cancelledBefore());
    for (const callback of AWAITED) {
      it(`R65 a cancel during its ${callback} ends the run as cancelled, and it obeys`, async () =>
        kit.cancelledIn(callback));
    }
    it('R65 a cancel during the model call or a tool call leaves it fit for the next run', async () =>
      kit.cancelledOutside());
    it('R86 a recovered run goes on with a fresh session and applies nothing twice', async () => kit.recovers());
    it('R103 restricted to the sources of others it contributes no tools, and with one of its own it binds that', async () =>
      kit.restricted());
    it('R107 it works alike inside delegates, whole or with one callback overridden', async () => kit.delegated());
  });
}

class ContractKit {
  readonly #make: () => Shim;
  readonly #options: ContractOptions;

  constructor(make: () => Shim, options: ContractOptions) {
    this.#make = make;
    this.#options = options;
  }

  async nameAndKeys(): Promise<void> {
    const shim = this.#make();
    assert.match(shim.name, /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/);
    assert.equal(this.#make().name, shim.name, 'two instances have different names');
    const { name } = shim;
    await this.#conversation(shim, '', async (agent) => {
      await agent.run('hello');
      const strange = [...agent.runState.shimState.keys()].filter((key) => key !== name && !key.startsWith(`${name}:`));
      assert.deepEqual(strange, [], `keys that do not begin with ${JSON.stringify(name)}`);
    });
    assert.equal(shim.name, name, 'the name changed in a run');
  }

  async boundOnce(): Promise<void> {
    const watched = new WatchedShim(this.#make());
    await this.#conversation(watched, '', async (agent) => {
      await Promise.all([agent.run('hello'), agent.run('hello again')]);
      assert.equal(watched.sessions.length, 1);
    });
    await this.#conversation(watched, '', async (agent) => {
      await agent.run('hello');
      assert.equal(new Set(watched.sessions).size, 2, 'two agents share one session');
    });
  }

  async noLeak(): Promise<void> {
    const shared = this.#make();
    const markers = ['first-7f3a91', 'second-c04d2e'];
    const seen = await Promise.all(
      markers.map(async (marker) =>
        this.#conversation(shared, marker, async (agent, model) => {
          const events = [...(await this.#watch(agent, `I am ${marker}`)), ...(await this.#watch(agent, 'And again'))];
          const requests = model.requests.map(({ prompt, tools }) => ({ prompt, tools }));
          return JSON.stringify([requests, events, agent.runState.shimState, agent.runState.history]);
        }),
      ),
    );
    for (const [index, text] of seen.entries()) {
      const [own = '', other = ''] = index === 0 ? markers : markers.toReversed();
      assert.ok(text.includes(own), 'the conversation does not have its own input');
      assert.ok(!text.includes(other), `something of another conversation: …${around(text, other)}…`);
    }
  }

  async stateIsJson(): Promise<void> {
    await this.#conversation(this.#make(), '', async (agent) => {
      await agent.run('hello');
      const state = agent.runState.shimState.toJSON();
      assert.deepEqual(JSON.parse(strictStringify(state, 'state')), state);
    });
  }

  async endsOnce(): Promise<void> {
    const watched = new WatchedShim(this.#make());
    await this.#conversation(watched, '', async (agent) => {
      for (const input of ['hello', 'again']) {
        watched.calls.length = 0;
        await agent.run(input);
        assert.deepEqual(watched.named('onRunEnd'), [{ callback: 'onRunEnd', withResult: true }]);
        assert.equal(watched.order[0], 'onRunStart');
        assert.equal(watched.order.at(-1), 'onRunEnd');
      }
    });
  }

  async endsAfterFailure(): Promise<void> {
    for (const callback of AWAITED) {
      const watched = new WatchedShim(this.#make());
      const failing = new FailingShim(callback);
      await this.#inFolder(async (dataDir) => {
        const run = await testShim(watched, {
          ...this.#agentOptions(dataDir),
          after: [failing],
          otherwise: 'ok',
          script: this.#script(''),
        });
        assert.equal(
          run.error?.shim,
          failing.name,
          `the run's error is not that of ${callback}: ${run.error?.message ?? 'none'}`,
        );
        assert.deepEqual(watched.named('onRunEnd'), [{ callback: 'onRunEnd', withResult: false }]);
        // What a session holds in the folder it lets go of before the folder is gone.
        await run[Symbol.asyncDispose]();
      });
    }
  }

  async cancelledBefore(): Promise<void> {
    const watched = new WatchedShim(this.#make());
    await this.#conversation(watched, '', async (agent) => {
      await assert.rejects(agent.run('hello', { signal: AbortSignal.abort() }), RunCancelledError);
      assert.deepEqual(watched.order, []);
    });
  }

  async cancelledIn(callback: CallbackName): Promise<void> {
    const controller = new AbortController();
    const watched = new WatchedShim(this.#make(), (called) => {
      if (called === callback) controller.abort();
    });
    await this.#conversation(watched, '', async (agent) => {
      await this.#assertCancelled(agent, watched, controller.signal);
    });
  }

  async cancelledOutside(): Promise<void> {
    for (const where of ['model', 'tool'] as const) {
      const controller = new AbortController();
      const cancel = (): string => {
        controller.abort();
        return 'stopped';
      };
      const watched = new WatchedShim(this.#make());
      const silent = (): ScriptedAnswer => {
        setImmediate(cancel);
        return { text: 'begun', ends: 'never' };
      };
      const script = [where === 'model' ? silent : callOf('contract_stop')];
      const stop = toolOf('contract_stop', cancel);
      await this.#conversation(
        watched,
        '',
        async (agent) => {
          await this.#assertCancelled(agent, watched, controller.signal);
          const { finalOutput } = await agent.run('and now?');
          assert.equal(typeof finalOutput, 'string');
        },
        { script, tools: [stop] },
      );
    }
  }

  async #assertCancelled(agent: DefaultAgent, watched: WatchedShim, signal: AbortSignal): Promise<void> {
    const events: LifecycleEvent[] = [];
    const run = agent.runStream('hello', { signal });
    for await (const event of run) events.push(event);
    await assert.rejects(run.result, RunCancelledError);
    assert.deepEqual(watched.named('onRunEnd'), [{ callback: 'onRunEnd', withResult: false }]);
    const deaf = events.filter(({ type, shim }) => type === 'shim.orphaned' && shim === watched.name);
    assert.deepEqual(deaf, [], 'a callback did not settle after the abort: pass run.signal to what it waits for');
  }

  async recovers(): Promise<void> {
    await this.#inFolder(async (dataDir) => {
      const calling = [callOf(PROBE)];
      const whole = await firstAttempt(this.#attempt(dataDir, this.#model('', calling)), 'hello');
      let kill = (): void => undefined;
      const killed = new Promise<void>((resolve) => {
        kill = resolve;
      });
      const dying = (): ScriptedAnswer => {
        kill();
        return { text: 'lost with the process', ends: 'never' };
      };
      const first = await attemptUntilKilled(
        this.#attempt(dataDir, this.#model('', [...calling, dying])),
        'hello',
        killed,
      );
      assert.equal(first.end, undefined, 'the run ended before its second model call, where it was to be killed');
      const second = await recoveredAttempt(this.#attempt(dataDir, this.#model('', [])), first.saved);
      assert.equal(second.end?.status, 'completed', JSON.stringify(second.end));
      assert.deepEqual(second.saved.instructions, whole.saved.instructions, 'the instructions');
      assert.deepEqual(shapeOf(second.saved.history), shapeOf(whole.saved.history), 'the history');
      assert.deepEqual(keysOf(second.saved.state), keysOf(whole.saved.state), 'the keys of the state');
    });
  }

  async restricted(): Promise<void> {
    const shim = this.#make();
    const task = { runId: 'contract-run', agent: 'contract', model: 'contract', depth: 1 };
    let rebound = 0;
    const binding = (source: Shim): ShimBindingContext => ({
      task,
      toolSourceBindings: [{ source: innermost(source), bind: async () => ((rebound += 1), new BoundShim()) }],
    });
    await shim.bind(binding(shim));
    assert.equal(rebound, 1, 'bind did not use the binding whose source it is');
    const others = binding(new FailingShim('prepareTurn'));
    const inactive = new Rebound(shim, others);
    await this.#conversation(inactive, '', async (agent, model) => {
      await agent.run('hello');
      assert.equal(rebound, 1, 'bind used a binding whose source it is not');
      const tools = new Set(model.requests.flatMap((request) => request.tools));
      assert.deepEqual(
        [...tools].filter((name) => !this.#ownTools().has(name)),
        [],
      );
    });
  }

  async delegated(): Promise<void> {
    const plain = await this.#behaviour((shim) => shim);
    const wraps: Readonly<Record<string, (shim: Shim) => Shim>> = {
      'a DelegatingShim': (shim) => new DelegatingShim(shim),
      'two of them': (shim) => new DelegatingShim(new DelegatingShim(shim)),
      'one with prepareTurn overridden': (shim) => new OneOverridden(shim),
      'one that wraps the session': (shim) => new SessionWrapped(shim),
    };
    for (const [how, wrap] of Object.entries(wraps))
      assert.deepEqual(await this.#behaviour(wrap), plain, `inside ${how}`);
  }

  async #behaviour(wrap: (shim: Shim) => Shim): Promise<unknown> {
    const watched = new WatchedShim(this.#make());
    return this.#conversation(wrap(watched), '', async (agent, model) => {
      await agent.run('hello');
      await agent.run('again');
      return {
        callbacks: watched.order,
        tools: model.requests.map((request) => request.tools),
        roles: model.requests.map((request) => request.prompt.map((message) => message.role)),
        state: keysOf(agent.runState.shimState),
      };
    });
  }

  /** One agent with the shim, a model of its own and a folder of its own; disposed of at the end. */
  async #conversation<T>(
    shim: Shim,
    marker: string,
    use: (agent: DefaultAgent, model: ScriptedModel) => Promise<T>,
    more: { readonly script?: readonly ScriptedAnswer[]; readonly tools?: readonly Tool[] } = {},
  ): Promise<T> {
    return this.#inFolder(async (dataDir) => {
      const model = this.#model(marker, more.script);
      const options = this.#agentOptions(dataDir, marker);
      const agent = new DefaultAgent({
        ...options,
        tools: [...options.tools, ...(more.tools ?? [])],
        model,
        shims: [shim],
      });
      try {
        return await use(agent, model);
      } finally {
        await agent[Symbol.asyncDispose]();
      }
    });
  }

  #agentOptions(
    dataDir: string,
    marker = '',
  ): { readonly instructions: string; readonly tools: readonly Tool[]; readonly dataDir: string } {
    const probe = toolOf(PROBE, () => `probed ${marker}`);
    return { instructions: INSTRUCTIONS, tools: [probe, ...(this.#options.tools ?? [])], dataDir };
  }

  #ownTools(): ReadonlySet<string> {
    return new Set(this.#agentOptions('').tools.map((tool) => tool.name));
  }

  #attempt(dataDir: string, model: ScriptedModel): AttemptSetup {
    return { ...this.#agentOptions(dataDir), model, shims: [this.#make()] };
  }

  #script(marker: string): readonly ScriptedAnswer[] {
    return this.#options.script ?? [{ text: `looking for ${marker}`, ...callOf(PROBE) }, `found ${marker}`];
  }

  #model(marker: string, script = this.#script(marker)): ScriptedModel {
    return new ScriptedModel(script, { otherwise: `ok ${marker}` });
  }

  async #watch(agent: DefaultAgent, input: string): Promise<readonly LifecycleEvent[]> {
    const events: LifecycleEvent[] = [];
    const run = agent.runStream(input);
    for await (const event of run) events.push(event);
    await run.result;
    return events;
  }

  async #inFolder<T>(use: (folder: string) => Promise<T>): Promise<T> {
    const folder = await mkdtemp(join(tmpdir(), 'shim-contract-'));
    try {
      return await use(folder);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }
}

class FailingShim extends Shim {
  readonly name = 'contract-failing';
  constructor(callback: (typeof AWAITED)[number]) {
    super();
    this[callback] = () => {
      throw new Error(`failing in ${callback}, as the contract test asks`);
    };
  }
}

/** Binds another shim with a context of the test's own. */
class Rebound extends DelegatingShim {
  readonly #context: ShimBindingContext;
  constructor(inner: Shim, context: ShimBindingContext) {
    super(inner);
    this.#context = context;
  }
  override async bind(): Promise<BoundShim> {
    return this.inner.bind(this.#context);
  }
}

class OneOverridden extends DelegatingShim {
  override prepareTurn(turn: PreparedTurn): Awaitable<void> {
    return super.prepareTurn(turn);
  }
}

class SessionWrapped extends DelegatingShim {
  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    return new DelegatingBoundShim(await super.bind(context));
  }
}

/** A parent's session names the definition that it knows; what wraps it passes that on (R105). */
function innermost(shim: Shim): Shim {
  return shim instanceof DelegatingShim ? innermost(shim.inner) : shim;
}

function toolOf(name: string, execute: () => string): Tool {
  const parameters = { type: 'object', properties: {} };
  return defineTool({ name, description: 'A tool of the contract test.', parameters, onCrash: 'retry', execute });
}

function callOf(toolName: string): ScriptedReply {
  return { toolCalls: [{ toolName }] };
}

/** A history without its texts, which may tell the time: kinds and roles. */
function shapeOf(history: readonly HistoryItem[]): readonly string[] {
  return history.map((item) => {
    const kind = kindOf(item);
    return kind === 'message' ? `message:${(item as { readonly role: string }).role}` : kind;
  });
}

function keysOf(state: { keys(): Iterable<string> }): readonly string[] {
  return [...state.keys()].sort();
}

function around(text: string, found: string): string {
  const at = text.indexOf(found);
  return text.slice(Math.max(0, at - 80), at + found.length + 20);
}
