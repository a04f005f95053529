import { Code, ConnectError } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { givenPins } from "./attest/pins.js";
import { KeyPair } from "./channel/key.js";
import { TurnstoneClient, type ContextOptions } from "./client.js";
import { aborted, fail } from "./errors.js";
import { Queue, type ByteStream } from "./stream.js";

export * from "./common.js";

/** Options of a client in a browser, which keeps nothing by itself. */
export interface TurnstoneOptions extends ContextOptions {
  /** The server, https://…, which has to allow this page's origin: listen.origins. */
  host: string;
  token: string;
  /** Keys of nodes to trust, "SHA256:…" or "ssh-ed25519 …". */
  pins?: string[];
  /** The operator's root to trust, "ssh-ed25519 …", in place of pins. */
  root?: string;
  /**
   * The X25519 private key of this client, of 32 bytes; default: a new one. A session belongs to the
   * key that made it: keep the key if the session is to be used later.
   */
  key?: Uint8Array;
}

/** The subprotocol of channels, and what the token follows: a browser cannot set headers. */
const protocol = "turnstone.v1";
const tokenPrefix = "turnstone.token.";
const highWater = 1 << 20;
/** Bounds of what comes from a server that is not trusted: an answer, and messages that nobody has read. */
const maxAnswer = 5 << 20;
const maxUnread = 64 << 20;

/** A client in a browser: one client is one context. */
export class Turnstone extends TurnstoneClient {
  constructor(o: TurnstoneOptions) {
    const base = new URL(o.host);
    const local = /^(localhost|127\.0\.0\.1|\[::1\])$/.test(base.hostname);
    if (base.protocol !== "https:" && !(base.protocol === "http:" && local)) {
      throw fail("invalid", "would carry the token unencrypted", {
        op: "host.address",
        subject: o.host,
      });
    }
    const address = base.href.replace(/\/+$/, "");
    const key = o.key ? KeyPair.fromPrivate(o.key) : KeyPair.generate();
    const pins = givenPins(o.pins ?? [], o.root, async () => new Set<string>());
    super(
      {
        connect: async () => ({
          address,
          key,
          own: false,
          transport: (interceptors) =>
            createConnectTransport({
              baseUrl: address,
              interceptors,
              fetch: (input, init) => ask(input, init, address),
            }),
          token: async () => o.token,
          greet: async () => undefined,
          dial: (path, token, signal) => dial(address + path, token, signal),
          pins,
        }),
        close: () => undefined,
        trust: async () =>
          (o.pins ?? []).filter((p) => p.startsWith("ssh-")).map((p) => `node=${p}`),
      },
      o,
    );
  }
}

/** Makes a control call. */
async function ask(
  input: RequestInfo | URL,
  init: RequestInit | undefined,
  address: string,
): Promise<Response> {
  let a: Response;
  try {
    a = await fetch(input, { ...init, redirect: "error", credentials: "omit" });
  } catch (err) {
    if (init?.signal?.aborted) throw err;
    const own = fail("unavailable", "cannot be reached from this page, or redirects", {
      op: "host.connect",
      subject: address,
      hint: "check that the server runs, and that listen.origins has this page's origin",
      cause: err,
    });
    throw new ConnectError(own.message, Code.Unavailable, undefined, undefined, own);
  }
  if (!a.body || (a.headers.get("content-type") ?? "").startsWith("application/connect+")) return a;
  let left = maxAnswer;
  const body = a.body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(part, to) {
        left -= part.length;
        if (left >= 0) to.enqueue(part);
        else
          to.error(
            fail("integrity", `has more than ${maxAnswer} bytes`, {
              op: "host.call",
              subject: "the answer",
              hint: "check the server's address",
            }),
          );
      },
    }),
  );
  return new Response(body, { status: a.status, statusText: a.statusText, headers: a.headers });
}

/** Opens the WebSocket at a URL of a server. */
export function dial(url: string, token: string, signal?: AbortSignal): Promise<ByteStream> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(aborted(signal, "websocket.dial"));
      return;
    }
    const socket = new WebSocket(url.replace(/^http/, "ws"), [
      protocol,
      ...(token ? [tokenPrefix + token] : []),
    ]);
    socket.binaryType = "arraybuffer";
    const stop = (): void => {
      socket.close();
      reject(aborted(signal!, "websocket.dial"));
    };
    signal?.addEventListener("abort", stop, { once: true });
    const refused = (): void => {
      signal?.removeEventListener("abort", stop);
      reject(
        fail("unavailable", "the channel does not open", {
          op: "websocket.dial",
          hint: "check that the server runs, what the token grants, and that listen.origins has this page's origin",
        }),
      );
    };
    socket.addEventListener("error", refused, { once: true });
    socket.addEventListener("close", refused, { once: true });
    socket.addEventListener(
      "open",
      () => {
        signal?.removeEventListener("abort", stop);
        resolve(new BrowserStream(socket));
      },
      { once: true },
    );
  });
}

/** The binary messages of a browser's WebSocket. */
class BrowserStream implements ByteStream {
  #socket: WebSocket;
  #queue = new Queue<Uint8Array>();
  #unread = 0;

  constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.addEventListener("message", (e: MessageEvent) => {
      if (!(e.data instanceof ArrayBuffer)) {
        this.#refuse("a text message in a stream of bytes");
        return;
      }
      this.#unread += e.data.byteLength;
      // a browser cannot be told to read no more
      if (this.#unread > maxUnread) this.#refuse(`more than ${maxUnread} bytes wait to be read`);
      else this.#queue.push(new Uint8Array(e.data));
    });
    socket.addEventListener("close", () => this.#queue.end());
    socket.addEventListener("error", () => this.#queue.end(new Error("the connection failed")));
  }

  #refuse(why: string): void {
    this.#queue.clear();
    this.#queue.end(new Error(why));
    this.#socket.close();
  }

  async read(): Promise<Uint8Array | null> {
    const bytes = await this.#queue.next();
    this.#unread -= bytes?.length ?? 0;
    return bytes;
  }

  async write(bytes: Uint8Array): Promise<void> {
    if (this.#socket.readyState !== WebSocket.OPEN) throw new Error("the connection is closed");
    this.#socket.send(bytes as Uint8Array<ArrayBuffer>);
    // a browser does not tell when it has sent something
    while (this.#socket.bufferedAmount > highWater && this.#socket.readyState === WebSocket.OPEN) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  close(): void {
    this.#socket.close();
    this.#queue.end();
  }
}
