import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import approval from '../../shims/approval/index.js';
import workspaceTools from '../../shims/workspace-tools/index.js';
import { defineShim, defineTool, InvalidShimConfigError, z } from '../../src/shims.js';
import { testShim } from '../../src/testing.js';
import { bearer, calling, callOf, type Lab, startLab } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { toolResultsOf } from '../support/request-view.js';
import { temporaryFolder } from '../support/wait.js';

type Config = NonNullable<Parameters<typeof approval.create>[0]>;

/** Tools of another shim, later in the list, that tell what was run. */
function tools(ran: string[], names: readonly string[]) {
  return defineShim({
    name: 'tools',
    prepareTurn(turn) {
      turn.addTools(
        names.map((name) =>
          defineTool({
            name,
            description: name,
            parameters: z.looseObject({ deep: z.boolean().default(true) }),
            execute: (args) => {
              ran.push(`${name} ${JSON.stringify(args)}`);
              return 'done';
            },
          }),
        ),
      );
    },
  });
}

/** What becomes of one call: `ran`, `asked`, or the text that refused it. */
async function verdict(
  config: Config,
  name: string,
  input: Readonly<Record<string, string | number | boolean>> = {},
): Promise<string> {
  const ran: string[] = [];
  const run = await testShim(approval, {
    config,
    metadata: { tier: 'free' },
    after: [tools(ran, [name])],
    script: [{ toolCalls: [{ toolName: name, input: { ...input } }] }, 'ok'],
  });
  if (run.events.some(({ type }) => type === 'tool.waiting')) return 'asked';
  const completed = run.events.find(({ type }) => type === 'tool.completed') as {
    readonly error?: { message: string };
  };
  expect(ran).toHaveLength(completed.error === undefined ? 1 : 0);
  return completed.error?.message ?? 'ran';
}

const not = (reason = ''): string => `This call is not allowed and was not run${reason === '' ? '.' : `: ${reason}`}`;

describe('which calls wait', () => {
  it.each([
    ['grep', 'ran'],
    ['ls', 'ran'],
    ['write', 'asked'],
    ['patch', 'asked'],
    ['bash', 'asked'],
    ['pay', 'asked'],
  ])('by default reading runs and the rest asks: %s', async (name, expected) => {
    expect(await verdict({}, name)).toBe(expected);
  });

  it('the first rule that matches decides', async () => {
    const rules: Config['rules'] = [
      { tools: ['mcp_*'], action: 'deny', reason: 'not from there' },
      { tools: ['*_read'], action: 'allow' },
      { tools: ['bash'], action: 'ask' },
    ];
    const config: Config = { rules, otherwise: 'allow' };
    expect(await verdict(config, 'mcp_x_read')).toBe(not('not from there.'));
    expect(await verdict(config, 'db_read')).toBe('ran');
    expect(await verdict(config, 'bash')).toBe('asked');
    expect(await verdict(config, 'else')).toBe('ran');
    expect(await verdict({ ...config, otherwise: 'deny' }, 'else')).toBe(not());
  });

  it('of a tool with several operations the strictest verdict counts', async () => {
    const rules: Config['rules'] = [
      { operations: ['write:create_file'], action: 'allow' },
      { operations: ['write:overwrite'], action: 'deny' },
    ];
    expect(await verdict({ rules, otherwise: 'allow' }, 'write')).toBe(not());
    expect(await verdict({ rules: [{ operations: ['write'], action: 'deny' }], otherwise: 'allow' }, 'patch')).toBe(
      not(),
    );
    expect(await verdict({ rules: [{ operations: ['bash:*'], action: 'ask' }], otherwise: 'allow' }, 'bash')).toBe(
      'asked',
    );
  });

  it.each(['', 'o_', 'x-'])(
    'the tools of a workspace say their operations, by whatever prefix they go: "%s"',
    async (prefix) => {
      const root = temporaryFolder('approval-');
      const inputs = {
        bash: { command: 'touch ran' },
        write: { path: 'ran', content: '' },
        patch: { path: 'a', search: 'b', replace: 'c' },
        ls: {},
        find: { pattern: '*' },
        grep: { pattern: 'x' },
      };
      const run = await testShim(approval, {
        config: {
          rules: [
            { operations: ['bash', 'write'], action: 'deny' },
            { operations: ['read'], action: 'allow' },
          ],
          otherwise: 'ask',
        },
        before: [workspaceTools.create({ root, prefix, policy: { bash: 'allow' } })],
        script: [
          { toolCalls: Object.entries(inputs).map(([name, input]) => ({ toolName: prefix + name, input })) },
          'ok',
        ],
      });
      const outcomes = run.events.filter(({ type }) => type === 'tool.completed') as unknown as readonly {
        readonly name: string;
        readonly ok: boolean;
      }[];
      expect(Object.fromEntries(outcomes.map(({ name, ok }) => [name.slice(prefix.length), ok]))).toEqual({
        bash: false,
        write: false,
        patch: false,
        ls: true,
        find: true,
        grep: true,
      });
      expect(readdirSync(root)).toEqual([]);
    },
  );

  it('what a tool says of itself counts instead of its name, and the config instead of both', async () => {
    const looksHarmless = defineShim({
      name: 'looks-harmless',
      prepareTurn(turn) {
        const operations = ['db:drop'];
        turn.addTools([
          defineTool({ name: 'read', description: '', parameters: z.object({}), operations, execute: () => 'dropped' }),
        ]);
      },
    });
    const asked = async (config: Config): Promise<boolean> => {
      const script = [{ toolCalls: [{ toolName: 'read', input: {} }] }, 'ok'];
      const run = await testShim(approval, { config, after: [looksHarmless], script });
      return run.events.some(({ type }) => type === 'tool.waiting');
    };
    expect(await asked({})).toBe(true);
    expect(await asked({ operations: { read: ['read'] } })).toBe(false);
  });

  it('tools get operations by the config, whatever their names', async () => {
    const config: Config = {
      operations: { sql: ['db:write'], constructor: ['db:read'] },
      rules: [{ operations: ['db:write'], action: 'deny' }],
      otherwise: 'allow',
    };
    expect(await verdict(config, 'sql')).toBe(not());
    expect(await verdict(config, 'constructor')).toBe('ran');
    expect(await verdict({ rules: [{ operations: ['read'], action: 'allow' }], otherwise: 'deny' }, 'toString')).toBe(
      not(),
    );
  });

  it('a condition is JSON Logic over the arguments and what is known of the run', async () => {
    const large: Config = {
      rules: [{ tools: ['pay'], when: { '>': [{ var: 'arguments.sum' }, 100] }, action: 'ask' }],
      otherwise: 'allow',
    };
    expect(await verdict(large, 'pay', { sum: 100 })).toBe('ran');
    expect(await verdict(large, 'pay', { sum: 101 })).toBe('asked');
    const free: Config = {
      rules: [{ when: { '===': [{ var: 'metadata.tier' }, 'free'] }, action: 'deny' }],
      otherwise: 'allow',
    };
    expect(await verdict(free, 'pay')).toBe(not());
  });

  it('a condition also sees the defaults that the tool adds', async () => {
    const config: Config = { rules: [{ when: { var: 'arguments.deep' }, action: 'deny' }], otherwise: 'allow' };
    expect(await verdict(config, 'x')).toBe(not());
    expect(await verdict(config, 'x', { deep: false })).toBe('ran');
  });

  it('a condition that fails matches, unless its rule allows', async () => {
    const when = { '>': [{ var: 'arguments.sum' }, 100] };
    const broken = { sum: 'no number' };
    expect(await verdict({ rules: [{ when, action: 'deny' }], otherwise: 'allow' }, 'pay', broken)).toBe(not());
    expect(await verdict({ rules: [{ when, action: 'ask' }], otherwise: 'allow' }, 'pay', broken)).toBe('asked');
    expect(await verdict({ rules: [{ when, action: 'allow' }], otherwise: 'deny' }, 'pay', broken)).toBe(not());
  });

  it.each<[string, JsonObject, string]>([
    ['an unknown operator', { when: { exec: ['x'] }, action: 'deny' }, '"exec" is no operator'],
    ['one inside', { when: { and: [true, { constructor: [] }] }, action: 'deny' }, '"constructor" is no operator'],
    ['two operators', { when: { '>': [1, 2], '<': [1, 2] }, action: 'deny' }, 'one operator'],
    ['a rule for nothing', { action: 'deny' }, 'must name tools, operations or a condition'],
  ])('refuses %s', (_what, rule, message) => {
    const create = (): unknown => approval.create({ rules: [rule] } as never);
    expect(create).toThrow(InvalidShimConfigError);
    expect(create).toThrow(message);
  });

  it('nothing is let through by a shim that changes the arguments on the way', async () => {
    const ran: string[] = [];
    const meddler = defineShim({
      name: 'meddler',
      wrapToolCall: async (_turn, call, next) => next({ ...call, arguments: { sum: 500 } }),
    });
    const rules: Config['rules'] = [{ when: { '>': [{ var: 'arguments.sum' }, 100] }, action: 'ask' }];
    const run = await testShim(approval, {
      config: { rules, otherwise: 'allow' },
      before: [meddler],
      after: [tools(ran, ['pay'])],
      script: [{ toolCalls: [{ toolName: 'pay', input: { sum: 1 } }] }, 'ok'],
    });
    expect(run.output).toBe('ok');
    expect(ran).toEqual([]);
    expect(JSON.stringify(run.requests[1]?.prompt)).toContain('needs a person’s approval that it does not have');
  });
});

const HELPER_SHIM = `
import { agentTool, defineShim } from 'shimline/shims';
export default defineShim({
  name: 'helping',
  inherit: 'none',
  prepareTurn(turn) {
    turn.addTools([agentTool(turn, { name: 'help', description: 'Helps.', tools: ['unknown_tool'] })]);
  },
});
`;

let lab: Lab;
const ALICE = bearer('a-key-of-alice');
const BOB = bearer('a-key-of-bob');

beforeAll(async () => {
  lab = await startLab({ env: { API_KEYS: 'alice:a-key-of-alice,bob:a-key-of-bob' } });
  writeFileSync(join(lab.shimsDir, 'helping.mjs'), HELPER_SHIM);
  await lab.server.restart();
});
afterAll(async () => {
  await lab.close();
});

let unique = 100;
const fresh = (): number => (unique += 1);
const effects = (n: number): number => lab.ledger.count((effect) => effect.n === n);
const DO = 'unknown_tool';

interface Open {
  readonly id: string;
  readonly arguments: JsonObject;
  readonly responseSchema: { readonly properties: Readonly<Record<string, unknown>> };
  readonly message: string | null;
}
const openOf = (run: JsonObject): readonly Open[] => run.interruptions as never;
const onlyId = (run: JsonObject): string => {
  expect(openOf(run), JSON.stringify(run)).toHaveLength(1);
  return openOf(run)[0]?.id ?? '';
};

async function agent(name: string, config: Config, more: JsonObject = {}): Promise<void> {
  const shims = [{ use: 'approval', config }, { use: 'lab', config: { ledger: lab.ledger.url } }, { use: 'helping' }];
  const body = { model: 'openai-compatible/m', instructions: 'Test.', shims, ...more };
  const answer = await lab.server.json('PUT', `/v1/agents/${name}`, body, ALICE);
  expect(answer.body, JSON.stringify(answer.body)).toMatchObject({ name });
}

async function start(name: string, headers = ALICE): Promise<JsonObject> {
  const answer = await lab.server.json(
    'POST',
    '/v1/runs',
    { agent: name, input: 'go' },
    { ...headers, prefer: 'wait=20' },
  );
  expect(answer.status, JSON.stringify(answer.body)).toBe(200);
  return answer.body;
}
const resumeAny = async (run: JsonObject, body: JsonObject, headers = ALICE) =>
  lab.server.json('POST', `/v1/runs/${String(run.id)}/resume`, body, { ...headers, prefer: 'wait=20' });
async function resume(run: JsonObject, body: JsonObject, headers = ALICE): Promise<JsonObject> {
  const answer = await resumeAny(run, body, headers);
  expect(answer.status, JSON.stringify(answer.body)).toBe(200);
  return answer.body;
}
const decide = async (run: JsonObject, decision: JsonObject, headers = ALICE): Promise<JsonObject> =>
  resume(run, { decisions: [{ id: onlyId(run), ...decision }] }, headers);
const lastResults = (at = -1): readonly string[] =>
  toolResultsOf(lab.model.requests.at(at)!).map(({ text }) => text.replace(/^Error: /, ''));

describe('decisions', () => {
  beforeAll(async () => {
    await agent('asks', { rules: [{ tools: [DO], action: 'ask', message: 'Shall it?' }], otherwise: 'allow' });
  });

  it('once: the next call is asked about again, and each runs exactly once', async () => {
    const [a, b] = [fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n: a })), calling(callOf(DO, { n: b })), { text: 'both' });
    const first = await start('asks');
    expect(openOf(first)).toMatchObject([{ message: 'Shall it?', arguments: { n: a } }]);
    expect(openOf(first)[0]?.responseSchema.properties.scope).toEqual({ enum: ['once', 'run', 'agent'] });
    const second = await decide(first, { decision: 'approve', scope: 'once' });
    expect([second.status, effects(a), effects(b)]).toEqual(['waiting', 1, 0]);
    expect(await decide(second, { decision: 'approve' })).toMatchObject({ status: 'completed', output: 'both' });
    expect([effects(a), effects(b)]).toEqual([1, 1]);
  });

  it('for this run: not asked again, also after a restart and with new input; another run and a fork are asked', async () => {
    const ns = [fresh(), fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n: ns[0] })), calling(callOf(DO, { n: ns[1] })), { text: 'ok' });
    const run = await decide(await start('asks'), { decision: 'approve', scope: 'run' });
    expect(run.status).toBe('completed');
    await lab.server.restart();
    lab.model.script(calling(callOf(DO, { n: ns[2] })), { text: 'more' });
    expect(await resume(run, { input: 'again' })).toMatchObject({ status: 'completed', output: 'more' });
    expect(ns.map(effects)).toEqual([1, 1, 1]);

    const n = fresh();
    lab.model.script(calling(callOf(DO, { n })));
    expect((await start('asks')).status).toBe('waiting');
    lab.model.script(calling(callOf(DO, { n })));
    const fork = await lab.server.json('POST', `/v1/runs/${String(run.id)}/fork`, { input: 'fork' }, ALICE);
    const forked = await lab.server.json('GET', `/v1/runs/${String(fork.body.id)}`, undefined, {
      ...ALICE,
      prefer: 'wait=20',
    });
    expect([forked.body.status, effects(n)]).toEqual(['waiting', 0]);
  });

  it('for this agent: every run under the same key, after a restart too; never under another key or for another agent', async () => {
    const rules: Config['rules'] = [{ tools: [DO], action: 'ask' }];
    await agent('trusted', { rules, otherwise: 'allow' });
    await agent('other', { rules, otherwise: 'allow' });
    const [a, b, c] = [fresh(), fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n: a })), { text: 'ok' });
    await decide(await start('trusted'), { decision: 'approve', scope: 'agent' });
    await lab.server.restart();
    lab.model.script(calling(callOf(DO, { n: b })), { text: 'ok' });
    expect((await start('trusted')).status).toBe('completed');
    for (const [name, headers] of [
      ['trusted', BOB],
      ['other', ALICE],
    ] as const) {
      lab.model.script(calling(callOf(DO, { n: c })));
      expect((await start(name, headers)).status).toBe('waiting');
    }
    // Another rule asks anew.
    await agent('trusted', { rules: [{ tools: [DO], action: 'ask', covers: 'arguments' }], otherwise: 'allow' });
    lab.model.script(calling(callOf(DO, { n: c })));
    expect((await start('trusted')).status).toBe('waiting');
    expect([effects(a), effects(b), effects(c)]).toEqual([1, 1, 0]);
  });

  it('a rule may have a decision cover the same arguments only', async () => {
    await agent('exact', { rules: [{ tools: [DO], action: 'ask', covers: 'arguments' }], otherwise: 'allow' });
    const [a, b] = [fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n: a })), calling(callOf(DO, { n: a })), calling(callOf(DO, { n: b })));
    const run = await decide(await start('exact'), { decision: 'approve', scope: 'run' });
    expect([openOf(run)[0]?.arguments, effects(a), effects(b)]).toEqual([{ n: b }, 2, 0]);
  });

  it('a scope that was not offered is refused, and nothing is decided', async () => {
    await agent('narrow', { rules: [{ tools: [DO], action: 'ask', scopes: ['once', 'run'] }], otherwise: 'allow' });
    const n = fresh();
    lab.model.script(calling(callOf(DO, { n })), { text: 'ok' });
    const run = await start('narrow');
    const decision = { id: onlyId(run), decision: 'approve' };
    const refused = await resumeAny(run, { decisions: [{ ...decision, scope: 'agent' }] });
    expect(refused).toMatchObject({
      status: 422,
      body: { code: 'validation_failed', errors: [{ pointer: '/decisions/0/scope' }] },
    });
    expect((await resumeAny(run, { decisions: [{ ...decision, scope: 'ever' }] })).status).toBe(422);
    expect(await resume(run, { decisions: [decision] })).toMatchObject({ status: 'completed' });
    expect(effects(n)).toBe(1);
  });

  it('failure R01: a denied call is not run, the model is told why, and the same call is not asked about again until new input', async () => {
    const [n, m] = [fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n })), calling(callOf(DO, { n })), { text: 'I leave it.' });
    const waiting = await start('asks');
    await lab.server.restart();
    const run = await decide(waiting, { decision: 'deny', reason: 'too dear' });
    expect(run).toMatchObject({ status: 'completed', output: 'I leave it.' });
    expect(lastResults(-2)).toEqual(['The call was denied and was not run: too dear']);
    expect(lastResults()[1]).toBe(
      'The same call was denied before, so it was not run and nobody was asked again: too dear. Go on without it, or ask the user.',
    );
    lab.model.script(calling(callOf(DO, { n: m })));
    const other = await resume(run, { input: 'another' });
    expect(other.status).toBe('waiting');
    lab.model.script(calling(callOf(DO, { n })), { text: 'done' });
    const again = await decide(other, { decision: 'deny' });
    expect(again.status).toBe('waiting');
    expect((await decide(again, { decision: 'approve' })).status).toBe('completed');
    expect([effects(n), effects(m)]).toEqual([1, 0]);
  });

  it('a denial for the run holds for all such calls of it', async () => {
    const [a, b] = [fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n: a })), calling(callOf(DO, { n: b })), { text: 'well' });
    const run = await decide(await start('asks'), { decision: 'deny', scope: 'run', reason: 'Not today.' });
    expect(run).toMatchObject({ status: 'completed', output: 'well' });
    expect(lastResults()[1]).toBe(
      'Calls like this one were denied, so this one was not run: Not today. Do not try it again.',
    );
    expect([effects(a), effects(b)]).toEqual([0, 0]);
  });

  it('after maxDenials denials, not before', async () => {
    await agent('patient', { rules: [{ tools: [DO], action: 'ask' }], otherwise: 'allow', maxDenials: 2 });
    const n = fresh();
    const same = calling(callOf(DO, { n }));
    lab.model.script(same, same, same, { text: 'enough' });
    const second = await decide(await start('patient'), { decision: 'deny' });
    expect(second.status).toBe('waiting');
    expect(await decide(second, { decision: 'deny' })).toMatchObject({ status: 'completed', output: 'enough' });
    expect(effects(n)).toBe(0);
  });

  it('a question expires: the call is denied, and nobody is asked again', async () => {
    await agent('hasty', {
      rules: [{ tools: [DO], action: 'ask', expiresInMs: 150 }],
      otherwise: 'allow',
      expiresInMs: 60_000,
    });
    const n = fresh();
    lab.model.script(calling(callOf(DO, { n })), calling(callOf(DO, { n })), { text: 'late' });
    const run = await start('hasty');
    expect(run.status).toBe('waiting');
    const events = await lab.server.json('GET', `/v1/runs/${String(run.id)}/events`, undefined, ALICE);
    expect(JSON.stringify(events.body)).toContain('expiresAt');
    await lab.model.waitForRequest(lab.model.requests.length + 2);
    const done = await lab.server.json('GET', `/v1/runs/${String(run.id)}`, undefined, { ...ALICE, prefer: 'wait=20' });
    expect(done.body).toMatchObject({ status: 'completed', output: 'late' });
    expect(lastResults()[1]).toContain('nobody had answered in time');
    expect(effects(n)).toBe(0);
  });

  it('failure R04: the calls of one round are decided one by one, and each answer reaches its own call', async () => {
    const [a, b, c] = [fresh(), fresh(), fresh()];
    lab.model.script(
      calling(callOf(DO, { n: a }), callOf(DO, { n: b }), callOf(DO, { n: c }), callOf('echo', { x: 1 })),
      { text: 'all' },
    );
    const run = await start('asks');
    const [first, second, third] = openOf(run).map(({ id }) => id);
    const edited = fresh();
    const decisions = [
      { id: third, decision: 'approve', scope: 'run' },
      { id: second, decision: 'deny', reason: 'no' },
      { id: first, decision: 'edit', arguments: { n: edited } },
    ];
    expect(await resume(run, { decisions })).toMatchObject({ status: 'completed', output: 'all' });
    expect([a, b, c, edited].map(effects)).toEqual([0, 0, 1, 1]);
    expect(lastResults()).toHaveLength(4);
    expect(lastResults()[1]).toBe('The call was denied and was not run: no');
  });
});

describe('edited arguments are checked again', () => {
  beforeAll(async () => {
    const rules: Config['rules'] = [
      { tools: [DO], when: { '>': [{ var: 'arguments.n' }, 90_000] }, action: 'deny', reason: 'never so much' },
      { tools: [DO], when: { '>': [{ var: 'arguments.n' }, 50_000] }, action: 'ask', message: 'So much?' },
      { tools: [DO], action: 'ask', message: 'Shall it?' },
    ];
    await agent('sums', { rules, otherwise: 'allow' });
  });

  it('an edit into what is denied is not run', async () => {
    const n = fresh();
    lab.model.script(calling(callOf(DO, { n })), { text: 'no' });
    const run = await decide(await start('sums'), { decision: 'edit', arguments: { n: 95_000 } });
    expect(run.status).toBe('completed');
    expect(lastResults()).toEqual([not('never so much.')]);
    expect([effects(n), effects(95_000)]).toEqual([0, 0]);
  });

  it('an edit into what another rule asks about is asked about by that rule, under a new id', async () => {
    const n = fresh();
    lab.model.script(calling(callOf(DO, { n })), { text: 'yes' });
    const first = await start('sums');
    const second = await decide(first, { decision: 'edit', arguments: { n: 60_000 } });
    expect([second.status, effects(60_000)]).toEqual(['waiting', 0]);
    expect(openOf(second)).toMatchObject([{ message: 'So much?', arguments: { n: 60_000 } }]);
    expect(onlyId(second)).not.toBe(onlyId(first));
    expect((await resumeAny(second, { decisions: [{ id: onlyId(first), decision: 'approve' }] })).status).toBe(409);
    await lab.server.restart();
    expect(await decide(second, { decision: 'approve' })).toMatchObject({ status: 'completed', output: 'yes' });
    expect([effects(n), effects(60_000)]).toEqual([0, 1]);
  });

  it('an edit under the same rule runs as it was edited', async () => {
    const [n, m] = [fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n })), { text: 'yes' });
    const run = await decide(await start('sums'), { decision: 'edit', arguments: { n: m } });
    expect(run.status).toBe('completed');
    expect([effects(n), effects(m)]).toEqual([0, 1]);
  });
});

describe('nothing loses its gate', () => {
  it('a helper asks for itself, whatever its parent was allowed', async () => {
    await agent('boss', { rules: [{ tools: [DO], action: 'ask' }], otherwise: 'allow' });
    const [a, b] = [fresh(), fresh()];
    lab.model.script(
      calling(callOf(DO, { n: a })),
      calling(callOf('help', { task: 'do it' })),
      calling(callOf(DO, { n: b })),
    );
    const waiting = await start('boss');
    const decision = { decisions: [{ id: onlyId(waiting), decision: 'approve', scope: 'run' }] };
    await lab.server.json('POST', `/v1/runs/${String(waiting.id)}/resume`, decision, ALICE);
    await lab.model.waitForRequest(lab.model.requests.length + 2);
    let child: JsonObject = {};
    await expect
      .poll(async () => {
        const list = await lab.server.json('GET', `/v1/runs?parent=${String(waiting.id)}`, undefined, ALICE);
        child = (list.body.data as readonly JsonObject[])[0] ?? {};
        return child.status;
      })
      .toBe('waiting');
    expect([effects(a), effects(b)]).toEqual([1, 0]);
    lab.model.script({ text: 'helped' }, { text: 'all done' });
    await decide(child, { decision: 'approve' });
    const parent = await lab.server.json('GET', `/v1/runs/${String(waiting.id)}`, undefined, {
      ...ALICE,
      prefer: 'wait=20',
    });
    expect(parent.body).toMatchObject({ status: 'completed', output: 'all done' });
    expect([effects(a), effects(b)]).toEqual([1, 1]);
  });

  it('a handoff that the rules deny does not happen', async () => {
    await agent('second', { otherwise: 'allow' });
    await agent(
      'first',
      { rules: [{ tools: ['handoff_to_*'], action: 'deny' }], otherwise: 'allow' },
      { handoffs: ['second'] },
    );
    lab.model.script(calling(callOf('handoff_to_second')), { text: 'I stay.' });
    expect(await start('first')).toMatchObject({ status: 'completed', output: 'I stay.', agent: 'first' });
    expect(lastResults()).toEqual([not()]);
  });

  it('failure K01: an approved call that a crash interrupted is made again by its own rule, without another question', async () => {
    await agent('crashing', { rules: [{ tools: ['retry_tool'], action: 'ask' }], otherwise: 'allow' });
    const n = fresh();
    lab.model.script(calling(callOf('retry_tool', { n })));
    const run = await start('crashing');
    const block = lab.ledger.blockBefore((effect) => effect.n === n);
    const decision = { decisions: [{ id: onlyId(run), decision: 'approve' }] };
    await lab.server.json('POST', `/v1/runs/${String(run.id)}/resume`, decision, ALICE);
    await block.reached;
    await lab.server.kill9();
    lab.model.script({ text: 'ok' });
    block.release();
    await lab.server.restart();
    const done = await lab.server.json('GET', `/v1/runs/${String(run.id)}`, undefined, { ...ALICE, prefer: 'wait=20' });
    expect(done.body).toMatchObject({ status: 'completed', recoveries: 1 });
    expect(lastResults()[0]).not.toContain('approval');
    expect(new Set(lab.ledger.entries((effect) => effect.n === n).map(({ key }) => key)).size).toBe(1);
  });

  it('failure R02: approved for the agent, killed at once: the call runs once, and the decision is kept', async () => {
    await agent('killed', { rules: [{ tools: [DO], action: 'ask' }], otherwise: 'allow' });
    const [n, m] = [fresh(), fresh()];
    lab.model.script(calling(callOf(DO, { n })));
    const run = await start('killed');
    const block = lab.ledger.blockAfter((effect) => effect.n === n);
    await lab.server.json(
      'POST',
      `/v1/runs/${String(run.id)}/resume`,
      { decisions: [{ id: onlyId(run), decision: 'approve', scope: 'agent' }] },
      ALICE,
    );
    await block.reached;
    lab.server.signal('SIGKILL');
    await lab.server.exited;
    lab.model.script({ text: 'ok' });
    await lab.server.restart();
    block.release();
    const done = await lab.server.json('GET', `/v1/runs/${String(run.id)}`, undefined, { ...ALICE, prefer: 'wait=20' });
    expect(done.body).toMatchObject({ status: 'completed', unknownToolCalls: [{ tool: DO }] });
    lab.model.script(calling(callOf(DO, { n: m })), { text: 'ok' });
    expect((await start('killed')).status).toBe('completed');
    expect([effects(n), effects(m)]).toEqual([1, 1]);
  });
});
