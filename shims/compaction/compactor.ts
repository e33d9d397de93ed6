import { type Message, ModelCallError, type ModelResponse, type ShimModelRequest, textOf } from 'shimline/shims';
import { fitEntries, SUMMARY_PROMPT, transcriptEntries } from './summary.js';

/** What is to be summarised, and with what. */
export interface Compaction {
  /** The older messages, oldest first; without internal ones and without an earlier summary. */
  readonly messages: readonly Message[];
  /** The text of the summary that an earlier compaction made; what is made now takes its place. */
  readonly previous: string | undefined;
  /** Tokens that the summary may have. */
  readonly summaryTokens: number;
  /** Tokens that a request which makes it may have. */
  readonly requestTokens: number;
  readonly signal: AbortSignal;
  readonly tokensOf: (text: string) => number;
  /** A hidden model call of the run, counted in its usage. */
  readonly callModel: (request: ShimModelRequest) => Promise<ModelResponse>;
}

/** Makes a summary; a throw or a blank text is a failure. */
export type Compactor = (compaction: Compaction) => Promise<string>;

/** How often a summary is asked for again with less, when what was given is too much for the model that summarises. */
const SMALLER_REQUESTS = 4;

/** The built-in compactor: asks a model. */
export function modelCompactor({
  model,
  prompt = SUMMARY_PROMPT,
}: {
  readonly model?: string | undefined;
  readonly prompt?: string | undefined;
}): Compactor {
  return async (compaction) => {
    const { summaryTokens, tokensOf } = compaction;
    for (let budget = compaction.requestTokens - tokensOf(prompt), tries = 0; ; budget /= 2, tries += 1) {
      const request: ShimModelRequest = {
        system: `${prompt}\n\nThe summary may have about ${Math.floor(summaryTokens * 0.7)} words.`,
        messages: [{ role: 'user', content: asked(compaction, Math.floor(budget)) }],
        modelArgs: { maxOutputTokens: summaryTokens },
        ...(model === undefined ? {} : { model }),
      };
      try {
        return summaryOf(await compaction.callModel(request));
      } catch (error) {
        const tooLong = error instanceof ModelCallError && error.code === 'context_exceeded';
        if (!tooLong || tries >= SMALLER_REQUESTS) throw error;
      }
    }
  };
}

function asked({ messages, previous, tokensOf }: Compaction, budget: number): string {
  const earlier = previous === undefined ? [] : [`[earlier summary] ${previous}`];
  const entries = fitEntries([...earlier, ...transcriptEntries(messages)], budget, tokensOf);
  return `<conversation>\n${entries.join('\n\n')}\n</conversation>\n\nWrite the summary.`;
}

/** @throws Error for an answer that is none */
function summaryOf(response: ModelResponse): string {
  if (response.finishReason === 'refusal') throw new Error('The model refused to summarise.');
  const text = textOf(response).trim();
  if (text === '') throw new Error(`The model gave no summary (it ended with ${response.finishReason}).`);
  return text;
}
