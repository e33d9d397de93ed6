/** Shorter values would be found by chance, all over innocent texts. */
const SHORTEST = 6;
const MOST_PASSING = 300;
const MASK = '[hidden]';
const REFERENCE = /\$\{([^}]*)\}/g;
/** Only these may be named in a config: whoever saves an agent must not be able to send the server's other keys away. */
const ALLOWED = /^MCP_[A-Za-z0-9_]+$/;
const TELLING = /key|token|secret|pass|auth|cred|session|cookie/i;

/** What must not be seen: hidden in every text that comes from a server or is said about it. */
export class Secrets {
  readonly #lasting = new Set<string>();
  readonly #passing = new Set<string>();

  /** A value of the config: hidden for good. */
  add(value: string): void {
    for (const form of formsOf(value)) this.#lasting.add(form);
  }

  /** A value that another one will replace, an access token say: hidden until many others have come. */
  addPassing(value: string): void {
    for (const form of formsOf(value)) {
      this.#passing.delete(form);
      this.#passing.add(form);
    }
    for (const oldest of this.#passing) {
      if (this.#passing.size <= MOST_PASSING) return;
      this.#passing.delete(oldest);
    }
  }

  /** The text without secrets, and without halves of characters. */
  hide(text: string): string {
    let shown = text.toWellFormed();
    // The longest first: one secret may begin with another.
    for (const value of [...this.#lasting, ...this.#passing].sort((a, b) => b.length - a.length)) {
      if (shown.includes(value)) shown = shown.replaceAll(value, MASK);
    }
    return shown;
  }
}

/** As it is, without its scheme, and as an address or a JSON text would carry it. */
function formsOf(value: string): readonly string[] {
  return [value, value.replace(/^(?:Bearer|Basic|Token)\s+/i, '')]
    .filter((form) => form.length >= SHORTEST)
    .flatMap((form) => [form, encodeURIComponent(form), JSON.stringify(form).slice(1, -1)]);
}

/** The names in a text that are no references to variables of `MCP_…`. */
export function forbiddenReferences(text: string): readonly string[] {
  return [...text.matchAll(REFERENCE)].map(([, name = '']) => name).filter((name) => !ALLOWED.test(name));
}

/**
 * Puts the environment's values in the place of `${MCP_…}`; what it puts there is a secret.
 * @throws Error for a variable that is not set
 */
export function resolveReferences(text: string, secrets: Secrets): string {
  return text.replace(REFERENCE, (_whole, name: string) => {
    const value = environment(name);
    if (value === undefined) throw new Error(`the environment variable ${name} is not set`);
    secrets.add(value);
    return value;
  });
}

/** Variables of a config, resolved; literal values of telling names are secrets too. */
export function resolveRecord(
  record: Readonly<Record<string, string>>,
  secrets: Secrets,
  { allSecret }: { readonly allSecret: boolean },
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(record).map(([name, text]) => {
      const value = resolveReferences(text, secrets);
      if (allSecret || TELLING.test(name)) secrets.add(value);
      return [name, value];
    }),
  );
}

/** What a program needs to start at all; nothing else of the server's environment reaches it. */
const PASSED_ON = ['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'TERM', 'LANG', 'LC_ALL', 'TZ', 'TMPDIR'];

export function minimalEnvironment(): Record<string, string> {
  return Object.fromEntries(
    PASSED_ON.flatMap((name) => {
      const value = environment(name);
      return value === undefined ? [] : [[name, value]];
    }),
  );
}

function environment(name: string): string | undefined {
  // eslint-disable-next-line no-restricted-properties -- a reference keeps the secret itself out of the agent that is saved
  return process.env[name];
}
