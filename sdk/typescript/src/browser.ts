import { createConnectTransport } from "@connectrpc/connect-web";
import { givenPins } from "./attest/pins.js";
import { KeyPair } from "./channel/key.js";
import { TurnstoneClient, type ContextOptions } from "./client.js";
import { aborted, fail } from "./errors.js";
import { Queue, type ByteStream } from "./stream.js";

export * from "./common.js";

/** Options of a client in a browser, which keeps nothing by itself. */
export interface TurnstoneOptions extends ContextOptions {
  /** The server, https://…, which has to allow this page's origin: gateway.origins. */
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
              fetch: (input, init) =>
                fetch(input, { ...init, redirect: "error", credentials: "omit" }),
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
          hint: "check that the server runs, what the token grants, and that gateway.origins has this page's origin",
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

  constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.addEventListener("message", (e: MessageEvent) => {
      if (e.data instanceof ArrayBuffer) this.#queue.push(new Uint8Array(e.data));
      else this.#queue.end(new Error("a text message in a stream of bytes"));
    });
    socket.addEventListener("close", () => this.#queue.end());
    socket.addEventListener("error", () => this.#queue.end(new Error("the connection failed")));
  }

  read(): Promise<Uint8Array | null> {
    return this.#queue.next();
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
