import type { LanguageModelV3Prompt } from '@ai-sdk/provider';

interface ScriptedCall {
  readonly tool: string;
  /** The JSON text of the arguments, as it was written: it may be broken on purpose. */
  readonly input: string;
}

/** What the model does in one turn: reasoning, then text, then calls. A turn without calls is the last one. */
export interface ScriptedTurn {
  readonly think: string;
  readonly say: string;
  readonly calls: readonly ScriptedCall[];
}

export interface Script {
  /** The turns that call tools, in order. */
  readonly turns: readonly ScriptedTurn[];
  readonly last: ScriptedTurn;
  /** How many tokens the last text has, where it was asked for so. */
  readonly tokens: number | undefined;
  readonly delayMs: number;
  readonly tokenDelayMs: number;
  /** An HTTP status, or the stream is cut. */
  readonly fail: number | 'cut' | undefined;
  readonly finish: 'length' | 'content-filter' | undefined;
}

/** Where a conversation stands in the script of its last user message that has one. */
export interface ScriptPosition {
  /** `undefined` when no user message has a directive. */
  readonly script: Script | undefined;
  /** The text that the script was read from, to tell runs apart. */
  readonly source: string;
  /** Tool results that followed it. */
  readonly results: number;
  /** True when the model has not answered since. */
  readonly first: boolean;
}

const SETTING = /(?:^|\s)(tokens|delay|tokdelay|tools|fail|finish)=([\w-]+)/g;
const MAX_TOKENS = 100_000;
const MAX_CALLS = 1000;
const MAX_DELAY_MS = 600_000;

/** Finds the script that is in force and how far the conversation got in it; the prompt alone decides. */
export function positionIn(prompt: LanguageModelV3Prompt, tools: readonly string[]): ScriptPosition {
  let results = 0;
  let first = true;
  for (const message of prompt.toReversed()) {
    if (message.role === 'assistant') first = false;
    if (message.role === 'tool') results += message.content.filter((part) => part.type === 'tool-result').length;
    if (message.role !== 'user') continue;
    const source = message.content.map((part) => (part.type === 'text' ? part.text : '')).join('\n');
    const script = scriptOf(source, tools);
    if (script !== undefined) return { script, source, results, first };
  }
  return { script: undefined, source: '', results: 0, first };
}

/** The turn that follows after so many tool results. */
export function turnAfter(script: Script, results: number): ScriptedTurn {
  let answered = 0;
  for (const turn of script.turns) {
    answered += turn.calls.length;
    if (results < answered) return turn;
  }
  return script.last;
}

/** Reads the directives of one text; `undefined` when it has none. */
function scriptOf(text: string, tools: readonly string[]): Script | undefined {
  const turns: ScriptedTurn[] = [];
  const settings = new Map<string, string>();
  let think: string[] = [];
  let say: string[] = [];
  let found = false;
  const callTurn = (calls: readonly ScriptedCall[]): void => {
    turns.push({ think: think.join('\n'), say: say.join('\n'), calls });
    think = [];
    say = [];
  };
  for (const raw of text.split(/\r\n|\r|\n/)) {
    const line = raw.trim();
    const calls = callsOf(line, tools);
    const word = /^(say|think)\s+(.*)$/.exec(line);
    if (calls !== undefined) callTurn(calls);
    else if (word !== null) (word[1] === 'say' ? say : think).push(word[2] ?? '');
    else {
      for (const [, name, value] of line.matchAll(SETTING)) {
        if (name === undefined || value === undefined) continue;
        if (name !== 'tools') settings.set(name, value);
        else for (const call of countedCalls(value, tools)) callTurn([call]);
        found = true;
      }
      continue;
    }
    found = true;
  }
  if (!found) return undefined;
  const finish = settings.get('finish');
  return {
    turns,
    last: { think: think.join('\n'), say: say.join('\n'), calls: [] },
    tokens: settings.has('tokens') ? whole(settings.get('tokens'), MAX_TOKENS) : undefined,
    delayMs: whole(settings.get('delay'), MAX_DELAY_MS),
    tokenDelayMs: whole(settings.get('tokdelay'), MAX_DELAY_MS),
    fail: failOf(settings.get('fail')),
    finish: finish === 'length' || finish === 'content-filter' ? finish : undefined,
  };
}

function callsOf(line: string, tools: readonly string[]): readonly ScriptedCall[] | undefined {
  const call = /^call\s+(\S+)(?:\s+(\{.*))?$/.exec(line);
  const tool = call?.[1];
  if (tool !== undefined) {
    const input = call?.[2];
    // Without arguments it may as well be prose ("call me"), so the tool has to exist.
    return input === undefined && !tools.includes(tool) ? undefined : [{ tool, input: input ?? '{}' }];
  }
  const list = /^parallel\s+(\[.*\])$/.exec(line)?.[1];
  if (list === undefined) return undefined;
  try {
    const items: unknown = JSON.parse(list);
    if (!Array.isArray(items) || items.length === 0) return undefined;
    return items.slice(0, MAX_CALLS).map((item: unknown) => {
      const { tool: name, args } = item as { readonly tool?: unknown; readonly args?: unknown };
      return { tool: String(name), input: JSON.stringify(args ?? {}) };
    });
  } catch {
    return undefined;
  }
}

/** The calls of `tools=K`: of the tool `echo` or else the first one, with the number of the call. */
function countedCalls(value: string, tools: readonly string[]): ScriptedCall[] {
  const tool = tools.includes('echo') ? 'echo' : tools[0];
  if (tool === undefined) return [];
  return Array.from({ length: whole(value, MAX_CALLS) }, (_, index) => ({
    tool,
    input: JSON.stringify({ x: index + 1 }),
  }));
}

function failOf(value: string | undefined): Script['fail'] {
  if (value === 'cut') return 'cut';
  const status = whole(value, 599);
  return status >= 400 ? status : undefined;
}

function whole(value: string | undefined, most: number): number {
  return value !== undefined && /^\d+$/.test(value) ? Math.min(Number(value), most) : 0;
}
