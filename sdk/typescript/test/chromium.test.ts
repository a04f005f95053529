import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

// The package in a real browser: runs with scripts/test-server, whose settings allow pages of
// http://page.example, and with TURN_TEST_PAGE, a bundle of page.mjs for browsers.

const bundle = process.env["TURN_TEST_PAGE"];
const skip = bundle ? false : "there is no browser or no bundle";
const server = {
  host: process.env["TURN_TEST_ADDRESS"]!,
  token: process.env["TURN_TOKEN"]!,
  pins: [process.env["TURN_TEST_NODE_KEY"]!],
};

interface Report {
  result?: unknown;
  error?: string;
}

let script = "";
let options: object = {};
let reported: (r: Report) => void = () => undefined;
let port = 0;
let root = "";
const seen: string[] = [];

/** The pages' own server. Nothing but this and the gateway may be asked by a page. */
const pages = createServer((req, res) => {
  seen.push(req.url ?? "");
  const policy =
    `default-src 'none'; script-src 'self'; ` +
    `connect-src 'self' ${server.host} ${server.host.replace(/^http/, "ws")}`;
  if (req.url === "/") {
    res.writeHead(200, { "content-type": "text/html", "content-security-policy": policy });
    res.end('<!doctype html><title>page</title><script type="module" src="/page.js"></script>');
  } else if (req.url === "/page.js") {
    res.writeHead(200, { "content-type": "text/javascript" });
    res.end(script);
  } else if (req.url === "/options") {
    res.writeHead(200, { "content-type": "application/json" });
    res.end(JSON.stringify(options));
  } else if (req.url === "/report") {
    let text = "";
    req.on("data", (p: Buffer) => (text += p.toString()));
    req.on("end", () => {
      res.end();
      reported(JSON.parse(text) as Report);
    });
  } else {
    res.writeHead(404).end();
  }
});

before(async () => {
  if (skip) return;
  script = await readFile(bundle!, "utf8");
  root = await mkdtemp(join(tmpdir(), "turnstone-test-"));
  await new Promise<void>((r) => pages.listen(0, "127.0.0.1", r));
  port = (pages.address() as { port: number }).port;
});
after(async () => {
  if (skip) return;
  pages.close();
  pages.closeAllConnections();
  await rm(root, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
});

let profiles = 0;

/** Opens a page of an origin in a new browser, and returns what its program reports. */
async function open(host: string, o: object): Promise<unknown> {
  options = o;
  const browser = spawn(
    "chromium",
    [
      "--headless=new",
      "--no-sandbox", // the page is the test's own, and a container or root gives Chromium none
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-extensions",
      `--host-resolver-rules=MAP ${host}:80 127.0.0.1:${port}`,
      `--user-data-dir=${join(root, `profile-${profiles++}`)}`,
      `http://${host}/`,
    ],
    { stdio: ["ignore", "ignore", "pipe"], detached: true },
  );
  let said = "";
  let late: ReturnType<typeof setTimeout> | undefined;
  browser.stderr!.on("data", (p: Buffer) => (said = (said + p.toString()).slice(-4000)));
  try {
    const r = await new Promise<Report>((resolve, reject) => {
      reported = resolve;
      late = setTimeout(() => reject(new Error(`the page reports nothing: ${said}`)), 5 * 60_000);
      browser.once("error", reject);
      browser.once("exit", (code) => reject(new Error(`the browser ended (${code}): ${said}`)));
    });
    assert.equal(r.error, undefined);
    return r.result;
  } finally {
    clearTimeout(late);
    await end(browser);
  }
}

/** Ends a browser with its processes. */
async function end(browser: ChildProcess): Promise<void> {
  if (browser.pid === undefined) return;
  const over =
    browser.exitCode !== null || browser.signalCode !== null
      ? undefined
      : new Promise((r) => browser.once("exit", r));
  try {
    process.kill(-browser.pid, "SIGKILL");
  } catch {
    // all of them have ended
  }
  await over;
}

let made: { key: string; session: string; socket: string } | undefined;

test("a page in Chromium runs commands and a turn, and reads files", { skip }, async () => {
  const r = (await open("page.example", { program: "uses", server })) as Record<string, unknown>;
  const { key, session, socket, ...rest } = r;
  assert.deepEqual(rest, {
    echo: "from a page",
    file: "1 \u00e9 \u{1f600}",
    listed: true,
    big: 3_000_000,
    streamed: "got one\ngot two\n",
    passed: true,
    turn: "1 \u00e9 \u{1f600}",
    progress: true,
  });
  made = { key, session, socket } as typeof made;
  assert.match(made!.socket, /^ws:\/\//);
  assert.ok(!made!.socket.includes(server.token), "a token is in no address");
});

test("a session is the key's that made it, and the browser keeps nothing", { skip }, async () => {
  assert.deepEqual(await open("page.example", { program: "again", server, ...made! }), {
    turns: 2,
    refused: { kind: "not_found", fault: "" },
    kept: [0, 0, "", 0],
  });
});

test("a page does not trust a node without a pin", { skip }, async () => {
  assert.deepEqual(await open("page.example", { program: "untrusted", server }), {
    kind: "integrity",
    fault: "untrusted",
  });
});

test("a page of another origin gets neither an answer nor a channel", { skip }, async () => {
  assert.deepEqual(await open("other.example", { program: "elsewhere", server, socket: made!.socket }), {
    refused: { kind: "unavailable", fault: "" },
    socket: "refused",
  });
  assert.deepEqual(
    seen.filter((path) => !["/", "/page.js", "/options", "/report", "/favicon.ico"].includes(path)),
    [],
  );
});
