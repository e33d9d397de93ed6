// An MCP server over stdio that does what a test asks of it, without the SDK. Arguments: `--deaf` ignores the end of its input
// and SIGTERM, `--noisy` prints what is no message, `--silent` never answers the initialisation. What happens is appended to the
// file that EVENTS_FILE names, one JSON object a line.
import { spawn } from 'node:child_process';
import { appendFileSync, readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const { EVENTS_FILE, CANARY_TOKEN } = process.env;
const flags = new Set(process.argv.slice(2));
const note = (event) =>
  EVENTS_FILE && appendFileSync(EVENTS_FILE, `${JSON.stringify({ pid: process.pid, ...event })}\n`);
const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
const text = (words) => ({ content: [{ type: 'text', text: words }] });

note({ type: 'started' });
if (CANARY_TOKEN) process.stderr.write(`using the token ${CANARY_TOKEN}\n`);
if (flags.has('--noisy')) process.stdout.write('\uFEFFwelcome\r\n\n{"half": \n');
if (flags.has('--deaf')) {
  process.on('SIGTERM', () => note({ type: 'sigterm' }));
  setInterval(() => undefined, 1000);
}
if (flags.has('--fails')) {
  process.stderr.write(`cannot start with ${CANARY_TOKEN}\n`.repeat(1000));
  process.exit(3);
}

const declared = ['echo', 'pid', 'env', 'hang', 'once', 'progress', 'crash', 'fork', 'change', 'secret'];
let extra = [];
const tools = () =>
  [...declared, ...extra].map((name) => ({
    name,
    description: `Does ${name}.`,
    inputSchema: { type: 'object', properties: { text: { type: 'string' } } },
    ...(name === 'pid' || name === 'once' ? { annotations: { readOnlyHint: true } } : {}),
  }));

const calls = {
  echo: ({ text: words = '' }) => text(words),
  pid: () => text(String(process.pid)),
  env: () => text(Object.keys(process.env).sort().join(' ')),
  hang: () => undefined,
  // Answers from the second call on, whichever process gets it.
  once: () => (readFileSync(EVENTS_FILE, 'utf8').split('"once"').length > 2 ? text('at last') : undefined),
  progress: (_args, { progressToken }) => {
    for (const progress of [1, 2]) {
      send({
        method: 'notifications/progress',
        params: { progressToken, progress, total: 2, message: `step ${progress}` },
      });
    }
    return text('done');
  },
  crash: () => process.exit(7),
  fork: () => {
    const child = spawn(process.execPath, ['-e', 'process.on("SIGTERM", () => {}); setInterval(() => {}, 1000)'], {
      stdio: 'ignore',
    });
    note({ type: 'forked', child: child.pid });
    return text(String(child.pid));
  },
  change: () => {
    extra = ['added'];
    send({ method: 'notifications/tools/list_changed' });
    return text('changed');
  },
  secret: () => ({ isError: true, ...text(`the token ${CANARY_TOKEN} is not right`) }),
  added: () => text('added'),
};

function answer({ method, params = {} }) {
  switch (method) {
    case 'initialize':
      return flags.has('--silent')
        ? undefined
        : {
            protocolVersion: params.protocolVersion,
            capabilities: { tools: { listChanged: true } },
            serverInfo: { name: 'program', version: '1' },
          };
    case 'tools/list':
      return { tools: tools() };
    case 'tools/call':
      note({ type: 'called', tool: params.name, key: params._meta?.['shimline/idempotencyKey'] });
      return calls[params.name]?.(params.arguments ?? {}, params._meta ?? {});
    default:
      return {};
  }
}

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const message = JSON.parse(line);
    if (message.method === 'notifications/cancelled') note({ type: 'cancelled' });
    if (message.id === undefined) return;
    const result = answer(message);
    if (result !== undefined) send({ id: message.id, result });
  })
  .on('close', () => {
    note({ type: 'end of input' });
    if (!flags.has('--deaf')) process.exit(0);
  });
