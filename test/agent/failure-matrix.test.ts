import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  defineShim,
  ModelCallError,
  RunCancelledError,
  type RunContext,
  RunError,
  type RunResult,
  ShimCleanupError,
  type ShimDefinition,
  ShimError,
} from '../../src/shims.js';
import { type ScriptedAnswer, ScriptedModel } from '../../src/testing.js';
import { calls, type Driven, drive, promptOf, runOnce, toolNamed, WAYS, type Way } from './drive.js';

const CALLBACKS = ['onRunStart', 'prepareTurn', 'transformMessages', 'onModelResponse'] as const;
const WRAPS = ['wrapModelCall', 'wrapToolCall'] as const;
const PLACES = [...CALLBACKS, ...WRAPS, 'model', 'tool'] as const;
type Place = (typeof PLACES)[number];

/** What goes wrong first: nothing, a throw, or a cancel, and where. */
type First = { readonly kind: 'nothing' } | { readonly kind: 'throws' | 'cancelled'; readonly place: Place };
/** Which of the four clean-ups fail, and how. */
interface CleanUp {
  readonly failing: readonly string[];
  readonly by?: 'throw' | 'timeout' | 'cancel' | 'abort';
}

const FIRSTS: readonly First[] = [
  { kind: 'nothing' },
  // A tool that throws is an error result, no failure of the run.
  ...PLACES.filter((place) => place !== 'tool').map((place) => ({ kind: 'throws', place }) as const),
  ...PLACES.map((place) => ({ kind: 'cancelled', place }) as const),
];
const CLEANUPS: readonly CleanUp[] = [
  { failing: [] },
  { failing: ['a'] },
  { failing: ['c'] },
  { failing: ['d'] },
  { failing: ['a', 'b', 'c', 'd'] },
  { failing: ['b'], by: 'timeout' },
  { failing: ['b'], by: 'cancel' },
  { failing: ['b'], by: 'abort' },
];
const NAMES = ['a', 'b', 'c', 'd'] as const;

class Matrix {
  readonly starts: string[] = [];
  readonly ends: { readonly shim: string; readonly result: RunResult | null; readonly transient: RunContext }[] = [];
  readonly controller = new AbortController();
  readonly failure = new Error('the first failure');
  transient: RunContext | undefined;
  #first: First;
  #cleanUp: CleanUp;

  constructor(first: First, cleanUp: CleanUp) {
    this.#first = first;
    this.#cleanUp = cleanUp;
  }

  /** From here on nothing fails any more. */
  heal(): void {
    this.#first = { kind: 'nothing' };
    this.#cleanUp = { failing: [] };
  }

  /** What the third shim, the model or the tool do at a place. */
  async at(place: Place, signal: AbortSignal): Promise<void> {
    if (this.#first.kind === 'nothing' || this.#first.place !== place) return;
    if (this.#first.kind === 'throws') throw this.failure;
    await new Promise((_resolve, reject) => {
      const stop = (): void => reject(signal.reason as Error);
      signal.addEventListener('abort', stop, { once: true });
      this.controller.abort();
    });
  }

  shims(): ShimDefinition[] {
    return NAMES.map((name) => {
      const at = async (place: Place, signal: AbortSignal) => (name === 'c' ? this.at(place, signal) : undefined);
      return defineShim({
        name,
        timeouts: { onRunEnd: 30 },
        onRunStart: async (state, transient, run) => {
          this.starts.push(name);
          this.transient = transient;
          state.shimState.increment(name);
          await at('onRunStart', run.signal);
        },
        prepareTurn: async (turn) => at('prepareTurn', turn.signal),
        transformMessages: async (turn) => at('transformMessages', turn.signal),
        onModelResponse: async (turn) => at('onModelResponse', turn.signal),
        wrapModelCall: async (turn, request, next) => {
          await at('wrapModelCall', turn.signal);
          return next(request);
        },
        wrapToolCall: async (turn, call, next) => {
          await at('wrapToolCall', turn.signal);
          return next(call);
        },
        onRunEnd: async (result, transient) => {
          this.ends.push({ shim: name, result, transient });
          await Promise.resolve();
          if (this.#cleanUp.failing.includes(name)) await failCleanUp(name, this.#cleanUp.by);
        },
      });
    });
  }

  get script(): readonly ScriptedAnswer[] {
    const failing: ScriptedAnswer = async ({ options }) => {
      await this.at('model', options.abortSignal!);
      return 'done';
    };
    return [calls('work'), failing, 'next'];
  }

  async run(way: Way): Promise<Driven & { readonly agent: DefaultAgent; readonly model: ScriptedModel }> {
    const model = new ScriptedModel(this.script);
    const work = toolNamed('work');
    const tool = {
      ...work,
      execute: async (_args: unknown, { signal }: { readonly signal: AbortSignal }) => {
        await this.at('tool', signal);
        return 'worked';
      },
    };
    const agent = new DefaultAgent({ model, tools: [tool], shims: this.shims() });
    return { agent, model, ...(await drive(agent, 'hello', { way, signal: this.controller.signal })) };
  }
}

async function failCleanUp(name: string, by: CleanUp['by'] = 'throw'): Promise<void> {
  switch (by) {
    case 'throw':
      throw new Error(`clean-up of ${name}`);
    case 'timeout':
      return new Promise(() => undefined);
    case 'cancel':
      throw new Error('outer', { cause: new AggregateError([new Error('x'), new RunCancelledError()]) });
    case 'abort':
      throw new DOMException('a fetch of the shim its own', 'AbortError');
  }
}

const textOfFirst = (first: First): string => (first.kind === 'nothing' ? 'nothing' : `${first.place} ${first.kind}`);
const textOfCleanUp = ({ failing, by = 'throw' }: CleanUp): string =>
  failing.length === 0 ? 'none' : `${failing.join('')} by ${by}`;

const ROWS = WAYS.flatMap((way) =>
  FIRSTS.flatMap((first) =>
    CLEANUPS.map((cleanUp) => ({
      way,
      first,
      cleanUp,
      text: `${way}: ${textOfFirst(first)}; clean-up fails: ${textOfCleanUp(cleanUp)}`,
    })),
  ),
);

describe('R52 R53 R54 R55 R56 R57 R58 every first failure with every clean-up failure', () => {
  it.each(ROWS)('R52-R58 $text', async ({ way, first, cleanUp }) => {
    const matrix = new Matrix(first, cleanUp);
    const { agent, model, result, error, events } = await matrix.run(way);

    // R52: what was started is what is ended; R54 R55 R56: each once, in list order, with the same map.
    const started = first.kind !== 'nothing' && first.place === 'onRunStart' ? ['a', 'b', 'c'] : [...NAMES];
    expect(matrix.starts).toEqual(started);
    expect(matrix.ends.map(({ shim }) => shim)).toEqual(started);
    expect(new Set(matrix.ends.map(({ transient }) => transient))).toEqual(new Set([matrix.transient]));

    // R53: nobody gets a result of a run that has none.
    const results = matrix.ends.map((end) => end.result?.finalOutput);
    expect(results).toEqual(started.map(() => (first.kind === 'nothing' ? 'done' : undefined)));

    const ending = events.at(-1)?.type;
    const { history, shimState } = agent.runState;
    if (first.kind === 'nothing' && cleanUp.failing.length === 0) {
      expect(error).toBeUndefined();
      expect(result?.finalOutput).toBe('done');
      if (way === 'runStream') expect(ending).toBe('run.completed');
    } else if (first.kind === 'cancelled' || (first.kind === 'nothing' && cleanUp.by === 'cancel')) {
      // R57 and R69: a cancel stands against clean-up failures, and one raised in clean-up counts.
      expect(error).toBeInstanceOf(RunCancelledError);
      if (way === 'runStream') expect(ending).toBe('run.cancelled');
    } else if (first.kind === 'throws') {
      // R57: the first error is the error of the run, whatever the clean-ups do.
      expect(error).toBeInstanceOf(RunError);
      if (first.place === 'model') expect(error).toBeInstanceOf(ModelCallError);
      else expect(error).toMatchObject({ shim: 'c', phase: first.place, cause: matrix.failure });
      if (way === 'runStream') expect(ending).toBe('run.failed');
    } else {
      // R58: all clean-up failures together, also one alone.
      expect(error).toBeInstanceOf(ShimCleanupError);
      expect(error).toBeInstanceOf(AggregateError);
      const { errors } = error as ShimCleanupError;
      expect(errors.map((each) => [each instanceof ShimError, each.shim, each.phase])).toEqual(
        cleanUp.failing.map((shim) => [true, shim, 'onRunEnd']),
      );
      if (way === 'runStream') expect(events.at(-1)).toMatchObject({ type: 'run.failed', output: 'done' });
    }
    if (way === 'runStream') {
      const endings = ['run.completed', 'run.failed', 'run.cancelled'];
      expect(events.filter(({ type }) => endings.includes(type))).toHaveLength(1);
    }

    // R61: what the failed turn wrote is not saved; before it everything is.
    const beforeStart = first.kind !== 'nothing' && first.place === 'onRunStart';
    expect(shimState.toJSON()).toEqual(beforeStart ? {} : { a: 1, b: 1, c: 1, d: 1 });
    const inFirstTurn = first.kind !== 'nothing' && !['model', 'tool', 'wrapToolCall'].includes(first.place);
    if (inFirstTurn) expect(history).toEqual(['hello']);
    if (first.kind === 'nothing') expect(history).toHaveLength(4);

    // R79: the conversation can go on, with what is sent of it whole.
    matrix.heal();
    const asked = model.requests.length;
    expect((await drive(agent, 'again', { way })).error).toBeUndefined();
    for (let request = asked; request < model.requests.length; request += 1) {
      const told = promptOf(model, request);
      const open = told.findIndex((text) => text === 'assistant: call work');
      if (open >= 0) expect(told[open + 1]).toMatch(/^tool: result /);
      expect(told.filter((text) => text.startsWith('tool:'))).toHaveLength(
        told.filter((text) => text === 'assistant: call work').length,
      );
    }
  });
});

describe('R52 a session counts as started before its onRunStart is awaited', () => {
  it.each(WAYS)('R52 [a, b, c(throws), d] ends a, b, c; d neither starts nor ends (%s)', async (way) => {
    for (const sync of [true, false]) {
      const seen: string[] = [];
      const shims = NAMES.map((name) =>
        defineShim({
          name,
          onRunStart: () => {
            seen.push(`${name} start`);
            if (name !== 'c') return undefined;
            if (sync) throw new Error('no');
            return Promise.reject(new Error('no'));
          },
          onRunEnd: (result) => void seen.push(`${name} end ${result === null ? 'null' : 'result'}`),
        }),
      );
      const { error, model } = await runOnce(shims, [], { way });
      expect(seen).toEqual(['a start', 'b start', 'c start', 'a end null', 'b end null', 'c end null']);
      expect(error).toMatchObject({ shim: 'c', phase: 'onRunStart' });
      expect(model.requests).toHaveLength(0);
    }
  });

  it('R52 a session without an onRunStart is started in its turn', async () => {
    const ends: string[] = [];
    const end = (name: string) => defineShim({ name, onRunEnd: () => void ends.push(name) });
    const throws = defineShim({
      name: 'throws',
      onRunStart: () => {
        throw new Error('no');
      },
    });
    await runOnce([end('before'), throws, end('after')], []);
    expect(ends).toEqual(['before']);
  });
});

describe('R59 a clean-up that fails after the answer', () => {
  const fails = defineShim({
    name: 'fails',
    prepareTurn: (turn) => void turn.runState.shimState.increment('turns'),
    onRunEnd: () => {
      throw new Error('could not close');
    },
  });

  it.each(WAYS)('R59 leaves the answer in the event, and the saved state can be resumed (%s)', async (way) => {
    const { agent, events, error } = await runOnce([fails], ['the answer', 'the next'], { way });
    expect((error as ShimCleanupError).toData()).toEqual({
      code: 'shim_cleanup_failed',
      message: '1 shim(s) failed in onRunEnd: fails',
      errors: [
        {
          code: 'shim_failed',
          message: 'Shim "fails" failed in onRunEnd: could not close',
          shim: 'fails',
          phase: 'onRunEnd',
          cause: 'could not close',
        },
      ],
    });
    if (way === 'runStream') {
      expect(events.at(-1)).toMatchObject({
        type: 'run.failed',
        output: 'the answer',
        error: (error as ShimCleanupError).toData(),
      });
    }
    const { history, responses, turnCount, shimState } = agent.runState;
    expect([history, turnCount, shimState.toJSON()]).toEqual([['hello', responses[0]], 1, { turns: 1 }]);
    await drive(agent, 'again', { way });
    expect(agent.runState.history.map((item) => (typeof item === 'string' ? item : 'response'))).toEqual([
      'hello',
      'response',
      'again',
      'response',
    ]);
  });
});

it('R60 the end comes in order: onRunEnd of the shims, the ending event, then the hooks; each guarded', async () => {
  const order: string[] = [];
  const later = async (note: string): Promise<void> => {
    await new Promise((resolve) => setImmediate(resolve));
    order.push(note);
  };
  const shims = ['a', 'b'].map((name) =>
    defineShim({
      name,
      onRunEnd: async () => {
        await later(`${name} onRunEnd`);
        if (name === 'a') throw new Error('guarded');
      },
      runnerHooks: () => [
        { onAgentEnd: async (_task, result) => later(`${name} hook ${result === null ? 'null' : 'result'}`) },
      ],
    }),
  );
  const hooks = [
    {
      onAgentEnd: async () => {
        await later('host hook');
        throw new Error('guarded');
      },
    },
  ];
  const agent = new DefaultAgent({ model: new ScriptedModel(['done']), shims, hooks });
  const stream = agent.runStream('hello');
  for await (const { type } of stream) if (type.startsWith('run.')) order.push(type);
  await expect(stream.result).rejects.toBeInstanceOf(ShimCleanupError);
  expect(order).toEqual(['a onRunEnd', 'b onRunEnd', 'run.failed', 'host hook', 'a hook null', 'b hook null']);
});

describe('R61 a throw in a turn fails the run, and what the turn wrote is not saved', () => {
  const places = ['prepareTurn', 'transformMessages', 'onModelResponse'] as const;
  it.each(WAYS.flatMap((way) => places.map((place) => ({ way, place }))))(
    'R61 $place ($way)',
    async ({ way, place }) => {
      const writes = defineShim({
        name: 'writes',
        prepareTurn: (turn) => {
          turn.appendSystemInstruction(`turn ${turn.turnCount}`);
          turn.appendHistoryItem(`note ${turn.turnCount}`);
          turn.runState.shimState.increment('turns');
          turn.runState.shimState.appendToList('list', turn.turnCount);
        },
      });
      const fail = (turn: { readonly turnCount: number }): void => {
        if (turn.turnCount === 2) throw new TypeError('second turn');
      };
      const fails = defineShim({ name: 'fails', [place]: fail });
      const { agent, error } = await runOnce([writes, fails], [calls('echo'), 'lost', 'more'], {
        way,
        tools: [toolNamed('echo')],
      });
      expect(error).toBeInstanceOf(ShimError);
      expect(error).toMatchObject({
        code: 'shim_failed',
        shim: 'fails',
        phase: place,
        cause: { message: 'second turn' },
      });
      const { instructions, history, responses, shimState, turnCount } = agent.runState;
      expect(instructions).toBe('turn 1');
      expect(history.map((item) => (typeof item === 'string' ? item : 'object'))).toEqual([
        'hello',
        'note 1',
        'object',
        'object',
      ]);
      expect(responses).toHaveLength(1);
      expect(shimState.toJSON()).toEqual({ turns: 1, list: [1] });
      expect(turnCount).toBe(1);
    },
  );
});

describe('R62 one shape of a shim failure', () => {
  it('R62 the error, the event and its JSON name the shim, the phase and the cause', async () => {
    const cause = new RangeError('too far');
    const fails = defineShim({
      name: 'fails',
      prepareTurn: () => {
        throw cause;
      },
    });
    const { error, events } = await runOnce([fails], []);
    const data = {
      code: 'shim_failed',
      message: 'Shim "fails" failed in prepareTurn: too far',
      shim: 'fails',
      phase: 'prepareTurn',
      cause: 'too far',
    };
    expect(error).toBeInstanceOf(ShimError);
    expect(error).toMatchObject({ name: 'ShimError', shim: 'fails', phase: 'prepareTurn', cause });
    expect((error as ShimError).toData()).toEqual(data);
    expect(events.at(-1)).toMatchObject({ type: 'run.failed', error: data, partialOutput: null });
    expect(JSON.parse(JSON.stringify(events.at(-1)))).toMatchObject({ error: data });
  });

  it.each<[string, unknown, string]>([
    ['a string', 'just words', 'just words'],
    ['nothing', undefined, 'undefined'],
    ['an object', { code: 7 }, '{"code":7}'],
    ['an error without a message', new TypeError(), 'TypeError'],
    [
      'something that cannot be printed',
      {
        get message() {
          throw new Error('no');
        },
        toJSON() {
          throw new Error('no');
        },
      },
      'something that cannot be printed was thrown',
    ],
  ])('R62 whatever was thrown: %s', async (_what, thrown, text) => {
    const fails = defineShim({
      name: 'fails',
      onRunStart: () => {
        throw thrown;
      },
    });
    const { error } = await runOnce([fails], []);
    expect((error as ShimError).toData()).toMatchObject({ shim: 'fails', phase: 'onRunStart', cause: text });
  });

  it('R62 a failure that is skipped has the same shape in its event', async () => {
    const skips = defineShim({
      name: 'skips',
      onFailure: 'skip',
      onModelResponse: () => {
        throw new Error('never mind');
      },
    });
    const { events, result } = await runOnce([skips]);
    expect(result?.finalOutput).toBe('done');
    expect(events.find(({ type }) => type === 'shim.failed')).toMatchObject({
      shim: 'skips',
      callback: 'onModelResponse',
      error: { code: 'shim_failed', shim: 'skips', phase: 'onModelResponse', cause: 'never mind' },
    });
  });
});

it('R58 clean-ups of a parent and of the child it handed over to fail the run together', async () => {
  const ends: unknown[] = [];
  const fails = (name: string) =>
    defineShim({
      name,
      onRunEnd: (result) => {
        ends.push([name, result?.finalOutput]);
        throw new Error(`clean-up of ${name}`);
      },
    });
  const child = new DefaultAgent({
    name: 'child',
    model: new ScriptedModel(['from the child']),
    shims: [fails('child-shim')],
  });
  const parent = new DefaultAgent({
    name: 'parent',
    model: new ScriptedModel([calls('handoff_to_child')]),
    shims: [fails('parent-shim')],
    handoffs: [child],
  });
  const { error, events } = await drive(parent);
  expect(ends).toEqual([
    ['child-shim', 'from the child'],
    ['parent-shim', 'from the child'],
  ]);
  expect((error as ShimCleanupError).errors.map(({ shim }) => shim)).toEqual(['child-shim', 'parent-shim']);
  expect(events.at(-1)).toMatchObject({ type: 'run.failed', output: 'from the child' });
});
