import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { mcpShim } from '../../shims/mcp/index.js';
import { resultOf } from '../../shims/mcp/results.js';
import { Secrets } from '../../shims/mcp/secrets.js';
import type { LifecycleEvent } from '../../src/agent/events.js';
import { defineShim } from '../../src/shims.js';
import { type RecordedRequest, type ScriptedReply, type TestedRun, testShim } from '../../src/testing.js';
import { type Framing, McpServer } from '../support/mcp-server.js';
import { waitFor } from '../support/wait.js';

let server: McpServer;
beforeEach(async () => {
  server = await McpServer.start();
});
afterEach(async () => {
  await server.close();
});

type Config = Parameters<typeof mcpShim>[0];
type ServerInput = NonNullable<Config['servers']>[string];

const only = (more: Partial<ServerInput> = {}, config: Config = {}): ReturnType<typeof mcpShim> =>
  mcpShim({ idleTimeoutMs: 0, ...config, servers: { fake: { url: server.url, ...more } } });

const call = (toolName: string, input: Readonly<Record<string, string>> = {}): ScriptedReply => ({
  toolCalls: [{ toolName, input }],
});

/** The outputs of the tool results that a request carries in its last message of them. */
function resultsIn(request: RecordedRequest | undefined): readonly unknown[] {
  const message = request?.prompt.findLast(({ role }) => role === 'tool');
  if (message?.role !== 'tool') return [];
  return message.content.map((part) => (part.type === 'tool-result' ? part.output : part));
}

const outcomes = (run: TestedRun): readonly unknown[] =>
  run.events
    .filter(({ type }) => type === 'tool.completed')
    .map((event) => ('result' in event ? event.result : (event as LifecycleEvent & { error?: unknown }).error));

const statuses = (run: TestedRun): readonly unknown[] =>
  run.events
    .filter(({ type }) => type === 'custom.mcp.status')
    .map((event) => (event as unknown as { data: unknown }).data);

/** Vitest's matchers are typed as anything. */
const like = expect as unknown as Record<'stringContaining' | 'stringMatching', (text: string | RegExp) => unknown> &
  Record<'any', (type: unknown) => unknown>;

const READ_ONLY = { annotations: { readOnlyHint: true } };

describe('tools of a server', () => {
  it('are named server__tool, ordered by name whatever the server does, and filtered by its own names', async () => {
    for (const name of ['write', 'read_all', 'read', 'list']) server.offer(name, () => name);
    const run = await testShim(only({ include: ['read*', 'list', 'nobody'], exclude: ['read_a*'] }), {
      script: [call('fake__read'), 'done'],
    });
    expect(run.tools).toEqual(Array(2).fill(['fake__list', 'fake__read']));
    expect(outcomes(run)).toEqual(['read']);
    expect(statuses(run)).toEqual([{ server: 'fake', state: 'ready', tools: 2 }]);
  });

  it('are filtered at once, however many stars a filter has', async () => {
    for (const name of ['a'.repeat(50), `${'a'.repeat(50)}b`]) server.offer(name, () => name);
    // With a RegExp that is minutes.
    const run = await testShim(only({ include: [`${'*a'.repeat(8)}b`] }), { script: ['done'] });
    expect(run.tools).toEqual([[`fake__${'a'.repeat(50)}b`]]);
  });

  it('X04 a bad declaration is set aside with its reason, and the others work', async () => {
    const schemas: Readonly<Record<string, unknown>> = {
      string: { type: 'string' },
      any_of: { type: 'object', anyOf: [{ required: ['a'] }] },
      one_of: { oneOf: [{ type: 'object' }] },
      cyclic: {
        type: 'object',
        properties: { next: { $ref: '#/$defs/node' } },
        $defs: { node: { type: 'object', properties: { next: { $ref: '#/$defs/node' } } } },
      },
      itself: { type: 'object', properties: { next: { $ref: '#' } } },
      dangling: { type: 'object', properties: { a: { $ref: '#/$defs/none' } } },
      inside: { type: 'object', properties: { a: { type: 'string' }, required: ['a'] } },
      huge: { type: 'object', properties: { a: { type: 'string', description: 'x'.repeat(5_000_000) } } },
      halves: { type: 'object', properties: { '\ud800': { type: 'string' } } },
      deep: JSON.parse(`${'{"type":"object","properties":{"a":'.repeat(100)}{}${'}}'.repeat(100)}`),
    };
    server.tools = [
      ...Object.entries(schemas).map(([name, inputSchema]) => ({ name, inputSchema })),
      { name: 'missing' },
      { inputSchema: { type: 'object' } },
      'no tool at all',
    ];
    server.offer('good', () => 'fine', {
      description: ' ',
      inputSchema: {
        properties: { at: { $ref: '#/definitions/place' } },
        definitions: { place: { type: 'string', minLength: 2 } },
      },
    });
    server.tools = [...server.tools, { name: 'good', inputSchema: { type: 'object' } }];
    const run = await testShim(only(), {
      script: [call('fake__good', { at: 'x' }), call('fake__good', { at: 'xy' }), 'done'],
    });
    expect(run.tools).toEqual(Array(3).fill(['fake__good']));
    expect(run.requests[0]?.options.tools?.[0]).toMatchObject({
      description: 'good',
      inputSchema: { type: 'object', properties: { at: { type: 'string', minLength: 2 } } },
    });
    expect(outcomes(run)).toEqual([expect.objectContaining({ kind: 'invalid_arguments' }), 'fine']);
    const [{ setAside, ...status }] = statuses(run) as [{ setAside: readonly { tool: string; reason: string }[] }];
    expect(status).toEqual({ server: 'fake', state: 'ready', tools: 1 });
    expect(Object.fromEntries(setAside.map(({ tool, reason }) => [tool, reason]))).toEqual({
      string: 'its input schema is of type "string", not "object"',
      any_of: 'its input schema has "anyOf" at the top level',
      one_of: 'its input schema has "oneOf" at the top level',
      cyclic: 'its input schema refers to itself (#/$defs/node)',
      itself: 'its input schema refers to itself (#)',
      dangling: 'its input schema refers to something that is not in it (#/$defs/none)',
      inside: like.stringContaining('This is no valid JSON Schema'),
      huge: like.stringContaining('its input schema is too large (5000'),
      deep: 'its input schema is too large or too deep',
      halves: 'its input schema has halves of characters',
      missing: 'it has no input schema',
      '(without a name)': 'its declaration is not what the protocol says',
      good: 'the server declares it twice',
    });
    expect(setAside).toHaveLength(14);
  });

  it('X04 no pattern of a schema takes for ever, and what an object has by nature is no argument', async () => {
    server.offer('slow', () => 'slow', {
      inputSchema: { type: 'object', properties: { a: { type: 'string', pattern: '^(a+)+$' } } },
    });
    server.offer('ahead', () => 'ahead', {
      inputSchema: { type: 'object', properties: { a: { type: 'string', pattern: '^(?!b)a', minLength: 2 } } },
    });
    server.offer('nature', () => 'nature', {
      inputSchema: { type: 'object', properties: { constructor: { type: 'string' } } },
    });
    // With a RegExp each letter more doubles the time: ten letters more would be minutes.
    const endless = `${'a'.repeat(29)}!`;
    const run = await testShim(only(), {
      script: [
        call('fake__slow', { a: endless }),
        call('fake__slow', { a: 'aaa' }),
        call('fake__ahead', { a: 'a' }),
        call('fake__ahead', { a: 'ba' }),
        call('fake__nature'),
        'done',
      ],
    });
    expect(outcomes(run)).toEqual([
      {
        message: 'The arguments of fake__slow are refused: /a: must match pattern "^(a+)+$"',
        kind: 'invalid_arguments',
      },
      'slow',
      expect.objectContaining({ kind: 'invalid_arguments' }),
      // Look-ahead is left to the server.
      'ahead',
      'nature',
    ]);
  });

  it('X04 names are made legal and unique, and map back exactly, also between servers with the same tools', async () => {
    const names = ['search', 'a.b', 'a b', 'a_b', 'ünï', 'x'.repeat(90), `${'x'.repeat(90)}y`];
    for (const name of names) server.offer(name, () => `ran ${name}`);
    const shim = mcpShim({ idleTimeoutMs: 0, servers: { one: { url: server.url }, two: { url: server.url } } });
    const first = await testShim(shim, { script: ['done'] });
    const [tools = []] = first.tools;
    expect(tools).toHaveLength(14);
    expect(new Set(tools).size).toBe(14);
    expect(tools.filter((name) => !/^(?:one|two)__[a-zA-Z0-9_-]{1,59}$/.test(name))).toEqual([]);
    expect(tools).toEqual(expect.arrayContaining(['one__search', 'two__search', 'one__a_b']));
    const ofOne = tools.filter((name) => name.startsWith('one__'));
    const run = await testShim(shim, { script: [{ toolCalls: ofOne.map((toolName) => ({ toolName })) }, 'done'] });
    expect(new Set(outcomes(run))).toEqual(new Set(names.map((name) => `ran ${name}`)));
  });

  it('change at the next turn after the server gave notice', async () => {
    server.offer('first', () => {
      if (server.tools.length > 1) return 'waited';
      server.offer('second', () => 'two');
      server.notify('notifications/tools/list_changed');
      return 'one';
    });
    // The notice and the answer come in different streams, so it may be heard some turns later.
    const untilSecond = ({ tools }: RecordedRequest): ScriptedReply =>
      tools.includes('fake__second') ? { text: 'done' } : call('fake__first');
    const run = await testShim(only(), { script: [], otherwise: untilSecond, before: [listening] });
    expect(run.tools.at(0)).toEqual(['fake__first']);
    expect(run.tools.at(-1)).toEqual(['fake__first', 'fake__second']);
    expect(statuses(run).map((status) => (status as { tools: number }).tools)).toEqual([1, 2]);
    await run[Symbol.asyncDispose]();
  });
});

/** Holds each tool call until the server's own stream is open. */
const listening = defineShim({
  name: 'listening',
  async wrapToolCall(_turn, inner, next) {
    await waitFor(() => server.listeners > 0);
    return next(inner);
  },
});

describe('results', () => {
  const PNG = `${'iVBORw0KGgo'.repeat(80)}AAAA`;
  const base64 = (n: number): string => 'aB3+'.repeat(n);

  it.each([
    ['a text', { content: [{ type: 'text', text: 'hi' }] }, 'hi'],
    [
      'texts',
      {
        content: [
          { type: 'text', text: 'a' },
          { type: 'text', text: '' },
          { type: 'text', text: 'b' },
        ],
      },
      'a\nb',
    ],
    ['nothing', { content: [] }, 'Done; the tool returned nothing.'],
    ['a structure alone', { content: [], structuredContent: { a: 1 } }, '{"a":1}'],
    [
      'a structure beside its text',
      { content: [{ type: 'text', text: '{"a":1}' }], structuredContent: { a: 1 } },
      '{"a":1}',
    ],
    ['a result of an old shape', { toolResult: 7 }, '{"toolResult":7}'],
    [
      'audio',
      { content: [{ type: 'audio', data: base64(300), mimeType: 'audio/wav' }] },
      '[audio of type audio/wav, about 900 bytes: left out]',
    ],
    [
      'a link',
      { content: [{ type: 'resource_link', uri: 'file:///a', name: 'A', mimeType: 'text/plain' }] },
      '[resource file:///a: A, text/plain]',
    ],
    [
      'an embedded text',
      { content: [{ type: 'resource', resource: { uri: 'file:///a', text: 'words' } }] },
      '[resource file:///a]\nwords',
    ],
    [
      'an embedded blob',
      {
        content: [
          { type: 'resource', resource: { uri: 'file:///a.pdf', mimeType: 'application/pdf', blob: base64(300) } },
        ],
      },
      '[resource file:///a.pdf of type application/pdf, about 900 bytes: left out]',
    ],
    [
      'base64 in a text',
      { content: [{ type: 'text', text: `it is ${base64(300)}.` }] },
      'it is [about 900 bytes of base64: left out].',
    ],
    [
      'base64 in a structure',
      { content: [], structuredContent: { a: `data:image/png;base64,${base64(300)}` } },
      /^\{"a":"\[image\/png, about \d+ bytes: left out\]"\}$/,
    ],
    [
      'parts that nobody knows',
      { content: [{ type: 'hologram' }, 7] },
      '[a part of type hologram: left out]\n[a part that the protocol does not know: left out]',
    ],
  ])('T04 %s is told in words, and base64 never is', async (_what, given, expected) => {
    server.offer('give', () => given);
    const run = await testShim(only(), { script: [call('fake__give'), 'done'] });
    expect(outcomes(run)).toEqual([expected instanceof RegExp ? like.stringMatching(expected) : expected]);
  });

  it('T02 what is nested too deep to be written down is told in words', () => {
    const deep: unknown = JSON.parse(`${'{"a":'.repeat(20_000)}1${'}'.repeat(20_000)}`);
    const result = resultOf({ content: [], structuredContent: deep }, { maxChars: 1000, secrets: new Secrets() });
    expect(result).toBe('[a result that is nested too deep to be written down: left out]');
  });

  it('T04 an image is an image for the model, once, whatever else repeats it', async () => {
    server.offer('draw', () => ({
      content: [
        { type: 'text', text: 'drawn' },
        { type: 'image', data: PNG, mimeType: 'image/png' },
      ],
      structuredContent: { image: PNG },
    }));
    server.offer('embed', () => ({
      content: [{ type: 'resource', resource: { uri: 'x:y', mimeType: 'image/png', blob: PNG } }],
    }));
    const run = await testShim(only(), { script: [call('fake__draw'), call('fake__embed'), 'done'] });
    const image = { type: 'image-data', data: PNG, mediaType: 'image/png' };
    expect(resultsIn(run.requests[1])).toEqual([{ type: 'content', value: [{ type: 'text', text: 'drawn' }, image] }]);
    expect(resultsIn(run.requests[2])).toEqual([{ type: 'content', value: [image] }]);
  });

  it('are cut where there are many millions of characters without a space, too', async () => {
    server.offer('endless', () => 'z'.repeat(12_000_000));
    const run = await testShim(only({}, { maxResultChars: 100 }), { script: [call('fake__endless'), 'done'] });
    expect(outcomes(run)).toEqual([`${'z'.repeat(100)}\n[cut: 11999900 of 12000000 characters left out]`]);
  });

  it('are cut between characters at their limit, and an error is a failure of the tool', async () => {
    server.offer('long', () => `${'x'.repeat(99)}😀${'y'.repeat(50)}`);
    server.offer('fail', () => ({ isError: true, content: [{ type: 'text', text: 'no such thing' }] }));
    server.offer('refuse', () => new Error('not like that'));
    // A code of the server's own is no HTTP status.
    server.offer('missing', () => Object.assign(new Error('no such page'), { code: 404 }));
    const run = await testShim(only({}, { maxResultChars: 100 }), {
      script: [call('fake__long'), call('fake__fail'), call('fake__refuse'), call('fake__missing'), 'done'],
    });
    expect(outcomes(run)).toEqual([
      `${'x'.repeat(99)}\n[cut: 52 of 151 characters left out]`,
      { message: 'no such thing', kind: 'mcp_tool_error' },
      {
        message: 'The MCP server "fake" answered with an error: MCP error -32603: not like that',
        kind: 'mcp_answered',
      },
      { message: like.stringContaining('no such page'), kind: 'mcp_answered' },
    ]);
    expect(server.count('initialize')).toBe(1);
  });

  it('M14 are read in every framing of an event stream', async () => {
    const lines = ['id: ID', 'event: message', 'data: DATA', '', ''];
    const shape =
      (text: string): Framing =>
      ({ id, data }) =>
        text.replace('ID', id).replace('DATA', () => data);
    const framings: Readonly<Record<string, Framing>> = {
      CRLF: shape(lines.join('\r\n')),
      'bare CR': shape(lines.join('\r')),
      'no space after the colon': shape('id:ID\ndata:DATA\n\n'),
      'comments and fields': shape(': hello\nretry: 10\nunknown: x\nid: ID\n: again\ndata: DATA\n\n: bye\n\n'),
      'several data lines': ({ id, data }) => `id: ${id}\ndata: ${data.replace('{', '{\ndata: ')}\n\n`,
      'no last blank line': ({ id, data, isLast }) => `id: ${id}\ndata: ${data}\n${isLast ? '' : '\n'}`,
    };
    server.offer('say', ({ progress }) => {
      progress(1);
      return 'ü'.repeat(500_000);
    });
    const shim = only({}, { maxResultChars: 100 });
    for (const [name, framing] of Object.entries(framings)) {
      server.framing = framing;
      const run = await testShim(shim, { script: [call('fake__say'), 'done'] });
      expect([name, outcomes(run)]).toEqual([
        name,
        [`${'ü'.repeat(100)}\n[cut: 499900 of 500000 characters left out]`],
      ]);
      await run[Symbol.asyncDispose]();
    }
  });
});

describe('calls', () => {
  it('X02 a server that forgot its sessions is greeted once by ten calls; what is safe is sent again, and the tools are new', async () => {
    server.offer('read', () => 'read', READ_ONLY);
    server.offer('write', () => 'written');
    const run = await testShim(only(), {
      script: [
        () => {
          server.forgetSessions();
          server.offer('new', () => 'new');
          return {
            toolCalls: ['write', ...Array<string>(8).fill('read'), 'write'].map((name) => ({
              toolName: `fake__${name}`,
            })),
          };
        },
        call('fake__new'),
        'done',
      ],
      toolSettings: { parallelToolCalls: 10 },
    });
    const lost = {
      message:
        'The MCP server "fake" had lost the session and did not run the call. There is a new session now: the call may be made again.',
      kind: 'mcp_session',
    };
    expect(outcomes(run).toSorted()).toEqual([lost, lost, ...Array<string>(8).fill('read'), 'new'].toSorted());
    expect(server.executed).toEqual([...Array<string>(8).fill('read'), 'new']);
    expect(server.count('initialize')).toBe(2);
    expect(run.tools.slice(1)).toEqual(Array(2).fill(['fake__new', 'fake__read', 'fake__write']));
    expect(statuses(run).at(-1)).toEqual({ server: 'fake', state: 'ready', tools: 3 });
  });

  it.each([404, 502, 503])(
    'X02 a passing %i is survived: safe calls are sent again once, others are told',
    async (status) => {
      server.offer('read', () => 'read', { annotations: { idempotentHint: true } });
      server.offer('write', () => 'written');
      const failing = (name: string, times: number) => (): ScriptedReply => {
        server.failNext('tools/call', status, times);
        return call(name);
      };
      const run = await testShim(only(), {
        script: [
          failing('fake__read', 1),
          failing('fake__write', 1),
          call('fake__write'),
          failing('fake__read', 2),
          call('fake__read'),
          'done',
        ],
      });
      const kind = status === 404 ? 'mcp_session' : 'mcp_unavailable';
      expect(outcomes(run)).toEqual([
        'read',
        { kind, message: like.any(String) },
        'written',
        { kind, message: like.any(String) },
        'read',
      ]);
      expect(server.executed).toEqual(['read', 'write', 'read']);
      expect(statuses(run).at(-1)).toEqual({ server: 'fake', state: 'ready', tools: 2 });
    },
  );

  it('X02 a passing fault while connecting is survived, and the status tells a lasting one', async () => {
    server.offer('read', () => 'read');
    server.failNext('initialize', 503, 2);
    const run = await testShim(only({ required: true }), { script: [call('fake__read'), 'done'] });
    expect([run.error, outcomes(run)]).toEqual([undefined, ['read']]);
    await run[Symbol.asyncDispose]();
    await waitFor(() => server.sessions === 0);
    server.failNext('initialize', 503, 4, 'under repair');
    const down = await testShim(only(), { script: ['done'] });
    expect([down.error, down.tools]).toEqual([undefined, [[]]]);
    expect(statuses(down)).toEqual([
      { server: 'fake', state: 'down', tools: 0, error: like.stringMatching(/^HTTP 503: .*under repair$/) },
    ]);
    server.failNext('initialize', 503, 4, 'under repair');
    const failed = await testShim(only({ required: true, connectTimeoutMs: 9999 }), { script: ['done'] });
    expect(failed.error).toMatchObject({
      code: 'shim_failed',
      shim: 'mcp',
      message: like.stringContaining('The required MCP server "fake" is not available: HTTP 503'),
    });
    expect(failed.requests).toEqual([]);
  });

  it('X06 a stream that ends in the middle of a call is taken up again where it was, and nothing runs twice', async () => {
    server.offer('slow', async ({ progress, cut, destroy, args }) => {
      progress(1, 'before');
      const { replays } = server;
      if (args.how === 'cut') cut();
      else destroy();
      progress(2, 'while it was down');
      await waitFor(() => server.replays > replays);
      progress(3, 'after');
      return `told once, ${String(args.how)}`;
    });
    const run = await testShim(only(), {
      script: [call('fake__slow', { how: 'cut' }), call('fake__slow', { how: 'destroyed' }), 'done'],
    });
    expect(outcomes(run)).toEqual(['told once, cut', 'told once, destroyed']);
    expect(server.executed).toEqual(['slow', 'slow']);
    const told = run.events.filter(({ type }) => type === 'tool.progress') as unknown as {
      data: { message: string };
    }[];
    expect(told.map(({ data }) => data.message)).toEqual(
      Array(2).fill(['before', 'while it was down', 'after']).flat(),
    );
  });

  it('X06 a stream that cannot be replayed is told at once, as something of which nobody knows what it did', async () => {
    server.ids = false;
    server.offer('slow', async ({ destroy }) => {
      destroy();
      return 'never told';
    });
    const run = await testShim(only(), { script: [call('fake__slow'), 'done'] });
    expect(outcomes(run)).toEqual([
      {
        kind: 'mcp_lost',
        message:
          'The MCP server "fake" gave no answer: the connection ended before the answer. Whether the call had an effect is not known.',
      },
    ]);
    expect(server.executed).toEqual(['slow']);
  });

  it('end at once when the run is cancelled, and the server is told', async () => {
    const controller = new AbortController();
    server.offer('hang', async () => {
      controller.abort();
      return new Promise(() => undefined);
    });
    const run = await testShim(only(), { script: [call('fake__hang')], signal: controller.signal });
    expect(run.thrown).toMatchObject({ name: 'RunCancelledError' });
    await waitFor(() => server.cancelled.length === 1);
    expect(run.events.filter(({ type }) => type === 'tool.completed')).toMatchObject([
      { ok: false, error: { kind: 'cancelled' } },
    ]);
  });

  it('that are answered are never called off, not even when the time to connect is over', async () => {
    server.offer('slow', async () => sleep(1200, 'done'));
    const run = await testShim(only({ connectTimeoutMs: 1000 }), { script: [call('fake__slow'), 'done'] });
    expect(outcomes(run)).toEqual(['done']);
    await run[Symbol.asyncDispose]();
    await waitFor(() => server.sessions === 0);
    expect(server.cancelled).toEqual([]);
  });

  it('have a time of their own, after which the server is told', async () => {
    server.offer('hang', async () => new Promise(() => undefined));
    const run = await testShim(only({ timeoutMs: 100 }), { script: [call('fake__hang'), 'done'] });
    expect(outcomes(run)).toEqual([{ kind: 'timeout', message: like.stringContaining('within 100 ms') }]);
    await waitFor(() => server.cancelled.length === 1);
  });

  it('work with a server that answers in one piece', async () => {
    server.json = true;
    server.offer('say', () => 'said');
    const run = await testShim(only(), { script: [call('fake__say'), 'done'] });
    expect(outcomes(run)).toEqual(['said']);
  });

  it('wait for a person where the config says so, and are repeated after a crash only where the server calls that harmless', async () => {
    server.offer('read', () => 'r', READ_ONLY);
    server.offer('add', () => 'a', { annotations: { destructiveHint: false, idempotentHint: true } });
    server.offer('drop', () => 'd');
    const seen: unknown[] = [];
    const spy = defineShim({
      name: 'spy',
      async transformMessages(turn) {
        for (const tool of turn.tools?.tools ?? [])
          seen.push([tool.name, tool.onCrash, await tool.needsApproval({}, {} as never)]);
      },
    });
    await testShim(only({ approval: 'destructive' }), { after: [spy] });
    expect(seen).toEqual([
      ['fake__add', 'retry', false],
      ['fake__drop', 'unknown', true],
      ['fake__read', 'retry', false],
    ]);
  });
});

describe('secrets and sharing', () => {
  const CANARY = 'canary-7f3a9c21d8';

  it('A02 a header, a key in the address and a token are sent, and are hidden wherever they come back', async () => {
    process.env.MCP_TEST_CANARY = CANARY;
    server.offer('leak', () => ({ content: [{ type: 'text', text: `you sent ${CANARY} and tok-${CANARY}` }] }));
    server.offer('fail', () => new Error(`bad ${CANARY}`));
    server.offer('told', ({ progress }) => {
      progress(1, `with ${CANARY}`);
      return 'ok';
    });
    const logs: unknown[] = [];
    const note = (fields: object, message: string): void => void logs.push([fields, message]);
    const log = { debug: note, info: note, warn: note, error: note };
    const tokens: unknown[] = [];
    const shim = mcpShim(
      {
        idleTimeoutMs: 0,
        servers: { fake: { url: `${server.url}?key=\${MCP_TEST_CANARY}`, headers: { 'x-key': '${MCP_TEST_CANARY}' } } },
      },
      {
        headers: async ({ server: name, refresh }) => {
          tokens.push([name, refresh]);
          return { authorization: `Bearer ${refresh ? 'fresh' : 'stale'}-tok-${CANARY}` };
        },
      },
    );
    server.authorize = ({ authorization }) => authorization === `Bearer fresh-tok-${CANARY}`;
    const run = await testShim(shim, {
      script: [
        call('fake__leak'),
        call('fake__fail'),
        call('fake__told'),
        () => {
          server.failNext('tools/call', 500, 1, `no ${CANARY} ${encodeURIComponent(CANARY)}`);
          return call('fake__told');
        },
        'done',
      ],
      log,
    });
    delete process.env.MCP_TEST_CANARY;
    expect(server.requests.every(({ headers }) => headers['x-key'] === CANARY)).toBe(true);
    expect(tokens.slice(0, 2)).toEqual([
      ['fake', false],
      ['fake', true],
    ]);
    expect(outcomes(run)[0]).toBe('you sent [hidden] and tok-[hidden]');
    expect(JSON.stringify([run.events, run.history, run.requests, logs])).not.toContain(CANARY);
    expect(JSON.stringify(logs)).toContain('mcp call failed');
  });

  it('A02 a config may refer to variables of MCP_ only, and says which one is not set', async () => {
    expect(() => only({ headers: { a: '${OPENAI_API_KEY}' } })).toThrow('begin with MCP_');
    const run = await testShim(only({ headers: { a: '${MCP_NOT_SET}' } }));
    expect(statuses(run)).toEqual([
      { server: 'fake', state: 'down', tools: 0, error: 'the environment variable MCP_NOT_SET is not set' },
    ]);
    expect(server.requests).toEqual([]);
  });

  it.each([
    [{}, 'give either a command or a url'],
    [{ url: 'http://a/', command: 'x' }, 'give either a command or a url'],
    [{ url: 'ftp://a/' }, 'must be an http or https address'],
    [{ command: 'x', headers: { a: 'b' } }, 'only a url has headers'],
    [{ url: 'http://a/', env: { A: 'b' } }, 'only a command has an environment'],
    [{ url: 'http://a/', headers: { 'a b': 'c' } }, 'is no header that can be sent'],
    [{ url: 'http://a/', headers: { a: 'b\nc: d' } }, 'is no header that can be sent'],
  ])('a config is refused that is no server: %j', (config, message) => {
    expect(() => mcpShim({ servers: { one: config } })).toThrow(message);
  });
  it.each(['a__b', '_a', 'a_', 'a b', 'x'.repeat(33)])('a server cannot be called %j', (name) => {
    expect(() => mcpShim({ servers: { [name]: { url: server.url } } })).toThrow('a name is 1 to 32 letters and digits');
  });

  it('all runs share one connection, which is closed when nobody has had it for a while', async () => {
    server.offer('say', () => 'said');
    const config: Config = { idleTimeoutMs: 50, servers: { fake: { url: server.url } } };
    const [one, two] = await Promise.all(
      [mcpShim(config), mcpShim(config, { name: 'other' })].map(async (shim) =>
        testShim(shim, { script: [call('fake__say'), 'done'] }),
      ),
    );
    expect([server.count('initialize'), server.count('tools/list'), server.executed]).toEqual([1, 1, ['say', 'say']]);
    await one?.[Symbol.asyncDispose]();
    const again = await two?.resume('and now?', { script: [call('fake__say'), 'done'] });
    expect([again?.output, server.count('initialize'), server.sessions]).toEqual(['done', 1, 1]);
    await two?.[Symbol.asyncDispose]();
    await waitFor(() => server.sessions === 0);
    const later = await testShim(mcpShim(config), { script: ['done'] });
    expect([later.tools, server.count('initialize')]).toEqual([[['fake__say']], 2]);
    await later[Symbol.asyncDispose]();
  });

  it('R101-R104 a child gets those of the tools that it may have, over a lease of its own', async () => {
    for (const name of ['read', 'write']) server.offer(name, () => name);
    let helper: unknown;
    const delegating = defineShim({
      name: 'delegating',
      async onModelResponse(turn, response) {
        if (response.finishReason !== 'stop' || helper !== undefined || turn.runState.history.length > 2) return;
        helper = 'started';
        const child = await turn.spawnAgent({ input: 'go', tools: ['fake__read'], toolCallId: 'c1' });
        helper = child.output;
      },
    });
    const run = await testShim(only(), { after: [delegating], script: ['parent', call('fake__read'), 'child done'] });
    expect(helper).toBe('child done');
    expect(run.model.requests.map(({ tools }) => tools)).toEqual([
      ['fake__read', 'fake__write'],
      ['fake__read'],
      ['fake__read'],
    ]);
    expect(server.count('initialize')).toBe(1);
    await run[Symbol.asyncDispose]();
    await waitFor(() => server.sessions === 0);
  });
});
