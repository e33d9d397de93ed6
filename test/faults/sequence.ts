import { deepStrictEqual, ok } from 'node:assert/strict';
import { isObject, type JsonObject, listOf } from '../support/json-path.js';
import type { ReceivedRequest } from '../support/model-endpoint.js';
import type { Reply } from '../support/model-reply.js';
import { lastUserText, messagesOf } from '../support/request-view.js';
import type { JsonAnswer } from '../support/server-process.js';
import { openStream, type SseStream } from '../support/sse-client.js';
import { waitFor } from '../support/wait.js';
import { type Decision, type Kind, type Op, sequenceText } from './operations.js';
import { persistently, type Stage, type StageServer } from './stage.js';

type Status = 'none' | 'running' | 'waiting' | 'completed' | 'failed' | 'cancelled';

/** The reference: what a run must be after each step, in a few lines. */
interface Expected {
  status: Status;
  attempt: number;
  effects: number;
}

const AFTER: Readonly<Record<Kind, Status>> = {
  say: 'completed',
  gate: 'waiting',
  pair: 'waiting',
  tool: 'completed',
  fail: 'failed',
  hold: 'running',
  busy: 'completed',
  cut: 'completed',
};

/** Where a sequence happens, and how its server ends and starts again. */
export interface SequencePlace {
  readonly stage: Stage<StageServer>;
  restart(how: 'kill' | 'restart'): Promise<void>;
}

export interface SequenceCounts {
  steps: number;
  restarts: number;
}

let markers = 0;

/** One run, the operations upon it, and the model of it beside. */
export class Sequence {
  readonly #place: SequencePlace;
  readonly #counts: SequenceCounts;
  readonly #marker = `case-${(markers += 1)}-`;
  #id = '';
  #inputs = 0;
  #interruption = 'none';
  #held: (() => void)[] = [];
  #holding = true;
  /** Inputs whose first model call has gone wrong already. */
  readonly #troubled = new Set<string>();
  #expected: Expected = { status: 'none', attempt: 0, effects: 0 };
  #client: SseStream | undefined;
  #seen: unknown[] = [];

  constructor(place: SequencePlace, counts: SequenceCounts) {
    this.#place = place;
    this.#counts = counts;
  }

  /** @throws AssertionError where the run is not what the model of it says */
  async run(ops: readonly Op[]): Promise<void> {
    const { model } = this.#place.stage;
    model.respondWith(async (request) => this.#reply(request));
    // Thousands of sequences share one endpoint; what the ones before had asked is of no use any more.
    model.requests.length = 0;
    try {
      for (const op of ops) {
        await this.#step(op);
        await this.#agree(op);
        this.#counts.steps += 1;
      }
      await this.#finish();
      deepStrictEqual(
        model.refusedRequests.map(({ problem }) => problem),
        [],
      );
    } finally {
      this.#letGo();
      this.#client?.close();
    }
  }

  async #reply(request: ReceivedRequest): Promise<Reply> {
    const input = lastUserText(request);
    const [kind = 'say'] = input.split(' ');
    const messages = messagesOf(request);
    const answered =
      messages.findLastIndex(({ role }) => role === 'user') < messages.findLastIndex(({ role }) => role === 'tool');
    const said = { text: ['said ', this.#marker] };
    const call = (name: string): { name: string; arguments: object } => ({
      name,
      arguments: { n: this.#inputs, marker: this.#marker },
    });
    if (answered) return said;
    switch (kind as Kind) {
      case 'say':
        return said;
      case 'fail':
        return { status: 400 };
      case 'hold':
        if (this.#holding) await new Promise<void>((release) => this.#held.push(release));
        return { text: 'released' };
      case 'gate':
        return { toolCalls: [call('gated')] };
      case 'pair':
        return { toolCalls: [call('effect'), call('gated')] };
      case 'tool':
        return { toolCalls: [call('effect')] };
      case 'busy':
        return this.#firstTime(input) ? { status: 429, headers: { 'retry-after': '0' } } : said;
      case 'cut':
        return this.#firstTime(input) ? { ...said, cut: { after: 'half-text', how: 'end' } } : said;
    }
  }

  #firstTime(input: string): boolean {
    const first = !this.#troubled.has(input);
    this.#troubled.add(input);
    return first;
  }

  async #step(op: Op): Promise<void> {
    const expected = this.#expected;
    switch (op.op) {
      case 'post':
        if (expected.status === 'none') await this.#post(op.kind);
        return;
      case 'abandon':
        if (expected.status === 'none') await this.#abandon();
        return;
      case 'resume':
        await this.#resume(op.kind);
        return;
      case 'goOn':
        await this.#goOn();
        return;
      case 'decide':
        await this.#decide(op.decision);
        return;
      case 'cancel':
        if (expected.status === 'none') return;
        deepStrictEqual((await this.#call('DELETE', '')).status, 200);
        if (expected.status === 'running') this.#letGo();
        if (expected.status === 'running' || expected.status === 'waiting') expected.status = 'cancelled';
        return;
      case 'purge':
        await this.#purge();
        return;
      case 'release':
        await this.#release();
        return;
      case 'connect':
        await this.#connect();
        return;
      case 'disconnect':
        this.#disconnect();
        return;
      case 'kill':
      case 'restart':
        await this.#restart(op.op);
        return;
    }
  }

  async #post(kind: Kind): Promise<void> {
    const { body, status } = await persistently(
      this.#place.stage,
      'POST',
      '/v1/runs',
      { agent: 'reference', input: this.#input(kind), metadata: { marker: this.#marker } },
      this.#waits(kind),
    );
    deepStrictEqual(status, kind === 'hold' ? 202 : 200, JSON.stringify(body));
    this.#startsAnew(String(body.id));
    this.#began(kind);
  }

  async #abandon(): Promise<void> {
    const body = {
      agent: 'reference',
      input: this.#input('hold'),
      metadata: { marker: this.#marker },
      onDisconnect: 'cancel',
    };
    const stream = await openStream(`${this.#place.stage.server.url}/v1/runs`, { body });
    const [created] = await stream.collect({ until: ({ event }) => event === 'run.created' });
    stream.close();
    this.#startsAnew(String((created?.json as JsonObject).runId));
    this.#began('hold');
    this.#expected.status = 'cancelled';
    await this.#call('GET', '');
    this.#letGo();
  }

  #startsAnew(id: string): void {
    this.#disconnect();
    this.#id = id;
    this.#seen = [];
    this.#expected.attempt = 0;
  }

  async #resume(kind: Kind): Promise<void> {
    const { status } = this.#expected;
    const answer = await this.#call('POST', '/resume', { input: this.#input(kind) }, this.#waits(kind));
    if (this.#isRefused(answer)) return;
    if (status === 'waiting') {
      refused(answer, 409, 'waiting_for_decisions');
      return;
    }
    deepStrictEqual(answer.status, kind === 'hold' ? 202 : 200, JSON.stringify(answer.body));
    this.#began(kind);
  }

  /** A resume without input: only a failed run goes on, and asks its model the same again. */
  async #goOn(): Promise<void> {
    const { status } = this.#expected;
    const answer = await this.#call('POST', '/resume', {});
    if (this.#isRefused(answer)) return;
    if (status === 'waiting') {
      refused(answer, 409, 'waiting_for_decisions');
      return;
    }
    if (status !== 'failed') {
      refused(answer, 422, 'input_required');
      return;
    }
    deepStrictEqual([answer.status, answer.body.status], [200, 'failed']);
    this.#expected.attempt += 1;
  }

  async #decide(decision: Decision): Promise<void> {
    const expected = this.#expected;
    const id = this.#interruption;
    const more: JsonObject =
      decision === 'edit'
        ? { arguments: { n: 1000 + this.#inputs, marker: this.#marker } }
        : decision === 'respond'
          ? { result: 'done by hand' }
          : {};
    const answer = await this.#call('POST', '/resume', { decisions: [{ id, decision, ...more }] });
    if (this.#isRefused(answer)) return;
    if (expected.status !== 'waiting') {
      refused(answer, 409, 'stale_interruption');
      return;
    }
    deepStrictEqual([answer.status, answer.body.status], [200, 'completed'], JSON.stringify(answer.body));
    if (decision === 'approve' || decision === 'edit') expected.effects += 1;
    expected.status = 'completed';
    expected.attempt += 1;
  }

  /** What no resume can be: of a run that is not there, or that is being driven. */
  #isRefused(answer: JsonAnswer): boolean {
    const { status } = this.#expected;
    if (status === 'none') deepStrictEqual(answer.status, 404);
    else if (status === 'running') refused(answer, 409, 'run_active');
    else return false;
    return true;
  }

  async #purge(): Promise<void> {
    const { status } = this.#expected;
    const answer = await this.#call('DELETE', '?purge=true', undefined, {});
    const answers = { none: 404, running: 409, waiting: 409, completed: 204, failed: 204, cancelled: 204 };
    deepStrictEqual(answer.status, answers[status], JSON.stringify(answer.body));
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

  /** A client that comes with its cursor and stays. */
  async #connect(): Promise<void> {
    if (this.#expected.status === 'none') return;
    this.#disconnect();
    const headers: Record<string, string> =
      this.#seen.length === 0 ? {} : { 'last-event-id': String(this.#seen.length) };
    const stream = await openStream(`${this.#place.stage.server.url}/v1/runs/${this.#id}/events`, { headers });
    if (stream.status === 204) {
      stream.close();
      return;
    }
    deepStrictEqual(stream.status, 200);
    this.#client = stream;
    const { lastSeq } = (await this.#call('GET', '', undefined, {})).body;
    if (this.#seen.length < Number(lastSeq)) await stream.collect({ until: ({ id }) => Number(id) >= Number(lastSeq) });
  }

  #disconnect(): void {
    this.#client?.close();
    this.#seen.push(...(this.#client?.events ?? []).map(({ json }) => json));
    this.#client = undefined;
  }

  /** Whatever was there before is there afterwards, to the last byte; what was being driven has lost nothing of its state. */
  async #restart(how: 'kill' | 'restart'): Promise<void> {
    const { status } = this.#expected;
    const wasConnected = this.#client !== undefined;
    const before = status === 'running' ? await this.#heldState() : await this.#everything();
    const requests = this.#held.length;
    await this.#place.restart(how);
    this.#counts.restarts += 1;
    if (status === 'running')
      await waitFor(() => this.#held.length > requests, { timeoutMs: 20_000, what: 'the recovered call' });
    deepStrictEqual(status === 'running' ? await this.#heldState() : await this.#everything(), before);
    if (wasConnected) await this.#connect();
  }

  async #heldState(): Promise<unknown> {
    await waitFor(() => this.#held.length > 0, { timeoutMs: 20_000, what: 'the held model call' });
    const begins = JSON.stringify({ boundary: 'runStart', attempt: this.#expected.attempt });
    await waitFor(async () => {
      const { data } = (await this.#call('GET', '/events?limit=1000', undefined, {})).body;
      return listOf(data).some(
        (event) => isObject(event) && JSON.stringify({ boundary: event.boundary, attempt: event.attempt }) === begins,
      );
    });
    return (await this.#call('GET', '/state', undefined, {})).body.shimState;
  }

  async #everything(): Promise<unknown> {
    const paths = ['', '/state', '/events?limit=1000', '/effects', '/checkpoints'];
    return Promise.all(
      paths.map(async (path) => {
        const { status, body } = await this.#call('GET', path, undefined, {});
        return status === 200 ? body : status;
      }),
    );
  }

  #began(kind: Kind): void {
    const expected = this.#expected;
    expected.status = AFTER[kind];
    expected.attempt += 1;
    if (kind === 'tool' || kind === 'pair') expected.effects += 1;
  }

  #input(kind: Kind): string {
    this.#inputs += 1;
    // A new input is held again, unless the run is held already and refuses it.
    if (this.#expected.status !== 'running') this.#holding = true;
    return `${kind} ${this.#inputs} ${this.#marker}`;
  }

  #waits(kind: Kind): Record<string, string> {
    return kind === 'hold' ? {} : { prefer: 'wait=20' };
  }

  async #call(
    method: string,
    path: string,
    body?: JsonObject,
    headers: Record<string, string> = { prefer: 'wait=20' },
  ): Promise<JsonAnswer> {
    const id = this.#id === '' ? 'none' : this.#id;
    return persistently(this.#place.stage, method, `/v1/runs/${id}${path}`, body, headers);
  }

  /** The run as it is answers to the model of it. */
  async #agree(op: Op): Promise<void> {
    const { status, attempt, effects } = this.#expected;
    const answer = await this.#call('GET', '', undefined, {});
    if (status === 'none') deepStrictEqual(answer.status, 404);
    else {
      const run = status === 'running' ? await this.#untilRunning() : answer.body;
      const after = sequenceText([op]);
      deepStrictEqual({ after, status: run.status, attempt: run.attempt }, { after, status, attempt });
      const [open] = listOf(run.interruptions).filter(isObject);
      deepStrictEqual(open !== undefined, status === 'waiting');
      if (open !== undefined) this.#interruption = String(open.id);
    }
    deepStrictEqual(this.#place.stage.effectsOf(this.#marker), effects);
  }

  async #untilRunning(): Promise<JsonObject> {
    return waitFor(async () => {
      const { body } = await this.#call('GET', '', undefined, {});
      return body.status === 'queued' ? undefined : body;
    });
  }

  async #finish(): Promise<void> {
    if (this.#expected.status === 'none') return;
    await this.#release();
    await this.#connect();
    this.#disconnect();
    const log = listOf((await this.#call('GET', '/events?limit=1000')).body.data);
    ok(log.length < 1000);
    deepStrictEqual(this.#seen, log);
    deepStrictEqual(
      log.map((event) => (event as { seq: number }).seq),
      log.map((_, at) => at + 1),
    );
  }
}

function refused({ status, body }: JsonAnswer, expected: number, code: string): void {
  deepStrictEqual([status, body.code], [expected, code]);
}
