import { defineShim } from 'shimline/shims';
import { CompactionShim } from './compaction.js';
import { compactionConfig } from './config.js';

export { CompactionError, CompactionShim } from './compaction.js';
export type { Compaction, Compactor } from './compactor.js';

export default defineShim({
  name: 'compaction',
  version: 1,
  description: 'Keeps a conversation within the context window: replaces its older part by a summary.',
  config: compactionConfig,
  create: (config, { name }) => new CompactionShim(config, { name }),
});
