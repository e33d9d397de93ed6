import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import subAgents from '../../shims/sub-agents.js';
import { DefaultAgent, type DefaultAgentOptions } from '../../src/index.js';
import { defineShim, defineTool, z } from '../../src/shims.js';
import { ScriptedModel, type ScriptedReply, testShim } from '../../src/testing.js';
import { putAgent, type Seam, startSeam } from '../rules/seam.js';
import { calling, callOf, ended, follow, interruptionIds, logOf, resume, runToEnd, startRun } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { lastUserText, toolNamesOf, toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';

const give = (...calls: readonly { readonly agent?: string; readonly task: string }[]): ScriptedReply => ({
  toolCalls: calls.map((input) => ({ toolName: 'agent', input })),
});
const child = (
  name: string,
  script: ConstructorParameters<typeof ScriptedModel>[0],
  more: Partial<DefaultAgentOptions> = {},
): DefaultAgent => new DefaultAgent({ name, model: new ScriptedModel(script), ...more });
const expert = { name: 'expert', description: 'Knows it all.' };
const tool = (name: string): ReturnType<typeof defineTool> =>
  defineTool({ name, description: '', parameters: z.object({}), execute: () => 'ran' });
type Run = Awaited<ReturnType<typeof testShim>>;
const resultsOf = ({ events }: Run): unknown[] =>
  events
    .filter(({ type, childRunId }) => type === 'tool.completed' && childRunId === undefined)
    .map(({ ok, result, error }) => (ok === true ? result : error));

describe('the tool', () => {
  it('names the agents with what they are for, and the helper', async () => {
    const run = await testShim(subAgents, { config: { agents: [expert] } });
    const [shown] = run.requests[0]?.options.tools ?? [];
    expect(shown).toMatchObject({
      name: 'agent',
      inputSchema: { properties: { agent: { enum: ['expert', 'helper'] } }, required: ['agent', 'task'] },
    });
    expect(shown?.type === 'function' ? shown.description : '').toMatch(
      /\n- expert: Knows it all\.\n- helper: a copy of you/,
    );
    const alone = await testShim(subAgents, {
      config: { helper: { description: 'Does the washing.' }, tool: 'delegate' },
    });
    expect(alone.requests[0]?.options.tools).toMatchObject([
      {
        name: 'delegate',
        description: expect.stringContaining('- helper: Does the washing.') as string,
        inputSchema: { required: ['task'] },
      },
    ]);
  });

  it.each([
    [{ helper: false }, 'without a helper, at least one agent'],
    [{ agents: [expert, expert] }, 'each agent once'],
    [{ agents: [{ name: 'helper', description: 'x' }] }, 'an agent called helper only without a helper'],
    [{ agents: [{ name: 'two words', description: 'x' }] }, '/agents/0/name'],
    [{ tool: 'two words' }, '/tool'],
  ] as const)('refuses the config %j', (config, fault) => {
    expect(() => subAgents.create(config as never)).toThrow(fault);
  });

  it('R97 gives a task to a named agent, which sees nothing else, and answers with its output', async () => {
    const model = new ScriptedModel(['42']);
    const run = await testShim(subAgents, {
      config: { agents: [expert], helper: false },
      agents: [new DefaultAgent({ name: 'expert', model, instructions: 'You know.' })],
      input: 'a secret question',
      script: [give({ agent: 'expert', task: 'how much?' }), 'done'],
    });
    expect(run.output).toBe('done');
    expect(resultsOf(run)).toEqual(['42']);
    expect(model.requests[0]?.prompt).toMatchObject([
      { role: 'system', content: 'You know.' },
      { role: 'user', content: [{ text: 'how much?' }] },
    ]);
    expect(model.requests).toHaveLength(1);
  });

  it('R100 a helper has its own instructions and the tools that it was given, at most', async () => {
    const run = await testShim(subAgents, {
      config: { helper: { instructions: 'You help.', tools: ['look', 'nobody'] } },
      tools: [tool('look'), tool('touch')],
      instructions: 'You lead.',
      script: [give({ agent: 'helper', task: 'look' }), 'seen', 'done'],
    });
    expect(resultsOf(run)).toEqual(['seen']);
    expect(run.requests.map(({ system }) => system)).toEqual(['You lead.', 'You help.', 'You lead.']);
    expect(run.tools).toEqual([['look', 'touch', 'agent'], ['look'], ['look', 'touch', 'agent']]);
  });

  it('an agent that is not there is an error result', async () => {
    const run = await testShim(subAgents, {
      config: { agents: [expert], helper: false },
      script: [give({ agent: 'expert', task: 'x' }), give({ agent: 'stranger', task: 'x' }), 'done'],
    });
    expect(run.output).toBe('done');
    expect(JSON.stringify(resultsOf(run)[0])).toContain('expert');
    expect(resultsOf(run)[1]).toMatchObject({ kind: 'invalid_arguments' });
  });

  it('a child that fails is an error result with why', async () => {
    const run = await testShim(subAgents, {
      config: { agents: [expert], helper: false },
      agents: [child('expert', [{ error: { message: 'No credit.' } }])],
      script: [give({ agent: 'expert', task: 'x' }), 'done'],
    });
    expect(resultsOf(run)).toEqual([
      {
        kind: 'agent_failed',
        message: expect.stringMatching(/^The agent expert failed \(run \S+\): No credit\.$/) as string,
      },
    ]);
  });

  it('a child that takes too long is cancelled, and the result says so', async () => {
    const run = await testShim(subAgents, {
      config: { agents: [expert], timeoutMs: 30 },
      agents: [child('expert', [{ text: 'begun', ends: 'never' }])],
      script: [give({ agent: 'expert', task: 'x' }), 'done'],
    });
    expect(run.output).toBe('done');
    expect(resultsOf(run)).toEqual([
      {
        kind: 'agent_timeout',
        message: expect.stringContaining('was not done after 30 ms and was cancelled') as string,
      },
    ]);
  });

  it('a time that no timer can be set to is refused', async () => {
    const run = testShim(subAgents, { config: { agents: [expert], timeoutMs: 2_147_483_648 }, script: ['done'] });
    await expect(run).rejects.toThrow('Too big');
  });

  it('failure M15 an answer is bounded, between characters, and says what was cut', async () => {
    const long = `${'x'.repeat(99)}😀${'y'.repeat(50)}`;
    const answer = (script: string, more: Partial<DefaultAgentOptions> = {}): Promise<Run> =>
      testShim(subAgents, {
        config: { agents: [expert], helper: false, maxResultChars: 100 },
        agents: [child('expert', [script], more)],
        script: [give({ agent: 'expert', task: 'x' }), 'done'],
      });
    const [text] = resultsOf(await answer(long)) as [string];
    expect(text).toMatch(
      /^x{99}\n\[cut: 52 of 151 characters left out\. The whole answer is the output of run \S+\.\]$/,
    );
    const output = { type: 'object' };
    expect(resultsOf(await answer('{"a":1}', { output }))).toEqual([{ a: 1 }]);
    expect(resultsOf(await answer(JSON.stringify({ a: 'x'.repeat(200) }), { output }))[0]).toMatch(
      /^\{"a":"x+\n\[cut: /,
    );
    expect(resultsOf(await answer('x'.repeat(100)))).toEqual(['x'.repeat(100)]);
  });

  it('R100 helpers of helpers end at the depth that the agent allows, with a result that says so', async () => {
    const run = await testShim(subAgents, {
      limits: { agentMaxDepth: 1 },
      script: [give({ task: 'x' }), give({ task: 'deeper' }), 'did it myself', 'done'],
    });
    expect(resultsOf(run)).toEqual(['did it myself']);
    const [inner] = run.events.filter(({ type, ok }) => type === 'tool.completed' && ok === false);
    expect(inner).toMatchObject({
      error: { kind: 'delegation_limit', message: expect.stringContaining('Do the task yourself') as string },
    });
  });

  it('under another name it stands twice in one agent', async () => {
    const second = subAgents.create({ tool: 'ask', agents: [expert], helper: false }, { name: 'experts' });
    const run = await testShim(subAgents, { after: [second] });
    expect(run.tools).toEqual([['agent', 'ask']]);
  });

  it('R100 a guard of the agent holds in the helper too', async () => {
    const guard = defineShim({
      name: 'guard',
      inherit: 'always',
      prepareTurn: (turn) => turn.excludeTools(['look']),
    });
    const run = await testShim(subAgents, {
      after: [guard],
      tools: [tool('look')],
      script: [give({ task: 'x' }), 'a', 'b'],
    });
    expect(run.tools).toEqual([['agent'], ['agent'], ['agent']]);
  });
});

describe('in the server', () => {
  let seam: Seam;
  const lab = `export default defineShim({
    name: 'lab',
    prepareTurn(turn) {
      turn.addTools([
        tool('slow', async (args, ctx) => { await tell('slow', { agent: ctx.agent }, ctx.signal); return 'slow'; }, { onCrash: 'retry' }),
        tool('gated', () => tell('gated').then(() => 'opened'), { needsApproval: true }),
      ]);
    },
  });`;
  beforeAll(async () => {
    seam = await startSeam({ lab });
    await putAgent(seam, 'worker', { shims: ['lab'] });
    await putAgent(seam, 'lead', {
      shims: [
        {
          use: 'sub-agents',
          config: { agents: [{ name: 'worker', description: 'Works.' }], helper: { tools: ['slow'] } },
        },
        'lab',
      ],
    });
    await putAgent(seam, 'claude', { model: 'anthropic/claude-sonnet-4-5', shims: ['sub-agents', 'lab'] });
  });
  afterEach(() => {
    seam.model.respondWith(undefined);
    expect(seam.model.refusedRequests).toEqual([]);
    expect(seam.model.unusedReplies).toBe(0);
  });
  afterAll(async () => {
    await seam.close();
  });
  const childrenOf = async (id: unknown): Promise<JsonObject[]> =>
    (await seam.server.json('GET', `/v1/runs?parent=${String(id)}`)).body.data as JsonObject[];
  const results = (): string[] => {
    const last = seam.model.requests.at(-1);
    return last === undefined ? [] : toolResultsOf(last).map(({ text }) => text);
  };
  const task = (agent: string, text = 'the task'): ReturnType<typeof callOf> => callOf('agent', { agent, task: text });

  it.each([['lead'], ['claude']])(
    'R97 works over HTTP for %s: the child is a run of its own, its events are in the stream',
    async (agent) => {
      seam.model.script(calling(task('helper')), { text: '42' }, { text: 'done' });
      const stream = await follow(seam, '/v1/runs', { body: { agent, input: 'hello' } });
      const events = (await stream.collect()).map(({ data }) => JSON.parse(data) as JsonObject);
      expect(events.at(-1)).toMatchObject({ type: 'run.completed', output: 'done' });
      const [helper, ...others] = await childrenOf(events[0]?.runId);
      expect(others).toEqual([]);
      expect(helper).toMatchObject({ agent, status: 'completed', output: '42', parentRunId: events[0]?.runId });
      expect(events.some(({ childRunId, type }) => childRunId === helper?.id && type === 'model.completed')).toBe(true);
      if (agent === 'lead') expect(toolNamesOf(seam.model.requests.at(-2)!)).toEqual(['slow']);
      expect(results()).toEqual(['42']);
    },
  );

  it('children of one answer work at the same time, each with its own answer; one too many is told so', async () => {
    const blocks = seam.ledger.blockBefore('slow');
    let helpers = 0;
    seam.model.respondWith((request) => {
      const text = lastUserText(request);
      if (text === 'hello')
        return toolResultsOf(request).length > 0
          ? { text: 'done' }
          : calling(...['a', 'b', 'c'].map((name) => task('worker', name)));
      helpers += toolResultsOf(request).length === 0 ? 1 : 0;
      return toolResultsOf(request).length > 0 ? { text: `${text} done` } : calling(callOf('slow'));
    });
    const { body } = await startRun(seam, { agent: 'lead', limits: { agentMaxThreads: 2 } });
    await blocks.reached;
    await waitFor(() => helpers === 2);
    expect((await childrenOf(body.id)).map(({ status }) => status)).toEqual(['running', 'running']);
    blocks.release();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done' });
    expect(results()).toEqual([
      'a done',
      'b done',
      expect.stringMatching(/2 sub-agents of this run are at work already/),
    ]);
  });

  it('failure K01 after kill -9 goes on with the same child, which is not started twice', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(calling(task('worker')), calling(callOf('slow')));
    const { body } = await startRun(seam, { agent: 'lead' });
    await block.reached;
    const [before] = await childrenOf(body.id);
    await seam.server.kill9();
    block.release();
    seam.model.script({ text: '42' }, { text: 'done' });
    await seam.server.restart();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done', recoveries: 1 });
    expect(await childrenOf(body.id)).toMatchObject([
      { id: before?.id, status: 'completed', output: '42', recoveries: 1 },
    ]);
    expect(results()).toEqual(['42']);
    const log = await logOf(seam, body.id);
    expect(log.filter(({ type, name }) => type === 'tool.completed' && name === 'agent')).toMatchObject([
      { ok: true, result: '42' },
    ]);
  });

  it('R72 is cancelled with its parent', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(calling(task('worker')), calling(callOf('slow')));
    const { body } = await startRun(seam, { agent: 'lead' });
    await block.reached;
    await seam.server.json('DELETE', `/v1/runs/${String(body.id)}`);
    expect(await ended(seam, body.id)).toMatchObject({ status: 'cancelled' });
    block.release();
    expect(await childrenOf(body.id)).toMatchObject([{ status: 'cancelled' }]);
  });

  it('R72 a child whose time was over before is on no receipt of a later cancel', async () => {
    await putAgent(seam, 'hasty', {
      shims: [{ use: 'sub-agents', config: { agents: [{ name: 'worker', description: 'Works.' }], timeoutMs: 50 } }],
    });
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(calling(task('worker')), calling(callOf('slow')), {
      text: 'never',
      cut: { after: 'text', how: 'stall' },
    });
    const { body } = await startRun(seam, { agent: 'hasty' });
    await waitFor(() => seam.model.unusedReplies === 0);
    expect(results()[0]).toContain('was not done after 50 ms');
    block.release();
    await seam.server.json('DELETE', `/v1/runs/${String(body.id)}`);
    const { cancellation } = await ended(seam, body.id);
    expect((cancellation as { inFlight: JsonObject[] }).inFlight).toMatchObject([{ kind: 'model' }]);
  });

  it('a child that a client cancels is an error result, and the parent goes on', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(calling(task('worker')), calling(callOf('slow')), { text: 'done' });
    const { body } = await startRun(seam, { agent: 'lead' });
    await block.reached;
    const [worker] = await childrenOf(body.id);
    await seam.server.json('DELETE', `/v1/runs/${String(worker?.id)}`);
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done' });
    block.release();
    expect(results()).toEqual([
      `Error: The agent worker was cancelled before it was done (run ${String(worker?.id)}).`,
    ]);
  });

  it('a child may wait for a person: the parent waits for it, and it is decided by its own id', async () => {
    seam.model.script(calling(task('worker')), calling(callOf('gated')));
    const { body } = await startRun(seam, { agent: 'lead' });
    const waiting = await waitFor(async () => (await childrenOf(body.id)).find(({ status }) => status === 'waiting'));
    seam.model.script({ text: 'opened it' }, { text: 'done' });
    await resume(seam, waiting.id, { decisions: interruptionIds(waiting).map((id) => ({ id, decision: 'approve' })) });
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done' });
    expect(results()).toEqual(['opened it']);
  });

  it('an agent that was deleted is an error result', async () => {
    await putAgent(seam, 'leaves');
    await putAgent(seam, 'stays', {
      shims: [{ use: 'sub-agents', config: { agents: [{ name: 'leaves', description: 'Leaves.' }], helper: false } }],
    });
    await seam.server.json('DELETE', '/v1/agents/leaves');
    seam.model.script(calling(task('leaves')), { text: 'done' });
    expect(await runToEnd(seam, { agent: 'stays' })).toMatchObject({ status: 'completed', output: 'done' });
    expect(results()[0]).toContain('leaves');
  });
});
