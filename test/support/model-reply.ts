import { randomUUID } from 'node:crypto';

export interface Usage {
  readonly input: number;
  /** Reasoning included. */
  readonly output: number;
  /** Part of the input. */
  readonly cached: number;
  /** Part of the output. */
  readonly reasoning: number;
}

export interface ReplyToolCall {
  /** Left out: a fresh id. `null`: the call is sent without an id. `''` is sent as it is. */
  readonly id?: string | null;
  readonly name: string;
  /** A string is sent as it is, so it may be broken JSON. */
  readonly arguments: string | object;
  /** In how many deltas the arguments come; 0 sends a whole call in one chunk (Chat Completions only). Default 1. */
  readonly argumentChunks?: number;
}

export type CutPlace = 'headers' | 'role' | 'half-text' | 'text' | 'half-tool' | 'tool' | 'finish' | 'before-done';

export type Framing = 'lf' | 'crlf' | 'cr' | 'comments' | 'fields' | 'nospace' | 'multidata' | 'bom' | 'no-final-blank';

/** What the model says next, in no dialect. */
export interface Reply {
  readonly text?: string | readonly string[];
  readonly reasoning?: string | readonly string[];
  readonly toolCalls?: readonly ReplyToolCall[];
  /** `stop length tool_calls content_filter refusal`, or any other string as it is; `null` sends none. */
  readonly finish?: string | null;
  readonly usage?: Partial<Usage>;
  /** Anything but 200 answers with `errorBody`, or with the dialect's own error for that status. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly errorBody?: unknown;
  /** Before the headers. */
  readonly delayMs?: number;
  /** After each delta. */
  readonly tokenDelayMs?: number;
  readonly gate?: Promise<unknown>;
  /** Where the gate stands; a number is a count of deltas sent before it. Default `last-delta`. */
  readonly gateAt?: 'start' | 'body' | 'last-delta' | 'finish' | number;
  readonly cut?: { readonly after: CutPlace; readonly how: 'end' | 'reset' | 'stall' };
  /** `bare`: the error stands as plain JSON in the body, outside of any SSE frame. */
  readonly errorInStream?: { readonly after: number; readonly body: unknown; readonly bare?: boolean };
  readonly framing?: Framing;
  /** Only pings for ever; together with a `stall` cut, pings for ever from the cut on. */
  readonly pings?: boolean;
  readonly pingEveryMs?: number;
  /** The body is written in pieces of so many bytes, which may split characters and line ends. */
  readonly pieces?: { readonly bytes: number; readonly delayMs: number };
  /** Exactly these bytes are the body (of the streaming and of the JSON answer). */
  readonly raw?: Buffer | string;
}

export interface PlannedCall {
  readonly id: string | undefined;
  readonly name: string;
  readonly arguments: string;
  /** Empty: the whole call goes into one chunk. */
  readonly chunks: readonly string[];
}

/** A reply with every default filled in, still in no dialect. */
export interface PlannedReply {
  readonly text: readonly string[];
  readonly reasoning: readonly string[];
  readonly toolCalls: readonly PlannedCall[];
  readonly finish: string | null;
  readonly usage: Usage;
}

export type FramePart = 'open' | 'block' | 'reasoning' | 'text' | 'tool' | 'finish' | 'usage' | 'done';

/** One server-sent event of an answer. */
export interface Frame {
  readonly event?: string;
  readonly data: string;
  readonly part: FramePart;
  /** Counts as a delta. */
  readonly delta?: true;
  /** Belongs to the delta that follows, so nothing is put between them. */
  readonly lead?: true;
  /** Index of the tool call that it is a part of. */
  readonly call?: number;
  /** Tells the client the token counts of the whole call. */
  readonly usage?: true;
}

/** Refuses a reply that could not be sent as asked, at the line of the test that wrote it. */
export function assertSendable(reply: Reply): void {
  const place = reply.cut?.after;
  if ((place === 'text' || place === 'half-text') && deltasOf(reply.text).length === 0) {
    throw new Error(`a reply without text has no ${place} to cut after`);
  }
  if ((place === 'tool' || place === 'half-tool') && (reply.toolCalls ?? []).length === 0) {
    throw new Error(`a reply without tool calls has no ${place} to cut after`);
  }
}

export function planReply(reply: Reply): PlannedReply {
  const halfText = reply.cut?.after === 'half-text';
  const halfTool = reply.cut?.after === 'half-tool';
  const text = deltasOf(reply.text);
  const first = text[0];
  const pieces = halfText && text.length === 1 && first !== undefined ? splitText(first, 2) : text;
  const toolCalls = (reply.toolCalls ?? []).map((call) => planCall(call, halfTool));
  const reasoning = deltasOf(reply.reasoning);
  const counted = text.length + reasoning.length + toolCalls.length;
  return {
    text: pieces,
    reasoning,
    toolCalls,
    finish: reply.finish === undefined ? (toolCalls.length > 0 ? 'tool_calls' : 'stop') : reply.finish,
    usage: { input: 10, output: counted, cached: 0, reasoning: 0, ...reply.usage },
  };
}

function planCall(call: ReplyToolCall, half: boolean): PlannedCall {
  const text = typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments);
  const wanted = half ? Math.max(2, call.argumentChunks ?? 2) : (call.argumentChunks ?? 1);
  const fresh = `call_${randomUUID().replaceAll('-', '').slice(0, 24)}`;
  return {
    id: call.id === undefined ? fresh : (call.id ?? undefined),
    name: call.name,
    arguments: text,
    chunks: wanted === 0 ? [] : splitText(text, wanted),
  };
}

function deltasOf(text: string | readonly string[] | undefined): readonly string[] {
  if (text === undefined) return [];
  return typeof text === 'string' ? [text] : text;
}

/** Splits by code points, since no provider sends half an emoji. */
function splitText(text: string, count: number): string[] {
  const points = Array.from(text);
  const size = Math.max(1, Math.ceil(points.length / count));
  const parts: string[] = [];
  for (let at = 0; at < points.length; at += size) parts.push(points.slice(at, at + size).join(''));
  return parts.length > 0 ? parts : [''];
}

/** How many of the frames go out before the cut. */
export function cutIndex(frames: readonly Frame[], place: CutPlace): number {
  const last = (test: (frame: Frame) => boolean): number => frames.findLastIndex(test) + 1;
  const half = (test: (frame: Frame) => boolean): number => {
    const found = frames.flatMap((frame, index) => (test(frame) ? [index] : []));
    return (found[Math.max(1, Math.floor(found.length / 2)) - 1] ?? -1) + 1;
  };
  const lastCall = Math.max(-1, ...frames.map((frame) => frame.call ?? -1));
  switch (place) {
    case 'headers':
      return 0;
    case 'role':
      return last((frame) => frame.part === 'open');
    case 'half-text':
      return half((frame) => frame.part === 'text');
    case 'text':
      return last((frame) => frame.part === 'text');
    case 'half-tool':
      return half((frame) => frame.delta === true && frame.call === lastCall);
    case 'tool':
      return last((frame) => frame.part === 'tool');
    case 'finish':
      // The Responses API has no finish reason of its own: everything but the closing event.
      return last((frame) => frame.part === 'finish') || frames.findIndex((frame) => frame.part === 'done');
    case 'before-done': {
      const done = frames.findIndex((frame) => frame.part === 'done');
      // Gemini has no closing event: its last chunk carries the finish reason.
      return done >= 0 ? done : frames.findIndex((frame) => frame.part === 'finish');
    }
  }
}

/** Where an in-band error after so many deltas stands: before the next delta and what leads it in. */
export function errorIndex(frames: readonly Frame[], deltas: number): number {
  let seen = 0;
  let index = frames.findIndex((frame) => frame.delta === true && seen++ === deltas);
  if (index < 0) index = frames.findIndex((frame) => frame.part === 'finish' || frame.part === 'done');
  while (index > 0 && frames[index - 1]?.lead === true) index -= 1;
  return index;
}
