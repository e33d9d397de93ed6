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

/** Does what the bench asks for, and sends each result back under its number. */
export function onCommands(commands) {
  process.on('message', ({ number, command, input }) => {
    commands[command](input).then(
      (result) => tell({ number, result }),
      (error) => tell({ number, error: error?.stack ?? String(error) }),
    );
  });
}

// Nothing outlives the bench, however it ended.
process.on('disconnect', () => process.exit(0));
