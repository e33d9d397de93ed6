import { type JsonValue, wellFormed } from './json.js';
import type {
  AssistantMessage,
  AssistantPart,
  FilePart,
  Message,
  SystemMessage,
  ToolCallPart,
  ToolResultOutput,
  ToolResultPart,
  UserMessage,
} from './messages.js';
import type { PromptRules, ProviderOptions } from './model.js';

type UserPart = Exclude<UserMessage['content'], string>[number];
type ContentPart = Extract<ToolResultOutput, { type: 'content' }>['value'][number];
interface Optioned {
  readonly providerOptions?: ProviderOptions | undefined;
}

/** Takes down in words what was mended. */
export type Note = (repair: string) => void;

const TOOL_NAME = /^[a-zA-Z0-9_-]{1,64}$/;

function blank(text: string): boolean {
  return text.trim() === '';
}

/** A message as a provider takes it, without regard to its neighbours; undefined when nothing of it is left. */
export function fitMessage(message: Message, rules: PromptRules | undefined, note: Note): Message | undefined {
  const mended = wellFormed(message as unknown as JsonValue) as unknown as Message;
  if (mended !== message) note('a lone surrogate in a text was replaced');
  switch (mended.role) {
    case 'system':
      return fitText(withOwnOptions(mended, rules), note);
    case 'user':
      return fitUser(withOwnOptions(mended, rules), rules, note);
    case 'assistant':
      return fitAssistant(mended, rules, note);
    case 'tool':
      return mended.content.length === 0 ? undefined : withOwnOptions(mended, rules);
  }
}

function fitText<M extends SystemMessage>(message: M, note: Note): M | undefined {
  if (!blank(message.content)) return message;
  note(`an empty ${message.role} message was left out`);
  return undefined;
}

function fitUser(message: UserMessage, rules: PromptRules | undefined, note: Note): UserMessage | undefined {
  const { content } = message;
  if (typeof content === 'string') {
    if (!blank(content)) return message;
    note('an empty user message was left out');
    return undefined;
  }
  const kept = content
    .filter((part) => part.type !== 'text' || !blank(part.text))
    .map((part) => withOwnOptions(fileForUser(part, rules, note), rules));
  if (kept.length === 0) {
    note('an empty user message was left out');
    return undefined;
  }
  return sameItems(kept, content) ? message : { ...message, content: kept };
}

function fileForUser(part: UserPart, rules: PromptRules | undefined, note: Note): UserPart {
  if (part.type === 'text' || rules === undefined) return part;
  const file = fileOf(part);
  if (rules.takesFile(file.mediaType, file.url)) return part;
  note(`a file (${file.mediaType}) that this model cannot be given was left out`);
  return { type: 'text', text: leftOut(file) };
}

function fitAssistant(
  message: AssistantMessage,
  rules: PromptRules | undefined,
  note: Note,
): AssistantMessage | undefined {
  const own = withNotedOptions(message, rules, note);
  const { content } = own;
  if (typeof content === 'string') {
    if (!blank(content)) return own;
    note('an empty assistant message was left out');
    return undefined;
  }
  const fitted = content.flatMap((part) => fitAssistantPart(part, rules, note));
  // Reasoning is sent for what follows it; at the end it follows nothing, and providers refuse it there.
  const last = fitted.findLastIndex((part) => part.type !== 'reasoning');
  if (last < 0) {
    note('an empty assistant message was left out');
    return undefined;
  }
  if (last < fitted.length - 1) note('reasoning that nothing followed was left out');
  const kept = fitted.slice(0, last + 1);
  return sameItems(kept, content) ? own : { ...own, content: kept };
}

function fitAssistantPart(part: AssistantPart, rules: PromptRules | undefined, note: Note): AssistantPart[] {
  switch (part.type) {
    case 'text':
      return blank(part.text) ? [] : [withNotedOptions(part, rules, note)];
    case 'reasoning':
      if (blank(part.text) && part.providerOptions === undefined) return [];
      if (rules === undefined) return [part];
      if (!rules.takesReasoning(part.providerOptions)) {
        note('reasoning that this provider does not take back was left out');
        return [];
      }
      return [withNotedOptions(part, rules, note)];
    case 'file': {
      if (rules === undefined || (rules.assistantFiles && fileOf(part).url === undefined))
        return [withNotedOptions(part, rules, note)];
      note(`a file (${part.mediaType}) that the assistant had made was left out`);
      return [{ type: 'text', text: leftOut(fileOf(part)) }];
    }
    case 'tool-call':
      if (part.providerExecuted !== true) return [withNotedOptions(fitCall(part, note), rules, note)];
      note(`a call that its provider had made itself was left out (${part.toolName})`);
      return [];
  }
}

function fitCall(part: ToolCallPart, note: Note): ToolCallPart {
  const { input } = part;
  const toolName = sendableName(part.toolName);
  if (toolName !== part.toolName)
    note(`tool name ${JSON.stringify(part.toolName)} was sent as ${JSON.stringify(toolName)}`);
  const isObject = typeof input === 'object' && input !== null && !Array.isArray(input);
  if (!isObject) note(`the arguments of ${toolName} were no object and were left out`);
  return isObject && toolName === part.toolName ? part : { ...part, toolName, input: isObject ? input : {} };
}

/** A tool's name in the letters that every provider takes; a model may have made one up that none takes back. */
function sendableName(name: string): string {
  return TOOL_NAME.test(name) ? name : name.replace(/[^a-zA-Z0-9_-]/g, '_').slice(0, 64) || 'unnamed';
}

/** One result as a provider takes it, and the media that have to follow the round in a user's message. */
export function fitResult(
  result: ToolResultPart,
  rules: PromptRules | undefined,
): { readonly result: ToolResultPart; readonly media: readonly UserPart[] } {
  const own = withOwnOptions(result, rules);
  const media: UserPart[] = [];
  const output = fitOutput(own, rules, media);
  const toolName = sendableName(own.toolName);
  return { result: output === own.output && toolName === own.toolName ? own : { ...own, toolName, output }, media };
}

function fitOutput(result: ToolResultPart, rules: PromptRules | undefined, media: UserPart[]): ToolResultOutput {
  const output = withOwnOptions(result.output, rules);
  switch (output.type) {
    case 'text':
    case 'json':
      return output;
    case 'error-text':
      return rules?.marksErrors === false && !/^error\b/i.test(output.value)
        ? { ...output, value: `Error: ${output.value}` }
        : output;
    case 'error-json':
      return rules?.marksErrors === false
        ? { ...output, type: 'error-text', value: `Error: ${JSON.stringify(output.value)}` }
        : output;
    case 'content':
      return fitContent(output, result, rules, media);
  }
}

function fitContent(
  output: Extract<ToolResultOutput, { type: 'content' }>,
  result: ToolResultPart,
  rules: PromptRules | undefined,
  media: UserPart[],
): ToolResultOutput {
  const kept = output.value
    .filter((part) => part.type !== 'text' || !blank(part.text))
    .map((part) =>
      part.type === 'text' || rules === undefined || rules.takesInResults(part.mediaType)
        ? part
        : besides(part, result, rules, media),
    );
  const { providerOptions } = output;
  const options = providerOptions === undefined ? {} : { providerOptions };
  if (kept.length === 0) return { type: 'text', value: '(nothing)', ...options };
  // Text alone goes as text: some packages spell a list of parts out as JSON.
  const texts = kept.filter((part) => part.type === 'text');
  if (texts.length === kept.length)
    return { type: 'text', value: texts.map((part) => part.text).join('\n'), ...options };
  return sameItems(kept, output.value) ? output : { ...output, value: kept };
}

/** What stands in a result for media that it cannot hold; what a user's message can hold goes there. */
function besides(
  part: Exclude<ContentPart, { type: 'text' }>,
  result: ToolResultPart,
  rules: PromptRules,
  media: UserPart[],
): ContentPart {
  const file = {
    mediaType: part.mediaType,
    url: undefined,
    size: Math.floor((part.data.length * 3) / 4),
    filename: part.type === 'file-data' ? part.filename : undefined,
  };
  if (!rules.takesFile(part.mediaType, undefined)) return { type: 'text', text: leftOut(file) };
  if (media.length === 0)
    media.push({
      type: 'text',
      text: `What the call ${result.toolCallId} (${sendableName(result.toolName)}) returned besides text:`,
    });
  media.push(
    part.type === 'image-data'
      ? { type: 'image', image: part.data, mediaType: part.mediaType }
      : {
          type: 'file',
          data: part.data,
          mediaType: part.mediaType,
          ...(part.filename === undefined ? {} : { filename: part.filename }),
        },
  );
  return { type: 'text', text: `[${describe(file)}: it follows in the next message]` };
}

interface FileView {
  readonly mediaType: string;
  /** Set where it is a web address. */
  readonly url: string | undefined;
  readonly size: number;
  readonly filename: string | undefined;
}

function fileOf(part: Exclude<UserPart, { type: 'text' }> | FilePart): FileView {
  const data = part.type === 'image' ? part.image : part.data;
  const url = /^https?:\/\//.test(data) ? data : undefined;
  const mediaType =
    /^data:([^;,]+)/.exec(data)?.[1] ?? (part.type === 'image' ? (part.mediaType ?? 'image/*') : part.mediaType);
  return {
    mediaType,
    url,
    size: Math.floor((data.length * 3) / 4),
    filename: part.type === 'file' ? part.filename : undefined,
  };
}

function describe({ mediaType, url, size, filename }: FileView): string {
  const name = filename === undefined ? '' : ` ${filename}`;
  return `file${name} of type ${mediaType}, ${url ?? `about ${size} bytes`}`;
}

function leftOut(file: FileView): string {
  return `[${describe(file)}: left out, as this model cannot be given it]`;
}

/** Options are hints; what is not this provider's own goes without a word. */
function withOwnOptions<T extends Optioned>(part: T, rules: PromptRules | undefined): T {
  const { providerOptions } = part;
  if (providerOptions === undefined || rules === undefined) return part;
  const own = rules.ownOptions(providerOptions);
  if (own !== undefined && sameItems(Object.values(own), Object.values(providerOptions))) return part;
  if (own !== undefined) return { ...part, providerOptions: own };
  const bare = { ...part };
  delete (bare as { providerOptions?: unknown }).providerOptions;
  return bare;
}

/** On what an assistant said, options are what its provider made of it: ids, signatures. */
function withNotedOptions<T extends Optioned>(part: T, rules: PromptRules | undefined, note: Note): T {
  const kept = withOwnOptions(part, rules);
  if (part.providerOptions !== undefined && kept.providerOptions === undefined)
    note(`marks of another provider were left out (${Object.keys(part.providerOptions).join(', ')})`);
  return kept;
}

function sameItems(a: readonly unknown[], b: readonly unknown[]): boolean {
  return a.length === b.length && a.every((item, index) => item === b[index]);
}
