import { parseJson } from './json-path.js';
import type { Frame, FramePart, PlannedCall, PlannedReply, Usage } from './model-reply.js';
import type { AnswerContext } from './openai-answers.js';

const stopReasons: Readonly<Record<string, string>> = {
  stop: 'end_turn',
  length: 'max_tokens',
  tool_calls: 'tool_use',
  content_filter: 'refusal',
  refusal: 'refusal',
};

const stopReason = (reply: PlannedReply): string | null =>
  reply.finish === null ? null : (stopReasons[reply.finish] ?? reply.finish);

function inputUsage(usage: Usage): object {
  return {
    input_tokens: usage.input - usage.cached,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: usage.cached,
  };
}

function fullUsage(usage: Usage): object {
  const thinking = usage.reasoning > 0 ? { output_tokens_details: { thinking_tokens: usage.reasoning } } : {};
  return { ...inputUsage(usage), output_tokens: usage.output, ...thinking };
}

function toolUse(call: PlannedCall, input: unknown): object {
  return { type: 'tool_use', ...(call.id === undefined ? {} : { id: call.id }), name: call.name, input };
}

const signature = 'c2lnbmF0dXJl';

export function messagesFrames(reply: PlannedReply, context: AnswerContext): Frame[] {
  const frames: Frame[] = [];
  const add = (part: FramePart, type: string, fields: object, marks: Partial<Frame> = {}): void => {
    frames.push({ part, event: type, data: JSON.stringify({ type, ...fields }), ...marks });
  };
  let index = 0;
  const block = (part: FramePart, content: object, deltas: readonly object[], marks: Partial<Frame> = {}): void => {
    const edge = part === 'tool' ? 'tool' : 'block';
    add(edge, 'content_block_start', { index, content_block: content }, { ...marks, lead: true });
    for (const delta of deltas) add(part, 'content_block_delta', { index, delta }, { ...marks, delta: true });
    if (part === 'reasoning')
      add('block', 'content_block_delta', { index, delta: { type: 'signature_delta', signature } });
    add(edge, 'content_block_stop', { index }, marks);
    index += 1;
  };

  const message = { ...shell(context), content: [], stop_reason: null, stop_sequence: null };
  add('open', 'message_start', { message: { ...message, usage: { ...inputUsage(reply.usage), output_tokens: 1 } } });
  add('open', 'ping', {});
  if (reply.reasoning.length > 0) {
    const deltas = reply.reasoning.map((thinking) => ({ type: 'thinking_delta', thinking }));
    block('reasoning', { type: 'thinking', thinking: '', signature: '' }, deltas);
  }
  if (reply.text.length > 0) {
    block(
      'text',
      { type: 'text', text: '' },
      reply.text.map((text) => ({ type: 'text_delta', text })),
    );
  }
  for (const [call, planned] of reply.toolCalls.entries()) {
    const chunks = planned.chunks.length > 0 ? planned.chunks : [planned.arguments];
    const deltas = chunks.map((chunk) => ({ type: 'input_json_delta', partial_json: chunk }));
    block('tool', toolUse(planned, {}), deltas, { call });
  }
  const delta = { stop_reason: stopReason(reply), stop_sequence: null };
  add('finish', 'message_delta', { delta, usage: fullUsage(reply.usage) }, { usage: true });
  add('done', 'message_stop', {});
  return frames;
}

function shell(context: AnswerContext): object {
  return { id: context.id, type: 'message', role: 'assistant', model: context.model };
}

export function messagesJson(reply: PlannedReply, context: AnswerContext): object {
  const content: object[] = [];
  if (reply.reasoning.length > 0) content.push({ type: 'thinking', thinking: reply.reasoning.join(''), signature });
  if (reply.text.length > 0) content.push({ type: 'text', text: reply.text.join('') });
  for (const call of reply.toolCalls) {
    const parsed = parseJson(call.arguments);
    content.push(toolUse(call, parsed.ok ? parsed.value : call.arguments));
  }
  const ending = { stop_reason: stopReason(reply), stop_sequence: null, usage: fullUsage(reply.usage) };
  return { ...shell(context), content, ...ending };
}
