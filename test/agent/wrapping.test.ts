import { describe, expect, it } from 'vitest';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  BoundShim,
  DelegatingBoundShim,
  DelegatingShim,
  defineShim,
  type ModelRequest,
  type PreparedTurn,
  type RunnerHooks,
  Shim,
  type ShimBindingContext,
  type ShimDefinition,
} from '../../src/shims.js';
import { ScriptedModel } from '../../src/testing.js';
import { calls, drive, onTurn, runOnce, toolNamed, WAYS } from './drive.js';

type Surface = abstract new (...args: never[]) => object;

/** What of a surface's methods a delegate does not forward: each one must be its own, with as many parameters. */
function notForwarded(surface: Surface, delegate: Surface, except: readonly PropertyKey[] = []): string[] {
  const methods = Reflect.ownKeys(surface.prototype as object).filter(
    (key) => key !== 'constructor' && !except.includes(key),
  );
  return methods.flatMap((key) => {
    const whole = Object.getOwnPropertyDescriptor(surface.prototype, key)?.value as unknown;
    const own = Object.getOwnPropertyDescriptor(delegate.prototype, key)?.value as unknown;
    if (typeof whole !== 'function') return [];
    if (typeof own !== 'function') return [`${String(key)} is not forwarded`];
    return own.length === whole.length ? [] : [`${String(key)} takes ${own.length} of ${whole.length} parameters`];
  });
}

describe('R108 the callback surface and its delegates', () => {
  class Grown extends BoundShim {
    onSomethingNew(_turn: PreparedTurn, _what: string): void {}
  }

  it('R108 a delegate that lacks a callback, or one of its parameters, is found', () => {
    class Lacks extends DelegatingBoundShim {}
    class TakesLess extends DelegatingBoundShim {
      onSomethingNew(_turn: PreparedTurn): void {}
    }
    expect(notForwarded(Grown, Lacks)).toEqual(['onSomethingNew is not forwarded']);
    expect(notForwarded(Grown, TakesLess)).toEqual(['onSomethingNew takes 1 of 2 parameters']);
  });

  it('R108 DelegatingBoundShim has every callback of BoundShim, with all parameters', () => {
    expect(notForwarded(BoundShim, DelegatingBoundShim)).toEqual([]);
  });

  it('R108 DelegatingShim has every callback of Shim, with all parameters', () => {
    expect(notForwarded(Shim, DelegatingShim)).toEqual([]);
  });

  it('R108 the session of a plain shim has every callback of BoundShim but those that only a session has', async () => {
    const plain = new (class extends Shim {
      readonly name = 'plain';
    })();
    const context = { task: { runId: 'r', agent: 'a', model: 'm', depth: 0 }, toolSourceBindings: [] };
    const session = await plain.bind(context);
    const sessionOnly = ['inheritTools', Symbol.asyncDispose];
    expect(notForwarded(BoundShim, session.constructor as Surface, sessionOnly)).toEqual([]);
    class Overrides extends DelegatingShim {
      override prepareTurn(turn: PreparedTurn): void | Promise<void> {
        return super.prepareTurn(turn);
      }
    }
    const wrapped = await new Overrides(plain).bind(context);
    expect(notForwarded(BoundShim, wrapped.constructor as Surface, sessionOnly)).toEqual([]);
  });

  it('R108 the surface is what it was', () => {
    const callbacks = [
      ['onRunStart', 3],
      ['prepareTurn', 1],
      ['transformMessages', 2],
      ['onModelResponse', 2],
      ['onRunEnd', 3],
      ['wrapModelCall', 3],
      ['wrapToolCall', 3],
      ['transformDelta', 2],
      ['onContextExceeded', 2],
      ['runnerHooks', 0],
    ];
    const surfaceOf = (surface: Surface): unknown[] =>
      Object.getOwnPropertyNames(surface.prototype)
        .filter((key) => key !== 'constructor')
        .map((key) => [key, ((surface.prototype as Record<string, unknown>)[key] as () => void).length]);
    expect(surfaceOf(BoundShim)).toEqual([...callbacks, ['inheritTools', 1]]);
    expect(surfaceOf(Shim)).toEqual([['bind', 1], ...callbacks]);
  });
});

/** A session that writes down what it is called with, and returns something of its own. */
class Inner extends BoundShim {
  readonly got: unknown[][] = [];
}
const METHODS: readonly PropertyKey[] = [
  ...Object.getOwnPropertyNames(BoundShim.prototype).filter((key) => key !== 'constructor'),
  Symbol.asyncDispose,
];
METHODS.forEach((key: PropertyKey) => {
  Object.defineProperty(Inner.prototype, key, {
    value: function (this: Inner, ...args: unknown[]) {
      this.got.push([key, ...args]);
      return `of ${String(key)}`;
    },
  });
});

type AnyMethods = Record<PropertyKey, (...args: unknown[]) => unknown>;

it.each(METHODS)('R106 DelegatingBoundShim forwards %s with its arguments and what it returns', async (key) => {
  const inner = new Inner();
  const delegate = new DelegatingBoundShim(inner) as unknown as AnyMethods;
  const args = Array.from({ length: (BoundShim.prototype as unknown as AnyMethods)[key]?.length ?? 0 }, (_, index) => ({
    index,
  }));
  const returned = await delegate[key]?.(...args);
  expect(returned).toBe(key === Symbol.asyncDispose ? undefined : `of ${String(key)}`);
  expect(inner.got).toEqual([[key, ...args]]);
  args.forEach((arg, index) => expect(inner.got[0]?.[index + 1]).toBe(arg));
  expect((delegate as unknown as DelegatingBoundShim).inner).toBe(inner);
});

describe.each(WAYS)('wrapped shims, %s', (way) => {
  /** A shim whose every callback leaves a note, with a session of its own in each run. */
  class Noted extends Shim {
    readonly name = 'noted';
    readonly notes: string[] = [];
    override bind(): BoundShim {
      const { notes } = this;
      const [session] = [notes.push('bind')];
      return new (class extends BoundShim {
        override onRunStart(): void {
          notes.push(`start ${session}`);
        }
        override prepareTurn(turn: PreparedTurn): void {
          notes.push(`prepare ${session}`);
          turn.addTools([toolNamed('fast')]);
        }
        override transformMessages(): void {
          notes.push('transform');
        }
        override onModelResponse(): void {
          notes.push('response');
        }
        override onRunEnd(): void {
          notes.push('end');
        }
        override async wrapModelCall(
          ...[, request, next]: Parameters<BoundShim['wrapModelCall']>
        ): ReturnType<BoundShim['wrapModelCall']> {
          notes.push('model');
          return next(request);
        }
        override async wrapToolCall(
          ...[, call, next]: Parameters<BoundShim['wrapToolCall']>
        ): ReturnType<BoundShim['wrapToolCall']> {
          notes.push('tool');
          return next(call);
        }
        override transformDelta(
          ...[, delta]: Parameters<BoundShim['transformDelta']>
        ): ReturnType<BoundShim['transformDelta']> {
          if (delta.kind === 'flush') notes.push('flush');
          return delta;
        }
        override async [Symbol.asyncDispose](): Promise<void> {
          notes.push('dispose');
        }
      })();
    }
  }
  const turn = ['transform', 'model', 'flush', 'response'];
  const whole = ['bind', 'start 1', 'prepare 1', ...turn, 'tool', 'prepare 1', ...turn, 'end', 'dispose'];

  async function run(shim: Shim | ShimDefinition): Promise<void> {
    const model = new ScriptedModel([calls('fast'), 'done']);
    const agent = new DefaultAgent({ model, shims: [shim] });
    expect((await drive(agent, 'hello', { way })).error).toBeUndefined();
    await agent[Symbol.asyncDispose]();
  }

  it('R107 DelegatingShim.bind gives the inner session, and forwards everything', async () => {
    const noted = new Noted();
    const delegate = new DelegatingShim(noted);
    expect(delegate.inner).toBe(noted);
    expect(delegate.name).toBe('noted');
    await run(delegate);
    expect(noted.notes).toEqual(whole);
    noted.notes.length = 0;
    await run(new DelegatingShim(new DelegatingShim(noted)));
    expect(noted.notes).toEqual(whole);
  });

  it('R107 a callback overridden on the definition takes effect without overriding bind; super reaches the session of that run', async () => {
    const noted = new Noted();
    const notes: string[] = [];
    class Overrides extends DelegatingShim {
      override async prepareTurn(prepared: PreparedTurn): Promise<void> {
        noted.notes.push('before');
        await super.prepareTurn(prepared);
        notes.push((prepared.tools?.tools ?? []).map(({ name }) => name).join());
      }
    }
    await run(new Overrides(noted));
    expect(noted.notes).toEqual(whole.flatMap((note) => (note === 'prepare 1' ? ['before', note] : [note])));
    expect(notes).toEqual(['fast', 'fast']);
    // Two agents over one wrapped definition: each reaches its own session.
    noted.notes.length = 0;
    const shim = new Overrides(noted);
    const agents = [0, 1].map(() => new DefaultAgent({ model: new ScriptedModel(['done', 'done']), shims: [shim] }));
    await Promise.all(agents.map(async (agent) => drive(agent, 'hello', { way })));
    expect(noted.notes.filter((note) => note.startsWith('prepare')).sort()).toEqual(['prepare 1', 'prepare 2']);
  });

  it('R106 R107 a wrapper at both levels: the definition wraps the session that its bind gives', async () => {
    const seen: unknown[] = [];
    class Consumer extends DelegatingBoundShim {
      override prepareTurn(prepared: PreparedTurn): void | Promise<void> {
        seen.push(prepared.runState.turnCount);
        return super.prepareTurn(prepared);
      }
    }
    class Wrapper extends DelegatingShim {
      override async bind(context: ShimBindingContext): Promise<BoundShim> {
        return new Consumer(await super.bind(context));
      }
    }
    const noted = new Noted();
    await run(new Wrapper(noted));
    expect(noted.notes).toEqual(whole);
    expect(seen).toEqual([1, 2]);
  });

  it('R109 the hooks of a session are read once at bind; the host’s come first, then the shims’ in order', async () => {
    const notes: string[] = [];
    let reads = 0;
    const hooksOf = (name: string): RunnerHooks => ({
      onAgentStart: () => void notes.push(`${name} agentStart`),
      onLlmStart: () => void notes.push(`${name} llmStart`),
      onLlmEnd: () => void notes.push(`${name} llmEnd`),
      onToolStart: () => void notes.push(`${name} toolStart`),
      onToolEnd: () => void notes.push(`${name} toolEnd`),
      onAgentEnd: () => void notes.push(`${name} agentEnd`),
    });
    const shim = (name: string): ShimDefinition =>
      defineShim({
        name,
        runnerHooks() {
          reads += 1;
          return [hooksOf(name)];
        },
      });
    const model = new ScriptedModel([calls('fast'), 'done', 'again']);
    const agent = new DefaultAgent({
      model,
      shims: [shim('a'), shim('b')],
      hooks: [hooksOf('host')],
      tools: [toolNamed('fast')],
    });
    await drive(agent, 'hello', { way });
    const steps = ['agentStart', 'llmStart', 'llmEnd', 'toolStart', 'toolEnd', 'llmStart', 'llmEnd', 'agentEnd'];
    expect(notes).toEqual(steps.flatMap((step) => ['host', 'a', 'b'].map((name) => `${name} ${step}`)));
    await drive(agent, 'more', { way });
    expect(reads).toBe(2);
  });

  it('R110 hooks observe: what they write is refused, and what they throw changes nothing', async () => {
    const refused: string[] = [];
    const attempt = (what: string, write: () => unknown): void => {
      try {
        write();
      } catch (error) {
        if (error instanceof TypeError) refused.push(what);
      }
    };
    type Any = Record<string, unknown> & unknown[];
    const hooks: RunnerHooks = {
      onAgentStart: (task, state) => {
        attempt('task', () => ((task as { agent: string }).agent = 'other'));
        attempt('instructions', () => (state.instructions = 'other'));
        attempt('history', () => state.history.push('injected'));
        attempt('state', () => state.shimState.set('x', 1));
        throw new Error('a hook');
      },
      onLlmStart: (_task, request) => {
        attempt('model', () => ((request as { model: string }).model = 'other'));
        attempt('messages', () => (request.messages as unknown as Any).push({ role: 'user', content: 'injected' }));
        attempt('message', () => ((request.messages[0] as unknown as Any).content = 'injected'));
        attempt('tools', () => (request.tools?.tools as unknown as Any).pop());
        attempt('settings', () => ((request.tools as unknown as Any).toolChoice = 'none'));
        attempt('args', () => ((request.modelArgs as Any).temperature = 1));
        throw new Error('a hook');
      },
      onLlmEnd: (_task, response) => {
        attempt('response', () => ((response as unknown as Any).finishReason = 'length'));
        return Promise.reject(new Error('a hook'));
      },
      onToolStart: (_task, call) => {
        attempt('call', () => ((call as { arguments: unknown }).arguments = {}));
        attempt('arguments', () => ((call.arguments as Any).x = 1));
      },
      onToolEnd: (_task, _call, outcome) => {
        attempt('outcome', () => ((outcome as unknown as Any).result = 'forged'));
      },
    };
    const changes = defineShim({ name: 'copies', transformMessages: (_turn, messages) => [...messages] });
    const { model, result } = await runOnce([changes], [calls('fast'), 'done'], {
      way,
      hooks: [hooks],
      tools: [toolNamed('fast')],
    });
    expect(result?.finalOutput).toBe('done');
    const once = ['task', 'instructions', 'history', 'state'];
    const call = ['model', 'messages', 'message', 'tools', 'settings', 'args', 'response'];
    expect(refused).toEqual([...once, ...call, 'call', 'arguments', 'outcome', ...call]);
    expect(model.requests.map(({ prompt }) => prompt.length)).toEqual([1, 3]);
    expect(JSON.stringify(model.requests[1]?.prompt)).not.toMatch(/injected|forged/);
  });
});

it('R110 a hook that never settles is not waited for without end, and a cancel does not wait for it', async () => {
  const { ManualClock, settle } = await import('../support/manual-clock.js');
  const clock = new ManualClock();
  const never = new Promise<void>(() => undefined);
  const agent = new DefaultAgent({
    model: new ScriptedModel(['done']),
    clock,
    hooks: [{ onAgentStart: async () => never, onAgentEnd: async () => never }],
  });
  const running = drive(agent);
  await clock.advance(30_000);
  await clock.advance(30_000);
  expect((await running).result?.finalOutput).toBe('done');
  const controller = new AbortController();
  const second = drive(agent, 'more', { signal: controller.signal });
  await settle();
  controller.abort();
  await clock.advance(1000);
  await clock.advance(30_000);
  expect((await second).error).toMatchObject({ name: 'RunCancelledError' });
});

it('R109 R110 a hook sees the request as the model gets it', async () => {
  const requests: ModelRequest[] = [];
  const adds = onTurn('adds', (turn) => {
    turn.addTools([toolNamed('fast')]);
    turn.appendSystemInstruction('be brief');
  });
  await runOnce([adds], ['done'], { hooks: [{ onLlmStart: (_task, request) => void requests.push(request) }] });
  expect(requests).toHaveLength(1);
  expect(requests[0]?.messages).toEqual([
    { role: 'system', content: 'be brief' },
    { role: 'user', content: 'hello' },
  ]);
  expect(requests[0]?.tools?.tools.map(({ name }) => name)).toEqual(['fast']);
});
