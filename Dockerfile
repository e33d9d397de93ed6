FROM node:24-bookworm-slim AS build
WORKDIR /build
# better-sqlite3 is compiled where no prebuilt binary fits.
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install -y --no-install-recommends python3 make g++ \
  && rm -rf /var/lib/apt/lists/*
COPY package.json package-lock.json ./
RUN npm ci
COPY tsconfig.json ./
COPY .config/prune-dist.mjs .config/
COPY src src
COPY shims shims
RUN npm run build
RUN npm prune --omit=dev

FROM node:24-bookworm-slim
WORKDIR /app
COPY --from=build /build/package.json ./
COPY --from=build /build/node_modules node_modules
COPY --from=build /build/dist dist
# /app/my-shims is where shims of your own are mounted; /data must be writable by the server.
RUN mkdir -p /app/my-shims /data && chown node:node /data
ENV NODE_ENV=production HOST=0.0.0.0 PORT=8080 DATA_DIR=/data SHIMS_DIR=/app/my-shims
USER node
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT}/healthz`).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# Exec form: the server is process 1 and gets SIGTERM itself. It needs API_KEYS, or AUTH=none, since HOST is not loopback.
CMD ["node", "dist/src/server.js"]
