import { existsSync, readFileSync } from 'node:fs';

export interface TcpEntry {
  readonly established: boolean;
  /** Bytes that have arrived and that its owner has not read yet. */
  readonly unread: number;
}

const tables = ['/proc/net/tcp', '/proc/net/tcp6'].filter((table) => existsSync(table));

/** False where the kernel shows no such table; then nothing can be seen from outside. */
export const hasTcpTable = tables.length > 0;

/** One end of a connection as the kernel sees it: the end that has `localPort`. */
export function tcpEntry(localPort: number, remotePort: number): TcpEntry | undefined {
  for (const table of tables) {
    for (const line of readFileSync(table, 'utf8').split('\n')) {
      const [, local = '', remote = '', state, queues = ''] = line.trim().split(/\s+/);
      if (!local.endsWith(hex(localPort)) || !remote.endsWith(hex(remotePort))) continue;
      return { established: state === '01', unread: parseInt(queues.split(':')[1] ?? '0', 16) };
    }
  }
  return undefined;
}

const hex = (port: number): string => `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
