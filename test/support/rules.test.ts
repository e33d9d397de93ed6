import { describe, expect, it } from 'vitest';
import { idsOf, type KnownIds, missingIn, proofsOf, tableOf, testsIn } from './rules.js';

const known: KnownIds = { rules: ['R1', 'R2', 'R2a', 'R3', 'R10'], failures: ['S01', 'S02', 'R01', 'R10'] };

describe('the ids of a title', () => {
  it.each([
    ['R1 binds once', ['R1'], []],
    ['R1: binds once', ['R1'], []],
    ['R1/R2a forwards', ['R1', 'R2a'], []],
    ['R1, R3 and S01 hold together', ['R1', 'R3'], ['S01']],
    ['R1 R3 interrupts', ['R1', 'R3'], []],
    ['R1-R3 as a matrix', ['R1', 'R2', 'R2a', 'R3'], []],
    ['S01-S02 as a matrix', [], ['S01', 'S02']],
    ['R10 a rule and a failure', ['R10'], []],
    ['failure R10 a resume of a terminal run', [], ['R10']],
    ['R01 is a failure only', [], ['R01']],
    ['R99 is neither', [], []],
    ['the rule R1 in the middle', [], []],
    ['R1x is no id', [], []],
  ])('%s', (title, rules, failures) => {
    expect(idsOf(title, known)).toEqual({ rules, failures });
  });
});

const source = `
describe('R1 names', () => {
  it('are stable', async () => {});
  it.each([1, 2])('R2 of %i', () => {});
  describe.each(modes)(\`S01 in \${mode}\`, () => test('holds', () => {}));
  it.skip('R3 later', () => {});
  it.todo('R3 later still');
  for (const row of rows) it(\`\${row} R3\`, () => {});
});
describe.skip('R3 not now', () => { it('R3 either', () => {}); });
describe('S02 empty', () => {});
`;

it('finds the tests that run, with the suites around them', () => {
  expect(testsIn('a.test.ts', source).map(({ titles }) => titles.join(' > '))).toEqual([
    'R1 names > are stable',
    'R1 names > R2 of %i',
    'R1 names > S01 in … > holds',
    'R1 names > … R3',
  ]);
});

it('prints the table and tells what is missing', () => {
  const { rules, failures } = proofsOf(testsIn('a.test.ts', source), known);
  expect(tableOf('rule', rules).split('\n').slice(0, 4)).toEqual([
    'rule → test',
    '  R1    a.test.ts > R1 names > are stable  (and 3 more)',
    '  R2    a.test.ts > R1 names > R2 of %i',
    '  R2a   -',
  ]);
  expect([missingIn(rules), missingIn(failures)]).toEqual([
    ['R2a', 'R3', 'R10'],
    ['S02', 'R01', 'R10'],
  ]);
});
