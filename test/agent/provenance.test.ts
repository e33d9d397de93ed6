import { describe, expect, it } from 'vitest';
import type { LifecycleEvent } from '../../src/agent/events.js';
import { defineShim, defineTool, internalMessage, z } from '../../src/shims.js';
import { calls, onTurn, runOnce, toolNamed } from './drive.js';

const effectsIn = (events: readonly LifecycleEvent[]): LifecycleEvent[] =>
  events.filter(({ type }) => type === 'shim.effect');
const digest = expect.stringMatching(/^[0-9a-f]{16}$/) as string;

describe('R115 every effect is an event with shim, callback, what, sizes, digests and duration', () => {
  it('R115 instructions, as a diff', async () => {
    const appends = onTurn('appends', (turn) => turn.appendSystemInstruction('Be brief.'));
    const { events } = await runOnce([appends], ['done'], { instructions: 'You are kind.' });
    expect(effectsIn(events)).toMatchObject([
      {
        shim: 'appends',
        callback: 'prepareTurn',
        turn: 1,
        ms: expect.any(Number) as number,
        changes: [
          {
            what: 'instructions',
            before: { size: 13, digest },
            after: { size: 24, digest },
            diff: { at: 13, removed: '', added: '\n\nBe brief.' },
          },
        ],
      },
    ]);
  });

  it('R115 tools+ and tools-', async () => {
    const adds = onTurn('adds', (turn) => turn.addTools([toolNamed('x'), toolNamed('y')]));
    const hides = onTurn('hides', (turn) => turn.excludeTools(['x', 'base']));
    const { events } = await runOnce([adds, hides], ['done'], { tools: [toolNamed('base')] });
    expect(effectsIn(events)).toMatchObject([
      { shim: 'adds', changes: [{ what: 'tools+', names: ['x', 'y'] }] },
      { shim: 'hides', changes: [{ what: 'tools-', names: ['base', 'x'] }] },
    ]);
  });

  it('R115 history+ and history=, never the text of an internal message', async () => {
    const marked = internalMessage({ role: 'user', content: 'top secret' }, { origin: 'view', ephemeral: true });
    const starts = defineShim({ name: 'starts', onRunStart: (state) => void state.history.push(marked) });
    const appends = onTurn('appends', (turn) => turn.appendHistoryItems(['note', { role: 'user', content: 'said' }]));
    const replaces = onTurn('replaces', (turn) => turn.replaceHistory(turn.runState.history.slice(1)));
    const { events } = await runOnce([starts, appends, replaces]);
    expect(effectsIn(events)).toMatchObject([
      {
        shim: 'starts',
        callback: 'onRunStart',
        changes: [
          {
            what: 'history+',
            items: [{ kind: 'message', role: 'user', internal: { origin: 'view', ephemeral: true }, digest }],
          },
        ],
      },
      {
        shim: 'appends',
        changes: [
          {
            what: 'history+',
            items: [
              { kind: 'content', size: 6, digest },
              { kind: 'message', role: 'user', digest },
            ],
          },
        ],
      },
      { shim: 'replaces', changes: [{ what: 'history=', before: 4, after: 3 }] },
    ]);
    expect(effectsIn(events)[0]).not.toHaveProperty('turn');
    expect(JSON.stringify(events)).not.toMatch(/top secret|note|said/);
  });

  it('R115 modelArgs, state and messages', async () => {
    const works = defineShim({
      name: 'works',
      state: z.object({ n: z.number().default(0) }),
      prepareTurn: (turn) => {
        turn.modelArgs = { ...turn.modelArgs, temperature: 0.5 };
        turn.runState.shimState.set('works:list', ['private value']);
        turn.state.n += 1;
      },
      transformMessages: (_turn, messages) => [...messages, { role: 'user', content: 'for one call' }],
      onModelResponse: (turn) => {
        turn.runState.shimState.delete('works:list');
      },
    });
    const { events } = await runOnce([works]);
    expect(effectsIn(events)).toMatchObject([
      {
        callback: 'prepareTurn',
        changes: [
          { what: 'modelArgs', before: { digest }, after: { size: 19, digest } },
          { what: 'state', key: 'works:list', op: 'set', size: 17, digest },
          { what: 'state', key: 'works', op: 'set' },
          { what: 'state', key: 'works:version', op: 'set' },
        ],
      },
      { callback: 'transformMessages', changes: [{ what: 'messages', before: { digest }, after: { digest } }] },
      { callback: 'onModelResponse', changes: [{ what: 'state', key: 'works:list', op: 'delete' }] },
    ]);
    expect(JSON.stringify(events)).not.toMatch(/private value|for one call/);
  });

  it('R115 what a tool writes through its shim, and a model call of its own', async () => {
    const works = defineShim({
      name: 'works',
      prepareTurn: (turn) => {
        const execute = async (): Promise<string> => {
          turn.runState.shimState.increment('works:calls');
          const summary = await turn.callModel(
            { messages: [{ role: 'user', content: 'sum up' }] },
            { purpose: 'summary' },
          );
          return typeof summary.message.content === 'string' ? summary.message.content : '';
        };
        turn.addTools([defineTool({ name: 'sum', description: '', parameters: z.object({}), execute })]);
      },
    });
    const { events } = await runOnce([works], [calls('sum'), 'short', 'done']);
    const inTurn1 = effectsIn(events).filter(({ turn }) => turn === 1);
    expect(inTurn1).toMatchObject([
      { shim: 'works', callback: 'prepareTurn', changes: [{ what: 'tools+', names: ['sum'] }] },
      {
        shim: 'works',
        callback: 'callModel',
        changes: [{ what: 'modelCall', purpose: 'summary', usage: { totalTokens: 2 } }],
      },
      { shim: 'works', callback: 'tool:sum', changes: [{ what: 'state', key: 'works:calls', op: 'set' }] },
    ]);
    expect(events.filter(({ type }) => type === 'model.started')).toHaveLength(2);
    expect(events.at(-1)).toMatchObject({ usage: { totalTokens: 6 } });
    expect(JSON.stringify(events)).not.toContain('sum up');
  });

  it('R115 a callback that changed nothing has no event', async () => {
    const idle = defineShim({
      name: 'idle',
      prepareTurn: (turn) => void turn.runState.shimState.get('x'),
      transformMessages: (_turn, messages) => messages,
    });
    const { events } = await runOnce([idle]);
    expect(effectsIn(events)).toEqual([]);
  });

  it('R115 snapshots at each boundary give counts, sizes and digests, never history', async () => {
    const { events } = await runOnce([], [calls('fast'), 'done'], {
      tools: [toolNamed('fast')],
      instructions: 'own words',
    });
    const snapshots = events.filter(({ type }) => type === 'state.snapshot');
    expect(snapshots.map(({ boundary }) => boundary)).toEqual([
      'runStart',
      'turnPrepared',
      'toolRoundEnd',
      'turnPrepared',
      'runEnd',
    ]);
    expect(snapshots.map(({ history }) => (history as { length: number }).length)).toEqual([1, 1, 3, 3, 4]);
    expect(JSON.stringify(snapshots)).not.toMatch(/hello|own words/);
  });
});
