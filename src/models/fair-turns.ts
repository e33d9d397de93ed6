/** How long one turn of the event loop works on answers before the others wait for the next turn, in milliseconds. */
const TURN_MS = 20;

/** Answers that wait for a turn, first come, first served. */
const waiting: (() => void)[] = [];
let turnBeganAt: number | undefined;

/**
 * Runs the task after the present callback, or in a later turn of the event loop where this one has worked on answers for long enough.
 * What a provider sends costs a hundred times its reading; thousands of answers that arrive at once would else be one turn of many
 * seconds, in which nobody can be asked for its health or be stopped.
 */
export function inTurn(task: () => void): void {
  if (turnBeganAt === undefined) {
    turnBeganAt = performance.now();
    setImmediate(nextTurn);
  }
  if (waiting.length === 0 && performance.now() - turnBeganAt < TURN_MS) queueMicrotask(task);
  else waiting.push(task);
}

function nextTurn(): void {
  if (waiting.length === 0) {
    turnBeganAt = undefined;
    return;
  }
  turnBeganAt = performance.now();
  setImmediate(nextTurn);
  workOn();
}

/** One task, then the next one when all that followed from it in this turn has been done. */
function workOn(): void {
  waiting.shift()?.();
  if (waiting.length > 0 && performance.now() - (turnBeganAt ?? 0) < TURN_MS)
    queueMicrotask(() => {
      process.nextTick(workOn);
    });
}
