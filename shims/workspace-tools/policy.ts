import ignore from 'ignore';
import { ACTIONS, type Action, type Policy, type PolicyRule } from './config.js';
import { covers, type Family, familyOf, type Operation } from './operations.js';

/** What is to be decided about: a place in the workspace, or a command. */
export interface Subject {
  readonly operation: Operation;
  /** From the root, as it really is, and as it was written (by a link, it may differ). */
  readonly shown?: string | undefined;
  readonly written?: string | undefined;
  readonly command?: string | undefined;
}

export interface Verdict {
  readonly action: Action;
  /** What it comes from: a rule by its index, or the default of a family. */
  readonly source: number | Family;
  readonly message: string | undefined;
}

/** Decides by the rules and defaults of a config. Of all rules that match, the strictest holds, wherever it stands. */
export class Judge {
  readonly #policy: Policy;
  readonly #rules: readonly CompiledRule[];

  constructor(policy: Policy) {
    this.#policy = policy;
    this.#rules = policy.rules.map(compiled);
  }

  judge(subject: Subject): Verdict {
    const family = familyOf(subject.operation);
    let strictest: Verdict | undefined;
    for (const [source, rule] of this.#rules.entries()) {
      const { action, message } = rule;
      if (strictest !== undefined && ACTIONS.indexOf(action) <= ACTIONS.indexOf(strictest.action)) continue;
      if (rule.matches(subject)) strictest = { action, source, message };
    }
    return strictest ?? { action: this.#policy[family], source: family, message: undefined };
  }

  /** Everything that a person may be asked by, with what to ask. */
  get questions(): readonly { readonly source: Verdict['source']; readonly message: string | undefined }[] {
    const rules = this.#policy.rules.flatMap(({ action, message }, source) =>
      action === 'ask' ? [{ source, message }] : [],
    );
    const families = (['read', 'write', 'bash'] as const).filter((family) => this.#policy[family] === 'ask');
    return [...rules, ...families.map((source) => ({ source, message: QUESTIONS[source] }))];
  }
}

/** What a person is asked where a default asks. */
const QUESTIONS = { read: 'May it read this?', write: 'May it write this?', bash: 'May it run this command?' } as const;

interface CompiledRule {
  readonly action: Action;
  readonly message: string | undefined;
  matches(subject: Subject): boolean;
}

function compiled({ operations, action, paths, commands, message }: PolicyRule): CompiledRule {
  const isPath = paths === undefined ? undefined : pathMatcher(paths);
  const isCommand = commands === undefined ? undefined : commandMatcher(commands, action);
  return {
    action,
    message,
    matches: ({ operation, shown, written, command }) => {
      if (!operations.some((name) => covers(name, operation))) return false;
      if (isPath === undefined && isCommand === undefined) return true;
      if (command !== undefined) return isCommand?.(command) === true;
      if (isPath === undefined || shown === undefined) return false;
      // What is allowed is allowed where it really is; what is not, is not by any of its names.
      return isPath(shown) || (action !== 'allow' && written !== undefined && isPath(written));
    },
  };
}

/** Patterns of .gitignore, without regard to case, since a file system may have none. */
function pathMatcher(patterns: readonly string[]): (path: string) => boolean {
  const matcher = ignore({ ignorecase: true }).add([...patterns]);
  return (path) => {
    if (path === '.') return patterns.some((pattern) => ['*', '**', '/', '/**', '.'].includes(pattern));
    return matcher.ignores(path) || matcher.ignores(`${path}/`);
  };
}

/** What makes more of a command than one program with its arguments. */
const SHELL_SYNTAX = /[;&|<>$`(){}\n\r\\]/;

/**
 * Texts with `*` for any text. A rule that allows is for a plain command only, so that what is appended to an allowed one is not
 * allowed with it; the others look at each part of a command as well. They compare texts: they are no wall.
 */
function commandMatcher(patterns: readonly string[], action: Action): (command: string) => boolean {
  const texts = patterns.map((pattern) => pattern.split('*'));
  const matches = (command: string): boolean => texts.some((pieces) => matchesPieces(pieces, command));
  if (action === 'allow') return (command) => !SHELL_SYNTAX.test(command.trim()) && matches(command.trim());
  return (command) =>
    [command, ...command.split(SHELL_SYNTAX)].some((part) => matches(part.trim()) || matches(plain(part)));
}

/** A part of a command without its quotes and with single spaces. */
function plain(part: string): string {
  return part.replace(/["']/g, '').replace(/\s+/g, ' ').trim();
}

/** Wildcards without backtracking: a pattern of many stars costs no more than its length times the text's. */
function matchesPieces(pieces: readonly string[], text: string): boolean {
  const [first = '', ...rest] = pieces;
  const last = rest.pop();
  if (last === undefined) return text === first;
  if (!text.startsWith(first)) return false;
  let at = first.length;
  for (const piece of rest) {
    const found = text.indexOf(piece, at);
    if (found < 0) return false;
    at = found + piece.length;
  }
  return text.length - last.length >= at && text.endsWith(last);
}
