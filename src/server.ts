import { existsSync } from 'node:fs';
import { type Logger, pino, stdTimeFunctions } from 'pino';
import { createServer, type Server } from './app.js';
import { type Config, ConfigError, parseConfig, secretsOf } from './config.js';
import { secretRemover } from './models/error-text.js';
import { StrayErrors } from './runtime/stray-errors.js';

/** Shorter keys can be guessed; they are taken all the same, since the choice is the operator's. */
const SHORT_KEY = 16;
/** How much longer than its grace a shutdown may take before the process ends itself, in milliseconds. */
const STOP_MARGIN_MS = 10_000;

const config = readConfig();
if (config === undefined) process.exitCode = 1;
else await run(config);

function readConfig(): Config | undefined {
  const { env } = process;
  if (env.NODE_ENV !== 'production' && existsSync('.env')) process.loadEnvFile('.env');
  try {
    return parseConfig(env);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    for (const fault of error.faults) process.stderr.write(`${fault}\n`);
    return undefined;
  }
}

async function run(settings: Config): Promise<void> {
  // Whatever a shim, tool or library puts into an error or a line of its own: no line of the log has a key in it.
  const conceal = secretRemover(secretsOf(settings));
  const log = pino({
    level: settings.LOG_LEVEL,
    timestamp: stdTimeFunctions.isoTime,
    hooks: { streamWrite: conceal },
  });
  const strays = new StrayErrors(log);
  process.on('unhandledRejection', (error) => {
    strays.report(error, 'unhandled rejection');
  });
  process.on('uncaughtException', (error) => {
    strays.report(error, 'uncaught exception');
  });
  for (const { name, key } of settings.API_KEYS ?? []) {
    if (key.length < SHORT_KEY) log.warn({ key: name }, `API key has fewer than ${SHORT_KEY} characters`);
  }
  try {
    const server = await createServer(settings, log, strays);
    stopOnSignals(server, settings, log);
    log.info({ url: await server.listen() }, 'listening');
  } catch (error) {
    log.fatal({ err: error }, 'start failed');
    process.stderr.write(`The server did not start: ${error instanceof Error ? error.message : String(error)}\n`);
    process.exit(1);
  }
}

/** The first signal drains and ends the process with 0; the second one ends it at once. */
function stopOnSignals(server: Server, settings: Config, log: Logger): void {
  let stopping = false;
  const stop = (signal: NodeJS.Signals): void => {
    if (stopping) {
      log.warn({ signal }, 'second signal, ending at once');
      process.exit(1);
    }
    stopping = true;
    log.info({ signal, graceMs: settings.SHUTDOWN_GRACE_MS }, 'draining');
    setTimeout(() => {
      log.error('shutdown took too long, ending at once');
      process.exit(1);
    }, settings.SHUTDOWN_GRACE_MS + STOP_MARGIN_MS).unref();
    server.stop().then(
      () => {
        log.info('stopped');
        process.exit(0);
      },
      (error: unknown) => {
        log.error({ err: error }, 'shutdown failed');
        process.exit(1);
      },
    );
  };
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
}
