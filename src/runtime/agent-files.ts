import { readdir, readFile } from 'node:fs/promises';
import { basename, extname, join } from 'node:path';
import { parse, YAMLParseError } from 'yaml';
import type { AgentDescriptor } from '../agent/descriptor.js';
import { messageOf } from '../agent/run-errors.js';
import { type FieldError, ValidationError } from '../errors.js';
import { type AgentCheckDeps, checkAgent } from './agent-check.js';
import { shownPath } from './shim-fault.js';

/** A file of `AGENTS_DIR` that gave no agent, and why. */
export interface AgentFileFault {
  readonly file: string;
  readonly message: string;
  /** Each fault of the definition, where it could be read at all. */
  readonly errors: readonly FieldError[];
}

export interface AgentFiles {
  readonly agents: readonly { readonly file: string; readonly descriptor: AgentDescriptor }[];
  readonly faults: readonly AgentFileFault[];
}

interface Candidate {
  readonly file: string;
  readonly name: string;
  readonly body: unknown;
}

/**
 * Reads and checks the agents of a folder, in the order of the file names: `*.json`, and `*.md` with YAML front matter, whose body is
 * the instructions (a template, where the front matter has `values`). The file's name without extension is the agent's where it gives
 * none. Names that begin with `_` or `.`, `README.md` and folders are left alone. Agents of the folder may hand off to each other.
 *
 * A broken file does not stop the others; one whose handoff leads to a broken one is broken too.
 * @param deps.agents agents that exist beside those of the folder
 */
export async function readAgentFiles(folder: string, deps: Omit<AgentCheckDeps, 'name'>): Promise<AgentFiles> {
  const faults: AgentFileFault[] = [];
  let names: readonly string[];
  try {
    names = (await readdir(folder)).sort();
  } catch (error) {
    return {
      agents: [],
      faults: [{ file: shownPath(folder), message: `the folder cannot be read: ${messageOf(error)}`, errors: [] }],
    };
  }
  const candidates = new Map<string, Candidate>();
  for (const name of names.filter(isAgentFile)) {
    const file = join(folder, name);
    try {
      const candidate = await readCandidate(file);
      const namesake = candidates.get(candidate.name);
      if (namesake !== undefined)
        throw new Error(`the agent ${JSON.stringify(candidate.name)} is in ${shownPath(namesake.file)} already`);
      candidates.set(candidate.name, candidate);
    } catch (error) {
      faults.push({ file: shownPath(file), message: messageOf(error), errors: [] });
    }
  }
  return { agents: checkAll(candidates, deps, faults), faults };
}

/** Checks until no more fall: each that does takes itself from those that others may hand off to. */
function checkAll(
  candidates: Map<string, Candidate>,
  deps: Omit<AgentCheckDeps, 'name'>,
  faults: AgentFileFault[],
): AgentFiles['agents'] {
  for (;;) {
    const agents: { readonly file: string; readonly descriptor: AgentDescriptor }[] = [];
    const known = new Set(candidates.keys());
    for (const { file, name, body } of [...candidates.values()]) {
      try {
        agents.push({
          file,
          ...checkAgent(body, { ...deps, name, agents: (each) => known.has(each) || deps.agents(each) }),
        });
      } catch (error) {
        candidates.delete(name);
        faults.push({
          file: shownPath(file),
          message: messageOf(error),
          errors: error instanceof ValidationError ? (error.errors ?? []) : [],
        });
      }
    }
    if (candidates.size === known.size) return agents;
  }
}

function isAgentFile(name: string): boolean {
  return /\.(json|md)$/.test(name) && !/^[_.]/.test(name) && name.toLowerCase() !== 'readme.md';
}

async function readCandidate(file: string): Promise<Candidate> {
  const text = (await readFile(file, 'utf8')).replace(/^\uFEFF/, '');
  const body = extname(file) === '.json' ? parseJson(text) : parseMarkdown(text);
  const own =
    typeof body === 'object' && body !== null && 'name' in body && typeof body.name === 'string'
      ? body.name
      : undefined;
  return { file, name: own ?? basename(file, extname(file)), body };
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    const offset = /at position (\d+)/.exec(messageOf(error))?.[1];
    const line = offset === undefined ? '' : ` in line ${text.slice(0, Number(offset)).split('\n').length}`;
    throw new Error(`this is no valid JSON${line}: ${messageOf(error)}`, { cause: error });
  }
}

function parseMarkdown(text: string): unknown {
  const match = /^---[ \t]*\r?\n([\s\S]*?)^---[ \t]*(?:\r?\n|$)([\s\S]*)$/m.exec(text);
  if (match?.index !== 0)
    throw new Error('there is no front matter: the file must begin with a line --- and have another one after it');
  const [, front = '', rest = ''] = match;
  const body = rest.trim();
  const fields = parseFrontMatter(front);
  if (body === '') return fields;
  if ('instructions' in fields)
    throw new Error('the instructions are given twice: in the front matter and as the body');
  if (!('values' in fields)) return { ...fields, instructions: body };
  const { values, ...others } = fields;
  return { ...others, instructions: { template: body, values } };
}

function parseFrontMatter(text: string): Record<string, unknown> {
  let fields: unknown;
  try {
    fields = parse(text) ?? {};
  } catch (error) {
    // The front matter begins in line 2 of the file.
    const line = error instanceof YAMLParseError ? error.linePos?.[0].line : undefined;
    const what = messageOf(error).split(/ at line \d+/)[0] ?? '';
    throw new Error(`the front matter is no valid YAML${line === undefined ? '' : ` in line ${line + 1}`}: ${what}`, {
      cause: error,
    });
  }
  if (typeof fields !== 'object' || fields === null || Array.isArray(fields))
    throw new Error('the front matter must be a list of fields, as in "model: scripted/demo"');
  return fields as Record<string, unknown>;
}
