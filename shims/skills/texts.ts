import type { Message } from 'shimline/shims';
import { cut } from './front-matter.js';
import type { Skill } from './library.js';

/** The whole catalogue has no more characters than about this; what is beyond is counted. */
const MAX_CATALOGUE = 30_000;

/** The mark by which the catalogue of a shim is found in an instruction. */
export function catalogueMark(shim: string): string {
  return `<available_skills from="${shim}">`;
}

/** What the instruction says of the skills there are. */
export function catalogueText(
  skills: readonly Skill[],
  options: { readonly shim: string; readonly tool: string },
): string {
  const lines: string[] = [];
  let left = MAX_CATALOGUE;
  for (const skill of skills) {
    const line = `- ${skill.name}: ${plain(describe(skill))}`;
    left -= line.length;
    if (left < 0) break;
    lines.push(line);
  }
  if (lines.length < skills.length) lines.push(`(and ${skills.length - lines.length} more, which are not listed here)`);
  return [
    catalogueMark(options.shim),
    `Skills are instructions for particular kinds of work. Before you begin a task that one of these is for, call ${options.tool} with its name, and follow what it says.`,
    ...lines,
    '</available_skills>',
  ].join('\n');
}

function describe({ description, compatibility }: Skill): string {
  return compatibility === undefined
    ? description
    : `${description} (Needs: ${cut(compatibility.replace(/\s+/g, ' ').trim(), 500)})`;
}

/** Text that cannot end the catalogue. */
function plain(text: string): string {
  return text.replaceAll('<', '‹').replaceAll('>', '›');
}

/** What was new, other or gone since the catalogue was written; the instruction itself stays, for the sake of the prompt cache. */
export function changesText(changed: readonly Skill[], gone: readonly string[]): string {
  return [
    'The skills have changed since the list of them was written.',
    ...(changed.length === 0
      ? []
      : ['New or changed:', ...changed.map((skill) => `- ${skill.name}: ${plain(describe(skill))}`)]),
    ...(gone.length === 0 ? [] : [`No longer there: ${gone.join(', ')}.`]),
  ].join('\n');
}

/** A body between marks that say how long it is, so that one which was shortened meanwhile is not taken for whole. */
export function bodyText(name: string, body: string): string {
  return `${openingOf(name)}${body.length}">\n${body}${CLOSING}`;
}

const openingOf = (name: string): string => `<skill_content name="${name}" chars="`;
const CLOSING = '\n</skill_content>';

/** Whether the whole body of a skill stands in a text. */
export function holdsBody(text: string, name: string): boolean {
  const opening = openingOf(name);
  for (let at = text.indexOf(opening); at >= 0; at = text.indexOf(opening, at + 1)) {
    const head = /^(\d+)">\n/.exec(text.slice(at + opening.length, at + opening.length + 16));
    if (head === null) continue;
    const end = at + opening.length + head[0].length + Number(head[1]);
    if (text.startsWith(CLOSING, end)) return true;
  }
  return false;
}

/** The beginning of what the model is told of a body that is gone and too long to be put back. */
export function offerText(name: string, tool: string): string {
  return `The instructions of the active skill ${JSON.stringify(name)} are no longer in this conversation. Call ${tool} again if you still need them.`;
}

/** The texts of a message, one for each of its parts. */
export function textsIn({ content }: Message): string[] {
  if (typeof content === 'string') return [content];
  return content.flatMap((part) => {
    if (part.type === 'text') return [part.text];
    return part.type === 'tool-result' && part.output.type === 'text' ? [part.output.value] : [];
  });
}

/** A piece of a text, at whole characters, and what is left after it. */
export function pieceOf(
  text: string,
  offset: number,
  length: number,
): { readonly piece: string; readonly end: number } {
  const start = atWhole(text, Math.min(offset, text.length));
  const end = atWhole(text, Math.min(start + length, text.length));
  return { piece: text.slice(start, end), end };
}

/** A place that does not part a surrogate pair. */
function atWhole(text: string, at: number): number {
  return at > 0 &&
    at < text.length &&
    /[\uD800-\uDBFF]/.test(text[at - 1] ?? '') &&
    /[\uDC00-\uDFFF]/.test(text[at] ?? '')
    ? at - 1
    : at;
}
