import { checkJson, deepFreeze } from './json.js';
import { type AssistantMessage, type ModelResponse, settleMessage } from './messages.js';
import { FinishReasonSchema, NO_USAGE, UsageSchema } from './model.js';

/**
 * A response that a wrap made or changed, as the run can keep it: checked, frozen, and what it left out filled in.
 * @param defaults.newId names a call that has no name of its own
 * @throws TypeError, NotJsonError, ZodError
 */
export function settleResponse(
  given: ModelResponse,
  defaults: { readonly modelId: string; newId(): string },
): ModelResponse {
  const { message, ...told } = given as Partial<ModelResponse>;
  if (message === undefined) throw new TypeError('The response has no message.');
  const settled = settleMessage(message, 'response.message');
  if (settled.role !== 'assistant') throw new TypeError('The message of a response is of the assistant.');
  const modelCallId = told.modelCallId ?? defaults.newId();
  const { providerMetadata } = told;
  if (providerMetadata !== undefined) checkJson(providerMetadata, 'response.providerMetadata');
  return deepFreeze({
    id: told.id ?? modelCallId,
    modelCallId,
    modelId: told.modelId ?? defaults.modelId,
    message: settled,
    finishReason: FinishReasonSchema.parse(told.finishReason ?? (callsTools(settled) ? 'tool-calls' : 'stop')),
    usage: UsageSchema.parse(told.usage ?? NO_USAGE),
    ...(providerMetadata === undefined ? {} : { providerMetadata: structuredClone(providerMetadata) }),
  });
}

function callsTools({ content }: AssistantMessage): boolean {
  return typeof content !== 'string' && content.some((part) => part.type === 'tool-call');
}
