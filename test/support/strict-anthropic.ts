import { isObject, type JsonObject } from './json-path.js';
import {
  type CheckedRequest,
  checkCount,
  checkModel,
  checkToolChoice,
  checkToolName,
  checkTools,
  isBlank,
  objectsOf,
  refuse,
} from './strict-checks.js';

interface Turn {
  readonly role: string;
  readonly blocks: readonly JsonObject[];
  readonly index: number;
}

/** Refuses what the Anthropic Messages API refuses. */
export function checkMessages({ body, headers }: CheckedRequest): void {
  if (headers['anthropic-version'] === undefined) refuse('anthropic-version: header is required');
  checkModel(body);
  if (body.max_tokens === undefined) refuse('max_tokens: Field required');
  checkCount(body.max_tokens, 'max_tokens');
  checkSystem(body.system);
  checkDeclaredTools(body);
  const messages = body.messages;
  if (!Array.isArray(messages) || messages.length === 0) refuse('messages: at least one message is required');
  const turns = mergeRoles((messages as readonly unknown[]).map(readMessage));
  if (turns[0]?.role !== 'user') refuse('messages: first message must use the "user" role');
  checkPairing(turns);
  checkLast(messages.at(-1));
  checkCaching(body, turns);
}

const MOST_CACHE_BLOCKS = 4;

/** Few breakpoints, each on something that can be cached, and none after one that lasts longer than it. */
function checkCaching(body: JsonObject, turns: readonly Turn[]): void {
  const blocks = [...objectsOf(body.tools), ...objectsOf(body.system), ...turns.flatMap((turn) => turn.blocks)];
  const controls = blocks.flatMap(({ type, cache_control: control }) => {
    if (control === undefined || control === null) return [];
    if (type === 'thinking') refuse('thinking.cache_control: Extra inputs are not permitted');
    if (!isObject(control) || control.type !== 'ephemeral') refuse("cache_control.type: Input should be 'ephemeral'");
    const { ttl = '5m' } = control;
    if (ttl !== '5m' && ttl !== '1h') refuse("cache_control.ttl: Input should be '5m' or '1h'");
    return [ttl];
  });
  if (controls.length > MOST_CACHE_BLOCKS) {
    refuse(`A maximum of ${MOST_CACHE_BLOCKS} blocks with cache_control may be provided. Found ${controls.length}.`);
  }
  if (controls.lastIndexOf('1h') > controls.indexOf('5m') && controls.includes('5m')) {
    refuse("cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block.");
  }
}

function checkSystem(system: unknown): void {
  if (system === undefined) return;
  const blocks = typeof system === 'string' ? [{ type: 'text', text: system }] : system;
  if (!Array.isArray(blocks)) refuse('system: Input should be a valid list');
  for (const [index, block] of objectsOf(blocks).entries()) checkText(block, `system.${index}`);
}

function checkDeclaredTools(body: JsonObject): void {
  const tools = body.tools;
  if (tools !== undefined && !Array.isArray(tools)) refuse('tools: Input should be a valid list');
  // Tools with a dated type run at the provider and declare no schema.
  const own = objectsOf(tools).filter((tool) => tool.type === undefined || tool.type === 'custom');
  const declared = own.map((tool, index) => ({
    name: tool.name,
    schema: tool.input_schema,
    param: `tools.${index}.custom`,
  }));
  const names = new Set(checkTools(declared));
  for (const tool of objectsOf(tools)) if (typeof tool.name === 'string') names.add(tool.name);
  const choice = body.tool_choice;
  checkToolChoice(choice, isObject(choice) && choice.type === 'tool' ? choice.name : undefined, names);
}

function readMessage(message: unknown, index: number): Turn {
  const at = `messages.${index}`;
  if (!isObject(message)) refuse(`${at}: Input should be a valid dictionary`);
  const { role, content } = message;
  if (role === 'system') {
    const hint = 'The Messages API accepts a top-level `system` parameter, not "system" as an input message role.';
    refuse(`messages: Unexpected role "system". ${hint}`);
  }
  if (role !== 'user' && role !== 'assistant') refuse(`${at}.role: Input should be 'user' or 'assistant'`);
  const blocks = typeof content === 'string' ? [{ type: 'text', text: content }] : content;
  if (!Array.isArray(blocks)) refuse(`${at}.content: Input should be a valid list`);
  if (blocks.length === 0 || content === '') {
    refuse(`${at}: all messages must have non-empty content except for the optional final assistant message`);
  }
  const read = (blocks as readonly unknown[]).map((block, place) => {
    if (!isObject(block)) refuse(`${at}.content.${place}: Input should be a valid dictionary`);
    checkBlock(block, role, `${at}.content.${place}`);
    return block;
  });
  return { role, blocks: read, index };
}

function checkText(block: JsonObject, at: string): void {
  const { text } = block;
  if (typeof text !== 'string') refuse(`${at}.text.text: Input should be a valid string`);
  if (text === '') refuse('messages: text content blocks must be non-empty');
  if (isBlank(text)) refuse('messages: text content blocks must contain non-whitespace text');
}

function checkBlock(block: JsonObject, role: string, at: string): void {
  switch (block.type) {
    case 'text':
      checkText(block, at);
      return;
    case 'tool_use':
      checkToolUse(block, role, at);
      return;
    case 'tool_result':
      checkToolResult(block, role, at);
      return;
    case 'thinking':
      if (role !== 'assistant') refuse(`${at}: \`thinking\` blocks can only be in \`assistant\` messages`);
      if (typeof block.signature !== 'string' || block.signature === '') {
        refuse(`${at}.thinking.signature: Field required`);
      }
      return;
    case 'image':
    case 'document':
      if (!isObject(block.source)) refuse(`${at}.source: Field required`);
      return;
    default:
      if (typeof block.type !== 'string') refuse(`${at}.type: Field required`);
  }
}

function checkToolUse(block: JsonObject, role: string, at: string): void {
  if (role !== 'assistant') refuse(`${at}: \`tool_use\` blocks can only be in \`assistant\` messages`);
  const { id } = block;
  if (typeof id !== 'string' || !/^[a-zA-Z0-9_-]+$/.test(id)) {
    refuse(`${at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'`);
  }
  checkToolName(block.name, `${at}.tool_use.name`);
  if (!isObject(block.input)) refuse(`${at}.tool_use.input: Input should be a valid dictionary`);
}

function checkToolResult(block: JsonObject, role: string, at: string): void {
  if (role !== 'user') refuse(`${at}: \`tool_result\` blocks can only be in \`user\` messages`);
  if (typeof block.tool_use_id !== 'string') refuse(`${at}.tool_result.tool_use_id: Field required`);
  const { content } = block;
  if (content === undefined || typeof content === 'string') return;
  if (!Array.isArray(content)) refuse(`${at}.tool_result.content: Input should be a valid list`);
  for (const [index, part] of objectsOf(content).entries()) {
    if (part.type === 'text') checkText(part, `${at}.tool_result.content.${index}`);
  }
}

/** The API reads neighbours of one role as one turn. */
function mergeRoles(messages: readonly Turn[]): readonly Turn[] {
  const turns: Turn[] = [];
  for (const message of messages) {
    const last = turns.at(-1);
    if (last?.role !== message.role) turns.push(message);
    else turns[turns.length - 1] = { ...last, blocks: [...last.blocks, ...message.blocks] };
  }
  return turns;
}

function checkPairing(turns: readonly Turn[]): void {
  const everUsed = new Set<unknown>();
  let open: ReadonlySet<unknown> = new Set();
  let openAt = 0;
  for (const turn of turns) {
    if (turn.role === 'user') {
      checkResults(turn, open, openAt);
      open = new Set();
      continue;
    }
    const ids = turn.blocks.filter((block) => block.type === 'tool_use').map((block) => block.id);
    for (const id of ids) {
      if (everUsed.has(id)) refuse(`messages.${turn.index}: \`tool_use\` ids must be unique`);
      everUsed.add(id);
    }
    open = new Set(ids);
    openAt = turn.index;
  }
  if (open.size > 0) refuseUnanswered(open, openAt);
}

function checkResults(turn: Turn, open: ReadonlySet<unknown>, openAt: number): void {
  const unanswered = new Set(open);
  let otherSeen = false;
  for (const [place, block] of turn.blocks.entries()) {
    if (block.type !== 'tool_result') {
      otherSeen = true;
      continue;
    }
    const id = block.tool_use_id;
    const at = `messages.${turn.index}.content.${place}`;
    if (!open.has(id)) {
      const rule = 'Each `tool_result` block must have a corresponding `tool_use` block in the previous message.';
      refuse(`${at}: unexpected \`tool_use_id\` found in \`tool_result\` blocks: ${String(id)}. ${rule}`);
    }
    if (!unanswered.delete(id)) {
      refuse(
        `${at}: each tool_use must have a single result. Found multiple \`tool_result\` blocks with id: ${String(id)}`,
      );
    }
    if (otherSeen) refuseUnanswered(new Set([id]), openAt);
  }
  if (unanswered.size > 0) refuseUnanswered(unanswered, openAt);
}

function refuseUnanswered(open: ReadonlySet<unknown>, index: number): never {
  const rule = 'Each `tool_use` block must have a corresponding `tool_result` block in the next message.';
  const found = '`tool_use` ids were found without `tool_result` blocks immediately after';
  refuse(`messages.${index}: ${found}: ${[...open].join(', ')}. ${rule}`);
}

function checkLast(message: unknown): void {
  if (!isObject(message) || message.role !== 'assistant') return;
  const { content } = message;
  const last = Array.isArray(content) ? objectsOf(content).at(-1) : undefined;
  const text = typeof content === 'string' ? content : last?.text;
  if (typeof text === 'string' && text !== text.trimEnd()) {
    refuse('messages: final assistant content cannot end with trailing whitespace');
  }
}
