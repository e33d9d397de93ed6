import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { JsonObject } from '../support/json-path.js';
import { Ledger } from '../support/ledger.js';
import { ModelEndpoint } from '../support/model-endpoint.js';
import { type ServerOptions, ServerProcess } from '../support/server-process.js';
import { temporaryFolder } from '../support/wait.js';

/** A server with shim files of the test's own, a strict model endpoint, and a ledger that the shims can reach. */
export interface Seam {
  readonly server: ServerProcess;
  readonly model: ModelEndpoint;
  readonly ledger: Ledger;
  readonly shimsDir: string;
  close(): Promise<void>;
}

/** Before each shim file: what they import, and `tell`, which leaves an entry in the ledger and waits where the ledger holds it. */
const head = (ledger: string): string => `
import { agentTool, BoundShim, defineShim, defineTool, internalMessage, isInternalMessage, RunCancelledError, Shim, z } from 'shimline/shims';
const tell = async (name, fields = {}, signal) => {
  await fetch(${JSON.stringify(`${ledger}/effect`)}, { method: 'POST', body: JSON.stringify({ name, ...fields }), signal });
};
const tool = (name, execute, more = {}) => defineTool({ name, description: name, parameters: z.looseObject({}), execute, ...more });
`;

export async function startSeam(
  shims: Readonly<Record<string, string>>,
  options: Pick<ServerOptions, 'env'> = {},
): Promise<Seam> {
  const [model, ledger] = await Promise.all([ModelEndpoint.start(), Ledger.start()]);
  const shimsDir = temporaryFolder('shims-');
  for (const [name, text] of Object.entries(shims)) writeShim({ ledger, shimsDir }, name, text);
  const server = await ServerProcess.start({ env: { ...model.environment, ...options.env }, shimsDir });
  const close = async (): Promise<void> => {
    await Promise.all([server.stop(), model.close(), ledger.close()]);
  };
  return { server, model, ledger, shimsDir, close };
}

export function writeShim({ ledger, shimsDir }: Pick<Seam, 'ledger' | 'shimsDir'>, name: string, text: string): void {
  writeFileSync(join(shimsDir, `${name}.mjs`), head(ledger.url) + text);
}

/** Saves an agent; `shims` are names, or entries in full. */
export async function putAgent(
  { server }: Pick<Seam, 'server'>,
  name: string,
  { shims = [], ...fields }: JsonObject & { readonly shims?: readonly (string | JsonObject)[] } = {},
): Promise<void> {
  const entries = shims.map((shim) => (typeof shim === 'string' ? { use: shim } : shim));
  const body = { model: 'openai-compatible/m', instructions: `You are ${name}.`, ...fields, shims: entries };
  const answer = await server.json('PUT', `/v1/agents/${name}`, body);
  expect(answer.body, JSON.stringify(answer.body)).toMatchObject({ name });
}

/** The texts of a chat request's messages, as `role: text`. */
export function textsOf({ body }: { readonly body: JsonObject }): string[] {
  return (body.messages as readonly { role: string; content?: unknown; tool_calls?: readonly object[] }[]).map(
    ({ role, content, tool_calls: called }) => {
      const text = typeof content === 'string' ? content : JSON.stringify(content ?? '');
      return called === undefined ? `${role}: ${text}` : `${role}: ${text}[${called.length} calls]`;
    },
  );
}
