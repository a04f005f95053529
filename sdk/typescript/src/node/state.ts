import { constants } from "node:fs";
import {
  chmod,
  link,
  lstat,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
} from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { fromBase64, random, toBase64, toHex } from "../bytes.js";
import { KeyPair, keySize, parseKey } from "../channel/key.js";
import { digestOf } from "../attest/attest.js";
import type { KeptStatement, NodeKey, Platform } from "../control/server.js";
import { fail, textOf, type TurnstoneError } from "../errors.js";

const maxFile = 1 << 20;
const maxStatements = 256;
const statementLife = 24 * 3600_000;

/** Returns the state directory: dir, or TURN_HOME, or the user's. */
export function locate(dir?: string): string {
  const named = dir || process.env["TURN_HOME"];
  if (named) return resolve(named);
  const data = process.env["XDG_DATA_HOME"];
  if (data && isAbsolute(data)) return join(data, "turnstone");
  return join(homedir(), ".local", "share", "turnstone");
}

function missing(err: unknown): boolean {
  return (err as NodeJS.ErrnoException).code === "ENOENT";
}

/** Reads a file that others cannot write: it says whom to trust. Without a file it is undefined. */
export async function readOwn(path: string, secret = false): Promise<string | undefined> {
  const bad = (why: string): TurnstoneError =>
    fail("invalid", why, {
      op: "host.load",
      subject: path,
      hint: `make it yours alone: chmod 600 ${path}`,
    });
  let file;
  try {
    // a FIFO would wait for its writer, and a link may lead anywhere
    file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW);
  } catch (err) {
    if (missing(err)) return undefined;
    throw bad(textOf(err));
  }
  try {
    const info = await file.stat();
    if (!info.isFile()) throw bad("is not a regular file");
    if (process.platform !== "win32") {
      if ((info.mode & (secret ? 0o077 : 0o022)) !== 0) {
        const mode = (info.mode & 0o777).toString(8).padStart(4, "0");
        throw bad(`has mode ${mode}: other users can ${secret ? "read" : "write"} it`);
      }
      const uid = process.geteuid?.();
      if (secret && uid !== 0 && info.uid !== uid) throw bad(`belongs to user ${info.uid}`);
    }
    if (info.size > maxFile) throw bad(`is larger than ${maxFile} bytes`);
    return await file.readFile("utf8");
  } finally {
    await file.close();
  }
}

/** Writes a file of mode 0600 in the place of an older one, at once. */
export async function writeOwn(path: string, text: string, exclusive = false): Promise<boolean> {
  const fresh = join(dirname(path), `.new-${toHex(random(8))}`);
  const file = await open(fresh, "wx", 0o600);
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
  try {
    if (!exclusive) {
      await rename(fresh, path);
      return true;
    }
    await link(fresh, path); // fails if there is one
    return true;
  } catch (err) {
    if (exclusive && (err as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw err;
  } finally {
    await rm(fresh, { force: true });
  }
}

/** The state directory of a client. */
export class StateDir {
  constructor(readonly root: string) {}

  path(...parts: string[]): string {
    return join(this.root, ...parts);
  }

  /** Makes a folder, private to its user. */
  async folder(...parts: string[]): Promise<string> {
    const dir = this.path(...parts);
    await mkdir(dir, { recursive: true, mode: 0o700 });
    if (process.platform !== "win32") {
      const info = await lstat(this.root);
      const uid = process.geteuid?.();
      if (uid !== undefined && uid !== 0 && info.uid !== uid) {
        throw fail("invalid", `belongs to user ${info.uid}`, {
          op: "home.open",
          subject: this.root,
          hint: "set TURN_HOME to a directory of your own",
        });
      }
      if ((info.mode & 0o022) !== 0) await chmod(this.root, 0o700);
    }
    return dir;
  }

  /** Returns the client's key, which is made on first use. */
  async clientKey(): Promise<KeyPair> {
    const path = this.path("client", "key");
    const found = await this.#loadKey(path);
    if (found) return found;
    await this.folder("client");
    const key = KeyPair.generate();
    if (await writeOwn(path, toBase64(key.exportPrivate()) + "\n", true)) return key;
    const other = await this.#loadKey(path); // another process was faster
    if (!other) throw fail("unavailable", "disappeared", { op: "host.key", subject: path });
    return other;
  }

  async #loadKey(path: string): Promise<KeyPair | undefined> {
    const text = await readOwn(path, true);
    if (text === undefined) return undefined;
    const secret = fromBase64(text.replace(/\n$/, ""));
    if (secret?.length !== keySize) {
      throw fail("invalid", `is damaged: it is not base64 of ${keySize} bytes`, {
        op: "host.key",
        subject: path,
        hint: "restore the file, or remove it: sessions of the old key are then lost to this client",
      });
    }
    return KeyPair.fromPrivate(secret);
  }

  /** Remembers keys of the nodes of a server. What is wrong with the file costs a round trip. */
  nodeBook(address: string): NonNullable<Platform["nodes"]> {
    const path = this.path("client", "nodes", `${addressName(address)}.json`);
    return {
      load: async () => {
        const all = JSON.parse((await readOwn(path)) ?? "[]") as {
          node: string;
          key: string;
          tenant: string;
        }[];
        return all.map(
          (n): NodeKey => ({
            node: String(n.node),
            key: parseKey(n.key),
            tenant: String(n.tenant),
          }),
        );
      },
      save: async (all) => {
        await this.folder("client", "nodes");
        const text = all.map((n) => ({ node: n.node, key: toBase64(n.key), tenant: n.tenant }));
        await writeOwn(path, JSON.stringify(text) + "\n");
      },
    };
  }

  /** Keeps the newest statement about each sandbox of a server. */
  statementBook(address: string): NonNullable<Platform["statements"]> {
    const dir = this.path("client", "statements", addressName(address));
    const pathOf = (id: string): string | undefined =>
      /^sb_[0-9a-v]{18}$/.test(id) ? join(dir, id) : undefined;
    return {
      load: async (id) => {
        const path = pathOf(id);
        const text = path && (await readOwn(path));
        if (!text) return undefined;
        const k = JSON.parse(text) as Record<string, string | undefined>;
        const bytes = (s: string | undefined): Uint8Array =>
          fromBase64(s ?? "") ?? new Uint8Array(0);
        const kept: KeptStatement = {
          envelope: bytes(k["envelope"]),
          nonce: bytes(k["nonce"]),
          path: String(k["path"]),
          certificate: bytes(k["certificate"]),
        };
        return kept;
      },
      save: async (id, k) => {
        const path = pathOf(id);
        if (!path) return;
        await this.folder("client", "statements", addressName(address));
        await prune(dir);
        const text = {
          envelope: toBase64(k.envelope),
          nonce: toBase64(k.nonce),
          path: k.path,
          ...(k.certificate.length > 0 ? { certificate: toBase64(k.certificate) } : {}),
        };
        await writeOwn(path, JSON.stringify(text));
      },
      drop: async (id) => {
        const path = pathOf(id);
        if (path) await rm(path, { force: true });
      },
    };
  }
}

/** Removes statements that have expired, and the oldest of too many. */
async function prune(dir: string): Promise<void> {
  const all: { path: string; at: number }[] = [];
  for (const name of await readdir(dir)) {
    const path = join(dir, name);
    const info = await stat(path).catch(() => undefined);
    if (info) all.push({ path, at: info.mtimeMs });
  }
  all.sort((a, b) => b.at - a.at);
  for (const [n, f] of all.entries()) {
    if (n >= maxStatements - 1 || Date.now() - f.at > statementLife)
      await rm(f.path, { force: true });
  }
}

/** Returns the name that files about the server at an address have. */
function addressName(address: string): string {
  return digestOf(new TextEncoder().encode(address)).slice("sha256:".length, "sha256:".length + 16);
}

/** Reads a token from a file that only its owner can read. */
export async function readToken(path: string): Promise<string> {
  const text = await readOwn(path, true);
  const token = (text ?? "").trim();
  if (token === "" || token.length > 16 << 10 || !/^[!-~]+$/.test(token)) {
    throw fail("invalid", text === undefined ? "does not exist" : "has no token", {
      op: "host.token",
      subject: path,
      hint: "write a token of turn token create into it (mode 0600), or set TURN_TOKEN",
    });
  }
  return token;
}

/** Returns the text of a small file; undefined if there is none. */
export async function readIfThere(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, "utf8");
  } catch (err) {
    if (missing(err)) return undefined;
    throw err;
  }
}
