import { hash, randomUUID } from 'node:crypto';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import Fastify, { type FastifyBaseLogger, type FastifyInstance, LogController } from 'fastify';
import type { Logger } from 'pino';
import { systemClock } from './agent/clock.js';
import { type Config, secretsOf } from './config.js';
import { agentRoutes } from './http/agent-routes.js';
import { auth } from './http/auth.js';
import { connections } from './http/connections.js';
import { answerClientError, answerError, errorHandler } from './http/error-handler.js';
import { inventoryRoutes } from './http/inventory-routes.js';
import { jsonBody } from './http/json-body.js';
import { metrics } from './http/metrics.js';
import { OpenWaits } from './http/open-waits.js';
import { openapi } from './http/openapi.js';
import { opsRoutes } from './http/ops-routes.js';
import { protocol } from './http/protocol.js';
import { rateLimit } from './http/rate-limit.js';
import { newRequestId, requestId } from './http/request-id.js';
import { RunAnswers } from './http/run-answers.js';
import { runRecordRoutes } from './http/run-record-routes.js';
import { runRoutes } from './http/run-routes.js';
import { securityHeaders } from './http/security-headers.js';
import { closeAllStreams } from './http/sse.js';
import { validatorCompiler } from './http/validation.js';
import { secretRemover } from './models/error-text.js';
import { ModelRegistry } from './models/model-registry.js';
import { AgentRegistry } from './runtime/agent-registry.js';
import type { AgentRuntime } from './runtime/agent-runtime.js';
import { loadAgents } from './runtime/agent-start.js';
import { Delegation } from './runtime/delegation.js';
import { EventLog } from './runtime/event-log.js';
import { Expiries } from './runtime/expiries.js';
import { Recovery } from './runtime/recovery.js';
import { Retention } from './runtime/retention.js';
import { RunChanges } from './runtime/run-changes.js';
import { RunScheduler } from './runtime/run-scheduler.js';
import { RunViews } from './runtime/run-views.js';
import { Runtime } from './runtime/runtime.js';
import { ShimLoader } from './runtime/shim-loader.js';
import { StrayErrors } from './runtime/stray-errors.js';
import { AgentStore } from './store/agent-store.js';
import { lockFolder, openDatabase, openReader } from './store/database.js';
import { EventReader } from './store/event-reader.js';
import { RunReader } from './store/run-reader.js';
import { RunStore } from './store/run-store.js';
import { Writer } from './store/writer.js';

/** The longest time that a request may take to arrive, in milliseconds; a slower one is cut off with 408. */
const REQUEST_TIMEOUT_MS = 60_000;

export interface AppOptions {
  readonly config: Config;
  readonly runtime: AgentRuntime;
  readonly eventLog: EventLog;
  /** How many runs there are now by status, for `/metrics`. */
  readonly runCounts: () => Readonly<Record<string, number>>;
  /** For how long the stillest of the running runs has written nothing, for `/metrics`. */
  readonly silenceSeconds?: () => number;
  /** Without one nothing is logged. */
  readonly log?: FastifyBaseLogger;
}

/** The HTTP side: plugins and routes, in order. It listens to nothing yet. */
export async function buildApp({
  config,
  runtime,
  eventLog,
  runCounts,
  silenceSeconds,
  log,
}: AppOptions): Promise<FastifyInstance> {
  const app: FastifyInstance = Fastify({
    ...(log === undefined ? {} : { loggerInstance: log }),
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'requestId' }),
    genReqId: newRequestId,
    bodyLimit: config.MAX_BODY_BYTES,
    // Names of any length are answered by those who know what there is; Fastify's own limit of 100 would call them malformed.
    routerOptions: { maxParamLength: 4096 },
    requestTimeout: REQUEST_TIMEOUT_MS,
    http: { requireHostHeader: false },
    trustProxy: false,
    // While it closes, routes answer for themselves: Fastify's own 503 is no problem object.
    return503OnClosing: false,
    clientErrorHandler: answerClientError,
    frameworkErrors: (error, request, reply) => {
      answerError(error, request, reply);
    },
  });
  const waits = new OpenWaits();
  const runAnswers = new RunAnswers({ runtime, eventLog, waits });

  app.setValidatorCompiler(validatorCompiler);
  app.setSerializerCompiler(() => JSON.stringify);
  // First, so that the last answers say that they are.
  await app.register(connections);
  app.addHook('preClose', async () => {
    waits.close();
    closeAllStreams();
  });

  await app.register(errorHandler);
  await app.register(requestId);
  await app.register(securityHeaders);
  await app.register(protocol);
  await app.register(jsonBody);
  await app.register(openapi);
  await app.register(metrics, { runCounts, ...(silenceSeconds === undefined ? {} : { silenceSeconds }) });
  await app.register(opsRoutes, { runtime });
  await app.register(
    async (v1) => {
      await v1.register(auth, { keys: config.API_KEYS ?? [] });
      if (config.RATE_LIMIT_PER_MINUTE !== undefined)
        await v1.register(rateLimit, { perMinute: config.RATE_LIMIT_PER_MINUTE });
      await v1.register(runRoutes, { runtime, runAnswers });
      await v1.register(runRecordRoutes, { runtime, runAnswers });
      await v1.register(agentRoutes, { runtime });
      await v1.register(inventoryRoutes, { runtime });
    },
    { prefix: '/v1' },
  );
  return app;
}

/** What a process does with agents, composed: the runtime and what its server needs beside it. */
export interface RuntimeParts extends Pick<AppOptions, 'runtime' | 'eventLog' | 'runCounts' | 'silenceSeconds'> {
  /** Goes on with what an earlier process left, beside the serving. */
  recover(): void;
  /** Takes no more work, and resolves when each run has reached its next checkpoint, or `SHUTDOWN_GRACE_MS` is over. */
  drain(): Promise<void>;
  /** Releases the store; the server has closed before. */
  close(): Promise<void>;
}

export interface Server {
  /** Listens, and resolves with the URL, whose port is the real one. */
  listen(): Promise<string>;
  /** Drains with the port open, then closes everything. */
  stop(): Promise<void>;
}

/** The whole server of a process. @throws whatever keeps it from starting, e.g. a data folder that another server has */
export async function createServer(config: Config, log: Logger, strays = new StrayErrors(log)): Promise<Server> {
  const parts = await createRuntime(config, log, strays);
  const app = await buildApp({ config, log, ...parts });
  app.addHook('onClose', async () => parts.close());
  return {
    listen: async () => {
      const url = await app.listen({ host: config.HOST, port: config.PORT });
      parts.recover();
      return url;
    },
    stop: async () => {
      await parts.drain();
      await app.close();
    },
  };
}

/** Store, models, shims, agents and runtime, each made once. */
async function createRuntime(config: Config, log: Logger, strays: StrayErrors): Promise<RuntimeParts> {
  const lock = lockFolder(config.DATA_DIR);
  const database = openDatabase(config.DATA_DIR, config.DURABILITY);
  const readerConnection = openReader(config.DATA_DIR);
  const writer = new Writer(database, (error) => {
    log.error({ err: error }, 'a commit could not be passed on');
  });
  const store = new RunStore(database);
  const eventLog = new EventLog(new EventReader(readerConnection));
  const reader = new RunReader(readerConnection);
  const views = new RunViews({ reader, store, eventLog });
  const now = (): number => systemClock.now();
  const models = modelRegistry(config);
  const builtIn = fileURLToPath(new URL('../shims', import.meta.url));
  const conceal = secretRemover(secretsOf(config));
  const shims = new ShimLoader({
    folders: [builtIn, resolve(config.SHIMS_DIR)],
    builtIn: { folder: builtIn, source: fileURLToPath(new URL('../../shims', import.meta.url)) },
    watch: config.SHIMS_WATCH,
    entryUrl: new URL(import.meta.url.endsWith('.ts') ? './shims.ts' : './shims.js', import.meta.url),
    log,
    conceal,
  });
  await shims.load();
  const agents = new AgentRegistry({ store: new AgentStore(database), writer, shims, models, now });
  const changes = new RunChanges(store, now);
  const expiries = new Expiries({ store, now, log });
  const untilOver = async (runId: string, signal: AbortSignal): Promise<void> =>
    views.until(runId, () => store.isOver(runId), { signal });
  // The loop spawns through the runtime, which is made last: the two know each other only through this.
  const delegation: Delegation = new Delegation({
    store,
    writer,
    agents,
    now,
    newId: randomUUID,
    untilOver,
    startChild: async (row, childShims) => runtime.startChild(row, childShims),
    cancel: async (row) => {
      await runtime.cancelRun(row.id, { key: row.owner === '' ? null : row.owner });
    },
  });
  const loop = {
    models,
    clock: systemClock,
    digest: shortHash,
    log,
    hostHooks: [],
    modelIdleTimeoutMs: config.MODEL_IDLE_TIMEOUT_MS,
    modelMaxRetries: config.MODEL_MAX_RETRIES,
    newId: randomUUID,
    random: Math.random,
    conceal,
    spawn: delegation.spawn.bind(delegation),
  };
  const dataDir = resolve(config.DATA_DIR);
  const scheduler = new RunScheduler(
    { store, writer, eventLog, now, loop, dataDir, strays },
    { maxConcurrent: config.MAX_CONCURRENT_RUNS },
  );
  const runtime: Runtime = new Runtime({
    store,
    writer,
    eventLog,
    views,
    changes,
    scheduler,
    agents,
    shims,
    models,
    expiries,
    now,
    preview: { loop, dataDir },
    log,
    maxQueuedRuns: config.MAX_QUEUED_RUNS,
    newId: randomUUID,
    hash: shortHash,
  });
  expiries.connect(async (runId, decisions) => runtime.expire(runId, decisions));
  const recovery = new Recovery({
    store,
    writer,
    eventLog,
    changes,
    scheduler,
    expiries,
    log,
    recover: async (runId, slot) => runtime.recover(runId, slot),
    cancel: async (row) => runtime.cancelOrphan(row),
  });
  runtime.attach(recovery);
  strays.connect({
    foreignCode: () => shims.hasForeign,
    shimAt: (stack) => shims.shimAt(stack),
    failRun: (runId, error) => scheduler.worker(runId)?.fail(error),
  });
  const retention = new Retention({
    store,
    writer,
    log,
    now,
    runsDays: config.RETAIN_RUNS_DAYS,
    eventsDays: config.RETAIN_EVENTS_DAYS,
    runsCount: config.RETAIN_RUNS_COUNT,
    eventsCount: config.RETAIN_EVENTS_COUNT,
  });
  await loadAgents({ agents, shims, models, folder: config.AGENTS_DIR, log });
  return {
    runtime,
    eventLog,
    runCounts: () => ({ ...Object.fromEntries(reader.countByStatus()), active: scheduler.activeCount }),
    silenceSeconds: () => Math.max(0, now() - (reader.stillestAt() ?? now())) / 1000,
    recover: () => {
      recovery.start();
      retention.start();
    },
    drain: async () => runtime.drain(config.SHUTDOWN_GRACE_MS),
    close: async () => {
      await retention.stop();
      await recovery.settled();
      await shims.close();
      await models.close();
      writer.close();
      readerConnection.close();
      database.close();
      lock.release();
    },
  };
}

function modelRegistry(config: Config): ModelRegistry {
  return new ModelRegistry({
    openaiApiKey: config.OPENAI_API_KEY,
    openaiBaseUrl: config.OPENAI_BASE_URL,
    anthropicApiKey: config.ANTHROPIC_API_KEY,
    anthropicBaseUrl: config.ANTHROPIC_BASE_URL,
    googleApiKey: config.GOOGLE_GENERATIVE_AI_API_KEY,
    openaiCompatibleBaseUrl: config.OPENAI_COMPATIBLE_BASE_URL,
    openaiCompatibleApiKey: config.OPENAI_COMPATIBLE_API_KEY,
    idleTimeoutMs: config.MODEL_IDLE_TIMEOUT_MS,
  });
}

/** 16 hex characters of SHA-256: enough to tell whether something changed. */
function shortHash(text: string): string {
  return hash('sha256', text).slice(0, 16);
}
