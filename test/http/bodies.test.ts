import { describe, expect, it } from 'vitest';
import type { FieldError } from '../../src/errors.js';
import { testApp } from './fake-runtime.js';

interface Problem {
  readonly code: string;
  readonly errors?: readonly FieldError[];
}

async function faultsOf(url: string, payload: object, method: 'POST' | 'PUT' = 'POST'): Promise<readonly string[]> {
  const { app, runtime } = await testApp();
  const answer = await app.inject({ method, url, payload });
  if (answer.statusCode < 300) return [];
  expect([answer.statusCode, answer.json<Problem>().code, runtime.calls]).toEqual([422, 'validation_failed', []]);
  return answer.json<Problem>().errors?.map(({ pointer, message }) => `${pointer} ${message}`) ?? [];
}

const start = async (body: object): Promise<readonly string[]> => faultsOf('/v1/runs', body);
const input = async (value: unknown): Promise<readonly string[]> => start({ agent: 'a', input: value });

describe('the body of a start', () => {
  it('has defaults', async () => {
    const { app, runtime } = await testApp();
    await app.inject({ method: 'POST', url: '/v1/runs', payload: { agent: 'a', input: 'x' } });
    expect(runtime.calls).toEqual([
      [
        'startRun',
        {
          agent: 'a',
          input: 'x',
          metadata: {},
          values: {},
          limits: {},
          shims: {},
          onDisconnect: 'continue',
          idempotencyKey: undefined,
        },
      ],
    ]);
  });

  it('is passed on as it came', async () => {
    const body = {
      agent: 'a',
      input: [
        'x',
        { role: 'user', content: 'y' },
        { any: ['json', null, 1.5] },
        { internal: { message: { role: 'user', content: 'z' }, origin: 'me' } },
      ],
      metadata: { k: 'v' },
      values: { patient: { name: 'P' } },
      limits: { maxTurns: 3 },
      shims: { 'reply-prefix': { prefix: '>' } },
      onDisconnect: 'cancel',
    };
    const { app, runtime } = await testApp();
    await app.inject({ method: 'POST', url: '/v1/runs', payload: body, headers: { 'idempotency-key': 'k-1' } });
    expect(runtime.calls[0]).toEqual(['startRun', { ...body, idempotencyKey: 'k-1' }]);
  });

  it('names every fault by its pointer', async () => {
    expect(
      await start({
        agent: '',
        extra: 1,
        'a/b~c': 2,
        metadata: { k: 1 },
        limits: { maxTurns: 0, maxRuns: 1 },
        onDisconnect: 'maybe',
      }),
    ).toEqual([
      '/agent Too small: expected string to have >=1 characters',
      '/input is required',
      '/metadata/k Invalid input: expected string, received number',
      '/limits/maxTurns Too small: expected number to be >0',
      '/limits/maxRuns is not known here',
      '/onDisconnect Invalid option: expected one of "continue"|"cancel"',
      '/extra is not known here',
      '/a~1b~0c is not known here',
    ]);
  });

  it('names a header that is not valid', async () => {
    const { app } = await testApp();
    const answer = await app.inject({
      method: 'POST',
      url: '/v1/runs',
      payload: { agent: 'a', input: 'x' },
      headers: { 'idempotency-key': 'ä' },
    });
    expect(answer.json<Problem>().errors).toEqual([
      { pointer: '/headers/idempotency-key', message: 'must be 1 to 255 printable ASCII characters' },
    ]);
  });
});

describe('the input', () => {
  it.each([
    ['', '/input must not be blank'],
    [' \n\t', '/input must not be blank'],
    [[], '/input must not be blank'],
    [['', '  '], '/input must not be blank'],
    [[null], '/input must not be blank'],
    [[{ role: 'user', content: ' ' }], '/input must not be blank'],
    [[{ role: 'user', content: [{ type: 'text', text: '' }] }], '/input must not be blank'],
    [null, '/input must be a text or a list of items'],
    [5, '/input must be a text or a list of items'],
    [{ role: 'user', content: 'x' }, '/input must be a text or a list of items'],
    [['x', { role: 'user' }], '/input/1/content Invalid input: expected string or array'],
    [[{ role: 'user', content: 'x', metadata: {} }], '/input/0/metadata is not known here'],
    [[{ role: 'user', content: [{ type: 'text', txt: 'x' }] }], '/input/0/content/0/text is required'],
    [
      [{ role: 'assistant', content: [{ type: 'image', image: 'x' }] }],
      '/input/0/content/0/type Invalid discriminator value',
    ],
    [[{ role: 'tool', content: 'x' }], '/input/0/content Invalid input: expected array, received string'],
    [[{ internal: {} }], '/input/0/internal/message Invalid input'],
    [[{ internal: { message: 'x', origin: 'o' }, more: 1 }], '/input/0/more is not known here'],
    [[{ internal: { message: 'x', origin: '' } }], '/input/0/internal/origin Too small'],
    [
      [{ internal: { message: { role: 'user', content: 1 }, origin: 'o' } }],
      '/input/0/internal/message/content Invalid input: expected string or array',
    ],
  ])('%j is refused', async (value, fault) => {
    const [first] = await input(value);
    expect(first?.slice(0, fault.length)).toBe(fault);
  });

  it.each([
    ['x'],
    [['x', '']],
    [[{}]],
    [[5, false]],
    [[[1, 2]]],
    [[{ role: 'customer', content: 5 }]],
    [[{ internal: true, more: 1 }, { internal: null }, { internal: [] }]],
    [[{ role: 'system', content: 'be brief' }, 'x']],
    [[{ role: 'user', content: [{ type: 'image', image: 'https://example.org/a.png' }] }]],
    [[{ role: 'assistant', content: [{ type: 'tool-call', toolCallId: 'c', toolName: 't', input: {} }] }]],
    [[{ internal: { message: { role: 'user', content: 'z' }, origin: 'o', ephemeral: true } }]],
  ])('%j is taken', async (value) => {
    expect(await input(value)).toEqual([]);
  });
});

describe('the other bodies', () => {
  it('a resume may have none, whatever the content type announces', async () => {
    const { app, runtime } = await testApp();
    const url = '/v1/runs/run-1/resume';
    await app.inject({ method: 'POST', url });
    await app.inject({ method: 'POST', url, headers: { 'content-type': 'application/json' }, payload: '' });
    await app.inject({ method: 'POST', url, payload: { limits: { maxTurns: 2 } }, headers: { 'if-match': '"7"' } });
    expect(runtime.calls).toEqual([
      ['resumeRun', 'run-1', { ifMatch: undefined }],
      ['resumeRun', 'run-1', { ifMatch: undefined }],
      ['resumeRun', 'run-1', { limits: { maxTurns: 2 }, ifMatch: '7' }],
    ]);
  });

  it.each([
    [{ decisions: [] }, '/decisions Too small: expected array to have >=1 items'],
    [{ decisions: [{ id: 'i', decision: 'maybe' }] }, '/decisions/0/decision Invalid discriminator value'],
    [{ decisions: [{ id: 'i', decision: 'edit' }] }, '/decisions/0/arguments is required'],
    [{ decisions: [{ id: 'i', decision: 'respond' }] }, '/decisions/0/result '],
    [{ decisions: [{ id: 'i', decision: 'approve', arguments: {} }] }, '/decisions/0/arguments is not known here'],
    [
      {
        decisions: [
          { id: 'i', decision: 'approve' },
          { id: 'i', decision: 'deny' },
        ],
      },
      '/decisions must not decide one interruption twice',
    ],
    [{ settle: [{ toolCallId: 't', outcome: 'gone' }] }, '/settle/0/outcome Invalid option'],
    [{ input: ' ' }, '/input must not be blank'],
    [{ input: null }, '/input must be a text or a list of items'],
    [{ metadata: {} }, '/metadata is not known here'],
  ])('a resume with %j is refused', async (body, fault) => {
    const [first] = await faultsOf('/v1/runs/run-1/resume', body);
    expect(first?.slice(0, fault.length)).toBe(fault);
  });

  it('a fork may be empty, and counts turns from 0, which is the start', async () => {
    expect(await faultsOf('/v1/runs/run-1/fork', {})).toEqual([]);
    expect(await faultsOf('/v1/runs/run-1/fork', { turn: -1 })).toEqual(['/turn Too small: expected number to be >=0']);
  });

  it('an agent has the name of its path', async () => {
    const { app, runtime } = await testApp();
    const saved = await app.inject({ method: 'PUT', url: '/v1/agents/demo', payload: { model: 'scripted/demo' } });
    expect([saved.statusCode, saved.headers.location]).toEqual([201, '/v1/agents/demo']);
    expect(runtime.calls[0]).toMatchObject(['saveAgent', 'demo', { name: 'demo', model: 'scripted/demo' }]);
    expect(await faultsOf('/v1/agents/demo', { name: 'other', model: 'm' }, 'PUT')).toEqual([
      '/name must be "demo", as in the path, or left out',
    ]);
    expect(await faultsOf('/v1/agents/demo', { model: 'm', shims: [{}] }, 'PUT')).toEqual(['/shims/0/use is required']);
  });

  it('a DELETE needs none, although many clients announce one', async () => {
    const { app } = await testApp();
    const answer = await app.inject({
      method: 'DELETE',
      url: '/v1/runs/run-1',
      headers: { 'content-type': 'application/json' },
    });
    expect(answer.statusCode).toBe(202);
  });
});

describe('queries', () => {
  async function query(url: string): Promise<readonly string[]> {
    const { app } = await testApp();
    const answer = await app.inject(url);
    return answer.statusCode === 422
      ? (answer.json<Problem>().errors?.map(({ pointer, message }) => `${pointer} ${message}`) ?? [])
      : [];
  }

  it.each([
    ['/v1/runs?limit=abc', '/query/limit must be a whole number from 1 to 1000'],
    ['/v1/runs?limit=0', '/query/limit must be a whole number from 1 to 1000'],
    ['/v1/runs?limit=1001', '/query/limit must be a whole number from 1 to 1000'],
    ['/v1/runs?limit=5.0', '/query/limit must be a whole number from 1 to 1000'],
    ['/v1/runs?limit=', '/query/limit must be a whole number from 1 to 1000'],
    ['/v1/runs?limit=5&limit=6', '/query/limit must be given once'],
    [
      '/v1/runs?status=done',
      '/query/status Invalid option: expected one of "queued"|"running"|"waiting"|"cancelling"|"completed"|"failed"|"cancelled"',
    ],
    ['/v1/runs?createdAfter=yesterday', '/query/createdAfter must be an ISO 8601 date or time'],
    ['/v1/runs?metadata.k=a&metadata.k=b', '/query/metadata.k must be given once'],
    ['/v1/runs?agents=a', '/query/agents is not known here'],
    ['/v1/runs/run-1?full=true', '/query/full is not known here'],
    ['/v1/agents?limit=5', '/query/limit is not known here'],
    ['/v1/runs/run-1/events?limit=1e3', '/query/limit must be a whole number from 1 to 1000'],
  ])('%s is refused', async (url, fault) => {
    expect(await query(url)).toEqual([fault]);
  });

  it.each(['1', 'yes', 'TRUE', ''])('purge=%s is refused', async (value) => {
    const { app, runtime } = await testApp();
    const answer = await app.inject({ method: 'DELETE', url: `/v1/runs/run-1?purge=${value}` });
    expect([answer.statusCode, runtime.calls]).toEqual([422, []]);
  });

  it('a list of runs is filtered by all of them', async () => {
    const { app, runtime } = await testApp();
    await app.inject(
      '/v1/runs?agent=a&status=failed&metadata.k=v&metadata.x.y=z&createdAfter=2026-01-01&createdBefore=2026-01-02T03:04:05%2B02:00&parent=p&limit=7&cursor=c',
    );
    await app.inject('/v1/runs');
    expect(runtime.calls).toEqual([
      [
        'listRuns',
        {
          agent: 'a',
          status: 'failed',
          metadata: { k: 'v', 'x.y': 'z' },
          createdAfter: '2026-01-01T00:00:00.000Z',
          createdBefore: '2026-01-02T01:04:05.000Z',
          parent: 'p',
          limit: 7,
          cursor: 'c',
        },
      ],
      ['listRuns', { metadata: {}, limit: 50 }],
    ]);
  });
});
