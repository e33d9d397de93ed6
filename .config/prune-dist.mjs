// Removes compiled files whose source is gone. The server loads every module in dist/shims, so a shim that
// was deleted or renamed must not live on there, and `tsc` never deletes what it once wrote. The ready agents, which it does
// not know, are put beside them.
import { cpSync, existsSync, readdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');

for (const folder of ['src', 'shims']) {
  const compiled = join(root, 'dist', folder);
  if (!existsSync(compiled)) continue;
  for (const path of readdirSync(compiled, { recursive: true, encoding: 'utf8' })) {
    const stem = /^(.*?)(?:\.d\.ts|\.js)$/.exec(path)?.[1];
    const source = join(root, folder, stem === undefined ? path : `${stem}.ts`);
    if (!existsSync(source)) rmSync(join(compiled, path), { recursive: true, force: true });
  }
}

cpSync(join(root, 'src/presets'), join(root, 'dist/src/presets'), { recursive: true });
