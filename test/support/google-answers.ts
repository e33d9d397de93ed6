import { parseJson } from './json-path.js';
import type { Frame, PlannedCall, PlannedReply, Usage } from './model-reply.js';
import type { AnswerContext } from './openai-answers.js';

const finishReasons: Readonly<Record<string, string>> = {
  stop: 'STOP',
  tool_calls: 'STOP',
  length: 'MAX_TOKENS',
  content_filter: 'SAFETY',
  refusal: 'PROHIBITED_CONTENT',
};

function usageMetadata(usage: Usage): object {
  return {
    promptTokenCount: usage.input,
    candidatesTokenCount: usage.output - usage.reasoning,
    thoughtsTokenCount: usage.reasoning,
    cachedContentTokenCount: usage.cached,
    totalTokenCount: usage.input + usage.output,
  };
}

function callPart(call: PlannedCall): object {
  const parsed = parseJson(call.arguments);
  const args = parsed.ok ? parsed.value : call.arguments;
  return { functionCall: { ...(call.id === undefined ? {} : { id: call.id }), name: call.name, args } };
}

const finishOf = (reply: PlannedReply): object =>
  reply.finish === null ? {} : { finishReason: finishReasons[reply.finish] ?? reply.finish };

function chunk(parts: readonly object[], context: AnswerContext, extra: object = {}, usage?: Usage): string {
  return JSON.stringify({
    candidates: [{ content: { role: 'model', parts }, index: 0, ...extra }],
    ...(usage === undefined ? {} : { usageMetadata: usageMetadata(usage) }),
    modelVersion: context.model,
    responseId: context.id,
  });
}

export function contentFrames(reply: PlannedReply, context: AnswerContext): Frame[] {
  const frames: Frame[] = [];
  for (const text of reply.reasoning) {
    frames.push({ part: 'reasoning', data: chunk([{ text, thought: true }], context), delta: true });
  }
  for (const text of reply.text) frames.push({ part: 'text', data: chunk([{ text }], context), delta: true });
  for (const [call, planned] of reply.toolCalls.entries()) {
    frames.push({ part: 'tool', data: chunk([callPart(planned)], context), delta: true, call });
  }
  const data = chunk([{ text: '' }], context, finishOf(reply), reply.usage);
  frames.push({ part: 'finish', data, usage: true });
  return frames;
}

export function contentJson(reply: PlannedReply, context: AnswerContext): object {
  const parts: object[] = reply.reasoning.map((text) => ({ text, thought: true }));
  if (reply.text.length > 0) parts.push({ text: reply.text.join('') });
  parts.push(...reply.toolCalls.map(callPart));
  return JSON.parse(chunk(parts, context, finishOf(reply), reply.usage)) as object;
}
