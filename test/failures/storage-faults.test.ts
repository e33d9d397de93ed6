import { createHash } from 'node:crypto';
import { closeSync, existsSync, openSync, readFileSync, statSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import {
  calling,
  callOf,
  ended,
  getRun,
  interruptionIds,
  type Lab,
  logOf,
  resume,
  runToEnd,
  startLab,
  startRun,
} from '../server/lab.js';
import { editDatabase, integrityOf } from '../support/database-check.js';
import { lockFromOutside, type OutsideLock } from '../support/outside-lock.js';
import { type JsonAnswer, ServerProcess } from '../support/server-process.js';
import { mountSmallDisk, type SmallDisk, whyNoSmallDisk } from '../support/small-disk.js';
import { temporaryFolder, waitFor } from '../support/wait.js';

const closers: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

async function lab(options: Parameters<typeof startLab>[0] = {}): Promise<Lab> {
  const started = await startLab(options);
  closers.push(async () => started.close());
  return started;
}

function disk(megabytes = 16): SmallDisk {
  const made = mountSmallDisk(megabytes);
  closers.push(() => {
    made.unmount();
  });
  return made;
}

async function lock(dataDir: string): Promise<OutsideLock> {
  const held = await lockFromOutside(dataDir);
  closers.push(async () => held.release());
  return held;
}

function assertUnavailable(answer: JsonAnswer): void {
  expect(answer, JSON.stringify(answer.body)).toMatchObject({
    status: 503,
    body: { code: 'storage_unavailable', status: 503 },
    headers: { 'content-type': expect.stringMatching(/^application\/problem\+json/) as string },
  });
  expect(Number(answer.headers['retry-after'])).toBeGreaterThan(0);
}

const status = async ({ server }: Lab, path: string): Promise<number> => (await server.json('GET', path)).status;

async function readyAgain(of: Lab): Promise<void> {
  await waitFor(async () => (await status(of, '/readyz')) === 200, { timeoutMs: 10_000, what: '/readyz to be 200' });
}

/** While writes cannot be made: they are refused and nothing else is. */
async function assertOnlyWritesFail(of: Lab, finished: unknown, running: unknown): Promise<void> {
  const { server } = of;
  assertUnavailable(await startRun(of, {}));
  assertUnavailable(await resume(of, finished, { input: 'more' }, {}));
  assertUnavailable(await server.json('DELETE', `/v1/runs/${String(running)}`));
  assertUnavailable(await server.json('PUT', '/v1/agents/other', { model: 'scripted/demo' }));
  assertUnavailable(await server.json('DELETE', `/v1/runs/${String(finished)}?purge=true`));
  expect(await status(of, '/readyz')).toBe(503);
  for (const path of ['/healthz', '/metrics', '/v1/runs', '/v1/agents', `/v1/runs/${String(finished)}`]) {
    expect([path, await status(of, path)]).toEqual([path, 200]);
  }
  for (const part of ['events', 'state', 'checkpoints', 'effects']) {
    const path = `/v1/runs/${String(finished)}/${part}`;
    expect([path, await status(of, path)]).toEqual([path, 200]);
  }
}

describe('a lock that another process holds', () => {
  it('failure R16: refuses writes with 503, serves reads, pauses the runs, and goes on where they were', async () => {
    const here = await lab();
    const finished = await runToEnd(here, {});
    here.model.script(calling(callOf('unknown_tool', { n: 1 })), { text: 'after the lock' });
    const block = here.ledger.blockBefore('unknown');
    const { body } = await startRun(here, {});
    await block.reached;
    const requestsBefore = here.model.requests.length;
    const held = await lock(here.server.dataDir);
    block.release();
    await assertOnlyWritesFail(here, finished.id, body.id);
    const lastSeq = (await getRun(here, body.id)).lastSeq;
    expect((await getRun(here, body.id)).lastSeq).toBe(lastSeq);
    // The next model call may be under way, nothing that has an effect may.
    expect(here.model.requests.length - requestsBefore).toBeLessThanOrEqual(1);
    const pid = here.server.pid;
    await held.release();
    await readyAgain(here);
    expect(await ended(here, body.id)).toMatchObject({
      status: 'completed',
      output: 'after the lock',
      attempt: 1,
      recoveries: 0,
    });
    expect(here.ledger.count('unknown')).toBe(1);
    await logOf(here, body.id);
    expect(await resume(here, finished.id, { input: 'more' })).toMatchObject({
      status: 200,
      body: { status: 'completed', attempt: 2 },
    });
    expect(here.server.pid).toBe(pid);
    expect(integrityOf(here.server.dataDir)).toBe('ok');
  });

  it('is over without anybody writing: the server sees it by itself, and takes the next write', async () => {
    const here = await lab();
    const held = await lock(here.server.dataDir);
    assertUnavailable(await startRun(here, {}));
    await held.release();
    await readyAgain(here);
    expect(await runToEnd(here, {})).toMatchObject({ status: 'completed' });
  });

  it('failure R16: fails a decision as a whole, which can be made again afterwards and is carried out once', async () => {
    const here = await lab();
    here.model.script(calling(callOf('gated', { n: 7 })));
    const run = await runToEnd(here, {});
    expect(run.status).toBe('waiting');
    const decisions = interruptionIds(run).map((id) => ({ id, decision: 'approve' }));
    const held = await lock(here.server.dataDir);
    assertUnavailable(await resume(here, run.id, { decisions }, {}));
    expect(await getRun(here, run.id)).toEqual(run);
    await held.release();
    await readyAgain(here);
    expect((await resume(here, run.id, { decisions })).body).toMatchObject({
      status: 'completed',
      turnCount: 2,
      attempt: 2,
    });
    expect(here.ledger.count('gated')).toBe(1);
  });

  it('does not keep a restarted server from its recovery, which waits for the end of the lock', async () => {
    const here = await lab();
    here.model.script({ text: ['a', 'b'], gate: new Promise(() => undefined), gateAt: 1 }, { text: 'again' });
    const { body } = await startRun(here, {});
    await here.model.waitForRequest(1);
    await here.server.kill9();
    const held = await lock(here.server.dataDir);
    const restarted = here.server.restart();
    await new Promise((resolve) => setTimeout(resolve, 300));
    await held.release();
    await restarted;
    expect(await ended(here, body.id)).toMatchObject({ status: 'completed', output: 'again', recoveries: 1 });
  });
});

const noDisk = whyNoSmallDisk();

describe.skipIf(noDisk !== undefined)(`a full disk${noDisk === undefined ? '' : ` (skipped: ${noDisk})`}`, () => {
  it('D01 refuses new work, pauses runs, keeps reads up, loses nothing, and goes on by itself when there is room', async () => {
    const small = disk();
    const here = await lab({ dataDir: small.path });
    const finished = await runToEnd(here, {});
    const gated = await runToEnd(here, { input: 'w' }).then(async () => {
      here.model.script(calling(callOf('gated', { n: 3 })));
      return runToEnd(here, {});
    });
    here.model.script(calling(callOf('unknown_tool', { n: 1 })), { text: 'with room again' });
    const block = here.ledger.blockBefore('unknown');
    const { body } = await startRun(here, {});
    await block.reached;
    small.fill();
    block.release();
    await assertOnlyWritesFail(here, finished.id, body.id);
    const decisions = interruptionIds(gated).map((id) => ({ id, decision: 'deny' }));
    assertUnavailable(await resume(here, gated.id, { decisions }, {}));
    const pid = here.server.pid;
    small.free();
    await readyAgain(here);
    expect(await ended(here, body.id)).toMatchObject({ status: 'completed', output: 'with room again', recoveries: 0 });
    expect((await resume(here, gated.id, { decisions })).body).toMatchObject({ status: 'completed' });
    expect([here.ledger.count('unknown'), here.ledger.count('gated')]).toEqual([1, 0]);
    for (const { id } of [finished, gated, body]) await logOf(here, id);
    expect(here.server.pid).toBe(pid);
    expect(integrityOf(small.path)).toBe('ok');
  });

  it('D01 loses nothing that was acknowledged when the process is killed while the disk is full', async () => {
    const small = disk();
    const here = await lab({ dataDir: small.path });
    // While nothing can be written the next model call may be under way already; it has no effect and is made again.
    here.model.script(calling(callOf('unknown_tool', { n: 1 })), { text: 'told of it' }, { text: 'told of it' });
    const block = here.ledger.blockAfter('unknown');
    const { body } = await startRun(here, {});
    await block.reached;
    const before = await logOf(here, body.id);
    small.fill();
    block.release();
    assertUnavailable(await startRun(here, {}));
    await here.server.kill9();
    small.free();
    await here.server.restart();
    expect(await ended(here, body.id)).toMatchObject({
      status: 'completed',
      output: 'told of it',
      recoveries: 1,
      unknownToolCalls: [{ tool: 'unknown_tool' }],
    });
    expect((await logOf(here, body.id)).slice(0, before.length)).toEqual(before);
    expect(here.ledger.count('unknown')).toBe(1);
    expect(integrityOf(small.path)).toBe('ok');
  });

  it('K08 D01 a write that failed half-way leaves no transaction open: the next one works at once', async () => {
    const small = disk();
    const here = await lab({ dataDir: small.path });
    await runToEnd(here, {});
    small.fill();
    for (let round = 0; round < 3; round += 1) assertUnavailable(await startRun(here, { input: 'x'.repeat(100_000) }));
    small.free();
    await readyAgain(here);
    expect(await runToEnd(here, { input: 'x'.repeat(100_000) })).toMatchObject({ status: 'completed' });
    const { body } = await here.server.json('GET', '/v1/runs');
    expect((body.data as unknown[]).length).toBe(2);
  });

  it('D01 a folder that cannot be written refuses the start in one clear line, and nothing is changed', async () => {
    const small = disk();
    const first = await ServerProcess.start({ dataDir: small.path });
    await first.stop();
    const file = readFileSync(join(small.path, 'shimline.db'));
    small.readOnly(true);
    await expect(ServerProcess.start({ dataDir: small.path })).rejects.toThrow(
      /did not start: The data folder .* cannot be written/,
    );
    expect(readFileSync(join(small.path, 'shimline.db')).equals(file)).toBe(true);
    small.readOnly(false);
    const again = await ServerProcess.start({ dataDir: small.path });
    await again.stop();
  });
});

describe('a file that is not as it should be', () => {
  const hashOf = (file: string): string => createHash('sha256').update(readFileSync(file)).digest('hex');

  it('refuses a start on a file that is no database, and leaves it', async () => {
    const dataDir = temporaryFolder('data-');
    const file = join(dataDir, 'shimline.db');
    writeFileSync(file, 'this was never a database, only a text of some length '.repeat(100));
    const before = hashOf(file);
    await expect(ServerProcess.start({ dataDir })).rejects.toThrow(
      /did not start: The database .*shimline\.db is damaged/,
    );
    expect(hashOf(file)).toBe(before);
  });

  it('refuses a start on a file of a newer version, naming both, and leaves it', async () => {
    const server = await ServerProcess.start();
    await server.stop();
    const { dataDir } = server;
    editDatabase(dataDir, 'CREATE TABLE of_tomorrow (n INTEGER)');
    setUserVersion(dataDir, 9999);
    const before = hashOf(join(dataDir, 'shimline.db'));
    await expect(ServerProcess.start({ dataDir })).rejects.toThrow(/schema version 9999; this program knows up to \d+/);
    expect(hashOf(join(dataDir, 'shimline.db'))).toBe(before);
  });

  it('answers 503 where a damaged page is read, and goes on serving everything else', async () => {
    const here = await lab();
    const long = await runToEnd(here, { input: 'x'.repeat(2_000_000) });
    await here.server.term();
    damageEnd(join(here.server.dataDir, 'shimline.db'));
    await here.server.restart();
    const answers = await Promise.all(
      ['', '/events', '/state'].map(async (part) => here.server.json('GET', `/v1/runs/${String(long.id)}${part}`)),
    );
    const bad = answers.filter((answer) => answer.status !== 200);
    expect(bad.length).toBeGreaterThan(0);
    for (const answer of bad) assertUnavailable(answer);
    expect(await status(here, '/healthz')).toBe(200);
  });
});

function setUserVersion(dataDir: string, version: number): void {
  const file = openSync(join(dataDir, 'shimline.db'), 'r+');
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(version);
  writeSync(file, bytes, 0, 4, 60);
  closeSync(file);
}

/** Overwrites the second half of the file, where the bodies are that were written last. */
function damageEnd(path: string): void {
  expect(existsSync(`${path}-wal`)).toBe(false);
  const { size } = statSync(path);
  const file = openSync(path, 'r+');
  const from = Math.floor(size / 2);
  writeSync(file, Buffer.alloc(size - from, 0xa5), 0, size - from, from);
  closeSync(file);
}
