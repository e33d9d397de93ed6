import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type LoggedEvent, logOf, resume, typesOf } from '../server/lab.js';
import { pick } from '../support/json-path.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { toolNamesOf } from '../support/request-view.js';
import { type Faults, startFaults, wire } from './faults.js';

let faults: Faults;
beforeAll(async () => {
  faults = await startFaults();
});
afterAll(async () => {
  await faults.close();
});

const requestsOf = (input: string): readonly ReceivedRequest[] =>
  faults.model.requests.filter((each) => each.rawBody.includes(JSON.stringify(input)));
const bodyOf = (input: string, index: number): object => requestsOf(input)[index]?.body ?? {};

const SCHEMA = {
  type: 'object',
  properties: { city: { type: 'string' }, celsius: { type: 'number' } },
  required: ['city', 'celsius'],
  additionalProperties: false,
};
const LOOSE = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const GOOD = '{"city":"Oslo","celsius":-3.5}';

/** Where each provider is told the schema, and what by instruction. */
const NATIVE = [
  { model: 'openai/gpt-test', at: 'text.format.schema', strictAt: 'text.format.strict' },
  {
    model: 'openai-chat/gpt-test',
    at: 'response_format.json_schema.schema',
    strictAt: 'response_format.json_schema.strict',
  },
  { model: 'anthropic/claude-sonnet-4-5', at: 'output_config.format.schema', strictAt: undefined },
] as const;
const ALL = [...NATIVE.map(({ model }) => model), 'openai-compatible/m'];

describe('structured output', () => {
  it.each(NATIVE)(
    'is asked of $model in its own way, and strictly only where the schema allows it',
    async ({ model, at, strictAt }) => {
      await faults.put(model, { output: SCHEMA });
      const input = faults.script(`native ${model}`, { text: GOOD });
      expect(await faults.run(input)).toMatchObject({ status: 'completed', output: { city: 'Oslo', celsius: -3.5 } });
      expect(pick(bodyOf(input, 0), at)).toMatchObject({ type: 'object', required: ['city', 'celsius'] });
      expect(wire(requestsOf(input)[0]?.body ?? {})).not.toContain('satisfies this JSON Schema');
      await faults.put(model, { output: LOOSE });
      const loose = faults.script(`loose ${model}`, { text: '{"city":"Oslo","more":1}' });
      expect((await faults.run(loose)).output).toEqual({ city: 'Oslo', more: 1 });
      if (strictAt !== undefined) {
        expect([pick(bodyOf(input, 0), strictAt), pick(bodyOf(loose, 0), strictAt)]).toEqual([true, false]);
      }
    },
  );

  it.each([
    ['openai-compatible/m', SCHEMA, GOOD, { city: 'Oslo', celsius: -3.5 }],
    ['openai/gpt-test', { type: 'array', items: { type: 'number' } }, '[1,2]', [1, 2]],
    ['anthropic/claude-3-5-haiku-latest', SCHEMA, GOOD, { city: 'Oslo', celsius: -3.5 }],
  ])('is asked of %s in words where it cannot be told otherwise', async (model, output, text, parsed) => {
    await faults.put(model, { output });
    const input = faults.script(`words ${model}`, { text: `\`\`\`json\n${text}\n\`\`\`` });
    expect((await faults.run(input)).output).toEqual(parsed);
    expect(wire(requestsOf(input)[0]?.body ?? {})).toContain('satisfies this JSON Schema');
    expect(wire(requestsOf(input)[0]?.body ?? {})).not.toMatch(/response_format|output_config|"format"/);
  });

  it.each(ALL)('gets one turn to be repaired, with the faults named: %s', async (model) => {
    await faults.put(model, { output: SCHEMA });
    const input = faults.script(`repair ${model}`, { text: '{"city":"Oslo","celsius":"cold"}' }, { text: GOOD });
    const run = await faults.run(input);
    expect(run).toMatchObject({ status: 'completed', output: { city: 'Oslo', celsius: -3.5 }, turnCount: 2 });
    expect(wire(requestsOf(input)[1]?.body ?? {})).toContain('/celsius: must be number');
    expect(requestsOf(input).every(({ accepted }) => accepted)).toBe(true);
    const completed = (await logOf(faults, run.id)).find(({ type }) => type === 'run.completed');
    expect(completed?.output).toEqual({ city: 'Oslo', celsius: -3.5 });
    expect(JSON.stringify(await logOf(faults, run.id))).not.toContain('does not satisfy the output schema');
  });

  it.each([
    ['no JSON', 'It is cold.', /no JSON/],
    ['two faults', '{"celsius":"cold"}', /must have required property 'city'/],
    ['JSON with prose around it', `Here: ${GOOD}`, /no JSON/],
  ])('that stays invalid fails the run with the faults: %s', async (_name, text, fault) => {
    await faults.put('openai-compatible/m', { output: SCHEMA });
    const input = faults.script(`invalid ${_name}`, { text }, { text });
    const run = await faults.run(input);
    expect(run).toMatchObject({ status: 'failed', output: null, error: { code: 'output_invalid' } });
    expect(JSON.stringify(pick(run, 'error.errors'))).toMatch(fault);
    expect(requestsOf(input)).toHaveLength(2);
    const next = faults.script(`invalid next ${_name}`, { text: GOOD });
    expect(await faults.resume(run.id, { input: next })).toMatchObject({
      status: 'completed',
      output: { city: 'Oslo', celsius: -3.5 },
    });
  });

  it('comes after the tools, which the schema does not keep from being called', async () => {
    await faults.put('anthropic/claude-sonnet-4-5', { output: SCHEMA });
    const input = faults.script('tools first', { toolCalls: [{ name: 'echo', arguments: { x: 1 } }] }, { text: GOOD });
    const run = await faults.run(input);
    expect(run).toMatchObject({ status: 'completed', output: { city: 'Oslo', celsius: -3.5 } });
    expect(typesOf(await logOf(faults, run.id))).toContain('tool.completed');
  });

  it('is not demanded of a refusal', async () => {
    await faults.put('openai/gpt-test', { output: SCHEMA });
    const input = faults.script('refused', { text: 'No.', finish: 'refusal' });
    expect(await faults.run(input)).toMatchObject({ status: 'completed', output: 'No.', finishReason: 'refusal' });
  });
});

describe('limits', () => {
  const echo: Reply = { toolCalls: [{ name: 'echo', arguments: { x: 1 } }], usage: { input: 100, output: 10 } };
  const model = 'anthropic/claude-sonnet-4-5';

  it('of turns: named, and the run goes on once it is raised', async () => {
    await faults.put(model, { limits: { maxTurns: 2 } });
    const input = faults.script('turns', echo, echo);
    const run = await faults.run(input);
    expect(run).toMatchObject({
      status: 'failed',
      error: { code: 'limit_exceeded', limit: 'maxTurns', allowed: 2, reached: 2 },
    });
    expect(requestsOf(input)).toHaveLength(2);
    faults.script(input, echo, { text: 'done' });
    const done = await faults.resume(run.id, { limits: { maxTurns: 5 } });
    expect(done).toMatchObject({ status: 'completed', output: 'done', turnCount: 4, attempt: 2 });
    expect(requestsOf(input).every(({ accepted }) => accepted)).toBe(true);
  });

  it('of tokens: held against the sum of the run, and again after the resume', async () => {
    await faults.put(model, { limits: { maxTotalTokens: 150 } });
    const input = faults.script('tokens', echo, echo);
    const run = await faults.run(input);
    expect(run).toMatchObject({
      status: 'failed',
      error: { code: 'limit_exceeded', limit: 'maxTotalTokens', allowed: 150, reached: 220 },
      usage: { totalTokens: 220 },
    });
    const same = await faults.resume(run.id, {});
    expect(same).toMatchObject({ status: 'failed', error: { limit: 'maxTotalTokens' } });
    faults.script(input, { text: 'done' });
    expect(await faults.resume(run.id, { limits: { maxTotalTokens: 1000 } })).toMatchObject({
      status: 'completed',
      output: 'done',
    });
    expect(requestsOf(input)).toHaveLength(3);
  });

  it('of wall time: it ends the call in progress', async () => {
    await faults.put(model, { limits: { maxDurationMs: 400 } });
    const input = faults.script('time', { text: ['a', 'b'], cut: { after: 'half-text', how: 'stall' } });
    const run = await faults.run(input);
    expect(run).toMatchObject({
      status: 'failed',
      partialOutput: 'a',
      error: { code: 'limit_exceeded', limit: 'maxDurationMs', allowed: 400 },
    });
    faults.script(input, { text: 'done' });
    expect(await faults.resume(run.id, { limits: { maxDurationMs: 60_000 } })).toMatchObject({
      status: 'completed',
      output: 'done',
    });
  });

  it('of tool rounds: the last call has no tools, so the model must answer', async () => {
    await faults.put(model, { tools: { maxToolRoundTrips: 1 } });
    const input = faults.script('rounds', echo, { text: 'done' });
    expect(await faults.run(input)).toMatchObject({ status: 'completed', output: 'done' });
    expect(requestsOf(input).map((request) => toolNamesOf(request).length)).toEqual([2, 0]);
  });

  it('of calls of one tool: a surplus call gets an error, then the tool is gone', async () => {
    await faults.put(model, { tools: { toolCallLimits: { echo: 2 } } });
    const three: Reply = { toolCalls: [1, 2, 3].map((x) => ({ name: 'echo', arguments: { x } })) };
    const input = faults.script('calls', three, { text: 'done' });
    const run = await faults.run(input);
    expect(run).toMatchObject({ status: 'completed', output: 'done' });
    const completed = (await logOf(faults, run.id)).filter(({ type }: LoggedEvent) => type === 'tool.completed');
    expect(completed.map(({ ok }) => ok).sort()).toEqual([false, true, true]);
    expect(requestsOf(input).map((request) => toolNamesOf(request))).toEqual([['echo', 'other'], ['other']]);
  });

  it('a resume of the failed run needs no input, one of the completed run does', async () => {
    await faults.put(model);
    const input = faults.script('done', { text: 'done' });
    const run = await faults.run(input);
    expect((await resume(faults, run.id, {})).status).toBe(422);
  });
});
