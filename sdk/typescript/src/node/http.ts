import { Code, ConnectError, type Interceptor, type Transport } from "@connectrpc/connect";
import type { UniversalClientFn } from "@connectrpc/connect/protocol";
import { createTransport } from "@connectrpc/connect/protocol-connect";
import {
  Agent as HttpAgent,
  request as httpRequest,
  type IncomingMessage,
  type RequestOptions,
} from "node:http";
import { Agent as HttpsAgent, request as httpsRequest } from "node:https";
import { fail, TurnstoneError } from "../errors.js";
import { checkOwn, lookupHere, type Address } from "./address.js";

/** Bounds of answers, which come from a server that is not trusted. */
const maxAnswer = 4 << 20;
const bodyRoom = 1 << 20;
const maxRequest = 256 << 10;
const headTime = 10 * 60_000;
const bodyTime = 60_000;
const connectTime = 10_000;

/** Makes HTTP requests to one server. Redirections are not followed: the token would follow too. */
export class Http {
  readonly address: Address;
  #own: boolean;
  #agent: HttpAgent | HttpsAgent;

  constructor(address: Address, own: boolean) {
    this.address = address;
    this.#own = own;
    const keep = { keepAlive: true, timeout: 90_000 };
    this.#agent = address.base.protocol === "https:" ? new HttpsAgent(keep) : new HttpAgent(keep);
  }

  /** Closes idle connections. */
  close(): void {
    this.#agent.destroy();
  }

  /** Returns what a request needs beside its path. */
  async options(
    path: string,
    method: string,
    headers: Record<string, string>,
  ): Promise<RequestOptions> {
    const { base, socket } = this.address;
    if (this.#own) await checkOwn(socket);
    const where: RequestOptions = {
      method,
      headers,
      path: base.pathname.replace(/\/$/, "") + path,
    };
    if (socket !== "")
      return { ...where, socketPath: socket, headers: { ...headers, host: "server" } };
    return {
      ...where,
      protocol: base.protocol,
      hostname: base.hostname.replace(/^\[|\]$/g, ""),
      ...(base.port ? { port: base.port } : {}),
      ...(base.protocol === "http:" ? { lookup: lookupHere } : {}),
    };
  }

  /** The function of node:http that starts a request. */
  get request(): typeof httpRequest {
    return this.address.base.protocol === "https:" ? httpsRequest : httpRequest;
  }

  get agent(): HttpAgent | HttpsAgent {
    return this.#agent;
  }

  /** Returns a transport of Connect calls. */
  transport(interceptors: Interceptor[]): Transport {
    return createTransport({
      httpClient: this.#client(),
      baseUrl: this.address.base.href.replace(/\/$/, ""),
      useBinaryFormat: false,
      interceptors,
      acceptCompression: [],
      sendCompression: null,
      compressMinBytes: 1024,
      readMaxBytes: maxAnswer,
      writeMaxBytes: maxRequest,
    });
  }

  #client(): UniversalClientFn {
    const prefix = this.address.base.pathname.replace(/\/$/, "");
    return async (req) => {
      const headers: Record<string, string> = {};
      req.header.forEach((value, name) => (headers[name] = value));
      const parts: Uint8Array[] = [];
      if (req.body) for await (const p of req.body) parts.push(p);
      const body = Buffer.concat(parts);
      headers["content-length"] = String(body.length);
      const u = new URL(req.url);
      const o = await this.options(u.pathname.slice(prefix.length) + u.search, req.method, headers);
      const stream = (headers["content-type"] ?? "").startsWith("application/connect+");
      const answer = await this.#send(o, body, req.signal);
      if (answer.statusCode! >= 300 && answer.statusCode! < 400) {
        answer.destroy();
        throw fail("invalid", `redirects to ${String(answer.headers.location).slice(0, 100)}`, {
          op: "host.call",
          subject: this.address.text,
          hint: "use that address with turn host add if you trust it",
        });
      }
      const header = new Headers();
      for (let i = 0; i < answer.rawHeaders.length; i += 2) {
        header.append(answer.rawHeaders[i]!, answer.rawHeaders[i + 1]!);
      }
      return {
        status: answer.statusCode!,
        header,
        trailer: new Headers(),
        body: stream ? following(answer, this) : bounded(answer, this),
      };
    };
  }

  #send(
    o: RequestOptions,
    body: Buffer,
    signal: AbortSignal | undefined,
  ): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const req = this.request({ ...o, agent: this.#agent, ...(signal ? { signal } : {}) });
      const head = setTimeout(() => req.destroy(tooSlow(headTime)), headTime);
      req.on("socket", (s) => {
        if (!s.connecting) return;
        const late = setTimeout(() => req.destroy(tooSlow(connectTime)), connectTime);
        s.once("connect", () => clearTimeout(late));
        s.once("close", () => clearTimeout(late));
      });
      req.once("response", (a) => {
        clearTimeout(head);
        resolve(a);
      });
      req.once("error", (err) => {
        clearTimeout(head);
        reject(callError(err, signal, this));
      });
      req.end(body);
    });
  }

  /** Asks a plain HTTP port who it is: a port that speaks TLS would get a token unencrypted. */
  async greet(): Promise<void> {
    if (this.address.socket !== "" || this.address.base.protocol !== "http:") return;
    const o = await this.options("/healthz", "GET", {});
    const a = await this.#send(o, Buffer.alloc(0), undefined);
    let text = "";
    for await (const p of bounded(a, this))
      text = (text + Buffer.from(p).toString("latin1")).slice(0, 4096);
    if (a.statusCode === 400 && text.includes("HTTPS")) throw speaksTls(this);
  }

  /** Returns the error of a connection that did not come about. */
  unreached(err: unknown): TurnstoneError {
    if (err instanceof TurnstoneError) return err;
    const e = err as NodeJS.ErrnoException & { rawPacket?: Buffer };
    const raw = e.rawPacket;
    if (raw && raw[0] === 0x15 && raw[1] === 0x03) return speaksTls(this);
    const certificate = /CERT|SELF_SIGNED|ALTNAME|UNABLE_TO_(VERIFY|GET_ISSUER)/.test(e.code ?? "");
    return fail(certificate ? "integrity" : "unavailable", e.message || String(e.code), {
      op: "host.connect",
      subject: this.address.text,
      hint: certificate
        ? "name the authority's file in NODE_EXTRA_CA_CERTS if you trust it"
        : "check that the server runs and can be reached",
      cause: err,
    });
  }
}

function speaksTls(http: Http): TurnstoneError {
  return fail("invalid", "speaks TLS, and nothing was sent to it", {
    op: "host.connect",
    subject: http.address.text,
    hint: "write https:// and the name of its certificate in the address",
  });
}

function tooSlow(ms: number): TurnstoneError {
  return fail("timeout", `is not complete after ${ms / 1000} s`, {
    op: "host.call",
    subject: "the answer",
    hint: "check that the server runs and can be reached",
  });
}

/** Errors that Connect passes on: it knows its own class only. */
function callError(err: unknown, signal: AbortSignal | undefined, http: Http): ConnectError {
  if (signal?.aborted)
    return new ConnectError(
      "canceled by the caller",
      Code.Canceled,
      undefined,
      undefined,
      signal.reason,
    );
  const own = http.unreached(err);
  return new ConnectError(own.message, Code.Unavailable, undefined, undefined, own);
}

/** The body of a unary answer, bounded in bytes and in time. */
async function* bounded(a: IncomingMessage, http: Http): AsyncIterable<Uint8Array> {
  let left = maxAnswer + bodyRoom;
  const late = setTimeout(() => a.destroy(tooSlow(bodyTime)), bodyTime);
  try {
    for await (const p of a as AsyncIterable<Buffer>) {
      left -= p.length;
      if (left < 0) {
        throw fail("integrity", `has more than ${maxAnswer + bodyRoom} bytes`, {
          op: "host.call",
          subject: "the answer",
          hint: "check the server's address",
        });
      }
      yield p;
    }
  } catch (err) {
    throw callError(err, undefined, http);
  } finally {
    clearTimeout(late);
  }
}

/** The body of a stream, which is as long as its caller wants; Connect bounds its messages. */
async function* following(a: IncomingMessage, http: Http): AsyncIterable<Uint8Array> {
  try {
    for await (const p of a as AsyncIterable<Buffer>) yield p;
  } catch (err) {
    throw callError(err, undefined, http);
  }
}
