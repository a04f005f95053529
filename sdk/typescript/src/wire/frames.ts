import { fromUtf8, random, utf8 } from "../bytes.js";
import { fail } from "../errors.js";
import { ByteReader, Lane, type ByteStream } from "../stream.js";

/** Bounds of messages: docs/wire.md. */
export const maxMessage = 16 << 20;
export const maxChunk = 64 << 10;
export const frameHead = 17;
const maxBinary = frameHead + maxChunk;
const maxControl = 125;
const maxParts = 1 << 16;

const opText = 1;
const opBinary = 2;
const opClose = 8;
const opPing = 9;
const opPong = 10;

/** The other side broke the protocol. */
export class ProtocolError extends Error {
  constructor(
    reason: string,
    readonly code = 1002,
  ) {
    super(reason);
  }
}

/** The other side ended the connection with a closing frame. */
export class ClosedError extends Error {
  constructor(
    readonly code: number,
    reason: string,
  ) {
    super(reason || `the other side closed the connection (${code})`);
  }
}

/** A message of a connection. */
export interface Incoming {
  text: boolean;
  payload: Uint8Array;
}

interface Header {
  fin: boolean;
  op: number;
  mask: Uint8Array | undefined;
  length: number;
}

/**
 * The messages of a connection: frames of RFC 6455 over a byte stream, after the handshake if there is
 * one. A WebSocket's client masks its frames.
 */
export class Frames {
  #stream: ByteStream;
  #in: ByteReader;
  #masked: boolean;
  #lane = new Lane();

  constructor(stream: ByteStream, masked: boolean) {
    this.#stream = stream;
    this.#in = new ByteReader(stream);
    this.#masked = masked;
  }

  /** Returns the next message; null if the stream ends between messages. */
  async next(onControl?: () => void): Promise<Incoming | null> {
    let kind = 0;
    let size = 0;
    const parts: Uint8Array[] = [];
    for (;;) {
      const h = await this.#header(kind !== 0);
      if (h === null) return null;
      checkHeader(h, kind !== 0);
      if (h.op >= opClose) {
        await this.#control(h);
        onControl?.();
        continue;
      }
      if (h.op !== 0) kind = h.op;
      const limit = kind === opBinary ? maxBinary : maxMessage;
      size += h.length;
      if (size > limit || parts.length >= maxParts) {
        throw new ProtocolError(
          `a message is longer than ${limit} bytes or ${maxParts} frames`,
          1009,
        );
      }
      parts.push(await this.#body(h));
      if (h.fin) {
        return {
          text: kind === opText,
          payload: parts.length === 1 ? parts[0]! : join(parts, size),
        };
      }
    }
  }

  async #exactly(size: number): Promise<Uint8Array> {
    const bytes = await this.#in.take(size);
    if (bytes.length < size) throw new Error("the stream ended within a message");
    return bytes;
  }

  async #header(within: boolean): Promise<Header | null> {
    const head = await this.#in.take(2);
    if (head.length === 0 && !within) return null;
    if (head.length < 2) throw new Error("the stream ended within a message");
    const [a, b] = [head[0]!, head[1]!];
    if ((a & 0x70) !== 0)
      throw new ProtocolError("a frame uses an extension that was not negotiated");
    let length = b & 0x7f;
    if (length === 126) {
      const more = await this.#exactly(2);
      length = (more[0]! << 8) | more[1]!;
    } else if (length === 127) {
      const more = await this.#exactly(8);
      const long = new DataView(more.buffer, more.byteOffset, 8).getBigUint64(0);
      if (long > BigInt(maxMessage)) throw new ProtocolError("a frame is too long", 1009);
      length = Number(long);
    }
    const mask = (b & 0x80) !== 0 ? (await this.#exactly(4)).slice() : undefined;
    return { fin: (a & 0x80) !== 0, op: a & 0x0f, mask, length };
  }

  async #body(h: Header): Promise<Uint8Array> {
    const bytes = await this.#exactly(h.length);
    if (!h.mask) return bytes;
    const plain = bytes.slice();
    applyMask(plain, 0, h.mask);
    return plain;
  }

  async #control(h: Header): Promise<void> {
    const p = await this.#body(h);
    if (h.op === opPing) {
      await this.#write(opPong, p);
    } else if (h.op === opClose) {
      const code = p.length >= 2 ? (p[0]! << 8) | p[1]! : 1005;
      let reason = "";
      try {
        reason = fromUtf8(p.subarray(2)).slice(0, 123);
      } catch {
        // a reason that is no text says nothing
      }
      throw new ClosedError(code, reason);
    }
  }

  /** Asks the other side for a sign of life. */
  ping(): Promise<void> {
    return this.#write(opPing, new Uint8Array(0));
  }

  writeText(text: string): Promise<void> {
    const p = utf8(text);
    if (p.length > maxMessage) {
      return Promise.reject(
        fail("invalid", `a message of ${p.length} bytes is longer than the protocol allows`),
      );
    }
    return this.#write(opText, p);
  }

  writeBinary(...parts: Uint8Array[]): Promise<void> {
    return this.#write(opBinary, ...parts);
  }

  #write(op: number, ...parts: Uint8Array[]): Promise<void> {
    let length = 0;
    for (const p of parts) length += p.length;
    const extra = length < 126 ? 0 : length < 65536 ? 2 : 8;
    const begin = 2 + extra + (this.#masked ? 4 : 0);
    const frame = new Uint8Array(begin + length);
    const view = new DataView(frame.buffer);
    frame[0] = 0x80 | op;
    frame[1] = (this.#masked ? 0x80 : 0) | (extra === 0 ? length : extra === 2 ? 126 : 127);
    if (extra === 2) view.setUint16(2, length);
    if (extra === 8) view.setBigUint64(2, BigInt(length));
    let at = begin;
    for (const p of parts) {
      frame.set(p, at);
      at += p.length;
    }
    if (this.#masked) {
      const mask = random(4);
      frame.set(mask, begin - 4);
      applyMask(frame, begin, mask);
    }
    return this.#lane.run(() => this.#stream.write(frame));
  }

  /** Sends a closing frame. */
  farewell(code: number, reason: string): Promise<void> {
    const text = utf8(reason).subarray(0, maxControl - 2);
    const body = new Uint8Array(2 + text.length);
    new DataView(body.buffer).setUint16(0, code);
    body.set(text, 2);
    return this.#write(opClose, body);
  }

  close(): void {
    this.#stream.close();
  }
}

function checkHeader(h: Header, within: boolean): void {
  const control = h.op >= opClose;
  if (h.op > opPong || (h.op > opBinary && h.op < opClose)) {
    throw new ProtocolError(`a frame has the unknown opcode ${h.op}`);
  }
  if (control && (!h.fin || h.length > maxControl)) {
    throw new ProtocolError(`a control frame is fragmented or longer than ${maxControl} bytes`);
  }
  if (h.op === 0 && !within) throw new ProtocolError("a continuation frame without a message");
  if (!control && h.op !== 0 && within)
    throw new ProtocolError("a message begins inside another message");
}

/** Masks bytes from an index on, four at a time where the buffer is aligned. */
export function applyMask(bytes: Uint8Array, from: number, mask: Uint8Array): void {
  let i = from;
  while (i < bytes.length && ((bytes.byteOffset + i) & 3) !== 0) {
    bytes[i]! ^= mask[(i - from) & 3]!;
    i++;
  }
  const words = (bytes.length - i) >>> 2;
  const turned = Uint8Array.from([0, 1, 2, 3], (n) => mask[(i - from + n) & 3]!);
  const word = new Uint32Array(turned.buffer)[0]!;
  if (words > 0) {
    const view = new Uint32Array(bytes.buffer, bytes.byteOffset + i, words);
    for (let n = 0; n < words; n++) view[n]! ^= word;
  }
  for (i += 4 * words; i < bytes.length; i++) bytes[i]! ^= mask[(i - from) & 3]!;
}

function join(parts: Uint8Array[], size: number): Uint8Array {
  const all = new Uint8Array(size);
  let at = 0;
  for (const p of parts) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}
