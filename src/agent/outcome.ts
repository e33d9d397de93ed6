import type { Attempt } from './attempt.js';
import { CancelledFirstError, type Settled } from './journal.js';
import type { FinishReason } from './model.js';
import type { Interruption } from './run.js';
import {
  BudgetReachedError,
  HandedOverError,
  LimitExceededError,
  RunCancelledError,
  RunError,
  ShimError,
} from './run-errors.js';

/** What an attempt has come to, before and while it is cleaned up. */
export type Outcome =
  | { readonly kind: 'completed'; readonly output: unknown; readonly finishReason: FinishReason }
  | { readonly kind: 'waiting'; readonly interruptions: readonly Interruption[]; readonly discards?: boolean }
  | { readonly kind: 'failed'; readonly error: unknown; readonly output?: unknown }
  | { readonly kind: 'cancelled'; readonly requestedAtMs: number | undefined }
  | { readonly kind: 'handedOver' };

export function outcomeOfSettled(settled: Settled): Outcome {
  if (settled.status === 'completed')
    return { kind: 'completed', output: settled.output, finishReason: settled.finishReason };
  return {
    kind: 'failed',
    error: new RunError(settled.error.code, settled.error.message, { details: { ...settled.error } }),
  };
}

/** Whether the attempt stops because something is used up: what had not begun then can go on when there is more of it. */
export function isUsedUp(error: unknown): boolean {
  return error instanceof LimitExceededError || budgetOf(error) !== undefined;
}

function budgetOf(error: unknown): BudgetReachedError | undefined {
  if (error instanceof BudgetReachedError) return error;
  return error instanceof ShimError && error.cause instanceof BudgetReachedError ? error.cause : undefined;
}

function budgetQuestion(attempt: Attempt, { message }: BudgetReachedError): Interruption {
  const raised = { type: 'object' };
  const responseSchema = {
    type: 'object',
    properties: { limits: raised, shims: raised },
    anyOf: [{ required: ['limits'] }, { required: ['shims'] }],
  };
  return {
    id: attempt.deps.newId(),
    reason: 'budget',
    toolCallId: null,
    tool: null,
    arguments: null,
    message,
    responseSchema,
    expiresAt: null,
  };
}

/** What a person is asked about calls of the open round. */
export function openQuestions({ calls }: Attempt): Interruption[] {
  return calls.flatMap(({ state, interruption }) =>
    state === 'waiting' && interruption !== undefined ? [interruption] : [],
  );
}

export function outcomeOfError(attempt: Attempt, error: unknown): Outcome {
  const { signal } = attempt;
  const reason: unknown = signal.aborted ? signal.reason : error;
  if (reason instanceof HandedOverError) return { kind: 'handedOver' };
  if (error instanceof CancelledFirstError)
    return {
      kind: 'cancelled',
      requestedAtMs:
        signal.aborted && signal.reason instanceof RunCancelledError ? signal.reason.requestedAtMs : undefined,
    };
  if (reason instanceof RunCancelledError) return { kind: 'cancelled', requestedAtMs: reason.requestedAtMs };
  if (error instanceof HandedOverError) return { kind: 'handedOver' };
  const budget = budgetOf(error);
  if (budget !== undefined && !signal.aborted)
    return {
      kind: 'waiting',
      interruptions: [budgetQuestion(attempt, budget), ...openQuestions(attempt)],
      discards: true,
    };
  return { kind: 'failed', error: signal.aborted ? reason : error };
}
