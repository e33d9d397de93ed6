import { z } from 'zod';
import { MAX_WAIT_SECONDS } from './request-headers.js';

// Documents only: headers are read by the functions of request-headers.ts.

const text = z.string().optional();

const prefer = text.meta({
  description: `\`wait=N\` (RFC 7240): answer when the attempt has ended, or after N seconds, at most ${MAX_WAIT_SECONDS}.`,
});

export const WAIT_HEADERS = z.object({ prefer });

export const START_HEADERS = z.object({
  prefer,
  'idempotency-key': text.meta({
    description:
      '1 to 255 printable characters. The same key and body again give the same run, with Idempotency-Replayed: true.',
  }),
});

export const RESUME_HEADERS = z.object({
  prefer,
  'if-match': text.meta({ description: 'The version that the run must have, as its ETag gives it.' }),
});

export const EVENTS_HEADERS = z.object({
  'last-event-id': text.meta({ description: 'The seq after which events are wanted.' }),
});
