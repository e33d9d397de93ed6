import type { CountryCode } from 'libphonenumber-js';
import { type BoundShim, defineShim, Shim, type ShimBindingContext, z } from 'shimline/shims';
import type { FindPhones } from './detectors.js';
import { ConfigSchema, type RedactConfig } from './entities.js';
import { RedactSession } from './session.js';

class RedactShim extends Shim {
  readonly name: string;
  readonly #config: RedactConfig;

  constructor(name: string, config: RedactConfig) {
    super();
    this.name = name;
    this.#config = config;
  }

  override async bind(context: ShimBindingContext): Promise<BoundShim> {
    const bound = await super.bind(context);
    if (context.toolSourceBindings.length > 0) return bound;
    return new RedactSession(this.#config, await phoneFinder(this.#config));
  }
}

/** The library knows the numbers of all countries: it is loaded by who needs it. */
async function phoneFinder({ phone, phoneCountry }: RedactConfig): Promise<FindPhones> {
  if (phone === 'off') return () => [];
  const { findPhoneNumbersInText } = await import('libphonenumber-js');
  const options = phoneCountry === undefined ? {} : { defaultCountry: phoneCountry as CountryCode };
  return (text) => findPhoneNumbersInText(text, options);
}

/** A guard: children get it whatever is delegated, and nothing of a text is shown before all that it could belong to is known. */
export default defineShim({
  name: 'redact',
  description:
    'Keeps email addresses, card and account numbers, phone numbers, IP addresses and patterns of your own from the model and from its readers.',
  config: ConfigSchema,
  state: z.strictObject({ blocked: z.array(z.string()).default([]) }),
  inherit: 'always',
  create: (config, { name }) => new RedactShim(name, config),
});
