import { type HistoryItem, type Message, type PromptSpec, renderItem, type ToolConfig } from 'shimline/shims';

type Count = (text: string) => number;

let counter: Promise<Count> | undefined;

/** The estimate of a small library, loaded when it is first needed. It reads long words as one, so never less than a token for four letters. */
async function loadCounter(): Promise<Count> {
  counter ??= import('tokenx').then(
    ({ estimateTokenCount }) =>
      (text) =>
        Math.max(estimateTokenCount(text), Math.ceil(text.length / 4)),
  );
  return counter;
}

/** What a message costs beside its contents: role and separators. */
const MESSAGE_TOKENS = 4;

/** Estimates tokens locally. What is in a history does not change, so each item is counted once. */
export class Meter {
  readonly #count: Count;
  readonly #mediaTokens: number;
  readonly #known = new WeakMap<object, number>();

  private constructor(count: Count, mediaTokens: number) {
    this.#count = count;
    this.#mediaTokens = mediaTokens;
  }

  /** @param mediaTokens what an image or file counts for; the length of its base64 text says nothing */
  static async load(mediaTokens: number): Promise<Meter> {
    return new Meter(await loadCounter(), mediaTokens);
  }

  text(text: string): number {
    return this.#count(text);
  }

  item(item: HistoryItem): number {
    return this.#once(item, () => sum(renderItem(item), (message) => this.message(message)));
  }

  items(items: readonly HistoryItem[]): number {
    return sum(items, (item) => this.item(item));
  }

  instructions(instructions: string | PromptSpec): number {
    if (typeof instructions !== 'string') return this.item(instructions);
    return instructions === '' ? 0 : MESSAGE_TOKENS + this.text(instructions);
  }

  tools(config: ToolConfig | null): number {
    return sum(config?.tools ?? [], (tool) =>
      this.#once(tool, () => this.text(`${tool.name}\n${tool.description}\n${JSON.stringify(tool.inputSchema)}`)),
    );
  }

  message({ content }: Message): number {
    if (typeof content === 'string') return MESSAGE_TOKENS + this.text(content);
    return MESSAGE_TOKENS + sum<Part>(content, (part) => this.#part(part));
  }

  #part(part: Part): number {
    switch (part.type) {
      case 'text':
      case 'reasoning':
        return this.text(part.text);
      case 'image':
        return this.#mediaTokens;
      case 'file':
        return this.#media(part.mediaType, part.data);
      case 'tool-call':
        return MESSAGE_TOKENS + this.text(`${part.toolName}${JSON.stringify(part.input)}`);
      case 'tool-result':
        return MESSAGE_TOKENS + this.#output(part.output);
    }
  }

  #output(output: Output): number {
    switch (output.type) {
      case 'text':
      case 'error-text':
        return this.text(output.value);
      case 'json':
      case 'error-json':
        return this.text(JSON.stringify(output.value));
      case 'content':
        return sum(output.value, (part) =>
          part.type === 'text' ? this.text(part.text) : this.#media(part.mediaType, part.data),
        );
    }
  }

  /** Text in a file is sent as text; four letters of base64 are three of it. */
  #media(mediaType: string, data: string): number {
    return mediaType.startsWith('text/') ? Math.ceil((data.length * 3) / 16) : this.#mediaTokens;
  }

  #once(key: unknown, count: () => number): number {
    if (typeof key !== 'object' || key === null || !Object.isFrozen(key)) return count();
    const known = this.#known.get(key) ?? count();
    this.#known.set(key, known);
    return known;
  }
}

type Part = Exclude<Message['content'], string>[number];
type Output = Extract<Part, { type: 'tool-result' }>['output'];

function sum<T>(list: readonly T[], of: (each: T) => number): number {
  return list.reduce((total, each) => total + of(each), 0);
}
