// Runs dependency-cruiser, and fails as well when it did not see every source file: with a TypeScript it
// cannot read it reports "no violations (0 modules)" and exits 0.
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cruise } from 'dependency-cruiser';
import extractOptions from 'dependency-cruiser/config-utl/extract-depcruise-options';
import extractTsConfig from 'dependency-cruiser/config-utl/extract-ts-config';

process.chdir(join(dirname(fileURLToPath(import.meta.url)), '..'));

const folders = ['src', 'shims'].filter((folder) => existsSync(folder));
const files = folders.flatMap((folder) =>
  readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => /\.[cm]?ts$/.test(file))
    .map((file) => `${folder}/${file}`),
);

const options = await extractOptions('./.config/dependency-cruiser.cjs');
const { output } = await cruise(folders, options, undefined, { tsConfig: extractTsConfig('tsconfig.json') });

const seen = new Set(output.modules.map((module) => module.source));
const unseen = files.filter((file) => !seen.has(file));
const { violations, totalDependenciesCruised } = output.summary;

for (const { rule, from, to, cycle } of violations) {
  const path = cycle === undefined ? [to] : cycle.map((step) => step.name ?? step);
  console.error(`${rule.name}: ${[from, ...path].join(' -> ')}`);
}
for (const file of unseen) console.error(`not seen by dependency-cruiser: ${file}`);
if (files.length === 0) console.error('no source file was found: this check checked nothing');

console.log(`${files.length} source files, ${totalDependenciesCruised} dependencies, ${violations.length} violations`);
process.exitCode = violations.length > 0 || unseen.length > 0 || files.length === 0 ? 1 : 0;
