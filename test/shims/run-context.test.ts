import { afterAll, describe, expect, it } from 'vitest';
import plan from '../../shims/plan.js';
import runContext from '../../shims/run-context.js';
import { isInternalMessage } from '../../src/shims.js';
import { type TestedRun, testShim } from '../../src/testing.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess, stopAll } from '../support/server-process.js';

afterAll(stopAll);

/** What stands behind the input in the first request. */
const told = (run: TestedRun): unknown => run.requests[0]?.prompt.slice(1).map(({ content }) => content);
const text = (value: string): unknown => [[{ type: 'text', text: value }]];

describe('what the model is told', () => {
  const metadata = { view: 'ward 3', user: '7', note: 'two\n  lines: x', empty: '' };

  it('the values of keys, a line each, without those that the run lacks', async () => {
    const config = { keys: ['view', 'note', 'empty', 'missing', 'constructor'] };
    expect(told(await testShim(runContext, { metadata, config }))).toEqual(text('view: ward 3\nnote: two lines: x'));
    expect(told(await testShim(runContext, { config }))).toEqual([]);
    expect(told(await testShim(runContext, { metadata }))).toEqual([]);
  });

  it('a template, where the run has all of its values, as they are', async () => {
    const config = { template: 'User {{ user }} looks at "{{view}}".' };
    expect(told(await testShim(runContext, { metadata: { user: '<7>', view: '{{ user }}' }, config }))).toEqual(
      text('User <7> looks at "{{ user }}".'),
    );
    expect(told(await testShim(runContext, { metadata: { user: '7' }, config }))).toEqual([]);
    for (const template of ['{{# user }}x{{/ user }}', '{{ user', '{{> user }}', ''])
      await expect(testShim(runContext, { config: { template } })).rejects.toThrow('/template');
  });

  it('is cut where it is too long, between characters', async () => {
    const config = { template: '{{ user }}', maxBytes: 5 };
    expect(told(await testShim(runContext, { metadata: { user: 'ab😀cd' }, config }))).toEqual(text('ab'));
  });

  it('R92 is sent with every call of the run at one place, and in nothing that it leaves behind', async () => {
    const config = { keys: ['view'] };
    const run = await testShim(runContext, {
      metadata,
      config,
      after: [plan],
      script: [{ toolCalls: [{ toolName: 'read_plan' }] }, 'ok'],
    });
    const places = run.requests.map(({ prompt }) =>
      prompt.findIndex(({ content }) => JSON.stringify(content).includes('ward 3')),
    );
    expect(places).toEqual([1, 1]);
    expect(run.history.filter((item) => isInternalMessage(item))).toEqual([]);
    expect(JSON.stringify(run.events)).not.toContain('ward 3');
    const next = await run.resume('again');
    expect(JSON.stringify(next.requests[0]?.prompt).match(/ward 3/g)).toHaveLength(1);
  });
});

it('over HTTP: each run of a conversation has its own context, once, also after a kill -9', async () => {
  const model = await ModelEndpoint.start();
  const server = await ServerProcess.start({
    env: model.environment,
    agents: [
      { name: 'helper', model: 'openai-compatible/m', shims: [{ use: 'run-context', config: { keys: ['view'] } }] },
    ],
  });
  model.script({ text: 'lost', gate: new Promise(() => undefined), gateAt: 'start' });
  const { body } = await server.json('POST', '/v1/runs', {
    agent: 'helper',
    input: 'What is this?',
    metadata: { view: 'ward 3' },
  });
  await model.waitForRequest(1);
  await server.kill9();
  model.script({ text: 'A ward.' });
  await server.restart();
  const id = String(body.id);
  expect((await server.json('GET', `/v1/runs/${id}`, undefined, { prefer: 'wait=20' })).body.output).toBe('A ward.');
  expect(model.requests.map(({ rawBody }) => rawBody.match(/view: ward 3/g)?.length)).toEqual([1, 1]);
  expect(JSON.stringify((await server.json('GET', `/v1/runs/${id}/state`)).body)).not.toContain('ward 3');
  await model.close();
});
