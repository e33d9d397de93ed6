import { isObject, type JsonObject } from './json-path.js';
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

const partsByRole: Readonly<Record<string, readonly string[]>> = {
  developer: ['text'],
  system: ['text'],
  user: ['text', 'image_url', 'input_audio', 'file'],
  assistant: ['text', 'refusal'],
  tool: ['text'],
};

/** Refuses what Chat Completions refuses. */
export function checkChatCompletions({ body }: CheckedRequest): void {
  checkModel(body);
  checkCount(body.max_tokens, 'max_tokens');
  checkCount(body.max_completion_tokens, 'max_completion_tokens');
  if (body.stream_options !== undefined && body.stream !== true) {
    refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.", { param: 'stream_options' });
  }
  checkDeclaredTools(body);
  const messages = body.messages;
  if (!Array.isArray(messages) || messages.length === 0) {
    refuse("Invalid 'messages': expected a non-empty array.", { param: 'messages' });
  }
  const checked = (messages as readonly unknown[]).map((message, index) => checkMessage(message, index));
  checkPairing(checked);
}

function checkDeclaredTools(body: JsonObject): void {
  const tools = body.tools;
  if (tools !== undefined && (!Array.isArray(tools) || tools.length === 0)) {
    refuse("Invalid 'tools': empty array. Expected an array with minimum length 1.", { param: 'tools' });
  }
  const declared = objectsOf(tools).map((tool, index) => {
    const definition = tool.function;
    const param = `tools[${index}].function`;
    if (tool.type !== 'function' || !isObject(definition)) refuse(`Invalid '${param}'.`, { param });
    const schema = definition.parameters ?? { type: 'object' };
    return { name: definition.name, schema, param };
  });
  const names = checkTools(declared);
  const choice = body.tool_choice;
  const forced = isObject(choice) && isObject(choice.function) ? choice.function.name : undefined;
  checkToolChoice(choice, forced, names);
  if (body.parallel_tool_calls !== undefined && names.size === 0) {
    refuse("'parallel_tool_calls' is only allowed when 'tools' are specified.", { param: 'parallel_tool_calls' });
  }
}

function checkMessage(message: unknown, index: number): JsonObject {
  const at = `messages[${index}]`;
  if (!isObject(message)) refuse(`Invalid type for '${at}': expected an object.`, { param: at });
  const role = message.role;
  const allowed = typeof role === 'string' ? partsByRole[role] : undefined;
  if (allowed === undefined) refuse(`Invalid value for '${at}.role'.`, { param: `${at}.role`, code: 'invalid_value' });
  const calls = message.tool_calls;
  if (calls !== undefined) checkCalls(role, calls, at);
  checkContent(message, allowed, at, calls !== undefined);
  if (role === 'tool' && typeof message.tool_call_id !== 'string') {
    refuse(`Missing required parameter: '${at}.tool_call_id'.`, { param: `${at}.tool_call_id` });
  }
  return message;
}

function checkContent(message: JsonObject, allowed: readonly string[], at: string, hasCalls: boolean): void {
  const { role, content } = message;
  const param = `${at}.content`;
  if (content === undefined || content === null) {
    if (role === 'assistant' && (hasCalls || typeof message.refusal === 'string')) return;
    refuse(`Invalid value for 'content': expected a string, got null.`, { param });
  }
  if (typeof content === 'string') {
    // Some models talk in line breaks before a call, and every provider takes that back.
    const blankIsLegal = role === 'tool' || (role === 'assistant' && hasCalls);
    if (isBlank(content) && !blankIsLegal) refuse(`Invalid '${param}': the text is blank.`, { param });
    return;
  }
  if (!Array.isArray(content)) refuse(`Invalid type for '${param}'.`, { param });
  if (content.length === 0) refuse(`Invalid '${param}': empty array.`, { param, code: 'empty_array' });
  for (const part of content as readonly unknown[]) {
    const type = isObject(part) ? part.type : undefined;
    if (!isObject(part) || typeof type !== 'string' || !allowed.includes(type)) {
      refuse(`Invalid value: '${String(type)}'. Supported values are: ${allowed.join(', ')}.`, { param });
    }
    if (type === 'text' && (typeof part.text !== 'string' || isBlank(part.text))) {
      refuse(`Invalid '${param}': text content blocks must contain non-whitespace text.`, { param });
    }
  }
}

function checkCalls(role: unknown, calls: unknown, at: string): void {
  const param = `${at}.tool_calls`;
  if (role !== 'assistant') refuse(`'${param}' is not allowed for this role.`, { param });
  if (!Array.isArray(calls) || calls.length === 0) {
    refuse(`Invalid '${param}': empty array. Expected an array with minimum length 1.`, { param, code: 'empty_array' });
  }
  const ids = new Set<string>();
  for (const [index, call] of (calls as readonly unknown[]).entries()) {
    const definition = isObject(call) ? call.function : undefined;
    if (!isObject(call) || call.type !== 'function' || !isObject(definition)) {
      refuse(`Invalid '${param}[${index}]'.`, { param });
    }
    const id = call.id;
    if (typeof id !== 'string' || id === '') refuse(`Missing required parameter: '${param}[${index}].id'.`, { param });
    if (id.length > 40) {
      refuse(`Invalid '${param}[${index}].id': string too long. Expected maximum length 40.`, { param });
    }
    if (ids.has(id)) refuse(`Duplicate value for 'tool_call_id' of '${id}' in message.`, { param });
    ids.add(id);
    checkToolName(definition.name, `${param}[${index}].function.name`);
    checkArgumentText(definition.arguments, `${param}[${index}].function.arguments`);
  }
}

function checkPairing(messages: readonly JsonObject[]): void {
  let open = new Set<unknown>();
  for (const [index, message] of messages.entries()) {
    if (message.role === 'tool') {
      if (!open.delete(message.tool_call_id)) {
        const why = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
        refuse(`Invalid parameter: ${why}`, { param: `messages.[${index}].role` });
      }
      continue;
    }
    refuseUnanswered(open, index);
    open = new Set(objectsOf(message.tool_calls).map((call) => call.id));
  }
  refuseUnanswered(open, messages.length);
}

function refuseUnanswered(open: ReadonlySet<unknown>, index: number): void {
  if (open.size === 0) return;
  const rule =
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.";
  const missing = [...open].join(', ');
  const param = `messages.[${index}].role`;
  refuse(`${rule} The following tool_call_ids did not have response messages: ${missing}`, { param });
}
