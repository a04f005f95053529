import { concat, equal, fromHex, fromUtf8, utf8 } from "../bytes.js";
import { aborted, fail, faultError, TurnstoneError, type Fault } from "../errors.js";
import { ByteReader, Lane, type ByteStream } from "../stream.js";
import { KeyPair, WeakKey } from "./key.js";
import { Initiator, open, rekey, sealBehind, type Split } from "./noise.js";

const magic = utf8("TSC1");
const prologue = utf8("turnstone channel 1\0");
const secondSize = 48;
const maxNoise = 65535;
const minNoise = 17;
const headSize = 10;
const maxData = maxNoise - minNoise;
const rekeyEvery = 1 << 16;
const handshakeTime = 10_000;
const farewell = 2_000;
const subject = "the channel";
const op = "channel.handshake";

const kindData = 0;
const kindEnd = 1;
const kindConfirm = 2;
const kindFault = 3;

const reportable: readonly string[] = ["altered", "repeated", "reordered", "reflected"];

/** What a client knows before it connects. */
export interface ChannelConfig {
  key: KeyPair;
  /** The server's key, of the verified statement. */
  server: Uint8Array;
  /** The digest of the statement, "sha256:" and hexadecimal. */
  statement: string;
  /** For tests: a fixed ephemeral key. */
  ephemeral?: KeyPair;
  signal?: AbortSignal;
}

/** The cipher of one direction, with the number of its next frame. */
class Half {
  #key: Uint8Array;
  next = 0;

  constructor(key: Uint8Array) {
    this.#key = key;
  }

  #advance(): void {
    this.next++;
    if (this.next % rekeyEvery === 0) this.#key = rekey(this.#key);
  }

  /** Seals the joined parts into a frame, with its header. */
  frame(...parts: Uint8Array[]): Uint8Array {
    const number = BigInt(this.next);
    const frame = sealBehind(headSize, this.#key, number, ...parts);
    const view = new DataView(frame.buffer);
    view.setUint16(0, frame.length - headSize);
    view.setBigUint64(2, number);
    this.#advance();
    return frame;
  }

  open(sealed: Uint8Array): Uint8Array {
    const plain = open(this.#key, BigInt(this.next), sealed);
    this.#advance();
    return plain;
  }

  /** Reports whether the frame with this number is authentic, under this key or the next one. */
  made(number: bigint, sealed: Uint8Array): boolean {
    const period = BigInt(Math.floor(this.next / rekeyEvery));
    const of = number / BigInt(rekeyEvery);
    if (of !== period && of !== period + 1n) return false;
    try {
      open(of === period ? this.#key : rekey(this.#key), number, sealed);
      return true;
    } catch {
      return false;
    }
  }
}

/** An encrypted byte stream with an authenticated end: docs/decisions/0019-channel.md. */
export class Channel implements ByteStream {
  #stream: ByteStream;
  #in: ByteReader;
  #send: Half;
  #receive: Half;
  #lane = new Lane();
  #failed: TurnstoneError | undefined;
  #over = false;
  #endSent = false;

  private constructor(stream: ByteStream, reader: ByteReader, keys: Split) {
    this.#stream = stream;
    this.#in = reader;
    this.#send = new Half(keys.send);
    this.#receive = new Half(keys.receive);
  }

  /** Performs the handshake on a stream, which it closes if the handshake fails. */
  static async connect(stream: ByteStream, c: ChannelConfig): Promise<Channel> {
    let why: TurnstoneError | undefined;
    const stop = (err: TurnstoneError): void => {
      why ??= err;
      stream.close();
    };
    const late = setTimeout(
      () => stop(fail("timeout", "the handshake takes too long", { op, subject })),
      handshakeTime,
    );
    const onAbort = (): void => stop(aborted(c.signal!, op));
    c.signal?.addEventListener("abort", onAbort);
    try {
      if (c.signal?.aborted) onAbort();
      const channel = await Channel.#shake(stream, c);
      if (why) throw why;
      return channel;
    } catch (err) {
      stream.close();
      throw why ?? err;
    } finally {
      clearTimeout(late);
      c.signal?.removeEventListener("abort", onAbort);
    }
  }

  static async #shake(stream: ByteStream, c: ChannelConfig): Promise<Channel> {
    const digest = fromHex(c.statement.replace(/^sha256:/, ""));
    const state = new Initiator({
      prologue: concat(prologue, digest),
      key: c.key,
      server: c.server,
      ...(c.ephemeral ? { ephemeral: c.ephemeral } : {}),
    });
    let first: Uint8Array;
    try {
      first = state.first();
    } catch (err) {
      throw faultError("weak_key", "the server's key is a point of low order", {
        op,
        subject,
        cause: err,
      });
    }
    const hello = concat(magic, digest, first);
    const reader = new ByteReader(stream);
    let second: Uint8Array;
    try {
      await stream.write(hello);
      second = await answer(reader, hello);
    } catch (err) {
      throw err instanceof TurnstoneError ? err : gone(err);
    }
    let keys: Split;
    try {
      keys = state.second(second);
    } catch (err) {
      if (err instanceof WeakKey) {
        throw faultError("weak_key", "the server's answer has a point of low order", {
          op,
          subject,
        });
      }
      throw faultError(
        "key_swapped",
        "the answer is not of the attested key, or was changed on its way",
        {
          op,
          subject,
        },
      );
    }
    const channel = new Channel(stream, reader, keys);
    await channel.#frame(kindConfirm, new Uint8Array(0)).catch((err: unknown) => {
      throw gone(err);
    });
    return channel;
  }

  /** Returns the next data; null after the authenticated end of the other side. */
  async read(): Promise<Uint8Array | null> {
    if (this.#over) return null;
    if (this.#failed) throw this.#failed;
    const [kind, data] = await this.#next();
    if (kind === kindData && data.length > 0) return data;
    if (kind === kindEnd && data.length === 0) {
      this.#over = true;
      return null;
    }
    if (kind === kindFault) {
      const name = safeText(data);
      if (reportable.includes(name)) {
        throw this.#fail(
          faultError(name as Fault, "the other side received something else than this side sent", {
            op: "channel.read",
            subject,
          }),
        );
      }
    }
    throw this.#fail(
      fail("invalid", `the other side sent a frame that has no meaning here (kind ${kind})`, {
        op: "channel.read",
        subject,
      }),
    );
  }

  async #next(): Promise<[number, Uint8Array]> {
    let head: Uint8Array;
    let sealed: Uint8Array;
    let number: bigint;
    try {
      head = await this.#in.take(headSize);
      if (head.length < headSize) throw new Error("the stream ended");
      const view = new DataView(head.buffer, head.byteOffset, headSize);
      const size = view.getUint16(0);
      number = view.getBigUint64(2);
      if (size < minNoise) {
        throw await this.#report(
          faultError("altered", `a frame of ${size} bytes is too short`, {
            op: "channel.read",
            subject,
          }),
        );
      }
      sealed = await this.#in.take(size);
      if (sealed.length < size) throw new Error("the stream ended within a frame");
    } catch (err) {
      if (this.#failed) throw this.#failed;
      if (err instanceof TurnstoneError && err.fault) throw err;
      throw this.#fail(
        faultError("truncated", "the stream ended without the end of the other side", {
          op: "channel.read",
          subject,
          cause: err,
        }),
      );
    }
    const due = this.#receive.next;
    if (number !== BigInt(due)) throw await this.#report(this.#name(number, due, sealed));
    let plain: Uint8Array;
    try {
      plain = this.#receive.open(sealed);
    } catch {
      throw await this.#report(this.#name(number, due, sealed));
    }
    return [plain[0]!, plain.subarray(1)];
  }

  /** Says what was done to a frame that is not the one that is due. */
  #name(number: bigint, due: number, sealed: Uint8Array): TurnstoneError {
    const say = (fault: Fault, text: string): TurnstoneError =>
      faultError(fault, text, { op: "channel.read", subject });
    if (number < BigInt(due) && this.#receive.made(number, sealed)) {
      return say("repeated", `frame ${number} came again where frame ${due} was due`);
    }
    if (number > BigInt(due) && this.#receive.made(number, sealed)) {
      return say("reordered", `frame ${number} came where frame ${due} was due`);
    }
    if (this.#send.made(number, sealed)) {
      return say("reflected", `frame ${number} of this side came back`);
    }
    return say("altered", `frame ${due} is not what the other side sent`);
  }

  #fail(err: TurnstoneError): TurnstoneError {
    this.#failed ??= err;
    this.#stream.close();
    return this.#failed;
  }

  /** Tells the other side which manipulation was found, and discards what still arrives. */
  async #report(err: TurnstoneError): Promise<TurnstoneError> {
    if (this.#failed) return this.#failed;
    this.#failed = err;
    const late = setTimeout(() => this.#stream.close(), farewell);
    try {
      await this.#lane.run(() => this.#put(kindFault, utf8(err.fault ?? "")));
      while ((await this.#stream.read()) !== null);
    } catch {
      // the other side is gone
    } finally {
      clearTimeout(late);
    }
    return this.#fail(err);
  }

  /** Writes bytes in as many frames as they need. */
  async write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; at += maxData) {
      await this.#frame(kindData, bytes.subarray(at, at + maxData));
    }
  }

  #frame(kind: number, data: Uint8Array): Promise<void> {
    return this.#lane.run(async () => {
      if (this.#failed) throw this.#failed;
      if (this.#endSent) {
        throw fail("dead", "is closed", { op: "channel.write", subject });
      }
      if (kind === kindEnd) this.#endSent = true;
      await this.#put(kind, data);
    });
  }

  async #put(kind: number, data: Uint8Array): Promise<void> {
    const frame = this.#send.frame(Uint8Array.of(kind), data);
    try {
      await this.#stream.write(frame);
    } catch (err) {
      if (this.#failed) throw this.#failed;
      throw faultError("truncated", "the stream ended without the end of the other side", {
        op: "channel.write",
        subject,
        cause: err,
      });
    }
  }

  /** Tells the other side that no data follows. Reading continues. */
  async closeWrite(): Promise<void> {
    if (!this.#endSent) await this.#frame(kindEnd, new Uint8Array(0));
  }

  /** Sends the end, if the other side takes it soon, and closes the stream. */
  close(): void {
    this.#failed ??= fail("dead", "is closed by this side", { op: "channel.read", subject });
    if (this.#endSent) {
      this.#stream.close();
      return;
    }
    this.#endSent = true;
    const late = setTimeout(() => this.#stream.close(), farewell);
    unref(late);
    void this.#lane
      .run(() => this.#put(kindEnd, new Uint8Array(0)))
      .catch(() => undefined)
      .finally(() => {
        clearTimeout(late);
        this.#stream.close();
      });
  }
}

/** Keeps a timer from holding a process of Node.js alive. */
export function unref(timer: unknown): void {
  (timer as { unref?: () => void }).unref?.();
}

function gone(cause: unknown): TurnstoneError {
  if (cause instanceof TurnstoneError && cause.kind !== "dead") return cause;
  return fail("dead", "the stream ended during the handshake", {
    op,
    subject,
    hint: "connect again",
    cause,
  });
}

function safeText(bytes: Uint8Array): string {
  try {
    return fromUtf8(bytes);
  } catch {
    return "";
  }
}

/** Reads the server's answer to hello, and returns Noise message 2. */
async function answer(reader: ByteReader, hello: Uint8Array): Promise<Uint8Array> {
  const refused = (
    kind: "not_found" | "invalid" | "integrity",
    why: string,
    hint: string,
  ): never => {
    throw fail(kind, `refused, as the server or a relay says: ${why}`, { op, subject, hint });
  };
  const again = "request a new attestation";
  const first = await reader.take(1);
  if (first.length === 0) throw gone(undefined);
  switch (first[0]) {
    case 0:
      break;
    case 1:
      return refused(
        "not_found",
        "the statement is not known there: it is another sandbox or node, or one that was paused or started since",
        again,
      );
    case 2:
      return refused("invalid", "the statement has expired", again);
    case 3:
      return refused(
        "invalid",
        "the statement does not name this client's key",
        "request an attestation for this key, with a grant of the owner",
      );
    case 4:
      return refused(
        "integrity",
        "the first message is not for the server's key and statement",
        again,
      );
    case magic[0]:
      throw faultError("reflected", "the first message of this side came back", { op, subject });
    default:
      throw faultError("altered", `the answer begins with byte ${first[0]}`, { op, subject });
  }
  const second = await reader.take(secondSize);
  if (second.length < secondSize) throw gone(undefined);
  for (let at = 0; at + secondSize <= hello.length; at++) {
    if (equal(hello.subarray(at, at + secondSize), second)) {
      throw faultError("reflected", "the first message of this side came back", { op, subject });
    }
  }
  return second;
}
