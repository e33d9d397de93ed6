import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, it } from 'vitest';
import { loadedShim } from '../../src/runtime/shim-definition.js';
import { type ContractOptions, shimContractTests } from '../../src/testing.js';

const folder = join(import.meta.dirname, '../../shims');
const program = join(import.meta.dirname, '../support/mcp-program.mjs');

/** What the shims need that cannot do without a config. A new shim is found by itself. */
const OPTIONS: Readonly<Record<string, ContractOptions>> = {
  mcp: { config: { servers: { prog: { command: process.execPath, args: [program], required: true } } } },
  // So little that it has something to do.
  compaction: { config: { triggerTokens: 30, keepTokens: 5 } },
  approval: { config: { otherwise: 'allow' } },
  skills: { config: { directories: [join(import.meta.dirname, 'skills-sample')] } },
  'exclude-tools': { config: { names: ['contract_hidden'] } },
};

const files = readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
  if (entry.isDirectory())
    return readdirSync(join(folder, entry.name)).includes('index.ts') ? [`${entry.name}/index.ts`] : [];
  return entry.name.endsWith('.ts') ? [entry.name] : [];
});

for (const file of files) {
  const module = (await import(pathToFileURL(join(folder, file)).href)) as { readonly default: never };
  const shim = loadedShim(module.default, { file, hash: '' });
  shimContractTests(() => module.default, { ...OPTIONS[shim.name], title: shim.name });

  describe(shim.name, () => {
    it('says what each field of its config is for', () => {
      const fields = (shim.configSchema.properties ?? {}) as Readonly<
        Record<string, { readonly description?: string }>
      >;
      const silent = Object.entries(fields).filter(([, field]) => (field.description ?? '') === '');
      expect(silent.map(([name]) => name)).toEqual([]);
    });
    it('says what it is for', () => {
      expect(shim.description).not.toBe('');
    });
  });
}
