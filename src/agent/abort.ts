interface Watch {
  readonly callbacks: Set<() => void>;
  readonly listener: () => void;
}

const watches = new WeakMap<AbortSignal, Watch>();

/**
 * Calls back once when the signal aborts, at once if it has, unless the returned function was called before. However many wait for
 * one signal, it has one listener of ours: eight parallel tool calls under three wraps are no leak, and are not warned of as one.
 */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  if (signal.aborted) {
    callback();
    return () => undefined;
  }
  const watch = watches.get(signal) ?? startWatch(signal);
  const entry = (): void => {
    callback();
  };
  watch.callbacks.add(entry);
  return () => {
    if (!watch.callbacks.delete(entry) || watch.callbacks.size > 0 || watches.get(signal) !== watch) return;
    watches.delete(signal);
    signal.removeEventListener('abort', watch.listener);
  };
}

function startWatch(signal: AbortSignal): Watch {
  const callbacks = new Set<() => void>();
  const listener = (): void => {
    watches.delete(signal);
    for (const callback of [...callbacks]) if (callbacks.delete(callback)) callback();
  };
  const watch = { callbacks, listener };
  watches.set(signal, watch);
  signal.addEventListener('abort', listener, { once: true });
  return watch;
}
