import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { backUp } from './store/backup.js';

/** `npm run backup -- FILE`: a consistent copy of the database of `DATA_DIR`, while the server serves or not. */
const [target] = process.argv.slice(2);
if (target === undefined) {
  process.stderr.write('usage: npm run backup -- FILE\n');
  process.exit(2);
}
try {
  if (process.env.NODE_ENV !== 'production' && existsSync('.env')) process.loadEnvFile('.env');
  const { bytes } = backUp(resolve(process.env.DATA_DIR ?? './data'), resolve(target));
  process.stdout.write(`${resolve(target)}: ${bytes} bytes\n`);
} catch (error) {
  process.stderr.write(`No backup was made: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}
