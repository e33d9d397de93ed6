import { relative, sep } from 'node:path';

/** Why a shim file could not be taken, and where; lines and columns count from 1. */
export interface ShimFault {
  readonly message: string;
  readonly line: number | null;
  readonly column: number | null;
}

/** A shim file, or one that it imports, that cannot be loaded. */
export class ShimFileError extends Error {
  readonly line: number | null;
  readonly column: number | null;

  constructor(message: string, place: { readonly line?: number; readonly column?: number } = {}, cause?: unknown) {
    super(message, { cause });
    this.name = 'ShimFileError';
    this.line = place.line ?? null;
    this.column = place.column ?? null;
  }
}

/** A file as reports call it: relative to the working directory where it lies below it, so that a report does not show the machine. */
export function shownPath(file: string): string {
  const path = relative('', file);
  return path === '' || path === '..' || path.startsWith(`..${sep}`) ? file : path;
}
