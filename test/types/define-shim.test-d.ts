import { describe, expectTypeOf, it } from 'vitest';
import type { Shim } from '../../src/shims.js';
import {
  defineShim,
  defineTool,
  type Message,
  type ModelResponse,
  type PreparedTurn,
  type RunContext,
  type RunResult,
  type RunScope,
  type RunState,
  z,
} from '../../src/shims.js';
import { testShim } from '../../src/testing.js';

const config = z.strictObject({ prefix: z.string().default('NB:'), times: z.int() });

describe('defineShim', () => {
  it('types this.config after the schema, and its defaults with it', () => {
    defineShim({
      name: 'typed',
      config,
      prepareTurn(turn) {
        expectTypeOf(this.name).toEqualTypeOf<string>();
        expectTypeOf(this.config).toEqualTypeOf<{ prefix: string; times: number }>();
        expectTypeOf(turn).toExtend<PreparedTurn>();
        // @ts-expect-error -- the schema has no such field
        turn.appendSystemInstruction(this.config.suffix);
        // @ts-expect-error -- a number is no text
        turn.appendSystemInstruction(this.config.times);
      },
    });
  });

  it('types what create gets and gives', () => {
    defineShim({
      name: 'created',
      config,
      create: (given, context) => {
        expectTypeOf(given).toEqualTypeOf<{ prefix: string; times: number }>();
        expectTypeOf(context).toEqualTypeOf<{ readonly name: string }>();
        return null as unknown as Shim;
      },
    });
    // @ts-expect-error -- create gives a Shim
    defineShim({ name: 'created', config, create: () => 'a shim' });
    // @ts-expect-error -- create stands in place of the callbacks
    defineShim({ name: 'created', config, create: () => null as unknown as Shim, prepareTurn: () => undefined });
  });

  it('refuses a wrong config: of the definition, of an instance, of a test', () => {
    // @ts-expect-error -- a config is a zod object
    defineShim({ name: 'bad', config: z.string() });
    // @ts-expect-error -- a config is a schema
    defineShim({ name: 'bad', config: { prefix: 'NB:' } });
    const shim = defineShim({ name: 'good', config });
    shim.create({ times: 1 });
    // @ts-expect-error -- times is missing
    shim.create({ prefix: 'NB:' });
    // @ts-expect-error -- times is a number
    shim.create({ times: 'twice' });
    // @ts-expect-error -- the schema has no such field
    shim.create({ times: 1, suffix: '!' });
    void testShim(shim, { config: { times: 1 } });
    // @ts-expect-error -- times is a number
    void testShim(shim, { config: { times: 'twice' } });
  });

  it('refuses a definition without a name', () => {
    // @ts-expect-error -- the name is missing
    defineShim({ prepareTurn: () => undefined });
    // @ts-expect-error -- the name is a text
    defineShim({ name: 1 });
  });

  it('refuses a wrong callback signature', () => {
    defineShim({
      name: 'bad',
      // @ts-expect-error -- prepareTurn gets the turn only
      prepareTurn: (_turn: PreparedTurn, _messages: Message[]) => undefined,
    });
    defineShim({
      name: 'bad',
      // @ts-expect-error -- prepareTurn gives nothing
      prepareTurn: () => 'done',
    });
    defineShim({
      name: 'bad',
      // @ts-expect-error -- messages, or nothing
      transformMessages: () => 'messages',
    });
    defineShim({
      name: 'bad',
      // @ts-expect-error -- a response, not a text
      onModelResponse: (_turn: PreparedTurn, _response: string) => undefined,
    });
    defineShim({
      name: 'bad',
      // @ts-expect-error -- whether the context was mended
      onContextExceeded: () => 'yes',
    });
    defineShim({
      name: 'bad',
      // @ts-expect-error -- there is no such failure mode
      onFailure: 'ignore',
    });
    defineShim({
      name: 'bad',
      // @ts-expect-error -- there is no such callback to time
      timeouts: { prepare: 1000 },
    });
  });

  it('types the callbacks', () => {
    defineShim({
      name: 'typed',
      onRunStart(state, transientState, run) {
        expectTypeOf(state).toEqualTypeOf<RunState>();
        expectTypeOf(transientState).toEqualTypeOf<RunContext>();
        expectTypeOf(run).toExtend<RunScope>();
        expectTypeOf(run.signal).toEqualTypeOf<AbortSignal>();
      },
      transformMessages(_turn, messages) {
        expectTypeOf(messages).toEqualTypeOf<Message[]>();
        return messages.slice(1);
      },
      onModelResponse(_turn, response) {
        expectTypeOf(response).toEqualTypeOf<ModelResponse>();
      },
      onRunEnd(result) {
        expectTypeOf(result).toEqualTypeOf<RunResult | null>();
      },
      async wrapToolCall(_turn, call, next) {
        expectTypeOf(call.name).toEqualTypeOf<string>();
        return next(call);
      },
    });
  });

  it('types the state after its schema, in every callback that has it', () => {
    defineShim({
      name: 'counting',
      version: 2,
      state: z.object({ visits: z.int().default(0), names: z.array(z.string()).default([]) }),
      migrate: (_old, fromVersion) => {
        expectTypeOf(fromVersion).toEqualTypeOf<number>();
        return { visits: fromVersion };
      },
      onRunStart(_state, _transientState, run) {
        expectTypeOf(run.state).toEqualTypeOf<{ visits: number; names: string[] }>();
      },
      prepareTurn(turn) {
        turn.state.visits += 1;
        turn.state.names.push('Ada');
        // @ts-expect-error -- a number is no text
        turn.state.names.push(1);
        // @ts-expect-error -- the schema has no such field
        turn.state.visitors = 1;
      },
    });
    defineShim({
      name: 'counting',
      state: z.object({ visits: z.int().default(0) }),
      // @ts-expect-error -- migrate gives what the schema takes
      migrate: () => ({ visits: 'many' }),
    });
  });

  it('has no state without a schema', () => {
    defineShim({
      name: 'stateless',
      prepareTurn(turn) {
        // @ts-expect-error -- there is no state
        turn.state.visits = 1;
      },
    });
  });
});

describe('defineTool', () => {
  it('types the arguments after the parameters', () => {
    defineTool({
      name: 'search',
      description: 'Searches.',
      parameters: z.object({ query: z.string(), limit: z.int().default(5) }),
      execute: (args, context) => {
        expectTypeOf(args).toEqualTypeOf<{ query: string; limit: number }>();
        expectTypeOf(context.idempotencyKey).toEqualTypeOf<string>();
        return args.query;
      },
    });
    // @ts-expect-error -- there is no such crash policy
    defineTool({ name: 'x', description: '', parameters: z.object({}), onCrash: 'again', execute: () => '' });
    // @ts-expect-error -- what it does is missing
    defineTool({ name: 'x', description: '', parameters: z.object({}) });
  });
});
