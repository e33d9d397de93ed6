import type { z } from 'zod';
import { type JsonValue, strictStringify } from './json.js';
import type { WorkingState } from './run-state.js';

/** How a shim keeps a state of its own: schema, version, and how an older version becomes this one. */
export interface NamespaceDefinition {
  readonly schema: z.ZodType;
  readonly version: number;
  readonly migrate?: ((old: JsonValue, fromVersion: number) => unknown) | undefined;
}

/** A stored state that is newer than the code: nothing is touched. */
export class NewerStateError extends Error {
  constructor(shim: string, stored: number, known: number) {
    super(
      `The saved state of shim ${JSON.stringify(shim)} has version ${stored}; this code knows up to ${known}. It was left as it is.`,
    );
    this.name = 'NewerStateError';
  }
}

/** A state that its own schema refuses. */
export class InvalidStateError extends Error {
  constructor(shim: string, faults: string) {
    super(`The state of shim ${JSON.stringify(shim)} does not fit its schema: ${faults}`);
    this.name = 'InvalidStateError';
  }
}

/**
 * One shim's versioned part of `shimState` (R20a): the value under the shim's name, its version under `<name>:version`.
 * The bytes stay where they are when the shim is gone.
 */
export class ShimNamespace {
  readonly #shim: string;
  readonly #definition: NamespaceDefinition;
  readonly #working: WorkingState;
  #value: unknown;
  #json: string | undefined;
  #version: number | undefined;
  #loaded = false;
  /** Once the live object was handed out, a nested write can come at any time. */
  #touched = false;

  constructor(shim: string, definition: NamespaceDefinition, working: WorkingState) {
    this.#shim = shim;
    this.#definition = definition;
    this.#working = working;
  }

  /** The live object. */
  get value(): unknown {
    if (!this.#loaded) this.load();
    this.#touched = true;
    return this.#value;
  }

  /** Reads, migrates and checks what is saved. @throws NewerStateError, InvalidStateError */
  load(): void {
    const { schema, version, migrate } = this.#definition;
    const stored = this.#working.live.peek(this.#shim);
    const storedVersion = this.#working.live.get<number>(`${this.#shim}:version`) ?? 1;
    if (stored !== undefined && storedVersion > version) throw new NewerStateError(this.#shim, storedVersion, version);
    const old =
      stored === undefined || storedVersion === version || migrate === undefined
        ? (stored ?? {})
        : migrate(stored, storedVersion);
    this.#value = this.#parse(schema, old);
    this.#json = stored === undefined ? undefined : JSON.stringify(stored);
    this.#version = stored === undefined ? version : storedVersion;
    this.#loaded = true;
    this.#touched = this.#version !== version;
  }

  /** Checks the live object and hands it to the state when it changed. @throws InvalidStateError, NotJsonError */
  flush(): void {
    if (!this.#touched) return;
    const json = strictStringify(this.#value, `state.${this.#shim}`);
    if (json === this.#json && this.#version === this.#definition.version) return;
    this.#parse(this.#definition.schema, JSON.parse(json));
    // The first look at a state that nothing was stored for leaves its defaults unwritten, unless they were changed.
    if (this.#json === undefined && json === JSON.stringify(this.#parse(this.#definition.schema, {}))) return;
    this.#json = json;
    this.#version = this.#definition.version;
    this.#working.live.set(this.#shim, JSON.parse(json) as JsonValue);
    this.#working.live.set(`${this.#shim}:version`, this.#definition.version);
  }

  /** Checks what was written to the key directly, past the live object, and takes it up. @throws InvalidStateError */
  recheck(): void {
    const stored = this.#working.live.peek(this.#shim);
    const json = stored === undefined ? undefined : JSON.stringify(stored);
    if (json === this.#json) return;
    if (stored !== undefined) this.#parse(this.#definition.schema, stored);
    this.reset();
  }

  /** Forgets the live object: the state behind it was put back. */
  reset(): void {
    this.#loaded = false;
    this.#touched = false;
  }

  #parse(schema: z.ZodType, value: unknown): unknown {
    const parsed = schema.safeParse(value);
    if (parsed.success) return parsed.data;
    throw new InvalidStateError(
      this.#shim,
      parsed.error.issues.map((issue) => `/${issue.path.join('/')}: ${issue.message}`).join('; '),
    );
  }
}
