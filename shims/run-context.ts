import Mustache from 'mustache';
import { defineShim, internalMessage, z } from 'shimline/shims';

/** The tags of a template, in order; undefined where it has anything but text and `{{ name }}`. */
function tagsOf(template: string): readonly (readonly [kind: 'text' | 'name', value: string])[] | undefined {
  try {
    const tokens = Mustache.parse(template).map(([kind, value]) => [kind === '&' ? 'name' : kind, value] as const);
    return tokens.every(
      (token): token is readonly ['text' | 'name', string] => token[0] === 'text' || token[0] === 'name',
    )
      ? tokens
      : undefined;
  } catch {
    return undefined;
  }
}

function cut(text: string, bytes: number): string {
  if (Buffer.byteLength(text) <= bytes) return text;
  // A character that was cut in the middle goes.
  return new TextDecoder().decode(Buffer.from(text).subarray(0, bytes), { stream: true });
}

/** What it says is sent with every call of the run at one place, and is in nothing that the run leaves behind. */
export default defineShim({
  name: 'run-context',
  description: "Tells the model, for this run only, what the run's metadata say, e.g. what the user is looking at.",
  config: z.strictObject({
    keys: z.array(z.string().min(1)).max(64).default([]).meta({
      description:
        'Keys of the metadata that are told as `key: value`, a line each; those that a run lacks are left out.',
    }),
    template: z
      .string()
      .min(1)
      .refine((template) => tagsOf(template) !== undefined, 'may have text and {{ name }} only')
      .optional()
      .meta({ description: 'A text with `{{ key }}` for values of the metadata; told where the run has all of them.' }),
    maxBytes: z.int().min(1).max(1_000_000).default(10_000).meta({ description: 'What is longer is cut.' }),
  }),
  onRunStart(state, _transientState, run) {
    const { keys, template, maxBytes } = this.config;
    const value = (key: string): string | undefined =>
      Object.hasOwn(run.metadata, key) && run.metadata[key] !== '' ? run.metadata[key] : undefined;
    const parts: string[] = [];
    const tags = template === undefined ? [] : (tagsOf(template) ?? []);
    const told = tags.map(([kind, text]) => (kind === 'text' ? text : value(text)));
    if (tags.length > 0 && !told.includes(undefined)) parts.push(told.join(''));
    for (const key of keys) {
      const text = value(key);
      // A line each: a value cannot pass itself off as another key.
      if (text !== undefined) parts.push(`${key}: ${text.replace(/[\s\u0085]+/g, ' ')}`);
    }
    if (parts.length === 0) return;
    const content = cut(parts.join('\n').toWellFormed(), maxBytes);
    // After a crash or a wait the saved state has it already, and what is written here does not count.
    state.history.push(internalMessage({ role: 'user', content }, { origin: this.name, ephemeral: true }));
  },
});
