import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { LongJob } from '../faults/long-job.js';
import { isObject, type JsonObject, listOf } from '../support/json-path.js';
import type { Reply } from '../support/model-reply.js';
import { temporaryFolder } from '../support/wait.js';

const SERVER = createRequire(import.meta.url).resolve('@modelcontextprotocol/server-filesystem/dist/index.js');
const TASK = 'Read tides.txt and say in one line when the tide is highest.';

const call = (name: string, args: object): NonNullable<Reply['toolCalls']>[number] => ({ name, arguments: args });
const plan = (...statuses: readonly string[]): Reply => ({
  toolCalls: [
    call('update_plan', {
      items: ['look through the documents', 'have the tides read', 'answer'].map((text, index) => ({
        text,
        status: statuses[index] ?? 'pending',
      })),
    }),
  ],
});

/** Ten turns: plan, read over a real MCP server, a helper, a note, and the answer. */
export function researchJob(): LongJob {
  const documents = temporaryFolder('documents-');
  writeFileSync(join(documents, 'moon.txt'), 'The moon was full on the 3rd.\n');
  writeFileSync(join(documents, 'tides.txt'), 'Spring tides follow a full moon by two days.\n');
  const path = (name: string): string => join(documents, name);
  const replies: Reply[] = [
    plan('in_progress'),
    { toolCalls: [call('documents__list_directory', { path: documents })] },
    {
      toolCalls: [
        call('documents__read_text_file', { path: path('moon.txt') }),
        call('documents__get_file_info', { path: path('tides.txt') }),
      ],
    },
    plan('completed', 'in_progress'),
    { toolCalls: [call('agent', { task: TASK })] },
    { toolCalls: [call('memory_save', { text: 'The user asks about spring tides.' })] },
    { toolCalls: [call('memory_search', { query: 'tides' })] },
    { toolCalls: [call('documents__search_files', { path: documents, pattern: '*.txt' })] },
    plan('completed', 'completed', 'completed'),
    { text: 'The highest tide is on the 5th (moon.txt, tides.txt).' },
  ];
  return {
    preset: fileURLToPath(new URL('../../src/presets/research-assistant.md', import.meta.url)),
    agent: 'research-assistant',
    input: 'When is the highest tide?',
    metadata: { user: 'ada' },
    shims: { mcp: { servers: { documents: { command: process.execPath, args: [SERVER, documents] } } } },
    replies,
    aside: (body) => (firstText(body).includes(TASK) ? { text: 'Two days after the full moon.' } : undefined),
  };
}

/** How a request begins, which for a helper is its task. */
function firstText(body: JsonObject): string {
  return JSON.stringify(listOf(body.messages).find(isObject) ?? null);
}
