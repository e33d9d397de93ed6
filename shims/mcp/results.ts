import { type ToolContentPart, type ToolFailure, toolFailure, z } from 'shimline/shims';
import type { Secrets } from './secrets.js';

/** A result as leniently as can be: the call has happened, so nothing that is readable in it may be lost. */
export const CallResultSchema = z.looseObject({
  content: z.array(z.unknown()).optional().catch(undefined),
  structuredContent: z.unknown().optional(),
  isError: z.boolean().optional().catch(undefined),
});
export type CallResult = z.output<typeof CallResultSchema>;

const MAX_PARTS = 200;
const MAX_IMAGE_CHARS = 8_000_000;
const IMAGE = /^image\/(?:png|jpeg|gif|webp)$/i;
const DATA_URL = /data:([\w.+-]+\/[\w.+-]+)?[^,\s"']{0,100};base64,[A-Za-z0-9+/=_-]{64,}/g;
const LONG_BASE64 = /[A-Za-z0-9+/]{512,}={0,2}/g;
/** An expression that takes many millions of characters at once has no room left for it. */
const MAX_LOOKED_AT = 2_000_000;

const BlockSchema = z.looseObject({
  type: z.string(),
  text: z.string().optional().catch(undefined),
  data: z.string().optional().catch(undefined),
  mimeType: z.string().optional().catch(undefined),
  uri: z.string().optional().catch(undefined),
  name: z.string().optional().catch(undefined),
  description: z.string().optional().catch(undefined),
  resource: z
    .looseObject({
      uri: z.string().optional().catch(undefined),
      mimeType: z.string().optional().catch(undefined),
      text: z.string().optional().catch(undefined),
      blob: z.string().optional().catch(undefined),
    })
    .optional()
    .catch(undefined),
});
type Block = z.output<typeof BlockSchema>;

/**
 * What a server returned, for the model: texts, images as images, and a short note in the place of what a model cannot use.
 * Base64 is never text. What is there in two forms (`structuredContent` beside `content`) is sent once.
 */
export function resultOf(
  result: CallResult,
  options: { readonly maxChars: number; readonly secrets: Secrets },
): string | readonly ToolContentPart[] | ToolFailure | undefined {
  const { content = [], structuredContent } = result;
  const parts = content.slice(0, MAX_PARTS).map(partOf);
  if (content.length > MAX_PARTS) parts.push(text(`[${content.length - MAX_PARTS} more parts left out]`));
  // Servers repeat the structured form as text; it is only looked at where they do not.
  const extra = parts.length > 0 ? undefined : (structuredContent ?? leftOver(result));
  if (extra !== undefined) parts.push(text(written(extra)));
  const bounded = new Bounds(options).all(parts);
  if (result.isError === true) return toolFailure(textsOf(bounded) || 'The tool failed.', { kind: 'mcp_tool_error' });
  if (bounded.length === 0) return undefined;
  return bounded.every((part) => part.type === 'text') ? textsOf(bounded) : bounded;
}

function written(value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch {
    return '[a result that is nested too deep to be written down: left out]';
  }
}

/** A result of a shape that the protocol does not know. */
function leftOver({
  content: _content,
  structuredContent: _structured,
  isError: _isError,
  _meta,
  ...rest
}: CallResult): unknown {
  return Object.keys(rest).length === 0 ? undefined : rest;
}

function partOf(raw: unknown): ToolContentPart {
  const parsed = BlockSchema.safeParse(raw);
  if (!parsed.success) return text('[a part that the protocol does not know: left out]');
  const block = parsed.data;
  switch (block.type) {
    case 'text':
      return text(block.text ?? '');
    case 'image':
    case 'audio':
      return mediaPart(block.type, block.data, block.mimeType);
    case 'resource_link':
      return text(linkOf(block));
    case 'resource':
      return resourcePart(block);
    default:
      return text(`[a part of type ${block.type.slice(0, 50)}: left out]`);
  }
}

function mediaPart(kind: string, data: string | undefined, mimeType = 'application/octet-stream'): ToolContentPart {
  const base64 = (data ?? '').replace(/\s+/g, '');
  const readable = base64 !== '' && base64.length <= MAX_IMAGE_CHARS && /^[A-Za-z0-9+/]+={0,2}$/.test(base64);
  if (readable && IMAGE.test(mimeType)) return { type: 'image', image: base64, mediaType: mimeType.toLowerCase() };
  return text(`[${kind} of type ${mimeType.slice(0, 100)}, about ${bytesOf(base64)} bytes: left out]`);
}

function resourcePart({ resource = {} }: Block): ToolContentPart {
  const { uri = '', mimeType, text: words, blob } = resource;
  if (words !== undefined) return text(`[resource ${uri}]\n${words}`);
  return mediaPart(`resource ${uri.slice(0, 300)}`, blob, mimeType);
}

function linkOf({ uri = '', name = '', description = '', mimeType = '' }: Block): string {
  const said = [name, mimeType, description].filter((part) => part !== '').join(', ');
  return `[resource ${uri}${said === '' ? '' : `: ${said}`}]`;
}

function text(words: string): ToolContentPart {
  return { type: 'text', text: words };
}

function textsOf(parts: readonly ToolContentPart[]): string {
  return parts.map((part) => (part.type === 'text' ? part.text : '[an image]')).join('\n');
}

function bytesOf(base64: string): number {
  return Math.floor((base64.length * 3) / 4);
}

class Bounds {
  readonly #secrets: Secrets;
  #left: number;

  constructor({ maxChars, secrets }: { readonly maxChars: number; readonly secrets: Secrets }) {
    this.#left = maxChars;
    this.#secrets = secrets;
  }

  all(parts: readonly ToolContentPart[]): readonly ToolContentPart[] {
    return (
      parts
        .map((part) => (part.type === 'text' ? text(this.#bounded(part.text)) : part))
        // Providers refuse empty texts.
        .filter((part) => part.type !== 'text' || part.text !== '')
    );
  }

  #bounded(words: string): string {
    const most = Math.max(MAX_LOOKED_AT, this.#left);
    return this.#cut(this.#clean(words.slice(0, most)), Math.max(0, words.length - most));
  }

  #clean(words: string): string {
    const bare = words
      .replace(
        DATA_URL,
        (url, type: string | undefined) => `[${type ?? 'data'}, about ${bytesOf(url)} bytes: left out]`,
      )
      .replace(LONG_BASE64, (run) =>
        /[a-z]/.test(run) && /[A-Z]/.test(run) && /\d/.test(run)
          ? `[about ${bytesOf(run)} bytes of base64: left out]`
          : run,
      );
    return this.#secrets.hide(bare).toWellFormed();
  }

  #cut(words: string, beyond: number): string {
    if (beyond === 0 && words.length <= this.#left) {
      this.#left -= words.length;
      return words;
    }
    // Not between the halves of a character.
    const kept = words.slice(0, this.#left).replace(/[\uD800-\uDBFF]$/, '');
    this.#left = 0;
    return `${kept}\n[cut: ${words.length + beyond - kept.length} of ${words.length + beyond} characters left out]`;
  }
}
