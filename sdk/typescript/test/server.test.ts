import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { CommandError, Turnstone, TurnstoneError, type Sandbox } from "../src/index.js";

// Runs with scripts/test-server.

const root = await mkdtemp(join(tmpdir(), "turnstone-test-"));
const client = new Turnstone();
const text = (b: Uint8Array): string => new TextDecoder().decode(b);
const isKind = (k: string) => (e: unknown) => {
  assert.ok(e instanceof TurnstoneError, String(e));
  assert.equal(e.kind, k, e.message);
  return true;
};

const sb: Sandbox = await client.sandbox({ image: "base", session: false });
after(async () => {
  await sb.close();
  await client.close();
  await rm(root, { recursive: true, force: true });
});

test("a command has its outputs, its exit code and its language", async () => {
  const r = await sb.exec(["sh", "-c", "echo out; echo err >&2; exit 3"]);
  assert.deepEqual([r.exitCode, r.stdout, r.stderr, r.signal], [3, "out\n", "err\n", ""]);
  assert.ok(r.duration > 0);
  const p = await sb.exec(["awk", "BEGIN { print 6*7 }"]);
  assert.equal(p.stdout, "42\n");
  assert.equal(p.commands[0]!.text, "awk 'BEGIN { print 6*7 }'");
  assert.deepEqual([p.commands[0]!.span!.start, p.commands[0]!.span!.end], [0, 25]);
  assert.equal(p.language, p.commands[0]!.language);
});

test("check throws what failed", async () => {
  await assert.rejects(
    sb.exec(["sh", "-c", "echo why >&2; exit 7"], { check: true }),
    (e: unknown) => {
      assert.ok(e instanceof CommandError);
      assert.equal(e.result.exitCode, 7);
      assert.match(e.message, /why/);
      return true;
    },
  );
});

test("a script keeps directory and variables, and has its commands with their places", async () => {
  await sb.exec("cd /tmp; export WORD=turn");
  const r = await sb.exec('echo "$WORD in $PWD"; false');
  assert.equal(r.stdout, "turn in /tmp\n");
  assert.equal(r.exitCode, 1);
  const [echo, no] = [r.commands[0]!, r.commands[1]!];
  assert.deepEqual(
    [echo.text.slice(0, 4), echo.span!.line, echo.exitCode, no.exitCode],
    ["echo", 1, 0, 1],
  );
  assert.equal(no.span!.start, 22);
});

test("a command line that is not there", async () => {
  await assert.rejects(sb.exec(["no-such-program"]), isKind("not_found"));
  assert.throws(() => sb.exec([]), isKind("invalid"));
});

test("output arrives while the command runs", async () => {
  const seen: string[] = [];
  const run = sb.exec(["sh", "-c", "echo one; read x; echo two $x"], {
    stream: true,
    stdin: (async function* () {
      while (seen.length === 0) await new Promise((r) => setTimeout(r, 5)); // the first line was seen
      yield "later\n";
    })(),
  });
  for await (const c of run) seen.push(text(c.data));
  assert.equal(seen.join(""), "one\ntwo later\n");
  assert.ok(seen.length >= 2);
  assert.equal((await run.result).exitCode, 0);
  const whole = await sb.exec(["echo", "collected"], { stream: true }).result;
  assert.equal(whole.stdout, "collected\n");
});

test("large output and input are whole", async () => {
  const r = await sb.exec(["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x"]);
  assert.equal(r.stdoutBytes.length, 5_000_000);
  const input = new Uint8Array(3_000_000).fill(97);
  assert.equal((await sb.exec(["wc", "-c"], { stdin: input })).stdout.trim(), "3000000");
  assert.equal((await sb.exec(["cat"], { stdin: "text" })).stdout, "text");
  assert.equal((await sb.exec(["cat"])).stdout, "");
});

test("environment, secrets, directory and user", async () => {
  const r = await sb.exec(["sh", "-c", 'echo "$A $S $PWD $(id -u)"'], {
    env: { A: "a b" },
    secrets: { S: "geheimnis" },
    cwd: "/var",
    user: "65534",
  });
  assert.equal(r.stdout, "a b geheimnis /var 65534\n");
});

test("a terminal", async () => {
  const run = sb.exec(["sh", "-c", "stty size; read x; echo got $x; test -t 0 && echo tty"], {
    stream: true,
    pty: { columns: 100, rows: 30 },
  });
  let all = "";
  for await (const c of run) {
    all += text(c.data);
    if (all.includes("30 100") && !all.includes("input")) await run.write("input\n");
  }
  assert.match(all, /got input/);
  assert.match(all, /tty/);
  assert.equal((await run.result).exitCode, 0);
});

test("a command ends with its time, with a signal, and with an AbortSignal", async () => {
  await assert.rejects(sb.exec(["sleep", "1000"], { timeout: 300 }), isKind("timeout"));
  await assert.rejects(sb.exec("sleep 1000", { timeout: 300 }), isKind("timeout"));
  const abort = new AbortController();
  const marked = sb.exec(["sh", "-c", "echo started; exec sleep 4242"], {
    stream: true,
    signal: abort.signal,
  });
  await assert.rejects(async () => {
    for await (const c of marked) if (text(c.data).includes("started")) abort.abort();
  }, isKind("canceled"));
  // the process is gone, and not only its client
  const left = await sb.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
  assert.ok(!left.stdout.includes("sleep 4242"), left.stdout);
  const run = sb.exec(["sh", "-c", "echo up; exec sleep 1000"], { stream: true });
  for await (const c of run) if (text(c.data).includes("up")) await run.kill("TERM");
  assert.equal((await run.result).signal, "SIGTERM");
  await assert.rejects(sb.exec(["true"], { signal: AbortSignal.abort() }), isKind("canceled"));
});

test("a loop that is left ends its command", async () => {
  for await (const c of sb.exec(["sh", "-c", "echo go; exec sleep 4343"], { stream: true })) {
    assert.ok(c.data.length > 0);
    break;
  }
  for (;;) {
    // until the kill has arrived
    const left = await sb.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
    if (!left.stdout.includes("sleep 4343")) break;
  }
});

test("a command in the background", async () => {
  const p = await sb.exec(["sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.05; done; exit 5"], {
    background: true,
  });
  await sb.files.write("/tmp/end", "");
  assert.equal((await p.wait()).exitCode, 5);
  const q = await sb.exec(["sleep", "1000"], { background: true });
  await q.kill();
  assert.equal((await q.wait()).signal, "SIGKILL");
});

test("many commands at one time", async () => {
  const all = await Promise.all(Array.from({ length: 40 }, (_, i) => sb.exec(["echo", String(i)])));
  assert.deepEqual(
    all.map((r) => r.stdout),
    all.map((_, i) => `${i}\n`),
  );
});

test("files", async () => {
  const { files } = sb;
  await files.write("/tmp/f/a.txt", "hällo", { mode: 0o600 });
  assert.equal(await files.read("/tmp/f/a.txt"), "hällo");
  assert.equal((await files.stat("/tmp/f/a.txt")).mode, 0o600);
  const big = new Uint8Array(2_000_000).fill(3);
  await files.write("/tmp/f/big", big);
  assert.deepEqual(await files.readBytes("/tmp/f/big"), big);
  let size = 0;
  for await (const p of files.readStream("/tmp/f/big")) size += p.length;
  assert.equal(size, big.length);
  await files.mkdir("/tmp/f/d/e");
  await files.move("/tmp/f/a.txt", "/tmp/f/d/b.txt");
  assert.deepEqual(
    (await files.list("/tmp/f")).map((f) => [f.name, f.type]),
    [
      ["big", "file"],
      ["d", "directory"],
    ],
  );
  assert.equal(await files.exists("/tmp/f/a.txt"), false);
  await assert.rejects(files.read("/tmp/f/a.txt"), isKind("not_found"));
  await assert.rejects(
    files.read("/tmp/f/big", { signal: AbortSignal.abort() }),
    isKind("canceled"),
  );
  await files.remove("/tmp/f", { recursive: true });
  assert.equal(await files.exists("/tmp/f"), false);
});

test("a watch sees changes", async () => {
  await sb.files.mkdir("/tmp/w");
  const abort = new AbortController();
  let name = "";
  let n = 0;
  const writing = (async () => {
    while (!name) await sb.files.write(`/tmp/w/x${n++}`, "1");
  })();
  for await (const c of sb.files.watch("/tmp/w", { signal: abort.signal })) {
    name = c.path;
    break;
  }
  await writing;
  assert.match(name, /^\/tmp\/w\//);
});

test("folders up and down", async () => {
  await mkdir(join(root, "up", "sub"), { recursive: true });
  await writeFile(join(root, "up", "sub", "a"), "from here");
  await sb.files.upload(join(root, "up"), "/tmp/");
  assert.equal(await sb.files.read("/tmp/up/sub/a"), "from here");
  await sb.exec([
    "sh",
    "-c",
    "ln -s /etc/passwd /tmp/up/evil; mkfifo /tmp/up/fifo; echo there > /tmp/up/sub/b",
  ]);
  const skipped = await sb.files.download("/tmp/up", join(root, "down"));
  assert.equal(await readFile(join(root, "down", "up", "sub", "b"), "utf8"), "there\n");
  assert.ok(skipped.includes("up/evil"));
});

test("a sandbox is found again, listed, and clones have what it has", async () => {
  const again = await client.connect(sb.id);
  assert.equal((await again.exec(["echo", "same"])).stdout, "same\n");
  again.detach();
  const info = await sb.info();
  assert.equal(info.id, sb.id);
  assert.ok(["ready", "running"].includes(info.state));
  assert.ok((await client.sandboxes()).some((s) => s.id === sb.id));
  await sb.files.write("/tmp/mark", "cloned");
  const clone = await sb.clone();
  assert.equal(await clone.files.read("/tmp/mark"), "cloned");
  await clone.files.write("/tmp/mark", "other");
  assert.equal(await sb.files.read("/tmp/mark"), "cloned");
  await clone.close();
  await assert.rejects(clone.exec(["true"]), TurnstoneError);
});

test("pause and resume", async () => {
  await sb.pause();
  assert.equal((await sb.info()).paused, true);
  await sb.resume();
  assert.equal((await sb.exec(["echo", "back"])).stdout, "back\n");
});

test("usage", async () => {
  assert.ok((await client.usage()).sandboxes >= 1);
});

test("errors of the server have kinds and hints", async () => {
  await assert.rejects(
    client.sandbox({ image: "no-such-template", session: false }),
    (e: unknown) => {
      assert.ok(
        e instanceof TurnstoneError && (e.kind === "not_found" || e.kind === "invalid"),
        String(e),
      );
      return true;
    },
  );
  await assert.rejects(
    client.sandbox({ image: "base", env: { "NO NAME": "x" }, session: false }),
    isKind("invalid"),
  );
  await assert.rejects(client.connect("sb_000000000000000000"), isKind("not_found"));
  const other = new Turnstone({ token: "a.b.c" });
  await assert.rejects(other.usage(), (e: unknown) => {
    assert.ok(e instanceof TurnstoneError && e.kind === "denied" && e.hint !== "", String(e));
    return true;
  });
  await other.close();
});

test("a node that no pin names is refused", async () => {
  const wrong = "SHA256:" + "A".repeat(42) + "E";
  const other = new Turnstone({
    host: process.env["TURN_TEST_ADDRESS"] ?? "",
    pins: [wrong],
    home: join(root, "wrong"),
  });
  await assert.rejects(other.sandbox({ image: "base", session: false }), (e: unknown) => {
    assert.ok(e instanceof TurnstoneError && e.fault === "untrusted", String(e));
    return true;
  });
  await other.close();
});

test("another client's sandbox is out of reach", async () => {
  const other = new Turnstone({
    host: process.env["TURN_TEST_ADDRESS"] ?? "",
    pins: [process.env["TURN_TEST_NODE_KEY"] ?? ""],
    home: join(root, "other"),
  });
  const theirs = await other.connect(sb.id);
  await assert.rejects(theirs.exec(["true"]), TurnstoneError);
  await assert.rejects(theirs.close(), isKind("denied"));
  await other.close();
});

test("the operator's socket needs neither token nor pin", async () => {
  const own = new Turnstone({
    host: `unix:${process.env["TURN_TEST_SOCKET"]}`,
    home: join(root, "own"),
  });
  const s = await own.sandbox({ image: "base" });
  assert.equal((await s.exec(["echo", "socket"])).stdout, "socket\n");
  await s.close();
  await own.close();
});
