import type { ChildProcess } from 'node:child_process';

interface Reply {
  readonly number?: number;
  readonly result?: unknown;
  readonly error?: string;
}

interface Waiting {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: Error) => void;
}

/** Questions to a child process over its channel, each answered under its number. */
export class Channel {
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, Waiting>();
  #asked = 0;

  constructor(child: ChildProcess) {
    this.#child = child;
    child.on('message', (reply: Reply) => this.#settle(reply));
    child.once('exit', (code, signal) => {
      for (const { reject } of this.#waiting.values()) reject(new Error(`the process ended (${signal ?? code ?? ''})`));
      this.#waiting.clear();
    });
  }

  /** Has the child do something and resolves with the result. */
  async ask<T>(command: string, input: object = {}): Promise<T> {
    this.#asked += 1;
    const number = this.#asked;
    return new Promise<T>((resolve, reject) => {
      this.#waiting.set(number, { resolve: (result) => resolve(result as T), reject });
      this.#child.send({ number, command, input });
    });
  }

  #settle({ number, result, error }: Reply): void {
    if (number === undefined) return;
    const waiting = this.#waiting.get(number);
    this.#waiting.delete(number);
    if (error === undefined) waiting?.resolve(result);
    else waiting?.reject(new Error(error));
  }
}
