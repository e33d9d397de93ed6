/**
 * Gives requests a signal of their own that follows the caller's only until they are answered: the SDK listens to a signal for
 * good, and would tell the server of a cancel of what is long over.
 */
export async function whileAsking<T>(signal: AbortSignal, ask: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const own = new AbortController();
  const follow = (): void => {
    own.abort(signal.reason);
  };
  if (signal.aborted) follow();
  signal.addEventListener('abort', follow, { once: true });
  try {
    return await ask(own.signal);
  } finally {
    signal.removeEventListener('abort', follow);
  }
}

/** The promise goes on when the signal aborts; only this wait for it ends. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  promise.catch(() => undefined);
  signal.throwIfAborted();
  let stop = (): void => undefined;
  const aborted = new Promise<never>((_resolve, reject) => {
    stop = () => {
      reject(signal.reason as Error);
    };
    signal.addEventListener('abort', stop, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}
