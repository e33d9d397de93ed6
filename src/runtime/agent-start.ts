import { statSync } from 'node:fs';
import { basename, extname } from 'node:path';
import type { ModelSource } from '../agent/model.js';
import type { Logger } from '../agent/tools.js';
import { readAgentFiles } from './agent-files.js';
import type { AgentRegistry } from './agent-registry.js';
import type { ShimLoader } from './shim-loader.js';

/** The agent of an empty server: the offline model with the shims that are read as documentation. */
const DEMO = {
  name: 'demo',
  description: 'Answers offline by plain directives in the input; shows the first-party shims at work.',
  model: 'scripted/demo',
  instructions: 'You are the demo agent of a Shimline server.',
  shims: [{ use: 'reply-prefix' }, { use: 'turn-counter' }, { use: 'clock' }],
};

/** Makes the agents of a start known: those of `AGENTS_DIR`, owned by their files, and `demo` where there is none at all. */
export async function loadAgents(options: {
  readonly agents: AgentRegistry;
  readonly shims: ShimLoader;
  readonly models: ModelSource;
  readonly folder: string | undefined;
  readonly log: Logger;
}): Promise<void> {
  const { agents, shims, models, folder, log } = options;
  if (folder !== undefined) {
    if (statSync(folder, { throwIfNoEntry: false })?.isDirectory() !== true) {
      throw new Error(`AGENTS_DIR: ${folder} is no folder.`);
    }
    const names = new Set(agents.list().map((agent) => agent.descriptor.name));
    const files = await readAgentFiles(folder, { shims, models, agents: (name) => names.has(name) });
    for (const fault of files.faults)
      log.error({ file: fault.file, errors: fault.errors, reason: fault.message }, 'an agent file was not loaded');
    // Of a file that is broken now the agent as it was keeps serving; of one that is gone it is gone too. Where nothing could be
    // read the folder itself may be missing, and that takes no agent away.
    const unread = files.agents.length === 0 && files.faults.length > 0;
    const broken = new Set(files.faults.map(({ file }) => basename(file, extname(file))));
    await agents.adopt(
      files.agents.map(({ descriptor }) => descriptor),
      (name) => unread || broken.has(name),
    );
  }
  if (agents.list().length === 0) await agents.save(DEMO.name, DEMO, 'builtin');
}
