import { isObject, type JsonObject, listOf } from './json-path.js';
import {
  type CheckedRequest,
  checkArgumentText,
  checkCount,
  checkModel,
  checkToolChoice,
  checkToolName,
  checkTools,
  isBlank,
  objectsOf,
  refuse,
} from './strict-checks.js';

/** What the API has stored: items by id, and the calls of each response. */
export interface StoredResponses {
  item(id: string): JsonObject | undefined;
  response(id: string): readonly JsonObject[] | undefined;
}

/** Refuses what the Responses API refuses, as far as the pairing of calls and outputs, tools and blank texts go. */
export function checkResponses({ body }: CheckedRequest, stored: StoredResponses): void {
  checkModel(body);
  checkCount(body.max_output_tokens, 'max_output_tokens');
  checkDeclaredTools(body);
  const { input } = body;
  if (typeof input === 'string') {
    if (isBlank(input)) refuse("Invalid 'input': the text is blank.", { param: 'input' });
    checkPairing([...earlierItems(body.previous_response_id, stored), { role: 'user', content: input }]);
    return;
  }
  if (!Array.isArray(input) || input.length === 0) refuse("Missing required parameter: 'input'.", { param: 'input' });
  const items = (input as readonly unknown[]).map((item, index) => resolveItem(item, index, stored));
  checkPairing([...earlierItems(body.previous_response_id, stored), ...items]);
}

function earlierItems(id: unknown, stored: StoredResponses): readonly JsonObject[] {
  if (id === undefined || id === null) return [];
  if (typeof id !== 'string') refuse('Invalid type: expected a string.', { param: 'previous_response_id' });
  return (
    stored.response(id) ?? refuse(`Previous response with id '${id}' not found.`, { param: 'previous_response_id' })
  );
}

function checkDeclaredTools(body: JsonObject): void {
  const functions = objectsOf(body.tools).filter((tool) => tool.type === 'function');
  const names = checkTools(
    functions.map((tool, index) => ({
      name: tool.name,
      schema: tool.parameters ?? { type: 'object' },
      param: `tools[${index}]`,
    })),
  );
  const choice = body.tool_choice;
  if (listOf(body.tools).length > functions.length) return;
  checkToolChoice(choice, isObject(choice) && choice.type === 'function' ? choice.name : undefined, names);
}

function resolveItem(item: unknown, index: number, stored: StoredResponses): JsonObject {
  const at = `input[${index}]`;
  if (!isObject(item)) refuse(`Invalid type for '${at}': expected an object.`, { param: at });
  switch (item.type) {
    case 'item_reference': {
      const found = typeof item.id === 'string' ? stored.item(item.id) : undefined;
      return found ?? refuse(`Item with id '${String(item.id)}' not found.`, { param: at, status: 404 });
    }
    case 'function_call':
      checkCallId(item, at);
      checkToolName(item.name, `${at}.name`);
      checkArgumentText(item.arguments, `${at}.arguments`);
      return item;
    case 'function_call_output':
      checkCallId(item, at);
      if (typeof item.output !== 'string' && !Array.isArray(item.output)) {
        refuse(`Missing required parameter: '${at}.output'.`, { param: at });
      }
      return item;
    case undefined:
    case 'message':
      checkMessage(item, at);
      return item;
    default:
      return item;
  }
}

function checkCallId(item: JsonObject, at: string): void {
  const id = item.call_id;
  if (typeof id !== 'string' || id === '') refuse(`Missing required parameter: '${at}.call_id'.`, { param: at });
  if (id.length > 64) refuse(`Invalid '${at}.call_id': string too long. Expected maximum length 64.`, { param: at });
}

function checkMessage(item: JsonObject, at: string): void {
  const { role, content } = item;
  if (!['user', 'assistant', 'system', 'developer'].includes(String(role))) {
    refuse(`Invalid value for '${at}.role'.`, { param: `${at}.role`, code: 'invalid_value' });
  }
  const parts = typeof content === 'string' ? [{ type: 'input_text', text: content }] : content;
  if (!Array.isArray(parts) || parts.length === 0) refuse(`Invalid '${at}.content'.`, { param: `${at}.content` });
  for (const part of objectsOf(parts)) {
    if (part.text !== undefined && isBlank(part.text)) {
      refuse(`Invalid '${at}.content': the text is blank.`, { param: `${at}.content` });
    }
  }
}

function checkPairing(items: readonly JsonObject[]): void {
  const called = new Set<unknown>();
  const answered = new Set<unknown>();
  for (const [index, item] of items.entries()) {
    const id = item.call_id;
    if (item.type === 'function_call') {
      if (called.has(id)) refuse(`Duplicate function call with call_id ${String(id)}.`, { param: 'input' });
      called.add(id);
    }
    if (item.type === 'function_call_output') {
      if (!called.has(id)) refuse(`No tool call found for function call output with call_id ${String(id)}.`);
      if (answered.has(id)) refuse(`Duplicate function call output with call_id ${String(id)}.`, { param: 'input' });
      answered.add(id);
    }
    const next = items[index + 1];
    if (item.type === 'reasoning' && (next === undefined || isOfUser(next))) {
      const what = `Item '${String(item.id)}' of type 'reasoning'`;
      refuse(`${what} was provided without its required following item.`, { param: 'input' });
    }
  }
  for (const id of called) {
    if (!answered.has(id)) refuse(`No tool output found for function call ${String(id)}.`, { param: 'input' });
  }
}

function isOfUser(item: JsonObject): boolean {
  return item.role === 'user' || item.type === 'function_call_output';
}
