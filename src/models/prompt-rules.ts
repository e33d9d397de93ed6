import type { PromptRules, ProviderOptions } from '../agent/model.js';

const WEB_IMAGES = /^image\/(?:\*|png|jpe?g|gif|webp)$/;
const PDF = 'application/pdf';
const CHAT_AUDIO = /^audio\/(?:wav|mp3|mpeg)$/;

function only(key: string): PromptRules['ownOptions'] {
  return (options) => {
    const own = options[key];
    return own === undefined ? undefined : { [key]: own };
  };
}

function has(options: ProviderOptions | undefined, key: string, names: readonly string[]): boolean {
  const own = options?.[key];
  return own !== undefined && names.some((name) => typeof own[name] === 'string' && own[name].trim() !== '');
}

/** The Responses API: reasoning goes back encrypted, tool results hold images and documents. */
export const RESPONSES_RULES: PromptRules = {
  ownOptions: only('openai'),
  takesReasoning: (options) => has(options, 'openai', ['itemId', 'reasoningEncryptedContent']),
  takesFile: (mediaType) => WEB_IMAGES.test(mediaType) || mediaType === PDF,
  takesInResults: (mediaType) => WEB_IMAGES.test(mediaType) || mediaType === PDF,
  assistantFiles: false,
  marksErrors: false,
  systemAnywhere: true,
};

/** Chat Completions of OpenAI: reasoning never goes back, and tool results are text. */
export const CHAT_RULES: PromptRules = {
  ownOptions: only('openai'),
  takesReasoning: () => false,
  takesFile: (mediaType, url) =>
    WEB_IMAGES.test(mediaType) || (url === undefined && (CHAT_AUDIO.test(mediaType) || mediaType === PDF)),
  takesInResults: () => false,
  assistantFiles: false,
  marksErrors: false,
  systemAnywhere: true,
};

/**
 * Chat Completions of any other server. Reasoning goes back as text, unless it bears the mark of another provider; the chat
 * templates of many models take a system message in the first place only.
 */
export const COMPATIBLE_RULES: PromptRules = {
  ownOptions: ({ openaiCompatible }) => {
    if (openaiCompatible === undefined) return undefined;
    // The package hands the signature of a call out under its own key and wants it back under Google's.
    const { thoughtSignature, ...own } = openaiCompatible;
    const google = thoughtSignature === undefined ? {} : { google: { thoughtSignature } };
    return Object.keys(own).length === 0 ? google : { openaiCompatible: own, ...google };
  },
  takesReasoning: (options) => Object.keys(options ?? {}).every((key) => key === 'openaiCompatible'),
  takesFile: (mediaType, url) =>
    mediaType.startsWith('image/') ||
    mediaType.startsWith('text/') ||
    (url === undefined && (CHAT_AUDIO.test(mediaType) || mediaType === PDF)),
  takesInResults: () => false,
  assistantFiles: false,
  marksErrors: false,
  systemAnywhere: false,
};

/** Anthropic: thinking goes back with its signature or not at all. */
export const ANTHROPIC_RULES: PromptRules = {
  ownOptions: only('anthropic'),
  takesReasoning: (options) => has(options, 'anthropic', ['signature', 'redactedData']),
  takesFile: (mediaType, url) =>
    WEB_IMAGES.test(mediaType) || mediaType === PDF || (url === undefined && mediaType === 'text/plain'),
  takesInResults: (mediaType) => WEB_IMAGES.test(mediaType) || mediaType === PDF,
  assistantFiles: false,
  marksErrors: true,
  systemAnywhere: false,
};

const GOOGLE_FILES =
  /^(?:image\/(?:\*|png|jpe?g|webp|heic|heif)|audio\/(?:wav|mp3|mpeg|aiff|aac|ogg|flac)|video\/.+|text\/.+|application\/pdf)$/;
/** Older models have no place for media in the answer of a function. */
const GOOGLE_WITHOUT_RESULT_MEDIA = /gemini-(?:1|2)(?=$|[-.])|gemini-pro|^(?!.*gemini-)/;

/** Google: what is sent by address depends on the model, which its package knows. */
export function googleRules(
  model: string,
  supportedUrls: () => Record<string, RegExp[]> | PromiseLike<Record<string, RegExp[]>>,
): PromptRules {
  const urls = supportedUrls();
  const known = 'then' in urls && typeof urls.then === 'function' ? {} : (urls as Record<string, RegExp[]>);
  const withMedia = !GOOGLE_WITHOUT_RESULT_MEDIA.test(model);
  return {
    ownOptions: only('google'),
    takesReasoning: (options) => Object.keys(options ?? {}).every((key) => key === 'google'),
    takesFile: (mediaType, url) =>
      url === undefined
        ? GOOGLE_FILES.test(mediaType)
        : [mediaType, '*'].some((type) => known[type]?.some((pattern) => pattern.test(url)) === true),
    takesInResults: (mediaType) => withMedia && GOOGLE_FILES.test(mediaType) && !/^(?:audio|video)/.test(mediaType),
    assistantFiles: true,
    marksErrors: false,
    systemAnywhere: false,
  };
}
