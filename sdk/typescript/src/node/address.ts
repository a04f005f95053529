import { lookup } from "node:dns";
import { lstat, realpath } from "node:fs/promises";
import { isIP, type LookupFunction } from "node:net";
import { dirname, resolve } from "node:path";
import { fail, textOf, TurnstoneError } from "../errors.js";

/** Where a server is: an https: URL, an http: URL of this machine, or a Unix socket. */
export interface Address {
  /** As parseAddress reads it. */
  text: string;
  /** The path of the Unix socket, or "". */
  socket: string;
  /** The base of URLs without a slash at its end. */
  base: URL;
  loopback: boolean;
}

const hint = "write https://NAME, unix:PATH, or http://127.0.0.1:PORT on this machine";

function isLoopback(host: string): boolean {
  const name = host.replace(/^\[|\]$/g, "").toLowerCase();
  return name === "localhost" || loopbackIP(name);
}

function loopbackIP(ip: string): boolean {
  switch (isIP(ip)) {
    case 4:
      return ip.startsWith("127.");
    case 6:
      return ip === "::1" || /^::ffff:127\./.test(ip);
  }
  return false;
}

/**
 * Parses https://HOST[:PORT][/PATH], http://LOOPBACK[:PORT][/PATH] or unix:PATH. Plain HTTP to another
 * machine is refused, because it would show the token to everyone on the way.
 */
export function parseAddress(text: string): Address {
  const bad = (why: string): TurnstoneError =>
    fail("invalid", why, { op: "host.address", subject: "the server's address", hint });
  // eslint-disable-next-line no-control-regex
  if (text.length > 2048 || /[\x00-\x1f\x7f]/.test(text))
    throw bad("is too long, or has control characters");
  if (text.startsWith("unix:")) {
    const path = text.slice("unix:".length).replace(/^\/\//, "");
    if (path === "") throw bad("has no path of a socket");
    const socket = resolve(path);
    return { text: `unix:${socket}`, socket, base: new URL("http://server"), loopback: true };
  }
  let u: URL;
  try {
    u = new URL(text);
  } catch {
    throw bad("is no URL");
  }
  if (u.protocol !== "https:" && u.protocol !== "http:")
    throw bad("has another scheme than https, http or unix");
  if (u.username !== "" || u.password !== "") throw bad("has a user or a password");
  if (u.hostname === "" || !text.includes("://")) throw bad("has no host");
  if (u.search !== "" || u.hash !== "" || /[?#]/.test(text)) throw bad("has a query or a fragment");
  const loopback = isLoopback(u.hostname);
  if (u.protocol === "http:" && !loopback) {
    throw bad(`${u.host.slice(0, 100)} would carry the token unencrypted to another machine`);
  }
  const base = u.href.replace(/\/+$/, "");
  return { text: base, socket: "", base: new URL(base), loopback };
}

/** Resolves names for plain HTTP, which reaches this machine alone, whatever a name resolves to. */
export const lookupHere: LookupFunction = (name, options, done) => {
  lookup(name, { ...options, all: true }, (err, all) => {
    if (err) {
      done(err, "", 0);
      return;
    }
    const here = all.filter((a) => loopbackIP(a.address));
    if (here.length === 0) {
      done(Object.assign(new Error(`${name} is not this machine`), { code: "ENOTFOUND" }), "", 0);
    } else if (options.all) {
      (done as unknown as (err: null, all: typeof here) => void)(null, here);
    } else {
      done(null, here[0]!.address, here[0]!.family);
    }
  });
};

/**
 * Throws unless a socket belongs to this user or to root, in a folder where nobody else can put
 * another in its place. Node.js does not tell whose process the other end of a socket is.
 */
export async function checkOwn(path: string): Promise<void> {
  const refuse = (why: string): TurnstoneError =>
    fail("invalid", why, {
      op: "host.connect",
      subject: `unix:${path}`,
      hint: "compare its node's key with its operator, and add it with turn host add",
    });
  const uid = process.geteuid?.();
  if (uid === undefined) return; // this system has no users of this kind
  try {
    const socket = await realpath(path);
    const s = await lstat(socket);
    if (!s.isSocket()) throw refuse("is no socket");
    if (s.uid !== uid && s.uid !== 0) throw refuse(`belongs to user ${s.uid}`);
    const folder = await lstat(dirname(socket));
    const shared = (folder.mode & 0o022) !== 0 && (folder.mode & 0o1000) === 0;
    if ((folder.uid !== uid && folder.uid !== 0) || shared) {
      throw refuse("is in a folder that other users can write");
    }
  } catch (err) {
    if (err instanceof TurnstoneError) throw err;
    throw fail("unavailable", textOf(err), {
      op: "host.connect",
      subject: `unix:${path}`,
      hint: "start the server with turn serve",
      cause: err,
    });
  }
}
