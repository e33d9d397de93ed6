import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  calling,
  callOf,
  ended,
  follow,
  getRun,
  interruptionIds,
  type LoggedEvent,
  logOf,
  resume,
  runToEnd,
  startRun,
  typesOf,
  WAIT,
} from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import type { Reply } from '../support/model-reply.js';
import { lastUserText, toolNamesOf, toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';
import { putAgent, type Seam, startSeam, textsOf } from './seam.js';

const SHIMS = {
  // `ask` runs the agent of the config, `help` a helper of this agent with the tools that the call names.
  asks: `export default defineShim({
    name: 'asks',
    config: z.object({ agent: z.string().default('child') }),
    prepareTurn(turn) {
      turn.addTools([
        agentTool(turn, { name: 'ask', description: 'Asks.', agent: this.config.agent }),
        agentTool(turn, { name: 'help', description: 'Helps.', instructions: 'You help.' }),
        agentTool(turn, { name: 'help_little', description: 'Helps.', tools: ['fast', 'gated', 'help'] }),
      ]);
    },
  });`,
  tools: `export default defineShim({
    name: 'tools',
    state: z.object({ turns: z.number().default(0) }),
    prepareTurn(turn) {
      turn.state.turns += 1;
      turn.addTools([
        tool('fast', (args) => tell('fast', { args }).then(() => 'real')),
        tool('slow', async (args, ctx) => { await tell('slow', { agent: ctx.agent, runId: ctx.runId }, ctx.signal); return 'slow'; }),
        tool('gated', () => tell('gated').then(() => 'real'), { needsApproval: true }),
      ]);
    },
    onRunEnd: (result, transientState, run) => tell('end', { agent: run.agent, runId: run.runId, result: result?.finalOutput ?? null }),
  });`,
  guard: `export default defineShim({
    name: 'guard', inherit: 'always',
    config: z.object({ mark: z.string().default('guard') }),
    prepareTurn(turn) { turn.requireApproval('fast', { message: this.config.mark }); },
  });`,
  private: `export default defineShim({ name: 'private', inherit: 'none', prepareTurn: (turn) => turn.addTools([tool('private', () => 'x')]) });`,
  // Hands down to a helper only those of its tools that the helper may have.
  source: `class Source extends Shim {
    name = 'source';
    bind(context) {
      const own = context.toolSourceBindings.find((binding) => binding.source === this);
      if (own !== undefined) return own.bind(context);
      return context.toolSourceBindings.length > 0 ? new BoundShim() : this.session(['one', 'two']);
    }
    session(names) {
      const source = this;
      return new (class extends BoundShim {
        prepareTurn(turn) { turn.addTools(names.map((name) => tool(name, () => name))); }
        inheritTools(allowed) {
          const mine = names.filter((name) => allowed.has(name));
          return mine.length === 0 ? [] : [{ source, bind: async () => source.session(mine) }];
        }
      })();
    }
  }
  export default defineShim({ name: 'source', create: () => new Source() });`,
  'uses-source': `export default defineShim({
    name: 'uses-source',
    prepareTurn(turn) { turn.addTools([agentTool(turn, { name: 'help_one', description: '', tools: ['one', 'fast'] })]); },
  });`,
};

let seam: Seam;
beforeAll(async () => {
  seam = await startSeam(SHIMS);
  await putAgent(seam, 'plain');
  await putAgent(seam, 'child', { shims: ['tools'] });
  await putAgent(seam, 'second', { shims: ['tools'] });
  await putAgent(seam, 'parent', { shims: ['tools', 'asks'], handoffs: ['second'] });
  await putAgent(seam, 'guarded', {
    shims: [{ use: 'guard', config: { mark: 'strict' } }, 'tools', 'asks'],
    handoffs: ['second'],
  });
  await putAgent(seam, 'lax', { shims: [{ use: 'guard', config: { mark: 'lax' } }, 'tools'] });
  await putAgent(seam, 'guards-both', {
    shims: [
      { use: 'guard', config: { mark: 'strict' } },
      { use: 'asks', config: { agent: 'lax' } },
    ],
  });
  await putAgent(seam, 'asks-itself', {
    shims: [{ use: 'guard', config: { mark: 'strict' } }, 'tools', { use: 'asks', config: { agent: 'asks-itself' } }],
  });
  await putAgent(seam, 'sourced', { shims: ['source', 'tools', 'private', 'uses-source'] });
});
afterAll(async () => {
  await seam.close();
});
let told = 0;
beforeEach(() => {
  seam.model.respondWith(undefined);
  told = seam.ledger.count();
});
afterEach(() => {
  expect(seam.model.refusedRequests).toEqual([]);
  expect(seam.model.unusedReplies).toBe(0);
});

const entries = (name: string): JsonObject[] =>
  seam.ledger
    .entries()
    .slice(told)
    .filter((entry) => entry.name === name);
const task = (name: string, text = 'the task'): Reply => calling(callOf(name, { task: text }));
const requestsOf = (back: number): Parameters<typeof textsOf>[0] => seam.model.requests.at(-back) ?? { body: {} };
const resultsSeen = (back = 1): string[] => {
  const request = seam.model.requests.at(-back);
  return request === undefined ? [] : toolResultsOf(request).map(({ text }) => text);
};
async function childrenOf(id: unknown): Promise<JsonObject[]> {
  return (await seam.server.json('GET', `/v1/runs?parent=${String(id)}`)).body.data as JsonObject[];
}
const ofChild = (event: JsonObject): boolean => 'childRunId' in event;

describe('a handoff', () => {
  it('R96 R97 goes on in the same run under the child agent, and later resumes continue with it', async () => {
    seam.model.script(calling(callOf('handoff_to_second')), { text: 'from the second' });
    const run = await runToEnd(seam, { agent: 'parent' });
    expect(run).toMatchObject({ status: 'completed', output: 'from the second', turnCount: 2, agent: 'parent' });
    expect(textsOf(requestsOf(1))).toEqual([
      'system: You are second.',
      'user: hello',
      'assistant: ""[1 calls]',
      'tool: The conversation goes on with second.',
    ]);
    const { body: state } = await seam.server.json('GET', `/v1/runs/${String(run.id)}/state`);
    expect(state).toMatchObject({ instructions: 'You are second.', turnCount: 2, shimState: { tools: { turns: 2 } } });
    const log = await logOf(seam, run.id);
    expect(log.filter(({ type }) => /^(agent|handoff)\./.test(type))).toMatchObject([
      { type: 'agent.started', agent: 'parent', parent: null, root: 'parent' },
      { type: 'handoff.started', from: 'parent', to: 'second' },
      { type: 'handoff.completed', from: 'parent', to: 'second' },
      { type: 'agent.started', agent: 'second', parent: 'parent', root: 'parent' },
      { type: 'agent.completed', agent: 'second' },
      { type: 'agent.completed', agent: 'parent' },
    ]);
    // R98 R99: clean-up from the inside, and both with the result of the child.
    expect(entries('end').map(({ agent, result }) => [agent, result])).toEqual([
      ['second', 'from the second'],
      ['parent', 'from the second'],
    ]);
    await resume(seam, run.id, { input: 'more' });
    expect(textsOf(requestsOf(1))[0]).toBe('system: You are second.');
    expect(await childrenOf(run.id)).toEqual([]);
  });

  it('R96 with other calls in its response gets an error result, and so do they', async () => {
    seam.model.script(calling(callOf('handoff_to_second'), callOf('fast')), { text: 'stayed' });
    expect(await runToEnd(seam, { agent: 'parent' })).toMatchObject({ status: 'completed', output: 'stayed' });
    expect(resultsSeen()).toHaveLength(2);
    for (const text of resultsSeen()) expect(text).toContain('must be the only call');
    expect(entries('fast')).toEqual([]);
  });

  it('R96 to an agent that was deleted is an error result', async () => {
    await putAgent(seam, 'leaves');
    await putAgent(seam, 'stays', { handoffs: ['leaves'] });
    expect((await seam.server.json('DELETE', '/v1/agents/leaves')).status).toBe(204);
    seam.model.script(calling(callOf('handoff_to_leaves')), { text: 'stayed' });
    expect(await runToEnd(seam, { agent: 'stays' })).toMatchObject({ status: 'completed', output: 'stayed' });
    expect(resultsSeen()[0]).toContain('The agent leaves is not there any more.');
  });

  it('R97 survives a crash under the child agent', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(calling(callOf('handoff_to_second')), calling(callOf('slow')), { text: 'done' });
    const { body } = await startRun(seam, { agent: 'parent' });
    await block.reached;
    await seam.server.kill9();
    block.release();
    await seam.server.restart();
    const run = await ended(seam, body.id);
    expect(run).toMatchObject({ status: 'completed', output: 'done', recoveries: 1, turnCount: 3 });
    expect(textsOf(requestsOf(1))[0]).toBe('system: You are second.');
    expect(entries('end').map(({ agent }) => agent)).toEqual(['second', 'parent']);
  });
});

describe('an agent as a tool', () => {
  it('R97 is a run of its own: id, parentRunId, log; its events are in the parent’s stream, marked with its id', async () => {
    seam.model.script(
      task('ask'),
      calling(callOf('fast')),
      { text: '42', usage: { input: 5, output: 2 } },
      { text: 'done' },
    );
    const stream = await follow(seam, '/v1/runs', {
      body: { agent: 'parent', input: 'hello', metadata: { user: 'u1' } },
    });
    const events = (await stream.collect()).map(({ data }) => JSON.parse(data) as LoggedEvent);
    const id = events[0]?.runId;
    const [child, ...others] = await childrenOf(id);
    expect(others).toEqual([]);
    expect(child).toMatchObject({
      agent: 'child',
      status: 'completed',
      parentRunId: id,
      input: 'the task',
      output: '42',
      turnCount: 2,
      metadata: { user: 'u1' },
    });
    expect(resultsSeen()).toEqual(['42']);
    expect(events).toEqual(await logOf(seam, id));
    const shown = events.filter(ofChild);
    const own = await logOf(seam, child?.id);
    expect(own[0]).toMatchObject({ type: 'run.created', parentRunId: id });
    const inner = own.filter(({ type }) => !type.startsWith('run.'));
    expect(shown.map(({ seq: _seq, childRunId: _child, ...rest }) => rest)).toEqual(
      inner.map(({ seq: _seq, ...rest }) => ({ ...rest, runId: id })),
    );
    expect(new Set(shown.map(({ childRunId }) => childRunId))).toEqual(new Set([child?.id]));
    expect(shown[0]).toMatchObject({ type: 'agent.started', agent: 'child', parent: 'parent', root: 'parent' });
    const typed = typesOf(events.filter((event) => !ofChild(event)));
    expect(typed.filter((type) => /^(tool|run)\./.test(type))).toEqual([
      'run.created',
      'run.started',
      'tool.started',
      'tool.completed',
      'run.completed',
    ]);
    // What the shims did in the child is among the child's effects, not the parent's.
    const effects = async (of: unknown): Promise<unknown[]> =>
      (await seam.server.json('GET', `/v1/runs/${String(of)}/effects`)).body.data as unknown[];
    expect((await effects(id)).length).toBe(
      events.filter((event) => event.type === 'shim.effect' && !ofChild(event)).length,
    );
    expect((await effects(child?.id)).length).toBe(shown.filter(({ type }) => type === 'shim.effect').length);
    // Its tokens are counted in the parent's usage.
    const { usage } = await getRun(seam, id);
    const sum = seam.model.requests.length > 0 ? seam.model.usage : undefined;
    expect(sum).toBeDefined();
    const childUsage = child?.usage as { totalTokens: number };
    const last = events.at(-1)?.usage as { totalTokens: number };
    expect(last).toEqual(usage);
    expect(last.totalTokens).toBeGreaterThan(childUsage.totalTokens);
  });

  it('R97 a child that fails is an error result with its reason', async () => {
    seam.model.script(task('ask'), { status: 400 }, { text: 'done' });
    expect(await runToEnd(seam, { agent: 'parent' })).toMatchObject({ status: 'completed', output: 'done' });
    expect(resultsSeen()[0]).toMatch(/The agent's run [0-9a-f-]+ failed: scripted status 400$/);
  });

  it('R97 a child that a client cancels is an error result, and the parent goes on', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(task('ask'), calling(callOf('slow')), { text: 'done' });
    const { body } = await startRun(seam, { agent: 'parent' });
    await block.reached;
    const [child] = await childrenOf(body.id);
    await seam.server.json('DELETE', `/v1/runs/${String(child?.id)}`);
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done' });
    block.release();
    expect(resultsSeen()[0]).toMatch(/was cancelled$/);
  });

  it('R72 R99 is cancelled with its parent, before it; the receipt has an entry with its id', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(task('ask'), calling(callOf('slow')));
    const { body } = await startRun(seam, { agent: 'parent' });
    await block.reached;
    const held = seam.ledger.blockBefore((effect) => effect.name === 'end' && effect.agent === 'child');
    const { body: cancelling } = await seam.server.json('DELETE', `/v1/runs/${String(body.id)}`);
    expect(cancelling.status).toBe('cancelling');
    await held.reached;
    // The clean-up of the child takes longer than the grace of a tool: the parent waits for it.
    await new Promise((resolve) => setTimeout(resolve, 1100));
    expect(entries('end')).toEqual([]);
    expect((await getRun(seam, body.id)).status).toBe('cancelling');
    held.release();
    const run = await ended(seam, body.id);
    block.release();
    const [child] = await childrenOf(body.id);
    expect(child).toMatchObject({
      status: 'cancelled',
      cancellation: { inFlight: [{ kind: 'tool', name: 'slow', obeyed: true }] },
    });
    expect(run).toMatchObject({ status: 'cancelled' });
    const { inFlight } = run.cancellation as { inFlight: JsonObject[] };
    expect(inFlight.filter(({ kind }) => kind === 'agent')).toMatchObject([
      { name: 'child', id: child?.id, obeyed: true, sideEffects: 'unknown' },
    ]);
    expect(entries('end').map(({ agent, result }) => [agent, result])).toEqual([
      ['child', null],
      ['parent', null],
    ]);
    const log = await logOf(seam, body.id);
    expect(log.filter(({ type }) => type === 'agent.completed').map(({ agent }) => agent)).toEqual(['child', 'parent']);
  });

  it('R97 survives a crash with its parent: the same child goes on, and nothing is done twice', async () => {
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(task('ask'), calling(callOf('fast')), calling(callOf('slow')));
    const { body } = await startRun(seam, { agent: 'parent' });
    await block.reached;
    const [before] = await childrenOf(body.id);
    await seam.server.kill9();
    block.release();
    seam.model.script({ text: '42' }, { text: 'done' });
    await seam.server.restart();
    const run = await ended(seam, body.id);
    expect(run).toMatchObject({ status: 'completed', output: 'done', recoveries: 1 });
    const children = await childrenOf(body.id);
    expect(children).toMatchObject([
      { id: before?.id, status: 'completed', output: '42', recoveries: 1, turnCount: 3 },
    ]);
    expect(entries('fast')).toHaveLength(1);
    expect(children[0]?.unknownToolCalls).toMatchObject([{ tool: 'slow' }]);
    expect(resultsSeen()).toEqual(['42']);
    await logOf(seam, run.id);
    await logOf(seam, before?.id);
  });

  it('R97 a parent that is handed over at SIGTERM does not cancel its child', async () => {
    await seam.server.restart({ env: { SHUTDOWN_GRACE_MS: '300' } });
    const block = seam.ledger.blockBefore('slow');
    seam.model.script(task('ask'), calling(callOf('slow')));
    const { body } = await startRun(seam, { agent: 'parent' });
    await block.reached;
    await seam.server.term();
    block.release();
    seam.model.script({ text: '42' }, { text: 'done' });
    await seam.server.restart();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done' });
    expect(await childrenOf(body.id)).toMatchObject([{ status: 'completed', output: '42', cancellation: null }]);
  });

  it('R97 a cancel that a crash interrupted ends both', async () => {
    const block = seam.ledger.blockBefore('slow');
    const held = seam.ledger.blockBefore('end');
    seam.model.script(task('ask'), calling(callOf('slow')));
    const { body } = await startRun(seam, { agent: 'parent' });
    await block.reached;
    await seam.server.json('DELETE', `/v1/runs/${String(body.id)}`);
    await held.reached;
    await seam.server.kill9();
    block.release();
    held.release();
    await seam.server.restart();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'cancelled' });
    await waitFor(async () => (await childrenOf(body.id))[0]?.status === 'cancelled');
  });

  it('R97 a child may wait for approval: it is resumed by its own id, also after a restart', async () => {
    seam.model.script(task('ask'), calling(callOf('gated')));
    const { body } = await startRun(seam, { agent: 'parent' });
    const waiting = await waitFor(async () => (await childrenOf(body.id)).find(({ status }) => status === 'waiting'));
    const asked = (await logOf(seam, body.id)).find(({ type }) => type === 'tool.waiting');
    expect(asked).toMatchObject({ childRunId: waiting.id, interruption: { tool: 'gated' } });
    expect((await getRun(seam, body.id)).status).toBe('running');
    await seam.server.restart();
    await waitFor(async () => (await getRun(seam, body.id)).recoveries === 1);
    seam.model.script({ text: '42' }, { text: 'done' });
    await resume(seam, waiting.id, { decisions: interruptionIds(waiting).map((id) => ({ id, decision: 'approve' })) });
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done' });
    expect(entries('gated')).toHaveLength(1);
    // The child's second attempt is shown in the parent's one attempt.
    expect(new Set((await logOf(seam, body.id)).map(({ attempt }) => attempt))).toEqual(new Set([1]));
  });
});

describe('a helper', () => {
  it('R100 has a fresh state, its own instructions, and re-bound copies of the parent’s shims', async () => {
    seam.model.script(task('help'), { text: 'helped' }, { text: 'done' });
    const run = await runToEnd(seam, { agent: 'parent' });
    const [helper] = await childrenOf(run.id);
    expect(helper).toMatchObject({ agent: 'parent', status: 'completed', output: 'helped' });
    expect(textsOf(requestsOf(2))).toEqual(['system: You help.', 'user: the task']);
    const { body: state } = await seam.server.json('GET', `/v1/runs/${String(helper?.id)}/state`);
    expect(state).toMatchObject({ turnCount: 1, shimState: { tools: { turns: 1 } } });
    const { body: own } = await seam.server.json('GET', `/v1/runs/${String(run.id)}/state`);
    expect(own).toMatchObject({ turnCount: 2, shimState: { tools: { turns: 2 } }, instructions: 'You are parent.' });
  });

  it('R100 R101 has only the tools that it was given, after a wait too, and so does its own helper', async () => {
    seam.model.script(task('help_little'), calling(callOf('gated')));
    const { body } = await startRun(seam, { agent: 'parent' });
    const waiting = await waitFor(async () => (await childrenOf(body.id)).find(({ status }) => status === 'waiting'));
    seam.model.script(task('help', 'deeper'), { text: 'deep' }, { text: 'helped' }, { text: 'done' });
    await resume(seam, waiting.id, { decisions: interruptionIds(waiting).map((id) => ({ id, decision: 'approve' })) });
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done' });
    const requests = seam.model.requests.slice(-6);
    expect(requests.map(lastUserText)).toEqual(['hello', 'the task', 'the task', 'deeper', 'the task', 'hello']);
    const little = ['fast', 'gated', 'help'];
    const sorted = requests.map((request) => [...toolNamesOf(request)].sort());
    expect(sorted.slice(1, 5)).toEqual([little, little, little, little]);
    expect(sorted[0]).toHaveLength(7);
  });

  it('R101-R104 inheritTools hands down a source restricted to what the helper may have; inherit "none" is not handed down', async () => {
    seam.model.script(task('help_one'), calling(callOf('one')), { text: 'helped' }, { text: 'done' });
    await runToEnd(seam, { agent: 'sourced' });
    const [parent, helper] = seam.model.requests.slice(-4).map((request) => [...toolNamesOf(request)].sort());
    expect(parent).toEqual(['fast', 'gated', 'help_one', 'one', 'private', 'slow', 'two']);
    expect(helper).toEqual(['fast', 'one']);
    expect(resultsSeen(2)).toEqual(['one']);
  });

  it.each([
    ['agentMaxDepth', 1],
    ['agentMaxThreads', 1],
  ])('R100 the limit %s answers with a tool result', async (limit, value) => {
    if (limit === 'agentMaxDepth')
      seam.model.script(task('help'), task('help', 'deeper'), { text: 'helped' }, { text: 'done' });
    else {
      const both = calling(callOf('ask', { task: '1' }), callOf('ask', { task: '2' }));
      seam.model.script(both, { text: 'one', delayMs: 150 }, { text: 'done' });
    }
    const run = await runToEnd(seam, { agent: 'parent', limits: { [limit]: value } });
    expect(run).toMatchObject({ status: 'completed', output: 'done' });
    expect(await childrenOf(run.id)).toHaveLength(1);
    const refused = (await logOf(seam, run.id)).filter(({ type, ok }) => type === 'tool.completed' && ok === false);
    expect(refused).toMatchObject([{ error: { kind: 'delegation_limit' } }]);
  });
});

describe('R100 a guard (inherit "always") cannot be lost by delegating', () => {
  const waits = async (id: unknown): Promise<string[]> => {
    const waiting = await waitFor(async () =>
      [await getRun(seam, id), ...(await childrenOf(id))].find(({ status }) => status === 'waiting'),
    );
    const asked = (waiting.interruptions as readonly JsonObject[]).map(({ message }) => String(message));
    seam.model.respondWith(() => ({ text: 'done' }));
    await resume(seam, waiting.id, {
      decisions: interruptionIds(waiting).map((each) => ({ id: each, decision: 'deny' })),
    });
    expect(await ended(seam, id)).toMatchObject({ status: 'completed' });
    expect(entries('fast')).toEqual([]);
    return asked;
  };

  it.each([
    ['in a named child', 'guarded', task('ask')],
    ['in a helper', 'guarded', task('help')],
    ['after a handoff', 'guarded', calling(callOf('handoff_to_second'))],
    ['where the child has a shim of the same name', 'guards-both', task('ask')],
  ])('R100 %s', async (_where, agent, first) => {
    seam.model.script(first, calling(callOf('fast')));
    const { body } = await startRun(seam, { agent });
    expect(await waits(body.id)).toEqual(['strict']);
  });

  it.each([
    ['in a named child', 'guarded', task('ask')],
    ['in a helper', 'guarded', task('help')],
    ['after a handoff', 'guarded', calling(callOf('handoff_to_second'))],
    ['where the child has a shim of the same name', 'guards-both', task('ask')],
    ['in the agent itself as a child', 'asks-itself', task('ask')],
  ])('R100 with the config that the run gave it: %s', async (_where, agent, first) => {
    seam.model.script(first, calling(callOf('fast')));
    const { body } = await startRun(seam, { agent, shims: { guard: { mark: 'of the run' } } });
    expect(await waits(body.id)).toEqual(['of the run']);
  });

  it.each(['ask', 'help'])(
    'R100 as it was when the run was started, by the tool %s: the agent is changed and gone',
    async (as) => {
      const saved = { shims: [{ use: 'guard', config: { mark: 'as started' } }, 'tools', 'asks'] };
      await putAgent(seam, 'changing', saved);
      const block = seam.ledger.blockBefore('slow');
      seam.model.script(calling(callOf('slow')), task(as), calling(callOf('fast')));
      const { body } = await startRun(seam, { agent: 'changing' });
      await block.reached;
      await putAgent(seam, 'changing', { shims: ['tools', 'asks'] });
      await seam.server.json('DELETE', '/v1/agents/changing');
      block.release();
      expect(await waits(body.id)).toEqual(['as started']);
      expect(await childrenOf(body.id)).toMatchObject([{ status: 'completed' }]);
    },
  );

  it('R100 in a fork to another agent, with the config that the run gave it', async () => {
    seam.model.script({ text: 'done' });
    const run = await runToEnd(seam, { agent: 'guarded', shims: { guard: { mark: 'of the run' } } });
    seam.model.script(calling(callOf('fast')));
    const fork = await seam.server.json('POST', `/v1/runs/${String(run.id)}/fork`, { agent: 'child', input: 'go' });
    expect(fork.status, JSON.stringify(fork.body)).toBe(201);
    expect(await waits(fork.body.id)).toEqual(['of the run']);
  });

  it('R100 in a later attempt after a handoff', async () => {
    seam.model.script(calling(callOf('handoff_to_second')), { text: 'done' });
    const run = await runToEnd(seam, { agent: 'guarded' });
    seam.model.script(calling(callOf('fast')));
    await resume(seam, run.id, { input: 'more' }, {});
    expect(await waits(run.id)).toEqual(['strict']);
  });
});

it('R97 a parent that is purged takes its children along; a run of another is not there for it', async () => {
  seam.model.script(task('ask'), { text: '42' }, { text: 'done' });
  const run = await runToEnd(seam, { agent: 'parent' });
  const [child] = await childrenOf(run.id);
  expect((await seam.server.json('DELETE', `/v1/runs/${String(run.id)}?purge=true`)).status).toBe(204);
  expect((await seam.server.json('GET', `/v1/runs/${String(child?.id)}`, undefined, WAIT)).status).toBe(404);
});
