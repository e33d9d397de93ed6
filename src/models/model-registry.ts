import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import type { LanguageModelV3 } from '@ai-sdk/provider';
import type { ModelHandle, ModelSource } from '../agent/model.js';
import { textCleaner } from './error-text.js';
import { ANTHROPIC_RULES, CHAT_RULES, COMPATIBLE_RULES, googleRules, RESPONSES_RULES } from './prompt-rules.js';
import { failureOf } from './provider-error.js';
import { ProviderTransport } from './provider-fetch.js';
import { ScriptedModel } from './scripted-model.js';
import { keepsToStrictMode } from './strict-schema.js';
import { UnknownModelError } from './unknown-model-error.js';

/** Model access as configured. A base URL is that of the API version, e.g. `https://api.openai.com/v1`. */
export interface ModelRegistryOptions {
  readonly openaiApiKey?: string | undefined;
  readonly openaiBaseUrl?: string | undefined;
  readonly anthropicApiKey?: string | undefined;
  readonly anthropicBaseUrl?: string | undefined;
  readonly googleApiKey?: string | undefined;
  readonly googleBaseUrl?: string | undefined;
  readonly openaiCompatibleBaseUrl?: string | undefined;
  readonly openaiCompatibleApiKey?: string | undefined;
  /** The longest silence of a provider, in milliseconds; it bounds connecting too. */
  readonly idleTimeoutMs: number;
}

/** What `GET /v1/models` tells of one provider. */
export interface ModelListing {
  /** What an id of this provider looks like, e.g. `openai/<model>`. */
  readonly id: string;
  readonly provider: string;
  readonly configured: boolean;
  /** Host and port of the endpoint, nothing else of its URL; `undefined` for what needs none. */
  readonly host: string | undefined;
}

interface Provider {
  readonly name: string;
  /** Where its requests go; `undefined` for the offline model and for what is not configured. */
  readonly baseUrl: string | undefined;
  readonly configured: boolean;
  /** The variable that configures it. */
  readonly variable: string;
  create(model: string): Pick<ModelHandle, 'languageModel' | 'nativeStructuredOutput' | 'promptRules'> | undefined;
}

const MAX_CONNECT_MS = 10_000;
/** Ids come from the users' agents, so the handles kept are bounded. */
const MAX_HANDLES = 1000;

/**
 * The models there are, by id: `openai/<model>` (Responses API), `openai-chat/<model>` (Chat Completions of the same account and URL),
 * `anthropic/<model>`, `google/<model>`, `openai-compatible/<model>` (Chat Completions of any other endpoint) and the offline `scripted/demo`.
 * A model's own name may hold slashes.
 */
export class ModelRegistry implements ModelSource {
  readonly #transport: ProviderTransport;
  readonly #providers: ReadonlyMap<string, Provider>;
  readonly #clean: (text: string) => string;
  readonly #handles = new Map<string, ModelHandle>();

  constructor(options: ModelRegistryOptions) {
    this.#transport = new ProviderTransport({ connectTimeoutMs: Math.min(options.idleTimeoutMs, MAX_CONNECT_MS) });
    const secrets = [
      options.openaiApiKey,
      options.anthropicApiKey,
      options.googleApiKey,
      options.openaiCompatibleApiKey,
    ];
    this.#clean = textCleaner(secrets.filter((secret) => secret !== undefined));
    this.#providers = new Map(providersOf(options, this.#transport).map((provider) => [provider.name, provider]));
  }

  /** The handle of one model, the same for the same id. Throws `UnknownModelError`, which says what is wrong or what to configure. */
  resolve(id: string): ModelHandle {
    const known = this.#handles.get(id);
    if (known !== undefined) return known;
    const slash = id.indexOf('/');
    const provider = slash < 0 ? undefined : this.#providers.get(id.slice(0, slash));
    if (provider === undefined) {
      throw new UnknownModelError(
        id,
        `an id begins with one of ${[...this.#providers.keys()].map((name) => `${name}/`).join(', ')}.`,
      );
    }
    const model = id.slice(slash + 1);
    if (model.trim() === '') throw new UnknownModelError(id, `a model's name belongs after ${provider.name}/.`);
    if (!provider.configured)
      throw new UnknownModelError(id, `the provider ${provider.name} is not configured; set ${provider.variable}.`);
    const created = provider.create(model);
    if (created === undefined) throw new UnknownModelError(id, 'the only scripted model is scripted/demo.');
    const context = { provider: provider.name, clean: this.#clean };
    const handle: ModelHandle = { id, ...created, failureOf: (thrown) => failureOf(thrown, context) };
    if (this.#handles.size >= MAX_HANDLES) this.#handles.clear();
    this.#handles.set(id, handle);
    return handle;
  }

  /** Every provider, configured or not. */
  list(): readonly ModelListing[] {
    return [...this.#providers.values()].map(({ name, configured, baseUrl }) => ({
      id: name === 'scripted' ? 'scripted/demo' : `${name}/<model>`,
      provider: name,
      configured,
      host: baseUrl === undefined ? undefined : hostOf(baseUrl),
    }));
  }

  /** Ends every connection to a provider; calls that are under way fail. */
  async close(): Promise<void> {
    await this.#transport.close();
  }
}

function providersOf(options: ModelRegistryOptions, transport: ProviderTransport): Provider[] {
  // The packages read the environment for whatever is left out, so nothing is.
  const openaiUrl = options.openaiBaseUrl ?? 'https://api.openai.com/v1';
  const anthropicUrl = versioned(options.anthropicBaseUrl ?? 'https://api.anthropic.com/v1');
  const googleUrl = options.googleBaseUrl ?? 'https://generativelanguage.googleapis.com/v1beta';
  const compatibleUrl = options.openaiCompatibleBaseUrl;
  const openaiKey = options.openaiApiKey ?? '';
  const responses = createOpenAI({ apiKey: openaiKey, baseURL: openaiUrl, fetch: transport.fetchFor('responses') });
  const chat = createOpenAI({ apiKey: openaiKey, baseURL: openaiUrl, fetch: transport.fetchFor('chat') });
  const anthropic = createAnthropic({
    apiKey: options.anthropicApiKey ?? '',
    baseURL: anthropicUrl,
    fetch: transport.fetchFor('anthropic'),
  });
  const google = createGoogleGenerativeAI({
    apiKey: options.googleApiKey ?? '',
    baseURL: googleUrl,
    fetch: transport.fetchFor('google'),
  });
  const compatible = createOpenAICompatible({
    name: 'openaiCompatible',
    baseURL: compatibleUrl ?? 'http://not-configured.invalid',
    includeUsage: true,
    fetch: transport.fetchFor('chat'),
    ...(options.openaiCompatibleApiKey === undefined ? {} : { apiKey: options.openaiCompatibleApiKey }),
  });
  return [
    {
      name: 'openai',
      baseUrl: openaiUrl,
      configured: options.openaiApiKey !== undefined,
      variable: 'OPENAI_API_KEY',
      create: (model) => ({
        languageModel: withOpenaiDefaults(responses.responses(model), { store: false }),
        nativeStructuredOutput: true,
        promptRules: RESPONSES_RULES,
      }),
    },
    {
      name: 'openai-chat',
      baseUrl: openaiUrl,
      configured: options.openaiApiKey !== undefined,
      variable: 'OPENAI_API_KEY',
      create: (model) => ({
        languageModel: withOpenaiDefaults(chat.chat(model), {}),
        nativeStructuredOutput: true,
        promptRules: CHAT_RULES,
      }),
    },
    {
      name: 'anthropic',
      baseUrl: anthropicUrl,
      configured: options.anthropicApiKey !== undefined,
      variable: 'ANTHROPIC_API_KEY',
      create: (model) => ({
        languageModel: anthropic.languageModel(model),
        nativeStructuredOutput: !ANTHROPIC_WITHOUT_SCHEMA.test(model),
        promptRules: ANTHROPIC_RULES,
      }),
    },
    {
      name: 'google',
      baseUrl: googleUrl,
      configured: options.googleApiKey !== undefined,
      variable: 'GOOGLE_GENERATIVE_AI_API_KEY',
      create: (model) => {
        const languageModel = google.languageModel(model);
        return {
          languageModel,
          nativeStructuredOutput: !GOOGLE_WITHOUT_SCHEMA.test(model),
          promptRules: googleRules(model, () => languageModel.supportedUrls),
        };
      },
    },
    {
      name: 'openai-compatible',
      baseUrl: compatibleUrl,
      configured: compatibleUrl !== undefined,
      variable: 'OPENAI_COMPATIBLE_BASE_URL',
      create: (model) => ({
        languageModel: compatible.chatModel(model),
        nativeStructuredOutput: false,
        promptRules: COMPATIBLE_RULES,
      }),
    },
    {
      name: 'scripted',
      baseUrl: undefined,
      configured: true,
      variable: '',
      create: (model) =>
        model === 'demo' ? { languageModel: new ScriptedModel(), nativeStructuredOutput: false } : undefined,
    },
  ];
}

/** Models for which the package imitates an output schema by a forced tool. */
const ANTHROPIC_WITHOUT_SCHEMA =
  /^(?!.*claude-)|claude-(?:instant|v?2|3)(?=$|[-.:])|claude-(?:sonnet|opus)-4-(?:0|2\d{7})/;
/** Models that refuse an output schema beside tools. */
const GOOGLE_WITHOUT_SCHEMA = /^(?!.*gemini-)|gemini-(?:1|2)(?=$|[-.])|gemini-pro/;

/**
 * What a call says of itself wins over these defaults. `store: false`: the Responses API keeps every answer for its account and lets
 * later requests refer to it, and a durable history must not lean on that copy, which expires; so everything is sent again (reasoning
 * comes back encrypted). A schema is enforced strictly only where it keeps to the rules of that mode, since the API refuses the others.
 */
function withOpenaiDefaults(model: LanguageModelV3, defaults: { readonly store?: false }): LanguageModelV3 {
  const withDefaults = <T extends Parameters<LanguageModelV3['doStream']>[0]>(options: T): T => {
    const { responseFormat } = options;
    const schema = responseFormat?.type === 'json' ? responseFormat.schema : undefined;
    const strict = schema === undefined || keepsToStrictMode(schema) ? {} : { strictJsonSchema: false };
    const own = { ...defaults, ...strict, ...options.providerOptions?.openai };
    return { ...options, providerOptions: { ...options.providerOptions, openai: own } };
  };
  return {
    specificationVersion: model.specificationVersion,
    provider: model.provider,
    modelId: model.modelId,
    supportedUrls: model.supportedUrls,
    doGenerate: (options) => model.doGenerate(withDefaults(options)),
    doStream: (options) => model.doStream(withDefaults(options)),
  };
}

/** The package wants the API version in the URL, while the provider's own clients, and so most settings, leave it out. */
function versioned(url: string): string {
  const trimmed = url.replace(/\/+$/, '');
  return /\/v\d+\w*$/.test(trimmed) ? trimmed : `${trimmed}/v1`;
}

function hostOf(url: string): string | undefined {
  return URL.canParse(url) ? new URL(url).host : undefined;
}
