/** About what the note of a cut has itself: less than that is not worth a cut. */
const NOTE_LENGTH = 60;

/** Cuts the middle out of a text, so that head, tail and a note of what is gone have about `length` characters. */
export function cutMiddle(text: string, length: number): string {
  if (text.length <= length + NOTE_LENGTH) return text;
  const head = Math.floor(Math.max(0, length) * 0.7);
  const tail = Math.max(0, length) - head;
  const before = wholeUpTo(text, head);
  const after = wholeUpTo(text, text.length - tail, 'after');
  return `${text.slice(0, before)}\n[… ${after - before} characters left out to save context …]\n${text.slice(after)}`;
}

/** A place to cut at that does not split a surrogate pair: half of one makes a request that providers refuse. */
function wholeUpTo(text: string, at: number, side: 'before' | 'after' = 'before'): number {
  const splits = isHigh(text.charCodeAt(at - 1)) && isLow(text.charCodeAt(at));
  if (!splits) return at;
  return side === 'before' ? at - 1 : at + 1;
}

const isHigh = (unit: number): boolean => unit >= 0xd800 && unit <= 0xdbff;
const isLow = (unit: number): boolean => unit >= 0xdc00 && unit <= 0xdfff;
