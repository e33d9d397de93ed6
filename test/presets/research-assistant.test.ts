import { expect, it } from 'vitest';
import { runLongJob } from '../faults/long-job.js';
import { researchJob } from './research-job.js';

it.each([
  { what: 'does a job of ten turns', kill: false },
  { what: 'does it although the server is killed with -9 in each turn', kill: true },
])(
  'the research assistant $what',
  async ({ kill }) => {
    const finished = await runLongJob(researchJob(), { kill });
    expect(finished.run).toMatchObject({
      status: 'completed',
      output: 'The highest tide is on the 5th (moon.txt, tides.txt).',
      turnCount: 10,
    });
    expect(finished.kills).toBe(kill ? 10 : 0);
    const own = finished.events.filter(({ childRunId }) => childRunId === undefined);
    const called = own.filter(({ type }) => type === 'tool.completed');
    // The two of one answer are called at the same time, and end in any order.
    expect(called.map(({ name, ok }) => (ok === true ? name : `${String(name)} failed`)).toSorted()).toEqual(
      [
        'update_plan',
        'documents__list_directory',
        'documents__read_text_file',
        'documents__get_file_info',
        'update_plan',
        'agent',
        'memory_save',
        'memory_search',
        'documents__search_files',
        'update_plan',
      ].toSorted(),
    );
    expect(own.filter(({ type }) => type === 'plan.updated')).toHaveLength(3);
    const sent = JSON.stringify(finished.requests.at(-1));
    for (const text of [
      'The moon was full on the 3rd.',
      'Two days after the full moon.',
      'The user asks about spring tides.',
    ])
      expect(sent).toContain(text);
  },
  120_000,
);
