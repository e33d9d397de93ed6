import { createRequire } from 'node:module';
import type * as LibPhoneNumber from 'libphonenumber-js';
import { z } from 'shimline/shims';
import { compilePattern } from './custom-pattern.js';

const ActionSchema = z.enum(['block', 'mask', 'hash', 'off']);
type Action = z.infer<typeof ActionSchema>;

const BUILT_IN = ['email', 'card', 'iban', 'phone', 'ip'] as const;

const action = (description: string): z.ZodDefault<typeof ActionSchema> =>
  ActionSchema.default('mask').meta({ description: `${description}: \`block\`, \`mask\`, \`hash\` or \`off\`.` });

const PatternSchema = z
  .strictObject({
    name: z
      .string()
      .regex(/^[a-z][a-z0-9_-]{0,31}$/)
      .meta({ description: 'What stands in the mark, e.g. `patient` for `[patient]`.' }),
    pattern: z
      .string()
      .min(1)
      .max(1000)
      .meta({ description: 'A regular expression in RE2 syntax; it is looked for within lines.' }),
    ignoreCase: z.boolean().default(false).meta({ description: 'Whether capitals and small letters are the same.' }),
    action: ActionSchema.exclude(['off']).default('mask').meta({ description: '`block`, `mask` or `hash`.' }),
  })
  .superRefine(({ pattern, ignoreCase }, context) => {
    try {
      compilePattern(pattern, ignoreCase);
    } catch (error) {
      context.addIssue({ code: 'custom', path: ['pattern'], message: `no RE2 pattern: ${(error as Error).message}` });
    }
  });

/** The library is large, and here it has to be there at once: it is loaded where a country is named. */
function hasNumbers(country: string): boolean {
  const { isSupportedCountry } = createRequire(import.meta.url)('libphonenumber-js') as typeof LibPhoneNumber;
  return isSupportedCountry(country);
}

export const ConfigSchema = z
  .strictObject({
    email: action('What is done about an email address'),
    card: action('About a payment card number that passes the Luhn check'),
    iban: action('About an IBAN with a valid checksum'),
    phone: action('About a phone number'),
    ip: action('About an IPv4 or IPv6 address'),
    phoneCountry: z
      .string()
      .regex(/^[A-Z]{2}$/)
      .refine(hasNumbers, { error: ({ input }) => `No phone numbers are known of the country ${String(input)}.` })
      .optional()
      .meta({
        description: 'Country whose national numbers are found too, e.g. `DE`; without it only those with `+`.',
      }),
    patterns: z.array(PatternSchema).max(32).default([]).meta({ description: 'Patterns of your own.' }),
    patternLength: z.int().min(8).max(2048).default(64).meta({
      description: 'The longest match of a pattern of your own; the answer streams up to twice as far behind.',
    }),
    input: z.boolean().default(true).meta({ description: 'Whether what goes to the model is redacted.' }),
    output: z.boolean().default(true).meta({ description: 'Whether the answer and the reasoning are redacted.' }),
    toolResults: z.boolean().default(true).meta({ description: 'Whether results of tools are redacted.' }),
    toolArguments: z
      .boolean()
      .default(false)
      .meta({ description: 'Whether tools get, and the log shows, redacted arguments.' }),
    hashKey: z
      .string()
      .min(16)
      .optional()
      .meta({ description: 'Key of the hashes; without it one is made and kept in the data folder.' }),
  })
  .superRefine(({ patterns }, context) => {
    const names = new Set<string>(BUILT_IN);
    for (const [index, { name }] of patterns.entries()) {
      if (names.has(name))
        context.addIssue({ code: 'custom', path: ['patterns', index, 'name'], message: `${name} is taken` });
      names.add(name);
    }
  });
export type RedactConfig = z.output<typeof ConfigSchema>;

export function actionsOf(config: RedactConfig): ReadonlyMap<string, Action> {
  return new Map<string, Action>([
    ...BUILT_IN.map((name) => [name, config[name]] as const),
    ...config.patterns.map(({ name, action: taken }) => [name, taken] as const),
  ]);
}
