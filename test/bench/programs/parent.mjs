/** What the bench gave this process to do. */
export const options = JSON.parse(process.argv[2] ?? '{}');

/** Tells the bench something; a program that nobody started with a channel just runs. */
export function tell(message) {
  process.send?.(message);
}

/** Listens on a free port of the loopback and tells the bench which. */
export function listen(server) {
  server.listen({ host: '127.0.0.1', port: 0, backlog: 16_384 }, () => {
    tell({ url: `http://127.0.0.1:${server.address().port}` });
  });
}

// Nothing outlives the bench, however it ended.
process.on('disconnect', () => process.exit(0));
