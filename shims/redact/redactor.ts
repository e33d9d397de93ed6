import { createHmac } from 'node:crypto';
import type { JsonValue } from 'shimline/shims';
import { compilePattern, patternDetector } from './custom-pattern.js';
import {
  cardDetector,
  emailDetector,
  type FindPhones,
  ibanDetector,
  ipDetector,
  LOOK_BEHIND,
  markDetector,
  phoneDetector,
} from './detectors.js';
import { actionsOf, type RedactConfig } from './entities.js';
import { type Detector, type Found, Scanner } from './scanner.js';

/** Something was found that must not pass. It never says what. */
export class BlockedError extends Error {
  readonly entities: readonly string[];
  constructor(where: string, entities: readonly string[]) {
    super(`${where} holds what may not pass: ${entities.join(', ')}.`);
    this.name = 'BlockedError';
    this.entities = entities;
  }
}

/** What the config and the key make of texts. */
export class Redactor {
  readonly #config: RedactConfig;
  readonly #actions: ReturnType<typeof actionsOf>;
  readonly #findPhones: FindPhones;
  readonly #key: () => string;
  readonly #marks: RegExp;
  readonly #patterns: readonly (readonly [string, ReturnType<typeof compilePattern>])[];

  /** @param key asked for where a hash is made, and not before */
  constructor(config: RedactConfig, findPhones: FindPhones, key: () => string) {
    this.#config = config;
    this.#actions = actionsOf(config);
    this.#findPhones = findPhones;
    this.#key = key;
    this.#marks = new RegExp(`\\[(?:${[...this.#actions.keys()].join('|')})(?::[a-p]{12})?\\]`);
    this.#patterns = config.patterns.map(({ name, pattern, ignoreCase }) => [
      name,
      compilePattern(pattern, ignoreCase),
    ]);
  }

  /**
   * For a text that comes in pieces.
   * @param blocked told what is blocked; what stands there is masked. Without it that is a BlockedError
   */
  scanner(where: string, blocked?: (entities: readonly string[]) => void): Scanner {
    const built: Readonly<Record<string, () => Detector>> = {
      email: emailDetector,
      card: cardDetector,
      iban: ibanDetector,
      ip: ipDetector,
      phone: () => phoneDetector(this.#findPhones),
    };
    const { patternLength } = this.#config;
    return new Scanner({
      detectors: [
        ...Object.entries(built).flatMap(([name, make]) => (this.#actions.get(name) === 'off' ? [] : [make()])),
        ...this.#patterns.map(([name, pattern]) => patternDetector(name, pattern, patternLength)),
      ],
      marks: markDetector([...this.#actions.keys()]),
      replace: (found) => this.#mark(where, found, blocked),
      lookBehind: Math.max(LOOK_BEHIND, this.#patterns.length === 0 ? 0 : patternLength + 1),
    });
  }

  text(where: string, text: string, blocked?: (entities: readonly string[]) => void): string {
    const scanner = this.scanner(where, blocked);
    return scanner.push(text) + scanner.end();
  }

  /** Every text in a JSON value, keys included, and long whole numbers, which may be one of the numbers that are looked for. */
  json(where: string, value: JsonValue, blocked?: (entities: readonly string[]) => void): JsonValue {
    if (typeof value === 'string') return this.text(where, value, blocked);
    if (typeof value === 'number') {
      const text = String(value);
      const redacted = Number.isInteger(value) && text.length >= 9 ? this.text(where, text, blocked) : text;
      return redacted === text ? value : redacted;
    }
    if (typeof value !== 'object' || value === null) return value;
    if (Array.isArray(value)) return value.map((each: JsonValue) => this.json(where, each, blocked));
    const entries: [string, JsonValue][] = [];
    const taken = new Set<string>();
    for (const [key, child] of Object.entries(value)) {
      let name = this.text(where, key, blocked);
      for (let count = 2; taken.has(name); count += 1) name = `${this.text(where, key)} ${count}`;
      taken.add(name);
      entries.push([name, this.json(where, child as JsonValue, blocked)]);
    }
    return Object.fromEntries(entries);
  }

  /** Whether something in a text was redacted. */
  hasMark(text: string): boolean {
    return this.#marks.test(text);
  }

  #mark(
    where: string,
    { entities, value }: Found,
    blocked: ((entities: readonly string[]) => void) | undefined,
  ): string {
    const banned = entities.filter((entity) => this.#actions.get(entity) === 'block');
    if (banned.length > 0) {
      if (blocked === undefined) throw new BlockedError(where, banned);
      blocked(banned);
    }
    const [entity = ''] = entities;
    const hashed = banned.length === 0 && entities.every((each) => this.#actions.get(each) === 'hash');
    return hashed ? `[${entity}:${hash(this.#key(), entity, value)}]` : `[${entity}]`;
  }
}

/** Twelve letters, so that a hash is never a number that would be found again. How a number is grouped makes no difference. */
function hash(key: string, entity: string, value: string): string {
  const plain = /^(?:card|iban|phone)$/.test(entity) ? value.replace(/[^\p{L}\p{N}]/gu, '') : value;
  const digest = createHmac('sha256', key).update(`${entity}\0${plain.toLowerCase()}`).digest();
  return [...digest.subarray(0, 6)].map((byte) => letter(byte >> 4) + letter(byte & 15)).join('');
}

function letter(nibble: number): string {
  return String.fromCharCode(97 + nibble);
}
