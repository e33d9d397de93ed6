import { median } from './statistics.js';

/** One line of the result. `ratio` is what is judged; null where a row is only told. */
export interface Row {
  readonly id: string;
  readonly what: string;
  readonly value: number;
  readonly ceiling: number | null;
  readonly ratio: number | null;
  /** The ratio's lowest and highest of all rounds. */
  readonly spread: readonly [number, number] | null;
  readonly wanted: string;
  readonly ok: boolean;
}

export interface RowInput {
  readonly id: string;
  readonly what: string;
  /** Both sides of each round. */
  readonly rounds: readonly { readonly value: number; readonly ceiling: number }[];
  readonly atMost?: number;
  readonly atLeast?: number;
}

/** A row judged by the median of the rounds' ratios. */
export function ratioRow({ id, what, rounds, atMost, atLeast }: RowInput): Row {
  const ratios = rounds.map(({ value, ceiling }) => value / ceiling);
  const ratio = median(ratios);
  return {
    id,
    what,
    value: median(rounds.map(({ value }) => value)),
    ceiling: median(rounds.map(({ ceiling }) => ceiling)),
    ratio,
    spread: [Math.min(...ratios), Math.max(...ratios)],
    wanted: wantedText(atMost, atLeast),
    ok: (atMost === undefined || ratio <= atMost) && (atLeast === undefined || ratio >= atLeast),
  };
}

export interface ValueRowInput {
  readonly id: string;
  readonly what: string;
  readonly values: readonly number[];
  readonly unit?: string;
  readonly atMost?: number;
  readonly atLeast?: number;
}

/** A row judged by its own value, where there is nothing to compare it with. */
export function valueRow({ id, what, values, atMost, atLeast, unit = '' }: ValueRowInput): Row {
  const value = median(values);
  return {
    id,
    what,
    value,
    ceiling: null,
    ratio: null,
    spread: [Math.min(...values), Math.max(...values)],
    wanted: wantedText(atMost, atLeast, unit),
    ok: (atMost === undefined || value <= atMost) && (atLeast === undefined || value >= atLeast),
  };
}

function wantedText(atMost: number | undefined, atLeast: number | undefined, unit = ''): string {
  const after = unit === '' ? '' : ` ${unit}`;
  if (atMost !== undefined) return `<= ${atMost}${after}`;
  return atLeast === undefined ? '-' : `>= ${atLeast}${after}`;
}

/** All rows as a Markdown table. */
export function tableOf(rows: readonly Row[]): string {
  const head = ['id', 'what', 'value', 'ceiling', 'ratio', 'spread', 'wanted', 'ok'];
  const cells = rows.map((row) => [
    row.id,
    row.what,
    figure(row.value),
    figure(row.ceiling),
    figure(row.ratio),
    row.spread === null ? '' : `${figure(row.spread[0])} - ${figure(row.spread[1])}`,
    row.wanted,
    row.ok ? 'yes' : 'NO',
  ]);
  const widths = head.map((title, column) => Math.max(title.length, ...cells.map((line) => line[column]?.length ?? 0)));
  const line = (parts: readonly string[]): string =>
    `| ${parts.map((part, column) => part.padEnd(widths[column] ?? 0)).join(' | ')} |`;
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...cells.map(line)].join('\n');
}

function figure(value: number | null): string {
  if (value === null) return '';
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 3);
}
