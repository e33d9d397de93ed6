import type { JsonObject } from './json-path.js';
import type { Frame, FramePart, PlannedCall, PlannedReply } from './model-reply.js';
import type { AnswerContext } from './openai-answers.js';

const created = 1_700_000_000;
const endings: Readonly<Record<string, string>> = { length: 'max_output_tokens', content_filter: 'content_filter' };

/** The output items of a reply, as the API would store them. */
export function responsesItems(reply: PlannedReply, context: AnswerContext): readonly JsonObject[] {
  const items: JsonObject[] = [];
  if (reply.reasoning.length > 0) {
    const summary = [{ type: 'summary_text', text: reply.reasoning.join('') }];
    items.push({ type: 'reasoning', id: `rs_${context.id}`, summary });
  }
  if (reply.text.length > 0) {
    const text = reply.text.join('');
    const part =
      reply.finish === 'refusal'
        ? { type: 'refusal', refusal: text }
        : { type: 'output_text', text, annotations: [], logprobs: [] };
    const id = `msg_${context.id}`;
    items.push({ type: 'message', id, status: 'completed', role: 'assistant', content: [part] });
  }
  for (const [index, call] of reply.toolCalls.entries()) items.push(callItem(call, `fc_${context.id}_${index}`));
  return items;
}

function callItem(call: PlannedCall, id: string): JsonObject {
  const name = { name: call.name, arguments: call.arguments, status: 'completed' };
  return { type: 'function_call', id, ...(call.id === undefined ? {} : { call_id: call.id }), ...name };
}

/** The response object, as the whole JSON answer and as the last event of a stream carry it. */
export function responsesJson(reply: PlannedReply, context: AnswerContext): JsonObject {
  const { usage, finish } = reply;
  const complete = finish === 'stop' || finish === 'tool_calls' || finish === 'refusal' || finish === null;
  return {
    ...openResponse(context),
    status: complete ? 'completed' : 'incomplete',
    incomplete_details: complete ? null : { reason: endings[finish] ?? finish },
    output: responsesItems(reply, context),
    usage: {
      input_tokens: usage.input,
      input_tokens_details: { cached_tokens: usage.cached },
      output_tokens: usage.output,
      output_tokens_details: { reasoning_tokens: usage.reasoning },
      total_tokens: usage.input + usage.output,
    },
  };
}

function openResponse(context: AnswerContext): JsonObject {
  const fixed = { object: 'response', created_at: created, status: 'in_progress', error: null };
  return { id: context.id, ...fixed, incomplete_details: null, model: context.model, output: [], usage: null };
}

export function responsesFrames(reply: PlannedReply, context: AnswerContext): Frame[] {
  const frames: Frame[] = [];
  const add = (part: FramePart, type: string, fields: object, marks: Partial<Frame> = {}): void => {
    const data = JSON.stringify({ type, sequence_number: frames.length, ...fields });
    frames.push({ part, event: type, data, ...marks });
  };
  add('open', 'response.created', { response: openResponse(context) });
  add('open', 'response.in_progress', { response: openResponse(context) });
  let call = 0;
  for (const [index, item] of responsesItems(reply, context).entries()) {
    const at = { item_id: item.id, output_index: index };
    if (item.type === 'reasoning') addReasoning(add, item, at, reply.reasoning);
    else if (item.type === 'message') addMessage(add, item, at, reply);
    else {
      const planned = reply.toolCalls[call];
      if (planned !== undefined) addCall(add, item, at, planned, call);
      call += 1;
    }
  }
  const response = responsesJson(reply, context);
  add('done', `response.${String(response.status)}`, { response }, { usage: true });
  return frames;
}

type Add = (part: FramePart, type: string, fields: object, marks?: Partial<Frame>) => void;
interface Place {
  readonly item_id: unknown;
  readonly output_index: number;
}

function addReasoning(add: Add, item: JsonObject, at: Place, deltas: readonly string[]): void {
  const place = { ...at, summary_index: 0 };
  const text = deltas.join('');
  add('block', 'response.output_item.added', { output_index: at.output_index, item: { ...item, summary: [] } }, lead);
  const empty = { type: 'summary_text', text: '' };
  add('block', 'response.reasoning_summary_part.added', { ...place, part: empty }, lead);
  for (const delta of deltas) {
    add('reasoning', 'response.reasoning_summary_text.delta', { ...place, delta }, { delta: true });
  }
  add('block', 'response.reasoning_summary_text.done', { ...place, text });
  add('block', 'response.reasoning_summary_part.done', { ...place, part: { type: 'summary_text', text } });
  add('block', 'response.output_item.done', { output_index: at.output_index, item });
}

const lead = { lead: true } as const;

function addMessage(add: Add, item: JsonObject, at: Place, reply: PlannedReply): void {
  const place = { ...at, content_index: 0 };
  const refused = reply.finish === 'refusal';
  const kind = refused ? 'response.refusal' : 'response.output_text';
  const part = refused ? { type: 'refusal', refusal: '' } : { type: 'output_text', text: '', annotations: [] };
  const opened = { ...item, status: 'in_progress', content: [] };
  add('block', 'response.output_item.added', { output_index: at.output_index, item: opened }, lead);
  add('block', 'response.content_part.added', { ...place, part }, lead);
  for (const delta of reply.text) {
    add('text', `${kind}.delta`, { ...place, delta, ...(refused ? {} : { logprobs: [] }) }, { delta: true });
  }
  const text = reply.text.join('');
  add('block', `${kind}.done`, { ...place, ...(refused ? { refusal: text } : { text, logprobs: [] }) });
  add('block', 'response.output_item.done', { output_index: at.output_index, item });
}

function addCall(add: Add, item: JsonObject, at: Place, planned: PlannedCall, call: number): void {
  const opened = { ...item, arguments: '', status: 'in_progress' };
  add('tool', 'response.output_item.added', { output_index: at.output_index, item: opened }, { ...lead, call });
  const chunks = planned.chunks.length > 0 ? planned.chunks : [planned.arguments];
  for (const delta of chunks) {
    add('tool', 'response.function_call_arguments.delta', { ...at, delta }, { delta: true, call });
  }
  add('tool', 'response.function_call_arguments.done', { ...at, arguments: planned.arguments }, { call });
  add('tool', 'response.output_item.done', { output_index: at.output_index, item }, { call });
}
