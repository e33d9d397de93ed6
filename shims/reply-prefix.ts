import { defineShim, type PreparedTurn, Shim, z } from 'shimline/shims';

/** Begins every reply with a prefix. The instruction persists, so it is appended once: on the agent's first turn of the conversation. */
class ReplyPrefixShim extends Shim {
  readonly name: string;
  readonly #prefix: string;

  constructor(name: string, prefix: string) {
    super();
    this.name = name;
    this.#prefix = prefix;
  }

  override prepareTurn(turn: PreparedTurn): void {
    if (!turn.isFirstForThisAgent) return;
    turn.appendSystemInstruction(`Begin every reply with "${this.#prefix}".`);
  }
}

export default defineShim({
  name: 'reply-prefix',
  description: 'Tells the model to begin every reply with a prefix.',
  config: z.strictObject({
    prefix: z.string().min(1).default('Care note:').meta({ description: 'What a reply begins with.' }),
  }),
  create: ({ prefix }, { name }) => new ReplyPrefixShim(name, prefix),
});
