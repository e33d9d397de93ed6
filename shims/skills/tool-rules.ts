/** What an active skill says of tools. */
export interface ToolRule {
  /** Undefined where the skill says nothing of what it needs. */
  readonly allowedTools: readonly string[] | undefined;
  readonly disallowedTools: readonly string[];
}

/**
 * What several active skills mean together: a tool stays where any of those that name tools allows it, and none forbids it. A
 * skill that names none neither allows nor restricts. Names are compared without regard to case; `*` at the end stands for any rest.
 * A list of which nothing is there, written for another program, restricts nothing.
 */
export function toolFilter(rules: readonly ToolRule[], names: readonly string[]): (name: string) => boolean {
  const lists = rules.map(({ allowedTools }) => allowedTools).filter((list) => list !== undefined);
  const known = lists.filter((list) => list.length === 0 || names.some((name) => matches(list, name)));
  const forbidden = rules.flatMap(({ disallowedTools }) => disallowedTools);
  return (name) => {
    if (matches(forbidden, name)) return false;
    return known.length === 0 || known.some((list) => matches(list, name));
  };
}

function matches(patterns: readonly string[], name: string): boolean {
  const lower = name.toLowerCase();
  return patterns.some((each) => {
    const pattern = each.toLowerCase();
    return pattern.endsWith('*') ? lower.startsWith(pattern.slice(0, -1)) : lower === pattern;
  });
}
