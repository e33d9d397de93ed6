import { join } from 'node:path';
import Database from 'better-sqlite3';
import { afterEach, describe, expect, it, vi } from 'vitest';
import limits from '../../shims/limits/index.js';
import { DefaultAgent } from '../../src/index.js';
import { agentTool, defineShim, defineTool, z } from '../../src/shims.js';
import { type ScriptedAnswer, ScriptedModel, testShim } from '../../src/testing.js';
import { temporaryFolder } from '../support/wait.js';

type Config = NonNullable<Parameters<typeof limits.create>[0]>;

let ran = 0;
const tools = defineShim({
  name: 'tools',
  prepareTurn(turn) {
    const work = defineTool({
      name: 'work',
      description: 'Works.',
      parameters: z.object({}),
      execute: () => (ran += 1),
    });
    turn.addTools([work]);
  },
});
const call = (n = 1, usage = { inputTokens: 6, outputTokens: 4 }): ScriptedAnswer => ({
  toolCalls: Array.from({ length: n }, () => ({ toolName: 'work', input: {} })),
  usage,
});

/** What stopped a run that would go on for ever, and how often its model was called. */
async function stopped(config: Config, more: Partial<Parameters<typeof testShim>[1]> = {}) {
  ran = 0;
  const run = await testShim(limits, {
    config: { onReached: 'fail', ...config },
    after: [tools],
    script: [],
    otherwise: call(),
    limits: { maxTurns: 9 },
    dataDir: temporaryFolder('limits-'),
    ...more,
  } as never);
  const { code, limit, allowed, reached } = (run.error ?? {}) as Record<string, unknown>;
  return { code, limit, allowed, reached, calls: run.model.requests.length, ran, run };
}

const exceeded = (limit: string, allowed: number, reached = allowed) => ({
  code: 'limit_exceeded',
  limit,
  allowed,
  reached,
});

afterEach(() => {
  vi.useRealTimers();
});

describe.each(['perRun', 'perDay'] as const)('%s, to the unit', (of) => {
  const only = (budget: NonNullable<Config['perRun']>): Config => ({ [of]: budget });

  it.each([0, 1, 3])('%d model calls', async (modelCalls) => {
    expect(await stopped(only({ modelCalls }))).toMatchObject({
      ...exceeded(`${of}.modelCalls`, modelCalls),
      calls: modelCalls,
      ran: modelCalls,
    });
  });

  it('tool calls: of three in one answer two run', async () => {
    const result = await stopped(only({ toolCalls: 2 }), { otherwise: call(3) });
    expect(result).toMatchObject({ ...exceeded(`${of}.toolCalls`, 2), calls: 1, ran: 2 });
  });

  it.each([
    [30, 3],
    [31, 4],
    [29, 3],
  ])('%d tokens are used up after %d calls of ten', async (tokens, calls) => {
    expect(await stopped(only({ tokens }))).toMatchObject({ ...exceeded(`${of}.tokens`, tokens, calls * 10), calls });
  });

  it('cost by the longest prefix of the model’s id', async () => {
    const prices = { '': { input: 9, output: 9 }, 'in-code/': { input: 500_000, output: 250_000 } };
    // 6 × 0.5 + 4 × 0.25 = 4 a call.
    expect(await stopped({ ...only({ cost: 8 }), prices })).toMatchObject({ ...exceeded(`${of}.cost`, 8), calls: 2 });
    expect(await stopped({ ...only({ cost: 8.5 }), prices })).toMatchObject({
      ...exceeded(`${of}.cost`, 8.5, 12),
      calls: 3,
    });
  });

  it('a cost that cannot be told is not taken for nothing', async () => {
    const result = await stopped(only({ cost: 8 }));
    expect(result).toMatchObject({ code: 'shim_failed', calls: 0 });
    expect(result.run.error?.message).toContain('no price for the model in-code/agent');
  });

  it('time at work', async () => {
    const slow = { toolCalls: [{ toolName: 'work', input: {} }], delayMs: 30 };
    const result = await stopped(only({ wallTimeMs: 20 }), { otherwise: slow });
    expect(result).toMatchObject({ code: 'limit_exceeded', limit: `${of}.wallTimeMs`, allowed: 20, calls: 1, ran: 0 });
  });
});

describe('what counts', () => {
  it('tries after a passing failure', async () => {
    const failing = { error: { code: 'model_error', retryable: true } } as const;
    const script = [failing, call(), call()];
    expect(await stopped({ perRun: { modelCalls: 2 } }, { script, modelMaxRetries: 2 })).toMatchObject({
      ...exceeded('perRun.modelCalls', 2),
      calls: 2,
      ran: 1,
    });
  });

  it.each(['before', 'after'] as const)('calls that another shim makes again, standing %s it', async (place) => {
    const again = defineShim({
      name: 'again',
      async wrapModelCall(_turn, request, next) {
        await next(request);
        return next(request);
      },
    });
    const shims = place === 'before' ? { before: [again], after: [tools] } : { before: [], after: [again, tools] };
    expect(await stopped({ perRun: { modelCalls: 2 } }, shims)).toMatchObject({
      code: 'limit_exceeded',
      calls: 2,
      ran: 1,
    });
  });

  it('an answer that another shim gives without a call counts nothing', async () => {
    const canned = defineShim({
      name: 'canned',
      wrapModelCall: async (turn, request, next) => {
        const response = await next(request);
        return turn.runTurn === 1 ? response : { ...response, message: { role: 'assistant', content: 'done' } };
      },
    });
    const result = await stopped({ perRun: { modelCalls: 2 } }, { after: [canned, tools] });
    expect(result).toMatchObject({ code: undefined, calls: 2 });
  });

  it.each(['perRun', 'perDay'] as const)('tokens of hidden model calls, %s', async (of) => {
    const hidden = defineShim({
      name: 'hidden',
      async onModelResponse(turn) {
        await turn.callModel({ messages: [{ role: 'user', content: 'hm' }] }, { purpose: 'thought' });
      },
    });
    const result = await stopped({ [of]: { tokens: 40 } }, { after: [hidden, tools] });
    expect(result).toMatchObject({ ...exceeded(`${of}.tokens`, 40), calls: 4, ran: 2 });
  });

  it('an agent that was handed to goes on with the counts', async () => {
    const dataDir = temporaryFolder('limits-');
    const script = [call(), { toolCalls: [{ toolName: 'handoff_to_second', input: {} }] }, call(), 'done'];
    const model = new ScriptedModel(script);
    const second = new DefaultAgent({ name: 'second', model, shims: [tools] });
    const first = new DefaultAgent({
      name: 'first',
      model,
      shims: [limits.create({ perRun: { modelCalls: 4 }, onReached: 'fail' }), tools],
      handoffs: [second],
      dataDir,
    });
    expect((await first.run('go')).finalOutput).toBe('done');
    expect(first.runState.shimState.get('limits')).toMatchObject({ modelCalls: 4, toolCalls: 3 });
  });

  it('each request is priced by its own model', async () => {
    const other = defineShim({
      name: 'other',
      async wrapModelCall(turn, request, next) {
        if (turn.runTurn > 1) return next(request);
        await next(request);
        return next({ ...request, model: 'dear/model' });
      },
    });
    const model = new ScriptedModel([], { otherwise: call() });
    const handle = (id: string) => ({
      id,
      languageModel: model,
      nativeStructuredOutput: false,
      failureOf: (): never => {
        throw new Error('no failure');
      },
    });
    const config: Config = {
      perRun: { cost: 1000, modelCalls: 3 },
      onReached: 'fail',
      prices: { 'cheap/': { input: 1_000_000, cachedInput: 0, output: 0 }, 'dear/': { input: 0, output: 10_000_000 } },
    };
    const agent = new DefaultAgent({
      model: 'cheap/model',
      models: { resolve: handle },
      shims: [limits.create(config), other, tools],
    });
    await expect(agent.run('go')).rejects.toMatchObject({ code: 'limit_exceeded' });
    // 6 × 1, then 4 × 10, then 6 × 1.
    expect(agent.runState.shimState.get('limits')).toMatchObject({ cost: 52, modelCalls: 3 });
  });

  it('two agents of one conversation with limits of their own count each call once for the day', async () => {
    const dataDir = temporaryFolder('limits-');
    const model = new ScriptedModel([
      call(),
      { toolCalls: [{ toolName: 'handoff_to_second', input: {} }] },
      call(),
      'done',
    ]);
    const own = (modelCalls: number) => limits.create({ perDay: { modelCalls }, onReached: 'fail' });
    const second = new DefaultAgent({ name: 'second', model, shims: [own(4), tools], dataDir });
    const first = new DefaultAgent({ name: 'first', model, shims: [own(9), tools], handoffs: [second], dataDir });
    expect((await first.run('go')).finalOutput).toBe('done');
    expect(dayIn(dataDir)).toMatchObject({ model_calls: 4, tool_calls: 3 });
    expect(reservationsIn(dataDir)).toEqual([]);
    await expect(second.run('more')).rejects.toMatchObject({ details: { limit: 'perDay.modelCalls', allowed: 4 } });
  });

  it('a child’s tokens count once, and its calls count for the day', async () => {
    const dataDir = temporaryFolder('limits-');
    const boss = defineShim({
      name: 'boss',
      inherit: 'none',
      prepareTurn(turn) {
        turn.addTools([agentTool(turn, { name: 'help', description: 'Helps.', instructions: 'Help.' })]);
      },
    });
    const usage = { inputTokens: 6, outputTokens: 4 };
    const run = await testShim(limits, {
      config: { perDay: { tokens: 1000 }, perRun: { tokens: 1000 } },
      before: [boss],
      after: [tools],
      dataDir,
      script: [
        { toolCalls: [{ toolName: 'help', input: { task: 'x' } }], usage },
        call(),
        { text: 'helped', usage },
        { text: 'done', usage },
      ],
    });
    expect(run.output).toBe('done');
    expect(dayIn(dataDir)).toMatchObject({ model_calls: 4, tool_calls: 2, tokens: 40 });
  });

  it('a run that ends in failure has used what it used', async () => {
    const dataDir = temporaryFolder('limits-');
    const script = [call(), new Error('broken')];
    await stopped({ perDay: { modelCalls: 9 } }, { script, dataDir, otherwise: undefined });
    expect(dayIn(dataDir)).toMatchObject({ model_calls: 2, tool_calls: 1, tokens: 10 });
    expect(reservationsIn(dataDir)).toEqual([]);
  });
});

describe('a day', () => {
  it('is shared by all runs, ends at midnight UTC, and belongs to one shim of one name', async () => {
    vi.useFakeTimers({ toFake: ['Date'], now: Date.parse('2026-01-31T23:59:59.999Z') });
    const dataDir = temporaryFolder('limits-');
    const config: Config = { perDay: { modelCalls: 2 } };
    expect(await stopped(config, { dataDir })).toMatchObject({ calls: 2 });
    expect(await stopped(config, { dataDir })).toMatchObject({ calls: 0 });
    expect(await stopped(config, { dataDir, as: 'others' })).toMatchObject({ calls: 2 });
    vi.setSystemTime(Date.parse('2026-02-01T00:00:00.000Z'));
    expect(await stopped(config, { dataDir })).toMatchObject({ calls: 2 });
  });

  it('of many runs that race for the last unit one gets it', async () => {
    const dataDir = temporaryFolder('limits-');
    let open = (): void => undefined;
    const until = new Promise<void>((resolve) => (open = resolve));
    const runs = Array.from({ length: 8 }, async () =>
      stopped({ perDay: { modelCalls: 1 } }, {
        dataDir,
        script: [{ text: 'mine', until }],
        otherwise: undefined,
      } as never),
    );
    await expect.poll(() => reservationsIn(dataDir).length).toBe(1);
    open();
    const results = await Promise.all(runs);
    expect(results.map(({ calls }) => calls).sort()).toEqual([0, 0, 0, 0, 0, 0, 0, 1]);
    expect(results.filter(({ run }) => run.output === 'mine')).toHaveLength(1);
    expect(dayIn(dataDir)).toMatchObject({ model_calls: 1 });
    expect(reservationsIn(dataDir)).toEqual([]);
  });

  it('a call in flight holds tokens, so that no second run starts on the last of them', async () => {
    const dataDir = temporaryFolder('limits-');
    let open = (): void => undefined;
    const until = new Promise<void>((resolve) => (open = resolve));
    const config: Config = { perDay: { tokens: 2 } };
    const first = stopped(config, { dataDir, script: [{ text: 'mine', until }], otherwise: undefined });
    await expect.poll(() => reservationsIn(dataDir).length).toBe(1);
    const second = await stopped(config, { dataDir });
    expect(second).toMatchObject({ code: 'limit_exceeded', limit: 'perDay.tokens', allowed: 2, calls: 0 });
    open();
    expect((await first).run.output).toBe('mine');
    expect(dayIn(dataDir)).toMatchObject({ tokens: 2 });
  });

  it.each([
    ['tokens', { tokens: 300 }],
    ['cost', { cost: 0.003 }],
  ])('%s: of a burst whose answers have no bound only one call goes beyond', async (_what, perDay) => {
    const dataDir = temporaryFolder('limits-');
    let open = (): void => undefined;
    const until = new Promise<void>((resolve) => (open = resolve));
    const config: Config = { perDay, prices: { '': { input: 10, output: 10 } } };
    const answer = { text: 'mine', usage: { inputTokens: 6, outputTokens: 400 }, until };
    const runs = Array.from({ length: 8 }, async () =>
      stopped(config, { dataDir, script: [answer], otherwise: undefined } as never),
    );
    await expect.poll(() => reservationsIn(dataDir).length).toBe(1);
    open();
    expect((await Promise.all(runs)).map(({ calls }) => calls).sort()).toEqual([0, 0, 0, 0, 0, 0, 0, 1]);
    expect(dayIn(dataDir)).toMatchObject({ tokens: 406 });
  });

  it('an answer without a bound holds what answers came to today, one with a bound what it asks for', async () => {
    const dataDir = temporaryFolder('limits-');
    const long = { text: 'long', usage: { inputTokens: 6, outputTokens: 4994 } };
    await stopped({ perDay: { tokens: 99_999 } }, { dataDir, script: [long], otherwise: undefined });
    const held = async (modelArgs: Record<string, unknown>): Promise<number> => {
      let open = (): void => undefined;
      const until = new Promise<void>((resolve) => (open = resolve));
      const run = stopped({ perDay: { tokens: 99_999 } }, {
        dataDir,
        script: [{ ...long, until }],
        otherwise: undefined,
        modelArgs,
      } as never);
      await expect.poll(() => reservationsIn(dataDir).length).toBe(1);
      const [row] = reservationsIn(dataDir) as readonly { readonly tokens: number }[];
      open();
      await run;
      return row?.tokens ?? Number.NaN;
    };
    expect(await held({})).toBe(5000);
    const bounded = await held({ maxOutputTokens: 70 });
    expect(bounded).toBeGreaterThan(70);
    expect(bounded).toBeLessThan(500);
  });

  it('a reservation of a process that is gone counts no more, one of a process that lives does', async () => {
    const dataDir = temporaryFolder('limits-');
    await stopped({ perDay: { modelCalls: 0 } }, { dataDir });
    const reserve = (id: string, holder: string): void => {
      using(dataDir, (database) =>
        database
          .prepare('INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, 1, 0, 0, 0)')
          .run(id, 'limits', new Date().toISOString().slice(0, 10), '', 'other', holder, Date.now()),
      );
    };
    reserve('gone', '999999999:1');
    reserve('was-ours', `${process.pid}:1`);
    expect(await stopped({ perDay: { modelCalls: 1 } }, { dataDir })).toMatchObject({ calls: 1 });
    expect(reservationsIn(dataDir)).toEqual([]);
    reserve('alive', '1:1');
    expect(await stopped({ perDay: { modelCalls: 2 } }, { dataDir })).toMatchObject({ calls: 0 });
  });
});

function using<T>(dataDir: string, read: (database: Database.Database) => T): T {
  const database = new Database(join(dataDir, 'limits.db'));
  try {
    return read(database);
  } finally {
    database.close();
  }
}
const dayIn = (dataDir: string): unknown => using(dataDir, (database) => database.prepare('SELECT * FROM days').get());
const reservationsIn = (dataDir: string): unknown[] =>
  using(dataDir, (database) => {
    const there = database.prepare("SELECT 1 FROM sqlite_master WHERE name = 'reservations'").get();
    return there === undefined ? [] : database.prepare('SELECT * FROM reservations').all();
  });
