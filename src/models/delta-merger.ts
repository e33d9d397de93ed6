/**
 * Joins runs of delta events that are equal but for their text into one event, without parsing them.
 *
 * What a provider package does with an event costs far more than reading its bytes (JSON, schema, several stream stages), and a fast
 * provider puts many events into one packet. Joining those that arrived together changes neither the text nor the moment at which a
 * reader gets it. The text is joined in its JSON spelling, which is again the spelling of the joined text.
 */
export class DeltaMerger {
  #out = '';
  #prefix = '';
  #literal = '';
  #suffix = '';

  /** Takes the data of one event, in Latin-1. */
  add(data: string): void {
    const start = literalStart(data);
    if (start > 0) {
      const end = literalEnd(data, start);
      if (
        end > 0 &&
        this.#literal !== '' &&
        data.length - end === this.#suffix.length &&
        start === this.#prefix.length
      ) {
        if (data.startsWith(this.#prefix) && data.endsWith(this.#suffix)) {
          this.#literal += data.slice(start, end);
          return;
        }
      }
      if (end > start && onlyDelta(data, end)) {
        this.#flushRun();
        this.#prefix = data.slice(0, start);
        this.#literal = data.slice(start, end);
        this.#suffix = data.slice(end);
        return;
      }
    }
    this.#flushRun();
    this.#out += frame(data);
  }

  /** Everything added since the last call, as events of one line each; empty when there is nothing. */
  take(): string {
    this.#flushRun();
    const out = this.#out;
    this.#out = '';
    return out;
  }

  #flushRun(): void {
    if (this.#literal === '') return;
    this.#out += `data: ${this.#prefix}${this.#literal}${this.#suffix}\n\n`;
    this.#literal = '';
  }
}

/** The openings after which nothing but the text of a delta follows, one per kind of delta and spelling of JSON. */
const OPENINGS = [
  '"delta":{"content":"',
  '"delta":{"role":"assistant","content":"',
  '"delta":{"reasoning_content":"',
  '"delta":{"reasoning":"',
  '"delta":{"tool_calls":[{"index":0,"function":{"arguments":"',
  '"delta":{"type":"text_delta","text":"',
  '"delta":{"type":"thinking_delta","thinking":"',
  '"delta":{"type":"input_json_delta","partial_json":"',
].flatMap((opening) => [opening, opening.replaceAll(/([:,])(?=["[{])/g, '$1 ')]);

/** Where the text of the delta begins, or -1. The marks cannot occur inside JSON text, whose quotes are escaped. */
function literalStart(data: string): number {
  const delta = data.indexOf('"delta":');
  if (delta < 0) return -1;
  for (const opening of OPENINGS) {
    if (data.startsWith(opening, delta)) return delta + opening.length;
  }
  return -1;
}

/** The index of the quote that closes the text begun at `start`, or -1. */
function literalEnd(data: string, start: number): number {
  for (let quote = data.indexOf('"', start); quote >= 0; quote = data.indexOf('"', quote + 1)) {
    let backslashes = 0;
    while (data.charCodeAt(quote - 1 - backslashes) === 0x5c && quote - 1 - backslashes >= start) backslashes += 1;
    if (backslashes % 2 === 0) return quote;
  }
  return -1;
}

/** True when the text is the last member of its delta and the event has no other delta: then a second text can only be appended. */
function onlyDelta(data: string, end: number): boolean {
  return (
    data.charCodeAt(end + 1) === 0x7d &&
    !data.includes('"delta"', end) &&
    !data.includes('"usage":{', end) &&
    !data.includes('\n')
  );
}

function frame(data: string): string {
  return data.includes('\n') ? `data: ${data.replaceAll('\n', '\ndata: ')}\n\n` : `data: ${data}\n\n`;
}
