import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import excludeTools from '../../shims/exclude-tools.js';
import toolSearch from '../../shims/tool-search.js';
import { DefaultAgent } from '../../src/index.js';
import { defineShim, defineTool, internalMessage, type Tool, z } from '../../src/shims.js';
import { type ScriptedAnswer, ScriptedModel, testShim } from '../../src/testing.js';
import { putAgent, type Seam, startSeam } from '../rules/seam.js';
import { calling, callOf, ended, gate, logOf, resume, runToEnd, startRun } from '../server/lab.js';
import type { JsonObject } from '../support/json-path.js';
import { toolNamesOf, toolResultsOf } from '../support/request-view.js';
import { waitFor } from '../support/wait.js';

const tool = (name: string, description = '', parameters: z.ZodType = z.object({})): Tool =>
  defineTool({ name, description, parameters: parameters as z.ZodObject, execute: () => `${name} ran` });

const DOMAINS = [
  'invoice',
  'calendar',
  'patient',
  'repository',
  'warehouse',
  'payroll',
  'weather',
  'translation',
  'database',
  'shipment',
];
const VERBS = ['create', 'delete', 'list', 'update', 'archive', 'approve', 'export', 'import', 'share', 'rename'];
/** A hundred tools, such as `invoice_create`. */
const MANY = DOMAINS.flatMap((domain) =>
  VERBS.map((verb) => tool(`${domain}_${verb}`, `Can ${verb} each ${domain} of the company.`)),
);
const search = (...queries: string[]): ScriptedAnswer => ({
  toolCalls: queries.map((query) => ({ toolName: 'search_tools', input: { query } })),
});
const call = (...names: string[]): ScriptedAnswer => ({ toolCalls: names.map((toolName) => ({ toolName })) });
const none = { preselect: 0 };
type Run = Awaited<ReturnType<typeof testShim>>;
const results = ({ events }: Run): JsonObject[] => events.filter(({ type }) => type === 'tool.completed');
const foundIn = (event: JsonObject | undefined): string[] =>
  (event?.result as { readonly tools: readonly { readonly name: string }[] }).tools.map(({ name }) => name);

describe('tool-search', () => {
  it('does nothing up to the threshold, and hides what is beyond it', async () => {
    const few = await testShim(toolSearch, { tools: MANY.slice(0, 20) });
    expect(few.tools).toEqual([MANY.slice(0, 20).map(({ name }) => name)]);
    const many = await testShim(toolSearch, { config: none, tools: MANY.slice(0, 21) });
    expect(many.tools).toEqual([['search_tools']]);
    expect(await testShim(toolSearch)).toMatchObject({ tools: [[]], output: 'ok', state: {} });
  });

  it('what is found is shown from the next turn on, at the end, for the rest of the conversation', async () => {
    const run = await testShim(toolSearch, {
      config: { ...none, always: ['invoice_list'] },
      tools: MANY,
      script: [search('approve an invoice'), call('invoice_approve'), search('weather'), 'done'],
    });
    const [found, ran, more] = results(run);
    expect(foundIn(found)[0]).toBe('invoice_approve');
    expect(foundIn(found)).toHaveLength(5);
    expect(ran).toMatchObject({ ok: true, result: 'invoice_approve ran' });
    const base = ['invoice_list', 'search_tools'];
    const first = foundIn(found).filter((name) => name !== 'invoice_list');
    expect(run.tools).toEqual([base, [...base, ...first], [...base, ...first], [...base, ...first, ...foundIn(more)]]);
    expect(foundIn(more).every((name) => name.startsWith('weather'))).toBe(true);
    const next = await run.resume('more');
    expect(next.tools).toEqual([run.tools.at(-1)]);
    expect(next.state['tool-search']).toEqual({ found: [...first, ...foundIn(more)] });
  });

  it('R35 searches the tools of shims on either side of it, and those that are excluded are not there', async () => {
    const side = (name: string, ...tools: Tool[]): ReturnType<typeof defineShim> =>
      defineShim({
        name,
        prepareTurn: (turn) => {
          turn.addTools(tools);
        },
      });
    const run = await testShim(toolSearch, {
      config: { ...none, threshold: 2 },
      tools: [tool('own', 'a pelican')],
      before: [side('before', tool('early', 'a pelican'))],
      after: [
        side('after', tool('late', 'a pelican'), tool('gone', 'a pelican')),
        excludeTools.create({ names: ['gone'] }),
      ],
      script: [search('pelican'), call('late', 'gone'), 'done'],
    });
    expect(run.tools).toEqual([['search_tools'], ...Array<string[]>(2).fill(['search_tools', 'own', 'early', 'late'])]);
    expect(results(run).find(({ name }) => name === 'late')).toMatchObject({ ok: true, result: 'late ran' });
    expect(results(run).find(({ name }) => name === 'gone')).toMatchObject({ error: { kind: 'unknown_tool' } });
  });

  it('R45 a call of a hidden tool gets the answer to an unknown one, with the tools that are shown', async () => {
    const run = await testShim(toolSearch, {
      config: { ...none, always: ['payroll_list'] },
      tools: MANY,
      script: [
        call('invoice_create'),
        {
          toolCalls: [
            ...(search('create an invoice') as { toolCalls: object[] }).toolCalls,
            { toolName: 'invoice_create' },
          ] as never,
        },
        call('invoice_create'),
        'done',
      ],
    });
    const hidden = {
      ok: false,
      error: {
        kind: 'unknown_tool',
        message: 'There is no tool "invoice_create". The tools are: payroll_list, search_tools.',
      },
    };
    const events = results(run);
    expect(events[0]).toMatchObject(hidden);
    // In the answer that searches for it, it is still hidden.
    expect(events.filter(({ turn }) => turn === 2).find(({ name }) => name === 'invoice_create')).toMatchObject(hidden);
    expect(events.at(-1)).toMatchObject({ ok: true, result: 'invoice_create ran' });
  });

  it('finds by what a tool is for, by its parts, by its parameters, by its name, and with small mistakes', async () => {
    const special = [
      tool('gh__createPullRequest', 'Opens a proposal to merge a branch.'),
      tool('tz', 'Tells the time.', z.object({ ianaZone: z.string() })),
      tool('x1', 'Sends an electronic letter to somebody.'),
      tool('umlaut', 'Prüft die Überweisung.'),
    ];
    const queries = ['merge branches', 'pull request', 'iana zone', 'x1', 'electronik leter', 'überweisung'];
    const run = await testShim(toolSearch, {
      config: { ...none, results: 1 },
      tools: [...MANY, ...special],
      script: [search(...queries), 'done'],
    });
    expect(
      results(run)
        .toSorted((a, b) => Number(String(a.toolCallId).split('_')[1]) - Number(String(b.toolCallId).split('_')[1]))
        .map(foundIn),
    ).toEqual([['gh__createPullRequest'], ['gh__createPullRequest'], ['tz'], ['x1'], ['x1'], ['umlaut']]);
    expect(run.tools[1]?.toSorted()).toEqual(['gh__createPullRequest', 'search_tools', 'tz', 'umlaut', 'x1']);
  });

  it('says when nothing matches, and shortens what is long', async () => {
    const wordy = tool('wordy', `${'y'.repeat(299)}😀 and so on`);
    const run = await testShim(toolSearch, {
      config: none,
      tools: [...MANY, wordy],
      script: [search('qqqqq', 'wordy'), 'done'],
    });
    expect(results(run)[0]).toMatchObject({ ok: true, result: expect.stringContaining('No tool matches') as string });
    expect(results(run)[1]).toMatchObject({
      result: { tools: [{ name: 'wordy', description: `${'y'.repeat(299)}…` }] },
    });
  });

  it('begins with the tools that fit the input, once for an agent and conversation', async () => {
    const hidden = internalMessage({ role: 'user' as const, content: 'weather' }, { origin: 'x' });
    const run = await testShim(toolSearch, {
      config: { preselect: 2 },
      tools: MANY,
      input: ['Export the payroll, please.', hidden],
    });
    expect(run.tools[0]?.slice(0, 2)).toEqual(['search_tools', 'payroll_export']);
    expect(run.tools[0]).toHaveLength(3);
    const next = await run.resume('Now approve the invoice.');
    expect(next.tools).toEqual(run.tools);
    const parts = await testShim(toolSearch, {
      config: { preselect: 1 },
      tools: MANY,
      input: {
        role: 'user',
        content: [
          { type: 'text', text: 'Rename the database.' },
          { type: 'image', image: 'aGk=', mediaType: 'image/png' },
        ],
      },
    });
    expect(parts.tools).toEqual([['search_tools', 'database_rename']]);
  });

  it('always shows what the config names, a tool that is asked for, and the way to another agent', async () => {
    const other = new DefaultAgent({ name: 'other', model: new ScriptedModel() });
    const run = await testShim(toolSearch, {
      config: { ...none, always: ['payroll_*', '*_share', 'a.c'] },
      tools: [...MANY, tool('abc')],
      handoffs: [other],
      toolSettings: { toolChoice: { type: 'tool', toolName: 'weather_list' } },
    });
    expect(run.tools[0]).toEqual([
      ...MANY.map(({ name }) => name).filter(
        (name) => name.startsWith('payroll_') || name.endsWith('_share') || name === 'weather_list',
      ),
      'handoff_to_other',
      'search_tools',
    ]);
  });

  it('hides again what was found longest ago, beyond so many', async () => {
    const run = await testShim(toolSearch, {
      config: { ...none, results: 2, maxFound: 3 },
      tools: MANY,
      script: [search('invoice_create'), search('payroll_list'), search('invoice_create'), 'done'],
    });
    const [a, b] = [foundIn(results(run)[0]), foundIn(results(run)[1])];
    expect(run.tools.slice(2)).toEqual([
      ['search_tools', a[1], b[0], b[1]],
      ['search_tools', a[1], b[1], a[0]],
    ]);
  });

  it('hides nothing where the tool that searches is excluded or would not be there', async () => {
    const run = await testShim(toolSearch, {
      config: none,
      tools: MANY,
      after: [excludeTools.create({ names: ['search_tools'] })],
    });
    expect(run.tools[0]).toHaveLength(100);
  });

  it('R38 another tool of its name is a collision; under another name it is not', async () => {
    const clash = await testShim(toolSearch, { tools: [tool('search_tools')] });
    expect(clash.error).toMatchObject({ shim: 'tool-search' });
    const renamed = await testShim(toolSearch, {
      config: { ...none, tool: 'find_tools', hint: 'Tools for bakers.' },
      tools: [...MANY, tool('search_tools')],
    });
    expect(renamed.tools).toEqual([['find_tools']]);
    expect(renamed.requests[0]?.options.tools).toMatchObject([
      { description: expect.stringMatching(/ Tools for bakers\.$/) as string },
    ]);
  });

  it('tells the model the same of itself in every turn', async () => {
    const run = await testShim(toolSearch, {
      config: none,
      tools: MANY,
      script: [search('invoice'), search('payroll'), 'done'],
    });
    const shown = run.requests.map(({ options }) => JSON.stringify(options.tools?.[0]));
    expect(new Set(shown).size).toBe(1);
  });
});

describe('in the server', () => {
  let seam: Seam;
  const many = `
  const names = ${JSON.stringify(MANY.map(({ name, description }) => [name, description]))};
  export default defineShim({
    name: 'many',
    prepareTurn(turn) {
      for (let part = 0; part < 3; part += 1)
        turn.addTools(names.map(([name, description]) => defineTool({
          name: name + (part === 0 ? '' : '_' + part), description, parameters: z.object({ id: z.string().optional() }), onCrash: 'retry',
          execute: async (args, ctx) => { await tell(name, {}, ctx.signal); return name + ' ran'; },
        })));
    },
  });`;
  beforeAll(async () => {
    seam = await startSeam({ many });
    for (const model of ['openai-compatible/m', 'anthropic/claude-sonnet-4-5', 'openai/gpt-5'])
      await putAgent(seam, `of-${model.split('/')[0] ?? ''}`, {
        model,
        shims: [{ use: 'tool-search', config: { preselect: 1 } }, 'many', 'prompt-cache'],
      });
  });
  afterEach(() => {
    expect(seam.model.refusedRequests).toEqual([]);
    expect(seam.model.unusedReplies).toBe(0);
  });
  afterAll(async () => {
    await seam.close();
  });
  const shown = (back = 1): readonly string[] => toolNamesOf(seam.model.requests.at(-back)!);
  const searching = calling(callOf('search_tools', { query: 'shipment_approve' }));

  it.each([['of-openai-compatible'], ['of-anthropic'], ['of-openai']])(
    'R45 %s: of three hundred tools it is given few, finds others, and a hidden one is unknown to it',
    async (agent) => {
      seam.model.script(calling(callOf('weather_list')), searching, calling(callOf('shipment_approve')), {
        text: 'done',
      });
      const run = await runToEnd(seam, { agent, input: 'payroll_export' });
      expect(run).toMatchObject({ status: 'completed', output: 'done' });
      expect(shown(4)).toEqual(['search_tools', 'payroll_export']);
      expect(shown(1).slice(0, 3)).toEqual(['search_tools', 'payroll_export', 'shipment_approve']);
      expect(shown(1)).toHaveLength(7);
      const texts = toolResultsOf(seam.model.requests.at(-1)!).map(({ text }) => text);
      expect(texts[0]).toContain('There is no tool "weather_list". The tools are: search_tools, payroll_export.');
      expect(texts[2]).toBe('shipment_approve ran');
      seam.model.script({ text: 'again' });
      await resume(seam, run.id, { input: 'more' });
      expect(shown()).toEqual(shown(2));
      const { body } = await seam.server.json('GET', `/v1/runs/${String(run.id)}/effects`);
      expect(body.data).toContainEqual(
        expect.objectContaining({ shim: 'tool-search', turn: 1, callback: 'prepareTurn' }) as unknown,
      );
    },
  );

  it('failure K01 after kill -9, between turns and inside a call of a found tool, what was found is still shown', async () => {
    const held = gate();
    seam.model.script(searching, { text: 'lost', gate: held.gate });
    const { body } = await startRun(seam, { agent: 'of-openai-compatible', input: 'payroll_export' });
    await waitFor(() => seam.model.unusedReplies === 0 && seam.model.openRequests === 1);
    const before = shown();
    await seam.server.kill9();
    held.open();
    const block = seam.ledger.blockBefore('shipment_approve');
    seam.model.script(calling(callOf('shipment_approve')));
    await seam.server.restart();
    await block.reached;
    expect(shown()).toEqual(before);
    await seam.server.kill9();
    block.release();
    seam.model.script({ text: 'done' });
    await seam.server.restart();
    expect(await ended(seam, body.id)).toMatchObject({ status: 'completed', output: 'done', recoveries: 2 });
    expect(shown()).toEqual(before);
    expect(toolResultsOf(seam.model.requests.at(-1)!).at(-1)?.text).toBe('shipment_approve ran');
    expect((await logOf(seam, body.id)).filter(({ type }) => type === 'shim.failed')).toEqual([]);
  });
});
