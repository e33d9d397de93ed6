import { type ToolFailure, toolFailure } from 'shimline/shims';

/** What a tool answers instead of doing it, in words for the model. */
export class Refusal extends Error {
  readonly kind: string;
  constructor(kind: string, message: string) {
    super(message);
    this.name = 'Refusal';
    this.kind = kind;
  }
}

/** In words, since the system's own name the server's folders. */
const FILE_ERRORS: Readonly<Record<string, string>> = {
  ENOENT: 'There is no such file or folder',
  ENOTDIR: 'A part of this path is a file and not a folder',
  EEXIST: 'A part of this path is a file and not a folder',
  EISDIR: 'This is a folder',
  EACCES: 'The server has no permission',
  EPERM: 'The server has no permission',
  EROFS: 'The file system cannot be written',
  ENOSPC: 'The disk is full',
  EDQUOT: 'The disk quota is used up',
  ENAMETOOLONG: 'A name in this path is too long',
  ELOOP: 'The symbolic links in this path go in a circle',
  EMFILE: 'Too many files are open',
};

/** The code of an error of the file system; undefined for any other. */
export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** An error of the file system as a refusal that names the path as the model knows it; others as they are. */
export function refusalOf(error: unknown, path: string): unknown {
  const code = codeOf(error);
  if (error instanceof Refusal || code === undefined) return error;
  if (!('syscall' in (error as Error))) return error;
  const words = FILE_ERRORS[code] ?? `The file system answered ${code}`;
  return new Refusal(code === 'ENOENT' ? 'not_found' : 'file_error', `${words}: ${path}`);
}

/** Runs a tool's work; a refusal is its result, a cancel and a fault are thrown. */
export async function answered<T>(path: string, work: () => Promise<T>): Promise<T | ToolFailure> {
  try {
    return await work();
  } catch (error) {
    const refusal = refusalOf(error, path);
    if (refusal instanceof Refusal) return toolFailure(refusal.message, { kind: refusal.kind });
    throw refusal;
  }
}
