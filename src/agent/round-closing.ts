import type { Attempt } from './attempt.js';
import { toolCompleted } from './events.js';
import type { Position, ToolCallRecord } from './journal.js';
import { deepFreeze } from './json.js';
import { type HistoryItem, kindOf, type ModelResponse, reviveItem, type ToolResultPart } from './messages.js';
import { CANCELLED } from './tool-run.js';
import { outputOf } from './tools.js';

/** Closes the open round of a cancelled run: real results stay, everything else is a cancelled one, and the history can be sent. */
export function cancelRound(attempt: Attempt): void {
  for (const record of attempt.calls) {
    if (record.state === 'done') continue;
    const begun = record.state === 'started';
    record.outcome =
      begun || record.state === 'pending'
        ? CANCELLED
        : {
            ok: false,
            error: {
              message: 'The run was cancelled before this call was approved; it was not run.',
              kind: 'cancelled',
            },
          };
    record.state = 'done';
    attempt.event(toolCompleted(record, record.outcome, 0, record.turn));
  }
  closeRound(attempt);
}

/** What closes a round in the history: the results in the order of the calls, then what was deferred (R30). */
export function closingItems(calls: readonly ToolCallRecord[], position: Position): HistoryItem[] {
  const content: ToolResultPart[] = calls.map((record) => ({
    type: 'tool-result',
    toolCallId: record.toolCallId,
    toolName: record.name,
    output: outputOf(record.outcome ?? CANCELLED),
  }));
  const deferred = position.deferred.map(({ kind, item }) => reviveItem(kind, JSON.stringify(item)));
  return content.length === 0 ? deferred : [deepFreeze({ role: 'tool', content }), ...deferred];
}

/** Puts the results into the history; the next turn can begin. */
export function closeRound(attempt: Attempt): void {
  deferAppended(attempt);
  attempt.working.history.push(...closingItems(attempt.calls, attempt.position));
  attempt.position.deferred = [];
  delete attempt.position.openTurn;
  attempt.position.at = 'turn';
  attempt.calls = [];
}

/** Where in the history something follows the response of the open round that is not its results. */
export function appendedAt({ working: { history, responses } }: Attempt): number | undefined {
  const response = responses.at(-1);
  const at = history.findLastIndex(
    (item) => kindOf(item) === 'response' && (item as ModelResponse).modelCallId === response?.modelCallId,
  );
  return at < 0 || at === history.length - 1 ? undefined : at + 1;
}

/** Takes what onModelResponse or a tool appended after the response out of the history until the results are there (R30). */
export function deferAppended(attempt: Attempt): boolean {
  const at = appendedAt(attempt);
  if (at === undefined) return false;
  attempt.working.settleHistory();
  const appended: HistoryItem[] = attempt.working.history.splice(at);
  attempt.position.deferred.push(...appended.map((item) => ({ kind: kindOf(item), item })));
  return true;
}
