import { readdirSync, readFileSync } from 'node:fs';
import { join, relative, sep } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import ts from 'typescript';

// `npm run rules` prints which tests prove which rule of the shim contract and which of the known failures, by their titles.

/** The ids that must have a test: `R…` of the shim contract, and those of the failures that users of such servers reported. */
export interface KnownIds {
  readonly rules: readonly string[];
  readonly failures: readonly string[];
}

/** One test that stands in a file: its title, with those of the suites around it. */
export interface TitledTest {
  readonly file: string;
  /** Outermost first. */
  readonly titles: readonly string[];
}

/** Which tests name an id in the beginning of a title, by id. */
export interface Proofs {
  readonly rules: ReadonlyMap<string, readonly TitledTest[]>;
  readonly failures: ReadonlyMap<string, readonly TitledTest[]>;
}

const TESTS = new Set(['it', 'test']);
const SUITES = new Set(['describe', 'suite']);
/** Ways to write a test that does not run. */
const IDLE = new Set(['skip', 'todo']);

const ID = /^(?<failure>failure )?(?<id>[A-Z]\d+[a-z]?)(?:-(?<last>[A-Z]\d+[a-z]?))?(?:\b|$)/;
const BETWEEN = /^\s*(?:[,/&+]|and\b)?\s*/;

/** The tests of a file, found in its text: nothing is run. A title that does not begin with literal text counts for nothing. */
export function testsIn(file: string, text: string): readonly TitledTest[] {
  const tests: TitledTest[] = [];
  const visit = (node: ts.Node, titles: readonly string[]): void => {
    if (!ts.isCallExpression(node)) {
      ts.forEachChild(node, (child) => visit(child, titles));
      return;
    }
    const [name, ...modifiers] = calleeOf(node.expression);
    const title = titleOf(node.arguments[0]);
    if (name === undefined || title === undefined || !(TESTS.has(name) || SUITES.has(name))) {
      ts.forEachChild(node, (child) => visit(child, titles));
      return;
    }
    if (modifiers.some((modifier) => IDLE.has(modifier))) return;
    if (TESTS.has(name)) tests.push({ file, titles: [...titles, title] });
    else ts.forEachChild(node, (child) => visit(child, [...titles, title]));
  };
  visit(ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true), []);
  return tests;
}

/** `it.concurrent.each(rows)` as it, concurrent, each. */
function calleeOf(expression: ts.Expression): readonly string[] {
  if (ts.isIdentifier(expression)) return [expression.text];
  if (ts.isPropertyAccessExpression(expression)) return [...calleeOf(expression.expression), expression.name.text];
  if (ts.isCallExpression(expression)) return calleeOf(expression.expression);
  if (ts.isTaggedTemplateExpression(expression)) return calleeOf(expression.tag);
  return [];
}

function titleOf(node: ts.Expression | undefined): string | undefined {
  if (node === undefined) return undefined;
  if (ts.isStringLiteralLike(node)) return node.text;
  if (ts.isTemplateExpression(node))
    return [node.head.text, ...node.templateSpans.map(({ literal }) => literal.text)].join('…');
  return undefined;
}

/**
 * The ids that a title begins with: `R28/R29 …`, `M04 and C06: …`, `R52-R60 …` for all of those that there are.
 * Some ids are those of a rule and of a failure: alone they mean the rule, `failure R10 …` the failure.
 */
export function idsOf(title: string, known: KnownIds): { readonly rules: string[]; readonly failures: string[] } {
  const found = { rules: [] as string[], failures: [] as string[] };
  for (let rest = title; ; ) {
    const match = ID.exec(rest);
    const { id, last, failure } = match?.groups ?? {};
    if (match === null || id === undefined) return found;
    if (failure === undefined) found.rules.push(...range(known.rules, id, last));
    if (failure !== undefined || !known.rules.includes(id)) found.failures.push(...range(known.failures, id, last));
    rest = rest.slice(match[0].length).replace(BETWEEN, '');
  }
}

function range(ids: readonly string[], first: string, last: string | undefined): readonly string[] {
  const from = ids.indexOf(first);
  if (from === -1) return [];
  return ids.slice(from, last === undefined ? from + 1 : ids.indexOf(last) + 1);
}

export function proofsOf(tests: readonly TitledTest[], known: KnownIds): Proofs {
  const rules = new Map(known.rules.map((id) => [id, [] as TitledTest[]]));
  const failures = new Map(known.failures.map((id) => [id, [] as TitledTest[]]));
  for (const test of tests) {
    const ids = test.titles.map((title) => idsOf(title, known));
    for (const id of new Set(ids.flatMap((each) => each.rules))) rules.get(id)?.push(test);
    for (const id of new Set(ids.flatMap((each) => each.failures))) failures.get(id)?.push(test);
  }
  return { rules, failures };
}

export function tableOf(title: string, proofs: ReadonlyMap<string, readonly TitledTest[]>): string {
  const lines = [...proofs].map(([id, tests]) => {
    const [first, ...more] = tests;
    if (first === undefined) return `  ${id.padEnd(5)} -`;
    const others = more.length === 0 ? '' : `  (and ${more.length} more)`;
    return `  ${id.padEnd(5)} ${first.file} > ${first.titles.join(' > ')}${others}`;
  });
  return [`${title} → test`, ...lines].join('\n');
}

export function missingIn(proofs: ReadonlyMap<string, readonly TitledTest[]>): readonly string[] {
  return [...proofs].filter(([, tests]) => tests.length === 0).map(([id]) => id);
}

/** All tests of the project; those that the contract kit registers count where the project's shims run them. */
function testsOf(root: string): readonly TitledTest[] {
  const folder = join(root, 'test');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => /\.(test|test-d)\.ts$/.test(file) || /^faults[\\/].*\.ts$/.test(file))
    .map((file) => join(folder, file));
  return [...files, join(root, 'src/testing/contract-tests.ts')]
    .map((file) => [relative(root, file).split(sep).join('/'), readFileSync(file, 'utf8')] as const)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([file, text]) => testsIn(file, text));
}

function main(): void {
  const here = fileURLToPath(new URL('.', import.meta.url));
  const known = JSON.parse(readFileSync(join(here, 'rule-ids.json'), 'utf8')) as KnownIds;
  const { rules, failures } = proofsOf(testsOf(join(here, '../..')), known);
  console.log(`${tableOf('rule', rules)}\n\n${tableOf('failure', failures)}\n`);
  const missing = [
    ...missingIn(rules),
    ...missingIn(failures).map((id) => (known.rules.includes(id) ? `failure ${id}` : id)),
  ];
  const count = `${known.rules.length} rules and ${known.failures.length} failures`;
  if (missing.length === 0) {
    console.log(`${count}, none without a test.`);
    return;
  }
  console.error(`${count}; ${missing.length} without a test: ${missing.join(', ')}`);
  process.exitCode = 1;
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) main();
