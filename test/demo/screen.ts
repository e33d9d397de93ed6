import { type DemoEvent, wordsOf } from './demo-event.js';

const { stdout } = process;
const COLOUR =
  (process.env.NO_COLOR ?? '') === '' && (stdout.isTTY || !['', '0', undefined].includes(process.env.FORCE_COLOR));

type Paint = (text: string) => string;
const paint = (code: number): Paint => (COLOUR ? (text) => `\x1b[${code}m${text}\x1b[0m` : (text) => text);
const bold = paint(1);
const dim = paint(2);
const red = paint(31);
const green = paint(32);
const yellow = paint(33);
const blue = paint(34);
const magenta = paint(35);
const cyan = paint(36);

const PAINTS: Readonly<Record<string, Paint>> = { run: green, shim: magenta, model: blue, tool: yellow };
/** Events that a first reader can do without; their ids count all the same. */
const QUIET = /^(state\.snapshot|agent\.|turn\.completed)/;

/** Columns of a line before its words. */
const HEAD = 27;

/** Deltas of one kind in a row, as the one line that they share. */
interface Said {
  readonly kind: string | undefined;
  readonly from: number;
  readonly to: number;
  readonly words: string;
}

/** Writes the demo: steps, events, and claims that hold or not. */
export class Screen {
  readonly #steps: number;
  #step = 0;
  #text: Said | undefined;
  readonly #claims: { readonly claim: string; readonly holds: boolean }[] = [];

  constructor(title: string, steps: number) {
    this.#steps = steps;
    stdout.write(`\n${bold(title)}\n`);
  }

  step(title: string): void {
    this.#step += 1;
    stdout.write(`\n${bold(cyan(`[${this.#step}/${this.#steps}] ${title}`))}\n`);
  }

  note(text: string): void {
    this.flush();
    stdout.write(`  ${dim(text)}\n`);
  }

  /** One line an event; the deltas of a text share one, which grows on a terminal. */
  event(event: DemoEvent): void {
    if (event.type === 'model.delta') {
      this.#delta(event);
      return;
    }
    this.flush();
    if (QUIET.test(event.type)) return;
    stdout.write(`${this.#line(String(event.seq), event.type, wordsOf(event))}\n`);
  }

  /** Ends the line of a text, whole or cut. */
  flush(): void {
    if (this.#text === undefined) return;
    const { from, to, words } = this.#text;
    if (stdout.isTTY) stdout.write('\r\x1b[K');
    stdout.write(`${this.#line(from === to ? String(from) : `${from}-${to}`, 'model.delta', words)}\n`);
    this.#text = undefined;
  }

  /** States what was just shown; a claim that does not hold fails the demo. */
  claim(claim: string, holds: boolean): void {
    this.flush();
    this.#claims.push({ claim, holds });
    stdout.write(`  ${verdict(holds)} ${claim}\n`);
  }

  /** Sums up, and tells whether everything held. */
  end(seconds: number): boolean {
    const failed = this.#claims.filter(({ holds }) => !holds);
    stdout.write(`\n${bold('In short')}\n`);
    for (const { claim, holds } of this.#claims) stdout.write(`  ${verdict(holds)} ${claim}\n`);
    const held = `${this.#claims.length - failed.length} of ${this.#claims.length} claims hold`;
    stdout.write(`\n${bold((failed.length === 0 ? green : red)(held))}, in ${seconds.toFixed(1)} s.\n`);
    return failed.length === 0;
  }

  #delta({ seq, kind, text = '' }: DemoEvent): void {
    if (this.#text?.kind !== kind) this.flush();
    const { from, words } = this.#text ?? { from: seq, words: '' };
    this.#text = { kind, from, to: seq, words: words + text };
    if (!stdout.isTTY) return;
    // Only its end while it grows: a line that wraps could not be drawn again.
    const end = (words + text).slice(-Math.max(stdout.columns - HEAD - 1, 20));
    stdout.write(`\r\x1b[K${this.#line(`${from}-${seq}`, 'model.delta', end)}`);
  }

  #line(id: string, type: string, words: string): string {
    const colour = PAINTS[type.split('.')[0] ?? ''] ?? dim;
    return `  ${dim(id.padStart(7))}  ${colour(type.padEnd(15))} ${words}`.trimEnd();
  }
}

function verdict(holds: boolean): string {
  return holds ? green('✓') : red('✗');
}
