// The smallest honest agent loop: one process, one file, every step one transaction, no shims, no resume, no cancel. It is what
// the machine can do, by hand (F1: `call: 'hand'`) or with the provider package that the product uses (F2: `call: 'package'`).
import { randomUUID } from 'node:crypto';
import { Agent, request as httpRequest } from 'node:http';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import Database from 'better-sqlite3';
import Fastify from 'fastify';
import { z } from 'zod';
import { listen, onCommands, options } from './parent.mjs';

const ECHO = z.object({ x: z.number() });
const PARAMETERS = { type: 'object', properties: { x: { type: 'number' } }, required: ['x'] };
const DESCRIPTION = 'Doubles a number.';
const MOST_TURNS = 100;

const database = new Database(options.file);
database.pragma('journal_mode = WAL');
database.pragma(`synchronous = ${options.sync}`);
database.exec(`
  CREATE TABLE run (id TEXT PRIMARY KEY, conversation TEXT, state TEXT, at INTEGER) WITHOUT ROWID;
  CREATE TABLE message (conversation TEXT, place INTEGER, run TEXT, json TEXT, PRIMARY KEY (conversation, place)) WITHOUT ROWID;
  CREATE TABLE event (run TEXT, place INTEGER, json TEXT, PRIMARY KEY (run, place)) WITHOUT ROWID;`);
const insertRun = database.prepare('INSERT INTO run VALUES (?, ?, ?, ?)');
const endRun = database.prepare('UPDATE run SET state = ? WHERE id = ?');
const insertMessage = database.prepare('INSERT INTO message VALUES (?, ?, ?, ?)');
const insertEvent = database.prepare('INSERT INTO event VALUES (?, ?, ?)');
const readMessages = database.prepare('SELECT json FROM message WHERE conversation = ? ORDER BY place').pluck();
const inTransaction = database.transaction((step) => step());

const callModel = options.call === 'package' ? packageCaller() : handCaller();

/** One call spoken by hand over kept connections. */
function handCaller() {
  const { hostname, port } = new URL(options.model);
  const agent = new Agent({ keepAlive: true, maxFreeSockets: 4096, scheduling: 'lifo' });
  const tool = { type: 'function', function: { name: 'echo', description: DESCRIPTION, parameters: PARAMETERS } };
  const prefix = `{"model":"fake","stream":true,"tools":[${JSON.stringify(tool)}],"messages":[`;
  return (messages, onDelta, signal) =>
    new Promise((resolve, reject) => {
      const body = Buffer.from(`${prefix}${messages.join(',')}]}`);
      const headers = { 'content-type': 'application/json', 'content-length': body.length };
      const target = { hostname, port, path: '/v1/chat/completions', method: 'POST', agent, signal, headers };
      const call = httpRequest(target, (response) => {
        let pending = '';
        let text = '';
        let toolCall;
        response.setEncoding('utf8');
        response.on('data', (chunk) => {
          const frames = (pending + chunk).split('\n\n');
          pending = frames.pop();
          for (const frame of frames) {
            if (frame === 'data: [DONE]') continue;
            const delta = JSON.parse(frame.slice(6)).choices[0]?.delta;
            if (delta?.content) {
              text += delta.content;
              onDelta(delta.content);
            }
            for (const piece of delta?.tool_calls ?? []) {
              toolCall ??= { id: piece.id, name: piece.function.name, args: '' };
              toolCall.args += piece.function.arguments ?? '';
            }
          }
        });
        response.on('end', () => resolve({ text, toolCall }));
        response.on('error', reject);
      });
      call.on('error', reject);
      call.end(body);
    });
}

/** The same call through the provider package, with its own fetch. */
function packageCaller() {
  const model = createOpenAICompatible({ name: 'fake', baseURL: `${options.model}/v1`, includeUsage: true }).chatModel(
    'fake',
  );
  const tools = [{ type: 'function', name: 'echo', description: DESCRIPTION, inputSchema: PARAMETERS }];
  return async (messages, onDelta, abortSignal) => {
    const { stream } = await model.doStream({ prompt: messages.map(promptMessage), tools, abortSignal });
    let text = '';
    let toolCall;
    for await (const part of stream) {
      if (part.type === 'text-delta') {
        text += part.delta;
        onDelta(part.delta);
      } else if (part.type === 'tool-call') toolCall = { id: part.toolCallId, name: part.toolName, args: part.input };
      else if (part.type === 'error') throw part.error;
    }
    return { text, toolCall };
  };
}

function promptMessage(json) {
  const { role, content, tool_calls: calls, tool_call_id: toolCallId } = JSON.parse(json);
  switch (role) {
    case 'user':
      return { role, content: [{ type: 'text', text: content }] };
    case 'tool':
      return {
        role,
        content: [{ type: 'tool-result', toolCallId, toolName: 'echo', output: { type: 'text', value: content } }],
      };
    default:
      if (calls === undefined) return { role, content: [{ type: 'text', text: content }] };
      return {
        role,
        content: calls.map((call) => ({
          type: 'tool-call',
          toolCallId: call.id,
          toolName: call.function.name,
          input: JSON.parse(call.function.arguments),
        })),
      };
  }
}

const app = Fastify();
app.setValidatorCompiler(({ schema }) => (value) => {
  const parsed = schema.safeParse(value);
  return parsed.success ? { value: parsed.data } : { error: parsed.error };
});
const body = z.object({ prompt: z.string(), conversation: z.string().optional() });

app.post('/runs', { schema: { body } }, async (request, reply) => {
  const run = randomUUID();
  const { prompt, conversation = run } = request.body;
  const gone = new AbortController();
  const response = reply.raw;
  reply.hijack();
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
  response.on('close', () => {
    if (!response.writableFinished) gone.abort();
  });
  const messages = request.body.conversation === undefined ? [] : readMessages.all(conversation);
  let events = 0;
  const addMessage = (message) => {
    const json = JSON.stringify(message);
    insertMessage.run(conversation, messages.length, run, json);
    messages.push(json);
  };
  const addEvent = (type, fields) => {
    const json = JSON.stringify({ type, run, ...fields });
    response.write(`id: ${events}\nevent: ${type}\ndata: ${json}\n\n`);
    insertEvent.run(run, events, json);
    events += 1;
  };
  const onDelta = (text) => response.write(`event: delta\ndata: ${JSON.stringify({ text })}\n\n`);
  inTransaction(() => {
    insertRun.run(run, conversation, 'running', Date.now());
    addMessage({ role: 'user', content: prompt });
    addEvent('run.started', {});
  });
  try {
    for (let turn = 0; turn < MOST_TURNS; turn += 1) {
      const { text, toolCall } = await callModel(messages, onDelta, gone.signal);
      if (toolCall === undefined) {
        inTransaction(() => {
          addMessage({ role: 'assistant', content: text });
          endRun.run('completed', run);
          addEvent('run.completed', { text });
        });
        break;
      }
      const { id, name, args } = toolCall;
      inTransaction(() => {
        addMessage({
          role: 'assistant',
          content: null,
          tool_calls: [{ id, type: 'function', function: { name, arguments: args } }],
        });
        addEvent('tool.started', { id, name, args });
      });
      const result = JSON.stringify({ y: ECHO.parse(JSON.parse(args)).x * 2 });
      inTransaction(() => {
        addMessage({ role: 'tool', tool_call_id: id, content: result });
        addEvent('tool.completed', { id, result });
      });
    }
  } catch (error) {
    response.write(`event: run.failed\ndata: ${JSON.stringify(String(error))}\n\n`);
  }
  response.end();
});

onCommands({ describe: async () => ({ file: options.file }) });
await app.ready();
app.server.keepAliveTimeout = 600_000;
listen(app.server);
