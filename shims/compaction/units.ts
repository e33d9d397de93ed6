import {
  type HistoryItem,
  isInternalMessage,
  type Message,
  renderItem,
  type ToolCallPart,
  type ToolMessage,
  type ToolResultPart,
} from 'shimline/shims';

/**
 * What of a history stays or goes together: a message of its own, or an assistant's calls with their results.
 * `stray` is a result whose call is not there: the model never gets it.
 */
export interface Unit {
  readonly kind: 'user' | 'other' | 'round' | 'stray' | 'internal' | 'summary';
  readonly items: readonly HistoryItem[];
}

/** @param isSummary whether an item is the summary of an earlier compaction */
export function unitsOf(history: readonly HistoryItem[], isSummary: (item: HistoryItem) => boolean): Unit[] {
  const units: Unit[] = [];
  for (let index = 0; index < history.length; index += 1) {
    const item = history[index] as HistoryItem;
    const items = [item];
    const calls = renderItem(item).some((message) => callsOf(message).length > 0);
    for (let next = history[index + 1]; calls && next !== undefined && isResults(next); next = history[index + 1]) {
      items.push(next);
      index += 1;
    }
    units.push({ kind: kindOfUnit(items, calls, isSummary), items });
  }
  return units;
}

function kindOfUnit(
  items: readonly HistoryItem[],
  calls: boolean,
  isSummary: (item: HistoryItem) => boolean,
): Unit['kind'] {
  const [first] = items;
  if (items.every((item) => isInternalMessage(item))) return 'internal';
  if (calls) return 'round';
  if (first === undefined || isResults(first)) return 'stray';
  if (isSummary(first)) return 'summary';
  return renderItem(first).some(({ role }) => role === 'user') ? 'user' : 'other';
}

function isResults(item: HistoryItem): boolean {
  const messages = renderItem(item);
  return messages.length > 0 && messages.every(({ role }) => role === 'tool');
}

function callsOf(message: Message | undefined): ToolCallPart[] {
  if (message?.role !== 'assistant' || typeof message.content === 'string') return [];
  return message.content.filter((part) => part.type === 'tool-call').filter((part) => part.providerExecuted !== true);
}

/**
 * The items of a unit such that each call is followed by its one result: as they are where that holds already, else with results
 * put in order, strays left out, and a call without a result closed as interrupted.
 */
export function pairedItems(unit: Unit): readonly HistoryItem[] {
  if (unit.kind === 'stray') return [];
  const [head, ...rest] = unit.items;
  if (head === undefined) return [];
  const calls = callsOf(renderItem(head).at(-1));
  const results = rest.flatMap((item) => renderItem(item)).flatMap(resultsOf);
  const distinct = calls.filter(
    ({ toolCallId }, at) => calls.findIndex((call) => call.toolCallId === toolCallId) === at,
  );
  const given = results.map(({ toolCallId }) => toolCallId);
  const whole = given.length === distinct.length && distinct.every(({ toolCallId }) => given.includes(toolCallId));
  if (whole) return unit.items;
  const content = distinct.map(
    (call) => results.find((each) => each.toolCallId === call.toolCallId) ?? interrupted(call),
  );
  return [head, { role: 'tool', content }];
}

function resultsOf(message: Message): readonly ToolResultPart[] {
  return message.role === 'tool' ? message.content : [];
}

function interrupted({ toolCallId, toolName }: ToolCallPart): ToolResultPart {
  const value = 'The call was interrupted before it gave a result; whether it had an effect is not known.';
  return { type: 'tool-result', toolCallId, toolName, output: { type: 'error-text', value } };
}

/** What of a history is folded into a summary, and what stays. */
export interface Cut {
  /** To be summarised, oldest first; without internal messages. */
  readonly folded: readonly Unit[];
  /** Older items that stay all the same: the last message of the user, and internal messages. */
  readonly spared: readonly HistoryItem[];
  readonly recent: readonly HistoryItem[];
  /** The summary that is there already. */
  readonly previous: HistoryItem | undefined;
}

export interface CutOptions {
  /** Tokens of recent history that stay; the newest unit does in any case. */
  readonly keepTokens: number;
  readonly tokensOf: (unit: Unit) => number;
  readonly internalMessages: 'keep' | 'drop';
}

/** Cuts between units only, so that no call ever loses its result. */
export function cutHistory(units: readonly Unit[], options: CutOptions): Cut {
  const start = recentFrom(units, options);
  const lastUser = units.findLastIndex(({ kind }) => kind === 'user');
  const older = units.slice(0, start);
  const spared = older.filter(
    (unit, index) => index === lastUser || (unit.kind === 'internal' && isKept(unit, options)),
  );
  return {
    folded: older.filter(
      ({ kind }, index) => index !== lastUser && (kind === 'user' || kind === 'other' || kind === 'round'),
    ),
    spared: spared.flatMap(pairedItems),
    recent: units.slice(start).flatMap(pairedItems),
    previous: older.findLast(({ kind }) => kind === 'summary')?.items[0],
  };
}

function recentFrom(units: readonly Unit[], { keepTokens, tokensOf }: CutOptions): number {
  let left = keepTokens;
  let holds = false;
  for (let index = units.length - 1; index >= 0; index -= 1) {
    const unit = units[index];
    if (unit === undefined) break;
    left -= tokensOf(unit);
    if (unit.kind === 'summary' || (holds && left < 0)) return index + 1;
    holds ||= unit.kind !== 'internal' && unit.kind !== 'stray';
  }
  return 0;
}

function isKept(unit: Unit, { internalMessages }: CutOptions): boolean {
  return internalMessages === 'keep' || unit.items.some((item) => isInternalMessage(item) && isEphemeral(item));
}

function isEphemeral(item: HistoryItem): boolean {
  return renderItem(item).some(({ metadata }) => metadata?.internal?.ephemeral === true);
}

/** Shortens the largest tool results until `fits`, or until none is larger than `floor` tokens. */
export function trimResults(
  items: readonly HistoryItem[],
  options: {
    readonly fits: (items: readonly HistoryItem[]) => boolean;
    readonly tokensOf: (result: ToolResultPart) => number;
    readonly shorten: (result: ToolResultPart, tokens: number) => ToolResultPart;
    readonly floor: number;
  },
): { readonly items: readonly HistoryItem[]; readonly trimmed: number } {
  const { tokensOf, floor } = options;
  const largest = Math.max(
    0,
    ...items
      .flatMap((item) => renderItem(item))
      .flatMap(resultsOf)
      .map(tokensOf),
  );
  let current = items;
  let trimmed = 0;
  for (
    let limit = Math.floor(largest / 2);
    !options.fits(current) && limit * 2 > floor;
    limit = Math.floor(limit / 2)
  ) {
    trimmed = 0;
    current = items.map((item) => {
      const messages = renderItem(item);
      const over = messages.flatMap(resultsOf).filter((result) => tokensOf(result) > Math.max(limit, floor));
      if (over.length === 0) return item;
      trimmed += over.length;
      const content = messages
        .flatMap(resultsOf)
        .map((result) => (over.includes(result) ? options.shorten(result, Math.max(limit, floor)) : result));
      return { ...(messages[0] as ToolMessage), content };
    });
  }
  return { items: current, trimmed };
}
