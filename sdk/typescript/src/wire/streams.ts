import { fail, TurnstoneError } from "../errors.js";
import { holding, Queue } from "../stream.js";
import { frameHead, ProtocolError } from "./frames.js";

/** Bytes of a stream in transit that its reader has not taken. */
export const streamWindow = 1 << 20;
const sendChunk = 60 << 10;

export const frameData = 0;
export const frameEnd = 1;
export const frameCredit = 2;
export const frameReset = 3;

/** A decoded binary frame: docs/wire.md. */
export interface StreamFrame {
  kind: number;
  channel: number;
  stream: number;
  offset: number;
  data: Uint8Array;
}

const none = new Uint8Array(0);

/** Decodes a binary message, which is untrusted. */
export function parseFrame(p: Uint8Array): StreamFrame {
  if (p.length < frameHead) throw new ProtocolError("a binary frame is shorter than its header");
  const view = new DataView(p.buffer, p.byteOffset, p.length);
  const offset = view.getBigUint64(9);
  const f: StreamFrame = {
    kind: p[0]!,
    channel: view.getUint32(1),
    stream: view.getUint32(5),
    offset: Number(offset),
    data: p.subarray(frameHead),
  };
  if (f.kind > frameReset) throw new ProtocolError(`a binary frame has the unknown kind ${f.kind}`);
  if (f.stream === 0) throw new ProtocolError("a binary frame names no stream");
  if (offset > BigInt(Number.MAX_SAFE_INTEGER))
    throw new ProtocolError("a binary frame's offset is out of range");
  if (f.kind !== frameData && f.kind !== frameReset && f.data.length > 0) {
    throw new ProtocolError(`a binary frame of kind ${f.kind} carries data`);
  }
  return f;
}

/** Returns the header of a frame. */
export function frameHeader(kind: number, stream: number, offset: number): Uint8Array {
  const head = new Uint8Array(frameHead);
  const view = new DataView(head.buffer);
  head[0] = kind;
  view.setUint32(5, stream);
  view.setBigUint64(9, BigInt(offset));
  return head;
}

/** Writes frames of a connection. */
export interface FrameWriter {
  writeFrame(kind: number, stream: number, offset: number, data?: Uint8Array): Promise<void>;
}

function resetError(data: Uint8Array): TurnstoneError {
  const text = new TextDecoder().decode(data.subarray(0, 1000));
  return fail("canceled", `the other side aborted the stream${text ? `: ${text}` : ""}`, {
    op: "wire.stream",
  });
}

/** The reading end of a stream. */
export class Receiver {
  readonly id: number;
  #to: FrameWriter;
  #queue = new Queue<Uint8Array>();
  #credit = streamWindow;
  #read = 0;
  #dropped = false;
  /** Bytes that have arrived. */
  got = 0;

  constructor(to: FrameWriter, id: number) {
    this.#to = to;
    this.id = id;
  }

  /** Returns the next bytes; null at the stream's end. */
  async read(): Promise<Uint8Array | null> {
    const bytes = await holding(this.#queue.next());
    if (bytes === null) return null;
    this.#read += bytes.length;
    if (!this.#queue.ended && this.#credit - this.#read <= streamWindow / 2) {
      this.#credit = this.#read + streamWindow;
      // if this fails, the next read fails too
      this.#to.writeFrame(frameCredit, this.id, this.#credit).catch(() => undefined);
    }
    return bytes;
  }

  /** Returns everything up to the end. */
  async readAll(limit = Infinity): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    let size = 0;
    for (;;) {
      const next = await this.read();
      if (next === null) break;
      size += next.length;
      if (size > limit) {
        this.close();
        throw fail("integrity", `more than ${limit} bytes arrive`, { op: "wire.stream" });
      }
      parts.push(next);
    }
    const all = new Uint8Array(size);
    let at = 0;
    for (const p of parts) {
      all.set(p, at);
      at += p.length;
    }
    return all;
  }

  /** Aborts the stream if it has not ended. */
  close(): void {
    const live = !this.#queue.ended && !this.#dropped;
    this.#dropped = true;
    this.#queue.clear();
    this.#queue.end();
    if (live) this.#to.writeFrame(frameReset, this.id, 0).catch(() => undefined);
  }

  /** Takes a frame of the connection; returns true at the end. */
  take(f: StreamFrame): boolean {
    if (f.kind === frameData) {
      if (f.offset !== this.got) {
        throw new ProtocolError(`stream ${this.id} continues at byte ${f.offset}, not ${this.got}`);
      }
      if (f.offset + f.data.length > this.#credit) {
        throw new ProtocolError(`stream ${this.id} exceeds its credit`);
      }
      this.got += f.data.length;
      if (!this.#dropped && f.data.length > 0) this.#queue.push(f.data.slice());
      return false;
    }
    if (f.kind === frameEnd) {
      if (f.offset !== this.got) {
        throw new ProtocolError(`stream ${this.id} ends at byte ${f.offset}, not ${this.got}`);
      }
      this.#queue.end();
    } else {
      this.#queue.end(resetError(f.data));
    }
    return true;
  }

  fail(err: TurnstoneError): void {
    this.#queue.end(err);
  }
}

/** The writing end of a stream. It may write after the command that names the stream was sent. */
export class Sender {
  readonly id: number;
  #to: FrameWriter;
  #over: () => void;
  #sent = 0;
  #limit = streamWindow;
  #error: TurnstoneError | undefined;
  #ended = false;
  #waiting: (() => void)[] = [];

  constructor(to: FrameWriter, id: number, over: () => void) {
    this.#to = to;
    this.id = id;
    this.#over = over;
  }

  #wake(): void {
    for (const w of this.#waiting.splice(0)) w();
  }

  /** Writes bytes, and waits for the reader. */
  async write(bytes: Uint8Array): Promise<void> {
    for (let done = 0; done < bytes.length; ) {
      while (!this.#error && !this.#ended && this.#sent >= this.#limit) {
        await new Promise<void>((resolve) => this.#waiting.push(resolve));
      }
      if (this.#error) throw this.#error;
      if (this.#ended) throw fail("canceled", "the stream was ended", { op: "wire.stream" });
      const n = Math.min(bytes.length - done, this.#limit - this.#sent, sendChunk);
      const at = this.#sent;
      this.#sent += n;
      await this.#to.writeFrame(frameData, this.id, at, bytes.subarray(done, done + n));
      done += n;
    }
  }

  /** Ends the stream. */
  async end(): Promise<void> {
    if (this.#ended) return;
    this.#ended = true;
    this.#wake();
    this.#over();
    if (!this.#error) await this.#to.writeFrame(frameEnd, this.id, this.#sent);
  }

  /** Aborts the stream with a reason. A write that waits returns. */
  abort(reason = ""): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#wake();
    this.#over();
    this.#to
      .writeFrame(frameReset, this.id, 0, new TextEncoder().encode(reason.slice(0, 1000)))
      .catch(() => undefined);
  }

  /** Takes a frame of the reader. */
  take(f: StreamFrame): void {
    if (f.kind === frameReset) {
      this.fail(resetError(f.data));
      return;
    }
    if (f.offset > this.#sent + streamWindow) {
      throw new ProtocolError(
        `stream ${this.id} is granted ${f.offset} bytes, and ${this.#sent} were sent`,
      );
    }
    this.#limit = Math.max(this.#limit, f.offset);
    this.#wake();
  }

  fail(err: TurnstoneError): void {
    this.#error ??= err;
    this.#wake();
  }
}

export { none as noBytes };
