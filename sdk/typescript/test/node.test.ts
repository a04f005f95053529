import assert from "node:assert/strict";
import {
  chmod,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { after, test } from "node:test";
import { TurnstoneError, Turnstone } from "../src/index.js";
import { quote } from "../src/exec.js";
import { parseAddress } from "../src/node/address.js";
import { Hosts, parseHosts } from "../src/node/hosts.js";
import { StateDir, readToken } from "../src/node/state.js";
import { pack, unpack } from "../src/node/tar.js";
import { tarHeader } from "../src/run.js";
import { testdata } from "./testdata.js";

const root = await mkdtemp(join(tmpdir(), "turnstone-test-"));
after(() => rm(root, { recursive: true, force: true }));
const one = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c";
const kind = (k: string) => (e: unknown) => e instanceof TurnstoneError && e.kind === k;

test("addresses", () => {
  assert.equal(parseAddress("https://Turn.Example.org/x/").text, "https://turn.example.org/x");
  assert.equal(parseAddress("http://127.0.0.1:7420").loopback, true);
  assert.equal(parseAddress("http://[::1]:7420").loopback, true);
  assert.equal(parseAddress("unix:/run/turn.sock").socket, "/run/turn.sock");
  for (const bad of [
    "http://example.org",
    "ftp://x",
    "turn.example.org:7420",
    "https://u:p@x",
    "https://x?y",
    "https://x#y",
    "unix:",
    "https://x\n",
    "",
    "http://127.0.0.1.example.org",
    "http://localhost.example.org",
  ]) {
    assert.throws(() => parseAddress(bad), kind("invalid"), bad);
  }
});

test("hosts.toml", () => {
  const list = parseHosts(
    `current = "work"\n[hosts.work]\nurl = "https://turn.example.org"\n[hosts.work.nodes]\nn1 = ["${one}"]\n`,
  );
  assert.deepEqual(list.hosts["work"]!.nodes["n1"], [one]);
  for (const bad of [
    "current = 7",
    "unknown = 1",
    '[hosts.a]\nurl = "http://example.org"',
    "hosts = 1",
    `[hosts.a]\nurl = "https://x"\nnodes = 1`,
    `[hosts.a]\nurl = "https://x"\n[hosts.a.nodes]\nn = ["x"]`,
    `[hosts.a]\nurl = "https://x"\nother = 1`,
    `[hosts.a]\nurl = "https://x"\n[hosts.a.nodes]\nn = ["${one}"]\n[hosts.a.root]\nkey = "${one}"\nepoch = 1`,
  ]) {
    assert.throws(() => parseHosts(bad), Error, bad);
  }
});

test("hosts.toml that others can write is refused", async () => {
  const dir = new StateDir(join(root, "hosts"));
  await dir.folder();
  await writeFile(dir.path("hosts.toml"), "");
  await chmod(dir.path("hosts.toml"), 0o666);
  await assert.rejects(new Hosts(dir).load(), kind("invalid"));
});

test("the client's key is made once, for its user alone", async () => {
  const dir = new StateDir(join(root, "key"));
  const all = await Promise.all([1, 2, 3].map(() => new StateDir(dir.root).clientKey()));
  assert.deepEqual(all[1]!.public, all[0]!.public);
  assert.deepEqual(all[2]!.public, all[0]!.public);
  const info = await stat(dir.path("client", "key"));
  assert.equal(info.mode & 0o777, 0o600);
  assert.equal((await stat(dir.root)).mode & 0o777, 0o700);
  assert.deepEqual(await readdir(dir.path("client")), ["key"]);
  assert.ok(
    !JSON.stringify(all[0]).includes((await readFile(dir.path("client", "key"), "utf8")).trim()),
  );
  await chmod(dir.path("client", "key"), 0o640);
  await assert.rejects(dir.clientKey(), kind("invalid"));
  await chmod(dir.path("client", "key"), 0o600);
  await writeFile(dir.path("client", "key"), "secret-text");
  await assert.rejects(
    dir.clientKey(),
    (e: TurnstoneError) => e.kind === "invalid" && !e.message.includes("secret-text"),
  );
});

test("a token is read from a file of its user alone", async () => {
  const path = join(root, "token");
  await writeFile(path, "a.b.c\n", { mode: 0o600 });
  assert.equal(await readToken(path), "a.b.c");
  await chmod(path, 0o644);
  await assert.rejects(readToken(path), kind("invalid"));
  await rm(path);
  await symlink("/dev/null", path);
  await assert.rejects(readToken(path), kind("invalid"));
});

test("a server elsewhere without a pin is refused before anything is sent", async () => {
  const client = new Turnstone({
    host: "https://turn.example.org",
    token: "x",
    home: join(root, "nopin"),
  });
  await assert.rejects(client.usage(), kind("not_found"));
  await client.close();
});

test("a token with a line break is refused, and in no error", async () => {
  const client = new Turnstone({
    host: "http://127.0.0.1:9",
    token: "geheim\nX: y",
    home: join(root, "badtoken"),
  });
  await assert.rejects(
    client.usage(),
    (e: unknown) =>
      e instanceof TurnstoneError && !e.message.includes("geheim") && !e.hint.includes("geheim"),
  );
  await client.close();
});

test("a program that is not there", async () => {
  const client = new Turnstone({
    host: "local",
    home: join(root, "none"),
    program: join(root, "no-such-program"),
  });
  await assert.rejects(
    client.usage(),
    (e: TurnstoneError) => e.kind === "unavailable" && e.hint.includes("TURN_HOST"),
  );
  await client.close();
});

test("words become a command line", () => {
  assert.equal(quote(["echo", "a b", "it's", "", "x=1"]), `echo 'a b' 'it'\\''s' '' x=1`);
});

async function* parts(...all: Uint8Array[]): AsyncIterable<Uint8Array> {
  for (const p of all) yield p;
}

test("a folder survives packing and unpacking", async () => {
  const from = join(root, "from");
  const long = "n".repeat(120);
  await mkdir(join(from, "sub", long), { recursive: true });
  await writeFile(join(from, "a.txt"), "hello");
  await writeFile(join(from, "sub", long, "b.bin"), Buffer.alloc(1000, 7), { mode: 0o755 });
  await symlink("../a.txt", join(from, "sub", "link"));
  const to = join(root, "to");
  assert.deepEqual(await unpack(pack(from), to, { bytes: 1 << 20 }, "from"), []);
  assert.equal(await readFile(join(to, "from", "a.txt"), "utf8"), "hello");
  assert.equal(await readFile(join(to, "from", "sub", "link"), "utf8"), "hello");
  const b = await stat(join(to, "from", "sub", long, "b.bin"));
  assert.deepEqual([b.size, b.mode & 0o777], [1000, 0o755]);
});

interface Archive {
  name: string;
  entries?: number;
  bytes?: number;
  blocks: string[];
  fault?: "refused" | "exhausted";
  files?: string[];
}

for (const a of testdata<{ cases: Archive[] }>("archives.json").cases) {
  test(`archives: ${a.name}`, async () => {
    const to = await mkdtemp(join(root, "archive-"));
    const stream = parts(
      ...a.blocks.map((b) => {
        const block = new Uint8Array(512);
        block.set(Buffer.from(b, "base64"));
        return block;
      }),
    );
    const limits = { bytes: a.bytes ?? 1 << 20, ...(a.entries ? { entries: a.entries } : {}) };
    const got = unpack(stream, to, limits, "got");
    if (a.fault) {
      await assert.rejects(got, kind(a.fault === "exhausted" ? "exhausted" : "integrity"));
      assert.ok((await readdir(to)).every((name) => name === "got"));
      return;
    }
    await got;
    const found: string[] = [];
    for (const e of await readdir(to, { recursive: true, withFileTypes: true }))
      if (!e.isDirectory()) found.push(relative(to, join(e.parentPath, e.name)));
    assert.deepEqual(found.sort(), a.files);
  });
}

test("extended headers without end are bounded", async () => {
  const record = new Uint8Array(512);
  record.set(new TextEncoder().encode("8 a=bcd\n"));
  const many = Array.from({ length: 50 }, () => [tarHeader("pax", 8, 0o644, "x"), record]).flat();
  const limits = { bytes: 1 << 20, entries: 3 };
  const to = join(root, "headers");
  await assert.rejects(unpack(parts(...many), to, limits, "got"), kind("exhausted"));
});

test("an archive follows no link that was there before", async () => {
  const to = join(root, "hostile");
  const outside = join(root, "outside");
  await mkdir(outside);
  await mkdir(to);
  await symlink(outside, join(to, "there"));
  const stream = parts(tarHeader("there/x", 1), new Uint8Array(512).fill(65, 0, 1));
  await assert.rejects(unpack(stream, to, { bytes: 1 << 20 }, "there"), kind("integrity"));
  assert.deepEqual(await readdir(outside), []);
});
