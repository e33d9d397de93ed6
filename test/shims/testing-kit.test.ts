import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { setImmediate as nextTick } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  BoundShim,
  DelegatingShim,
  defineShim,
  defineTool,
  type PreparedTurn,
  RunCancelledError,
  type RunError,
  Shim,
  type ShimBindingContext,
  z,
} from '../../src/shims.js';
import {
  ScriptError,
  type ScriptedAnswer,
  ScriptedModel,
  shimContractTests,
  type TestableShim,
  testShim,
} from '../../src/testing.js';

const echo = defineTool({
  name: 'echo',
  description: 'Says it again.',
  parameters: z.object({ text: z.string() }),
  execute: ({ text }) => text,
});
const quiet = defineShim({ name: 'quiet', description: 'Does nothing.' });

describe('ScriptedModel', () => {
  const agentOf = (model: ScriptedModel): DefaultAgent =>
    new DefaultAgent({ model, instructions: 'Be brief.', tools: [echo], modelMaxRetries: 1 });

  it('streams texts, reasoning and calls as they are scripted, and records each request', async () => {
    const model = new ScriptedModel([
      { reasoning: 'hm', text: ['Let ', 'me see.'], toolCalls: [{ toolName: 'echo', input: { text: 'x' } }] },
      (request) => `It said ${JSON.stringify(request.prompt.at(-1)?.content)}`,
    ]);
    const run = agentOf(model).runStream('hello');
    const deltas: unknown[] = [];
    for await (const event of run) if (event.type === 'model.delta') deltas.push([event.kind, event.text]);
    const { finalOutput, responses } = await run.result;
    expect(deltas.slice(0, 4)).toEqual([
      ['reasoning', 'hm'],
      ['text', 'Let '],
      ['text', 'me see.'],
      ['toolInput', '{"text":"x"}'],
    ]);
    expect(responses[0]?.message.content).toEqual([
      { type: 'reasoning', text: 'hm' },
      { type: 'text', text: 'Let me see.' },
      { type: 'tool-call', toolCallId: 'call_1', toolName: 'echo', input: { text: 'x' } },
    ]);
    expect(finalOutput).toContain('"value":"x"');
    expect(model.requests.map(({ system, tools, prompt }) => [system, tools, prompt.length])).toEqual([
      ['Be brief.', ['echo'], 2],
      ['Be brief.', ['echo'], 4],
    ]);
    expect(() => model.assertComplete()).not.toThrow();
  });

  it('fails as it is told: before the answer, within it, by a cut, and retryably', async () => {
    const failed = async (...script: readonly ScriptedAnswer[]): Promise<unknown> =>
      agentOf(new ScriptedModel(script))
        .run('hello')
        .then(
          ({ finalOutput }) => finalOutput,
          (error: unknown) => (error as RunError).toData(),
        );
    expect(await failed(new Error('no such model'))).toMatchObject({ code: 'model_error', message: 'no such model' });
    expect(await failed({ text: 'some', error: { message: 'overloaded', status: 529 } })).toMatchObject({
      message: 'overloaded',
      status: 529,
    });
    expect(await failed({ error: { code: 'context_exceeded', message: 'too long' } })).toMatchObject({
      code: 'context_exceeded',
    });
    expect(await failed({ text: 'half', ends: 'cut' }, 'whole')).toBe('whole');
    expect(await failed({ error: { retryable: true } }, 'the second time')).toBe('the second time');
  });

  it('begins when a promise settles, waits its delays, and stops when it is aborted', async () => {
    let open = (): void => undefined;
    const until = new Promise<void>((resolve) => {
      open = resolve;
    });
    const model = new ScriptedModel([{ until, delayMs: 1, deltaDelayMs: 1, text: ['a', 'b'] }, { ends: 'never' }]);
    const agent = agentOf(model);
    let done = false;
    const first = agent.run('hello').finally(() => {
      done = true;
    });
    while (model.requests.length === 0) await nextTick();
    expect(done).toBe(false);
    open();
    expect((await first).finalOutput).toBe('ab');
    const controller = new AbortController();
    const second = agent.run('again', { signal: controller.signal });
    while (model.requests.length === 1) await nextTick();
    controller.abort();
    await expect(second).rejects.toThrow(RunCancelledError);
  });

  it('assertComplete throws when answers were left over, and when they ran out', async () => {
    const rich = new ScriptedModel(['one', 'two']);
    await agentOf(rich).run('hello');
    expect(() => rich.assertComplete()).toThrow(
      new ScriptError('1 of the scripted answers were not used, after 1 request(s).'),
    );
    const poor = new ScriptedModel();
    await expect(agentOf(poor).run('hello')).rejects.toThrow('The script has no answer for request 1.');
    expect(() => poor.assertComplete()).toThrow(ScriptError);
    const endless = new ScriptedModel([], { otherwise: 'always' });
    expect((await agentOf(endless).run('hello')).finalOutput).toBe('always');
  });
});

describe('testShim', () => {
  const counter = defineShim({
    name: 'counter',
    description: 'Counts.',
    config: z.strictObject({ by: z.int().default(1) }),
    state: z.object({ sum: z.int().default(0) }),
    prepareTurn(turn) {
      turn.state.sum += this.config.by;
      turn.addTools([echo]);
      turn.emit('counted', turn.state.sum);
    },
  });

  it('tells requests, tools, state, events, effects and the output, and goes on with resume', async () => {
    const run = await testShim(counter, { config: { by: 2 }, script: ['one'], input: 'hello' });
    expect(run.output).toBe('one');
    expect(run.tools).toEqual([['echo']]);
    expect(run.state).toEqual({ counter: { sum: 2 }, 'counter:version': 1 });
    expect(run.events.filter(({ type }) => type === 'custom.counted').map(({ data }) => data)).toEqual([2]);
    expect(run.effects.map(({ shim, callback, changes }) => [shim, callback, changes.map(({ what }) => what)])).toEqual(
      [['counter', 'prepareTurn', ['tools+', 'state', 'state']]],
    );
    const again = await run.resume('again', { script: ['two'] });
    expect([again.output, again.requests.length, again.state.counter]).toEqual(['two', 1, { sum: 4 }]);
    run.model.assertComplete();
  });

  it('takes a name, neighbours, an instance or a class, and refuses a config as the server does', async () => {
    const named = await testShim(counter, { as: 'second', after: [counter] });
    expect(Object.keys(named.state)).toEqual(['second', 'second:version', 'counter', 'counter:version']);
    class Greeter extends Shim {
      override readonly name = 'greeter';
      override prepareTurn(turn: PreparedTurn): void {
        turn.setSystemInstruction('Greet.');
      }
    }
    expect((await testShim(new Greeter())).requests[0]?.system).toBe('Greet.');
    expect((await testShim(Greeter)).instructions).toBe('Greet.');
    await expect(testShim(counter, { config: { by: 0.5 } })).rejects.toThrow('/by');
    await expect(testShim(new Greeter(), { as: 'other' })).rejects.toThrow('Give its definition'.toLowerCase());
  });

  it('tells a failure and a cancel instead of throwing', async () => {
    const bad = defineShim({
      name: 'bad',
      prepareTurn: () => {
        throw new Error('broken');
      },
    });
    const failed = await testShim(bad);
    expect(failed.error).toEqual({
      code: 'shim_failed',
      message: 'Shim "bad" failed in prepareTurn: broken',
      shim: 'bad',
      phase: 'prepareTurn',
      cause: 'broken',
    });
    expect([failed.output, failed.requests]).toEqual([undefined, []]);
    const cancelled = await testShim(quiet, { signal: AbortSignal.abort() });
    expect([cancelled.error, cancelled.thrown]).toEqual([undefined, expect.any(RunCancelledError)]);
  });
});

describe('shimContractTests', () => {
  /** Which of the kit's tests a shim does not pass, by the beginning of their titles. */
  async function broken(factory: () => TestableShim): Promise<string[]> {
    const tests: { readonly name: string; readonly body: () => Promise<void> }[] = [];
    const runner = {
      describe: (_name: string, body: () => void) => body(),
      it: (name: string, body: () => Promise<void>) => tests.push({ name, body }),
    };
    shimContractTests(factory, { runner });
    const failed: string[] = [];
    for (const { name, body } of tests) {
      await body().catch(() =>
        failed.push(
          name
            .split(' ')
            .slice(0, name.startsWith('R65') ? 6 : 1)
            .join(' '),
        ),
      );
    }
    return failed;
  }

  it('passes a shim that does nothing', async () => {
    expect(await broken(() => quiet)).toEqual([]);
  });

  it('finds a name that changes, and a state key of nobody', async () => {
    let made = 0;
    expect(await broken(() => defineShim({ name: `n${(made += 1)}` }))).toContain('R2');
    const stranger = defineShim({
      name: 'stranger',
      onRunStart: (state) => {
        state.shimState.set('visits', 1);
      },
    });
    expect(await broken(() => stranger)).toEqual(['R2']);
  });

  it('finds a session shared by agents, and memory that one conversation leaves to another', async () => {
    class OneSession extends Shim {
      override readonly name = 'one-session';
      readonly #only = new BoundShim();
      override bind({ toolSourceBindings: [first] }: ShimBindingContext): BoundShim | Promise<BoundShim> {
        return first?.source === this ? first.bind({ task: {} as never, toolSourceBindings: [] }) : this.#only;
      }
    }
    expect(await broken(() => new OneSession())).toEqual(['R4']);
    const leaky = (): Shim => {
      const heard: string[] = [];
      return defineShim({
        name: 'leaky',
        prepareTurn(turn) {
          heard.push(JSON.stringify(turn.runState.history));
          turn.setSystemInstruction(heard.join());
        },
      }).create();
    };
    expect(await broken(leaky)).toContain('R6');
  });

  it('finds a callback that is deaf to the cancel', async () => {
    const deaf = defineShim({
      name: 'deaf',
      prepareTurn: async (turn) => {
        // Longer than the grace, and aborted or not.
        if (turn.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 1500));
      },
    });
    expect(await broken(() => deaf)).toEqual(['R65 a cancel during its prepareTurn']);
  });

  it('finds work that a recovery does twice or not at all, because it was kept in private memory', async () => {
    class Forgetful extends Shim {
      override readonly name = 'forgetful';
      #first = true;
      override prepareTurn(turn: PreparedTurn): void {
        if (this.#first) turn.appendSystemInstruction('Say it once.');
        this.#first = false;
      }
    }
    expect(await broken(() => new Forgetful())).toEqual(['R86']);
  });

  it('finds a session that ignores restricted sources, and a definition that only works unwrapped', async () => {
    class Stubborn extends Shim {
      override readonly name = 'stubborn';
      override bind(): BoundShim {
        return new (class extends BoundShim {
          override prepareTurn(turn: PreparedTurn): void {
            turn.addTools([echo]);
          }
        })();
      }
    }
    expect(await broken(() => new Stubborn())).toEqual(['R103']);
    class Dropping extends DelegatingShim {
      override onRunEnd(): void {
        throw new Error('it cannot clean up');
      }
    }
    expect(await broken(() => new Dropping(quiet.create()))).toContain('R54');
  });
});

describe('shimline/testing without vitest', () => {
  const root = join(import.meta.dirname, '../..');
  const hooks =
    "export const resolve = (name, context, next) => { if (name === 'vitest') throw new Error('not installed'); return next(name, context); };";
  const asUrl = (source: string): string => `data:text/javascript,${encodeURIComponent(source)}`;
  const withoutVitest = `import { register } from 'node:module'; register(${JSON.stringify(asUrl(hooks))});`;

  /** What a program prints that has the built package and no vitest. */
  async function printed(program: string): Promise<string> {
    const { NODE_OPTIONS: _options, ...env } = process.env;
    const args = ['--input-type=module', '--import', asUrl(withoutVitest)];
    const { stdout } = await promisify(execFile)(process.execPath, [...args, '--eval', program], { cwd: root, env });
    return stdout;
  }

  it('has testShim, and says what shimContractTests is missing', async () => {
    const program = `
      import { defineShim } from 'shimline/shims';
      import { shimContractTests, testShim } from 'shimline/testing';
      const shim = defineShim({ name: 'plain', prepareTurn: (turn) => turn.setSystemInstruction('Hi.') });
      console.log((await testShim(shim)).requests[0].system);
      try { shimContractTests(() => shim); } catch (error) { console.log(error.message); }`;
    expect((await printed(program)).trim().split('\n')).toEqual([
      'Hi.',
      'shimContractTests registers its tests with vitest, which is not installed; or give it a runner.',
    ]);
  });

  it('has shimContractTests for any other runner', async () => {
    const program = `
      import { describe, it } from 'node:test';
      import { defineShim } from 'shimline/shims';
      import { shimContractTests } from 'shimline/testing';
      shimContractTests(() => defineShim({ name: 'plain' }), { runner: { describe, it } });`;
    const out = await printed(program);
    expect([/^# pass (\d+)/m.exec(out)?.[1], /^# fail (\d+)/m.exec(out)?.[1]]).toEqual(['15', '0']);
  });
});
