import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import ts from 'typescript';
import { afterAll, describe, expect, it } from 'vitest';
import { AgentDescriptorSchema } from '../../src/agent/descriptor.js';
import { type TestableShim, testShim } from '../../src/testing.js';

const root = join(import.meta.dirname, '../..');
const guide = readFileSync(join(root, 'shims/README.md'), 'utf8');

/** A block of code with the heading it stands under; named blocks are files that others import. */
interface Block {
  readonly heading: string;
  readonly language: string;
  readonly file: string;
  readonly code: string;
}

function blocksOf(text: string): readonly Block[] {
  const blocks: Block[] = [];
  let heading = '';
  const pattern = /^#+ (?<heading>.+)$|^```(?<language>\w+)(?: file=(?<file>\S+))?\n(?<code>[\s\S]*?)^```$/gm;
  for (const { groups } of text.matchAll(pattern)) {
    heading = groups?.heading ?? heading;
    const { language, code } = groups ?? {};
    if (language === undefined || code === undefined) continue;
    blocks.push({ heading, language, code, file: groups?.file ?? `block-${blocks.length + 1}.ts` });
  }
  return blocks;
}

const blocks = blocksOf(guide);
const code = blocks.filter(({ language }) => language === 'ts');

// Inside the package, where `shimline/shims` is the package itself, and outside of what git and the linters see.
mkdirSync(join(root, 'dist'), { recursive: true });
const folder = mkdtempSync(join(root, 'dist', 'guide-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
for (const block of code) writeFileSync(join(folder, block.file), block.code);

describe('the guide', () => {
  it('has blocks of known languages, and no file twice', () => {
    expect([...new Set(blocks.map(({ language }) => language))].sort()).toEqual(['json', 'text', 'ts']);
    expect(guide.match(/^```/gm)).toHaveLength(blocks.length * 2);
    expect(new Set(code.map(({ file }) => file)).size).toBe(code.length);
  });

  // The compiler reads all of the project's types: seconds, and many of them beside other work.
  it('has TypeScript that compiles as strictly as the project', { timeout: 240_000 }, () => {
    const config = ts.getParsedCommandLineOfConfigFile(
      join(root, 'test/tsconfig.json'),
      {},
      { ...ts.sys, onUnRecoverableConfigFileDiagnostic: () => undefined },
    );
    const program = ts.createProgram(
      code.map(({ file }) => join(folder, file)),
      { ...config?.options, noEmit: true },
    );
    const diagnostics = code.flatMap(({ file }) => {
      const source = program.getSourceFile(join(folder, file));
      return [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
    });
    const told = diagnostics.map(({ file, start = 0, messageText }) => {
      const line = file?.getLineAndCharacterOfPosition(start).line ?? 0;
      return `${basename(file?.fileName ?? '')}:${line + 1} ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
    });
    expect(told).toEqual([]);
  });

  it('has agents that would be saved, in its JSON', () => {
    const documents = blocks
      .filter(({ language }) => language === 'json')
      .map((block) => JSON.parse(block.code) as object);
    const agents = documents.filter((document) => !('input' in document));
    for (const agent of agents) AgentDescriptorSchema.parse({ name: 'guide', model: 'x/y', ...agent });
    expect([documents.length, agents.length]).toEqual([5, 4]);
  });

  it('has links to headings that are there', () => {
    const anchors = [...guide.matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
      heading
        .toLowerCase()
        .replace(/[^\w\s-]/g, '')
        .replace(/\s/g, '-'),
    );
    const links = [...guide.matchAll(/\]\(#([^)]+)\)/g)].map(([, anchor]) => anchor);
    expect(links.filter((link) => !anchors.includes(link ?? ''))).toEqual([]);
  });
});

for (const block of code) {
  const url = pathToFileURL(join(folder, block.file)).href;
  // A block with tests of its own registers them; a shim is run; anything else must at least load.
  const registers = /from 'vitest'|shimContractTests\(/.test(block.code);
  describe(`the guide, ${block.heading}: ${block.file}`, async () => {
    if (registers) {
      await import(url);
      return;
    }
    it('runs', async () => {
      const module = (await import(url)) as { readonly default?: TestableShim };
      if (module.default === undefined) return;
      const run = await testShim(module.default, { otherwise: 'ok' });
      expect([run.error, run.output]).toEqual([undefined, 'ok']);
    });
  });
}
