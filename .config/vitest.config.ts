import { fileURLToPath } from 'node:url';
import { defaultServerConditions } from 'vite';
import { defineConfig } from 'vitest/config';

// Tests run the sources: `shimline/shims` means src/shims.ts here, as it does for the type checker. The condition has a
// name of our own, since packages publish a condition `source` too and would then be compiled from theirs.
const conditions = ['shimline-source', ...defaultServerConditions];

export default defineConfig({
  root: fileURLToPath(new URL('..', import.meta.url)),
  resolve: { conditions },
  ssr: { resolve: { conditions } },
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/global-setup.ts'],
    testTimeout: 30_000,
    hookTimeout: 30_000,
    pool: 'forks',
    maxWorkers: 2,
    // Type tests judge their own lines; the rest is `npm run typecheck`.
    typecheck: {
      enabled: true,
      include: ['test/**/*.test-d.ts'],
      tsconfig: 'test/tsconfig.json',
      ignoreSourceErrors: true,
    },
  },
});
