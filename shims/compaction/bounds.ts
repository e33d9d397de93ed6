import { type CompactionConfig, windowOf } from './config.js';

/** What a request of a model may have. */
export interface Bounds {
  /** Tokens of the context window. */
  readonly window: number;
  /** Tokens from which on the history is compacted. */
  readonly threshold: number;
  readonly summaryTokens: number;
  /** Tokens of a request that makes a summary. */
  readonly requestTokens: number;
}

/** @param learned the window that the provider itself has named, where it was exceeded: it wins over whatever was thought of it */
export function boundsOf(model: string, config: CompactionConfig, learned = Infinity): Bounds {
  const window = Math.min(config.contextWindow ?? windowOf(model, config), learned);
  const byRatio = Math.floor(window * config.triggerRatio);
  const { triggerTokens = byRatio } = config;
  const threshold = learned === Infinity ? triggerTokens : Math.min(triggerTokens, byRatio);
  const summaryTokens = Math.min(config.summaryTokens, Math.max(64, Math.floor(threshold / 4)));
  const summarising = config.model === undefined ? window : windowOf(config.model, config);
  return { window, threshold, summaryTokens, requestTokens: Math.floor(summarising * 0.8) - summaryTokens };
}

/** How providers and gateways name the limit in the message of an overflow. */
const LIMITS = [
  /maximum context length (?:is|of) ([\d,]+)/i,
  /> ([\d,]+)(?: maximum)?/i,
  /maximum number of tokens allowed[^\d]{0,5}([\d,]+)/i,
  /context (?:size|window|length|limit)[^\d]{0,20}([\d,]+)/i,
];

/** The context window that an error names; undefined where it names none that could be one. */
export function limitIn(message: string): number | undefined {
  for (const pattern of LIMITS) {
    const limit = Number(pattern.exec(message)?.[1]?.replaceAll(',', '') ?? 0);
    if (limit >= 512) return limit;
  }
  return undefined;
}
