// Who may import whom. Arrows point to agent/, the domain; only the entries see everything.

/** Composition root, process entries and public surfaces: the files that put the folders together. */
const entry = '^src/((app|server|index|shims|testing|backup)\\.ts$|http/write-openapi\\.ts$)';

const errors = '^src/errors\\.ts$';
const folder = (...names) => names.map((name) => `^src/${name}/`);
const packages = (...names) => names.map((name) => `node_modules/(@types/)?${name}/`);

const sqlite = 'better-sqlite3';
const providers = '@ai-sdk/(?!provider/)[^/]+';
const fastify = ['fastify', '@fastify/[^/]+', 'fastify-plugin', 'fastify-type-provider-zod'];

/** `name` may import the source files in `allowed`, and no others of src or shims. */
const layer = (name, path, allowed) => ({
  name,
  severity: 'error',
  from: { path, pathNot: entry },
  to: { path: '^(src|shims)/', pathNot: allowed },
});

const only = (name, where, banned, to = {}) => ({
  name,
  severity: 'error',
  from: { path: '^src/', pathNot: where },
  to: { path: packages(...banned), ...to },
});

/** @type {import('dependency-cruiser').IConfiguration} */
module.exports = {
  forbidden: [
    // Folders.
    layer('errors-import-nothing', errors, [errors]),
    layer('config-imports-errors-only', '^src/config\\.ts$', [errors]),
    layer('agent-is-the-domain', '^src/agent/', [errors, ...folder('agent')]),
    layer('models-know-the-domain-only', '^src/models/', [errors, ...folder('agent', 'models')]),
    layer('store-knows-the-domain-only', '^src/store/', [errors, ...folder('agent', 'store')]),
    layer('runtime-knows-no-http', '^src/runtime/', [errors, ...folder('agent', 'store', 'runtime')]),
    layer('http-talks-to-the-runtime', '^src/http/', [errors, ...folder('agent', 'runtime', 'http')]),
    layer('testing-reads-shims-as-the-runtime', '^src/testing/', [
      ...folder('agent', 'testing'),
      '^src/runtime/shim-definition\\.ts$',
    ]),
    {
      name: 'testing-is-for-authors',
      comment: 'The kit is a public entry of its own; the program runs without it.',
      severity: 'error',
      from: { path: '^(src|shims)/', pathNot: '^src/testing(\\.ts$|/)' },
      to: { path: '^src/testing(\\.ts$|/)' },
    },
    {
      name: 'src-files-have-a-place',
      comment: 'A file directly in src/ is an entry, the errors or the config; a new folder needs a rule here first.',
      severity: 'error',
      from: {
        path: '^src/',
        pathNot: [
          entry,
          errors,
          '^src/config\\.ts$',
          ...folder('agent', 'models', 'store', 'runtime', 'http', 'testing'),
        ],
      },
      to: {},
    },
    {
      name: 'nobody-imports-a-process-entry',
      severity: 'error',
      from: {},
      to: { path: '^src/((server|backup)\\.ts$|http/write-openapi\\.ts$)' },
    },
    {
      name: 'shims-use-the-public-entry-only',
      comment: "Shims are written like an author's: shimline/shims, their own folder, their own packages.",
      severity: 'error',
      from: { path: '^shims/([^/.]+)' },
      to: { path: '^(src|shims|test)/', pathNot: ['^src/shims\\.ts$', '^shims/$1(\\.|/)'] },
    },
    {
      name: 'no-tests-in-the-program',
      severity: 'error',
      from: { path: '^(src|shims)/' },
      to: { path: '^(test|dist)/' },
    },

    // Packages.
    only('sqlite-in-store-only', folder('store'), [sqlite]),
    only('providers-in-models-only', folder('models'), [providers, 'undici']),
    only('fastify-in-http-and-app-only', [...folder('http'), '^src/app\\.ts$'], fastify),
    only('pino-in-runtime-and-entries-only', [...folder('runtime'), '^src/(app|server)\\.ts$'], ['pino']),
    {
      name: 'pino-types-only-in-runtime',
      severity: 'error',
      from: { path: '^src/runtime/' },
      to: { path: packages('pino'), dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'provider-types-only-in-agent',
      severity: 'error',
      from: { path: '^src/agent/' },
      to: { path: packages('@ai-sdk/provider'), dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'agent-packages',
      comment: 'The domain takes packages that compute and do nothing else.',
      severity: 'error',
      from: { path: '^src/agent/' },
      to: {
        path: 'node_modules/',
        pathNot: packages('zod', '@ai-sdk/provider', 'mustache', 'ajv', 'ajv-formats', 're2js'),
      },
    },
    {
      name: 'agent-knows-no-node',
      comment: 'No clock, randomness, file or process in the domain: they are injected.',
      severity: 'error',
      from: { path: '^src/agent/' },
      to: { dependencyTypes: ['core'] },
    },
    {
      name: 'errors-and-config-packages',
      severity: 'error',
      from: { path: '^src/(errors|config)\\.ts$' },
      to: { path: 'node_modules/', pathNot: packages('zod') },
    },

    // Everywhere.
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    {
      name: 'no-unresolved-imports',
      comment: 'What does not resolve escapes every other rule.',
      severity: 'error',
      from: {},
      to: { couldNotResolve: true },
    },
    {
      name: 'no-dev-dependencies-in-the-program',
      severity: 'error',
      from: { path: '^(src|shims)/', pathNot: '^src/testing/' },
      to: { dependencyTypes: ['npm-dev'], dependencyTypesNot: ['type-only'], pathNot: 'node_modules/@types/' },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: {
      exportsFields: ['exports'],
      conditionNames: ['shimline-source', 'import', 'node', 'types', 'default'],
    },
  },
};
