/** Each provider's own way to say that the request does not fit the model's context; no shared code exists. */
const PATTERNS: readonly RegExp[] = [
  // OpenAI and gateways that pass its code on; llama.cpp; Anthropic over HTTP 413.
  /context_length_exceeded|exceed_context_size|context_window_exceeded|request_too_large/i,
  // OpenAI Chat Completions, vLLM, OpenRouter, Mistral, Ollama.
  /maximum context length/i,
  // OpenAI Responses; llama.cpp; Anthropic's sum of input and `max_tokens`; Together.
  /exceeds?\s+(?:the\s+)?(?:model'?s\s+)?(?:available\s+|maximum\s+)?context\s+(?:window|size|length|limit)/i,
  // Anthropic; Bedrock.
  /prompt is too long|input is too long/i,
  // Google.
  /input token count.{0,40}exceeds/i,
  // Newer vLLM, SGLang, LM Studio.
  /context length (?:is|of) only|longer than the model'?s context length|exceeds? the model'?s context/i,
  // xAI; Groq; Cohere; text-generation-inference.
  /maximum prompt length is|reduce the length of the (?:messages|prompt|input)|tokens in the prompt cannot exceed|max_new_tokens`? must be <=/i,
];

/** True when a provider's error means that the request is longer than the model's context. */
export function meansContextExceeded(error: {
  readonly status: number | undefined;
  readonly providerCode: string | undefined;
  readonly message: string;
}): boolean {
  // A token rate limit speaks of tokens and sizes too, and passes by itself.
  if (error.status === 429) return false;
  if (error.status === 413) return true;
  const text = `${error.providerCode ?? ''} ${error.message}`;
  return PATTERNS.some((pattern) => pattern.test(text));
}
