import assert from "node:assert/strict";
import { after, test } from "node:test";

// The client for browsers, on the browser's interfaces that Node.js has: runs with scripts/test-server
// and --experimental-websocket. The server allows pages of this origin.

const origin = "https://app.example.org";
let sent = origin;
const NodeSocket = globalThis.WebSocket as unknown as new (url: string, o: object) => WebSocket;
const asked: string[][] = [];
globalThis.WebSocket = class extends (NodeSocket as unknown as typeof WebSocket) {
  constructor(url: string | URL, protocols?: string | string[]) {
    asked.push([protocols ?? []].flat());
    super(String(url), { protocols, headers: { origin: sent } } as unknown as string[]); // as a browser does
  }
} as typeof WebSocket;
const nodeFetch = globalThis.fetch;
globalThis.fetch = async (input, init) => {
  const headers = new Headers(init?.headers);
  headers.set("origin", sent);
  const a = await nodeFetch(input, { ...init, headers });
  if (a.headers.get("access-control-allow-origin") !== sent) throw new TypeError("Failed to fetch");
  return a;
};

const { Turnstone, TurnstoneError } = await import("../src/browser.js");
const options = {
  host: process.env["TURN_TEST_ADDRESS"]!,
  token: process.env["TURN_TOKEN"]!,
  pins: [process.env["TURN_TEST_NODE_KEY"]!],
};
const client = new Turnstone(options);
after(() => client.close());

test("a page runs commands and documents, and reads files", async () => {
  const sb = await client.sandbox({ image: "base" });
  assert.equal((await sb.exec(["cat"], { stdin: "from a page" })).stdout, "from a page");
  await sb.files.write("/root/page", "1");
  assert.equal(await sb.files.read("/root/page"), "1");
  const big = await sb.exec(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]);
  assert.equal(big.stdout.length, 3_000_000);
  await assert.rejects(
    sb.files.upload("/etc", "/tmp"),
    (e) => e instanceof TurnstoneError && e.kind === "invalid",
  );
  await sb.close();
  const r = await client.run("# A\n\n```bash\ncat /root/page\n```\n");
  assert.equal(r.steps[0]!.stdout, "1");
  assert.deepEqual(asked[0]![0], "turnstone.v1");
  assert.ok(asked.every((p) => p.length === 2 && p[1]!.startsWith("turnstone.token.")));
});

test("a page of another origin is refused", async () => {
  sent = "https://other.example.org";
  const other = new Turnstone(options);
  await assert.rejects(other.usage(), TurnstoneError);
  await other.close();
  sent = origin;
});

test("a node that the page does not trust is refused", async () => {
  const other = new Turnstone({ ...options, pins: [] });
  await assert.rejects(
    other.sandbox({ image: "base", session: false }),
    (e) => e instanceof TurnstoneError && e.fault === "untrusted",
  );
  await other.close();
});

test("a token goes over https, or to this machine", () => {
  assert.throws(() => new Turnstone({ ...options, host: "http://example.org" }), TurnstoneError);
});
