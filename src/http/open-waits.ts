import type { FastifyReply } from 'fastify';

/** A request that waits for a run: why its waiting may end before the run does. */
export interface OpenWait {
  /** Aborted when the client has gone or the server closes. */
  readonly signal: AbortSignal;
  readonly clientGone: boolean;
  end(): void;
}

/** The requests that wait (`Prefer: wait`), so that a server that closes need not wait for them. */
export class OpenWaits {
  readonly #open = new Set<AbortController>();
  #closed = false;

  /** @param onGone called once when the client goes before it was answered */
  begin(reply: FastifyReply, onGone: () => void): OpenWait {
    const controller = new AbortController();
    // Not the response's `close`, of which one that waits for another on its connection does not hear.
    const { socket } = reply.request.raw;
    let gone = false;
    // Not `request.signal`: that one aborts as soon as the body of a POST was read.
    const noticeClose = (): void => {
      if (reply.raw.writableEnded) return;
      gone = true;
      controller.abort();
      onGone();
    };
    socket.once('close', noticeClose);
    this.#open.add(controller);
    if (this.#closed) controller.abort();
    // It may have gone while the change that it asked for was made; then nothing is emitted any more.
    if (socket.destroyed) noticeClose();
    return {
      signal: controller.signal,
      get clientGone() {
        return gone;
      },
      end: () => {
        socket.off('close', noticeClose);
        this.#open.delete(controller);
      },
    };
  }

  /** Ends all waits, also those that begin later: they are answered with the run as it is. */
  close(): void {
    this.#closed = true;
    for (const controller of this.#open) controller.abort();
  }
}
