import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { lastUserText, toolResultsOf } from '../support/request-view.js';
import {
  calling,
  callOf,
  DIALECTS,
  ended,
  getRun,
  type Lab,
  logOf,
  putAgent,
  runToEnd,
  startLab,
  startRun,
  typesOf,
  WAIT,
} from './lab.js';

let lab: Lab;
beforeAll(async () => {
  lab = await startLab();
});
afterAll(async () => {
  await lab.close();
});
beforeEach(() => {
  lab.model.respondWith(undefined);
});

const ISO = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$/;

describe.each(DIALECTS)('a run over $dialect', ({ agent, dialect }) => {
  it('is answered 202 at once, with the run and where it is', async () => {
    lab.model.script({ text: 'hi' });
    const answer = await startRun(lab, { agent, metadata: { user: 'u1' } });
    expect(answer.status).toBe(202);
    const id = String(answer.body.id);
    expect(answer.headers).toMatchObject({ location: `/v1/runs/${id}`, 'content-location': `/v1/runs/${id}` });
    expect(answer.body).toMatchObject({ agent, agentVersion: 1, attempt: 1, input: 'hello', metadata: { user: 'u1' } });
    expect(await ended(lab, id)).toMatchObject({ id, status: 'completed', output: 'hi' });
    expect(lab.model.requests.at(-1)).toMatchObject({ dialect, accepted: true });
  });

  it('has every field of the contract once it is completed', async () => {
    lab.model.script({ text: ['Hel', 'lo'], usage: { input: 7, output: 3, cached: 2, reasoning: 1 } });
    const run = await runToEnd(lab, { agent });
    expect(run).toEqual({
      id: run.id,
      agent,
      agentVersion: 1,
      status: 'completed',
      attempt: 1,
      recoveries: 0,
      version: run.version,
      input: 'hello',
      output: 'Hello',
      partialOutput: null,
      finishReason: 'stop',
      error: null,
      usage: { inputTokens: 7, outputTokens: 3, totalTokens: 10, cachedInputTokens: 2, reasoningTokens: 1 },
      turnCount: 1,
      createdAt: expect.stringMatching(ISO) as string,
      startedAt: expect.stringMatching(ISO) as string,
      updatedAt: expect.stringMatching(ISO) as string,
      finishedAt: expect.stringMatching(ISO) as string,
      lastSeq: (await logOf(lab, run.id)).length,
      interruptions: [],
      unknownToolCalls: [],
      cancellation: null,
      metadata: {},
      parentRunId: null,
      forkedFrom: null,
      shims: [{ name: 'lab', hash: expect.any(String) as string }],
    });
    expect(Number.isInteger(run.version)).toBe(true);
  });

  it('calls tools, several in parallel, and gives the model their results', async () => {
    lab.model.script(calling(callOf('echo', { a: 1 }), callOf('fails'), callOf('progress')), { text: 'all done' });
    const run = await runToEnd(lab, { agent });
    expect(run).toMatchObject({ status: 'completed', output: 'all done', turnCount: 2 });
    const results = toolResultsOf(lab.model.requests.at(-1)!).map(({ text }) => text);
    expect(results).toHaveLength(3);
    expect(results[0]).toContain('{"a":1}');
    expect(results[1]).toContain('no such thing');
    expect(results[2]).toContain('done');
    const events = await logOf(lab, run.id);
    const completed = events.filter(({ type }) => type === 'tool.completed');
    expect(completed).toHaveLength(3);
    expect(completed.find(({ name }) => name === 'fails')).toMatchObject({
      ok: false,
      error: { message: 'no such thing', kind: 'not_found' },
      ms: expect.any(Number) as number,
    });
    expect(completed.find(({ name }) => name === 'echo')).toMatchObject({ ok: true, result: { a: 1 } });
    expect(events.find(({ type }) => type === 'tool.progress')).toMatchObject({ data: 'half' });
    for (const event of events.filter(({ type }) => type === 'tool.started')) {
      expect(event).toMatchObject({
        toolCallId: expect.any(String) as string,
        name: expect.any(String) as string,
        arguments: expect.any(Object) as object,
        idempotencyKey: expect.any(String) as string,
      });
    }
  });

  it('writes the events of the contract, in an order that makes sense, with their fields', async () => {
    lab.model.script({ ...calling(callOf('echo', { x: 1 })), text: 'wait' }, { text: ['a', 'b'] });
    const run = await runToEnd(lab, { agent });
    const events = await logOf(lab, run.id);
    const types = typesOf(events).filter((type) => type !== 'shim.effect' && type !== 'model.delta');
    expect(types).toEqual([
      'run.created',
      'run.started',
      'agent.started',
      'state.snapshot',
      'turn.started',
      'state.snapshot',
      'model.started',
      'model.completed',
      'tool.started',
      'tool.completed',
      'state.snapshot',
      'turn.completed',
      'turn.started',
      'state.snapshot',
      'model.started',
      'model.completed',
      'turn.completed',
      'agent.completed',
      'state.snapshot',
      'run.completed',
    ]);
    expect(events.filter(({ type }) => type === 'state.snapshot').map(({ boundary }) => boundary)).toEqual([
      'runStart',
      'turnPrepared',
      'toolRoundEnd',
      'turnPrepared',
      'runEnd',
    ]);
    for (const event of events)
      expect(event).toMatchObject({ runId: run.id, attempt: 1, at: expect.stringMatching(ISO) as string });
    const calls = events.filter(({ type }) => type === 'model.started').map(({ modelCallId }) => modelCallId);
    expect(new Set(calls).size).toBe(2);
    const deltas = events.filter(({ type, modelCallId }) => type === 'model.delta' && modelCallId === calls[1]);
    expect(deltas.map(({ text }) => text).join('')).toBe('ab');
    for (const delta of deltas) expect(delta).toMatchObject({ kind: 'text', turn: 2 });
    const input = events.filter(({ type, kind }) => type === 'model.delta' && kind === 'toolInput');
    expect(input.map(({ text }) => text).join('')).toBe('{"x":1}');
    expect(input[0]?.toolCallId).toBe(events.find(({ type }) => type === 'tool.started')?.toolCallId);
    expect(events.at(-1)).toMatchObject({
      output: 'ab',
      finishReason: 'stop',
      usage: run.usage,
      turnCount: 2,
    });
    expect(events.findLast(({ type }) => type === 'model.completed')).toMatchObject({
      modelCallId: calls[1],
      message: { role: 'assistant' },
      finishReason: 'stop',
      usage: { inputTokens: 10, outputTokens: 2 },
    });
  });

  it('M06 completes with "length" when a text answer is cut by the output limit', async () => {
    lab.model.script({ text: 'cut of', finish: 'length' });
    expect(await runToEnd(lab, { agent })).toMatchObject({
      status: 'completed',
      output: 'cut of',
      finishReason: 'length',
      error: null,
    });
  });

  it('M12 completes with "refusal" when the model refuses', async () => {
    lab.model.script({ text: 'I will not.', finish: 'refusal' });
    expect(await runToEnd(lab, { agent })).toMatchObject({
      status: 'completed',
      output: 'I will not.',
      finishReason: 'refusal',
    });
  });

  it('M06 never runs a tool call that the output limit cut, and fails with output_limit the second time in a row', async () => {
    const cut = { toolCalls: [callOf('unknown_tool', { n: 66 })], finish: 'length' };
    lab.model.script(cut, cut);
    const run = await runToEnd(lab, { agent });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'output_limit' } });
    expect(lab.ledger.count(({ n }) => n === 66)).toBe(0);
    lab.model.script(cut, { text: 'less' });
    expect(await runToEnd(lab, { agent })).toMatchObject({ status: 'completed', output: 'less' });
    expect(toolResultsOf(lab.model.requests.at(-1)!)).toHaveLength(1);
    expect(lab.ledger.count(({ n }) => n === 66)).toBe(0);
  });

  it('fails with what the provider said, without its key', async () => {
    lab.model.script({
      status: 400,
      errorBody: {
        error: {
          message: 'bad test-openai-key test-anthropic-key test-compatible-key thing',
          type: 'invalid_request_error',
        },
      },
    });
    const run = await runToEnd(lab, { agent });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'model_error', status: 400 }, output: null });
    expect(JSON.stringify(run.error)).toContain('thing');
    expect(JSON.stringify([run, await logOf(lab, run.id)])).not.toMatch(/test-(openai|anthropic|compatible)-key/);
  });
});

describe('Prefer: wait', () => {
  it('answers 202 after the time, and the run goes on', async () => {
    lab.model.script({ text: 'late', delayMs: 1500 });
    const startedAt = performance.now();
    const answer = await startRun(lab, {}, { prefer: 'wait=1' });
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(950);
    expect(answer).toMatchObject({ status: 202, body: { status: 'running' } });
    expect(answer.headers['preference-applied']).toBe('wait=1');
    expect(await ended(lab, answer.body.id)).toMatchObject({ status: 'completed', output: 'late' });
  });

  it('answers 200 with a run that waits', async () => {
    lab.model.script(calling(callOf('gated')));
    const answer = await startRun(lab, {}, WAIT);
    expect(answer).toMatchObject({ status: 200, body: { status: 'waiting' } });
  });

  it('of a GET waits for the end and is 200 also when the time is over', async () => {
    lab.model.script({ text: 'late', delayMs: 1200 });
    const { body } = await startRun(lab, {});
    const short = await lab.server.json('GET', `/v1/runs/${String(body.id)}`, undefined, { prefer: 'wait=1' });
    expect(short).toMatchObject({ status: 200, body: { status: 'running' } });
    expect(await ended(lab, body.id)).toMatchObject({ status: 'completed' });
  });
});

describe('N06 an Idempotency-Key', () => {
  const post = async (body: JsonObject, key: string): ReturnType<typeof startRun> =>
    startRun(lab, body, { 'idempotency-key': key });

  it('makes one run of twenty equal requests at once, and says which ones are repeats', async () => {
    const answers = await Promise.all(
      Array.from({ length: 20 }, async () => post({ metadata: { k: '20' } }, 'key-20')),
    );
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    expect(new Set(answers.map(({ body }) => body.id)).size).toBe(1);
    const fresh = answers.filter(({ headers }) => headers['idempotency-replayed'] === undefined);
    expect(fresh).toHaveLength(1);
    const { body } = await lab.server.json('GET', '/v1/runs?metadata.k=20');
    expect(body.data).toHaveLength(1);
  });

  it('with another body is 422 idempotency_mismatch', async () => {
    await post({ input: 'one' }, 'key-a');
    expect(await post({ input: 'two' }, 'key-a')).toMatchObject({
      status: 422,
      body: { code: 'idempotency_mismatch' },
    });
  });

  it('holds over kill -9 and a restart, in every way of asking', async () => {
    const first = await post({ input: 'keep' }, 'key-k');
    await ended(lab, first.body.id);
    await lab.server.kill9();
    await lab.server.restart();
    const again = await post({ input: 'keep' }, 'key-k');
    expect(again.body.id).toBe(first.body.id);
    expect(again.headers['idempotency-replayed']).toBe('true');
    const waited = await startRun(lab, { input: 'keep' }, { 'idempotency-key': 'key-k', ...WAIT });
    expect(waited).toMatchObject({ status: 200, body: { id: first.body.id, status: 'completed' } });
  });
});

describe('GET /v1/runs', () => {
  it('shows inputs and metadata as they were given, whatever is in them', async () => {
    const texts = [
      'plain',
      '"',
      '\\',
      '\\"',
      'a","metadata":{"b":"c"},"x":"',
      '{}\n\u2028\u0001',
      'x'.repeat(200_000),
      '\n"'.repeat(100_000),
      '日本語🙂',
    ];
    const inputs = [...texts, [{ role: 'user', content: 'a', providerOptions: { x: { metadata: { b: 'c' } } } }]];
    for (const [index, input] of inputs.entries()) {
      const odd = texts[index % 6]!;
      const metadata = index === 0 ? {} : { [`key.${index}`]: odd, other: `},"${odd}` };
      const { body } = await startRun(lab, { input, metadata });
      const { body: polled } = await lab.server.json('GET', `/v1/runs/${String(body.id)}`);
      expect(polled).toMatchObject({ input, metadata });
      expect(Object.keys(polled.metadata as object)).toEqual(Object.keys(metadata));
    }
  });

  it('filters by agent, status, metadata, time and parent, newest first', async () => {
    await putAgent(lab, 'lister');
    const ids: unknown[] = [];
    for (const n of [1, 2, 3])
      ids.unshift((await runToEnd(lab, { agent: 'lister', metadata: { batch: 'list', n: String(n), 'a.b': 'c' } })).id);
    const idsOf = async (query: string): Promise<unknown[]> => {
      const { status, body } = await lab.server.json('GET', `/v1/runs?${query}`);
      expect(status, JSON.stringify(body)).toBe(200);
      return (body.data as JsonObject[]).map(({ id }) => id);
    };
    expect(await idsOf('agent=lister')).toEqual(ids);
    expect(await idsOf('metadata.batch=list')).toEqual(ids);
    expect(await idsOf('metadata.batch=list&metadata.n=2')).toEqual([ids[1]]);
    expect(await idsOf('metadata.a.b=c&metadata.n=3')).toEqual([ids[0]]);
    expect(await idsOf('metadata.batch=none')).toEqual([]);
    expect(await idsOf('agent=lister&status=completed')).toEqual(ids);
    expect(await idsOf('agent=lister&status=failed')).toEqual([]);
    const middle = String((await getRun(lab, ids[1])).createdAt);
    expect(await idsOf(`agent=lister&createdAfter=${encodeURIComponent(middle)}`)).not.toContain(ids[2]);
    expect(await idsOf(`agent=lister&createdBefore=${encodeURIComponent(middle)}`)).not.toContain(ids[0]);
    expect(await idsOf(`parent=${String(ids[0])}`)).toEqual([]);
  });

  it('pages stably while new runs come', async () => {
    await putAgent(lab, 'pager');
    const ids: unknown[] = [];
    for (let n = 0; n < 5; n += 1) ids.unshift((await startRun(lab, { agent: 'pager' })).body.id);
    const seen: unknown[] = [];
    let cursor: string | null = '';
    for (let page = 0; cursor !== null; page += 1) {
      const query = `agent=pager&limit=2${cursor === '' ? '' : `&cursor=${cursor}`}`;
      const { body } = await lab.server.json('GET', `/v1/runs?${query}`);
      seen.push(...(body.data as JsonObject[]).map(({ id }) => id));
      cursor = body.nextCursor as string | null;
      if (page === 0) await startRun(lab, { agent: 'pager' });
    }
    expect(seen).toEqual(ids);
  });

  it.each(['status=bogus', 'limit=0', 'limit=1e2', 'limit=x', 'createdAfter=yesterday', 'cursor=nonsense', 'bogus=1'])(
    'refuses %s with 422',
    async (query) => {
      const { status, body } = await lab.server.json('GET', `/v1/runs?${query}`);
      expect([status, body.status]).toEqual([422, 422]);
    },
  );
});

describe('a body that cannot be', () => {
  it.each([
    [{ agent: 'nobody', input: 'x' }, '/agent'],
    [{ agent: 'chat', input: '  ' }, '/input'],
    [{ agent: 'chat', input: '' }, '/input'],
    [{ agent: 'chat', input: [] }, '/input'],
    [{ agent: 'chat' }, '/input'],
    [{ agent: 'chat', input: 'x', limits: { maxTurns: 0 } }, '/limits/maxTurns'],
    [{ agent: 'chat', input: 'x', onDisconnect: 'stop' }, '/onDisconnect'],
    [{ agent: 'chat', input: 'x', shims: { lab: { ledger: 5 } } }, '/shims/lab/ledger'],
    [{ agent: 'chat', input: 'x', shims: { nobody: {} } }, '/shims/nobody'],
    [{ agent: 'chat', input: 'x', bogus: 1 }, '/bogus'],
  ])('%j is 422 at %s', async (body, pointer) => {
    const answer = await lab.server.json('POST', '/v1/runs', body);
    expect(answer.status).toBe(422);
    expect((answer.body.errors as JsonObject[]).map((error) => error.pointer)).toContain(pointer);
  });

  it('is 400 when it is no JSON', async () => {
    expect(await lab.server.json('POST', '/v1/runs', '{"agent":')).toMatchObject({
      status: 400,
      body: { status: 400 },
    });
  });
});

describe('an input of items', () => {
  it('takes messages, strings, JSON and internal messages', async () => {
    lab.model.script({ text: 'ok' });
    const input = [
      { role: 'user', content: 'first' },
      'second',
      { some: 'json' },
      { internal: { message: 'You look at page 7.', origin: 'host', ephemeral: true } },
    ];
    const run = await runToEnd(lab, { input });
    expect(run.input).toEqual(input.slice(0, 3));
    const sent = lab.model.requests.at(-1)!;
    for (const text of ['first', 'second', 'json', 'page 7']) expect(sent.rawBody).toContain(text);
    const { body: state } = await lab.server.json('GET', `/v1/runs/${String(run.id)}/state`);
    expect(JSON.stringify(state)).not.toContain('page 7');
    expect(JSON.stringify(await logOf(lab, run.id))).not.toContain('page 7');
  });
});

describe('the limits of a run', () => {
  it('fail it with limit_exceeded, naming which, and a raised one lets it go on', async () => {
    lab.model.script(calling(callOf('echo')), { text: 'second turn' });
    const run = await runToEnd(lab, { limits: { maxTurns: 1 } });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'limit_exceeded' } });
    expect(JSON.stringify(run.error)).toContain('maxTurns');
    const more = await lab.server.json('POST', `/v1/runs/${String(run.id)}/resume`, { limits: { maxTurns: 3 } }, WAIT);
    expect(more).toMatchObject({ status: 200, body: { status: 'completed', output: 'second turn', attempt: 2 } });
  });

  it('of duration stop a model call, those of tokens the next one', async () => {
    lab.model.script({ text: 'never', delayMs: 5000 });
    expect(await runToEnd(lab, { limits: { maxDurationMs: 300 } })).toMatchObject({
      status: 'failed',
      error: { code: 'limit_exceeded' },
    });
    lab.model.script({ ...calling(callOf('echo')), usage: { input: 90, output: 20 } });
    const run = await runToEnd(lab, { limits: { maxTotalTokens: 100 } });
    expect(run).toMatchObject({ status: 'failed', error: { code: 'limit_exceeded' }, usage: { totalTokens: 110 } });
    expect(JSON.stringify(run.error)).toContain('maxTotalTokens');
  });
});

describe('per-run settings', () => {
  it('a limit of many weeks, for which there is no timer, does not end the run', async () => {
    lab.model.script({ text: 'done', delayMs: 50 });
    expect(await runToEnd(lab, { limits: { maxDurationMs: 3_000_000_000 } })).toMatchObject({
      status: 'completed',
      output: 'done',
    });
  });

  it('give a shim another config for this run only', async () => {
    const { body: run } = { body: await runToEnd(lab, { shims: { lab: { ledger: lab.ledger.url, mark: 'mine' } } }) };
    const { body: state } = await lab.server.json('GET', `/v1/runs/${String(run.id)}/state`);
    expect(JSON.stringify(state.shimState)).toContain('mine');
    const other = await runToEnd(lab, {});
    expect(JSON.stringify((await lab.server.json('GET', `/v1/runs/${String(other.id)}/state`)).body)).not.toContain(
      'mine',
    );
  });

  it('fill the template of the instructions, and a missing value is a 422 that names it', async () => {
    await putAgent(lab, 'templated', {
      instructions: { template: 'For {{ patient }} by {{ doctor }}.', values: { doctor: 'Dr X' } },
    });
    const missing = await startRun(lab, { agent: 'templated' });
    expect(missing.status).toBe(422);
    expect(JSON.stringify(missing.body)).toContain('patient');
    await runToEnd(lab, { agent: 'templated', values: { patient: 'Ada' } });
    expect(lab.model.requests.at(-1)!.rawBody).toContain('For Ada by Dr X.');
  });
});

describe('the records of a run', () => {
  it('are its state, its checkpoints and its effects', async () => {
    await putAgent(lab, 'recorded', {
      shims: [
        { use: 'reply-prefix', config: { prefix: 'Note:' } },
        { use: 'lab', config: { ledger: lab.ledger.url, mark: 'm' } },
      ],
    });
    lab.model.script(calling(callOf('echo', { q: 1 })), { text: 'Note: done' });
    const run = await runToEnd(lab, { agent: 'recorded' });
    const path = `/v1/runs/${String(run.id)}`;
    const { body: state } = await lab.server.json('GET', `${path}/state`);
    expect(Object.keys(state).sort()).toEqual(['history', 'instructions', 'responses', 'shimState', 'turnCount']);
    expect(state).toMatchObject({ instructions: 'You are a test.\n\nBegin every reply with "Note:".', turnCount: 2 });
    expect(state.history).toHaveLength(4);
    expect(state.responses).toHaveLength(2);
    expect(JSON.stringify(state.shimState)).toContain('"m"');

    const { body: checkpoints } = await lab.server.json('GET', `${path}/checkpoints`);
    const events = await logOf(lab, run.id);
    expect(checkpoints.nextCursor).toBeNull();
    const marks = checkpoints.data as JsonObject[];
    for (const mark of marks) {
      expect(Object.keys(mark).sort()).toEqual(['at', 'historyLength', 'seq', 'turn', 'turnCount']);
      expect(mark.at).toMatch(ISO);
      expect(Number(mark.seq)).toBeLessThanOrEqual(events.length);
    }
    expect(marks.map(({ turn }) => turn)).toEqual([0, 1, 2]);
    expect(marks.map(({ historyLength }) => historyLength)).toEqual([1, 3, 4]);
    const first = await lab.server.json('GET', `${path}/checkpoints?limit=2`);
    expect((first.body.data as JsonObject[]).map(({ turn }) => turn)).toEqual([0, 1]);
    const rest = await lab.server.json('GET', `${path}/checkpoints?limit=2&cursor=${String(first.body.nextCursor)}`);
    expect((rest.body.data as JsonObject[]).map(({ turn }) => turn)).toEqual([2]);

    const { body: effects } = await lab.server.json('GET', `${path}/effects`);
    const found = effects.data as JsonObject[];
    expect(found.find(({ shim }) => shim === 'reply-prefix')).toMatchObject({
      turn: 1,
      callback: 'prepareTurn',
      changes: [{ what: 'instructions' }],
      ms: expect.any(Number) as number,
    });
    expect(
      found.filter(({ shim, callback }) => shim === 'lab' && callback === 'prepareTurn').map(({ turn }) => turn),
    ).toEqual([1, 2]);
  });

  it('are 404 for a run that is not there', async () => {
    for (const path of ['', '/state', '/checkpoints', '/effects', '/events']) {
      expect(await lab.server.json('GET', `/v1/runs/nobody${path}`)).toMatchObject({
        status: 404,
        body: { code: 'run_not_found' },
      });
    }
  });
});

it('sends nothing that either endpoint refuses', () => {
  expect(lab.model.refusedRequests.map(({ problem }) => problem)).toEqual([]);
  expect(lastUserText(lab.model.requests[0]!)).toBe('hello');
});
