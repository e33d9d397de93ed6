import { getEventListeners } from 'node:events';
import { describe, expect, it } from 'vitest';
import { DefaultAgent, type DefaultAgentOptions } from '../../src/agent/default-agent.js';
import type { LifecycleEvent } from '../../src/agent/events.js';
import {
  type BoundShim,
  ClosedScopeError,
  defineShim,
  defineTool,
  type PreparedTurn,
  RunCancelledError,
  type RunScope,
  Shim,
  ShimCleanupError,
  ShimError,
  z,
} from '../../src/shims.js';
import { type ScriptedAnswer, ScriptedModel } from '../../src/testing.js';
import { ManualClock, settle } from '../support/manual-clock.js';
import { calls, type Driven, drive, NotedSession, WAYS } from './drive.js';

const never = new Promise<never>(() => undefined);

interface Bench {
  readonly agent: DefaultAgent;
  readonly model: ScriptedModel;
  readonly clock: ManualClock;
  readonly warnings: string[];
  readonly stop: () => void;
  readonly signal: AbortSignal;
}

/** An agent on a clock that stands still, and the way to cancel its run. */
function bench(
  shims: NonNullable<DefaultAgentOptions['shims']>,
  script: readonly ScriptedAnswer[] = ['done'],
  options: Partial<DefaultAgentOptions> = {},
): Bench {
  const model = new ScriptedModel(script);
  const clock = new ManualClock();
  const warnings: string[] = [];
  const silent = (): void => undefined;
  const log = {
    debug: silent,
    info: silent,
    error: silent,
    warn: (_fields: object, message: string) => warnings.push(message),
  };
  const controller = new AbortController();
  const agent = new DefaultAgent({ model, shims, clock, log, modelMaxRetries: 0, ...options });
  return { agent, model, clock, warnings, stop: () => controller.abort(), signal: controller.signal };
}

const typesOf = (events: readonly LifecycleEvent[]): string[] => events.map(({ type }) => type);
const lastOf = ({ events }: Driven): LifecycleEvent | undefined => events.at(-1);

/** A definition whose sessions write down what they are called for. */
function noted(name: string, notes: string[], session?: (inner: NotedSession) => BoundShim): Shim {
  return new (class extends Shim {
    readonly name = name;
    override bind(): BoundShim {
      notes.push(`${name} bind`);
      const inner = new NotedSession(name, (line) => notes.push(line));
      return session?.(inner) ?? inner;
    }
  })();
}

describe.each(WAYS)('%s', (way) => {
  it('R64 a run that is cancelled before it starts calls no hook, no shim and no model', async () => {
    const notes: string[] = [];
    const hooks = [
      { onAgentStart: () => void notes.push('hook start'), onAgentEnd: () => void notes.push('hook end') },
    ];
    const { agent, model, stop, signal } = bench([noted('a', notes)], ['done'], { hooks });
    stop();
    const ran = await drive(agent, 'hello', { way, signal });
    expect(ran.error).toBeInstanceOf(RunCancelledError);
    expect(notes).toEqual([]);
    expect(model.requests).toHaveLength(0);
    // The input was taken all the same, and the conversation goes on from it.
    expect(agent.runState.history).toEqual(['hello']);
  });

  it.each(['onRunStart', 'prepareTurn', 'transformMessages', 'onModelResponse'] as const)(
    'R65 cancelling interrupts an awaited %s, and the clean-up of what had started runs',
    async (callback) => {
      const notes: string[] = [];
      let reached = (): void => undefined;
      const reaching = new Promise<void>((resolve) => (reached = resolve));
      const waits = defineShim({
        name: 'waits',
        [callback]: async (...args: unknown[]) => {
          const scope = (callback === 'onRunStart' ? args[2] : args[0]) as RunScope;
          reached();
          await new Promise((_resolve, reject) =>
            scope.signal.addEventListener('abort', () => reject(new Error('stop'))),
          );
        },
        onRunEnd: (result) => void notes.push(`waits end ${result === null ? 'null' : 'result'}`),
      });
      const { agent, model, stop, signal } = bench([noted('a', notes), waits, noted('b', notes)]);
      const running = drive(agent, 'hello', { way, signal });
      await reaching;
      stop();
      const { error } = await running;
      expect(error).toBeInstanceOf(RunCancelledError);
      const later = callback === 'onRunStart' ? [] : ['b end'];
      expect(notes.filter((line) => line.includes('end'))).toEqual(['a end', 'waits end null', ...later]);
      expect(model.requests).toHaveLength(callback === 'onModelResponse' ? 1 : 0);
      // A failed or cancelled run keeps its last boundary: the answer that was not taken is not in the history.
      expect(agent.runState.history).toEqual(['hello']);
      expect(agent.runState.turnCount).toBe(0);
    },
  );

  it('R65 cancelling interrupts the model call; R79 what was shown of it is the partial output and not in the history', async () => {
    const { agent, stop, signal } = bench([], [{ text: ['half ', 'an answer'], ends: 'never' }]);
    const stream = agent.runStream('hello', { signal });
    const events: LifecycleEvent[] = [];
    for await (const event of stream) {
      events.push(event);
      if (event.type === 'model.delta' && event.text === 'an answer') stop();
    }
    await expect(stream.result).rejects.toThrow(RunCancelledError);
    expect(events.at(-1)).toMatchObject({
      type: 'run.cancelled',
      partialOutput: 'half an answer',
      cancellation: { inFlight: [{ kind: 'model', obeyed: true, sideEffects: 'none' }] },
    });
    expect(agent.runState.history).toEqual(['hello']);
  });

  it('R65 R79 cancelling interrupts tool calls: real results stay, the others are error results, and the history can be sent', async () => {
    let started = (): void => undefined;
    const slow = new Promise<void>((resolve) => (started = resolve));
    const tools = [
      defineTool({ name: 'fast', description: '', parameters: z.object({}), execute: () => 'real' }),
      defineTool({
        name: 'slow',
        description: '',
        parameters: z.object({}),
        execute: async (_args, { signal }) => {
          started();
          await new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(new Error('stopped'))));
        },
      }),
    ];
    const { agent, model, stop, signal } = bench([], [calls('fast', 'slow'), 'next'], { tools });
    const running = drive(agent, 'hello', { way, signal });
    await slow;
    await settle();
    stop();
    expect((await running).error).toBeInstanceOf(RunCancelledError);
    const results = agent.runState.history.at(-1) as { role: string; content: { toolName: string; output: object }[] };
    expect(results.role).toBe('tool');
    expect(results.content.map(({ toolName, output }) => ({ toolName, output }))).toEqual([
      { toolName: 'fast', output: { type: 'text', value: 'real' } },
      { toolName: 'slow', output: { type: 'error-text', value: 'The call was cancelled before it gave a result.' } },
    ]);
    await drive(agent, 'and now?', { way });
    expect(model.requests[1]?.prompt.map(({ role }) => role)).toEqual(['user', 'assistant', 'tool', 'user']);
  });
});

it.each(['wrapModelCall', 'wrapToolCall'] as const)(
  'R65 R78 a deaf %s is given up after the grace',
  async (callback) => {
    let reached = (): void => undefined;
    const reaching = new Promise<void>((resolve) => (reached = resolve));
    const deaf = defineShim({
      name: 'deaf',
      [callback]: async () => {
        reached();
        return never;
      },
    });
    const tools = [defineTool({ name: 'fast', description: '', parameters: z.object({}), execute: () => 'real' })];
    const { agent, clock, stop, signal } = bench([deaf], [calls('fast')], { tools });
    const running = drive(agent, 'hello', { signal });
    await reaching;
    stop();
    await clock.advance(2000);
    const ran = await running;
    expect(ran.error).toBeInstanceOf(RunCancelledError);
    expect(ran.events.filter(({ type }) => type === 'shim.orphaned')).toMatchObject([{ shim: 'deaf', callback }]);
  },
);

it('R67 the clean-up is not interrupted by the cancel: neither its wait nor its signal, and it has its own deadline', async () => {
  const seen: unknown[] = [];
  let open = (): void => undefined;
  const gate = new Promise<void>((resolve) => (open = resolve));
  const slow = defineShim({
    name: 'slow',
    onRunStart: async (_state, _transient, run) => {
      await new Promise<void>((resolve) => run.signal.addEventListener('abort', () => resolve()));
    },
    onRunEnd: async (_result, _transient, run) => {
      seen.push(run.signal.aborted);
      await gate;
      seen.push(run.signal.aborted);
      run.emit('cleaned', true);
    },
  });
  const stuck = defineShim({ name: 'stuck', onRunEnd: () => never });
  const last = defineShim({ name: 'last', timeouts: { onRunEnd: 500 }, onRunEnd: () => never });
  const { agent, clock, stop, signal } = bench([slow]);
  const running = drive(agent, 'hello', { signal });
  await settle();
  stop();
  await clock.advance(20_000);
  open();
  const ran = await running;
  expect(seen).toEqual([false, false]);
  expect(typesOf(ran.events).slice(-4)).toEqual([
    'custom.cleaned',
    'agent.completed',
    'state.snapshot',
    'run.cancelled',
  ]);

  const second = bench([stuck, last]);
  const ending = drive(second.agent, 'hello');
  await second.clock.advance(29_999);
  await second.clock.advance(600);
  const { error, events } = await ending;
  expect(error).toBeInstanceOf(ShimCleanupError);
  expect(events.filter(({ type }) => type === 'shim.timeout')).toMatchObject([
    { shim: 'stuck', callback: 'onRunEnd', ms: 30_000 },
    { shim: 'last', callback: 'onRunEnd', ms: 500 },
  ]);
});

it('R68 cancelling during the clean-up of a finished run changes nothing', async () => {
  const signals: AbortSignal[] = [];
  let open = (): void => undefined;
  let reached = (): void => undefined;
  const gate = new Promise<void>((resolve) => (open = resolve));
  const reaching = new Promise<void>((resolve) => (reached = resolve));
  const slow = defineShim({
    name: 'slow',
    onRunStart: (_state, _transient, run) => void signals.push(run.signal),
    onRunEnd: async (_result, _transient, run) => {
      signals.push(run.signal);
      reached();
      await gate;
    },
  });
  const { agent, stop, signal } = bench([slow]);
  const running = drive(agent, 'hello', { signal });
  await reaching;
  stop();
  await settle();
  expect(signals.map(({ aborted }) => aborted)).toEqual([false, false]);
  open();
  const ran = await running;
  expect(ran.result?.finalOutput).toBe('done');
  expect(typesOf(ran.events)).not.toContain('run.cancelling');
  expect(lastOf(ran)).toMatchObject({ type: 'run.completed', output: 'done' });
});

describe('R69 R70 a cancellation inside clean-up', () => {
  const raising = (error: unknown, name = 'raises'): Shim => {
    const onRunEnd = (): never => {
      throw error;
    };
    return defineShim({ name, onRunEnd }).create();
  };

  it.each([
    ['itself', new RunCancelledError()],
    ['as a cause', new Error('outer', { cause: new Error('middle', { cause: new RunCancelledError() }) })],
    ['in an aggregate', new AggregateError([new Error('x'), new AggregateError([new RunCancelledError()])])],
  ])('R69 ends the run as cancelled, %s', async (_how, error) => {
    const notes: string[] = [];
    const { agent } = bench([raising(error), noted('after', notes)]);
    const ran = await drive(agent);
    expect(ran.error).toBeInstanceOf(RunCancelledError);
    expect(notes.at(-1)).toBe('after end');
    // What the client had been shown is still said.
    expect(lastOf(ran)).toMatchObject({ type: 'run.cancelled', partialOutput: 'done' });
    // The finished turn is a boundary, and stays.
    expect(agent.runState.turnCount).toBe(1);
  });

  it('R69 any other AbortError is a failure of the clean-up', async () => {
    const { agent } = bench([raising(new DOMException('fetch timed out', 'AbortError'))]);
    expect((await drive(agent)).error).toBeInstanceOf(ShimCleanupError);
  });

  it('R70 an earlier error beats it', async () => {
    const fails = defineShim({
      name: 'fails',
      prepareTurn: () => {
        throw new Error('first');
      },
    });
    const { agent } = bench([fails, raising(new RunCancelledError())]);
    const { error } = await drive(agent);
    expect(error).toBeInstanceOf(ShimError);
    expect(error).toMatchObject({ shim: 'fails', phase: 'prepareTurn' });
  });

  it('R69 R98 of an agent that was handed to: the one before gets no result', async () => {
    const results: unknown[] = [];
    const outer = defineShim({ name: 'outer', onRunEnd: (result) => void results.push(result) });
    const second = new DefaultAgent({
      name: 'second',
      model: new ScriptedModel(['done']),
      shims: [raising(new RunCancelledError())],
    });
    const { agent } = bench([outer], [calls('handoff_to_second')], { handoffs: [second] });
    expect((await drive(agent)).error).toBeInstanceOf(RunCancelledError);
    expect(results).toEqual([null]);
  });
});

it('R72 cancelled is published only after every onRunEnd has settled', async () => {
  let open = (): void => undefined;
  const gate = new Promise<void>((resolve) => (open = resolve));
  const notes: string[] = [];
  const slow = defineShim({ name: 'slow', onRunEnd: async () => gate });
  const last = defineShim({ name: 'last', onRunEnd: () => void notes.push('last end') });
  const { agent, stop, signal } = bench([slow, last], [{ text: ['a'], ends: 'never' }]);
  const stream = agent.runStream('hello', { signal });
  const events: string[] = [];
  const reading = (async () => {
    for await (const event of stream) {
      if (event.type === 'run.cancelled') notes.push('published');
      events.push(event.type);
    }
  })();
  await settle();
  stop();
  await settle();
  expect(events).not.toContain('run.cancelled');
  open();
  await reading;
  await expect(stream.result).rejects.toThrow(RunCancelledError);
  expect(notes).toEqual(['last end', 'published']);
});

it('R74 no timer, listener or unhandled rejection is left, however a run ends', async () => {
  const rejections: unknown[] = [];
  const onRejection = (reason: unknown): void => void rejections.push(reason);
  process.on('unhandledRejection', onRejection);
  try {
    let fail = (): void => undefined;
    const deaf = defineShim({
      name: 'deaf',
      timeouts: { prepareTurn: 50 },
      prepareTurn: async () => new Promise<never>((_resolve, reject) => (fail = () => reject(new Error('late')))),
    });
    const slow = defineTool({
      name: 'slow',
      description: '',
      parameters: z.object({}),
      execute: async (_args, { signal }) => {
        await new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(new Error('stopped'))));
      },
    });
    for (const [shims, script, cancels] of [
      [[], ['done'], false],
      [[deaf], ['done'], false],
      [[], [{ text: ['a'], ends: 'never' }], true],
      [[], [calls('slow')], true],
      [[defineShim({ name: 'waits', onRunStart: () => never })], [], true],
      [[], [{ error: { retryable: true, retryAfterMs: 60_000 } }], true],
    ] as const) {
      const { agent, clock, stop, signal } = bench(shims, script, { tools: [slow], modelMaxRetries: 2 });
      const running = drive(agent, 'hello', { signal });
      await settle();
      if (cancels) stop();
      await clock.advance(2000);
      await running;
      fail();
      expect(clock.pending).toBe(0);
      expect(getEventListeners(signal, 'abort')).toEqual([]);
    }
    await settle();
    expect(rejections).toEqual([]);
  } finally {
    process.off('unhandledRejection', onRejection);
  }
});

describe('R78 a deaf callback', () => {
  it.each(['onRunStart', 'prepareTurn', 'onModelResponse'] as const)(
    'R78 %s gets a grace of 1 s, then its scope is closed, and what it still writes throws and is logged',
    async (callback) => {
      let goOn = (): void => undefined;
      const held = new Promise<void>((resolve) => (goOn = resolve));
      const attempts: unknown[] = [];
      const attempt = (write: () => unknown): void => {
        try {
          write();
          attempts.push('written');
        } catch (error) {
          attempts.push(error instanceof ClosedScopeError ? 'closed' : error instanceof TypeError ? 'refused' : error);
        }
      };
      const deaf = defineShim({
        name: 'deaf',
        state: z.object({ n: z.number().default(0) }),
        [callback]: async (...args: unknown[]) => {
          const turn = (callback === 'onRunStart' ? args[2] : args[0]) as PreparedTurn;
          const state = (callback === 'onRunStart' ? args[0] : turn.runState) as PreparedTurn['runState'];
          const history = state.history;
          await held;
          attempt(() => state.shimState.set('late', 1));
          attempt(() => (state.instructions = 'late'));
          attempt(() => state.history.push('late'));
          attempt(() => (state.history = []));
          attempt(() => turn.emit('late', 1));
          attempt(() => ((turn.state as { n: number }).n = 1));
          attempt(() => history.push('late'));
          if (callback !== 'onRunStart') attempt(() => turn.appendHistoryItem('late'));
        },
      });
      const { agent, clock, warnings, stop, signal } = bench([deaf]);
      const running = drive(agent, 'hello', { signal });
      await settle();
      stop();
      await clock.advance(999);
      await clock.advance(1);
      const ran = await running;
      expect(ran.error).toBeInstanceOf(RunCancelledError);
      expect(ran.events.filter(({ type }) => type === 'shim.orphaned')).toMatchObject([
        { shim: 'deaf', callback, ms: 1000 },
      ]);
      expect(lastOf(ran)).toMatchObject({
        cancellation: {
          inFlight: [{ kind: 'shim', name: 'deaf', id: callback, obeyed: false, ms: 1000, sideEffects: 'unknown' }],
        },
      });
      goOn();
      await settle();
      expect(attempts).toEqual([
        ...Array.from({ length: 6 }, () => 'closed'),
        'refused',
        ...(callback === 'onRunStart' ? [] : ['closed']),
      ]);
      expect(warnings.filter((line) => line === 'write through a closed shim scope')).toHaveLength(
        callback === 'onRunStart' ? 6 : 7,
      );
      expect(agent.runState.history).toEqual(['hello']);
      expect(agent.runState.shimState.toJSON()).toEqual({});
    },
  );

  it('R78 one that obeys within the grace is no orphan, and the receipt says how long it took', async () => {
    const obeys = defineShim({
      name: 'obeys',
      prepareTurn: async (turn) => {
        await new Promise<void>((resolve) => turn.signal.addEventListener('abort', () => resolve()));
        await new Promise<void>((resolve) => clock.after(400, resolve));
      },
    });
    const { agent, clock, stop, signal } = bench([obeys]);
    const running = drive(agent, 'hello', { signal });
    await settle();
    stop();
    await clock.advance(400);
    const ran = await running;
    expect(typesOf(ran.events)).not.toContain('shim.orphaned');
    expect(lastOf(ran)).toMatchObject({
      cancellation: {
        inFlight: [{ kind: 'shim', name: 'obeys', id: 'prepareTurn', obeyed: true, ms: 400, sideEffects: 'none' }],
        cleanupMs: 400,
      },
    });
  });

  it('R78 a deaf tool is given up, and what it still writes through its turn throws', async () => {
    let goOn = (): void => undefined;
    const held = new Promise<void>((resolve) => (goOn = resolve));
    const late: unknown[] = [];
    const deaf = defineShim({
      name: 'deaf',
      prepareTurn: (turn) => {
        const execute = async (): Promise<void> => {
          await held;
          try {
            turn.runState.shimState.set('late', 1);
          } catch (error) {
            late.push(error);
          }
        };
        turn.addTools([defineTool({ name: 'deaf', description: '', parameters: z.object({}), execute })]);
      },
      onRunEnd: async () => {
        goOn();
        await settle();
      },
    });
    const { agent, clock, stop, signal } = bench([deaf], [calls('deaf')]);
    const running = drive(agent, 'hello', { signal });
    await settle();
    stop();
    await clock.advance(1000);
    const ran = await running;
    expect(ran.error).toBeInstanceOf(RunCancelledError);
    expect(late).toMatchObject([{ name: 'ClosedScopeError' }]);
    expect(agent.runState.shimState.toJSON()).toEqual({});
    expect(lastOf(ran)).toMatchObject({
      cancellation: { inFlight: [{ kind: 'tool', name: 'deaf', obeyed: false, ms: 1000, sideEffects: 'unknown' }] },
    });
  });
});

describe('R78a time limits and what may be skipped', () => {
  it.each(['onRunStart', 'prepareTurn', 'transformMessages', 'onModelResponse', 'onRunEnd'] as const)(
    'R78a %s has 30 s, or what the shim says',
    async (callback) => {
      for (const [timeouts, ms] of [
        [undefined, 30_000],
        [{ [callback]: 70 }, 70],
      ] as const) {
        const stuck = defineShim({
          name: 'stuck',
          ...(timeouts === undefined ? {} : { timeouts }),
          [callback]: async () => never,
        });
        const { agent, clock } = bench([stuck]);
        const running = drive(agent);
        await clock.advance(ms - 1);
        await clock.advance(1);
        const { error, events } = await running;
        const failure = error instanceof ShimCleanupError ? error.errors[0] : error;
        expect(failure).toMatchObject({ name: 'ShimError', code: 'shim_timeout', shim: 'stuck', phase: callback });
        expect(events.filter(({ type }) => type === 'shim.timeout')).toMatchObject([{ shim: 'stuck', callback, ms }]);
      }
    },
  );

  it('R78a bind has 30 s; a session that comes later is disposed of', async () => {
    const notes: string[] = [];
    let come = (): void => undefined;
    const coming = new Promise<void>((resolve) => (come = resolve));
    class Slow extends Shim {
      readonly name = 'slow';
      override async bind(): Promise<BoundShim> {
        await coming;
        return new NotedSession('slow', (line) => notes.push(line));
      }
    }
    const { agent, clock } = bench([noted('a', notes), new Slow()]);
    const running = drive(agent);
    await clock.advance(30_000);
    const { error, events } = await running;
    expect(error).toMatchObject({ code: 'shim_timeout', shim: 'slow', phase: 'bind' });
    expect(events.filter(({ type }) => type === 'shim.timeout')).toMatchObject([{ callback: 'bind', ms: 30_000 }]);
    await agent[Symbol.asyncDispose]();
    come();
    await settle();
    expect(notes.filter((line) => line.startsWith('slow'))).toEqual(['slow dispose']);
  });

  it('R78a a wrap has no timeout', async () => {
    let open = (): void => undefined;
    const gate = new Promise<void>((resolve) => (open = resolve));
    const slow = defineShim({
      name: 'slow',
      wrapModelCall: async (_turn, request, next) => {
        await gate;
        return next(request);
      },
    });
    const { agent, clock } = bench([slow]);
    const running = drive(agent);
    await clock.advance(120_000);
    open();
    expect((await running).result?.finalOutput).toBe('done');
  });

  it.each(['throws', 'takes too long'])(
    'R78a onFailure skip undoes what a callback wrote that %s, says so, and goes on',
    async (how) => {
      const fail = async (): Promise<void> => {
        if (how === 'throws') throw new Error('no');
        await never;
      };
      const skipped = defineShim({
        name: 'skipped',
        onFailure: 'skip',
        state: z.object({ n: z.number().default(0) }),
        timeouts: { prepareTurn: 10 },
        prepareTurn: async (turn) => {
          turn.setSystemInstruction('of the skipped one');
          turn.appendHistoryItem('of the skipped one');
          turn.runState.history.push('pushed');
          turn.runState.shimState.set('skipped:x', 1);
          (turn.runState.shimState.get('kept') as unknown[]).push('nested');
          turn.state.n = 5;
          turn.addTools([defineTool({ name: 'gone', description: '', parameters: z.object({}), execute: () => '' })]);
          turn.modelArgs = { temperature: 1 };
          turn.requireApproval('fast');
          await fail();
        },
      });
      const before = defineShim({
        name: 'before',
        prepareTurn: (turn) => turn.runState.shimState.set('kept', ['a']),
      });
      const fast = defineTool({ name: 'fast', description: '', parameters: z.object({}), execute: () => 'real' });
      const { agent, model, clock } = bench([before, skipped], [calls('fast'), 'done'], {
        tools: [fast],
        instructions: 'own',
      });
      const running = drive(agent);
      await clock.advance(100);
      const ran = await running;
      expect(ran.result?.finalOutput).toBe('done');
      expect(model.requests[0]).toMatchObject({ system: 'own', tools: ['fast'] });
      expect(model.requests[0]?.options.temperature).toBeUndefined();
      expect(agent.runState.shimState.toJSON()).toEqual({ kept: ['a'] });
      expect(agent.runState.history.filter((item) => typeof item === 'string')).toEqual(['hello']);
      expect(ran.events.filter(({ type }) => type === 'shim.failed')).toMatchObject([
        { shim: 'skipped', callback: 'prepareTurn', turn: 1, error: { shim: 'skipped', phase: 'prepareTurn' } },
        { shim: 'skipped', callback: 'prepareTurn', turn: 2 },
      ]);
    },
  );

  it('R78a onFailure skip holds for onRunEnd too, and a cancellation there is still one', async () => {
    const ending = (error: Error): Shim => {
      const onRunEnd = (): never => {
        throw error;
      };
      return defineShim({ name: 'skipped', onFailure: 'skip', onRunEnd }).create();
    };
    const { agent } = bench([ending(new Error('no'))]);
    const ran = await drive(agent);
    expect(ran.result?.finalOutput).toBe('done');
    expect(ran.events.filter(({ type }) => type === 'shim.failed')).toMatchObject([{ callback: 'onRunEnd' }]);
    const second = bench([ending(new RunCancelledError())]);
    expect((await drive(second.agent)).error).toBeInstanceOf(RunCancelledError);
  });

  it('R78a a guard may not skip', () => {
    const guard = { name: 'guard', inherit: 'always', onFailure: 'skip' } as const;
    expect(() => defineShim(guard)).toThrow(/inherited always/);
    class Guard extends Shim {
      readonly name = 'guard';
      override inherit = 'always' as const;
      override onFailure = 'skip' as const;
    }
    expect(() => new DefaultAgent({ model: new ScriptedModel(), shims: [new Guard()] })).toThrow(/inherited always/);
  });
});

it('R80 the result that onRunEnd gets is frozen, all of it', async () => {
  const refused: boolean[] = [];
  const writes = defineShim({
    name: 'writes',
    onRunEnd: (result) => {
      if (result === null) return;
      const { runState } = result as unknown as {
        runState: { history: unknown[]; shimState: { set(key: string, value: number): void } };
      };
      const attempts = [
        () => Object.assign(result, { finalOutput: 'other' }),
        () => Object.assign(runState, { instructions: 'other' }),
        () => runState.history.push('x'),
        () => Object.assign(runState.history[1] as object, { finishReason: 'length' }),
        () => runState.shimState.set('x', 1),
        () => (result.responses as unknown[]).pop(),
      ];
      for (const attempt of attempts) {
        try {
          attempt();
          refused.push(false);
        } catch (error) {
          refused.push(error instanceof TypeError);
        }
      }
    },
  });
  const { agent } = bench([writes]);
  const { result } = await drive(agent);
  expect(refused).toEqual(Array(6).fill(true));
  expect(result?.finalOutput).toBe('done');
  expect(agent.runState.history).toHaveLength(2);
});
