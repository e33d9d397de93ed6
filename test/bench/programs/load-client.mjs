// The clients, all in one process: raw sockets, as little work per byte as can be, so that the server under test is the one
// that is busy. A command comes from the bench, its result goes back under the same number.
import { once } from 'node:events';
import { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { onCommands, tell } from './parent.mjs';

const HEAD_END = Buffer.from('\r\n\r\n');
const LINE_END = Buffer.from('\r\n');
const EVENT = Buffer.from('event: ');
const CARRY = 64;

/** One connection that asks for one thing after the other, anew where the server closes it. */
class Line {
  #target;
  #socket;
  #exchange;

  /** @param {{ host: string, port: number }} target */
  constructor(target) {
    this.#target = target;
  }

  /** Sends a request; the exchange hears of its head, its body's pieces and its end. */
  ask(bytes, exchange) {
    this.#exchange = exchange;
    exchange.begin();
    if (this.#socket === undefined) this.#connect();
    this.#socket.write(bytes);
  }

  /** Connects, unless it is connected. */
  async connected() {
    if (this.#socket !== undefined) return;
    this.#connect();
    await once(this.#socket, 'connect');
  }

  close() {
    this.#socket?.destroy();
    this.#socket = undefined;
  }

  #connect() {
    const socket = new Socket();
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.on('data', (chunk) => {
      if (this.#socket === socket) this.#exchange?.data(chunk, this);
    });
    socket.on('error', () => undefined);
    socket.on('close', () => {
      // One that was let go does not speak for its successor.
      if (this.#socket !== socket) return;
      this.#socket = undefined;
      const exchange = this.#exchange;
      this.#exchange = undefined;
      exchange?.closed();
    });
    socket.connect(this.#target);
  }

  /** The exchange is complete; the connection serves the next one unless the server is going to close it. */
  release(keep) {
    this.#exchange = undefined;
    if (!keep) this.close();
  }
}

/** One request's answer: HTTP/1.1 with a length, in chunks, or until the end of the connection. */
class Exchange {
  status = 0;
  events = 0;
  bytes = 0;
  startedAt = 0;
  firstEventAt = 0;
  marked = false;
  #mark;
  #counts;
  #onEnd;
  #onFirst;
  #buffer;
  #mode = 'head';
  #left = 0;
  #close = false;
  #carry = Buffer.alloc(0);

  /** @param {{ mark?: string, counts?: boolean, onEnd: Function, onFirst?: Function }} wishes */
  constructor({ mark, counts = false, onEnd, onFirst }) {
    this.#mark = mark === undefined ? undefined : Buffer.from(mark);
    this.#counts = counts;
    this.#onEnd = onEnd;
    this.#onFirst = onFirst;
  }

  begin() {
    this.startedAt = performance.now();
  }

  get ok() {
    return this.status >= 200 && this.status < 300 && (this.#mark === undefined || this.marked);
  }

  data(chunk, line) {
    let rest = this.#buffer === undefined ? chunk : Buffer.concat([this.#buffer, chunk]);
    this.#buffer = undefined;
    while (rest !== undefined && rest.length > 0) rest = this.#step(rest, line);
  }

  closed() {
    this.#onEnd(this);
  }

  #step(bytes, line) {
    switch (this.#mode) {
      case 'head': {
        const end = bytes.indexOf(HEAD_END);
        if (end < 0) return this.#keep(bytes);
        this.#readHead(bytes.latin1Slice(0, end).toLowerCase());
        if (this.#mode === 'length' && this.#left === 0) return this.#done(line);
        return bytes.subarray(end + 4);
      }
      case 'length':
      case 'chunk': {
        const piece = bytes.subarray(0, this.#left);
        this.#left -= piece.length;
        this.#body(piece);
        if (this.#left === 0) {
          if (this.#mode === 'length') return this.#done(line);
          this.#mode = 'chunk-end';
        }
        return bytes.subarray(piece.length);
      }
      case 'chunk-size': {
        const end = bytes.indexOf(LINE_END);
        if (end < 0) return this.#keep(bytes);
        this.#left = Number.parseInt(bytes.latin1Slice(0, end), 16);
        this.#mode = this.#left === 0 ? 'last' : 'chunk';
        return bytes.subarray(end + 2);
      }
      case 'chunk-end':
      case 'last': {
        if (bytes.length < 2) return this.#keep(bytes);
        if (this.#mode === 'last') return this.#done(line);
        this.#mode = 'chunk-size';
        return bytes.subarray(2);
      }
      default:
        this.#body(bytes);
        return undefined;
    }
  }

  #keep(bytes) {
    this.#buffer = bytes;
    return undefined;
  }

  #readHead(head) {
    this.status = Number(head.slice(9, 12));
    this.#close = head.includes('connection: close');
    const length = /content-length: (\d+)/.exec(head);
    if (head.includes('transfer-encoding: chunked')) this.#mode = 'chunk-size';
    else if (length === null && this.status !== 204) this.#mode = 'until-close';
    else {
      this.#mode = 'length';
      this.#left = length === null ? 0 : Number(length[1]);
    }
  }

  #body(piece) {
    this.bytes += piece.length;
    if (this.#mark === undefined && !this.#counts) return;
    // What is looked for may lie across two pieces.
    const seen = this.#carry.length === 0 ? piece : Buffer.concat([this.#carry, piece]);
    let counted = seen.length;
    if (this.firstEventAt === 0 && seen.indexOf(EVENT) >= 0) {
      this.firstEventAt = performance.now();
      this.#onFirst?.(this);
    }
    if (this.#counts) {
      for (let at = seen.indexOf(EVENT); at >= 0; at = seen.indexOf(EVENT, at + EVENT.length)) this.events += 1;
      // Only what cannot have been counted is carried over.
      const last = seen.lastIndexOf(EVENT);
      counted = Math.max(last < 0 ? 0 : last + EVENT.length, seen.length - EVENT.length + 1);
      counted = Math.min(counted, seen.length);
    }
    if (this.#mark !== undefined && !this.marked && seen.indexOf(this.#mark) >= 0) this.marked = true;
    const from = this.#counts ? counted : Math.max(0, seen.length - CARRY);
    this.#carry = seen.subarray(from);
  }

  #done(line) {
    line.release(!this.#close);
    this.#onEnd(this);
    return undefined;
  }
}

/** The bytes of a request. */
function bytesOf({ method = 'POST', path, headers = {}, body }) {
  const text = body === undefined ? '' : JSON.stringify(body);
  const all = { host: 'bench', ...headers };
  if (body !== undefined)
    Object.assign(all, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  return Buffer.from(`${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n${text}`);
}

function targetOf(url) {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) };
}

/** Connections by server, kept from one load to the next, as clients keep theirs. */
const kept = new Map();

/**
 * As many connections as asked for, all of them accepted: a busy Node server accepts one in each turn of its event loop, so that
 * a crowd that comes at once is let in over seconds, and a window would measure that.
 */
async function linesTo(url, count) {
  const lines = kept.get(url) ?? [];
  kept.set(url, lines);
  const before = lines.length;
  while (lines.length < count) lines.push(new Line(targetOf(url)));
  await Promise.all(lines.slice(0, count).map((line) => line.connected()));
  if (lines.length > before) await sleep(100);
  return lines.slice(0, count);
}

/**
 * Keeps `concurrency` requests under way for `ms`, or until every line has sent `each`, and lets the last ones end. The n-th
 * line sends the n-th request, then that which is as many further on as there are lines, and so on around.
 */
async function load({
  url,
  requests,
  concurrency,
  ms = Number.POSITIVE_INFINITY,
  each = Number.POSITIVE_INFINITY,
  mark,
}) {
  const lines = await linesTo(url, concurrency);
  const encoded = requests.map(bytesOf);
  const firsts = [];
  const faults = {};
  let done = 0;
  const startedAt = performance.now();
  const until = startedAt + ms;
  await Promise.all(
    lines.map(async (line, index) => {
      let begun = 0;
      await new Promise((resolve) => {
        const next = () => {
          if (begun >= each || performance.now() >= until) {
            resolve();
            return;
          }
          const bytes = encoded[(index + begun * concurrency) % encoded.length];
          begun += 1;
          line.ask(bytes, new Exchange({ mark, onEnd: ended }));
        };
        const ended = (exchange) => {
          done += 1;
          if (!exchange.ok) countFault(faults, exchange);
          else if (exchange.firstEventAt > 0) firsts.push(exchange.firstEventAt - exchange.startedAt);
          next();
        };
        next();
      });
    }),
  );
  return { done, ms: performance.now() - startedAt, firsts, faults };
}

/** Streams that are open: for each handle what they come to. */
const groups = new Map();

/**
 * Opens `count` streams, `ramp` at a time, and resolves when each has had its first event. They stay open; `ended` tells what
 * came of them.
 */
async function open({ handle, url, requests, count, ramp = 128, mark }) {
  const target = targetOf(url);
  const encoded = requests.map(bytesOf);
  const result = { events: 0, bytes: 0, whole: 0, faults: {} };
  const ends = [];
  const startedAt = performance.now();
  let next = 0;
  const opener = async () => {
    while (next < count) {
      const bytes = encoded[next % encoded.length];
      next += 1;
      await new Promise((opened) => {
        const line = new Line(target);
        ends.push(
          new Promise((resolve) => {
            const onEnd = (exchange) => {
              result.events += exchange.events;
              result.bytes += exchange.bytes;
              if (exchange.ok) result.whole += 1;
              else countFault(result.faults, exchange);
              line.close();
              opened();
              resolve();
            };
            line.ask(bytes, new Exchange({ mark, counts: mark === undefined, onEnd, onFirst: opened }));
          }),
        );
      });
    }
  };
  await Promise.all(Array.from({ length: Math.min(ramp, count) }, opener));
  groups.set(handle, { ends, result });
  return { ms: performance.now() - startedAt };
}

/** Resolves when every stream of a group is over. */
async function ended({ handle }) {
  const { ends, result } = groups.get(handle);
  await Promise.all(ends);
  groups.delete(handle);
  return result;
}

function countFault(faults, { status, marked }) {
  const name = marked ? String(status) : `${status}, unfinished`;
  faults[name] = (faults[name] ?? 0) + 1;
}

onCommands({ load, open, ended });
tell({ url: '' });
