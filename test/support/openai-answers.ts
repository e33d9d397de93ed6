import type { Frame, FramePart, PlannedCall, PlannedReply, Usage } from './model-reply.js';

export interface AnswerContext {
  readonly id: string;
  readonly model: string;
  /** Chat Completions tells the usage of a stream only when asked to. */
  readonly includeUsage: boolean;
}

const created = 1_700_000_000;

function chatUsage(usage: Usage): object {
  return {
    prompt_tokens: usage.input,
    completion_tokens: usage.output,
    total_tokens: usage.input + usage.output,
    prompt_tokens_details: { cached_tokens: usage.cached },
    completion_tokens_details: { reasoning_tokens: usage.reasoning },
  };
}

// A refusal is a normal end whose text stands in a field of its own.
const finishOf = (reply: PlannedReply): string | null => (reply.finish === 'refusal' ? 'stop' : reply.finish);
const textField = (reply: PlannedReply): string => (reply.finish === 'refusal' ? 'refusal' : 'content');

function chatCall(call: PlannedCall, text: string): object {
  return {
    ...(call.id === undefined ? {} : { id: call.id }),
    type: 'function',
    function: { name: call.name, arguments: text },
  };
}

export function chatFrames(reply: PlannedReply, context: AnswerContext): Frame[] {
  const base = { id: context.id, object: 'chat.completion.chunk', created, model: context.model };
  const noUsage = context.includeUsage ? { usage: null } : {};
  const frames: Frame[] = [];
  const add = (part: FramePart, delta: object, marks: Partial<Frame> = {}, finish: string | null = null): void => {
    const chunk = { ...base, choices: [{ index: 0, delta, logprobs: null, finish_reason: finish }], ...noUsage };
    frames.push({ part, data: JSON.stringify(chunk), ...marks });
  };
  add('open', { role: 'assistant', content: reply.text.length > 0 ? '' : null });
  for (const text of reply.reasoning) add('reasoning', { reasoning_content: text }, { delta: true });
  for (const text of reply.text) add('text', { [textField(reply)]: text }, { delta: true });
  for (const [index, call] of reply.toolCalls.entries()) {
    if (call.chunks.length === 0) {
      add('tool', { tool_calls: [{ index, ...chatCall(call, call.arguments) }] }, { delta: true, call: index });
      continue;
    }
    add('tool', { tool_calls: [{ index, ...chatCall(call, '') }] }, { lead: true, call: index });
    for (const chunk of call.chunks) {
      add('tool', { tool_calls: [{ index, function: { arguments: chunk } }] }, { delta: true, call: index });
    }
  }
  add('finish', {}, {}, finishOf(reply));
  if (context.includeUsage) {
    const data = JSON.stringify({ ...base, choices: [], usage: chatUsage(reply.usage) });
    frames.push({ part: 'usage', data, usage: true });
  }
  frames.push({ part: 'done', data: '[DONE]' });
  return frames;
}

export function chatJson(reply: PlannedReply, context: AnswerContext): object {
  const text = reply.text.length > 0 ? reply.text.join('') : null;
  const refused = reply.finish === 'refusal';
  const message = {
    role: 'assistant',
    content: refused ? null : text,
    refusal: refused ? text : null,
    ...(reply.reasoning.length > 0 ? { reasoning_content: reply.reasoning.join('') } : {}),
    ...(reply.toolCalls.length > 0
      ? { tool_calls: reply.toolCalls.map((call) => chatCall(call, call.arguments)) }
      : {}),
  };
  return {
    id: context.id,
    object: 'chat.completion',
    created,
    model: context.model,
    choices: [{ index: 0, message, logprobs: null, finish_reason: finishOf(reply) }],
    usage: chatUsage(reply.usage),
  };
}
