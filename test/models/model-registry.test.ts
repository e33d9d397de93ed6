import { afterAll, describe, expect, it } from 'vitest';
import { ModelRegistry } from '../../src/models/model-registry.js';
import { UnknownModelError } from '../../src/models/unknown-model-error.js';

const bare = new ModelRegistry({ idleTimeoutMs: 1_000 });
const full = new ModelRegistry({
  openaiApiKey: 'k-openai',
  anthropicApiKey: 'k-anthropic',
  anthropicBaseUrl: 'https://user:secret@gateway.example/anthropic',
  googleApiKey: 'k-google',
  openaiCompatibleBaseUrl: 'http://localhost:8000/v1?key=secret',
  idleTimeoutMs: 1_000,
});
afterAll(async () => {
  await bare.close();
  await full.close();
});

describe('ModelRegistry', () => {
  it.each([
    ['openai/x', 'OPENAI_API_KEY'],
    ['openai-chat/x', 'OPENAI_API_KEY'],
    ['anthropic/x', 'ANTHROPIC_API_KEY'],
    ['google/x', 'GOOGLE_GENERATIVE_AI_API_KEY'],
    ['openai-compatible/x', 'OPENAI_COMPATIBLE_BASE_URL'],
    ['mistral/x', 'openai-compatible/, scripted/'],
    ['gpt-5', 'an id begins with'],
    ['', 'an id begins with'],
    ['__proto__/x', 'an id begins with'],
    ['scripted/other', 'scripted/demo'],
    ['scripted/', 'name belongs after scripted/'],
  ])('refuses %j and says why', (id, words) => {
    const error = (() => {
      try {
        return bare.resolve(id);
      } catch (thrown) {
        return thrown;
      }
    })();
    expect(error).toBeInstanceOf(UnknownModelError);
    expect(error).toMatchObject({
      code: 'unknown_model',
      status: 422,
      message: expect.stringContaining(words) as string,
    });
  });

  it('takes model names with slashes and an endpoint without a key', () => {
    const { languageModel, id } = full.resolve('openai-compatible/org/model-7b');
    expect([languageModel.modelId, id]).toEqual(['org/model-7b', 'openai-compatible/org/model-7b']);
  });

  it.each([
    ['openai/gpt-5', true],
    ['openai-chat/gpt-5', true],
    ['anthropic/claude-sonnet-4-5', true],
    ['anthropic/claude-opus-4-20250514', false],
    ['anthropic/claude-3-5-haiku-latest', false],
    ['google/gemini-3-pro', true],
    ['google/gemini-2.5-flash', false],
    ['openai-compatible/x', false],
    ['scripted/demo', false],
  ])('knows whether %s enforces an output schema', (id, native) => {
    expect(full.resolve(id).nativeStructuredOutput).toBe(native);
  });

  it('lists every provider, with no more of its address than the host', () => {
    expect(full.list()).toEqual([
      { id: 'openai/<model>', provider: 'openai', configured: true, host: 'api.openai.com' },
      { id: 'openai-chat/<model>', provider: 'openai-chat', configured: true, host: 'api.openai.com' },
      { id: 'anthropic/<model>', provider: 'anthropic', configured: true, host: 'gateway.example' },
      { id: 'google/<model>', provider: 'google', configured: true, host: 'generativelanguage.googleapis.com' },
      { id: 'openai-compatible/<model>', provider: 'openai-compatible', configured: true, host: 'localhost:8000' },
      { id: 'scripted/demo', provider: 'scripted', configured: true, host: undefined },
    ]);
    expect(
      bare
        .list()
        .filter((model) => model.configured)
        .map((model) => model.id),
    ).toEqual(['scripted/demo']);
  });
});
