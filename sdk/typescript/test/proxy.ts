import { createServer, request, type IncomingMessage, type Server } from "node:http";
import { connect, type Socket } from "node:net";
import { Queue, type ByteStream } from "../src/stream.js";
import { Frames } from "../src/wire/frames.js";

/** What a hostile gateway does. */
export interface Tamper {
  /** Changes the JSON of an answer to a control call. */
  answer?(method: string, body: Record<string, unknown>): Record<string, unknown>;
  /** Returns what the client gets in place of a message of the server, number n of its channel. */
  toClient?(message: Uint8Array, n: number, fromClient: Uint8Array[]): Uint8Array[];
}

/** A gateway in front of a server, which does what it is told to. */
export class Proxy {
  tamper: Tamper = {};
  url = "";
  channels = 0;
  #server: Server;
  #open = new Set<Socket>();

  private constructor(readonly target: URL) {
    this.#server = createServer((req, res) => {
      const parts: Buffer[] = [];
      req.on("data", (p: Buffer) => parts.push(p));
      req.on("end", () => {
        const to = request(
          {
            host: target.hostname,
            port: target.port,
            path: req.url,
            method: req.method,
            headers: { ...req.headers, host: target.host },
          },
          (a) =>
            void this.#answer(
              req,
              a,
              res as unknown as { writeHead(s: number, h: object): void; end(b: Buffer): void },
            ).catch(() => req.socket.destroy()),
        );
        to.on("error", () => res.destroy());
        to.end(Buffer.concat(parts));
      });
    });
    this.#server.on("upgrade", (req: IncomingMessage, socket: Socket, head: Buffer) =>
      this.#upgrade(req, socket, head),
    );
    this.#server.on("connection", (s: Socket) => this.#note(s));
  }

  static async start(target: string): Promise<Proxy> {
    const p = new Proxy(new URL(target));
    await new Promise<void>((resolve) => p.#server.listen(0, "127.0.0.1", resolve));
    p.url = `http://127.0.0.1:${(p.#server.address() as { port: number }).port}`;
    return p;
  }

  #note(s: Socket): void {
    this.#open.add(s);
    s.on("close", () => this.#open.delete(s));
    s.on("error", () => undefined);
  }

  async #answer(
    req: IncomingMessage,
    a: IncomingMessage,
    res: { writeHead(s: number, h: object): void; end(b: Buffer): void },
  ): Promise<void> {
    const parts: Buffer[] = [];
    for await (const p of a as AsyncIterable<Buffer>) parts.push(p);
    let body = Buffer.concat(parts);
    const method = (req.url ?? "").split("/").at(-1) ?? "";
    if (this.tamper.answer && String(a.headers["content-type"]).startsWith("application/json")) {
      body = Buffer.from(
        JSON.stringify(
          this.tamper.answer(method, JSON.parse(body.toString()) as Record<string, unknown>),
        ),
      );
    }
    const { "transfer-encoding": _, ...headers } = a.headers;
    res.writeHead(a.statusCode ?? 500, { ...headers, "content-length": body.length });
    res.end(body);
  }

  #upgrade(req: IncomingMessage, client: Socket, head: Buffer): void {
    const server = connect(Number(this.target.port), this.target.hostname);
    this.#note(server);
    const over = (): void => {
      client.destroy();
      server.destroy();
    };
    client.on("close", over);
    server.on("close", over);
    const lines = [`GET ${req.url} HTTP/1.1`];
    for (let i = 0; i < req.rawHeaders.length; i += 2)
      lines.push(`${req.rawHeaders[i]}: ${req.rawHeaders[i + 1]}`);
    server.write(lines.join("\r\n") + "\r\n\r\n");
    let begun = Buffer.alloc(0);
    const onHead = (p: Buffer): void => {
      begun = Buffer.concat([begun, p]);
      const at = begun.indexOf("\r\n\r\n");
      if (at < 0) return;
      server.off("data", onHead);
      client.write(begun.subarray(0, at + 4));
      this.channels++;
      void this.#relay(client, head, server, begun.subarray(at + 4)).catch(over);
    };
    server.on("data", onHead);
  }

  async #relay(
    client: Socket,
    fromClient: Buffer,
    server: Socket,
    fromServer: Buffer,
  ): Promise<void> {
    const near = new Frames(streamOf(client, fromClient), false);
    const far = new Frames(streamOf(server, fromServer), true);
    const seen: Uint8Array[] = [];
    const up = (async () => {
      for (let m; (m = await near.next()) !== null; ) {
        seen.push(m.payload.slice());
        await far.writeBinary(m.payload);
      }
    })();
    const down = (async () => {
      for (let n = 0, m; (m = await far.next()) !== null; n++) {
        const out = this.tamper.toClient
          ? this.tamper.toClient(m.payload.slice(), n, seen)
          : [m.payload];
        for (const one of out) await near.writeBinary(one);
      }
    })();
    await Promise.race([up, down]);
    client.destroy();
    server.destroy();
  }

  /** Loses all connections. */
  cut(): void {
    for (const s of [...this.#open]) s.destroy();
  }

  close(): void {
    this.#server.close();
    this.cut();
  }
}

function streamOf(socket: Socket, first: Buffer): ByteStream {
  const queue = new Queue<Uint8Array>();
  if (first.length > 0) queue.push(first);
  socket.on("data", (p: Buffer) => queue.push(p));
  socket.on("close", () => queue.end());
  return {
    read: () => queue.next(),
    write: (b) =>
      new Promise((resolve, reject) => socket.write(b, (err) => (err ? reject(err) : resolve()))),
    close: () => {
      socket.destroy();
    },
  };
}
