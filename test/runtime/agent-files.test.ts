import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { ModelRegistry } from '../../src/models/model-registry.js';
import { type AgentFiles, readAgentFiles } from '../../src/runtime/agent-files.js';
import { temporaryFolder } from '../support/wait.js';

const models = new ModelRegistry({ idleTimeoutMs: 1000 });
const noShims = { get: () => undefined, names: () => [] };

let folder: string;
beforeEach(() => {
  folder = temporaryFolder();
});
const write = (file: string, text: string): void => {
  writeFileSync(join(folder, file), text);
};
const read = async (): Promise<AgentFiles> =>
  readAgentFiles(folder, { shims: noShims, models, agents: (name) => name === 'saved' });

describe('agent files', () => {
  it('are read from JSON and from Markdown with front matter, named by the file where they give no name', async () => {
    write('json.json', '{ "model": "scripted/demo", "instructions": "Be brief." }');
    write('named.json', '{ "name": "other", "model": "scripted/demo" }');
    write(
      'page.md',
      '---\nmodel: scripted/demo\ndescription: "A: b"\nlimits:\n  maxTurns: 3\nhandoffs: [json, saved]\n---\n\n# You\n\n---\n\nYou are **kind**.\n',
    );
    write('windows.md', '\uFEFF---\r\nmodel: scripted/demo\r\n---\r\nHello\r\nyou\r\n');
    write('template.md', '---\nmodel: scripted/demo\nvalues:\n  ward: A\n---\nHelp {{ patient }} on {{ ward }}.\n');
    write('bare.md', '---\nmodel: scripted/demo\n---\n');
    for (const skipped of ['README.md', '_draft.json', '.hidden.json', 'notes.txt', 'a.json~'])
      write(skipped, 'not an agent');
    mkdirSync(join(folder, 'sub.json'));
    const { agents, faults } = await read();
    expect(faults).toMatchObject([{ file: join(folder, 'sub.json') }]);
    expect(agents.map(({ descriptor: { name, instructions } }) => [name, instructions])).toEqual([
      ['bare', ''],
      ['json', 'Be brief.'],
      ['other', ''],
      ['page', '# You\n\n---\n\nYou are **kind**.'],
      ['template', { template: 'Help {{ patient }} on {{ ward }}.', values: { ward: 'A' } }],
      ['windows', 'Hello\r\nyou'],
    ]);
    expect(agents[3]).toMatchObject({
      file: join(folder, 'page.md'),
      descriptor: { description: 'A: b', limits: { maxTurns: 3 }, handoffs: ['json', 'saved'] },
    });
  });

  it('that are broken are reported with the file and what, and do not stop the others', async () => {
    write('a-good.json', '{ "model": "scripted/demo" }');
    write('b-json.json', '{\n  "model": "scripted/demo",\n}');
    write('c-front.md', '# Just a page\n');
    write('d-open.md', '---\nmodel: scripted/demo\n');
    write('e-yaml.md', '---\nmodel: scripted/demo\nlimits: [\n---\nText');
    write('f-list.md', '---\n- model\n---\nText');
    write('g-twice.md', '---\nmodel: scripted/demo\ninstructions: a\n---\nb');
    write('h-same.json', '{ "name": "a-good", "model": "scripted/demo" }');
    write('i-agent.json', '{ "model": "no/model", "shims": [{ "use": "gone" }] }');
    write('bad name.json', '{ "model": "scripted/demo" }');
    const { agents, faults } = await read();
    expect(agents.map(({ descriptor }) => descriptor.name)).toEqual(['a-good']);
    const message = (file: string): string | undefined =>
      faults.find((fault) => fault.file === join(folder, file))?.message;
    expect(message('b-json.json')).toContain('no valid JSON in line 3');
    expect(message('c-front.md')).toContain('there is no front matter');
    expect(message('d-open.md')).toContain('there is no front matter');
    expect(message('e-yaml.md')).toMatch(/^the front matter is no valid YAML in line \d: /);
    expect(message('f-list.md')).toContain('must be a list of fields');
    expect(message('g-twice.md')).toContain('given twice');
    expect(message('h-same.json')).toContain(`"a-good" is in ${join(folder, 'a-good.json')} already`);
    expect(faults.find(({ file }) => file.endsWith('i-agent.json'))?.errors.map(({ pointer }) => pointer)).toEqual([
      '/shims/0/use',
      '/model',
    ]);
    expect(faults.find(({ file }) => file.endsWith('bad name.json'))?.errors.map(({ pointer }) => pointer)).toEqual([
      '/name',
    ]);
    expect(faults).toHaveLength(9);
  });

  it('may hand off to each other, in a circle too, but not to a broken one', async () => {
    write('a.json', '{ "model": "scripted/demo", "handoffs": ["b"] }');
    write('b.json', '{ "model": "scripted/demo", "handoffs": ["a"] }');
    write('c.json', '{ "model": "scripted/demo", "handoffs": ["d"] }');
    write('d.json', '{ "model": "scripted/demo", "handoffs": ["e"] }');
    write('e.json', '{ "model": "no/model" }');
    const { agents, faults } = await read();
    expect(agents.map(({ descriptor }) => descriptor.name)).toEqual(['a', 'b']);
    expect(faults.map(({ errors }) => errors[0]?.message)).toEqual([
      expect.stringContaining('no/model'),
      'there is no agent "e"',
      'there is no agent "d"',
    ]);
  });

  it('of a folder that is not there are a fault', async () => {
    const gone = join(folder, 'gone');
    expect(await readAgentFiles(gone, { shims: noShims, models, agents: () => false })).toEqual({
      agents: [],
      faults: [{ file: gone, message: expect.stringContaining('cannot be read') as string, errors: [] }],
    });
  });
});
