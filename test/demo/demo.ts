// A run from end to end, as a client sees it: nothing here but HTTP, and signals to a server that this file starts.
// Offline: the model is the built-in scripted/demo, which does what the lines of a message say.
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { ServerProcess } from '../support/server-process.js';
import { openStream, type SseStream } from '../support/sse-client.js';
import { type DemoEvent, DemoEventSchema } from './demo-event.js';
import { Screen } from './screen.js';

const RunSchema = z.looseObject({
  id: z.string(),
  status: z.string(),
  attempt: z.int(),
  recoveries: z.int(),
  output: z.unknown(),
  partialOutput: z.string().nullable(),
  lastSeq: z.int(),
  turnCount: z.int(),
});
const StateSchema = z.looseObject({ instructions: z.string(), history: z.array(z.unknown()) });

const ANSWER = 'It is late in Berlin, and this is a sentence that a kill will cut in two.';
const QUESTION = [
  'say First I look at the clock.',
  'call clock {"zone": "Europe/Berlin"}',
  `say ${ANSWER}`,
  'tokdelay=60',
].join('\n');
const PREFIX = 'Begin every reply with "Care note:".';

// Interrupted, it still ends the server that it has started: the exit hook of ServerProcess does.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1));

const startedAt = performance.now();
const screen = new Screen('Shimline: post a run, watch it, kill the server, go on, resume, approve, cancel', 7);

screen.step('Start a server on an empty data folder');
const server = await ServerProcess.start({ shimsDir: fileURLToPath(new URL('shims', import.meta.url)) });
screen.note(`${server.url}, process ${server.pid}, data in ${server.dataDir}`);

screen.step('Post a run to the agent "demo" and stream it');
screen.note(`POST /v1/runs, Accept: text/event-stream, input:`);
for (const line of QUESTION.split('\n')) screen.note(`  ${line}`);
const posted = await openStream(`${server.url}/v1/runs`, { body: { agent: 'demo', input: QUESTION } });
const runPath = String(posted.headers['content-location']);
let words = 0;
const before = await show(posted, ({ type, turn }) => type === 'model.delta' && turn === 2 && ++words === 9);
const cursor = String(before.at(-1)?.seq);
screen.claim(
  'shims changed the instruction, the state and the tools of the run',
  ['instructions', 'state', 'tools+'].every((part) => changed(before).has(part)),
);

screen.step(`kill -9 ${server.pid}, in the middle of the answer`);
const { signal } = await server.kill9();
screen.claim(`the server is dead, the client has seen ${cursor} events`, signal === 'SIGKILL');

screen.step('Start it again, and continue the same stream by its cursor');
await server.restart();
screen.note(`GET ${runPath}/events, Last-Event-ID: ${cursor}`);
const after = await show(await follow(runPath, cursor));
const all = [...before, ...after];
const cut = before.findLast(({ type }) => type === 'model.started');
const again = after.find(({ type }) => type === 'model.started');
const recovered = await readRun(runPath);
screen.claim(
  `ids 1 to ${all.length} over both processes, none missing, none twice`,
  isContiguous(all) && all.length === recovered.lastSeq,
);
screen.claim(
  'the run was recovered, and its new model call names the one it replaces',
  after.some(({ type }) => type === 'run.recovered') &&
    again?.replaces !== undefined &&
    again.replaces === cut?.modelCallId &&
    recovered.recoveries === 1,
);
screen.claim('the tool call from before the kill was not made again', ranTools(all) === 1);
screen.claim('the answer is whole', recovered.status === 'completed' && recovered.output === ANSWER);

screen.step('Resume the same run with a new input');
const resumed = await show(
  await openStream(`${server.url}${runPath}/resume`, { body: { input: 'say Yes, I still know what we spoke of.' } }),
);
const continued = await readRun(runPath);
const state = StateSchema.parse((await server.json('GET', `${runPath}/state`)).body);
screen.claim(
  'attempt 2 goes on in the same log, history and turn count',
  isContiguous([...all, ...resumed]) &&
    continued.attempt === 2 &&
    continued.turnCount === 3 &&
    state.history.length === 6,
);
screen.claim('the prefix instruction, appended once, is there once', state.instructions.split(PREFIX).length === 2);

screen.step('Let a person decide: the tool waits, is approved, and runs once');
await server.json('PUT', '/v1/agents/careful', {
  model: 'scripted/demo',
  shims: [{ use: 'clock' }, { use: 'ask-first', config: { tools: ['clock'] } }],
});
const gated = await openStream(`${server.url}/v1/runs`, {
  body: { agent: 'careful', input: 'call clock {"zone": "Asia/Tokyo"}' },
});
const gatedPath = String(gated.headers['content-location']);
const asked = await show(gated);
const interruption = asked.at(-1)?.interruptions?.[0]?.id;
screen.note(`POST ${gatedPath}/resume {"decisions": [{"id": "${interruption ?? ''}", "decision": "approve"}]}`);
const approved = await show(
  await openStream(`${server.url}${gatedPath}/resume`, {
    body: { decisions: [{ id: interruption, decision: 'approve' }] },
  }),
);
screen.claim(
  'nothing ran before the approval, and the call ran once after it',
  ranTools(asked) === 0 && ranTools(approved) === 1 && approved.at(-1)?.type === 'run.completed',
);

screen.step('Cancel another run while it speaks');
const endless = await openStream(`${server.url}/v1/runs`, {
  body: { agent: 'demo', input: 'tokens=5000 tokdelay=50' },
});
const endlessPath = String(endless.headers['content-location']);
await show(endless, ({ type, seq }) => type === 'model.delta' && seq >= 20);
screen.note(`DELETE ${endlessPath}`);
const ending = await show(await openStream(`${server.url}${endlessPath}`, { method: 'DELETE' }));
const cancelled = await readRun(endlessPath);
const receipt = ending.at(-1)?.cancellation?.inFlight ?? [];
screen.claim(
  'its receipt says that the model call was in flight and stopped',
  receipt.length === 1 && receipt.every(({ kind, obeyed }) => kind === 'model' && obeyed),
);
screen.claim(
  'it is cancelled, and what was said is kept',
  cancelled.status === 'cancelled' && cancelled.partialOutput?.startsWith('tok tok') === true,
);

const exitCode = await server.term();
screen.claim('SIGTERM ends the server with code 0', exitCode === 0);
const held = screen.end((performance.now() - startedAt) / 1000);
process.exitCode = held ? 0 : 1;

/** Shows and returns the events of a stream, to the first for which `until` holds or to its end. */
async function show(stream: SseStream, until: (event: DemoEvent) => boolean = () => false): Promise<DemoEvent[]> {
  if (stream.status !== 200) throw new Error(`the stream was refused with ${stream.status}: ${await stream.text()}`);
  const events: DemoEvent[] = [];
  for await (const { json } of stream) {
    const event = DemoEventSchema.parse(json);
    events.push(event);
    screen.event(event);
    if (until(event)) break;
  }
  screen.flush();
  return events;
}

async function follow(path: string, lastEventId: string): Promise<SseStream> {
  return openStream(`${server.url}${path}/events`, { headers: { 'last-event-id': lastEventId } });
}

async function readRun(path: string): Promise<z.infer<typeof RunSchema>> {
  return RunSchema.parse((await server.json('GET', path)).body);
}

function isContiguous(events: readonly DemoEvent[]): boolean {
  return events.length > 0 && events.every(({ seq }, at) => seq === at + 1);
}

/** What shims changed in these events: `instructions`, `tools+`, `state`, … */
function changed(events: readonly DemoEvent[]): ReadonlySet<string> {
  return new Set(events.flatMap(({ changes = [] }) => changes.map(({ what }) => what)));
}

function ranTools(events: readonly DemoEvent[]): number {
  return events.filter(({ type }) => type === 'tool.started').length;
}
