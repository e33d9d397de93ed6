import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeAll, expect, it } from 'vitest';
import { ServerProcess, stopAll } from './server-process.js';
import { temporaryFolder, waitFor, within } from './wait.js';

const program = `
import { createServer } from 'node:http';
import { appendFileSync, readdirSync } from 'node:fs';
if (process.env.FAIL) { process.stderr.write('bad setting FAIL'); process.exit(3); }
if (process.env.MUTE) setInterval(() => {}, 1000);
else {
  appendFileSync(process.env.DATA_DIR + '/starts', process.pid + ' ');
  const server = createServer((request, response) => {
    if (request.url === '/die') process.exit(7);
    if (request.url === '/hang') return;
    response.setHeader('content-type', 'application/json');
    const agents = process.env.AGENTS_DIR ? readdirSync(process.env.AGENTS_DIR) : [];
    response.end(JSON.stringify({ method: request.method, env: Object.keys(process.env).sort(), agents }));
  });
  server.listen(Number(process.env.PORT), process.env.HOST, () => {
    console.log('not json');
    console.log(JSON.stringify({ level: 30, msg: 'listening', url: 'http://127.0.0.1:' + server.address().port }));
  });
  process.on('SIGTERM', () => process.env.DEAF ? undefined : process.exit(5));
}`;

let entry = '';
beforeAll(() => {
  entry = join(temporaryFolder(), 'program.mjs');
  writeFileSync(entry, program);
});
afterEach(stopAll);

it('starts with a clean environment and answers', async () => {
  const agents = [{ name: 'a', model: 'scripted/demo' }];
  const server = await ServerProcess.start({ entry, env: { EXTRA: '1' }, agents });
  const answer = await server.json('POST', '/x', { y: 1 }, { 'idempotency-key': 'k' });
  expect(answer).toMatchObject({ status: 200, headers: { 'content-type': 'application/json' } });
  expect(answer.body).toEqual({
    method: 'POST',
    env: ['AGENTS_DIR', 'DATA_DIR', 'EXTRA', 'HOME', 'HOST', 'NODE_ENV', 'PATH', 'PORT'],
    agents: ['a.json'],
  });
  expect([server.logs.length, server.logObjects().length, server.isRunning]).toEqual([2, 1, true]);
});

it('is killed, started again on the same data and port, and ended with its exit code', async () => {
  const server = await ServerProcess.start({ entry });
  const { url, pid } = server;
  expect(await server.kill9()).toEqual({ code: undefined, signal: 'SIGKILL' });
  await server.restart({ env: { MORE: '1' } });
  expect([server.url, server.pid === pid, (await server.json('GET', '/')).status]).toEqual([url, false, 200]);
  expect(readFileSync(join(server.dataDir, 'starts'), 'utf8')).toBe(`${pid} ${server.pid} `);
  expect(await server.term()).toBe(5);
  expect(server.isRunning).toBe(false);
});

it('a start that fails says why', async () => {
  await expect(ServerProcess.start({ entry, env: { FAIL: '1' } })).rejects.toThrow(
    /ended \(3\).*\n.*bad setting FAIL/s,
  );
  const mute = ServerProcess.start({ entry, env: { MUTE: '1' }, startTimeoutMs: 300 });
  await expect(mute).rejects.toThrow('waited 300 ms for the server to listen');
});

it('a call that is pending when the process dies is rejected with the log', async () => {
  const server = await ServerProcess.start({ entry });
  await expect(server.fetch('/die')).rejects.toThrow(/the server died \(7\) during GET \/die\n.*not json/s);
  await server.restart();
  const pending = server.json('GET', '/hang');
  const [, outcome] = await Promise.all([server.kill9(), pending.catch((error: unknown) => String(error))]);
  expect(outcome).toContain('the server died (SIGKILL) during GET /hang');
});

it('stops a server that does not hear SIGTERM', async () => {
  const server = await ServerProcess.start({ entry, env: { DEAF: '1' } });
  const { pid } = server;
  await expect(server.term(100)).rejects.toThrow('waited 100 ms');
  await server.kill9();
  expect(existsSync(`/proc/${pid}`)).toBe(false);
});

it('waits say what they waited for', async () => {
  await expect(waitFor(() => undefined, { timeoutMs: 20, everyMs: 5, what: 'rain' })).rejects.toThrow(
    'waited 20 ms for rain',
  );
  await expect(within(new Promise(() => undefined), 20, 'snow')).rejects.toThrow('waited 20 ms for snow');
  let tries = 0;
  expect(await waitFor(() => (++tries === 3 ? tries : undefined), { everyMs: 1 })).toBe(3);
});
