import { expect, it } from 'vitest';
import clock from '../../shims/clock.js';
import excludeTools from '../../shims/exclude-tools.js';
import replyPrefix from '../../shims/reply-prefix.js';
import turnCounter from '../../shims/turn-counter.js';
import { defineShim, defineTool, type RunContext, type Tool, z } from '../../src/shims.js';
import { type RecordedRequest, type ScriptedReply, testShim } from '../../src/testing.js';

const call = (toolName: string, input: Readonly<Record<string, string>> = {}): ScriptedReply => ({
  toolCalls: [{ toolName, input }],
});

/** The output of the last tool result that a request carries. */
function resultIn(request: RecordedRequest | undefined): unknown {
  const message = request?.prompt.findLast(({ role }) => role === 'tool');
  return message?.role === 'tool' && message.content[0]?.type === 'tool-result' ? message.content[0].output : undefined;
}

const tool = (name: string): Tool =>
  defineTool({ name, description: 'Runs it.', parameters: z.object({}), execute: () => 'ran' });
const bash = tool('bash');

it('reply-prefix appends its instruction once per conversation, with its default prefix or the configured one', async () => {
  const run = await testShim(replyPrefix, { instructions: 'You are kind.' });
  const again = await run.resume('again');
  expect([run, again].map(({ requests }) => requests[0]?.system)).toEqual(
    Array(2).fill('You are kind.\n\nBegin every reply with "Care note:".'),
  );
  const other = await testShim(replyPrefix, { config: { prefix: 'NB:' } });
  expect(other.requests[0]?.system).toBe('Begin every reply with "NB:".');
});

it('turn-counter counts the turns of the conversation in its state and those of the attempt in the transient state', async () => {
  const seen: unknown[] = [];
  const watch = defineShim({
    name: 'watch',
    onRunEnd: (_result, transient: RunContext) => void seen.push(transient.toJSON()),
  });
  const run = await testShim(turnCounter, {
    tools: [bash],
    after: [turnCounter.create({}, { name: 'second' }), watch],
    script: [call('bash'), 'one'],
  });
  const again = await run.resume('again');
  expect(again.state).toEqual({
    'turn-counter': { turns: 3 },
    'turn-counter:version': 1,
    second: { turns: 3 },
    'second:version': 1,
  });
  expect(seen).toEqual([
    { 'turn-counter:turns': 2, 'second:turns': 2 },
    { 'turn-counter:turns': 1, 'second:turns': 1 },
  ]);
});

it('exclude-tools hides tools of the agent and of shims on either side of it', async () => {
  const late = defineShim({
    name: 'late',
    prepareTurn: (turn) => {
      turn.addTools([tool('late')]);
    },
  });
  const run = await testShim(excludeTools, {
    config: { names: ['bash', 'late', 'nobody'] },
    tools: [bash],
    before: [clock],
    after: [late],
  });
  expect(run.tools).toEqual([['clock']]);
  expect(() => excludeTools.create()).toThrow('/names');
});

it('clock contributes a tool that tells the time in a zone, and says what is wrong with a bad one', async () => {
  const before = Date.now();
  const { requests } = await testShim(clock, {
    script: [call('clock', { zone: 'Asia/Tokyo' }), call('clock', { zone: 'Mars/Base' }), call('clock'), 'done'],
  });
  const { value } = resultIn(requests[1]) as {
    readonly value: { readonly zone: string; readonly local: string; readonly utc: string };
  };
  expect(value.zone).toBe('Asia/Tokyo');
  const tokyo = new Date(Date.parse(value.utc) + 9 * 3_600_000);
  expect(value.local).toContain(tokyo.toISOString().slice(11, 19));
  expect(Date.parse(value.utc)).toBeGreaterThanOrEqual(before);
  expect(Date.parse(value.utc)).toBeLessThanOrEqual(Date.now());
  expect(resultIn(requests[2])).toEqual({
    type: 'error-text',
    value: 'There is no time zone "Mars/Base". Use an IANA name, e.g. Europe/Berlin.',
  });
  expect(resultIn(requests[3])).toMatchObject({ type: 'json', value: { zone: 'UTC' } });
});
