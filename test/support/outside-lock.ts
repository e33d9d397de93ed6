import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

const PROGRAM = `
const database = new (require('better-sqlite3'))(process.argv[1], { timeout: 10_000 });
database.exec('BEGIN EXCLUSIVE');
process.stdout.write('locked\\n');
process.stdin.resume().once('end', () => {
  database.exec('ROLLBACK');
  database.close();
});
`;

export interface OutsideLock {
  release(): Promise<void>;
}

/** A second process holds the write lock of a data folder's database, as a careless tool would. */
export async function lockFromOutside(dataDir: string): Promise<OutsideLock> {
  const child = spawn(process.execPath, ['-e', PROGRAM, join(dataDir, 'shimline.db')], {
    cwd: root,
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const [first] = (await Promise.race([once(child.stdout, 'data'), exited])) as unknown[];
  if (!Buffer.isBuffer(first)) throw new Error('the database could not be locked');
  return {
    release: async () => {
      child.stdin.end();
      await exited;
    },
  };
}
