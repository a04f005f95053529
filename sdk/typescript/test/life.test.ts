import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { Turnstone, TurnstoneError } from "../src/index.js";
import { Proxy } from "./proxy.js";

// What the server does for a sandbox beside commands, and calls that are lost, cancelled or late.

const root = await mkdtemp(join(tmpdir(), "turnstone-test-"));
const address = process.env["TURN_TEST_ADDRESS"] ?? "";
const pins = [process.env["TURN_TEST_NODE_KEY"] ?? ""];
const client = new Turnstone();
after(async () => {
  await client.close();
  await rm(root, { recursive: true, force: true });
});

/** Waits for what is meant. */
async function until(what: () => Promise<boolean>): Promise<void> {
  while (!(await what())) await new Promise((r) => setTimeout(r, 50));
}

test("a port is reached by HTTP", async () => {
  const sb = await client.sandbox({ image: "python", session: false });
  await sb.files.write("/srv/index.html", "from inside\n");
  const server = await sb.exec(["python3", "-m", "http.server", "8000", "--directory", "/srv"], {
    background: true,
  });
  const connect = `python3 -c 'import socket; socket.create_connection(("10.0.2.15", 8000))'`;
  await sb.exec(`until ${connect}; do sleep 0.1; done`, { check: true });
  const { url, expires } = await sb.expose(8000, { ttl: 3_600_000 });
  assert.ok(expires);
  assert.equal(await (await fetch(url)).text(), "from inside\n");
  await server.kill();
  await sb.close();
});

test("a snapshot starts others, also after the first sandbox's end", async () => {
  const sb = await client.sandbox({ image: "base", session: false });
  await sb.exec("export WORD=remembered; cd /tmp; echo 1 > file");
  const snapshot = await sb.snapshot();
  await sb.exec("WORD=changed; rm file");
  await sb.close();
  for (let n = 0; n < 2; n++) {
    const other = await client.sandbox({ snapshot });
    const r = await other.exec("echo $WORD $PWD; cat file");
    assert.equal(r.stdout, "remembered /tmp\n1\n");
    await other.close();
  }
});

test("forks of a session's sandbox are independent", async () => {
  const sb = await client.sandbox({ image: "base" });
  const p = await sb.exec(["sh", "-c", "echo 1 > /root/first"], { background: true });
  await p.wait();
  assert.ok(await sb.commit());
  const forks = await sb.fork(2);
  assert.equal(forks.length, 2);
  for (const [n, fork] of forks.entries()) {
    await fork.files.write("/root/n", String(n));
    assert.equal(await fork.files.read("/root/first"), "1\n");
    assert.equal(await fork.files.read("/root/n"), String(n));
    await fork.close({ discard: true });
  }
  assert.equal(await sb.files.exists("/root/n"), false);
  await sb.close();
});

test("a node that the operator's root certifies needs no pin", async () => {
  const rooted = new Turnstone({
    host: address,
    root: process.env["TURN_TEST_ROOT"] ?? "",
    home: join(root, "rooted"),
  });
  const sb = await rooted.sandbox({ image: "base", session: false });
  assert.equal((await sb.exec(["echo", "certified"])).stdout, "certified\n");
  await sb.close();
  assert.ok((await rooted.run("```bash\necho hi\n```\n", { session: "ts-rooted" })).passed);
  await rooted.close();
});

test("a node of another root is refused", async () => {
  const other = new Turnstone({
    host: address,
    root: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH8f7DCGsWFzsmbI7c1S6jACJPo7kSk/s5p3VYKF0O/o",
    home: join(root, "other"),
  });
  await assert.rejects(
    (async () => {
      const sb = await other.sandbox({ image: "base", session: false });
      await sb.exec(["true"]);
    })(),
    (e: unknown) => {
      assert.ok(e instanceof TurnstoneError && e.kind === "integrity" && e.fault, String(e));
      return true;
    },
  );
  await other.close();
});

for (const [method, what] of [
  ["CreateSandbox", "makes no second sandbox"],
  ["StartTurn", "runs no second turn"],
] as const) {
  test(`a lost answer ${what}`, async () => {
    const proxy = await Proxy.start(address);
    let lost = 0;
    proxy.tamper = {
      answer: (name, body) => {
        if (name === method && lost++ === 0) throw new Error("lost on the way");
        return body;
      },
    };
    const c = new Turnstone({ host: proxy.url, pins, home: join(root, `lost-${method}`) });
    if (method === "CreateSandbox") {
      const sb = await c.sandbox({ image: "base", session: false, name: "ts-only-one" });
      assert.equal((await sb.exec(["echo", "hi"])).stdout, "hi\n");
      const named = (await c.sandboxes()).filter((s) => s.name === "ts-only-one");
      assert.deepEqual(
        named.map((s) => s.id),
        [sb.id],
      );
      await sb.close();
    } else {
      const doc = "```bash\necho once >> /root/times; cat /root/times\n```\n";
      const r = await c.run(doc, { session: "ts-once" });
      assert.equal(r.steps[0]!.stdout, "once\n");
      assert.equal((await c.session("ts-once").log()).turns.length, 1);
    }
    assert.ok(lost >= 1);
    await c.close();
    proxy.close();
  });
}

test("a cancelled turn ends", async () => {
  const abort = new AbortController();
  const run = client.run("```bash\necho begun; sleep 4010\n```\n", {
    session: "ts-cancelled",
    signal: abort.signal,
    onProgress: (p) => {
      if (p.type === "output") abort.abort();
    },
  });
  await assert.rejects(run, (e: unknown) => e instanceof TurnstoneError && e.kind === "canceled");
  await until(async () => {
    const receipt = await client
      .session("ts-cancelled")
      .receipt(1)
      .catch((e: unknown) => {
        if (e instanceof TurnstoneError && e.kind === "not_found") return ""; // not yet
        throw e;
      });
    return /cancel|interrupted/.test(receipt);
  });
});

test("verify has what a session's turns are signed with", async () => {
  const session = client.session("ts-verified");
  await client.run("```bash\necho 1 > /root/a\n```\n", { session: "ts-verified", image: "base" });
  const v = await session.verify();
  assert.equal(v.ok, true);
});
