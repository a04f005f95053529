import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import { random, toBase64 } from "../bytes.js";
import { aborted, fail, TurnstoneError } from "../errors.js";
import { Queue, type ByteStream } from "../stream.js";
import { ClosedError, Frames, ProtocolError } from "../wire/frames.js";
import type { Http } from "./http.js";

const handshakeTime = 30_000;
const pingTime = 30_000;
const silences = 4;

/** The bytes of a socket of Node.js. */
class SocketStream implements ByteStream {
  #socket: Socket;
  #queue = new Queue<Uint8Array>();
  #failed: Error | undefined;

  constructor(socket: Socket, head: Buffer) {
    this.#socket = socket;
    if (head.length > 0) this.#queue.push(head);
    socket.on("data", (p: Buffer) => {
      this.#queue.push(p);
      if (this.#queue.size > 16) socket.pause();
    });
    socket.on("end", () => this.#queue.end());
    socket.on("error", (err) => {
      this.#failed = err;
      this.#queue.end(err);
    });
    socket.on("close", () => this.#queue.end());
  }

  async read(): Promise<Uint8Array | null> {
    if (this.#queue.size <= 1 && this.#socket.isPaused()) this.#socket.resume();
    return this.#queue.next();
  }

  write(bytes: Uint8Array): Promise<void> {
    const s = this.#socket;
    if (s.destroyed || !s.writable)
      return Promise.reject(this.#failed ?? new Error("the connection is closed"));
    if (s.write(bytes)) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const done = (err?: Error): void => {
        s.off("drain", onDrain);
        s.off("close", onClose);
        if (err) reject(err);
        else resolve();
      };
      const onDrain = (): void => done();
      const onClose = (): void => done(this.#failed ?? new Error("the connection is closed"));
      s.on("drain", onDrain);
      s.on("close", onClose);
    });
  }

  close(): void {
    this.#socket.destroy();
    this.#queue.end();
  }
}

/** A byte stream in the binary messages of a WebSocket (RFC 6455), with pings. */
export class WebSocketStream implements ByteStream {
  #frames: Frames;
  #raw: ByteStream;
  #timer: NodeJS.Timeout;
  #heard = true;
  #silent = 0;
  #dead: TurnstoneError | undefined;

  constructor(raw: ByteStream) {
    this.#raw = raw;
    this.#frames = new Frames(raw, true);
    this.#timer = setInterval(() => this.#ping(), pingTime);
    this.#timer.unref();
  }

  #ping(): void {
    this.#silent = this.#heard ? 0 : this.#silent + 1;
    this.#heard = false;
    if (this.#silent >= silences) {
      this.#dead = fail("dead", "the other side answers no ping", {
        op: "websocket.read",
        hint: "connect again",
      });
      this.close();
      return;
    }
    this.#frames.ping().catch(() => undefined);
  }

  async read(): Promise<Uint8Array | null> {
    for (;;) {
      let m;
      try {
        m = await this.#frames.next(() => {
          this.#heard = true;
        });
      } catch (err) {
        clearInterval(this.#timer);
        if (err instanceof ClosedError) return null;
        throw this.#dead ?? err;
      }
      this.#heard = true;
      if (m === null) {
        clearInterval(this.#timer);
        if (this.#dead) throw this.#dead;
        return null;
      }
      if (m.text) throw new ProtocolError("a text message in a stream of bytes");
      if (m.payload.length > 0) return m.payload;
    }
  }

  /** Each message has at most 64 KiB and a header. */
  async write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; at += maxMessage) {
      await this.#frames.writeBinary(bytes.subarray(at, at + maxMessage));
    }
  }

  close(): void {
    clearInterval(this.#timer);
    this.#raw.close();
  }
}

const maxMessage = 64 << 10;

/** Opens the WebSocket at a path of a server. */
export async function dialWebSocket(
  http: Http,
  path: string,
  token: string,
  signal?: AbortSignal,
): Promise<ByteStream> {
  const key = toBase64(random(16));
  const o = await http.options(path, "GET", {
    connection: "Upgrade",
    upgrade: "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": key,
    ...(token ? { authorization: `Bearer ${token}` } : {}),
  });
  return new Promise((resolve, reject) => {
    const req = http.request({ ...o, agent: false });
    const late = setTimeout(() => {
      req.destroy(
        fail("timeout", "the server answers too late", {
          op: "websocket.dial",
          subject: http.address.text,
        }),
      );
    }, handshakeTime);
    const stop = (): void => {
      req.destroy(aborted(signal!, "websocket.dial"));
    };
    const settle = (): void => {
      clearTimeout(late);
      signal?.removeEventListener("abort", stop);
    };
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    req.once("error", (err) => {
      settle();
      reject(http.unreached(err));
    });
    req.once("response", (a) => {
      settle();
      a.destroy();
      reject(refused(a, http));
    });
    req.once("upgrade", (a: IncomingMessage, socket: Socket, head: Buffer) => {
      settle();
      const want = createHash("sha1")
        .update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
        .digest("base64");
      if (
        a.headers["sec-websocket-accept"] !== want ||
        a.headers["sec-websocket-extensions"] !== undefined ||
        a.headers["sec-websocket-protocol"] !== undefined
      ) {
        socket.destroy();
        reject(
          fail("integrity", "the answer is not for this request", {
            op: "websocket.dial",
            subject: http.address.text,
          }),
        );
        return;
      }
      socket.setNoDelay(true);
      socket.unref(); // what waits for an answer keeps the process alive
      resolve(new WebSocketStream(new SocketStream(socket, head)));
    });
    req.end();
  });
}

/** Returns the error of a WebSocket that the server refused. */
function refused(a: IncomingMessage, http: Http): TurnstoneError {
  const code = a.statusCode ?? 0;
  const say = (
    kind: "unavailable" | "denied" | "not_found" | "invalid",
    hint: string,
  ): TurnstoneError =>
    fail(kind, `answers ${code} ${a.statusMessage ?? ""}`.trim(), {
      op: "websocket.dial",
      subject: http.address.text,
      hint,
    });
  if (code === 401 || code === 403) return say("denied", "check the token, and what it grants");
  if (code === 404) return say("not_found", "check the address, and that the object exists");
  if (code >= 400 && code < 500 && code !== 429)
    return say("invalid", "check the token and the server's address");
  return say("unavailable", "try again");
}
