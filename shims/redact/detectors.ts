import { isIPv4, isIPv6 } from 'node:net';
import { countrySpecs, isValidIBAN } from 'ibantools';
import type { Detector, View } from './scanner.js';

/** What finds phone numbers in a text; the library is loaded where it is first needed. */
export type FindPhones = (text: string) => readonly { readonly startsAt: number; readonly endsAt: number }[];

/** How far the detectors look back. */
export const LOOK_BEHIND = 2;

const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;

/** Whether a letter or digit stands there. Every character of every text is asked about, and most are plain. */
function isWordAt({ text }: View, at: number): boolean {
  const code = text.charCodeAt(at);
  if (code < 128) return (code >= 48 && code <= 57) || (code >= 65 && code <= 90) || (code >= 97 && code <= 122);
  return LETTER_OR_DIGIT.test(text.charAt(at));
}

function isDigitAt({ text }: View, at: number): boolean {
  const code = text.charCodeAt(at);
  return code >= 48 && code <= 57;
}

/** The run of characters of one class from a position on, at most as many as its pattern says; undefined where it may go on. */
function run(view: View, at: number, pattern: RegExp, most: number): string | undefined {
  pattern.lastIndex = at;
  const found = pattern.exec(view.text)?.[0] ?? '';
  return !view.whole && found.length < most && at + found.length >= view.text.length ? undefined : found;
}

const LOCAL = /[\p{L}\p{N}._%+'-]{0,64}/uy;
const LOCAL_START = /[\p{L}\p{N}_]/u;
const DOMAIN_RUN = /[\p{L}\p{N}.-]{0,254}/uy;
const DOMAIN = /^(?:[\p{L}\p{N}](?:[\p{L}\p{N}-]{0,61}[\p{L}\p{N}])?\.){1,8}(?:xn--[a-z0-9-]{1,59}|\p{L}{2,63})/iu;

export function emailDetector(): Detector {
  // Between these places of the whole text no address begins: what a run of characters cannot be, its end cannot be either.
  let cleared = { from: 0, to: 0 };
  return {
    entity: 'email',
    at(view, at) {
      const place = view.base + at;
      if (place >= cleared.from && place < cleared.to) return 0;
      const first = view.text.codePointAt(at) ?? 0;
      if (!(first < 128 ? isWordAt(view, at) || first === 95 : LOCAL_START.test(String.fromCodePoint(first)))) return 0;
      const local = run(view, at, LOCAL, 64);
      if (local === undefined) return undefined;
      const sign = at + local.length;
      if (sign >= view.text.length && !view.whole) return undefined;
      const domain = view.text[sign] === '@' ? run(view, sign + 1, DOMAIN_RUN, 254) : '';
      if (domain === undefined) return undefined;
      const found = DOMAIN.exec(domain);
      if (found !== null) return local.length + 1 + found[0].length;
      if (local.length < 64) cleared = { from: place, to: place + local.length };
      return 0;
    },
  };
}

const CARD_RUN = /[\d \u00a0-]{0,40}/y;
const [FIRST_OF_CARD, LAST_OF_CARD] = [0x32, 0x36];

export function cardDetector(): Detector {
  return {
    entity: 'card',
    at(view, at) {
      const code = view.text.charCodeAt(at);
      if (code < FIRST_OF_CARD || code > LAST_OF_CARD || isDigitAt(view, at - 1)) return 0;
      const text = run(view, at, CARD_RUN, 40);
      if (text === undefined) return undefined;
      const digits = /^\d(?:[ \u00a0-]?\d){12,35}/.exec(text)?.[0] ?? '';
      let length = 0;
      for (let end = digits.length, number = digits.replace(/\D/g, ''); number.length >= 13; end -= 1) {
        const last = digits[end - 1] ?? '';
        if (!/\d/.test(last)) continue;
        const followed = /\d/.test(text[end] ?? '');
        if (!followed && number.length <= 19 && passesLuhn(number)) {
          length = end;
          break;
        }
        number = number.slice(0, -1);
      }
      return length;
    },
  };
}

/** The check of card numbers (ISO/IEC 7812-1, annex B): every second digit from the right doubled, the sum of digits a multiple of ten. */
function passesLuhn(digits: string): boolean {
  let sum = 0;
  for (let index = digits.length - 1, twice = false; index >= 0; index -= 1, twice = !twice) {
    const digit = Number(digits[index]);
    const value = twice ? digit * 2 : digit;
    sum += value > 9 ? value - 9 : value;
  }
  return sum % 10 === 0;
}

const IBAN_RUN = /[A-Za-z0-9 \u00a0-]{0,80}/y;

export function ibanDetector(): Detector {
  return {
    entity: 'iban',
    at(view, at) {
      if (!isWordAt(view, at) || isWordAt(view, at - 1)) return 0;
      const head = view.text.slice(at, at + 4);
      if (!/^[A-Za-z]{1,2}$|^[A-Za-z]{2}\d{1,2}$/.test(head)) return 0;
      const country = (countrySpecs as Readonly<Record<string, { readonly chars: number | null }>>)[
        head.slice(0, 2).toUpperCase()
      ];
      const chars = country?.chars ?? 0;
      if (head.length >= 2 && chars === 0) return 0;
      if (head.length < 4) return view.whole ? 0 : undefined;
      const text = run(view, at, IBAN_RUN, 80);
      if (text === undefined) return undefined;
      let number = '';
      let end = 0;
      while (number.length < chars && end < text.length) {
        const char = text[end] ?? '';
        if (/[A-Za-z0-9]/.test(char)) number += char;
        else if (!/[A-Za-z0-9]/.test(text[end - 1] ?? '')) return 0;
        end += 1;
      }
      if (number.length < chars || /[A-Za-z0-9]/.test(text[end] ?? '')) return 0;
      return isValidIBAN(number.toUpperCase()) ? end : 0;
    },
  };
}

const IPV4_RUN = /[\d.]{0,17}/y;
const IPV6_RUN = /[0-9a-fA-F:.]{0,47}/y;

export function ipDetector(): Detector {
  return {
    entity: 'ip',
    at(view, at) {
      const char = view.text[at] ?? '';
      if (isWordAt(view, at) ? isWordAt(view, at - 1) : char !== ':') return 0;
      if (!/[0-9a-fA-F:]/.test(char)) return 0;
      if (isWordAt(view, at - 1)) return 0;
      const fourth =
        isDigitAt(view, at) && !/\d\.$/.test(view.text.slice(Math.max(0, at - 2), at)) ? ipv4(view, at) : 0;
      if (fourth === undefined) return undefined;
      const sixth = ipv6(view, at);
      return sixth === undefined ? undefined : Math.max(fourth, sixth);
    },
  };
}

function ipv4(view: View, at: number): number | undefined {
  const text = run(view, at, IPV4_RUN, 17);
  if (text === undefined) return undefined;
  const found = /^\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)/.exec(text)?.[0] ?? '';
  return isIPv4(found) ? found.length : 0;
}

function ipv6(view: View, at: number): number | undefined {
  const text = run(view, at, IPV6_RUN, 47);
  if (text === undefined) return undefined;
  const end = at + text.length;
  if (end >= view.text.length && !view.whole) return undefined;
  if (!/[0-9a-fA-F]/.test(text) || isWordAt(view, end)) return 0;
  for (let address = text; address.includes(':'); address = address.slice(0, -1)) {
    if (isIPv6(address)) return address.length;
    if (!/[.:]$/.test(address)) return 0;
  }
  return 0;
}

const PHONE_RUN = /[+(\d][\d \t\u00a0().\-/\u2010-\u2015]{0,39}/y;
/** Fifteen digits, as E.164 has it, and a prefix to dial out with. */
const PHONE_DIGITS = /^(?:\D*\d){0,17}(?!\d)\D*/;
const LOOKED_UP = 10_000;

export function phoneDetector(find: FindPhones): Detector {
  // A look-up takes a tenth of a millisecond, and numbers in tables repeat.
  const known = new Map<string, number>();
  return {
    entity: 'phone',
    at(view, at) {
      const char = view.text[at];
      if (char !== '+' && char !== '(' && !isDigitAt(view, at)) return 0;
      if (char !== '+' && (isWordAt(view, at - 1) || view.text[at - 1] === '+')) return 0;
      const text = run(view, at, PHONE_RUN, 40);
      if (text === undefined) return undefined;
      const number = PHONE_DIGITS.exec(text)?.[0] ?? '';
      if (number.replace(/\D/g, '').length < 6) return 0;
      const found = known.get(number) ?? lookUp(find, number);
      if (known.size >= LOOKED_UP) known.clear();
      known.set(number, found);
      return found;
    },
  };
}

function lookUp(find: FindPhones, number: string): number {
  const [first] = find(number);
  return first?.startsAt === 0 ? first.endsAt : 0;
}

/** The shim's own marks: what stands there was redacted before. */
export function markDetector(names: readonly string[]): Detector {
  const longest = Math.max(0, ...names.map((name) => name.length)) + 16;
  const known = new Set(names);
  const pattern = new RegExp(`\\[[\\w:-]{0,${longest}}\\]?`, 'y');
  return {
    entity: '',
    at(view, at) {
      if (view.text[at] !== '[') return 0;
      pattern.lastIndex = at;
      const text = pattern.exec(view.text)?.[0] ?? '';
      if (!view.whole && at + text.length >= view.text.length && !text.endsWith(']') && text.length <= longest)
        return undefined;
      const name = /^\[([\w-]+)(?::[a-p]{12})?\]$/.exec(text)?.[1];
      return name !== undefined && known.has(name) ? text.length : 0;
    },
  };
}
