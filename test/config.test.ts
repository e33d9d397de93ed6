import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { ConfigError, environmentExample, parseConfig } from '../src/config.js';

function faultsOf(env: Record<string, string>): readonly string[] {
  try {
    parseConfig(env);
  } catch (error) {
    if (error instanceof ConfigError) return error.faults;
    throw error;
  }
  return [];
}

describe('the environment', () => {
  it('has a default for every setting that needs a value', () => {
    expect(parseConfig({})).toEqual({
      HOST: '127.0.0.1',
      PORT: 8080,
      DATA_DIR: './data',
      SHIMS_DIR: './shims',
      SHIMS_WATCH: false,
      MODEL_IDLE_TIMEOUT_MS: 60_000,
      MODEL_MAX_RETRIES: 2,
      MAX_CONCURRENT_RUNS: 256,
      MAX_QUEUED_RUNS: 10_000,
      DURABILITY: 'full',
      MAX_BODY_BYTES: 4_194_304,
      SHUTDOWN_GRACE_MS: 30_000,
      LOG_LEVEL: 'info',
    });
  });

  it('counts an empty variable as unset and ignores what it does not know', () => {
    expect(parseConfig({ PORT: '', API_KEYS: '', AGENTS_DIR: '', PATH: '/bin' })).toEqual(parseConfig({}));
  });

  it('reports every fault at once, one line each, by the name of the variable', () => {
    const faults = faultsOf({
      PORT: '80.5',
      SHIMS_WATCH: 'yes',
      DURABILITY: 'most',
      OPENAI_BASE_URL: 'ftp://x',
      LOG_LEVEL: 'loud',
    });
    expect(faults).toEqual([
      'PORT: must be a whole number from 0 to 65535',
      'SHIMS_WATCH: must be true or false',
      'OPENAI_BASE_URL: must be an http:// or https:// URL',
      'DURABILITY: must be full or normal',
      'LOG_LEVEL: must be trace, debug, info, warn, error, fatal or silent',
    ]);
  });

  it.each(['-1', '+1', '1e3', '0x10', ' 1', '1 ', '1_000', 'ten', '99999999999999999999'])(
    'refuses %j as a number of bytes',
    (value) => {
      expect(faultsOf({ MAX_BODY_BYTES: value })).toEqual(['MAX_BODY_BYTES: must be a whole number of at least 1']);
    },
  );

  it('takes keys apart at the first colon', () => {
    expect(parseConfig({ API_KEYS: 'alice:sk:1, bob:sk-2' }).API_KEYS).toEqual([
      { name: 'alice', key: 'sk:1' },
      { name: 'bob', key: 'sk-2' },
    ]);
  });

  it('names the faulty entry of API_KEYS and never a key', () => {
    const faults = faultsOf({
      API_KEYS: 'alice:sk-secret,nameless-secret,bob:,alice:sk-other,eve:sk-secret,:sk-3,m m:x',
    });
    expect(faults.map((fault) => fault.slice(0, 24))).toEqual([
      'API_KEYS: entry 2 must b',
      'API_KEYS: entry 3 must h',
      'API_KEYS: entry 4 repeat',
      'API_KEYS: entry 5 repeat',
      'API_KEYS: entry 6 must b',
      'API_KEYS: entry 7 must b',
    ]);
    expect(faults.join()).not.toMatch(/secret|sk-/);
  });

  it.each(['0.0.0.0', '::', '10.0.0.7', 'example.org', '127.0.0.1.example.org'])(
    'refuses HOST=%s without keys',
    (host) => {
      expect(faultsOf({ HOST: host })).toEqual([
        `HOST: "${host}" is not loopback, so API_KEYS must be set (or AUTH=none, to let everyone in)`,
      ]);
      expect(faultsOf({ HOST: host, AUTH: 'none' })).toEqual([]);
      expect(faultsOf({ HOST: host, API_KEYS: 'a:b' })).toEqual([]);
    },
  );

  it.each(['127.0.0.1', '127.1.2.3', '::1', 'localhost'])('listens on %s without keys', (host) => {
    expect(faultsOf({ HOST: host })).toEqual([]);
  });

  it('reports a HOST without keys beside the other faults', () => {
    expect(faultsOf({ HOST: '0.0.0.0', PORT: 'x' })).toHaveLength(2);
  });

  it('refuses AUTH=none beside keys, and any other word', () => {
    expect(faultsOf({ AUTH: 'none', API_KEYS: 'a:b' })).toEqual(['AUTH: none contradicts API_KEYS; unset one of them']);
    expect(faultsOf({ AUTH: 'off' })).toEqual(['AUTH: must be none, or unset']);
  });

  it('is described by .env.example, as the schema has it', () => {
    expect(readFileSync(new URL('../.env.example', import.meta.url), 'utf8')).toBe(environmentExample());
  });
});
