export interface SseEvent {
  /** The last event id that the stream has set, as the standard has it. */
  readonly id: string;
  readonly event: string;
  readonly data: string;
  /** The data as JSON, undefined when it is none. */
  readonly json: unknown;
  /** Wall clock of its arrival, in milliseconds. */
  readonly at: number;
}

export interface SseSink {
  onEvent(event: SseEvent): void;
  onComment(text: string): void;
  onRetry(ms: number): void;
}

/** Parses an event stream by the letter of the WHATWG standard; what stands after the last blank line is dropped. */
export class SseParser {
  readonly #sink: SseSink;
  // Decodes as UTF-8 and takes away one leading byte order mark.
  readonly #decoder = new TextDecoder('utf-8');
  #rest = '';
  #skipLineFeed = false;
  #data = '';
  #hasData = false;
  #type = '';
  #idBuffer = '';

  constructor(sink: SseSink) {
    this.#sink = sink;
  }

  push(bytes: Uint8Array): void {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === '') return;
    // A CR at the end of the last piece was a line end already; its LF may come only now.
    if (this.#skipLineFeed && text.startsWith('\n')) text = text.slice(1);
    this.#skipLineFeed = text.endsWith('\r');
    const lines = (this.#rest + text).split(/\r\n|\r|\n/);
    this.#rest = lines.pop() ?? '';
    for (const line of lines) this.#line(line);
  }

  #line(line: string): void {
    if (line === '') {
      this.#dispatch();
      return;
    }
    if (line.startsWith(':')) {
      this.#sink.onComment(line.slice(1));
      return;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    switch (field) {
      case 'event':
        this.#type = value;
        break;
      case 'data':
        this.#data += `${value}\n`;
        this.#hasData = true;
        break;
      case 'id':
        if (!value.includes('\0')) this.#idBuffer = value;
        break;
      case 'retry':
        if (/^[0-9]+$/.test(value)) this.#sink.onRetry(Number(value));
        break;
    }
  }

  #dispatch(): void {
    const data = this.#data.slice(0, -1);
    const event = this.#type === '' ? 'message' : this.#type;
    const isEvent = this.#hasData;
    this.#data = '';
    this.#hasData = false;
    this.#type = '';
    if (isEvent) this.#sink.onEvent({ id: this.#idBuffer, event, data, json: jsonOf(data), at: Date.now() });
  }
}

function jsonOf(data: string): unknown {
  try {
    return JSON.parse(data) as unknown;
  } catch {
    return undefined;
  }
}
