import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { Shim } from '../../src/agent/shim.js';
import type { Logger } from '../../src/agent/tools.js';
import { ValidationError } from '../../src/errors.js';
import { ModelRegistry } from '../../src/models/model-registry.js';
import { bindShims, checkAgent, checkTemplateValues } from '../../src/runtime/agent-check.js';
import { ShimLoader } from '../../src/runtime/shim-loader.js';
import { temporaryFolder } from '../support/wait.js';

const quiet: Logger = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
const models = new ModelRegistry({ idleTimeoutMs: 1000 });
let shims: ShimLoader;

beforeAll(async () => {
  const folder = temporaryFolder();
  writeFileSync(
    join(folder, 'picky.ts'),
    `import { Shim, defineShim, z } from 'shimline/shims';
    class Picky extends Shim { constructor(readonly name: string, readonly config: object) { super(); } }
    export default defineShim({ name: 'picky', config: z.object({ word: z.string(), deep: z.object({ many: z.array(z.int()) }).optional() }),
      create: (config, { name }) => { if (config.word === 'boom') throw new Error('no such word'); return new Picky(name, config); } });`,
  );
  shims = new ShimLoader({
    folders: [new URL('../../shims', import.meta.url).pathname, folder],
    watch: false,
    entryUrl: new URL('../../src/shims.ts', import.meta.url),
    log: quiet,
  });
  await shims.load();
  expect(shims.list().filter(({ state }) => state !== 'loaded')).toEqual([]);
});

const deps = (): Parameters<typeof checkAgent>[1] => ({ shims, models, agents: (name) => name === 'billing' });

function faultsOf(run: () => unknown): readonly { readonly pointer: string; readonly message: string }[] {
  try {
    run();
  } catch (error) {
    if (error instanceof ValidationError) return error.errors ?? [];
    throw error;
  }
  throw new Error('nothing was refused');
}
const saved = (body: object): ReturnType<typeof checkAgent>['descriptor'] =>
  checkAgent({ name: 'a', model: 'scripted/demo', ...body }, deps()).descriptor;
const refused = (body: unknown): ReturnType<typeof faultsOf> =>
  faultsOf(() =>
    checkAgent(
      typeof body === 'object' && body !== null && !Array.isArray(body)
        ? { name: 'a', model: 'scripted/demo', ...body }
        : body,
      deps(),
    ),
  );

describe('an agent that is saved', () => {
  it('is accepted with all that the contract shows', () => {
    const body = {
      name: 'clinical-assistant',
      description: 'Helps',
      model: 'scripted/demo',
      instructions: { template: 'You help {{ patient }}.', values: {} },
      shims: [
        { use: 'reply-prefix', config: { prefix: 'Care note:' } },
        { use: 'exclude-tools', as: 'no-bash', config: { names: ['bash'] } },
        { use: 'exclude-tools', config: { names: ['zsh'] } },
      ],
      tools: {
        toolChoice: 'auto',
        parallelToolCalls: true,
        toolCallTimeoutMs: 60000,
        toolCallMaxRetries: 0,
        toolCallLimits: { search: 3 },
        maxToolRoundTrips: 10,
      },
      modelArgs: { temperature: 0 },
      output: { type: 'object' },
      handoffs: ['billing'],
      limits: { maxTurns: 128, maxDurationMs: 3600000, maxTotalTokens: 2000000 },
      metadata: {},
    };
    expect(checkAgent(body, deps()).descriptor).toEqual(body);
  });

  it('takes its name from the path, and may repeat it but not contradict it', () => {
    expect(checkAgent({ model: 'scripted/demo' }, { ...deps(), name: 'b' }).descriptor.name).toBe('b');
    expect(checkAgent({ name: 'b', model: 'scripted/demo' }, { ...deps(), name: 'b' }).descriptor.name).toBe('b');
    expect(faultsOf(() => checkAgent({ name: 'c', model: 'scripted/demo' }, { ...deps(), name: 'b' }))).toEqual([
      { pointer: '/name', message: 'is "c", and the agent is saved as "b"' },
    ]);
  });

  it('R3: two shims of one name are refused, naming both positions; "as" gives the second its own', () => {
    const twice = [
      { use: 'turn-counter' },
      { use: 'clock' },
      { use: 'reply-prefix', as: 'clock' },
      { use: 'turn-counter' },
    ];
    expect(refused({ shims: twice })).toEqual([
      {
        pointer: '/shims/0',
        message: expect.stringContaining('/shims/0 and /shims/3 share the name "turn-counter"') as string,
      },
      { pointer: '/shims/3', message: expect.stringContaining('/shims/0 and /shims/3') as string },
      {
        pointer: '/shims/1',
        message: expect.stringContaining('/shims/1 and /shims/2 share the name "clock"') as string,
      },
      { pointer: '/shims/2', message: expect.stringContaining('/shims/1 and /shims/2') as string },
    ]);
    expect(saved({ shims: [{ use: 'turn-counter' }, { use: 'turn-counter', as: 'second' }] }).shims).toHaveLength(2);
  });

  it('names an unknown shim and those that are loaded', () => {
    expect(refused({ shims: [{ use: 'clock' }, { use: 'turn-counter' }, { use: 'cluck' }] })).toEqual([
      {
        pointer: '/shims/2/use',
        message: expect.stringMatching(
          /^there is no shim "cluck"; loaded are .*\bclock, .*\bpicky, .*\bturn-counter\b/,
        ) as string,
      },
    ]);
  });

  it('names shim, path and what was expected of a config', () => {
    expect(refused({ shims: [{ use: 'reply-prefix', as: 'note', config: { prefix: 7 } }] })).toEqual([
      { pointer: '/shims/0/config/prefix', message: 'shim "note": Invalid input: expected string, received number' },
    ]);
    expect(
      refused({
        shims: [
          { use: 'picky', config: { word: 'x', deep: { many: [1, 1.5] } } },
          { use: 'clock', config: { zone: 'UTC' } },
        ],
      }),
    ).toEqual([
      { pointer: '/shims/0/config/deep/many/1', message: expect.stringContaining('shim "picky"') as string },
      { pointer: '/shims/1/config', message: 'shim "clock": Unrecognized key: "zone"' },
    ]);
    expect(refused({ shims: [{ use: 'exclude-tools' }] })).toMatchObject([{ pointer: '/shims/0/config/names' }]);
    expect(refused({ shims: [{ use: 'picky', config: { word: 'boom' } }] })).toEqual([
      { pointer: '/shims/0/config', message: 'shim "picky" could not be made: no such word' },
    ]);
  });

  it('refuses an "as" that could reach into the keys of another shim', () => {
    expect(refused({ shims: [{ use: 'clock', as: 'turn-counter:version' }] })).toMatchObject([
      { pointer: '/shims/0/as' },
    ]);
  });

  it('names an unknown model', () => {
    expect(refused({ model: 'openai/gpt' })).toEqual([
      { pointer: '/model', message: expect.stringContaining('OPENAI_API_KEY') as string },
    ]);
    expect(refused({ model: 'nowhere' })).toMatchObject([{ pointer: '/model' }]);
  });

  it('names a handoff to nobody, to itself, and twice the same', () => {
    expect(refused({ handoffs: ['billing', 'a', 'nobody', 'billing'] })).toEqual([
      { pointer: '/handoffs/1', message: 'an agent cannot hand off to itself' },
      { pointer: '/handoffs/2', message: 'there is no agent "nobody"' },
      { pointer: '/handoffs/3', message: '"billing" is in the list already' },
    ]);
  });

  it('refuses a template and an output schema that are none', () => {
    expect(
      refused({ instructions: { template: 'Hi {{#who}}', values: {} }, output: { type: 'nonsense' } }),
    ).toMatchObject([
      { pointer: '/instructions/template' },
      { pointer: '/output', message: expect.stringContaining('JSON Schema') as string },
    ]);
    expect(
      refused({
        instructions: {
          template: [
            { role: 'system', content: 'ok' },
            { role: 'user', content: '{{' },
          ],
        },
      }),
    ).toMatchObject([{ pointer: '/instructions/template/1/content' }]);
  });

  it('reports faults of the shape by field, unknown fields and union members included', () => {
    const pointers = (body: object): string[] => refused(body).map(({ pointer }) => pointer);
    expect(pointers({ tools: { toolCallLimits: { search: -1 }, toolChoice: { type: 'tool' }, 'a/b~': 1 } })).toEqual([
      '/tools/toolChoice/toolName',
      '/tools/toolCallLimits/search',
      '/tools/a~1b~0',
    ]);
    expect(pointers({ instructions: { template: 1 } })).toEqual(['/instructions/template']);
    expect(pointers({ instructions: 5, name: 'a b', extra: true, shims: [{ config: {} }] })).toEqual([
      '/name',
      '/instructions',
      '/shims/0/use',
      '/extra',
    ]);
    for (const body of [null, [], 'text', undefined]) expect(refused(body)).toMatchObject([{ pointer: '' }]);
  });

  it('reports all faults at once, and the first few in the sentence', () => {
    const body = {
      name: 'a',
      model: 'x/y',
      nonsense: 1,
      handoffs: ['nobody'],
      shims: [{ use: 'gone' }, { use: 'clock' }, { use: 'clock' }, 'what'],
    };
    expect(refused(body).map(({ pointer }) => pointer)).toEqual([
      '/shims/3',
      '/nonsense',
      '/shims/0/use',
      '/shims/1',
      '/shims/2',
      '/model',
      '/handoffs/0',
    ]);
    expect(() => checkAgent(body, deps())).toThrow(/^The agent "a" is not valid: \/shims\/3: .*; and 4 more\.$/);
  });
});

describe('template values of a run', () => {
  it('come over those of the agent; a missing one is named', () => {
    const agent = saved({
      instructions: { template: 'You help {{ patient }}, {{ doctor.name }} and {{ ward }}.', values: { ward: 'A' } },
    });
    expect(checkTemplateValues(agent, { patient: 'Ada', doctor: { name: 'Bo' }, ward: 'B' })).toMatchObject({
      values: { patient: 'Ada', doctor: { name: 'Bo' }, ward: 'B' },
    });
    expect(faultsOf(() => checkTemplateValues(agent, {}))).toEqual([
      { pointer: '/values/patient', message: 'the instructions ask for {{ patient }}' },
      { pointer: '/values/doctor/name', message: 'the instructions ask for {{ doctor.name }}' },
    ]);
    expect(checkTemplateValues(saved({ instructions: 'Hi {{ you }}' }), {})).toBe('Hi {{ you }}');
  });
});

describe('the shims of an attempt', () => {
  it("are made in order under their names, with the hash of their code; a config of the run replaces the agent's", () => {
    const agent = saved({
      shims: [
        { use: 'picky', as: 'first', config: { word: 'a', deep: { many: [1] } } },
        { use: 'picky', config: { word: 'b' } },
        { use: 'clock' },
      ],
    });
    const bound = bindShims(agent, { first: { word: 'c' } }, shims);
    expect(bound.map(({ name, hash }) => [name, hash])).toEqual([
      ['first', shims.get('picky')?.hash],
      ['picky', shims.get('picky')?.hash],
      ['clock', shims.get('clock')?.hash],
    ]);
    expect(bound.every(({ shim }) => shim instanceof Shim)).toBe(true);
    expect(bound.slice(0, 2).map(({ shim }) => shim)).toMatchObject([
      { name: 'first', config: { word: 'c' } },
      { name: 'picky', config: { word: 'b' } },
    ]);
    expect((bound[0]!.shim as unknown as { config: object }).config).toEqual({ word: 'c' });
  });

  it('refuses a config of the run for a shim that is not there, or that its shim refuses', () => {
    const agent = saved({ shims: [{ use: 'picky', as: 'first', config: { word: 'a' } }] });
    expect(faultsOf(() => bindShims(agent, { picky: { word: 'x' }, first: { word: 1 } }, shims))).toEqual([
      { pointer: '/shims/picky', message: 'agent "a" has the shims first' },
      { pointer: '/shims/first/word', message: 'shim "first": Invalid input: expected string, received number' },
    ]);
    expect(faultsOf(() => bindShims(agent, { constructor: {}, first: { word: 'ok' } }, shims))).toMatchObject([
      { pointer: '/shims/constructor' },
    ]);
  });

  it('says so when the agent uses what was taken away since', () => {
    const agent = saved({ shims: [{ use: 'picky', config: { word: 'a' } }, { use: 'clock' }] });
    const without = { get: (name: string) => (name === 'clock' ? undefined : shims.get(name)), names: () => ['picky'] };
    expect(faultsOf(() => bindShims(agent, {}, without))).toEqual([
      { pointer: '/agent', message: 'shim "clock" of the agent: there is no shim "clock"; loaded are picky' },
    ]);
  });
});
