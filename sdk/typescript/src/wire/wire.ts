import { fromUtf8 } from "../bytes.js";
import { aborted, fail, kindOf, TurnstoneError } from "../errors.js";
import { holding, type ByteStream } from "../stream.js";
import { ClosedError, Frames, ProtocolError } from "./frames.js";
import type { Commands, Events } from "./protocol.js";
import {
  frameCredit,
  frameData,
  frameEnd,
  frameHeader,
  frameReset,
  parseFrame,
  Receiver,
  Sender,
  type FrameWriter,
} from "./streams.js";

const maxDepth = 64;
const maxValues = 1 << 18;
const maxRefused = 256;

const brokenHint = "another program in the sandbox acts as its agent; do not trust this sandbox";

interface Waiting {
  method: string;
  resolve(v: unknown): void;
  reject(err: unknown): void;
  given: boolean;
}

type Handler<E extends keyof Events> = (event: Events[E]) => void;

/** A client's end of a connection of the wire: docs/wire.md. */
export class Wire implements FrameWriter {
  #frames: Frames;
  #lastId = 0;
  #lastStream = 0;
  #calls = new Map<number, Waiting>();
  #receivers = new Map<number, Receiver>();
  #senders = new Map<number, Sender>();
  #refused = new Set<number>();
  #handlers = new Map<string, Set<(event: never) => void>>();
  #ended: TurnstoneError | undefined;
  #over: (why: TurnstoneError) => void = () => undefined;
  /** Resolves with the reason when the connection has ended. */
  readonly closed: Promise<TurnstoneError>;

  constructor(stream: ByteStream) {
    this.#frames = new Frames(stream, false);
    this.closed = new Promise((resolve) => {
      this.#over = resolve;
    });
    void this.#readLoop();
  }

  /** Why the connection has ended; undefined before. */
  get ended(): TurnstoneError | undefined {
    return this.#ended;
  }

  /** Sends a command and waits for its answer. The command is queued before this returns. */
  call<M extends keyof Commands>(
    method: M,
    params: Commands[M]["params"],
    signal?: AbortSignal,
  ): Promise<Commands[M]["result"]> {
    if (this.#ended) return Promise.reject(this.#dead(method));
    if (signal?.aborted) return Promise.reject(aborted(signal, method));
    const id = ++this.#lastId;
    const answer = new Promise<Commands[M]["result"]>((resolve, reject) => {
      const w: Waiting = { method, resolve: resolve as (v: unknown) => void, reject, given: false };
      this.#calls.set(id, w);
      if (signal) {
        const stop = (): void => {
          w.given = true;
          reject(aborted(signal, method));
        };
        signal.addEventListener("abort", stop, { once: true });
        const drop = (): void => signal.removeEventListener("abort", stop);
        w.resolve = (v) => (drop(), (resolve as (v: unknown) => void)(v));
        w.reject = (err) => (drop(), reject(err));
      }
      this.#frames.writeText(JSON.stringify({ id, method, params })).catch((err: unknown) => {
        if (!(err instanceof TurnstoneError) || err.kind !== "invalid") this.#end(err);
        this.#calls.delete(id);
        w.reject(this.#ended ? this.#dead(method) : err);
      });
    });
    return holding(answer);
  }

  /** Sends a command whose answer is of no interest. */
  post<M extends keyof Commands>(method: M, params: Commands[M]["params"]): void {
    this.call(method, params).catch(() => undefined);
  }

  /** Calls handler for each event of a kind, in order, until the returned function is called. */
  on<E extends keyof Events>(name: E, handler: Handler<E>): () => void {
    let all = this.#handlers.get(name);
    if (!all) this.#handlers.set(name, (all = new Set()));
    all.add(handler as (event: never) => void);
    return () => all.delete(handler as (event: never) => void);
  }

  /** Opens a stream to read, for a command that sends to it. */
  receiver(): Receiver {
    const r = new Receiver(this, ++this.#lastStream);
    if (this.#ended) r.fail(this.#dead("wire.stream"));
    else this.#receivers.set(r.id, r);
    return r;
  }

  /** Opens a stream to write, for a command that receives from it: write after the command. */
  sender(): Sender {
    const s: Sender = new Sender(this, ++this.#lastStream, () => this.#senders.delete(s.id));
    if (this.#ended) s.fail(this.#dead("wire.stream"));
    else this.#senders.set(s.id, s);
    return s;
  }

  writeFrame(kind: number, stream: number, offset: number, data?: Uint8Array): Promise<void> {
    if (this.#ended) return Promise.reject(this.#dead("wire.stream"));
    const head = frameHeader(kind, stream, offset);
    const wrote = data ? this.#frames.writeBinary(head, data) : this.#frames.writeBinary(head);
    return wrote.catch((err: unknown) => {
      this.#end(err);
      throw this.#dead("wire.stream");
    });
  }

  /** Ends the connection at once. */
  close(): void {
    this.#end(new Error("closed by this side"));
  }

  async #readLoop(): Promise<void> {
    try {
      for (;;) {
        const m = await this.#frames.next();
        if (m === null) throw new Error("the connection ended");
        if (this.#ended) return;
        if (m.text) this.#message(m.payload);
        else this.#frame(m.payload);
      }
    } catch (err) {
      if (err instanceof ProtocolError && !this.#ended) {
        void this.#frames.farewell(err.code, err.message).catch(() => undefined);
      }
      this.#end(err);
    }
  }

  #end(why: unknown): void {
    if (this.#ended) return;
    this.#ended = deadError(why);
    for (const w of this.#calls.values()) w.reject(this.#dead(w.method));
    for (const r of this.#receivers.values()) r.fail(this.#dead("wire.stream"));
    for (const s of this.#senders.values()) s.fail(this.#dead("wire.stream"));
    this.#calls.clear();
    this.#receivers.clear();
    this.#senders.clear();
    this.#frames.close();
    this.#over(this.#ended);
  }

  #dead(op: string): TurnstoneError {
    const e = this.#ended!;
    return fail(e.kind, e.message, {
      op,
      hint: e.hint,
      cause: e.cause,
      ...(e.fault ? { fault: e.fault } : {}),
    });
  }

  #message(p: Uint8Array): void {
    measure(p);
    let m: Record<string, unknown>;
    try {
      m = JSON.parse(fromUtf8(p)) as Record<string, unknown>;
    } catch {
      throw new ProtocolError("a message is not JSON");
    }
    if (typeof m !== "object" || m === null || Array.isArray(m)) {
      throw new ProtocolError("a message is not a JSON object of the protocol");
    }
    if (m["id"] !== undefined) {
      if (m["method"] !== undefined) throw new ProtocolError("the other side sends a command");
      this.#answer(m);
    } else if (typeof m["method"] === "string") {
      for (const h of this.#handlers.get(m["method"]) ?? []) h((m["params"] ?? {}) as never);
    } else {
      throw new ProtocolError("a message has neither id nor method");
    }
  }

  #answer(m: Record<string, unknown>): void {
    if ((m["result"] === undefined) === (m["error"] === undefined)) {
      throw new ProtocolError("an answer does not have exactly one of result and error");
    }
    const id = m["id"] as number;
    const w = this.#calls.get(id);
    if (!w) throw new ProtocolError("an answer to a command that does not wait for an answer");
    this.#calls.delete(id);
    if (w.given) return; // the caller gave up
    if (m["error"] !== undefined) w.reject(replyError(w.method, m["error"]));
    else w.resolve(m["result"]);
  }

  #frame(p: Uint8Array): void {
    const f = parseFrame(p);
    if (f.channel !== 0)
      throw new ProtocolError(
        `a binary frame names the session ${f.channel}, which does not exist`,
      );
    if (f.stream > this.#lastStream) {
      throw new ProtocolError(`a binary frame names stream ${f.stream}, which was never opened`);
    }
    const s = this.#senders.get(f.stream);
    const r = this.#receivers.get(f.stream);
    if (s && (f.kind === frameData || f.kind === frameEnd)) {
      throw new ProtocolError(
        `a binary frame has data for stream ${f.stream}, which has the opposite direction`,
      );
    }
    if (r && f.kind !== frameCredit) {
      if (r.take(f)) this.#receivers.delete(f.stream);
    } else if (s && (f.kind === frameCredit || f.kind === frameReset)) {
      s.take(f);
    } else if (f.kind === frameData) {
      this.#refuse(f.stream);
    } else if (f.kind === frameEnd || f.kind === frameReset) {
      this.#refused.delete(f.stream);
    }
  }

  /** Answers data of a closed stream with a reset, once. */
  #refuse(stream: number): void {
    if (this.#refused.has(stream)) return;
    if (this.#refused.size >= maxRefused)
      throw new ProtocolError("data arrives for too many closed streams");
    this.#refused.add(stream);
    this.writeFrame(frameReset, stream, 0).catch(() => undefined);
  }
}

function deadError(why: unknown): TurnstoneError {
  const subject = "the connection";
  if (why instanceof ProtocolError) {
    return fail("integrity", `the other side broke the protocol: ${why.message}`, {
      hint: brokenHint,
      cause: why,
    });
  }
  if (why instanceof ClosedError && why.code > 1001) {
    return fail("invalid", why.message, { subject, cause: why });
  }
  if (why instanceof TurnstoneError && why.kind === "integrity") return why;
  const text = why instanceof Error ? why.message : String(why);
  return fail("dead", `the connection is gone: ${text}`, { hint: "try again", cause: why });
}

/** Throws for a message that is nested too deep, or would take too much memory. */
export function measure(p: Uint8Array): void {
  let level = 0;
  let values = 0;
  let quoted = false;
  for (let i = 0; i < p.length; i++) {
    const b = p[i]!;
    if (quoted) {
      if (b === 0x5c) i++;
      else if (b === 0x22) quoted = false;
    } else if (b === 0x22) quoted = true;
    else if (b === 0x7b || b === 0x5b) {
      values++;
      if (++level > maxDepth)
        throw new ProtocolError(`a message is nested deeper than ${maxDepth}`);
    } else if (b === 0x7d || b === 0x5d) level--;
    else if (b === 0x2c) values++;
  }
  if (values > maxValues) throw new ProtocolError(`a message has more than ${maxValues} values`);
}

function clip(value: unknown, most: number): string {
  return typeof value === "string" ? value.slice(0, most) : "";
}

/** Returns the error of a rejected command. */
function replyError(method: string, raw: unknown): TurnstoneError {
  const e = (typeof raw === "object" && raw !== null ? raw : {}) as Record<string, unknown>;
  const d = (typeof e["data"] === "object" && e["data"] !== null ? e["data"] : {}) as Record<
    string,
    unknown
  >;
  const kind =
    e["data"] === undefined && (e["code"] === -32601 || e["code"] === -32602)
      ? "invalid"
      : kindOf(d["kind"]);
  return fail(kind, clip(d["cause"], 4000) || clip(e["message"], 4000), {
    op: clip(d["op"], 200) || method,
    subject: clip(d["subject"], 1000),
    hint: clip(d["hint"], 1000),
  });
}
