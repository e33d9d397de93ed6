import { afterAll, describe, expect, it } from 'vitest';
import plan from '../../shims/plan.js';
import { defineShim } from '../../src/shims.js';
import { type RecordedRequest, type ScriptedReply, type TestedRun, testShim } from '../../src/testing.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess, stopAll } from '../support/server-process.js';

afterAll(stopAll);

interface Item {
  readonly text: string;
  readonly status: string;
}
const update = (...items: readonly Item[]): ScriptedReply => ({
  toolCalls: [{ toolName: 'update_plan', input: { items } as never }],
});
const read: ScriptedReply = { toolCalls: [{ toolName: 'read_plan' }] };
const look: Item = { text: 'look', status: 'in_progress' };
const mend: Item = { text: 'mend', status: 'pending' };
const done = (item: Item): Item => ({ ...item, status: 'completed' });
const outcomes = ({ events }: TestedRun): unknown[] =>
  events.flatMap(({ type, result, error }) => (type === 'tool.completed' ? [result ?? error] : []));
const updates = ({ events }: TestedRun): unknown[] =>
  events.flatMap(({ type, data }) => (type === 'plan.updated' ? [data] : []));
const last = (request: RecordedRequest | undefined): string => JSON.stringify(request?.prompt.at(-1)?.content);

describe('the plan', () => {
  it('is written as a whole, kept in the state, and told to clients', async () => {
    const run = await testShim(plan, {
      script: [update(look, mend), update(done(look), { ...mend, status: 'in_progress' }), read, 'ok'],
    });
    const items = [done(look), { ...mend, status: 'in_progress' }];
    expect(outcomes(run)).toEqual([
      { completed: 0, total: 2 },
      { completed: 1, total: 2 },
      { items, completed: 1, total: 2 },
    ]);
    expect(updates(run)).toEqual([
      { items: [look, mend], completed: 0, total: 2 },
      { items, completed: 1, total: 2 },
    ]);
    expect(run.state.plan).toEqual({ items, updatedAt: 2 });
    const later = await run.resume('go on', { script: [read, 'ok'] });
    expect(outcomes(later)).toEqual([{ items, completed: 1, total: 2 }]);
  });

  it('is refused, and stays as it was, with two items in progress, too many, or a status that there is not', async () => {
    const run = await testShim(plan, {
      config: { maxItems: 2 },
      script: [
        update(look),
        update(look, { ...mend, status: 'in_progress' }),
        update(look, mend, mend),
        update({ ...look, status: 'half' }),
        'ok',
      ],
    });
    expect(outcomes(run)).toEqual([
      { completed: 0, total: 1 },
      { message: 'At most one item may be in_progress, not 2.', kind: 'invalid_plan' },
      expect.objectContaining({ kind: 'invalid_arguments' }),
      expect.objectContaining({ kind: 'invalid_arguments' }),
    ]);
    expect(run.state.plan).toMatchObject({ items: [look] });
    expect(updates(run)).toHaveLength(1);
  });

  it('is shown again after the history was cut, and not while the conversation has it', async () => {
    const cutting = defineShim({
      name: 'cutting',
      prepareTurn(turn) {
        if (turn.turnCount === 3) turn.replaceHistory(['A summary.']);
      },
    });
    const run = await testShim(plan, {
      before: [cutting],
      script: [update(done(look), mend), { toolCalls: [{ toolName: 'read_plan' }] }, 'ok'],
    });
    expect(run.requests.map((request) => last(request).includes('Your plan'))).toEqual([false, false, true]);
    expect(last(run.requests[2])).toContain('[x] look\\n[ ] mend');
    expect(JSON.stringify(run.history)).not.toContain('Your plan');
  });

  it('is called to mind when it was not updated for long, unless it is done or that is off', async () => {
    const other = { toolCalls: [{ toolName: 'nothing' }] };
    const script = [update(mend), read, read, read, read, 'ok'];
    const reminded = async (config: object, given: readonly (ScriptedReply | string)[] = script): Promise<number[]> => {
      const run = await testShim(plan, { config, script: given });
      return run.requests.flatMap((request, index) => (last(request).includes('Your plan') ? [index + 1] : []));
    };
    expect(await reminded({ remindAfterTurns: 2 })).toEqual([3, 5]);
    expect(await reminded({ remindAfterTurns: 0 })).toEqual([]);
    expect(await reminded({ remindAfterTurns: 1 }, [update(done(mend)), read, 'ok'])).toEqual([]);
    expect(await reminded({ remindAfterTurns: 1 }, [update(mend), update(), other, 'ok'])).toEqual([2]);
  });
});

it('over HTTP: the plan survives a kill -9, and clients get plan.updated', async () => {
  const model = await ModelEndpoint.start();
  const server = await ServerProcess.start({
    env: model.environment,
    agents: [{ name: 'planner', model: 'openai-compatible/m', shims: [{ use: 'plan' }] }],
  });
  const never = new Promise<void>(() => undefined);
  model.script(
    { toolCalls: [{ name: 'update_plan', arguments: { items: [look, mend] } }] },
    { text: 'lost', gate: never, gateAt: 'start' },
  );
  const { body } = await server.json('POST', '/v1/runs', { agent: 'planner', input: 'Mend it' });
  await model.waitForRequest(2);
  await server.kill9();
  model.script({ toolCalls: [{ name: 'read_plan', arguments: {} }] }, { text: 'As planned.' });
  await server.restart();
  const run = await server.json('GET', `/v1/runs/${String(body.id)}`, undefined, { prefer: 'wait=20' });
  expect(run.body).toMatchObject({ status: 'completed', output: 'As planned.' });
  const { data } = (await server.json('GET', `/v1/runs/${String(body.id)}/events?limit=500`)).body as {
    readonly data: readonly { readonly type: string; readonly [field: string]: unknown }[];
  };
  expect(data.filter(({ type }) => type === 'plan.updated').map(({ shim, data: told }) => [shim, told])).toEqual([
    ['plan', { items: [look, mend], completed: 0, total: 2 }],
  ]);
  expect(data.filter(({ type }) => type === 'tool.completed').at(-1)?.result).toEqual({
    items: [look, mend],
    completed: 0,
    total: 2,
  });
  await model.close();
});
