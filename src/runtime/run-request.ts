import type { NamedShim } from '../agent/bound-shims.js';
import type { RequestDoc } from '../store/run-rows.js';
import type { StartRun } from './agent-runtime.js';
import { shownInput } from './input-items.js';

/** What later attempts of a run need of the request that made it. */
export function requestDoc({ input, metadata, values, limits, shims }: StartRun): RequestDoc {
  return {
    input: shownInput(input),
    metadata: { ...metadata },
    values: { ...values } as RequestDoc['values'],
    limits: { ...limits } as RequestDoc['limits'],
    shims: structuredClone(shims),
  };
}

/** The hashes that a run records of its shims (R118), as stored. */
export function shimHashes(shims: readonly NamedShim[]): string {
  return JSON.stringify(shims.map(({ name, hash }) => ({ name, hash })));
}
