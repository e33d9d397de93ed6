import { describe, expect, it } from 'vitest';
import { InvalidCursorError, ValidationError } from '../../src/errors.js';
import {
  eventCursor,
  idempotencyKey,
  ifMatch,
  preferredWait,
  wantsEventStream,
} from '../../src/http/request-headers.js';

describe('Accept', () => {
  it.each([
    ['text/event-stream', true],
    ['TEXT/Event-Stream', true],
    ['text/event-stream;charset=utf-8', true],
    ['text/event-stream, */*;q=0.1', true],
    ['*/*, text/event-stream', true],
    ['text/event-stream, application/json', true],
    ['application/json;q=0.5, text/event-stream', true],
    ['application/json, text/event-stream', false],
    ['application/json, text/event-stream;q=0.5', false],
    ['text/event-stream;q=0', false],
    ['*/*', false],
    ['text/*', false],
    ['application/json', false],
    ['text/event-streams', false],
    ['', false],
    [undefined, false],
  ])('%j: stream %s', (accept, stream) => {
    expect(wantsEventStream(accept)).toBe(stream);
  });
});

describe('Prefer', () => {
  it.each([
    ['wait=5', 5],
    ['Wait=5', 5],
    ['wait = 5', 5],
    ['wait="5"', 5],
    ['wait=0', 0],
    ['respond-async, wait=7', 7],
    ['respond-async;foo="a,b=wait=3", wait=7;x=y', 7],
    ['note="wait=3, wait=4", wait=9', 9],
    ['wait=2, wait=4', 2],
    ['wait=86400', 600],
    ['wait=99999999999999999999999', 600],
    [['return=minimal', 'wait=3'], 3],
    ['wait', undefined],
    ['wait=', undefined],
    ['wait=-1', undefined],
    ['wait=1.5', undefined],
    ['wait=abc', undefined],
    ['waiting=5', undefined],
    ['', undefined],
    ['=5', undefined],
    ['wait=5 6', undefined],
    [`${'"\\'.repeat(10_000)}, wait=1`, undefined],
    [undefined, undefined],
  ])('%j waits %s seconds', (prefer, seconds) => {
    expect(preferredWait(prefer)).toBe(seconds);
  });
});

describe('Idempotency-Key', () => {
  it.each(['k', 'a key with spaces', '"quoted"', 'x'.repeat(255)])('takes %j', (key) => {
    expect(idempotencyKey(key)).toBe(key);
  });
  it.each(['', 'x'.repeat(256), 'schlüssel', 'a\tb'])('refuses %j', (key) => {
    expect(() => idempotencyKey(key)).toThrow(ValidationError);
  });
});

describe('If-Match', () => {
  it.each([
    ['"7"', '7'],
    ['7', '7'],
    [' "7" ', '7'],
    ['W/"7"', 'W/"7"'],
    ['*', undefined],
    [undefined, undefined],
  ])('%j asks for version %s', (header, version) => {
    expect(ifMatch(header)).toBe(version);
  });
  it.each(['', '""', '"1", "2"', '1,2'])('refuses %j', (header) => {
    expect(() => ifMatch(header)).toThrow(ValidationError);
  });
});

describe('the cursor of events', () => {
  it.each([
    [undefined, undefined, 0],
    [undefined, '5', 5],
    ['3', '5', 3],
    ['0', undefined, 0],
    ['3', 'nonsense', 3],
  ])('Last-Event-ID %j and after %j are %s', (lastEventId, after, seq) => {
    expect(eventCursor(lastEventId, after)).toBe(seq);
  });
  it.each(['', '-1', '+1', '1.5', '1e3', ' 1', 'abc', '99999999999999999999', '１'])('refuses %j', (cursor) => {
    expect(() => eventCursor(cursor, undefined)).toThrow(InvalidCursorError);
    expect(() => eventCursor(undefined, cursor)).toThrow(InvalidCursorError);
  });
});
