import tseslint from 'typescript-eslint';

/** A suppression must say why after `--`, so that a reader can tell a decision from a shortcut. */
const describedSuppressions = {
  meta: { type: 'suggestion', schema: [], messages: { missing: 'Give the reason for this suppression after "--".' } },
  create: (context) => ({
    Program() {
      for (const comment of context.sourceCode.getAllComments()) {
        if (/^\s*eslint-disable/.test(comment.value) && !/\s--\s+\S/.test(comment.value)) {
          context.report({ loc: comment.loc, messageId: 'missing' });
        }
      }
    },
  }),
};

const noBarrels = {
  selector: 'ExportAllDeclaration',
  message: 'No barrels: export by name where it is defined, import from there.',
};
const noDefaultExports = {
  selector: 'ExportDefaultDeclaration',
  message: 'Named exports only: a default export has as many names as importers.',
};

export default tseslint.config(
  { ignores: ['**/node_modules/', '**/dist/', '**/coverage/', 'data/', 'my-shims/'] },
  { linterOptions: { reportUnusedDisableDirectives: 'error' } },
  {
    files: ['**/*.{ts,js,mjs,cjs}'],
    plugins: { shimline: { rules: { 'described-suppressions': describedSuppressions } } },
    rules: { 'shimline/described-suppressions': 'error', eqeqeq: 'error' },
  },
  {
    files: ['{src,shims,test}/**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      'max-lines': ['error', { max: 400, skipBlankLines: true, skipComments: true }],
      'no-console': 'error',
      'no-restricted-properties': [
        'error',
        { object: 'process', property: 'env', message: 'Only server.ts reads the environment; take a config value.' },
      ],
      'no-restricted-imports': [
        'error',
        {
          paths: [
            {
              name: 'node:process',
              importNames: ['env'],
              message: 'Only server.ts reads the environment; take a config value.',
            },
          ],
        },
      ],
      'no-restricted-syntax': ['error', noBarrels, noDefaultExports],
      '@typescript-eslint/switch-exhaustiveness-check': 'error',
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        // The strict preset with numbers: naming one option brings back the lax defaults of the others.
        {
          allowNumber: true,
          allowAny: false,
          allowBoolean: false,
          allowNever: false,
          allowNullish: false,
          allowRegExp: false,
        },
      ],
      // Handlers, callbacks and fakes are async because their contract says so.
      '@typescript-eslint/require-await': 'off',
      // A callback's default does nothing, on purpose, and names the parameters that an override gets.
      '@typescript-eslint/no-unused-vars': [
        'error',
        { argsIgnorePattern: '^_', varsIgnorePattern: '^_', ignoreRestSiblings: true },
      ],
      '@typescript-eslint/no-empty-function': ['error', { allow: ['methods', 'asyncMethods', 'overrideMethods'] }],
      // `state.get<number>('n')`: the caller knows what it stored there; a map of JSON does not.
      '@typescript-eslint/no-unnecessary-type-parameters': 'off',
      // The contract's callbacks return a value or nothing at all.
      '@typescript-eslint/no-invalid-void-type': 'off',
    },
  },
  {
    files: ['src/server.ts', 'src/backup.ts'],
    rules: { 'no-restricted-properties': 'off', 'no-restricted-imports': 'off' },
  },
  {
    // A shim module is found by its default export, and sees of the server what an author outside sees.
    files: ['shims/**/*.ts'],
    rules: {
      'no-restricted-syntax': ['error', noBarrels],
      'no-restricted-imports': [
        'error',
        { patterns: [{ regex: '^(\\.\\./)+src(/|$)', message: "A shim imports 'shimline/shims' only." }] },
      ],
    },
  },
  {
    files: ['test/**/*.ts'],
    rules: {
      'max-lines': ['error', { max: 800, skipBlankLines: true, skipComments: true }],
      'no-console': 'off',
      'no-restricted-properties': 'off',
      'no-restricted-imports': 'off',
      '@typescript-eslint/no-non-null-assertion': 'off',
      '@typescript-eslint/no-empty-function': 'off',
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
    },
  },
  {
    // Type tests are read by the compiler and never run: what they declare is there to be judged.
    files: ['test/types/**/*.test-d.ts'],
    rules: {
      '@typescript-eslint/no-unused-vars': 'off',
      '@typescript-eslint/no-unsafe-argument': 'off',
      '@typescript-eslint/no-meaningless-void-operator': 'off',
      '@typescript-eslint/no-unsafe-class-instance-assignment': 'off',
    },
  },
  {
    // Vitest finds the global setup, and the shim loader a shim written for a test, by a default export.
    files: ['test/global-setup.ts', 'test/**/shims/**/*.ts', 'test/**/fixtures/**/*.ts'],
    rules: { 'no-restricted-syntax': ['error', noBarrels] },
  },
);
