import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { findPhoneNumbersInText } from 'libphonenumber-js';
import { afterAll, describe, expect, it } from 'vitest';
import { ConfigSchema, type RedactConfig } from '../../shims/redact/entities.js';
import redact from '../../shims/redact/index.js';
import { Redactor } from '../../shims/redact/redactor.js';
import { defineShim, defineTool, internalMessage, type ModelResponse, type Tool, z } from '../../src/shims.js';
import { type ScriptedReply, type TestedRun, testShim } from '../../src/testing.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { ServerProcess, stopAll } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';

afterAll(stopAll);

const KEY = 'a key for the tests of redact';
function redactorOf(config: Partial<z.input<typeof ConfigSchema>> = {}): Redactor {
  const parsed: RedactConfig = ConfigSchema.parse(config);
  const options = parsed.phoneCountry === undefined ? {} : { defaultCountry: parsed.phoneCountry as 'DE' };
  return new Redactor(
    parsed,
    (text) => findPhoneNumbersInText(text, options),
    () => KEY,
  );
}
const text = (given: string, config?: Partial<z.input<typeof ConfigSchema>>): string =>
  redactorOf(config).text('The text', given);

describe('what is found', () => {
  it.each([
    ['write to bob@example.com.', 'write to [email].'],
    ['"Bob" <bob.o\'neil+tag@mail.example.co.uk>, thanks', '"Bob" <[email]>, thanks'],
    ['mailto:jürgen@münchen.de?x', 'mailto:[email]?x'],
    [`${'x'.repeat(300)}@example.com`, `${'x'.repeat(236)}[email]`],
    ['not an address: bob@, @bob, a@b, 3@4.5', 'not an address: bob@, @bob, a@b, 3@4.5'],
    ['card 4111 1111 1111 1111, 5500-0000-0000-0004 and 378282246310005', 'card [card], [card] and [card]'],
    [
      '4111111111111112 fails the check, 1234567812345670 is no card',
      '4111111111111112 fails the check, 1234567812345670 is no card',
    ],
    ['IBAN DE89 3704 0044 0532 0130 00, gb82west12345698765432.', 'IBAN [iban], [iban].'],
    ['DE88 3704 0044 0532 0130 00 has another checksum', 'DE88 3704 0044 0532 0130 00 has another checksum'],
    ['call +49 30 901820 or +1 (213) 373-4253!', 'call [phone] or [phone]!'],
    ['030 901820 is national', '030 901820 is national'],
    ['from 192.168.0.12:8080 to fe80::1, [2001:db8::8a2e:370:7334].', 'from [ip]:8080 to [ip], [[ip]].'],
    ['ip:10.0.0.1,ip:fe80::1', 'ip:[ip],ip:[ip]'],
    [
      'std::vector at 12:30:45, version 1.2.3, 1.2.3.4.5, 999.1.1.1',
      'std::vector at 12:30:45, version 1.2.3, 1.2.3.4.5, 999.1.1.1',
    ],
    ['[email] and [email:abcdefghijkl] stay', '[email] and [email:abcdefghijkl] stay'],
  ])('%s', (given, expected) => {
    expect(text(given)).toBe(expected);
  });

  it('national numbers of a country, when it is named', () => {
    expect(text('Tel. (030) 901820.', { phoneCountry: 'DE' })).toBe('Tel. [phone].');
  });

  it('patterns of your own, within a line, and refuses what RE2 cannot do', () => {
    const patterns = [
      { name: 'patient', pattern: '\\bMRN-\\d{4,}\\b' },
      { name: 'key', pattern: 'sk-[a-z]+', ignoreCase: true },
    ];
    expect(text('MRN-12345, xMRN-12345, SK-abc\nMRN-1', { patterns })).toBe('[patient], xMRN-12345, [key]\nMRN-1');
    const faults = (pattern: string): unknown =>
      ConfigSchema.safeParse({ patterns: [{ name: 'x', pattern }] }).error?.issues[0]?.path;
    expect([faults('(a+)+$'), faults('(a)\\1'), faults('(?=a)'), faults('(')]).toEqual([
      undefined,
      ...Array<unknown>(3).fill(['patterns', 0, 'pattern']),
    ]);
    expect(ConfigSchema.safeParse({ patterns: [{ name: 'email', pattern: 'x' }] }).error?.issues[0]?.message).toBe(
      'email is taken',
    );
  });

  it('takes time in proportion to the text, with patterns and texts that are made to be slow', () => {
    const patterns = [
      { name: 'slow', pattern: '(a+)+$' },
      { name: 'nested', pattern: '(x|x|x)*y' },
    ];
    const redactor = redactorOf({ patterns, phoneCountry: 'DE' });
    const took = (given: string): number => {
      const startedAt = performance.now();
      redactor.text('The text', given);
      return performance.now() - startedAt;
    };
    took('warm');
    for (const piece of ['a', 'x', 'a.', '1 ', 'a@', ':a', '+1 ', '9']) {
      const [short, long] = [took(piece.repeat(4000)), took(piece.repeat(32_000))];
      expect(long, piece).toBeLessThan(Math.max(short, 20) * 40);
    }
  });

  it('refuses a country of which no numbers are known', () => {
    expect(ConfigSchema.safeParse({ phoneCountry: 'DE' }).success).toBe(true);
    expect(ConfigSchema.safeParse({ phoneCountry: 'XX' }).error?.issues).toMatchObject([
      { path: ['phoneCountry'], message: 'No phone numbers are known of the country XX.' },
    ]);
  });

  it('what overlaps goes as one, with the strictest of the actions', () => {
    const patterns = [{ name: 'tail', pattern: 'com and more' }];
    expect(text('to bob@example.com and more!', { patterns })).toBe('to [email]!');
    expect(text('to bob@example.com and more!', { email: 'hash', patterns })).toBe('to [email]!');
  });

  it('values of JSON at any depth, keys, and numbers', () => {
    expect(redactorOf().json('The text', { 'a@b.de': [{ n: 4111111111111111 }, 12, null], 'c@d.de': 'x' })).toEqual({
      '[email]': [{ n: '[card]' }, 12, null],
      '[email] 2': 'x',
    });
  });

  it('a hash is the same however a number is grouped, and another one with another key', () => {
    const once = text('4111 1111 1111 1111', { card: 'hash' });
    expect(once).toMatch(/^\[card:[a-p]{12}\]$/);
    expect(text('4111111111111111', { card: 'hash' })).toBe(once);
    const other = new Redactor(
      ConfigSchema.parse({ card: 'hash' }),
      () => [],
      () => 'another key',
    );
    expect(other.text('The text', '4111111111111111')).not.toBe(once);
  });

  it('holds back a word or a number at most, where there are no patterns of your own', () => {
    const scanner = redactorOf().scanner('The text');
    const given = [
      'Hello ',
      'world, it',
      ' is 3',
      ' o’clock.',
      ' Be a',
      ' dear, and',
      ' call +49',
      ' 30 or',
      ' me',
      '\n',
    ];
    expect([...given.map((piece) => scanner.push(piece)), scanner.end()]).toEqual([
      'Hello ',
      'world, ',
      'it is ',
      '3 o’',
      'clock. Be ',
      'a dear, ',
      'and call ',
      '+49 30 ',
      'or ',
      'me\n',
      '',
    ]);
  });

  it('any cutting of a text gives what the whole gives', () => {
    const patterns = [
      { name: 'patient', pattern: '\\bMRN-[0-9 ]+\\b' },
      { name: 'line', pattern: '^top .*end$' },
    ];
    const redactor = redactorOf({ patterns, phoneCountry: 'DE', patternLength: 16, email: 'hash' });
    const atom = fc.oneof(
      fc.constantFrom(
        'bob@example.com',
        '4111 1111 1111 1111',
        '5500000000000004',
        'DE89 3704 0044 0532 0130 00',
        '+49 30 901820',
        '030 901820',
        '10.0.0.1',
        '::1',
        'fe80::1',
        'MRN-12 345',
        'top secret end',
        '[email]',
        '😀',
        ' ',
        '\n',
        ', ',
        '-',
        '.',
        '@',
        ':',
        '(',
        '4',
      ),
      fc.string({ maxLength: 6 }),
      fc.stringMatching(/^[a-f0-9.: @-]{0,8}$/),
    );
    fc.assert(
      fc.property(
        fc.array(atom, { maxLength: 14 }),
        fc.array(fc.nat({ max: 40 }), { maxLength: 20 }),
        (atoms, cuts) => {
          const whole = atoms.join('');
          const scanner = redactor.scanner('The text');
          let shown = '';
          let at = 0;
          for (const cut of cuts) {
            shown += scanner.push(whole.slice(at, at + cut));
            at += Math.min(cut, whole.length - at);
          }
          shown += scanner.push(whole.slice(at)) + scanner.end();
          expect(shown).toBe(redactor.text('The text', whole));
          expect(shown).not.toContain('bob@example.com');
        },
      ),
      { numRuns: 1500 },
    );
  });
});

const lookup = (result: unknown): Tool =>
  defineTool({
    name: 'lookup',
    description: 'Looks it up.',
    parameters: z.object({ q: z.string() }),
    execute: () => result,
  });
const call = (q: string): ScriptedReply => ({ toolCalls: [{ toolName: 'lookup', input: { q } }] });
const deltas = ({ events }: TestedRun): string[] =>
  events.flatMap(({ type, kind, text: shown }) =>
    type === 'model.delta' ? [`${String(kind)}: ${String(shown)}`] : [],
  );

describe('the shim', () => {
  it('R79 keeps the input from the model and from the saved conversation, and leaves the instructions', async () => {
    const run = await testShim(redact, {
      instructions: 'Write to help@example.com.',
      input: [
        'I am bob@example.com',
        { card: 4111111111111111 },
        { role: 'user', content: [{ type: 'text', text: 'at 10.0.0.1' }] },
      ],
    });
    expect(run.requests[0]?.system).toBe('Write to help@example.com.');
    expect(JSON.stringify(run.requests[0]?.prompt)).not.toMatch(/bob@|4111|10\.0/);
    expect(run.history.slice(0, 3)).toEqual([
      'I am [email]',
      '{"card":"[card]"}',
      { role: 'user', content: [{ type: 'text', text: 'at [ip]' }] },
    ]);
    const again = await run.resume('and carl@example.com');
    expect(again.history.at(-2)).toBe('and [email]');
    expect(again.effects.map(({ callback, changes }) => [callback, changes.map(({ what }) => what)])).toEqual([
      ['onRunStart', ['history=']],
    ]);
  });

  it('what other shims add is redacted too, where it is sent at the latest', async () => {
    const adding = defineShim({
      name: 'adding',
      prepareTurn: (turn) => {
        turn.appendHistoryItem(internalMessage({ role: 'user', content: 'note: a@b.de' }, { origin: 'adding' }));
      },
      transformMessages: (_turn, messages) => [...messages, { role: 'user', content: 'late: c@d.de' }],
    });
    for (const place of ['before', 'after'] as const) {
      const run = await testShim(redact, { [place]: [adding] });
      const sent = JSON.stringify(run.requests[0]?.prompt);
      expect(sent).toContain('note: [email]');
      expect(sent).toContain('late: [email]');
    }
  });

  it('redacts the answer and the reasoning across their deltas, shown and kept alike', async () => {
    const run = await testShim(redact, {
      script: [{ reasoning: ['he is bob@exa', 'mple.com'], text: ['call +49 30 ', '9018', '20 or 1', '0.0.0.1'] }],
    });
    expect(run.output).toBe('call [phone] or [ip]');
    expect(deltas(run).join('')).not.toMatch(/bob@|9018|10\.0/);
    expect((run.history.at(-1) as ModelResponse).message.content).toEqual([
      { type: 'reasoning', text: 'he is [email]' },
      { type: 'text', text: 'call [phone] or [ip]' },
    ]);
    expect(JSON.stringify(run.events)).not.toMatch(/bob@|901820|10\.0\.0\.1/);
  });

  it('a call that was cut leaves nothing of its tail in the one that replaces it', async () => {
    const run = await testShim(redact, {
      script: [{ text: ['it is bob@exam'], ends: 'cut' }, { text: ['ple.com is a host'] }],
    });
    expect(run.output).toBe('ple.com is a host');
  });

  it('redacts results of tools and their errors; arguments where it is told to', async () => {
    const script = [call('bob@example.com'), 'done'];
    const plain = await testShim(redact, { tools: [lookup({ mail: 'carl@example.com' })], script });
    expect(plain.events.find(({ type }) => type === 'tool.completed')?.result).toEqual({ mail: '[email]' });
    expect(plain.events.find(({ type }) => type === 'tool.started')?.arguments).toEqual({ q: 'bob@example.com' });
    const failing = lookup(Promise.reject(new Error('no such user: carl@example.com')));
    const strict = await testShim(redact, { config: { toolArguments: true }, tools: [failing], script });
    expect(strict.events.find(({ type }) => type === 'tool.completed')?.error).toEqual({
      message: 'no such user: [email]',
    });
    expect(JSON.stringify([strict.events, strict.history, strict.requests])).not.toMatch(/bob@|carl@/);
  });

  it('arguments that are no JSON are quoted in the error only where arguments may be seen', async () => {
    const script = [{ toolCalls: [{ toolName: 'lookup', input: '{"q":"bob@example.com' }] }, 'done'];
    const errorOf = async (config: object): Promise<unknown> => {
      const run = await testShim(redact, { config, tools: [lookup('none')], script });
      expect(JSON.stringify([run.history, run.requests])).not.toContain('bob@');
      return run.events.find(({ type }) => type === 'tool.completed')?.error;
    };
    expect(await errorOf({ toolArguments: true })).toEqual({
      message: 'The arguments were no JSON object.',
      kind: 'invalid_arguments',
    });
    expect(await errorOf({})).toMatchObject({
      message: 'The arguments were no JSON object: {"q":"bob@example.com',
    });
  });

  it('blocks: an input fails the run before the model is asked, and the conversation can go on without it', async () => {
    const run = await testShim(redact, { config: { iban: 'block' }, input: 'pay DE89 3704 0044 0532 0130 00' });
    expect(run.error).toMatchObject({
      code: 'shim_failed',
      shim: 'redact',
      phase: 'prepareTurn',
      cause: 'The input holds what may not pass: iban.',
    });
    expect(run.requests).toEqual([]);
    expect(JSON.stringify([run.events, run.history])).not.toContain('DE89');
    const next = await run.resume('then not');
    expect([next.output, next.history.slice(0, 2)]).toEqual(['ok', ['pay [iban]', 'then not']]);
  });

  it('what another shim adds is masked where an input would be blocked', async () => {
    const noting = defineShim({
      name: 'noting',
      onRunStart: (state) => {
        state.history.push(internalMessage({ role: 'user', content: 'note: a@b.de' }, { origin: 'noting' }));
      },
    });
    const run = await testShim(redact, { config: { email: 'block' }, after: [noting] });
    expect(run.output).toBe('ok');
    expect(JSON.stringify(run.requests[0]?.prompt)).toContain('note: [email]');
  });

  it('blocks: an answer fails the run, and a result of a tool is withheld', async () => {
    const config = { email: 'block' as const };
    const answer = await testShim(redact, { config, script: [{ text: ['it is bob@', 'example.com'] }] });
    expect(answer.error).toMatchObject({
      code: 'shim_failed',
      phase: 'transformDelta',
      cause: 'The answer holds what may not pass: email.',
    });
    expect(JSON.stringify(answer.events)).not.toContain('bob@');
    const result = await testShim(redact, { config, tools: [lookup('bob@example.com')], script: [call('x'), 'done'] });
    expect(result.events.find(({ type }) => type === 'tool.completed')?.error).toEqual({
      message: 'The result was withheld: it holds email.',
      kind: 'redacted',
    });
    expect(JSON.stringify([result.events, result.history])).not.toContain('bob@');
  });

  it('what another shim answers in place of the model is redacted as well', async () => {
    const cached = defineShim({
      name: 'cached',
      wrapModelCall: async () =>
        ({ message: { role: 'assistant', content: 'it is bob@example.com' } }) as ModelResponse,
    });
    expect((await testShim(redact, { after: [cached], script: [] })).output).toBe('it is [email]');
  });

  it('drops the signature of a reasoning that it changed, and of no other', async () => {
    const signing = defineShim({
      name: 'signing',
      wrapModelCall: async (_turn, request, next) => {
        const response = await next(request);
        const content = (response.message.content as readonly object[]).map((part) => ({
          ...part,
          providerOptions: { anthropic: { signature: 's' } },
        }));
        return { ...response, message: { ...response.message, content } } as unknown as ModelResponse;
      },
    });
    const parts = async (reasoning: string): Promise<unknown> => {
      const run = await testShim(redact, { after: [signing], script: [{ reasoning: [reasoning], text: ['ok'] }] });
      return ((run.history.at(-1) as ModelResponse).message.content as readonly object[])[0];
    };
    expect(await parts('bob@example.com')).toEqual({ type: 'reasoning', text: '[email]' });
    expect(await parts('nobody')).toHaveProperty('providerOptions');
  });

  it('makes a key of its own in the data folder, for this server only', async () => {
    const dataDir = temporaryFolder('redact-');
    const run = await testShim(redact, {
      config: { email: 'hash' },
      dataDir,
      input: 'bob@example.com and BOB@example.com',
    });
    const [, first, second] = /^\[email:(\w+)\] and \[email:(\w+)\]$/.exec(run.history[0] as string) ?? [];
    expect([first, second]).toEqual([expect.any(String), first]);
    const file = join(dataDir, 'redact', 'hash.key');
    expect([statSync(file).mode & 0o777, readFileSync(file, 'utf8').length]).toEqual([0o600, 43]);
    const given = await testShim(redact, {
      config: { email: 'hash', hashKey: KEY },
      dataDir,
      input: 'bob@example.com',
    });
    expect(given.history[0]).not.toBe(`[email:${String(first)}]`);
  });
});

it('over HTTP: neither the model nor the stream nor the saved state has what was redacted', async () => {
  const model = await ModelEndpoint.start();
  const server = await ServerProcess.start({
    env: model.environment,
    agents: [{ name: 'guarded', model: 'openai-compatible/m', shims: [{ use: 'redact', config: { email: 'hash' } }] }],
  });
  model.script({ text: ['You are carl@', 'example.com, on 10.0', '.0.1.'] });
  const answer = await server.fetch('/v1/runs', {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
    body: JSON.stringify({ agent: 'guarded', input: 'I am bob@example.com, +49 30 901820' }),
  });
  const stream = await answer.text();
  const [, id = ''] = /"runId":"([^"]+)"/.exec(stream) ?? [];
  expect(stream).toMatch(/"output":"You are \[email:[a-p]{12}\], on \[ip\]\."/);
  expect(stream).not.toMatch(/carl@|10\.0\.0/);
  expect(model.requests[0]?.rawBody).toMatch(/I am \[email:[a-p]{12}\], \[phone\]/);
  const { body: state } = await server.json('GET', `/v1/runs/${id}/state`);
  expect(JSON.stringify(state)).not.toMatch(/bob@|carl@|901820/);
  // What the client itself sent is told back to it.
  expect((await server.json('GET', `/v1/runs/${id}`)).body.input).toBe('I am bob@example.com, +49 30 901820');
  await model.close();
});
