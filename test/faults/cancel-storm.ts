import { setTimeout as sleep } from 'node:timers/promises';
import { messageOf } from '../../src/agent/run-errors.js';
import { listOf } from '../support/json-path.js';
import { randomOf } from './points.js';
import { persistently, type Stage, startStage } from './stage.js';

const ENDS = /^run\.(completed|failed|cancelled)$/;

export interface StormResult {
  readonly runs: number;
  readonly cancelled: number;
  readonly violations: readonly string[];
}

/**
 * Starts runs and cancels each at a random moment, some twice; every one must have one end that all its answers agree on.
 * @param goesOn asked after each batch; false ends the storm there
 */
export async function cancelStorm(seed: number, runs: number, goesOn = (): boolean => true): Promise<StormResult> {
  const stage = await startStage();
  const random = randomOf(seed);
  const violations: string[] = [];
  let cancelled = 0;
  const reference = stage.reply;
  // Half of them would wait for an approval, half would be over at about the time of the cancel.
  stage.model.respondWith((request) => {
    const number = Number(/case-(\d+)-/.exec(request.rawBody)?.[1]);
    const plain = number % 2 === 0 && !request.rawBody.includes('one more');
    return plain ? { text: Array.from('in pieces'), tokenDelayMs: 1 } : reference(request);
  });
  try {
    let first = 0;
    for (; first < runs && (first === 0 || goesOn()); first += 25) {
      const batch = Array.from({ length: Math.min(25, runs - first) }, async (_, at) =>
        one(stage, first + at, random).catch((error: unknown) => ({
          status: 'unknown',
          faults: [`run ${first + at} of the storm: ${messageOf(error)}`],
        })),
      );
      for (const { status, faults } of await Promise.all(batch)) {
        cancelled += status === 'cancelled' ? 1 : 0;
        violations.push(...faults);
      }
    }
    if (stage.model.refusedRequests.length > 0)
      violations.push(`the model refused ${stage.model.refusedRequests.length} histories`);
    return { runs: Math.min(first, runs), cancelled, violations };
  } finally {
    await stage.close();
  }
}

async function one(
  stage: Stage,
  number: number,
  random: () => number,
): Promise<{ readonly status: string; readonly faults: string[] }> {
  const marker = `case-${number}-`;
  const waitMs = random() * 40;
  const wait: Record<string, string> = random() < 0.5 ? { prefer: 'wait=20' } : {};
  const cancels = random() < 0.3 ? 2 : 1;
  const { body } = await persistently(stage, 'POST', '/v1/runs', {
    // With a clean-up the end is settled in front of it, without one the end decides itself.
    agent: number % 3 === 0 ? 'cleaned' : 'reference',
    input: marker,
    metadata: { marker },
  });
  const path = `/v1/runs/${String(body.id)}`;
  await sleep(waitMs);
  const answers = await Promise.all(
    Array.from({ length: cancels }, async () => persistently(stage, 'DELETE', path, undefined, wait)),
  );
  const run = (await persistently(stage, 'GET', path, undefined, { prefer: 'wait=20' })).body;
  const log = listOf((await persistently(stage, 'GET', `${path}/events`)).body.data) as { readonly type: string }[];
  const status = String(run.status);
  const ends = log.filter(({ type }) => ENDS.test(type));
  const faults: string[] = [];
  if (ends.length !== 1 || log.at(-1)?.type !== `run.${status}`)
    faults.push(`${path} is ${status}, its log ends ${ends.map(({ type }) => type).join()}`);
  for (const answer of answers) {
    if (answer.status === 200 && answer.body.status !== status)
      faults.push(`${path} is ${status}, its cancel said ${String(answer.body.status)}`);
    if (answer.status !== 200 && answer.status !== 202) faults.push(`${path}: a cancel was answered ${answer.status}`);
  }
  const next = await persistently(stage, 'POST', `${path}/resume`, { input: 'one more' }, { prefer: 'wait=20' });
  if (next.body.status !== 'completed')
    faults.push(`${path}: the turn after the cancel ended ${String(next.body.status)}`);
  return { status, faults };
}
