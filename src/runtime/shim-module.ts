import { readFile, stat } from 'node:fs/promises';
import { createRequire, isBuiltin } from 'node:module';
import { dirname, extname, join, resolve, sep } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { Script } from 'node:vm';
import type { Jiti } from 'jiti';
import { ShimFileError, shownPath } from './shim-fault.js';

/** The only specifier of ours that a shim imports. */
export const SHIMS_ENTRY = 'shimline/shims';
/** Kinds of files that are evaluated here; what a shim imports from a package is Node's business. */
export const SOURCE_EXTENSIONS: readonly string[] = ['.ts', '.mts', '.js', '.mjs', '.cjs', '.json'];

type Exports = Record<string, unknown>;
type JitiImport = (specifier: string) => Promise<unknown>;
type ModuleBody = (
  exports: Exports,
  require: NodeJS.Require,
  module: { exports: Exports },
  filename: string,
  directory: string,
  jitiImport: JitiImport,
  jitiResolve: (specifier: string) => string,
) => Promise<void> | undefined;

/** One evaluated file with everything that it imports, helpers included. */
export interface LoadedModule {
  readonly exports: Readonly<Exports>;
  /** The text of each file that was evaluated, by absolute path; the file itself first. */
  readonly sources: ReadonlyMap<string, string>;
}

interface ModuleRecord {
  readonly module: { exports: Exports };
  readonly done: Promise<void>;
}

let compiler: Promise<Jiti> | undefined;

/** Loaded with the first shim that needs it: the package's own are compiled already, and a start should not wait for it. */
async function loadCompiler(): Promise<Jiti> {
  compiler ??= import('jiti').then(({ createJiti }) =>
    createJiti(import.meta.url, { fsCache: false, moduleCache: false }),
  );
  return compiler;
}

const PARAMETERS = 'exports, require, module, __filename, __dirname, jitiImport, jitiESMResolve';

/**
 * Gives a compiled shim of the package to Node's own `import()`: the quickest way, for a file that stays what it is.
 * @throws ShimFileError with the line, for a file that cannot be evaluated
 */
export async function importShimFile(file: string, sources: Map<string, string>): Promise<LoadedModule> {
  try {
    sources.set(file, await readFile(file, 'utf8'));
    return { exports: (await importNative(pathToFileURL(file).href)) as Exports, sources };
  } catch (error) {
    throw located(error, file, sources);
  }
}

/**
 * Evaluates a shim file and the files that it imports by a relative path. Each call starts from nothing, and nothing of it stays
 * behind once its exports are dropped: files are read, compiled by jiti's transform and run here, never given to Node's own
 * `import()`, which remembers every version for good. Packages and Node's modules are imported natively, once per process.
 *
 * `shimline/shims` is always the namespace given as `entry`, so that classes have one identity wherever the file lies.
 * @throws ShimFileError with the line, for a file that cannot be read, parsed or evaluated
 */
export async function evaluateShimFile(
  file: string,
  entry: Readonly<Exports>,
  sources = new Map<string, string>(),
): Promise<LoadedModule> {
  const graph = new ModuleGraph(entry, sources, await loadCompiler());
  try {
    return { exports: await graph.load(file, new Set()), sources };
  } catch (error) {
    throw located(error, file, sources);
  }
}

class ModuleGraph {
  readonly #entry: Readonly<Exports>;
  readonly #sources: Map<string, string>;
  readonly #jiti: Jiti;
  readonly #records = new Map<string, ModuleRecord>();

  constructor(entry: Readonly<Exports>, sources: Map<string, string>, jiti: Jiti) {
    this.#entry = strictNamespace(entry);
    this.#sources = sources;
    this.#jiti = jiti;
  }

  /** @param importers the files on the way here: one of them is a cycle, which gets what is there already, as in Node's CommonJS */
  async load(file: string, importers: ReadonlySet<string>): Promise<Exports> {
    const known = this.#records.get(file);
    if (known !== undefined) {
      if (!importers.has(file)) await known.done;
      return known.module.exports;
    }
    const module: ModuleRecord['module'] = { exports: {} };
    const done = this.#evaluate(file, module, new Set([...importers, file]));
    this.#records.set(file, { module, done });
    await done;
    return module.exports;
  }

  async #evaluate(file: string, module: { exports: Exports }, importers: ReadonlySet<string>): Promise<void> {
    const source = await readFile(file, 'utf8');
    this.#sources.set(file, source);
    const extension = extname(file);
    if (extension === '.json') {
      module.exports = { default: JSON.parse(source) as unknown };
      return;
    }
    const isCommonJs = extension === '.cjs';
    const code = isCommonJs ? source.replace(/^#!/, '//') : compile(this.#jiti, source, file);
    const head = `(${isCommonJs ? '' : 'async '}function (${PARAMETERS}) { `;
    const script = new Script(`${head}${code}\n})`, { filename: file, columnOffset: -head.length });
    const body = script.runInThisContext() as ModuleBody;
    const jitiImport: JitiImport = (specifier) => this.#import(specifier, file, importers);
    const jitiResolve = (specifier: string): string =>
      this.#resolvePackage(specifier, file) ?? new URL(specifier, pathToFileURL(file)).href;
    await body.call(
      undefined,
      module.exports,
      createRequire(file),
      module,
      file,
      dirname(file),
      jitiImport,
      jitiResolve,
    );
    const { exports } = module;
    const isEmpty = typeof exports === 'object' && Object.keys(exports).length === 0;
    if (!isEmpty && exports.__esModule !== true) module.exports = { ...exports, default: exports };
  }

  async #import(specifier: string, from: string, importers: ReadonlySet<string>): Promise<unknown> {
    if (specifier === SHIMS_ENTRY) return this.#entry;
    if (specifier === 'shimline' || specifier.startsWith('shimline/')) {
      throw this.#unresolved(
        specifier,
        from,
        `a shim imports "${SHIMS_ENTRY}" and nothing else of shimline, not "${specifier}"`,
      );
    }
    if (isBuiltin(specifier)) return importNative(specifier);
    if (/^(\.{0,2}\/|\.\.?$|file:)/.test(specifier)) {
      const path = specifier.startsWith('file:') ? fileURLToPath(specifier) : resolve(dirname(from), specifier);
      const file = await sourceFile(path);
      if (file === undefined) throw this.#unresolved(specifier, from, `there is no file "${specifier}"`);
      if (SOURCE_EXTENSIONS.includes(extname(file)) && !file.includes(`${sep}node_modules${sep}`))
        return this.load(file, importers);
      return importNative(pathToFileURL(file).href);
    }
    const url = this.#resolvePackage(specifier, from);
    if (url === undefined) throw this.#unresolved(specifier, from, `there is no package "${specifier}" to import here`);
    return importNative(url);
  }

  #resolvePackage(specifier: string, from: string): string | undefined {
    return this.#jiti.esmResolve(specifier, { parentURL: pathToFileURL(from), try: true });
  }

  #unresolved(specifier: string, from: string, what: string): ShimFileError {
    const line = lineOf(
      this.#sources.get(from) ?? '',
      (text) => text.includes(`'${specifier}'`) || text.includes(`"${specifier}"`),
    );
    return new ShimFileError(`${what} (imported by ${shownPath(from)})`, line === undefined ? {} : { line, column: 1 });
  }
}

/** `import { misspelt }` is a link error in Node; compiled code would only see `undefined`, maybe much later. */
function strictNamespace(entry: Readonly<Exports>): Readonly<Exports> {
  return new Proxy(entry, {
    get(target, name) {
      // A promise asks for `then`, compiled re-exports for `__esModule`; neither is anybody's import.
      if (typeof name === 'symbol' || name in target || name === 'then' || name === '__esModule')
        return Reflect.get(target, name) as unknown;
      throw new SyntaxError(`"${SHIMS_ENTRY}" has no export named "${name}"`);
    },
  });
}

function compile(jiti: Jiti, source: string, file: string): string {
  const { transform } = jiti.options;
  if (transform === undefined) throw new TypeError('jiti has no transform.');
  const typed = file.endsWith('ts');
  const result = transform({
    source,
    filename: file,
    ts: typed,
    async: true,
    retainLines: true,
    interopDefault: false,
  }) as TransformResult;
  if (result.error === undefined) return result.code.replace(/^#!/, '//');
  const { message, loc } = result.error;
  // The parser puts the path before its sentence and the place behind it; both are reported on their own.
  const sentence = /^(?:\S*: )?([\s\S]*?)\s*\(\d+:\d+\)/.exec(message)?.[1] ?? message;
  throw new ShimFileError(sentence, loc === undefined ? {} : { line: loc.line, column: loc.column + 1 });
}

interface TransformResult {
  readonly code: string;
  readonly error?: { readonly message: string; readonly loc?: { readonly line: number; readonly column: number } };
}

/** The file that a relative specifier means: itself, the TypeScript behind a `.js`, with an extension left out, or a folder's index. */
async function sourceFile(path: string): Promise<string | undefined> {
  const typed = path.replace(/\.(m?)js$/, '.$1ts');
  const candidates = [
    path,
    typed,
    ...SOURCE_EXTENSIONS.map((extension) => `${path}${extension}`),
    ...SOURCE_EXTENSIONS.map((extension) => join(path, `index${extension}`)),
  ];
  for (const candidate of candidates) {
    const found = await stat(candidate).catch(() => undefined);
    if (found?.isFile() === true) return candidate;
  }
  return undefined;
}

async function importNative(specifier: string): Promise<unknown> {
  return import(/* @vite-ignore */ specifier);
}

/** The error with the place in the shim's own files at which it was thrown, and that file's name where it is a helper. */
function located(error: unknown, file: string, sources: ReadonlyMap<string, string>): ShimFileError {
  if (error instanceof ShimFileError) return error;
  const sentence =
    error instanceof Error
      ? `${error.name === 'Error' ? '' : `${error.name}: `}${error.message}`
      : `it threw ${String(error)}`;
  const stack = error instanceof Error ? (error.stack ?? '') : '';
  for (const frame of stack.split('\n')) {
    const place = /(?:file:\/\/)?([^\s(]+?):(\d+)(?::(\d+))?\)?$/.exec(frame);
    const at = place?.[1];
    if (at === undefined || !sources.has(at)) continue;
    const line = Number(place?.[2]);
    const column = place?.[3] === undefined ? undefined : Number(place[3]);
    const message = at === file ? sentence : `${sentence} (in ${shownPath(at)})`;
    return new ShimFileError(message, column === undefined ? { line } : { line, column }, error);
  }
  return new ShimFileError(sentence, {}, error);
}

/** The first line, from 1, that a test holds for. */
export function lineOf(source: string, matches: (line: string) => boolean): number | undefined {
  const index = source.split('\n').findIndex(matches);
  return index < 0 ? undefined : index + 1;
}
