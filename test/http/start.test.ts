import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../support/wait.js';

const server = fileURLToPath(new URL('../../dist/src/server.js', import.meta.url));

interface End {
  readonly code: unknown;
  readonly stdout: string;
  readonly stderr: string;
}

async function start(env: Readonly<Record<string, string>>): Promise<End> {
  const options = { cwd: temporaryFolder('start-'), env: { PATH: process.env.PATH ?? '', ...env } };
  return new Promise((resolve) => {
    execFile(process.execPath, [server], options, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : error.code, stdout, stderr });
    });
  });
}

it('says every fault of the environment in one line each, and ends with 1', async () => {
  const end = await start({ PORT: 'eighty', HOST: '0.0.0.0', API_KEYS: '', SHIMS_WATCH: 'yes' });
  expect(end).toEqual({
    code: 1,
    stdout: '',
    stderr: [
      'PORT: must be a whole number from 0 to 65535',
      'SHIMS_WATCH: must be true or false',
      'HOST: "0.0.0.0" is not loopback, so API_KEYS must be set (or AUTH=none, to let everyone in)',
      '',
    ].join('\n'),
  });
});
