import { deepStrictEqual, ok } from 'node:assert/strict';
import fc from 'fast-check';
import { isObject, type JsonObject, listOf } from '../support/json-path.js';
import { lastUserText, messagesOf } from '../support/request-view.js';
import type { JsonAnswer } from '../support/server-process.js';
import { openStream } from '../support/sse-client.js';
import { waitFor } from '../support/wait.js';
import { persistently, type Stage, startStage } from './stage.js';

/** What the model does about an input, by the input's first word. */
const KINDS = ['say', 'gate', 'tool', 'fail', 'hold'] as const;
type Kind = (typeof KINDS)[number];

type Op =
  | { readonly op: 'post' | 'resume'; readonly kind: Kind }
  | { readonly op: 'approve' | 'deny' | 'goOn' | 'cancel' | 'purge' | 'release' | 'read' | 'kill' | 'restart' };

type Status = 'none' | 'running' | 'waiting' | 'completed' | 'failed' | 'cancelled';

/** The reference: what a run must be after each step, in a few lines. */
interface Expected {
  status: Status;
  attempt: number;
  effects: number;
  /** The kind of the newest input. */
  kind: Kind;
}

const AFTER: Readonly<Record<Kind, Status>> = {
  say: 'completed',
  gate: 'waiting',
  tool: 'completed',
  fail: 'failed',
  hold: 'running',
};

const calm = fc.oneof(
  { weight: 4, arbitrary: fc.record({ op: fc.constantFrom('post', 'resume'), kind: fc.constantFrom(...KINDS) }) },
  {
    weight: 8,
    arbitrary: fc.record({ op: fc.constantFrom('approve', 'deny', 'goOn', 'cancel', 'purge', 'release', 'read') }),
  },
) as fc.Arbitrary<Op>;
const rough = fc.oneof(
  { weight: 4, arbitrary: calm },
  { weight: 1, arbitrary: fc.record({ op: fc.constantFrom('kill', 'restart') }) },
);

export interface RandomTestResult {
  readonly sequences: number;
  readonly steps: number;
  readonly restarts: number;
}

/**
 * Puts random sequences of what clients and operators do to a run beside a small model of it; answers and state must agree.
 * @param sequences how many; one in twenty has kills and restarts of the process
 * @throws with the seed and the sequence that shows a difference
 */
export async function randomSequences(seed: number, sequences: number): Promise<RandomTestResult> {
  const stage = await startStage();
  const counts = { sequences: 0, steps: 0, restarts: 0 };
  const check = async (arbitrary: fc.Arbitrary<Op>, numRuns: number): Promise<void> => {
    const property = fc.asyncProperty(fc.array(arbitrary, { minLength: 3, maxLength: 14 }), async (ops) => {
      await new Sequence(stage, counts).run(ops);
    });
    await fc.assert(property, { seed, numRuns, endOnFailure: true });
  };
  try {
    const withKills = Math.max(1, Math.floor(sequences / 20));
    await check(calm, sequences - withKills);
    await check(rough, withKills);
    return counts;
  } finally {
    await stage.close();
  }
}

let markers = 0;

class Sequence {
  readonly #stage: Stage;
  readonly #counts: { sequences: number; steps: number; restarts: number };
  readonly #marker = `case-${(markers += 1)}-`;
  #id = '';
  #inputs = 0;
  #interruption = 'none';
  #held: (() => void)[] = [];
  #holding = true;
  #expected: Expected = { status: 'none', attempt: 0, effects: 0, kind: 'say' };
  #seen: unknown[] = [];

  constructor(stage: Stage, counts: { sequences: number; steps: number; restarts: number }) {
    this.#stage = stage;
    this.#counts = counts;
  }

  async run(ops: readonly Op[]): Promise<void> {
    const { model } = this.#stage;
    model.respondWith(async (request) => {
      const [kind = 'say'] = lastUserText(request).split(' ');
      const messages = messagesOf(request);
      const answered =
        messages.findLastIndex(({ role }) => role === 'user') < messages.findLastIndex(({ role }) => role === 'tool');
      if (answered || kind === 'say') return { text: ['said ', this.#marker] };
      if (kind === 'fail') return { status: 400 };
      if (kind === 'hold') {
        if (this.#holding) await new Promise<void>((release) => this.#held.push(release));
        return { text: 'released' };
      }
      const name = kind === 'gate' ? 'gated' : 'effect';
      return { toolCalls: [{ name, arguments: { n: this.#inputs, marker: this.#marker } }] };
    });
    const { problem } = model.refusedRequests.at(-1) ?? {};
    const refused = model.refusedRequests.length;
    for (const op of ops) {
      await this.#step(op);
      await this.#agree(op);
      this.#counts.steps += 1;
    }
    deepStrictEqual(model.refusedRequests.length, refused, problem);
    await this.#finish();
    this.#counts.sequences += 1;
  }

  async #step(op: Op): Promise<void> {
    const expected = this.#expected;
    switch (op.op) {
      case 'post':
        if (expected.status === 'none') await this.#post(op.kind);
        return;
      case 'resume':
        await this.#resume(op.kind);
        return;
      case 'goOn':
        await this.#goOn();
        return;
      case 'approve':
      case 'deny':
        await this.#decide(op.op);
        return;
      case 'cancel':
        if (expected.status === 'none') return;
        deepStrictEqual((await this.#call('DELETE', '')).status, 200);
        if (expected.status === 'running' || expected.status === 'waiting') expected.status = 'cancelled';
        return;
      case 'purge':
        await this.#purge();
        return;
      case 'release':
        await this.#release();
        return;
      case 'read':
        await this.#read();
        return;
      case 'kill':
      case 'restart':
        if (op.op === 'kill') await this.#stage.server.kill9();
        await this.#stage.server.restart();
        this.#counts.restarts += 1;
        return;
    }
  }

  async #post(kind: Kind): Promise<void> {
    const { body, status } = await persistently(
      this.#stage,
      'POST',
      '/v1/runs',
      { agent: 'reference', input: this.#input(kind), metadata: { marker: this.#marker } },
      this.#waits(kind),
    );
    deepStrictEqual(status, kind === 'hold' ? 202 : 200, JSON.stringify(body));
    this.#id = String(body.id);
    this.#seen = [];
    this.#began(kind);
    this.#expected.attempt = 1;
  }

  async #resume(kind: Kind): Promise<void> {
    const { status } = this.#expected;
    const answer = await this.#call('POST', '/resume', { input: this.#input(kind) }, this.#waits(kind));
    if (status === 'none') {
      deepStrictEqual(answer.status, 404);
      return;
    }
    if (status === 'running') {
      this.#refused(answer, 409, 'run_active');
      return;
    }
    if (status === 'waiting') {
      this.#refused(answer, 409, 'waiting_for_decisions');
      return;
    }
    deepStrictEqual(answer.status, kind === 'hold' ? 202 : 200, JSON.stringify(answer.body));
    this.#began(kind);
  }

  /** A resume without input: only a failed run goes on, and asks its model the same again. */
  async #goOn(): Promise<void> {
    const { status } = this.#expected;
    const answer = await this.#call('POST', '/resume', {});
    if (status === 'none') {
      deepStrictEqual(answer.status, 404);
      return;
    }
    if (status === 'running') {
      this.#refused(answer, 409, 'run_active');
      return;
    }
    if (status === 'waiting') {
      this.#refused(answer, 409, 'waiting_for_decisions');
      return;
    }
    if (status !== 'failed') {
      this.#refused(answer, 422, 'input_required');
      return;
    }
    deepStrictEqual([answer.status, answer.body.status], [200, 'failed']);
    this.#expected.attempt += 1;
  }

  async #decide(decision: 'approve' | 'deny'): Promise<void> {
    const expected = this.#expected;
    const answer = await this.#call('POST', '/resume', { decisions: [{ id: this.#interruption, decision }] });
    if (expected.status === 'none') {
      deepStrictEqual(answer.status, 404);
      return;
    }
    if (expected.status === 'running') {
      this.#refused(answer, 409, 'run_active');
      return;
    }
    if (expected.status !== 'waiting') {
      this.#refused(answer, 409, 'stale_interruption');
      return;
    }
    deepStrictEqual([answer.status, answer.body.status], [200, 'completed'], JSON.stringify(answer.body));
    if (decision === 'approve') expected.effects += 1;
    expected.status = 'completed';
    expected.attempt += 1;
  }

  async #purge(): Promise<void> {
    const { status } = this.#expected;
    const answer = await this.#call('DELETE', '?purge=true', undefined, {});
    if (status === 'none') {
      deepStrictEqual(answer.status, 404);
      return;
    }
    deepStrictEqual(
      answer.status,
      status === 'running' || status === 'waiting' ? 409 : 204,
      JSON.stringify(answer.body),
    );
    if (answer.status === 204) this.#expected.status = 'none';
  }

  async #release(): Promise<void> {
    if (this.#expected.status !== 'running') return;
    this.#letGo();
    const { body } = await this.#call('GET', '');
    deepStrictEqual(body.status, 'completed', JSON.stringify(body));
    this.#expected.status = 'completed';
  }

  #letGo(): void {
    this.#holding = false;
    for (const release of this.#held.splice(0)) release();
  }

  /** A client that comes back with its cursor, reads what there is, and goes again. */
  async #read(): Promise<void> {
    if (this.#expected.status === 'none') return;
    const { lastSeq } = (await this.#call('GET', '', undefined, {})).body;
    const stream = await openStream(`${this.#stage.server.url}/v1/runs/${this.#id}/events?after=${this.#seen.length}`);
    if (stream.status === 204) return;
    if (this.#seen.length < Number(lastSeq)) await stream.collect({ until: ({ id }) => Number(id) >= Number(lastSeq) });
    stream.close();
    this.#seen.push(...stream.events.map(({ json }) => json));
  }

  #began(kind: Kind): void {
    const expected = this.#expected;
    expected.kind = kind;
    expected.status = AFTER[kind];
    expected.attempt += 1;
    if (kind === 'tool') expected.effects += 1;
  }

  #input(kind: Kind): string {
    this.#inputs += 1;
    this.#holding = true;
    return `${kind} ${this.#inputs} ${this.#marker}`;
  }

  #waits(kind: Kind): Record<string, string> {
    return kind === 'hold' ? {} : { prefer: 'wait=20' };
  }

  #refused({ status, body }: JsonAnswer, expected: number, code: string): void {
    deepStrictEqual([status, body.code], [expected, code]);
  }

  async #call(
    method: string,
    path: string,
    body?: JsonObject,
    headers: Record<string, string> = { prefer: 'wait=20' },
  ): Promise<JsonAnswer> {
    return persistently(this.#stage, method, `/v1/runs/${this.#id === '' ? 'none' : this.#id}${path}`, body, headers);
  }

  /** The run as it is answers to the model of it. */
  async #agree(op: Op): Promise<void> {
    const { status, attempt, effects } = this.#expected;
    const answer = await this.#call('GET', '', undefined, {});
    if (status === 'none') deepStrictEqual(answer.status, 404);
    else {
      const run = status === 'running' ? await this.#untilRunning() : answer.body;
      deepStrictEqual({ after: op, status: run.status, attempt: run.attempt }, { after: op, status, attempt });
      const [open] = listOf(run.interruptions).filter(isObject);
      deepStrictEqual(open !== undefined, status === 'waiting');
      if (open !== undefined) this.#interruption = String(open.id);
    }
    const entries = this.#stage.ledger.entries(({ marker }) => marker === this.#marker);
    deepStrictEqual(entries.length, effects);
  }

  async #untilRunning(): Promise<JsonObject> {
    return waitFor(async () => {
      const { body } = await this.#call('GET', '', undefined, {});
      return body.status === 'queued' ? undefined : body;
    });
  }

  async #finish(): Promise<void> {
    if (this.#expected.status !== 'none') {
      if (this.#expected.status === 'running') await this.#release();
      await this.#read();
      const { body } = await this.#call('GET', '/events?limit=1000');
      const log = listOf(body.data);
      ok(log.length < 1000);
      deepStrictEqual(this.#seen, log);
      deepStrictEqual(
        log.map((event) => (event as { seq: number }).seq),
        log.map((_, at) => at + 1),
      );
    }
    this.#letGo();
  }
}
