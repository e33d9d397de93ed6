import { DeltaMerger } from './delta-merger.js';
import { type Dialect, inBandErrorOf, judgeEvent, parseLatin1 } from './dialect.js';
import { type AnswerFacts, InBandStreamError, NotAStreamError, StreamCutError } from './stream-errors.js';
import { ToldUsage } from './told-usage.js';

/** A single event may not be longer, so that an endpoint without line breaks cannot take all memory. */
const MAX_EVENT_BYTES = 64 * 1024 * 1024;
/** How much of a body that is JSON instead of events is kept to find its error in. */
const MAX_DOCUMENT_BYTES = 256 * 1024;
const BOM = '\u00ef\u00bb\u00bf';

/**
 * Reads the bytes of one streamed answer in any legal framing (CRLF, CR, LF, several data lines, comments, no space, BOM, no last blank
 * line) and gives them back in the plainest one, which every provider package reads. On the way it finds the end mark and in-band errors.
 *
 * Text is handled in Latin-1, one character per byte: all that is looked at is ASCII, and characters cut by a packet stay whole.
 */
export class SseScanner {
  readonly #dialect: Dialect;
  readonly #requestId: string | undefined;
  readonly #contentType: string;
  readonly #merger = new DeltaMerger();
  readonly #usage: ToldUsage;
  /** The line that has not ended yet, in pieces, so that a long one is joined once. */
  #pieces: string[] = [];
  #pieceBytes = 0;
  #data: string | undefined;
  #namedError = false;
  #afterCarriageReturn = false;
  #begun = false;
  #events = 0;
  #document: string | undefined;
  #state: 'open' | 'whole' | 'ended' = 'open';

  constructor(dialect: Dialect, answer: { readonly requestId: string | undefined; readonly contentType: string }) {
    this.#dialect = dialect;
    this.#usage = new ToldUsage(dialect);
    this.#requestId = answer.requestId;
    this.#contentType = answer.contentType;
  }

  /** True once the end mark was read: whatever bytes follow are not part of the answer. */
  get ended(): boolean {
    return this.#state === 'ended';
  }

  /** What is known of the answer so far, for the error that ends it. */
  get facts(): AnswerFacts {
    return { requestId: this.#requestId, usage: this.#usage.read() };
  }

  /** Takes bytes as they arrive. Throws the in-band error that they complete; what came before it can still be taken. */
  push(chunk: Buffer): void {
    if (this.#state === 'ended') return;
    let text = chunk.toString('latin1');
    if (!this.#begun) {
      if (this.#pieces.length > 0) text = this.#takeLine(text);
      // Three bytes tell a byte order mark; a body that short waits for its next piece.
      if (text.length < 3 && BOM.startsWith(text)) {
        this.#keep(text);
        return;
      }
      this.#begun = true;
      if (text.startsWith(BOM)) text = text.slice(3);
    }
    if (this.#collect(text)) return;
    if (this.#afterCarriageReturn || text.includes('\r')) text = this.#withoutCarriageReturns(text);
    let from = 0;
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', from)) {
      const line = from === 0 && this.#pieces.length > 0 ? this.#takeLine(text.slice(0, end)) : text.slice(from, end);
      from = end + 1;
      this.#line(line);
      if (this.ended || this.#collect(text.slice(from))) return;
    }
    if (from < text.length) this.#keep(from === 0 ? text : text.slice(from));
  }

  /** The events that are complete, as bytes for the provider package; `undefined` when there are none. */
  take(): Buffer | undefined {
    const out = this.#merger.take();
    return out === '' ? undefined : Buffer.from(out, 'latin1');
  }

  /** Says that the body ended. Throws unless the answer is proven whole; what came before can still be taken. */
  end(): void {
    if (this.#state === 'ended') return;
    if (this.#pieces.length > 0) this.#line(this.#takeLine(''));
    this.#dispatch();
    if (this.#state !== 'open') return;
    if (this.#document !== undefined) this.#judgeDocument(this.#document);
    const what =
      this.#events === 0
        ? `before its first event (content type ${this.#contentType})`
        : `after ${this.#events} events, without its end mark`;
    throw new StreamCutError(`The provider's answer ended ${what}.`, this.facts);
  }

  #keep(text: string): void {
    this.#pieces.push(text);
    this.#pieceBytes += text.length;
    if (this.#pieceBytes > MAX_EVENT_BYTES)
      throw new NotAStreamError(`The provider sent an event of more than ${MAX_EVENT_BYTES} bytes.`, this.#requestId);
  }

  #takeLine(last: string): string {
    this.#pieces.push(last);
    const line = this.#pieces.length === 1 ? last : this.#pieces.join('');
    this.#pieces = [];
    this.#pieceBytes = 0;
    return line;
  }

  /** Every CR and CRLF as LF; a CR at the very end is a line end at once, and an LF that follows it in the next bytes is dropped. */
  #withoutCarriageReturns(text: string): string {
    const rest = this.#afterCarriageReturn && text.startsWith('\n') ? text.slice(1) : text;
    this.#afterCarriageReturn = text.endsWith('\r');
    return rest.replaceAll(/\r\n?/g, '\n');
  }

  #line(line: string): void {
    if (line === '') {
      this.#dispatch();
      return;
    }
    if (line.startsWith('data:')) {
      const data = line.charCodeAt(5) === 0x20 ? line.slice(6) : line.slice(5);
      this.#data = this.#data === undefined ? data : `${this.#data}\n${data}`;
      if (this.#data.length > MAX_EVENT_BYTES)
        throw new NotAStreamError(`The provider sent an event of more than ${MAX_EVENT_BYTES} bytes.`, this.#requestId);
      return;
    }
    if (line.startsWith('event:')) {
      this.#namedError = line.slice(6).trim() === 'error';
      return;
    }
    // No field of an event begins so: this is a JSON document where events belong, nearly always an error.
    if (/^\s*[{[]/.test(line)) {
      this.#dispatch();
      this.#document = `${line}\n`;
    }
  }

  #dispatch(): void {
    const data = this.#data;
    const namedError = this.#namedError;
    this.#data = undefined;
    this.#namedError = false;
    if (data === undefined || data.trim() === '' || this.#state === 'ended') return;
    this.#events += 1;
    this.#usage.add(data);
    const verdict = judgeEvent(this.#dialect, data);
    if (verdict === undefined) {
      if (namedError) this.#failNamed(data);
      this.#merger.add(data);
      return;
    }
    switch (verdict.kind) {
      case 'end':
        this.#state = 'ended';
        if (data !== '[DONE]') this.#merger.add(data);
        return;
      case 'whole':
        this.#state = 'whole';
        this.#merger.add(data);
        return;
      case 'rewrite':
        this.#merger.add(verdict.data);
        return;
      case 'error':
        throw new InBandStreamError(verdict.error, this.facts);
    }
  }

  /** An event whose name is `error`, with data in none of the known shapes. */
  #failNamed(data: string): never {
    const parsed = parseLatin1(data);
    const plain = { message: Buffer.from(data, 'latin1').toString('utf8'), providerCode: undefined, status: undefined };
    throw new InBandStreamError(inBandErrorOf(parsed) ?? inBandErrorOf({ error: parsed }) ?? plain, this.facts);
  }

  /** True when the rest of the body is a JSON document, of which this is a piece. */
  #collect(text: string): boolean {
    if (this.#document === undefined) return false;
    if (this.#document.length < MAX_DOCUMENT_BYTES) this.#document += text;
    return true;
  }

  #judgeDocument(document: string): void {
    const parsed = parseLatin1(document);
    const error = inBandErrorOf(parsed);
    if (error !== undefined) throw new InBandStreamError(error, this.facts);
    if (parsed === undefined || this.#events > 0) return;
    throw new NotAStreamError(
      'The provider answered with one JSON document where a stream was asked for.',
      this.#requestId,
    );
  }
}
