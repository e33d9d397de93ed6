import { Connection, type Target } from './connection.js';

/** The right to use a connection; given back once. */
export interface Lease {
  readonly connection: Connection;
  release(): void;
}

interface Shared {
  readonly connection: Connection;
  leases: number;
  idle: NodeJS.Timeout | undefined;
}

const shared = new Map<string, Shared>();
const hooks = new WeakMap<object, number>();
let hookCount = 0;

/**
 * Lends the connection of a target. All with the same target share one, whatever agent, run or instance they belong to; it is
 * closed when nobody has had it for a while.
 */
export function lease(target: Target, idleTimeoutMs: number): Lease {
  const key = keyOf(target);
  const entry = shared.get(key) ?? { connection: new Connection(target), leases: 0, idle: undefined };
  shared.set(key, entry);
  entry.leases += 1;
  clearTimeout(entry.idle);
  entry.connection.hold(true);
  let isReleased = false;
  return {
    connection: entry.connection,
    release: () => {
      if (isReleased) return;
      isReleased = true;
      entry.leases -= 1;
      if (entry.leases > 0) return;
      entry.connection.hold(false);
      entry.idle = setTimeout(() => {
        shared.delete(key);
        entry.connection.close().catch(() => undefined);
      }, idleTimeoutMs);
      entry.idle.unref();
    },
  };
}

/** Only what the connection itself depends on: two agents may take different tools of it. */
function keyOf({ name, config, hook }: Target): string {
  const { command, args, env, cwd, url, headers, connectTimeoutMs } = config;
  return JSON.stringify([name, command, args, env, cwd, url, headers, connectTimeoutMs, hookId(hook)]);
}

function hookId(hook: object | undefined): number {
  if (hook === undefined) return 0;
  const known = hooks.get(hook);
  if (known !== undefined) return known;
  hookCount += 1;
  hooks.set(hook, hookCount);
  return hookCount;
}
