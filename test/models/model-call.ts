import type {
  LanguageModelV3CallOptions,
  LanguageModelV3FinishReason,
  LanguageModelV3FunctionTool,
  LanguageModelV3StreamPart,
  LanguageModelV3Usage,
} from '@ai-sdk/provider';
import type { ModelHandle } from '../../src/agent/model.js';
import type { ModelCallError } from '../../src/agent/run-errors.js';
import { ModelRegistry } from '../../src/models/model-registry.js';

/** Everything that one model call gave, up to its end or its failure. */
export interface CallResult {
  readonly parts: readonly LanguageModelV3StreamPart[];
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly { readonly id: string; readonly name: string; readonly input: string }[];
  readonly finish: LanguageModelV3FinishReason | undefined;
  readonly usage: LanguageModelV3Usage | undefined;
  readonly failure: ModelCallError | undefined;
}

export const HELLO: LanguageModelV3CallOptions['prompt'] = [
  { role: 'user', content: [{ type: 'text', text: 'hello' }] },
];

export const ECHO_TOOL: LanguageModelV3FunctionTool = {
  type: 'function',
  name: 'echo',
  description: 'Echoes a number.',
  inputSchema: { type: 'object', properties: { x: { type: 'number' } }, required: ['x'] },
};

/** One model id per dialect and provider package. */
export const EVERY_ID = [
  'openai/gpt-test',
  'openai-chat/gpt-test',
  'anthropic/claude-test',
  'google/gemini-test',
  'openai-compatible/qwen-test',
] as const;

export const KEYS = {
  openaiApiKey: 'canaryOpenai0001',
  anthropicApiKey: 'canaryAnthropic0002',
  googleApiKey: 'canaryGoogle0003',
  openaiCompatibleApiKey: 'canaryCompatible0004',
};

/** A registry whose every provider is the endpoint at this address. */
export function registryFor(url: string): ModelRegistry {
  const base = `${url}/v1`;
  return new ModelRegistry({
    ...KEYS,
    openaiBaseUrl: base,
    anthropicBaseUrl: base,
    googleBaseUrl: `${url}/v1beta`,
    openaiCompatibleBaseUrl: base,
    idleTimeoutMs: 5_000,
  });
}

/** Calls a model as the agent loop does: an `error` part ends the call like a thrown error. */
export async function callModel(
  model: ModelHandle,
  options: Partial<LanguageModelV3CallOptions> = {},
): Promise<CallResult> {
  const parts: LanguageModelV3StreamPart[] = [];
  let failure: ModelCallError | undefined;
  try {
    const { stream } = await model.languageModel.doStream({ prompt: HELLO, ...options });
    for await (const part of stream) {
      if (part.type === 'error') throw part.error;
      parts.push(part);
    }
  } catch (error) {
    failure = model.failureOf(error);
  }
  const finish = parts.find((part) => part.type === 'finish');
  return {
    parts,
    text: parts.map((part) => (part.type === 'text-delta' ? part.delta : '')).join(''),
    reasoning: parts.map((part) => (part.type === 'reasoning-delta' ? part.delta : '')).join(''),
    calls: parts
      .filter((part) => part.type === 'tool-call')
      .map((part) => ({ id: part.toolCallId, name: part.toolName, input: part.input })),
    finish: finish?.finishReason,
    usage: finish?.usage,
    failure,
  };
}
