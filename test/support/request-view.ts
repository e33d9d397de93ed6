import { isObject, type JsonObject, listOf } from './json-path.js';
import type { ReceivedRequest } from './model-endpoint.js';

export interface SeenResult {
  /** Gemini pairs by name, so there it is the name. */
  readonly id: string;
  readonly text: string;
}

/** The messages of a request, whatever the dialect calls them. */
export function messagesOf({ body }: ReceivedRequest): readonly JsonObject[] {
  return listOf(body.messages ?? body.input ?? body.contents).filter(isObject);
}

/** Every tool result that the model is shown, in order, in any dialect. */
export function toolResultsOf(request: ReceivedRequest): readonly SeenResult[] {
  return messagesOf(request).flatMap((message) => {
    if (message.role === 'tool') return [{ id: String(message.tool_call_id), text: textOf(message.content) }];
    if (message.type === 'function_call_output') {
      return [{ id: String(message.call_id), text: textOf(message.output) }];
    }
    return listOf(message.content ?? message.parts)
      .filter(isObject)
      .flatMap(resultOfBlock);
  });
}

function resultOfBlock(block: JsonObject): SeenResult[] {
  if (block.type === 'tool_result') return [{ id: String(block.tool_use_id), text: textOf(block.content) }];
  const answer = block.functionResponse;
  return isObject(answer) ? [{ id: String(answer.name), text: JSON.stringify(answer.response) }] : [];
}

/** The text of the last message that a user wrote (tool results are none). */
export function lastUserText(request: ReceivedRequest): string {
  const texts = messagesOf(request)
    .filter((message) => message.role === 'user')
    .map((message) => textOf(message.content ?? message.parts))
    .filter((text) => text !== '');
  return texts.at(-1) ?? '';
}

/** The names of the tools that the model is offered. */
export function toolNamesOf({ body }: ReceivedRequest): readonly string[] {
  const tools = listOf(body.tools).filter(isObject);
  const declared = tools.flatMap((tool) => {
    if (isObject(tool.function)) return [tool.function];
    return Array.isArray(tool.functionDeclarations) ? listOf(tool.functionDeclarations).filter(isObject) : [tool];
  });
  return declared.map((tool) => String(tool.name));
}

function textOf(content: unknown): string {
  if (typeof content === 'string') return content;
  const texts = listOf(content).map((part) => (isObject(part) && typeof part.text === 'string' ? part.text : ''));
  return texts.join('');
}
