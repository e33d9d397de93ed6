import fp from 'fastify-plugin';
import { collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { openAnswers, textAnswer } from './answers.js';

export interface MetricsOptions {
  /** How many runs there are now by status, e.g. `{ queued: 3, running: 12 }`; asked for at each scrape. */
  readonly runCounts: () => Readonly<Record<string, number>>;
  /** For how long the stillest of the running runs has written nothing. */
  readonly silenceSeconds?: () => number;
}

/** Seconds; the long ones are waits and streams. */
const BUCKETS = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 600];

/** Measures every request, and answers `GET /metrics` in Prometheus' text format. */
export const metrics = fp<MetricsOptions>(
  async (app, { runCounts, silenceSeconds }) => {
    const registry = new Registry();
    const registers = [registry];
    collectDefaultMetrics({ register: registry });
    const duration = new Histogram({
      name: 'shimline_http_request_duration_seconds',
      help: 'Requests by route and status; a stream counts when it has ended.',
      labelNames: ['method', 'route', 'status'],
      buckets: BUCKETS,
      registers,
    });
    const runs = new Gauge({
      name: 'shimline_runs',
      help: 'Runs by status.',
      labelNames: ['status'],
      registers,
      collect() {
        runs.reset();
        for (const [status, count] of Object.entries(runCounts())) runs.set({ status }, count);
      },
    });

    if (silenceSeconds !== undefined) {
      const silence = new Gauge({
        name: 'shimline_run_silence_seconds',
        help: 'How long the stillest of the running runs has written nothing: a wedged one is seen by it.',
        registers,
        collect: () => {
          silence.set(silenceSeconds());
        },
      });
    }

    // One for each method, route and status: to find a series by its labels costs more than to add to it.
    const series = new Map<string, Histogram.Internal<string>>();
    const seriesOf = (method: string, route: string, status: number): Histogram.Internal<string> => {
      const key = `${method} ${status} ${route}`;
      const known = series.get(key);
      if (known !== undefined) return known;
      const made = duration.labels(method, route, String(status));
      series.set(key, made);
      return made;
    };
    app.addHook('onResponse', (request, reply, done) => {
      // The pattern, never the path: ids in labels would make a series each.
      const { method, routeOptions, log } = request;
      const route = routeOptions.url ?? 'none';
      const { statusCode: status } = reply.raw;
      const ms = reply.elapsedTime;
      seriesOf(method, route, status).observe(ms / 1000);
      log.debug({ method, route, status, ms }, 'request answered');
      done();
    });

    const schema = {
      tags: ['operations'],
      security: [],
      summary: "Metrics in Prometheus' text format",
      response: openAnswers({ 200: textAnswer('The metrics.') }),
    };
    app.get('/metrics', { schema }, async (_request, reply) => {
      reply.type(registry.contentType);
      return registry.metrics();
    });

    app.addHook('onClose', async () => {
      registry.clear();
    });
  },
  { name: 'metrics' },
);
