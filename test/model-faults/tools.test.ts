import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ended, getRun, type LoggedEvent, logOf, startRun } from '../server/lab.js';
import { listOf, pick } from '../support/json-path.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { messagesOf, toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';
import { agentFor, type Faults, MODELS, startFaults, TWO_MODELS, wire } from './faults.js';

/** One tool per kind of result that a program can come up with. */
const KINDS = `{
  string: () => 'plain',
  object: () => ({ a: [1, null, true] }),
  nothing: () => undefined,
  nul: () => null,
  number: () => 7,
  optional: () => ({ ok: true, note: undefined }),
  bigint: () => ({ n: 12345678901234567890n }),
  nan: () => [NaN, Infinity],
  date: () => ({ at: new Date(0) }),
  map: () => new Map([['k', new Set([1, 2])]]),
  buffer: () => ({ bytes: Buffer.alloc(5_000_000) }),
  fn: () => ({ f: function hello() {}, s: Symbol('s') }),
  cycle: () => { const o = { name: 'o' }; o.self = o; return o; },
  klass: () => new (class Point { x = 1; get y() { return 2; } })(),
  getter: () => ({ good: 1, get bad() { throw new Error('no'); } }),
  tojson: () => ({ good: 1, bad: { toJSON() { throw new Error('no'); } } }),
  deep: () => { let o = { leaf: 1 }; for (let i = 0; i < 200; i += 1) o = { o }; return o; },
  abyss: () => { let o = { leaf: 1 }; for (let i = 0; i < 100_000; i += 1) o = { o }; return o; },
  huge: () => 'x'.repeat(3_000_000),
  hugelist: () => Array.from({ length: 200_000 }, (_, i) => 'item ' + i),
  lone: () => ({ 'k\\ud800': 'v\\udfff' }),
  thrown: () => { throw new Error('it broke'); },
  thrownString: () => { throw 'just words'; },
  thrownNull: () => { throw null; },
  thrownNothing: () => { throw undefined; },
  thrownObject: () => { throw { code: 7 }; },
  thrownCycle: () => { const e = new Error('round'); e.cause = e; throw e; },
  thrownGetter: () => { throw { get message() { throw new Error('no'); }, get kind() { throw new Error('no'); } }; },
  rejected: async () => Promise.reject(new Error('later')),
}`;

const SHIM = `
import { defineShim, defineTool, toolFailure, z } from 'shimline/shims';
const kinds = ${KINDS};
const any = z.looseObject({});
let tries = 0;
let running = 0;
let most = 0;
const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const media = {
  image: () => [{ type: 'image', image: PNG, mediaType: 'image/png' }],
  imageAndText: () => [{ type: 'text', text: 'a red dot' }, { type: 'image', image: 'data:image/png;base64,' + PNG, mediaType: 'image/png' }],
  bytes: () => [{ type: 'image', image: Buffer.from(PNG, 'base64'), mediaType: 'image/png' }],
  audio: () => [{ type: 'file', data: 'QUJD', mediaType: 'audio/ogg', filename: 'a.ogg' }],
};
export default defineShim({
  name: 'faults',
  prepareTurn(turn) {
    turn.addTools([
      ...Object.entries({ ...kinds, ...media }).map(([name, execute]) => defineTool({ name, description: 'A kind.', parameters: any, execute })),
      defineTool({ name: 'cut', description: 'Cuts.', parameters: z.object({ before: z.number() }), execute: ({ before }) => 'x'.repeat(before) + '\\u{1f389}'.repeat(100) }),
      defineTool({ name: 'failure', description: 'Fails.', parameters: any, execute: () => toolFailure('no such file', { kind: 'not_found' }) }),
      defineTool({ name: 'never', description: 'Never returns.', parameters: any, timeoutMs: 150, execute: () => new Promise(() => {}) }),
      defineTool({ name: 'slow', description: 'By the agent.', parameters: any, execute: (_args, { signal }) => new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))) }),
      defineTool({ name: 'flaky', description: 'Works the third time.', parameters: any, maxRetries: 2, execute: (_args, { idempotencyKey }) => { tries += 1; if (tries % 3 !== 0) throw new Error('not yet'); return { tries, idempotencyKey }; } }),
      defineTool({ name: 'stubborn', description: 'Never works.', parameters: any, maxRetries: 0, execute: () => { tries += 1; throw new Error('try ' + tries); } }),
      defineTool({ name: 'crowd', description: 'Counts.', parameters: z.object({ n: z.number() }), execute: async ({ n }) => {
        running += 1; most = Math.max(most, running);
        await new Promise((resolve) => setTimeout(resolve, 2)); running -= 1; return { n };
      } }),
      defineTool({ name: 'most', description: 'Tells.', parameters: any, execute: () => { const told = most; most = 0; return told; } }),
    ]);
  },
});`;

let faults: Faults;
beforeAll(async () => {
  faults = await startFaults({ shim: SHIM });
});
afterAll(async () => {
  await faults.close();
});

const requestsOf = (input: string): readonly ReceivedRequest[] =>
  faults.model.requests.filter((each) => each.rawBody.includes(JSON.stringify(input)));

function expectAllAccepted(input: string): void {
  expect(requestsOf(input).map(({ problem }) => problem)).toEqual(requestsOf(input).map(() => undefined));
}

const calls = (...names: readonly string[]): Reply => ({ toolCalls: names.map((name) => ({ name, arguments: {} })) });

function lastOf(input: string): ReceivedRequest {
  const request = requestsOf(input).at(-1);
  if (request === undefined) throw new Error(`there was no request for ${input}`);
  return request;
}

/** Has the model call the tools in one turn, and gives what came of it. */
async function completedOf(
  agent: string,
  input: string,
  reply: Reply,
): Promise<{ readonly completed: readonly LoggedEvent[]; readonly texts: readonly string[]; readonly id: unknown }> {
  faults.script(input, reply, { text: 'done' });
  const run = await faults.run(input, { agent });
  expect(run, JSON.stringify(run.error)).toMatchObject({ status: 'completed', output: 'done' });
  expectAllAccepted(input);
  const completed = (await logOf(faults, run.id)).filter(({ type }) => type === 'tool.completed');
  return { completed, texts: toolResultsOf(lastOf(input)).map(({ text }) => text), id: run.id };
}

describe.each(TWO_MODELS)('T02 $model', ({ model }) => {
  const agent = agentFor(model);

  it('every kind of result is kept as something readable, and the run goes on', async () => {
    const names = [
      'string',
      'object',
      'nothing',
      'nul',
      'number',
      'optional',
      'bigint',
      'nan',
      'date',
      'map',
      'buffer',
      'fn',
      'cycle',
      'klass',
      'getter',
      'tojson',
      'lone',
    ];
    const { completed } = await completedOf(agent, `T02 kinds ${model}`, calls(...names));
    expect(completed.every(({ ok }) => ok === true)).toBe(true);
    const byName = Object.fromEntries(completed.map(({ name, result }) => [String(name), result]));
    expect(byName).toEqual({
      string: 'plain',
      object: { a: [1, null, true] },
      nothing: 'Done; the tool returned nothing.',
      nul: null,
      number: 7,
      optional: { ok: true },
      bigint: { n: '12345678901234567890' },
      nan: ['NaN', 'Infinity'],
      date: { at: '1970-01-01T00:00:00.000Z' },
      map: { k: [1, 2] },
      buffer: { bytes: '[5000000 bytes]' },
      fn: { f: '[function hello]', s: 'Symbol(s)' },
      cycle: { name: 'o', self: '[a cycle]' },
      klass: { x: 1 },
      getter: { good: 1, bad: '[cannot be read: no]' },
      tojson: { good: 1, bad: '[cannot be printed: no]' },
      lone: { 'k\ufffd': 'v\ufffd' },
    });
  });

  it('whatever is thrown is an error result in words', async () => {
    const names = [
      'thrown',
      'thrownString',
      'thrownNull',
      'thrownNothing',
      'thrownObject',
      'thrownCycle',
      'thrownGetter',
      'rejected',
      'failure',
    ];
    const { completed, texts } = await completedOf(agent, `T02 thrown ${model}`, calls(...names));
    expect(completed.every(({ ok }) => ok === false)).toBe(true);
    const byName = Object.fromEntries(completed.map(({ name, error }) => [String(name), error]));
    expect(byName).toEqual({
      thrown: { message: 'it broke' },
      thrownString: { message: 'just words' },
      thrownNull: { message: 'null' },
      thrownNothing: { message: 'undefined' },
      thrownObject: { message: '{"code":7}' },
      thrownCycle: { message: 'round' },
      thrownGetter: { message: 'something that cannot be printed was thrown' },
      rejected: { message: 'later' },
      failure: { message: 'no such file', kind: 'not_found' },
    });
    const marked = model.startsWith('anthropic/');
    expect(texts[0]).toBe(marked ? 'it broke' : 'Error: it broke');
    if (marked) expect(wire(lastOf(`T02 thrown ${model}`).body).match(/"is_error":true/g)).toHaveLength(names.length);
  });

  it('depth and size do no harm: 200 levels are kept, an abyss and megabytes are cut and say so', async () => {
    const { completed, texts } = await completedOf(
      agent,
      `T02 size ${model}`,
      calls('deep', 'abyss', 'huge', 'hugelist'),
    );
    expect(completed.map(({ ok }) => ok)).toEqual([true, true, true, true]);
    const byName = new Map(completed.map(({ name, result }) => [name, result]));
    expect(pick(byName.get('deep'), Array(200).fill('o').join('.'))).toEqual({ leaf: 1 });
    expect(JSON.stringify(byName.get('abyss'))).toContain('[left out]');
    expect(byName.get('huge')).toMatch(/^x{199920}\n\[cut: 2800080 of 3000000 characters left out\]$/);
    expect(byName.get('hugelist')).toMatch(/\n\[cut: \d+ of \d+ characters left out\]$/);
    for (const text of texts) expect(text.length).toBeLessThanOrEqual(200_000);
  });

  it('M15: a cut never goes through a character', async () => {
    const places = [199_917, 199_918, 199_919, 199_920, 199_921];
    const toolCalls = places.map((before) => ({ name: 'cut', arguments: { before } }));
    const { completed } = await completedOf(agent, `M15 cut ${model}`, { toolCalls });
    for (const { result } of completed) {
      expect(String(result).isWellFormed()).toBe(true);
      expect(String(result)).not.toContain('\ufffd');
      expect(String(result)).toMatch(/\[cut: \d+ of \d+ characters left out\]$/);
    }
  });
});

describe.each(MODELS)('T04 $model', ({ model, dialect }) => {
  const agent = agentFor(model);
  const inResults = dialect === 'anthropic' || dialect === 'openai-responses';

  it('images are image blocks and never text, also after a restart; what cannot be shown is named', async () => {
    const input = `T04 ${model}`;
    const { completed, id } = await completedOf(agent, input, calls('image', 'imageAndText', 'bytes', 'audio'));
    expect(completed.map(({ name, ok }) => [name, ok]).sort()).toEqual([
      ['audio', true],
      ['bytes', true],
      ['image', true],
      ['imageAndText', true],
    ]);
    const check = (request: ReceivedRequest): void => {
      expect(request.accepted).toBe(true);
      const shown = imagesIn(request);
      expect(shown.inResults).toBe(inResults ? 3 : 0);
      expect(shown.inMessages).toBe(inResults ? 0 : 3);
      for (const { text } of toolResultsOf(request)) expect(text).not.toContain('iVBOR');
      expect(wire(request.body)).toContain('a red dot');
      if (dialect !== 'openai-responses')
        expect(wire(request.body)).toContain('[file a.ogg of type audio/ogg, about 3 bytes: left out');
      expect(wire(request.body).match(/iVBOR/g)).toHaveLength(3);
    };
    check(lastOf(input));
    if (model === 'openai-compatible/m' || model.startsWith('anthropic/')) await faults.server.restart();
    const next = faults.script(`T04 next ${model}`, { text: 'still there' });
    expect(await faults.resume(id, { input: next })).toMatchObject({ status: 'completed', output: 'still there' });
    check(lastOf(next));
  });
});

const SAYS_NO: readonly (readonly [string, number, string])[] = [
  ['OpenAI', 400, 'Invalid content type. image_url is only supported by certain models.'],
  ['vLLM', 400, 'At most 0 image(s) may be provided in one prompt.'],
  ['llama.cpp', 500, 'image input is not supported - hint: you may need to provide the mmproj'],
];

describe('T04: a model that takes text only', () => {
  it.each(SAYS_NO)(
    'in the words of %s is asked again without the image, of which a line stays',
    async (name, status, message) => {
      const refusal: Reply = { status, errorBody: { error: { message, type: 'invalid_request_error', code: null } } };
      const input = faults.script(`text only ${name}`, calls('imageAndText'), refusal, calls('string'), {
        text: 'done',
      });
      const run = await faults.run(input, { agent: agentFor('openai-compatible/m') });
      expect(run, JSON.stringify(run.error)).toMatchObject({ status: 'completed', output: 'done' });
      expectAllAccepted(input);
      const [, withImage, without, later] = requestsOf(input);
      expect(withImage?.rawBody).toContain('iVBOR');
      for (const request of [without, later]) {
        expect(request?.rawBody).not.toContain('iVBOR');
        expect(request?.rawBody).toContain('[file of type image/png, about');
        expect(request?.rawBody).toContain('a red dot');
      }
      const events = await logOf(faults, run.id);
      expect(events.find(({ type }) => type === 'model.retrying')).toMatchObject({
        error: { code: 'model_error', status, message },
      });
    },
  );
});

/** Image blocks of a request, by where they stand. */
function imagesIn(request: ReceivedRequest): { readonly inResults: number; readonly inMessages: number } {
  const isImage = (block: unknown): boolean =>
    ['image', 'image_url', 'input_image'].includes(String(pick(block, 'type')));
  let [inResults, inMessages] = [0, 0];
  for (const message of messagesOf(request)) {
    inResults += listOf(message.output).filter(isImage).length;
    for (const block of listOf(message.content)) {
      if (isImage(block)) inMessages += 1;
      inResults += listOf(pick(block, 'content')).filter(isImage).length;
    }
  }
  return { inResults, inMessages };
}

describe('how tools are run', () => {
  const model = 'openai-compatible/m';
  const agent = agentFor(model);

  it('100 parallel calls: 8 at once, each answered in its place', async () => {
    const toolCalls = Array.from({ length: 100 }, (_, n) => ({ name: 'crowd', arguments: { n } }));
    const input = faults.script('crowd', calls('most'), { toolCalls }, calls('most'), { text: 'done' });
    const run = await faults.run(input, { agent });
    expect(run).toMatchObject({ status: 'completed', output: 'done' });
    expectAllAccepted(input);
    const texts = toolResultsOf(lastOf(input)).map(({ text }) => text);
    expect(texts.slice(1)).toEqual([...toolCalls.map(({ arguments: { n } }) => JSON.stringify({ n })), '8']);
  });

  it.each([
    [false, '1'],
    [3, '3'],
  ])('parallelToolCalls %j: that many at once', async (parallelToolCalls, expected) => {
    await faults.put(model, { tools: { parallelToolCalls } });
    const toolCalls = Array.from({ length: 12 }, (_, n) => ({ name: 'crowd', arguments: { n } }));
    const input = faults.script(`crowd ${expected}`, { toolCalls }, calls('most'), { text: 'done' });
    const run = await faults.run(input);
    expect(run.status).toBe('completed');
    expect(toolResultsOf(lastOf(input)).at(-1)?.text).toBe(expected);
  });

  it("a tool that never returns ends by its own time, another by the agent's", async () => {
    await faults.put(model, { tools: { toolCallTimeoutMs: 250 } });
    const { completed } = await completedOf('agent', 'timeouts', calls('never', 'slow'));
    const byName = new Map(completed.map((event) => [event.name, event]));
    expect(byName.get('never')).toMatchObject({
      ok: false,
      error: {
        kind: 'timeout',
        message: 'The tool did not finish within 150 ms; whether it had an effect is not known.',
      },
    });
    expect(byName.get('slow')).toMatchObject({ ok: false, error: { kind: 'timeout' } });
    expect(Number(byName.get('slow')?.ms)).toBeGreaterThanOrEqual(240);
  });

  it("a tool is tried again only as often as it says, with the same key; its word wins over the agent's", async () => {
    await faults.put(model, { tools: { toolCallMaxRetries: 5 } });
    const flaky = await completedOf('agent', 'flaky', calls('flaky'));
    expect(flaky.completed[0]).toMatchObject({
      ok: true,
      result: { tries: 3, idempotencyKey: expect.any(String) as unknown },
    });
    const stubborn = await completedOf('agent', 'stubborn', calls('stubborn'));
    expect(stubborn.completed[0]).toMatchObject({ ok: false, error: { message: 'try 4' } });
    const started = (await logOf(faults, stubborn.id)).filter(({ type }) => type === 'tool.started');
    expect(started).toHaveLength(1);
  });

  it('a cancel ends a tool that never returns within about a second, and closes its call', async () => {
    await faults.put(model, { tools: { toolCallTimeoutMs: 60_000 } });
    const input = faults.script('cancelled', calls('slow', 'string'));
    const { body } = await startRun(faults, { agent: 'agent', input });
    await waitFor(async () =>
      (await logOf(faults, body.id)).some(({ type, name }) => type === 'tool.completed' && name === 'string'),
    );
    const asked = performance.now();
    await faults.server.json('DELETE', `/v1/runs/${String(body.id)}`, undefined, { prefer: 'wait=10' });
    expect(performance.now() - asked).toBeLessThan(1_500);
    expect((await ended(faults, body.id)).status).toBe('cancelled');
    const next = faults.script('cancelled, next', { text: 'fine' });
    expect(await faults.resume(body.id, { input: next })).toMatchObject({ status: 'completed', output: 'fine' });
    expectAllAccepted(next);
    const texts = toolResultsOf(lastOf(next)).map(({ text }) => text);
    expect(texts).toEqual(['Error: The call was cancelled before it gave a result.', 'plain']);
    expect((await getRun(faults, body.id)).status).toBe('completed');
  });
});
