// The program of a page in a browser: chromium.test.ts serves it, in a bundle with the package.
import { Turnstone, TurnstoneError } from "turnstone";

const sockets = [];
const BrowserSocket = globalThis.WebSocket;
globalThis.WebSocket = class extends BrowserSocket {
  constructor(url, protocols) {
    super(url, protocols);
    sockets.push(url);
  }
};

const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
const bytes = (text) => Uint8Array.from(text.match(/../g), (b) => parseInt(b, 16));

/** Returns what an error says of itself. */
async function refusal(promise) {
  try {
    await promise;
    return "nothing was refused";
  } catch (err) {
    return err instanceof TurnstoneError ? { kind: err.kind, fault: err.fault ?? "" } : String(err);
  }
}

/** Opens a WebSocket without the package. */
function dial(url, token) {
  return new Promise((resolve) => {
    const s = new BrowserSocket(url, ["turnstone.v1", `turnstone.token.${token}`]);
    s.onopen = () => resolve("opened");
    s.onerror = () => resolve("refused");
  });
}

const programs = {
  /** Commands, files and a turn, and the session again in a second client with the same key. */
  async uses(o) {
    const key = crypto.getRandomValues(new Uint8Array(32));
    const client = new Turnstone({ ...o.server, key });
    const out = { key: hex(key) };
    const sb = await client.sandbox({ image: "base" });
    out.echo = (await sb.exec(["cat"], { stdin: "from a page" })).stdout;
    await sb.files.write("/root/page", "1 \u00e9 \u{1f600}");
    out.file = await sb.files.read("/root/page");
    out.listed = (await sb.files.list("/root")).map((f) => f.name).includes("page");
    out.big = (await sb.exec(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"])).stdout.length;
    let heard = () => undefined;
    const one = new Promise((resolve) => (heard = resolve));
    async function* input() {
      yield "one\n";
      await one;
      yield "two\n";
    }
    const run = sb.exec(["sh", "-c", "read x; echo got $x; read y; echo got $y"], { stream: true, stdin: input() });
    out.streamed = "";
    for await (const c of run) {
      out.streamed += new TextDecoder().decode(c.data);
      if (out.streamed === "got one\n") heard();
    }
    await sb.close();
    const progress = new Set();
    const receipt = await client.run("# A\n\n```bash\ncat /root/page\n```\n", {
      onProgress: (p) => progress.add(p.type),
    });
    out.passed = receipt.passed;
    out.turn = receipt.steps[0].stdout;
    out.progress = progress.has("output");
    out.session = client.contextId;
    out.socket = sockets.at(-1);
    await client.close();
    return out;
  },
  /** The session of another page: with its key, and with another one. */
  async again(o) {
    const same = new Turnstone({ ...o.server, key: bytes(o.key), contextId: o.session });
    const turns = (await same.session().log()).turns.length;
    await same.close();
    const other = new Turnstone({ ...o.server, contextId: o.session });
    const refused = await refusal(other.session().log());
    await other.close();
    const kept = [localStorage.length, sessionStorage.length, document.cookie, (await indexedDB.databases()).length];
    return { turns, refused, kept };
  },
  async untrusted(o) {
    const client = new Turnstone({ ...o.server, pins: [] });
    const refused = await refusal(client.sandbox({ image: "base", session: false }));
    await client.close();
    return refused;
  },
  /** A page of an origin that the server does not name. */
  async elsewhere(o) {
    const client = new Turnstone(o.server);
    const refused = await refusal(client.usage());
    await client.close();
    return { refused, socket: await dial(o.socket, o.server.token) };
  },
};

const report = (what) => fetch("/report", { method: "POST", body: JSON.stringify(what) });
try {
  const o = await (await fetch("/options")).json();
  await report({ result: await programs[o.program](o) });
} catch (err) {
  await report({ error: `${err} ${err?.cause ?? ""}\n${err?.stack ?? ""}` });
}
