import { defineShim, z } from 'shimline/shims';

/** Emits many events a turn, so that a run gets a long log without many model calls. */
export default defineShim({
  name: 'bench-log',
  config: z.strictObject({ events: z.int().min(1).default(1000) }),
  prepareTurn(turn) {
    for (let index = 0; index < this.config.events; index += 1) {
      turn.emit('line', { index, text: 'what a tool would tell about its progress' });
    }
  },
});
