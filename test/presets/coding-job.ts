import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { LongJob } from '../faults/long-job.js';
import type { Reply } from '../support/model-reply.js';
import { temporaryFolder } from '../support/wait.js';

/** A small project with a mistake, and a skill that says how changes are written down. */
const PROJECT = {
  'src/sum.js': 'export function sum(a, b) {\n  return a - b;\n}\n',
  'test/sum.test.js': `import assert from 'node:assert';
import { test } from 'node:test';
import { sum } from '../src/sum.js';
test('adds', () => assert.equal(sum(2, 3), 5));
`,
  'package.json': '{ "type": "module" }\n',
  'README.md': '# Sum\n',
  '.gitignore': 'node_modules\n',
};
const SKILL = `---
name: changelog
description: How a change is written down. Use it after a change of the code.
---
Write CHANGELOG.md: a heading "# Changes", then one line a change that begins with "- ".
`;

const call = (name: string, args: object): NonNullable<Reply['toolCalls']>[number] => ({ name, arguments: args });

/** Ten turns: look, run the tests, mend, run them again, write it down. */
export function codingJob(): { readonly job: LongJob; readonly root: string } {
  const root = temporaryFolder('project-');
  const skills = temporaryFolder('skills-');
  for (const [file, text] of Object.entries(PROJECT)) write(join(root, file), text);
  write(join(skills, 'changelog/SKILL.md'), SKILL);
  const replies: Reply[] = [
    { text: 'I look around first.', toolCalls: [call('ls', {})] },
    { toolCalls: [call('read', { path: 'src/sum.js' }), call('read', { path: 'test/sum.test.js' })] },
    { toolCalls: [call('grep', { pattern: 'sum\\(' })] },
    { text: 'I run the tests.', toolCalls: [call('bash', { command: 'node --test 2>&1 | grep -c "^# fail 1"' })] },
    { toolCalls: [call('patch', { path: 'src/sum.js', search: 'a - b', replace: 'a + b' })] },
    { toolCalls: [call('bash', { command: 'node --test 2>&1 | grep "^# fail"; echo run >> runs.txt' })] },
    { toolCalls: [call('activate_skill', { name: 'changelog' })] },
    { toolCalls: [call('find', { pattern: '*.md' })] },
    { toolCalls: [call('write', { path: 'CHANGELOG.md', content: '# Changes\n- sum adds\n' })] },
    { text: 'sum subtracted; it adds now, and the tests pass.' },
  ];
  return {
    root,
    job: {
      preset: fileURLToPath(new URL('../../src/presets/coding-assistant.md', import.meta.url)),
      agent: 'coding-assistant',
      input: 'The tests of this project fail. Mend it.',
      shims: { 'workspace-tools': { root, policy: { bash: 'allow' } }, skills: { directories: [skills] } },
      replies,
    },
  };
}

function write(path: string, text: string): void {
  mkdirSync(join(path, '..'), { recursive: true });
  writeFileSync(path, text);
}
