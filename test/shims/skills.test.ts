import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import compaction from '../../shims/compaction/index.js';
import { parseSkill } from '../../shims/skills/front-matter.js';
import skills from '../../shims/skills/index.js';
import { toolFilter } from '../../shims/skills/tool-rules.js';
import { DefaultAgent } from '../../src/agent/default-agent.js';
import {
  agentTool,
  defineShim,
  defineTool,
  type HistoryItem,
  isInternalMessage,
  renderItem,
  type Tool,
  z,
} from '../../src/shims.js';
import {
  type RecordedRequest,
  type ScriptedAnswer,
  ScriptedModel,
  type ScriptedReply,
  type TestedRun,
  testShim,
} from '../../src/testing.js';
import { ended, logOf, WAIT } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess } from '../support/server-process.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

let root: string;
beforeEach(() => {
  root = temporaryFolder('skills-');
});

/** Writes a file below the directory of skills. */
function put(path: string, text: string): string {
  const file = join(root, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  return file;
}
function skill(name: string, fields = '', body = `Do ${name} well.`): void {
  put(`${name}/SKILL.md`, `---\nname: ${name}\ndescription: For ${name}.\n${fields}---\n\n${body}\n`);
}
const call = (toolName: string, input: Readonly<Record<string, string | number>> = {}): ScriptedReply => ({
  toolCalls: [{ toolName, input }],
});
const activate = (name: string): ScriptedReply => call('activate_skill', { name });
const tool = (name: string): Tool =>
  defineTool({ name, description: 'Runs.', parameters: z.object({}), execute: () => 'ran' });
const options = (more: object = {}): { config: { directories: string[] } } => ({
  config: { directories: [root], ...more },
});

/** Texts of the tool results that a request carries. */
const resultsIn = (request: RecordedRequest | undefined): string[] =>
  (request?.prompt ?? []).flatMap((message) =>
    message.role === 'tool'
      ? message.content.map((part) =>
          part.type === 'tool-result' && 'value' in part.output && typeof part.output.value === 'string'
            ? part.output.value
            : '',
        )
      : [],
  );
const lastResult = (run: TestedRun): string => resultsIn(run.requests.at(-1)).at(-1) ?? '';
const told = (run: TestedRun, name: string): unknown[] =>
  run.events
    .filter(({ type }) => type === `custom.skills.${name}`)
    .map((event) => (event as unknown as { data: unknown }).data);
const internals = (history: readonly HistoryItem[]): string[] =>
  history
    .filter((item) => isInternalMessage(item, { origin: 'skills' }))
    .flatMap((item) => renderItem(item))
    .map(({ content }) => (typeof content === 'string' ? content : ''));

const CATALOGUE = `<available_skills from="skills">
Skills are instructions for particular kinds of work. Before you begin a task that one of these is for, call activate_skill with its name, and follow what it says.
- billing: For billing.
- triage: For triage.
</available_skills>`;

describe('the catalogue', () => {
  it('is appended once per conversation and agent, in the order of the names, and the tools are always the same', async () => {
    skill('triage');
    skill('billing');
    const run = await testShim(skills, {
      ...options(),
      instructions: 'You are a clerk.',
      tools: [tool('own')],
      script: [call('own'), 'ok'],
    });
    const next = await run.resume('again');
    expect(next.requests[0]?.system).toBe(`You are a clerk.\n\n${CATALOGUE}`);
    expect(run.tools).toEqual(Array(2).fill(['own', 'activate_skill', 'deactivate_skill', 'read_skill_file']));
    expect(next.effects.flatMap(({ changes }) => changes.map(({ what }) => what))).toEqual(['tools+']);
  });

  it('without any skill there is nothing: no tools, no text', async () => {
    const run = await testShim(skills, options());
    expect([run.requests[0]?.system, run.tools, run.effects]).toEqual([undefined, [[]], []]);
  });

  it('skills that changed on disk between runs are told at the end, and the instruction stays', async () => {
    skill('triage');
    skill('billing');
    const run = await testShim(skills, { ...options(), script: [activate('triage'), 'ok'] });
    rmSync(join(root, 'triage'), { recursive: true });
    skill('orders');
    const next = await run.resume('again', { script: [activate('orders'), 'ok'] });
    expect(next.requests[0]?.system).toBe(CATALOGUE);
    expect(internals(next.history)).toEqual([
      'The skills have changed since the list of them was written.\nNew or changed:\n- orders: For orders.\nNo longer there: triage.',
    ]);
    expect(next.state['skills:active']).toEqual(['orders']);
    expect(told(next, 'deactivated')).toEqual([{ skill: 'triage', reason: 'it is no longer there' }]);
    const third = await next.resume('and again');
    expect(internals(third.history)).toHaveLength(1);
  });

  it('a broken SKILL.md is told and left out, and the others serve', async () => {
    skill('good');
    put('none/SKILL.md', 'no front matter');
    put('empty/SKILL.md', '---\nname: empty\n---\nbody');
    put('yaml/SKILL.md', '---\n{ [\n---\nbody');
    put('again/SKILL.md', '---\nname: good\ndescription: Another one.\n---\nbody');
    mkdirSync(join(root, 'folder/SKILL.md'), { recursive: true });
    const run = await testShim(skills, { config: { directories: [root, join(root, 'not-there')] } });
    const reasons = told(run, 'broken') as { path: string; reason: string }[];
    expect(reasons.map(({ path }) => path)).toEqual([
      'empty/SKILL.md',
      'folder/SKILL.md',
      'good/SKILL.md',
      'none/SKILL.md',
      'yaml/SKILL.md',
    ]);
    expect(JSON.stringify(reasons)).not.toContain(root);
    expect(run.requests[0]?.system).toContain('- good: Another one.');
    expect(run.output).toBe('ok');
  });

  it('skills may be grouped and linked; a link in a circle is no trouble', async () => {
    const elsewhere = temporaryFolder('skills-');
    writeFileSync(join(elsewhere, 'SKILL.md'), '---\ndescription: For guests.\n---\nBe kind.');
    put('group/sub/inner/SKILL.md', '---\ndescription: Inner.\n---\n');
    symlinkSync(elsewhere, join(root, 'guest'));
    symlinkSync('..', join(root, 'group/circle'));
    const run = await testShim(skills, { ...options(), script: [activate('guest'), 'ok'] });
    expect(run.requests[0]?.system).toContain('- guest: For guests.\n- inner: Inner.\n</available_skills>');
    expect([lastResult(run).includes('Be kind.'), told(run, 'broken')]).toEqual([true, []]);
  });

  it('only names the skills that an agent has', async () => {
    skill('triage');
    skill('billing');
    const run = await testShim(skills, { ...options({ only: ['billing'] }), script: [activate('triage'), 'ok'] });
    expect(run.requests[0]?.system).not.toContain('triage');
    expect(lastResult(run)).toBe('There is no skill "triage". The skills are: billing.');
  });
});

describe('SKILL.md is read leniently', () => {
  it.each<readonly [string, string, object]>([
    [
      'as it should be',
      '---\nname: a\ndescription: D\nlicense: MIT\ncompatibility: Node\nmetadata:\n  author: me\n  version: 1.0\nallowed-tools: read Bash(git add:*) grep\n---\nB',
      {
        name: 'a',
        description: 'D',
        license: 'MIT',
        compatibility: 'Node',
        metadata: { author: 'me', version: '1' },
        allowedTools: ['read', 'Bash', 'grep'],
        disallowedTools: [],
      },
    ],
    [
      'a byte order mark and other line ends',
      '\uFEFF---\r\nname: a\r\ndescription: D\r\n---\r\nB',
      { name: 'a', description: 'D' },
    ],
    [
      'a colon in an unquoted value',
      '---\nname: a\ndescription: Use it when: it rains\n---\nB',
      { description: 'Use it when: it rains' },
    ],
    ['a folded description', '---\nname: a\ndescription: >\n  Two\n  lines\n---\nB', { description: 'Two lines' }],
    [
      'lists and commas',
      '---\nname: a\ndescription: D\nallowed-tools: [read, "Bash(ls *)"]\ndisallowed-tools: write, rm\n---\nB',
      { allowedTools: ['read', 'Bash'], disallowedTools: ['write', 'rm'] },
    ],
    [
      'unknown fields, and a name that cannot be used',
      '---\nname: "a<b>"\ndescription: D\nmodel: x\n---\nB',
      { name: undefined, description: 'D' },
    ],
    [
      'an empty list allows nothing, an empty value says nothing',
      '---\nname: a\ndescription: D\nallowed-tools:\n---\nB',
      { allowedTools: undefined },
    ],
  ])('%s', async (_what, text, head) => {
    expect(await parseSkill(text)).toMatchObject({ head, body: 'B' });
  });

  it('an endless description is cut, and a bomb of aliases is refused', async () => {
    const { head } = await parseSkill(`---\nname: a\ndescription: ${'🎉'.repeat(2_000)}\n---\n`);
    expect([head.description.length <= 1025, head.description.isWellFormed()]).toEqual([true, true]);
    const bomb = `a: &a [${'x,'.repeat(20)}]\n${'bcdefgh'
      .split('')
      .map((key, index) => `${key}: &${key} [${`*${'abcdefg'[index] ?? ''},`.repeat(20)}]`)
      .join('\n')}`;
    await expect(parseSkill(`---\ndescription: D\n${bomb}\n---\n`)).rejects.toThrow('its front matter is no YAML');
  });
});

describe('activation', () => {
  it('gives the body as a tool result with the list of files, and tools see the name', async () => {
    skill('triage', 'license: MIT\nmetadata: { version: 2 }\n', 'Ask first.');
    put('triage/references/codes.md', 'codes');
    put('triage/scripts/run.py', 'print()');
    put('triage/.hidden', 'no');
    let seen: unknown;
    const look = defineTool({
      name: 'look',
      description: 'Looks.',
      parameters: z.object({}),
      execute: (_args, ctx) => ((seen = ctx.activeSkillNames), 'seen'),
    });
    const run = await testShim(skills, {
      ...options(),
      tools: [look],
      script: [activate('triage'), call('look'), activate('Triage'), 'ok'],
    });
    expect(resultsIn(run.requests[1])).toEqual([
      '<skill_content name="triage" chars="10">\nAsk first.\n</skill_content>\nFiles of this skill, to be read with read_skill_file when they are needed:\n- references/codes.md\n- scripts/run.py',
    ]);
    expect([seen, run.state['skills:active']]).toEqual([['triage'], ['triage']]);
    expect(lastResult(run)).toBe('The skill "triage" is active already; its instructions are in this conversation.');
    expect(told(run, 'activated')).toEqual([{ skill: 'triage', license: 'MIT', metadata: { version: '2' } }]);
    const systems = new Set(run.requests.map(({ system }) => system));
    expect(systems.size).toBe(1);
  });

  it('a body that changed on disk is given again, one that ended too, and several run side by side', async () => {
    skill('triage');
    skill('billing');
    const both: ScriptedReply = {
      toolCalls: [
        { toolName: 'activate_skill', input: { name: 'triage' } },
        { toolName: 'activate_skill', input: { name: 'billing' } },
      ],
    };
    const run = await testShim(skills, { ...options(), script: [both, 'ok'] });
    expect(run.state['skills:active']).toEqual(['triage', 'billing']);
    skill('triage', '', 'Other words.');
    const next = await run.resume('x', {
      script: [activate('triage'), call('deactivate_skill', { name: 'billing' }), activate('billing'), 'ok'],
    });
    expect(resultsIn(next.requests[1]).at(-1)).toContain('Other words.');
    expect(resultsIn(next.requests[2]).at(-1)).toBe('The skill "billing" is no longer active.');
    expect(lastResult(next)).toContain('Do billing well.');
    expect(next.state['skills:active']).toEqual(['triage', 'billing']);
  });

  it('M15: a body that is too long is cut at a whole character with a note, and the rest can be read', async () => {
    skill('long', '', `x${'🎉'.repeat(200)}END`);
    const run = await testShim(skills, {
      ...options({ maxChars: 100 }),
      script: [activate('long'), call('read_skill_file', { skill: 'long', path: 'SKILL.md', offset: 440 }), 'ok'],
    });
    const [body = ''] = resultsIn(run.requests[1]);
    expect([
      body.isWellFormed(),
      body.includes('(305 more characters: read them from SKILL.md with read_skill_file.)'),
    ]).toEqual([true, true]);
    expect(lastResult(run)).toContain('END');
  });

  it('as: a second shim of skills has its own state, tools and catalogue, and tools see the names of both', async () => {
    skill('triage');
    const other = temporaryFolder('skills-');
    mkdirSync(join(other, 'law'));
    writeFileSync(join(other, 'law/SKILL.md'), '---\ndescription: For law.\n---\nBe exact.');
    let seen: unknown;
    const look = defineTool({
      name: 'look',
      description: 'Looks.',
      parameters: z.object({}),
      execute: (_args, ctx) => ((seen = ctx.activeSkillNames), 'seen'),
    });
    const run = await testShim(skills, {
      ...options(),
      tools: [look],
      after: [skills.create({ directories: [other] }, { name: 'house' }) as never],
      script: [activate('triage'), call('activate_skill_house', { name: 'law' }), call('look'), 'ok'],
    });
    expect(run.error).toBeUndefined();
    expect(run.state).toMatchObject({ 'skills:active': ['triage'], 'house:skills:active': ['law'] });
    expect(seen).toEqual(['law', 'triage']);
  });
});

describe('R45 and R32: what active skills say of tools', () => {
  it.each<readonly [string, readonly string[], readonly string[]]>([
    ['one that allows', ['reads'], ['read', 'grep']],
    ['two that allow: what any of them allows', ['reads', 'writes'], ['read', 'write', 'grep']],
    ['one that forbids wins over one that allows', ['reads', 'careful'], ['read']],
    ['one that says nothing neither allows nor restricts', ['reads', 'silent'], ['read', 'grep']],
    ['one that forbids only', ['careful'], ['read', 'write', 'bash']],
    ['a list written for another program restricts nothing', ['foreign'], ['read', 'write', 'grep', 'bash']],
  ])('%s', async (_what, active, left) => {
    skill('reads', 'allowed-tools: Read Gr*\n');
    skill('writes', 'allowed-tools: write\n');
    skill('careful', 'disallowed-tools: grep\n');
    skill('silent');
    skill('foreign', 'allowed-tools: WebFetch\n');
    const late = defineShim({
      name: 'late',
      prepareTurn: (turn) => {
        turn.addTools([tool('grep'), tool('bash')]);
      },
    });
    const run = await testShim(skills, {
      ...options(),
      tools: [tool('read'), tool('write')],
      after: [late],
      script: [...active.map(activate), 'ok'],
    });
    const own = ['activate_skill', 'deactivate_skill', 'read_skill_file'];
    expect(run.tools[0]).toEqual(['read', 'write', ...own, 'grep', 'bash']);
    const expected = ['read', 'write', ...own, 'grep', 'bash'].filter(
      (name) => own.includes(name) || left.includes(name),
    );
    if (_what.startsWith('one that forbids only')) expect(run.tools.at(-1)).toEqual(['read', 'write', ...own, 'bash']);
    else expect(run.tools.at(-1)).toEqual(expected);
  });

  it('ends with the skill, holds in the next run, and is not applied where the config says so', async () => {
    skill('reads', 'allowed-tools: read\n');
    const tools = [tool('read'), tool('write')];
    const run = await testShim(skills, { ...options(), tools, script: [activate('reads'), call('write'), 'ok'] });
    expect(lastResult(run)).toContain('There is no tool "write"');
    const next = await run.resume('x', { script: [call('deactivate_skill', { name: 'reads' }), 'ok'] });
    expect(next.tools.map((names) => names.includes('write'))).toEqual([false, true]);
    const free = await testShim(skills, {
      ...options({ applyTools: false }),
      tools,
      script: [activate('reads'), 'ok'],
    });
    expect(free.tools.at(-1)).toContain('write');
  });

  it('an empty list allows nothing', () => {
    expect(['a', 'b'].filter(toolFilter([{ allowedTools: [], disallowedTools: [] }], ['a', 'b']))).toEqual([]);
  });
});

describe('files are read inside the folder of the skill only', () => {
  it.each<readonly [string, string, string]>([
    ['a file', 'references/a.md', 'inside'],
    ['a link inside', 'inner.md', 'inside'],
    ['the parent', '../secret.txt', "is outside of the skill's folder."],
    ['a way round', 'references/../../secret.txt', "is outside of the skill's folder."],
    ['a neighbour with the same beginning', '../triage-other/a.md', "is outside of the skill's folder."],
    ['an absolute path', '/etc/hostname', "is not relative to the skill's folder."],
    ['a link out', 'out.txt', "is a link that leads out of the skill's folder."],
    ['a folder that is a link out', 'outdir/secret.txt', "is a link that leads out of the skill's folder."],
    ['a folder', 'references', 'is no file.'],
    ['a pipe, which would never end', 'pipe', 'is no file.'],
    ['nothing', 'nope.md', 'is not there.'],
    ['a null', 'a\u0000b', 'is no path.'],
    ['a drive', 'C:\\x', "is not relative to the skill's folder."],
    ['what is no text', 'pic.bin', 'is no text (4 bytes).'],
  ])('%s', async (_what, path, expected) => {
    skill('triage');
    put('triage/references/a.md', 'inside');
    put('secret.txt', 'SECRET');
    put('triage-other/a.md', 'SECRET');
    put('triage/pic.bin', 'a\0bc');
    symlinkSync('references/a.md', join(root, 'triage/inner.md'));
    symlinkSync('../secret.txt', join(root, 'triage/out.txt'));
    symlinkSync('..', join(root, 'triage/outdir'));
    execFileSync('mkfifo', [join(root, 'triage/pipe')]);
    const run = await testShim(skills, {
      ...options(),
      script: [call('read_skill_file', { skill: 'triage', path }), 'ok'],
    });
    expect(lastResult(run)).toContain(expected);
    expect(lastResult(run)).not.toContain('SECRET');
    expect(lastResult(run)).not.toContain(root);
  });

  it('a SKILL.md that is a link out is no skill', async () => {
    put('secret.txt', '---\ndescription: SECRET\n---\n');
    mkdirSync(join(root, 'bad'));
    symlinkSync('../secret.txt', join(root, 'bad/SKILL.md'));
    const run = await testShim(skills, options());
    expect([run.requests[0]?.system, told(run, 'broken').length]).toEqual([undefined, 1]);
  });
});

describe('after a compaction', () => {
  const talk = 'they talk about tea '.repeat(40);
  const script = (...more: ScriptedAnswer[]): { otherwise: ScriptedAnswer; script: [] } => {
    const left = [...more];
    return {
      script: [],
      otherwise: (request) =>
        JSON.stringify(request.prompt.at(-1)).includes('Write the summary.') ? 'SHORT' : (left.shift() ?? 'ok'),
    };
  };
  const before = [compaction.create({ triggerTokens: 700, keepTokens: 10 })];

  it('the body of an active skill that is gone is put back at the end, once, unseen by clients', async () => {
    skill('triage', '', 'Ask first.');
    const run = await testShim(skills, { ...options(), before, ...script(activate('triage'), 'ok') });
    expect(internals(run.history)).toEqual([]);
    const second = await run.resume([talk, talk, talk, 'now?']);
    expect(second.events.filter(({ type }) => type === 'custom.compaction')).toHaveLength(1);
    expect(internals(second.history)).toEqual([
      'The conversation was shortened; these instructions of an active skill still hold.\n<skill_content name="triage" chars="10">\nAsk first.\n</skill_content>',
    ]);
    expect(JSON.stringify(second.requests.at(-1)?.prompt.at(-1))).toContain('Ask first.');
    const third = await second.resume('more');
    expect(internals(third.history)).toHaveLength(1);
  });

  it('a long one is offered again', async () => {
    skill('triage', '', 'Ask first.');
    const run = await testShim(skills, {
      ...options({ reloadChars: 5 }),
      before,
      ...script(activate('triage'), 'ok'),
    });
    const second = await run.resume([talk, talk, talk, 'now?']);
    const third = await second.resume('more');
    expect(internals(third.history)).toEqual([
      'The instructions of the active skill "triage" are no longer in this conversation. Call activate_skill again if you still need them.',
    ]);
  });
});

it('R96 and R15: an agent that is handed the conversation is told of its own skills, once', async () => {
  skill('triage');
  const other = temporaryFolder('skills-');
  mkdirSync(join(other, 'law'));
  writeFileSync(join(other, 'law/SKILL.md'), '---\ndescription: For law.\n---\nBe exact.');
  const second = new ScriptedModel([activate('law'), 'done', 'again']);
  const lawyer = new DefaultAgent({
    name: 'lawyer',
    instructions: 'You are a lawyer.',
    model: second,
    shims: [skills.create({ directories: [other] })],
  });
  const first = new ScriptedModel([activate('triage'), call('handoff_to_lawyer')]);
  const clerk = new DefaultAgent({
    name: 'clerk',
    model: first,
    shims: [skills.create({ directories: [root] })],
    handoffs: [lawyer],
  });
  await clerk.run('hello');
  await clerk.run('and now?');
  const systems = second.requests.map(({ system }) => system);
  expect(systems).toEqual(Array(3).fill(systems[0]));
  expect([systems[0]?.includes('- law: For law.'), systems[0]?.includes('triage')]).toEqual([true, false]);
  expect(clerk.runState.shimState.get('skills:active')).toEqual(['law']);
});

describe('R101: what a helper gets', () => {
  it.each([
    [['activate_skill', 'read_skill_file'], ['activate_skill', 'read_skill_file'], true],
    [['other'], ['other'], false],
  ] as const)('of %j it has %j', async (tools, visible, isTold) => {
    skill('triage');
    const spawning = defineShim({
      name: 'spawning',
      inherit: 'none',
      prepareTurn: (turn) => {
        turn.addTools([agentTool(turn, { name: 'ask', description: 'Asks.', tools: [...tools] })]);
      },
    });
    const model = new ScriptedModel([call('ask', { task: 'x' }), 'from the helper', 'done']);
    const agent = new DefaultAgent({
      model,
      tools: [tool('other')],
      shims: [skills.create({ directories: [root] }), spawning],
    });
    await agent.run('hello');
    const helper = model.requests[1];
    expect(helper?.tools).toEqual(visible);
    expect(helper?.system?.includes('available_skills') ?? false).toBe(isTold);
  });
});

describe('over HTTP', () => {
  const TOOLS = `
import { defineShim, defineTool, z } from 'shimline/shims';
export default defineShim({
  name: 'tools',
  prepareTurn(turn) {
    turn.addTools([
      defineTool({ name: 'write', description: 'Writes.', parameters: z.object({}), needsApproval: true, execute: () => 'written' }),
      defineTool({ name: 'look', description: 'Looks.', parameters: z.object({}), execute: (_args, ctx) => ctx.activeSkillNames }),
    ]);
  },
});`;
  let model: ModelEndpoint;
  let server: ServerProcess;
  beforeAll(async () => {
    model = await ModelEndpoint.start();
    const shimsDir = temporaryFolder('shims-');
    writeFileSync(join(shimsDir, 'tools.mjs'), TOOLS);
    server = await ServerProcess.start({ env: model.environment, shimsDir });
  });
  afterAll(async () => {
    await Promise.all([server.stop(), model.close()]);
  });
  const save = async (config: unknown, name = 'clerk'): Promise<{ status: number; body: JsonObject }> =>
    server.json('PUT', `/v1/agents/${name}`, {
      model: 'anthropic/claude-sonnet-4-5',
      instructions: 'You are a clerk.',
      shims: [{ use: 'tools' }, { use: 'skills', config }],
    });
  const toolsOf = (index: number): string[] =>
    (model.requests.at(index)?.body.tools as { name: string }[]).map(({ name }) => name);

  it('a skill is activated, holds after a wait, a crash and for the next run, and its round is judged by what was active before', async () => {
    skill('reads', 'allowed-tools: look\n', 'Only look.');
    expect((await save({ directories: [root] })).status).toBe(201);
    const before = model.requests.length;
    model.script(
      {
        toolCalls: [
          { name: 'activate_skill', arguments: { name: 'reads' } },
          { name: 'write', arguments: {} },
        ],
      },
      { toolCalls: [{ name: 'look', arguments: {} }] },
      { text: 'lost', cut: { after: 'half-text', how: 'stall' } },
      { text: 'done' },
      { text: 'more' },
    );
    const { body: waiting } = await server.json('POST', '/v1/runs', { agent: 'clerk', input: 'hello' }, WAIT);
    expect(waiting.status).toBe('waiting');
    const [{ id }] = waiting.interruptions as [{ id: string }];
    const path = `/v1/runs/${String(waiting.id)}`;
    await server.json('POST', `${path}/resume`, { decisions: [{ id, decision: 'approve' }] });
    await waitFor(() => model.requests.length === before + 3);
    await server.kill9();
    await server.restart();
    expect(await ended({ server }, waiting.id)).toMatchObject({ status: 'completed', output: 'done', recoveries: 1 });
    const log = await logOf({ server }, waiting.id);
    expect(
      log
        .filter(({ type }) => type === 'tool.completed')
        .map(({ name, ok, result }) => [name, ok, name === 'activate_skill' || result]),
    ).toEqual([
      ['activate_skill', true, true],
      ['write', true, 'written'],
      ['look', true, ['reads']],
    ]);
    expect(log.filter(({ type }) => type === 'custom.skills.activated')).toHaveLength(1);
    const own = ['activate_skill', 'deactivate_skill', 'read_skill_file'];
    expect(toolsOf(before)).toEqual(['write', 'look', ...own]);
    expect(toolsOf(-1)).toEqual(['look', ...own]);
    const next = await server.json('POST', `${path}/resume`, { input: 'and now?' }, WAIT);
    expect([next.body.output, toolsOf(-1)]).toEqual(['more', ['look', ...own]]);
    const { body: state } = await server.json('GET', `${path}/state`);
    expect(state.shimState).toMatchObject({ 'skills:active': ['reads'] });
    expect(model.refusedRequests).toEqual([]);
  });

  it('a config without directories is a 422 that names the field', async () => {
    const { status, body } = await save({ directories: [] }, 'bad');
    expect([status, JSON.stringify(body.errors).includes('/shims/1/config/directories')]).toEqual([422, true]);
  });
});
