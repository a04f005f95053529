import assert from "node:assert/strict";
import { test } from "node:test";
import { concat, fromUtf8, utf8 } from "../src/bytes.js";
import { TurnstoneError } from "../src/errors.js";
import { Input } from "../src/process.js";
import { Queue, type ByteStream } from "../src/stream.js";
import { applyMask, Frames } from "../src/wire/frames.js";
import { frameHeader } from "../src/wire/streams.js";
import { Wire } from "../src/wire/wire.js";

/** Two ends of a stream in memory. */
function pipe(): [ByteStream, ByteStream] {
  const [a, b] = [new Queue<Uint8Array>(), new Queue<Uint8Array>()];
  const end = (from: Queue<Uint8Array>, to: Queue<Uint8Array>): ByteStream => ({
    read: () => from.next(),
    write: (bytes) => {
      if (to.ended) return Promise.reject(new Error("closed"));
      to.push(bytes.slice());
      return Promise.resolve();
    },
    close: () => {
      a.end();
      b.end();
    },
  });
  return [end(a, b), end(b, a)];
}

interface Sent {
  id: number;
  method: string;
  params: Record<string, unknown>;
}

/** A client, and the other side of its connection. */
function scene(): { wire: Wire; frames: Frames; raw: ByteStream; next(): Promise<Sent> } {
  const [near, far] = pipe();
  const frames = new Frames(far, false);
  return {
    wire: new Wire(near),
    frames,
    raw: far,
    next: async () => {
      for (;;) {
        const m = await frames.next();
        if (m === null) throw new Error("the client has left");
        if (m.text) return JSON.parse(fromUtf8(m.payload)) as Sent;
      }
    },
  };
}

test("a command has its answer, and an error its parts", async () => {
  const s = scene();
  const one = s.wire.call("FileSystem.stat", { path: "/a" });
  const two = s.wire.call("FileSystem.stat", { path: "/b" });
  const [a, b] = [await s.next(), await s.next()];
  await s.frames.writeText(
    JSON.stringify({
      id: b.id,
      error: {
        code: -32000,
        message: "x",
        data: {
          op: "FileSystem.stat",
          kind: "not_found",
          subject: "/b",
          hint: "check",
          cause: "gone",
        },
      },
    }),
  );
  await s.frames.writeText(JSON.stringify({ id: a.id, result: { file: { path: "/a" } } }));
  await assert.rejects(two, (e: TurnstoneError) => {
    assert.deepEqual(
      [e.kind, e.op, e.subject, e.hint, e.message, e.retryable],
      ["not_found", "FileSystem.stat", "/b", "check", "/b: gone", false],
    );
    return true;
  });
  assert.equal((await one).file.path, "/a");
  s.wire.close();
});

test("a signal ends the wait for an answer, whose late arrival is no error", async () => {
  const s = scene();
  const abort = new AbortController();
  const waiting = s.wire.call("Process.list", {}, abort.signal);
  const sent = await s.next();
  abort.abort();
  await assert.rejects(waiting, (e: TurnstoneError) => e.kind === "canceled");
  await s.frames.writeText(JSON.stringify({ id: sent.id, result: { processes: [] } }));
  const again = s.wire.call("Process.list", {});
  await s.frames.writeText(JSON.stringify({ id: (await s.next()).id, result: { processes: [] } }));
  assert.deepEqual((await again).processes, []);
  s.wire.close();
});

const header = (kind: number, stream: number, offset: number, data = ""): Uint8Array =>
  concat(frameHeader(kind, stream, offset), utf8(data));
const binary = (payload: Uint8Array): Uint8Array => {
  const head =
    payload.length < 126
      ? [0x82, payload.length]
      : [0x82, 126, payload.length >> 8, payload.length & 255];
  return concat(Uint8Array.from(head), payload);
};
const text = (t: string): Uint8Array => concat(Uint8Array.of(0x81, utf8(t).length), utf8(t));

test("what a hostile agent sends ends the connection", async (t) => {
  const hostile: Record<string, Uint8Array> = {
    "an answer to nothing": text('{"id":99,"result":{}}'),
    "an answer with both": text('{"id":1,"result":{},"error":{}}'),
    "an answer with neither": text('{"id":1}'),
    "a command": text('{"id":7,"method":"Process.list"}'),
    "no JSON": text("{"),
    "a list": text("[1]"),
    "not UTF-8": Uint8Array.of(0x81, 2, 0xc3, 0x28),
    "an unknown opcode": Uint8Array.of(0x83, 0),
    "a reserved bit": Uint8Array.of(0xc1, 0),
    "a fragmented ping": Uint8Array.of(0x09, 0),
    "a continuation of nothing": Uint8Array.of(0x80, 0),
    "a message within a message": Uint8Array.of(0x01, 1, 0x7b, 0x81, 0),
    "a message of many gigabytes": Uint8Array.of(0x81, 127, 0, 0, 1, 0, 0, 0, 0, 0),
    "a binary message that is too long": concat(
      Uint8Array.of(0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0x12),
      new Uint8Array(65554),
    ),
    "a short binary frame": binary(new Uint8Array(16)),
    "an unknown kind of frame": binary(header(4, 1, 0)),
    "stream 0": binary(header(0, 0, 0, "x")),
    "a stream that was never opened": binary(header(0, 9, 0, "x")),
    "data with a gap": binary(header(0, 1, 5, "x")),
    "an end with a gap": binary(header(1, 1, 5)),
    "credit with data": binary(header(2, 2, 5, "x")),
    "credit beyond the window": binary(header(2, 2, 1 << 22)),
    "data for the other direction": binary(header(0, 2, 0, "x")),
    "a session": binary(concat(Uint8Array.of(0, 0, 0, 0, 1), header(0, 1, 0, "x").subarray(5))),
    "too deep": text(`{"method":"x","params":${"[".repeat(65)}`.slice(0, 120)),
  };
  for (const [name, bytes] of Object.entries(hostile)) {
    await t.test(name, async () => {
      const s = scene();
      const call = s.wire.call("Process.list", {}); // id 1
      const from = s.wire.receiver(); // stream 1
      s.wire.sender(); // stream 2
      call.catch(() => undefined);
      await s.next();
      await s.raw.write(bytes);
      const why = await s.wire.closed;
      assert.equal(why.kind, "integrity", why.message);
      await assert.rejects(call, (e: TurnstoneError) => e.kind === "integrity" && !e.retryable);
      await assert.rejects(from.read(), (e: TurnstoneError) => e.kind === "integrity");
      await assert.rejects(
        s.wire.call("Process.list", {}),
        (e: TurnstoneError) => e.kind === "integrity",
      );
    });
  }
});

test("too many values in a message end the connection before they are decoded", async () => {
  const s = scene();
  await s.frames.writeText(`{"method":"x","params":[${"{},".repeat(150_000)}{}]}`);
  assert.equal((await s.wire.closed).kind, "integrity");
});

test("a reader that does not read holds the sender back at one window", async () => {
  const s = scene();
  const from = s.wire.receiver();
  const chunk = new Uint8Array(60 << 10);
  let sent = 0;
  while (sent + chunk.length <= 1 << 20) {
    await s.frames.writeBinary(frameHeader(0, from.id, sent), chunk);
    sent += chunk.length;
  }
  let got = 0;
  while (got < sent) got += (await from.read())!.length;
  const credit = await s.frames.next();
  assert.equal(credit!.payload[0], 2);
  await s.frames.writeBinary(frameHeader(1, from.id, sent));
  assert.equal(await from.read(), null);
  s.wire.close();
});

test("data beyond the credit ends the connection", async () => {
  const s = scene();
  const from = s.wire.receiver();
  const chunk = new Uint8Array(64 << 10);
  for (let sent = 0; sent <= 1 << 20; sent += chunk.length) {
    await s.frames.writeBinary(frameHeader(0, from.id, sent), chunk).catch(() => undefined);
  }
  assert.equal((await s.wire.closed).kind, "integrity");
});

test("data of a closed stream is answered with one reset", async () => {
  const s = scene();
  const from = s.wire.receiver();
  from.close();
  const reset = await s.frames.next();
  assert.equal(reset!.payload[0], 3);
  await s.frames.writeBinary(frameHeader(0, from.id, 0), utf8("late"));
  await s.frames.writeBinary(frameHeader(3, from.id, 0));
  await s.frames.writeBinary(frameHeader(0, from.id, 0), utf8("later"));
  const again = await s.frames.next();
  assert.equal(again!.payload[0], 3);
  s.wire.close();
});

test("a writer waits for credit, and ends with the other side's reset", async () => {
  const s = scene();
  const to = s.wire.sender();
  const writing = to.write(new Uint8Array((1 << 20) + 1));
  let got = 0;
  while (got < 1 << 20) got += (await s.frames.next())!.payload.length - 17;
  assert.equal(got, 1 << 20);
  await s.frames.writeBinary(frameHeader(3, to.id, 0), utf8("enough"));
  await assert.rejects(writing, /enough/);
  s.wire.close();
});

test("a connection that ends fails everything that waits", async () => {
  const s = scene();
  const call = s.wire.call("Process.list", {});
  await s.next();
  s.raw.close();
  await assert.rejects(call, (e: TurnstoneError) => e.kind === "dead" && e.retryable);
});

test("input continues at the byte that has not arrived", async () => {
  const input = new Input();
  const all: Uint8Array[] = [];
  const to = {
    write: (b: Uint8Array) => (all.push(b.slice()), Promise.resolve()),
    end: () => Promise.resolve(),
  };
  await input.write("hello ");
  await input.write("world");
  input.end();
  await input.copy(0, to, () => false);
  assert.equal(fromUtf8(concat(...all)), "hello world");
  all.length = 0;
  await input.copy(8, to, () => false);
  assert.equal(fromUtf8(concat(...all)), "rld");
});

test("a mask covers each byte, however the buffer is aligned", () => {
  const mask = Uint8Array.of(1, 20, 133, 250);
  for (let offset = 0; offset < 4; offset++) {
    for (let size = 0; size < 12; size++) {
      for (let from = 0; from <= Math.min(size, 5); from++) {
        const buffer = new Uint8Array(offset + size + 3).fill(7);
        applyMask(buffer.subarray(offset, offset + size), from, mask);
        const want = buffer.map((_, i) => {
          const at = i - offset - from;
          return at >= 0 && i < offset + size ? 7 ^ mask[at & 3]! : 7;
        });
        assert.deepEqual(buffer, want);
      }
    }
  }
});
