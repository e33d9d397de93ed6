import { expect, it } from 'vitest';
import { inTurn } from '../../src/models/fair-turns.js';

/** Keeps the process busy, as what follows from an answer does. */
function spin(ms: number): void {
  const until = performance.now() + ms;
  while (performance.now() < until);
}

it('lets others have turns while many answers are worked on, and keeps their order', async () => {
  const begun: number[] = [];
  let turns = 0;
  let over = false;
  const count = (): void => {
    turns += 1;
    if (!over) setImmediate(count);
  };
  setImmediate(count);
  await new Promise<void>((resolve) => {
    for (let index = 0; index < 60; index += 1) {
      const task = (): void => {
        begun.push(index);
        // The work comes in promises that follow from the task, not in the task itself.
        void Promise.resolve()
          .then(() => undefined)
          .then(() => {
            spin(5);
            if (index === 59) resolve();
          });
      };
      // Each from a callback of its own, all in one turn, as packets come.
      setImmediate(() => {
        inTurn(task);
      });
    }
  });
  over = true;
  expect(begun).toEqual(Array.from({ length: 60 }, (_, index) => index));
  // 300 ms of work in one turn would be one.
  expect(turns).toBeGreaterThan(5);
});

it('makes nobody wait who comes alone', async () => {
  const order: string[] = [];
  await new Promise<void>((resolve) => {
    setImmediate(() => {
      setImmediate(() => {
        order.push('next turn');
        resolve();
      });
      inTurn(() => order.push('answer'));
    });
  });
  expect(order).toEqual(['answer', 'next turn']);
});
