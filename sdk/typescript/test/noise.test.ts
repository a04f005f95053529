import assert from "node:assert/strict";
import { test } from "node:test";
import { concat, fromHex, toHex, utf8 } from "../src/bytes.js";
import { native, portable } from "../src/channel/aead.js";
import { Channel } from "../src/channel/channel.js";
import { KeyPair } from "../src/channel/key.js";
import { Initiator, oneWay, open, rekey, Responder, seal } from "../src/channel/noise.js";
import { prove } from "../src/channel/possession.js";
import { TurnstoneError } from "../src/errors.js";
import { Queue, type ByteStream } from "../src/stream.js";
import { testdata } from "./testdata.js";

interface Published {
  protocol_name: string;
  init_prologue: string;
  init_static: string;
  init_ephemeral: string;
  init_remote_static: string;
  resp_static: string;
  resp_ephemeral?: string;
  handshake_hash: string;
  messages: { payload: string; ciphertext: string }[];
}

interface Vectors {
  published: Published[];
  channel: Record<string, string>;
  answers: { name: string; answer: string; kind: string; fault: string }[];
  frames: { name: string; frames: string; data: string; kind: string; fault: string }[];
  rekey: { key: string; next: string; every: number };
  possession: Record<string, string> & { time: number };
}

const vectors = testdata<Vectors>("noise.json");
const pair = (hex: string): KeyPair => KeyPair.fromPrivate(fromHex(hex));

/** A stream whose other side says what is recorded. */
class Tape implements ByteStream {
  written: Uint8Array[] = [];
  #in = new Queue<Uint8Array>();

  constructor(said: Uint8Array, size: number) {
    for (let at = 0; at < said.length; at += size) this.#in.push(said.subarray(at, at + size));
    this.#in.end();
  }

  read(): Promise<Uint8Array | null> {
    return this.#in.next();
  }

  write(bytes: Uint8Array): Promise<void> {
    this.written.push(bytes.slice());
    return Promise.resolve();
  }

  close(): void {
    this.#in.clear();
    this.#in.end();
  }
}

test("the published vectors of Noise_IK, both sides", () => {
  const v = vectors.published.find((p) => p.protocol_name.startsWith("Noise_IK_"))!;
  const prologue = fromHex(v.init_prologue);
  const client = new Initiator({
    prologue,
    key: pair(v.init_static),
    server: fromHex(v.init_remote_static),
    ephemeral: pair(v.init_ephemeral),
  });
  const server = new Responder({
    prologue,
    key: pair(v.resp_static),
    ephemeral: pair(v.resp_ephemeral!),
  });
  const [one, two, ...rest] = v.messages;
  const first = client.first(fromHex(one!.payload));
  assert.equal(toHex(first), one!.ciphertext);
  const got = server.first(first);
  assert.equal(toHex(got.payload), one!.payload);
  assert.deepEqual(got.client, pair(v.init_static).public);
  const second = server.second(fromHex(two!.payload));
  assert.equal(toHex(second.message), two!.ciphertext);
  const keys = client.second(second.message);
  assert.equal(toHex(keys.payload), two!.payload);
  assert.equal(toHex(keys.hash), v.handshake_hash);
  assert.equal(toHex(second.hash), v.handshake_hash);
  const numbers = [0n, 0n];
  rest.forEach((m, i) => {
    const fromClient = i % 2 === 0;
    const n = numbers[i % 2]!++;
    const key = fromClient ? keys.send : keys.receive;
    assert.equal(toHex(seal(key, n, fromHex(m.payload))), m.ciphertext);
    assert.equal(
      toHex(open(fromClient ? second.receive : second.send, n, fromHex(m.ciphertext))),
      m.payload,
    );
    numbers[i % 2] = n + 1n;
  });
});

test("the published vector of Noise_X", () => {
  const v = vectors.published.find((p) => p.protocol_name.startsWith("Noise_X_"))!;
  const message = oneWay(
    {
      prologue: fromHex(v.init_prologue),
      key: pair(v.init_static),
      server: fromHex(v.init_remote_static),
      ephemeral: pair(v.init_ephemeral),
    },
    fromHex(v.messages[0]!.payload),
  );
  assert.equal(toHex(message), v.messages[0]!.ciphertext);
});

test("the key that follows a key", () => {
  assert.equal(toHex(rekey(fromHex(vectors.rekey.key))), vectors.rekey.next);
});

test("a proof of possession", () => {
  const p = vectors.possession;
  const message = prove(
    pair(p["client_static"]!),
    pair(p["server_static"]!).public,
    { tenant: p["tenant"]!, request: p["request"]! },
    p.time,
    pair(p["client_ephemeral"]!),
  );
  assert.equal(toHex(message), p["message"]);
});

function connect(tape: Tape): Promise<Channel> {
  const c = vectors.channel;
  return Channel.connect(tape, {
    key: pair(c["client_static"]!),
    server: pair(c["server_static"]!).public,
    statement: c["statement"]!,
    ephemeral: pair(c["client_ephemeral"]!),
  });
}

test("a whole connection of a channel", async () => {
  const tape = new Tape(fromHex(vectors.channel["answer"]!), 7);
  const c = await connect(tape);
  await c.write(utf8("data"));
  await c.closeWrite();
  assert.equal(
    toHex(concat(...tape.written)),
    vectors.channel["hello"]! + vectors.channel["frames"]!,
  );
});

test("answers that a client refuses", async (t) => {
  for (const a of vectors.answers) {
    await t.test(a.name, async () => {
      const err = await connect(new Tape(fromHex(a.answer), 1000)).then(
        () => assert.fail("it connects"),
        (e: unknown) => e,
      );
      assert.ok(err instanceof TurnstoneError, String(err));
      assert.equal(err.kind, a.kind);
      assert.equal(err.fault ?? "", a.fault);
    });
  }
});

test("frames that a relay manipulates", async (t) => {
  for (const f of vectors.frames) {
    for (const size of [1, 5, 100_000]) {
      await t.test(`${f.name}, in pieces of ${size}`, async () => {
        const tape = new Tape(
          concat(fromHex(vectors.channel["answer"]!), fromHex(f.frames ?? "")),
          size,
        );
        const c = await connect(tape);
        const got: Uint8Array[] = [];
        let err: unknown;
        try {
          for (let p; (p = await c.read()) !== null; ) got.push(p);
        } catch (e) {
          err = e;
          await assert.rejects(c.read(), (again) => again === e, "the error stays");
          await assert.rejects(c.write(utf8("more")));
        }
        assert.equal(toHex(concat(...got)), f.data ?? "");
        if (!f.kind) {
          assert.equal(err, undefined);
        } else {
          assert.ok(err instanceof TurnstoneError, String(err));
          assert.equal(err.kind, f.kind);
          assert.equal(err.fault ?? "", f.fault ?? "");
          assert.equal(err.retryable, f.kind === "dead");
        }
      });
    }
  }
});

test("a direction has a new key after 65,536 frames", async () => {
  const c = vectors.channel;
  const hello = fromHex(c["hello"]!);
  const server = new Responder({
    prologue: concat(
      utf8("turnstone channel 1\0"),
      fromHex(c["statement"]!.slice("sha256:".length)),
    ),
    key: pair(c["server_static"]!),
    ephemeral: pair(c["server_ephemeral"]!),
  });
  server.first(hello.subarray(36));
  const key = server.second().receive;
  const tape = new Tape(fromHex(c["answer"]!), 1000);
  const channel = await connect(tape);
  const { every } = vectors.rekey;
  const early = tape.written.length - 1; // the hello
  for (let n = early; n <= every; n++) await channel.write(Uint8Array.of(n & 255));
  const frame = (n: number): Uint8Array => tape.written[1 + n]!.subarray(10);
  assert.equal(open(key, BigInt(every - 1), frame(every - 1))[1], (every - 1) & 255);
  assert.throws(() => open(key, BigInt(every), frame(every)));
  assert.equal(open(rekey(key), BigInt(every), frame(every))[1], every & 255);
});

test("a handshake ends with its signal", async () => {
  class Silent extends Tape {
    override read(): Promise<Uint8Array | null> {
      return this.#ended;
    }
    #over!: (v: null) => void;
    #ended = new Promise<null>((resolve) => (this.#over = resolve));
    override close(): void {
      this.#over(null);
    }
  }
  const abort = new AbortController();
  const c = vectors.channel;
  const waiting = Channel.connect(new Silent(new Uint8Array(0), 1), {
    key: pair(c["client_static"]!),
    server: pair(c["server_static"]!).public,
    statement: c["statement"]!,
    signal: abort.signal,
  });
  abort.abort();
  await assert.rejects(waiting, (e: TurnstoneError) => e.kind === "canceled");
});

test("the ciphers of Node.js and in JavaScript are one", () => {
  assert.ok(native, "this Node.js has no chacha20-poly1305");
  const key = crypto.getRandomValues(new Uint8Array(32));
  const nonce = crypto.getRandomValues(new Uint8Array(12));
  for (const [size, ad] of [[0, 0], [1, 32], [63, 0], [64, 7], [65519, 32]] as const) {
    const plain = crypto.getRandomValues(new Uint8Array(size));
    const about = crypto.getRandomValues(new Uint8Array(ad));
    const parts = [plain.subarray(0, 1), plain.subarray(1)];
    const sealed = native.seal(key, nonce, parts, about);
    assert.equal(toHex(sealed), toHex(portable.seal(key, nonce, [plain], about)));
    for (const cipher of [native, portable]) {
      assert.equal(toHex(cipher.seal(key, nonce, parts, about, 3)), "000000" + toHex(sealed));
    }
    for (const cipher of [native, portable]) {
      assert.equal(toHex(cipher.open(key, nonce, sealed, about)), toHex(plain));
      const changed = sealed.slice();
      changed[size]! ^= 1;
      assert.throws(() => cipher.open(key, nonce, changed, about));
      assert.throws(() => cipher.open(key, nonce, sealed.subarray(1), about));
      assert.throws(() => cipher.open(key, nonce, sealed, concat(about, utf8("x"))));
      assert.throws(() => cipher.open(key, nonce, sealed.subarray(0, 15), about));
    }
  }
});
