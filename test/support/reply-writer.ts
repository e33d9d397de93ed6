import type { ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseJson } from './json-path.js';
import { cutIndex, errorIndex, type Frame, type Framing, type Reply } from './model-reply.js';
import { tcpEntry } from './tcp-table.js';

export interface StreamJob {
  readonly frames: readonly Frame[];
  readonly reply: Reply;
  readonly errorEvent: string | undefined;
  readonly ping: string;
  /** Aborted when the connection is gone; every wait gives up then. */
  readonly gone: AbortSignal;
  readonly onUsage: () => void;
}

/** A reset throws away what the client has not read yet, so it waits so long for the client to read. */
const readWithinMs = 2_000;

const resets = new WeakSet<ServerResponse>();

/** Whether the endpoint itself reset this answer, which is no abort by the client. */
export const wasResetHere = (response: ServerResponse): boolean => resets.has(response);

/** Waits for the promise or for the client to go, whichever comes first. */
export async function unlessGone(promise: Promise<unknown>, gone: AbortSignal): Promise<void> {
  if (gone.aborted) return;
  await new Promise<void>((resolve) => {
    const done = (): void => {
      gone.removeEventListener('abort', done);
      resolve();
    };
    gone.addEventListener('abort', done);
    // A gate that rejects opens too.
    promise.then(done, done);
  });
}

export async function pause(ms: number | undefined, gone: AbortSignal): Promise<void> {
  if (ms === undefined || ms <= 0 || gone.aborted) return;
  await sleep(ms, undefined, { signal: gone }).catch(() => undefined);
}

/** Writes the frames as the reply asks, and says whether all of them went out. */
export async function writeStream(response: ServerResponse, job: StreamJob): Promise<boolean> {
  const { reply, gone } = job;
  const out = new BodyWriter(response, reply, gone);
  response.flushHeaders();
  if (reply.gateAt === 'body' && reply.gate !== undefined) await unlessGone(reply.gate, gone);
  if (reply.pings === true && reply.cut === undefined) {
    await pingForEver(out, job);
    return false;
  }
  if (reply.raw !== undefined) {
    out.add(reply.raw);
    await out.flush();
    await end(response, reply, job, out);
    return reply.cut === undefined;
  }
  if (reply.framing === 'bom') out.add('\uFEFF');
  const whole = await writeFrames(out, job);
  await end(response, reply, job, out);
  return whole;
}

async function writeFrames(out: BodyWriter, job: StreamJob): Promise<boolean> {
  const { frames, reply, gone } = job;
  const stop = reply.cut === undefined ? frames.length : cutIndex(frames, reply.cut.after);
  const failAt = reply.errorInStream === undefined ? -1 : errorIndex(frames, reply.errorInStream.after);
  const gateAt = gateIndex(frames, reply);
  let toldUsage = false;
  for (const [index, frame] of frames.entries()) {
    if (index === gateAt && reply.gate !== undefined) {
      await out.flush();
      await unlessGone(reply.gate, gone);
    }
    if (index === failAt) {
      out.add(errorText(job));
      await out.flush();
      return false;
    }
    if (index >= stop || gone.aborted) break;
    const isLast = index === frames.length - 1;
    out.add(frameText(frame, reply.framing ?? 'lf', index, isLast));
    toldUsage ||= frame.usage === true;
    if (frame.delta === true && (reply.tokenDelayMs ?? 0) > 0) {
      await out.flush();
      await pause(reply.tokenDelayMs, gone);
    }
  }
  await out.flush();
  if (toldUsage && !gone.aborted) job.onUsage();
  return stop === frames.length && !gone.aborted;
}

function gateIndex(frames: readonly Frame[], reply: Reply): number {
  const at = reply.gateAt ?? 'last-delta';
  if (reply.gate === undefined || at === 'start' || at === 'body') return -1;
  if (typeof at === 'number') return errorIndex(frames, at);
  const ending = frames.findIndex((frame) => frame.part === 'finish' || frame.part === 'done');
  if (at === 'finish') return ending;
  const last = frames.findLastIndex((frame) => frame.delta === true);
  return last < 0 ? ending : last;
}

function errorText(job: StreamJob): string {
  const body = JSON.stringify(job.reply.errorInStream?.body);
  if (job.reply.errorInStream?.bare === true) return `${body}\n`;
  const event = job.errorEvent === undefined ? {} : { event: job.errorEvent };
  return frameText({ ...event, data: body, part: 'block' }, job.reply.framing ?? 'lf', 0, false);
}

/** One event in the wire form of the framing; all of them mean the same to a parser that keeps to the standard. */
function frameText(frame: Frame, framing: Framing, index: number, isLast: boolean): string {
  const separator = framing === 'nospace' ? ':' : ': ';
  const lines: string[] = [];
  if (framing === 'comments') lines.push(': keep-alive', '', ':');
  if (framing === 'fields') lines.push(`id: ${index}`, 'retry: 3000', 'unknown: field');
  if (frame.event !== undefined) lines.push(`event${separator}${frame.event}`);
  for (const line of dataLines(frame.data, framing)) lines.push(`data${separator}${line}`);
  const lineEnd = framing === 'crlf' ? '\r\n' : framing === 'cr' ? '\r' : '\n';
  const blank = framing === 'no-final-blank' && isLast ? '' : lineEnd;
  return lines.join(lineEnd) + lineEnd + blank;
}

function dataLines(data: string, framing: Framing): readonly string[] {
  const parsed = framing === 'multidata' ? parseJson(data) : { ok: false as const };
  return parsed.ok ? JSON.stringify(parsed.value, null, 1).split('\n') : [data];
}

async function pingForEver(out: BodyWriter, job: StreamJob): Promise<void> {
  while (!job.gone.aborted) {
    out.add(job.ping);
    await out.flush();
    await pause(job.reply.pingEveryMs ?? 50, job.gone);
  }
}

async function end(response: ServerResponse, reply: Reply, job: StreamJob, out: BodyWriter): Promise<void> {
  const how = reply.cut?.how ?? 'end';
  if (how === 'stall' && reply.pings === true) await pingForEver(out, job);
  else await endBody(response, how, job.gone);
}

/** Ends cleanly, resets the connection, or leaves it open for good. */
export async function endBody(
  response: ServerResponse,
  how: 'end' | 'reset' | 'stall',
  gone: AbortSignal,
): Promise<void> {
  if (gone.aborted || how === 'stall') return;
  if (how === 'end') {
    response.end();
    return;
  }
  await untilRead(response, gone);
  resets.add(response);
  response.socket?.resetAndDestroy();
}

async function untilRead(response: ServerResponse, gone: AbortSignal): Promise<void> {
  const { localPort = 0, remotePort = 0 } = response.socket ?? {};
  const deadline = performance.now() + readWithinMs;
  do await pause(15, gone);
  while (!gone.aborted && performance.now() < deadline && (tcpEntry(remotePort, localPort)?.unread ?? 0) > 0);
}

/** Collects text and writes it at once, or in the pieces that the reply asks for. */
export class BodyWriter {
  readonly #response: ServerResponse;
  readonly #reply: Reply;
  readonly #gone: AbortSignal;
  #pending: Buffer[] = [];

  constructor(response: ServerResponse, reply: Reply, gone: AbortSignal) {
    this.#response = response;
    this.#reply = reply;
    this.#gone = gone;
  }

  add(text: string | Buffer): void {
    this.#pending.push(typeof text === 'string' ? Buffer.from(text) : text);
  }

  async flush(): Promise<void> {
    const bytes = Buffer.concat(this.#pending);
    this.#pending = [];
    if (bytes.length === 0) return;
    const { pieces } = this.#reply;
    if (pieces === undefined) {
      await this.#write(bytes);
      return;
    }
    for (let at = 0; at < bytes.length && !this.#gone.aborted; at += pieces.bytes) {
      await this.#write(bytes.subarray(at, at + pieces.bytes));
      await pause(pieces.delayMs, this.#gone);
    }
  }

  async #write(bytes: Buffer): Promise<void> {
    if (this.#gone.aborted) return;
    const flushed = new Promise<void>((resolve) => {
      this.#response.write(bytes, () => {
        resolve();
      });
    });
    await unlessGone(flushed, this.#gone);
  }
}
