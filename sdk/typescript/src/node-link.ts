import type { Server } from "./control/server.js";
import { aborted, fail, textOf, TurnstoneError } from "./errors.js";
import { fromUtf8 } from "./bytes.js";
import { within } from "./files.js";
import { Journal, type Tell } from "./journal.js";
import { camel } from "./receipt.js";
import type { Commands } from "./wire/protocol.js";
import type { Wire } from "./wire/wire.js";

const maxReport = 1 << 30;

/** A connection to the node of a session, which is made when it is used, and again when it was lost. */
export class NodeLink {
  #open: (signal?: AbortSignal) => Promise<Wire>;
  #wire: Promise<Wire> | undefined;
  #closed = false;

  constructor(open: (signal?: AbortSignal) => Promise<Wire>) {
    this.#open = open;
  }

  /** Returns the connection. */
  async connect(signal?: AbortSignal): Promise<Wire> {
    if (this.#closed)
      throw fail("unavailable", "is closed", { op: "remote.connect", subject: "the client" });
    if (signal?.aborted) throw aborted(signal, "remote.connect");
    const present = this.#wire && (await this.#wire.catch(() => undefined));
    if (present && !present.ended) return present;
    // callers share one connection: the signal of one of them does not end it
    this.#wire = this.#open();
    this.#wire.catch(() => undefined);
    return within(this.#wire, () => undefined, signal);
  }

  close(): void {
    this.#closed = true;
    void this.#wire?.then((w) => w.close()).catch(() => undefined);
  }

  /** Calls a command. */
  async call<M extends keyof Commands>(
    method: M,
    params: Commands[M]["params"],
    signal?: AbortSignal,
  ): Promise<Commands[M]["result"]> {
    return (await this.connect(signal)).call(method, params, signal);
  }

  /** Calls a command that sends bytes to the stream that the parameters name, and returns both. */
  async receive<M extends keyof Commands>(
    method: M,
    params: (stream: number) => Commands[M]["params"],
    signal?: AbortSignal,
  ): Promise<{ bytes: Uint8Array; result: Commands[M]["result"] }> {
    const wire = await this.connect(signal);
    const from = wire.receiver();
    const answer = wire.call(method, params(from.id), signal);
    answer.catch(() => from.close());
    const bytes = await within(from.readAll(maxReport), () => from.close(), signal).catch(
      async (err: unknown) => {
        from.close();
        await answer;
        throw err;
      },
    );
    return { bytes, result: await answer };
  }

  /** Calls a command that sends a report, and returns it with the names of JavaScript. */
  async report<T, M extends keyof Commands>(
    method: M,
    params: (stream: number) => Commands[M]["params"],
    signal?: AbortSignal,
  ): Promise<T> {
    const { bytes } = await this.receive(method, params, signal);
    return camel(parseReport(bytes)) as T;
  }

  /** Calls a command with progress; when the signal ends, it is canceled, and its end is read too. */
  async job<M extends keyof Commands>(
    method: M,
    params: (journal: number, hold: number) => Commands[M]["params"],
    tell?: Tell,
    signal?: AbortSignal,
  ): Promise<Record<string, unknown>> {
    const wire = await this.connect(signal);
    const journal = new Journal(tell);
    const from = wire.receiver();
    const hold = wire.sender();
    const stop = (): void => hold.abort("canceled");
    try {
      const answer = wire.call(method, params(from.id, hold.id));
      answer.catch(() => from.close());
      signal?.addEventListener("abort", stop, { once: true });
      if (signal?.aborted) stop();
      await journal.read(from).catch(async (err: unknown) => {
        hold.abort(textOf(err));
        throw err;
      });
      from.close();
      await answer;
      if (signal?.aborted) throw aborted(signal, method);
      const { report, error } = journal.result<Record<string, unknown>>();
      if (error) throw error;
      return report;
    } finally {
      signal?.removeEventListener("abort", stop);
      hold.abort();
    }
  }
}

/** Returns the value of JSON of a node, which may be another than it says. */
export function parseReport(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(fromUtf8(bytes));
  } catch (err) {
    throw fail("integrity", textOf(err), {
      op: "remote.report",
      subject: "the node's answer",
      hint: "use a client and a server of the same version",
    });
  }
}

/**
 * Returns a link to the node of a session. nodeOf returns the node if this client has used the session:
 * a controller learns of a new one a moment later.
 */
export function sessionLink(
  server: () => Promise<Server>,
  session: string,
  nodeOf: (session: string) => string | undefined,
): NodeLink {
  return new NodeLink(async (signal) => {
    const s = await server();
    const node = nodeOf(session);
    if (node) return s.node(node, signal);
    try {
      return await s.session(session, signal);
    } catch (err) {
      if (err instanceof TurnstoneError && err.kind === "not_found") return s.node("", signal);
      throw err;
    }
  });
}
