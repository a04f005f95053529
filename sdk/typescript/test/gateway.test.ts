import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { ed25519 } from "@noble/curves/ed25519.js";
import { preAuthEncoding } from "../src/attest/envelope.js";
import { SignerKey } from "../src/attest/ssh.js";
import { Turnstone, TurnstoneError } from "../src/index.js";
import { Proxy, type Tamper } from "./proxy.js";

// A hostile gateway between a client and a server: runs with scripts/test-server.

const root = await mkdtemp(join(tmpdir(), "turnstone-test-"));
const proxy = await Proxy.start(process.env["TURN_TEST_ADDRESS"]!);
const pins = [process.env["TURN_TEST_NODE_KEY"]!];
let homes = 0;
const fresh = (home = `home-${homes++}`): Turnstone =>
  new Turnstone({ host: proxy.url, pins, home: join(root, home) });

const owner = fresh("owner");
const sb = await owner.sandbox({ image: "base", session: false });
await sb.exec(["true"]);
after(async () => {
  proxy.tamper = {};
  await sb.close();
  await owner.close();
  proxy.close();
  await rm(root, { recursive: true, force: true });
});

type Channel = { attestation: string; path: string; serverPublicKey: string };
const channelIn = (b: Record<string, unknown>): Channel | undefined =>
  b["channel"] as Channel | undefined;

/** Changes the statement of each answer that has one. */
function statement(change: (envelope: Buffer) => Buffer): Tamper {
  return {
    answer: (_, body) => {
      const c = channelIn(body);
      if (c?.attestation)
        c.attestation = change(Buffer.from(c.attestation, "base64")).toString("base64");
      return body;
    },
  };
}

/** Signs a statement with the gateway's own key. */
function resign(envelope: Buffer): Buffer {
  const secret = new Uint8Array(32).fill(9);
  const key = SignerKey.fromRaw(ed25519.getPublicKey(secret));
  const e = JSON.parse(envelope.toString()) as { payloadType: string; payload: string };
  const s = JSON.parse(Buffer.from(e.payload, "base64").toString()) as {
    predicate: { signer: string };
  };
  s.predicate.signer = key.text;
  const payload = Buffer.from(JSON.stringify(s));
  const sig = Buffer.from(ed25519.sign(preAuthEncoding(payload), secret)).toString("base64");
  return Buffer.from(
    JSON.stringify({
      payloadType: e.payloadType,
      payload: payload.toString("base64"),
      signatures: [{ keyid: key.id, sig }],
    }),
  );
}

let old: Buffer | undefined;
const flip = (b: Uint8Array, at: number): Uint8Array => {
  const c = b.slice();
  c[at < 0 ? c.length + at : at]! ^= 1;
  return c;
};
let kept: Uint8Array | undefined;

const cases: Record<string, { fault: string; tamper: Tamper }> = {
  "a changed statement": {
    fault: "forged",
    tamper: statement((e) => Buffer.from(e.toString().replace('"payload":"ey', '"payload":"eX'))),
  },
  "a statement of the gateway's own": { fault: "untrusted", tamper: statement(resign) },
  "an old statement": {
    fault: "replayed",
    tamper: statement((e) => {
      old ??= e;
      return old;
    }),
  },
  "its own end behind the statement": {
    fault: "key_swapped",
    tamper: {
      toClient: (m, n) => (n === 0 ? [Buffer.concat([Buffer.of(0), Buffer.alloc(48, 5)])] : [m]),
    },
  },
  "changed bytes": {
    fault: "altered",
    tamper: { toClient: (m, n) => [n === 1 ? flip(m, -1) : m] },
  },
  "a frame that comes again": {
    fault: "repeated",
    tamper: { toClient: (m, n) => (n === 1 ? [m, m] : [m]) },
  },
  "frames in another order": {
    fault: "reordered",
    tamper: {
      toClient: (m, n) => {
        if (n === 1) {
          kept = m;
          return [];
        }
        return n === 2 ? [m, kept!] : [m];
      },
    },
  },
  "the client's own frame": {
    fault: "reflected",
    tamper: { toClient: (m, n, sent) => [n === 1 ? sent[2]! : m] },
  },
};

for (const [name, { fault, tamper }] of Object.entries(cases)) {
  test(`${name}: ${fault}, in a sandbox and at a node`, async () => {
    proxy.tamper = {};
    const client = fresh("owner"); // whose sandbox it is
    const theirs = await client.connect(sb.id);
    await (await client.server()).forget(sb.id); // a kept statement would be used
    if (fault === "replayed") {
      proxy.tamper = tamper; // the first statement is kept for the second
      old = undefined;
      await theirs.exec(["true"]);
      theirs.detach();
      await (await client.server()).forget(sb.id);
    }
    proxy.tamper = tamper;
    const before = proxy.channels;
    const again = fault === "replayed" ? fresh("owner") : client;
    const used = fault === "replayed" ? await again.connect(sb.id) : theirs;
    const refused = (e: unknown): boolean => {
      assert.ok(e instanceof TurnstoneError, String(e));
      assert.equal(e.fault, fault, e.message);
      assert.equal(e.kind, "integrity");
      assert.equal(e.retryable, false);
      return true;
    };
    await assert.rejects(used.exec(["sh", "-c", "echo one; sleep 0.2; echo two"]), refused);
    assert.ok(proxy.channels <= before + 1, "a manipulated connection is not tried again");
    if (fault !== "replayed")
      await assert.rejects(
        fresh("owner").session("none").log(),
        (e) => e instanceof TurnstoneError && e.fault === fault,
      );
    proxy.tamper = {};
    await client.close();
    await again.close();
    await fresh("owner").close();
  });
}

test("a gateway that answers another address of the channel is not followed", async () => {
  proxy.tamper = {
    answer: (_, body) => {
      const c = channelIn(body);
      if (c) c.path = "/turnstone/v1/../../evil";
      return body;
    },
  };
  const client = fresh("owner");
  const theirs = await client.connect(sb.id);
  await (await client.server()).forget(sb.id);
  await assert.rejects(theirs.exec(["true"]), (e: TurnstoneError) => e.kind === "integrity");
  proxy.tamper = {};
  await client.close();
});

test("a redirection is not followed", async () => {
  const seen: string[] = [];
  const { createServer } = await import("node:http");
  const evil = createServer((req, res) => {
    seen.push(req.headers.authorization ?? "");
    res
      .writeHead(req.url === "/healthz" ? 200 : 307, { location: "http://127.0.0.1:1/evil" })
      .end();
  });
  await new Promise<void>((r) => evil.listen(0, "127.0.0.1", r));
  const { port } = evil.address() as { port: number };
  const client = new Turnstone({
    host: `http://127.0.0.1:${port}`,
    home: join(root, "redirected"),
  });
  await assert.rejects(
    client.usage(),
    (e: TurnstoneError) => e.kind === "invalid" && /redirects/.test(e.message),
  );
  assert.deepEqual(seen.slice(0, 1), [""]); // the greeting has no token
  await client.close();
  evil.close();
});

test("a command, its input and a turn continue after lost connections", async () => {
  proxy.tamper = {};
  const client = fresh("owner");
  const theirs = await client.connect(sb.id);
  let cuts = 0;
  let all = "";
  const run = theirs.exec(
    ["sh", "-c", "echo ready; for i in 1 2 3 4 5 6; do read x; echo got $x; done"],
    {
      stream: true,
      stdin: (async function* () {
        for (let i = 1; i <= 6; i++) {
          while (!all.includes(i === 1 ? "ready" : `got ${i - 1}\n`))
            await new Promise((r) => setTimeout(r, 5));
          if (i % 2 === 0) {
            cuts++;
            proxy.cut();
          }
          yield `${i}\n`;
        }
      })(),
    },
  );
  for await (const c of run) all += new TextDecoder().decode(c.data);
  assert.equal(all, "ready\ngot 1\ngot 2\ngot 3\ngot 4\ngot 5\ngot 6\n");
  assert.equal(cuts, 3);

  const steps =
    "# A\n\n```bash\nfor i in 1 2 3; do echo line $i; sleep 0.3; done; echo run >> /root/runs; cat /root/runs\n```\n";
  let lines = 0;
  const receipt = await client.run(steps, {
    image: "base",
    onProgress: (p) => {
      if (p.type === "output" && lines++ < 2) proxy.cut();
    },
  });
  assert.equal(receipt.passed, true, receipt.error);
  assert.equal(receipt.steps[0]!.stdout, "line 1\nline 2\nline 3\nrun\n");
  await client.close();
});

test("a manipulation within a turn ends it for the client", async () => {
  const client = fresh("owner");
  proxy.tamper = { toClient: (m, n) => [n === 3 ? flip(m, -1) : m] };
  await assert.rejects(
    client.run("# A\n\n```bash\necho x; sleep 0.2; echo y\n```\n", { image: "base" }),
    (e: TurnstoneError) => e.fault === "altered",
  );
  proxy.tamper = {};
  await client.close();
});
