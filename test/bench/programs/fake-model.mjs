// A model endpoint in the Chat Completions dialect that costs as little as possible. The newest user message steers it:
// `calls=3` calls the tool `echo` three times, one a turn, before the text; `deltas=20` pieces of text; `wait=5` milliseconds
// before the first byte; `gap=1` milliseconds between two pieces, which otherwise leave in one write; `hold=1` answers nothing
// before the bench says so.
import { createServer } from 'node:http';
import { listen, onCommands } from './parent.mjs';

const DIRECTIVE = /\b(calls|deltas|wait|gap|hold)=(\d+)/g;
const PIECE = 'word ';
const TAIL = '"finish_reason":null}]}\n\n';

/** The same prompts come again and again; this keeps their meaning. */
const known = new Map();

function directives(text) {
  let found = known.get(text);
  if (found === undefined) {
    found = { calls: 0, deltas: 20, wait: 0, gap: 0, hold: 0 };
    for (const [, name, digits] of text.matchAll(DIRECTIVE)) found[name] = Number(digits);
    if (known.size > 10_000) known.clear();
    known.set(text, found);
  }
  return found;
}

function textOf(content) {
  if (typeof content === 'string') return content;
  return Array.isArray(content) ? content.map((part) => part.text ?? '').join('') : '';
}

/** What the prompt asks for, and how many tool results it has had since. */
function read(messages) {
  let results = 0;
  for (let index = messages.length - 1; index >= 0; index -= 1) {
    const { role, content } = messages[index];
    if (role === 'user') return { ...directives(textOf(content)), results };
    if (role === 'tool') results += 1;
  }
  return { ...directives(''), results };
}

let answered = 0;

function answer(body, { calls, deltas, gap, results }, response) {
  const callsTool = results < calls && (body.tools?.some((tool) => tool.function.name === 'echo') ?? false);
  answered += 1;
  const id = `answer-${answered}`;
  const start = `data: {"id":"${id}","object":"chat.completion.chunk","created":1,"model":"fake",`;
  const open = `${start}"choices":[{"index":0,"delta":`;
  const piece = `${open}{"content":"${PIECE}"},${TAIL}`;
  const outputTokens = callsTool ? 8 : deltas;
  const close = `${open}{},"finish_reason":"${callsTool ? 'tool_calls' : 'stop'}"}]}\n\n`;
  const usage = `{"prompt_tokens":16,"completion_tokens":${outputTokens},"total_tokens":${16 + outputTokens}}`;
  const counted = body.stream_options?.include_usage === true ? `${start}"choices":[],"usage":${usage}}\n\n` : '';
  const end = `${close}${counted}data: [DONE]\n\n`;
  const first = `${open}{"role":"assistant","content":${callsTool ? 'null' : '""'}},${TAIL}`;
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
  if (callsTool) {
    const call = `{"index":0,"id":"call_${answered}","type":"function","function":{"name":"echo","arguments":""}}`;
    const args = `{"index":0,"function":{"arguments":"{\\"x\\":${results + 1}}"}}`;
    response.end(`${first}${open}{"tool_calls":[${call}]},${TAIL}${open}{"tool_calls":[${args}]},${TAIL}${end}`);
  } else if (gap === 0) response.end(first + piece.repeat(deltas) + end);
  else trickle(response, { first, piece, end, deltas, gap });
}

function trickle(response, { first, piece, end, deltas, gap }) {
  let left = deltas;
  response.write(first);
  const timer = setInterval(() => {
    if (left > 0) {
      left -= 1;
      response.write(piece);
      return;
    }
    clearInterval(timer);
    response.end(end);
  }, gap);
  response.on('close', () => clearInterval(timer));
}

/** Answers that wait for the bench. */
const held = new Set();

onCommands({
  held: async () => held.size,
  async release() {
    for (const begin of held) begin();
    held.clear();
  },
});

const server = createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const body = JSON.parse(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks));
    const wanted = read(body.messages);
    if (wanted.hold > 0) {
      const begin = () => answer(body, wanted, response);
      held.add(begin);
      response.on('close', () => held.delete(begin));
    } else if (wanted.wait === 0) answer(body, wanted, response);
    else {
      const timer = setTimeout(answer, wanted.wait, body, wanted, response);
      response.on('close', () => clearTimeout(timer));
    }
  });
});
// A connection that the other side keeps must never be closed under it.
Object.assign(server, { keepAliveTimeout: 600_000, headersTimeout: 610_000, requestTimeout: 0 });
listen(server);
