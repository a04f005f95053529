import { constants, createReadStream } from "node:fs";
import { lstat, mkdir, open, readdir, readlink, symlink } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { utf8 } from "../bytes.js";
import { checkSignal, fail } from "../errors.js";
import { tarHeader } from "../run.js";
import { ByteReader } from "../stream.js";

const block = 512;
const maxHeader = 64 << 10;

// Bounds of an untrusted archive: the other SDKs have the same, and the same vectors.
const maxEntries = 1_000_000;
const maxDepth = 255; // parts of a name
const maxName = 4096; // bytes
const maxPart = 255;
const maxAfter = 64 << 10; // bytes after the end
const end = new Uint8Array(2 * block);

/** Packs a file or a folder of this machine as a tar archive, relative to its parent. */
export async function* pack(path: string, signal?: AbortSignal): AsyncIterable<Uint8Array> {
  const root = resolve(path);
  yield* packOne(root, basename(root), signal);
  yield end;
}

async function* packOne(
  path: string,
  name: string,
  signal?: AbortSignal,
): AsyncIterable<Uint8Array> {
  checkSignal(signal, "files.upload");
  const info = await lstat(path);
  const time = info.mtimeMs / 1000;
  if (info.isDirectory()) {
    yield* header(`${name}/`, 0, info.mode, "5", "", time);
    for (const child of (await readdir(path)).sort())
      yield* packOne(join(path, child), `${name}/${child}`, signal);
  } else if (info.isSymbolicLink()) {
    yield* header(name, 0, 0o777, "2", await readlink(path), time);
  } else if (info.isFile()) {
    yield* header(name, info.size, info.mode, "0", "", time);
    let left = info.size;
    for await (const part of createReadStream(path) as AsyncIterable<Buffer>) {
      left -= part.length;
      if (left < 0) break;
      yield part;
      checkSignal(signal, "files.upload");
    }
    if (left !== 0) {
      throw fail("invalid", "changed while it was copied", {
        op: "files.upload",
        subject: path,
        hint: "try again",
      });
    }
    yield new Uint8Array((block - (info.size % block)) % block);
  }
}

/** Returns the header of an entry; long names are in an extended one before it (POSIX pax). */
function* header(
  name: string,
  size: number,
  mode: number,
  type: string,
  link: string,
  time: number,
): Iterable<Uint8Array> {
  let records = "";
  const add = (key: string, value: string): void => {
    const rest = ` ${key}=${value}\n`;
    const bytes = utf8(rest).length;
    let length = bytes + String(bytes).length;
    if (bytes + String(length).length !== length) length = bytes + String(length).length;
    records += length + rest;
  };
  if (utf8(name).length > 100) add("path", name);
  if (utf8(link).length > 100) add("linkpath", link);
  if (size >= 8 ** 11) add("size", String(size));
  if (records) {
    const body = utf8(records);
    yield tarHeader("pax", body.length, 0o644, "x");
    yield body;
    yield new Uint8Array((block - (body.length % block)) % block);
  }
  yield tarHeader(name, size < 8 ** 11 ? size : 0, mode, type, link, time);
}

interface Entry {
  name: string;
  link: string;
  size: number;
  mode: number;
  type: string;
}

function bad(why: string): Error {
  return fail("integrity", why, { op: "files.download", subject: "the archive" });
}

function tooMuch(why: string): Error {
  return fail("exhausted", why, { op: "files.download", subject: "the archive" });
}

function textAt(b: Uint8Array, at: number, size: number): string {
  const part = b.subarray(at, at + size);
  const zero = part.indexOf(0);
  return new TextDecoder().decode(zero < 0 ? part : part.subarray(0, zero));
}

function octalAt(b: Uint8Array, at: number, size: number): number {
  const text = textAt(b, at, size).trim();
  if (text === "") return 0;
  if (!/^[0-7]+$/.test(text)) throw bad("a number is malformed");
  return parseInt(text, 8);
}

function parseHeader(b: Uint8Array): Entry {
  let sum = 0;
  for (let i = 0; i < block; i++) sum += i >= 148 && i < 156 ? 32 : b[i]!;
  if (sum !== octalAt(b, 148, 8)) throw bad("a header is damaged");
  const ustar = textAt(b, 257, 5) === "ustar";
  const prefix = ustar ? textAt(b, 345, 155) : "";
  const name = textAt(b, 0, 100);
  return {
    name: prefix ? `${prefix}/${name}` : name,
    link: textAt(b, 157, 100),
    size: octalAt(b, 124, 12),
    mode: octalAt(b, 100, 8),
    type: String.fromCharCode(b[156] || 48),
  };
}

function parsePax(body: Uint8Array): Partial<Entry> {
  const out: Partial<Entry> = {};
  for (let at = 0; at < body.length; ) {
    const space = body.indexOf(32, at);
    const length = Number(textAt(body, at, space - at));
    if (space < 0 || !Number.isInteger(length) || length < 5 || at + length > body.length)
      throw bad("a record is malformed");
    const text = new TextDecoder().decode(body.subarray(space + 1, at + length - 1));
    const [key, value] = [text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1)];
    if (key === "path") out.name = value;
    else if (key === "linkpath") out.link = value;
    else if (key === "size") {
      out.size = Number(value);
      if (!Number.isSafeInteger(out.size) || out.size < 0) throw bad("a size is malformed");
    }
    at += length;
  }
  return out;
}

/** Bounds of an archive. */
export interface Limits {
  bytes: number;
  entries?: number;
}

/**
 * Unpacks an untrusted archive into a folder, and returns the names of what is left out: devices,
 * sockets, hard links, and links that lead out of the folder. Nothing is written outside of it, and
 * existing files are not followed as links. A name other than only at the top is an error, because
 * other files of the user are there; an empty only allows all names.
 */
export async function unpack(
  tar: AsyncIterable<Uint8Array>,
  dest: string,
  limits: Limits,
  only: string,
): Promise<string[]> {
  const root = resolve(dest);
  await mkdir(root, { recursive: true });
  const source = tar[Symbol.asyncIterator]();
  const reader = new ByteReader({
    read: async () => {
      const next = await source.next();
      return next.done ? null : next.value;
    },
  });
  try {
    return await unpackAll(reader, root, limits, only);
  } finally {
    await source.return?.();
  }
}

async function unpackAll(
  reader: ByteReader,
  root: string,
  limits: Limits,
  only: string,
): Promise<string[]> {
  const skipped: string[] = [];
  let left = limits.bytes;
  let headers = 0; // of entries, and extended ones before them
  let entries = 0;
  const most = limits.entries ?? maxEntries;
  let extra: Partial<Entry> = {};
  for (;;) {
    const head = await reader.take(block);
    if (head.length < block) throw bad("is truncated");
    if (head.every((b) => b === 0)) {
      for (let after = 0; after < maxAfter; after += block)
        if ((await reader.take(block)).length === 0) break;
      return skipped;
    }
    if (++headers > 4 * most) throw tooMuch(`has more than ${most} files`);
    const e = { ...parseHeader(head), ...extra };
    extra = {};
    if (e.type === "x" || e.type === "g" || e.type === "L" || e.type === "K") {
      if (e.size > maxHeader) throw bad("a header is too large");
      const body = (await reader.take(padded(e.size))).slice(0, e.size);
      if (body.length < e.size) throw bad("is truncated");
      if (e.type === "x") extra = parsePax(body);
      else if (e.type === "L") extra = { name: textAt(body, 0, body.length) };
      else if (e.type === "K") extra = { link: textAt(body, 0, body.length) };
      continue;
    }
    if (++entries > most) throw tooMuch(`has more than ${most} files`);
    left -= e.size;
    if (left < 0) throw tooMuch(`has more than ${limits.bytes} bytes`);
    if (!(await extract(reader, root, e, only))) skipped.push(e.name.slice(0, 200));
  }
}

function padded(size: number): number {
  return Math.ceil(size / block) * block;
}

/** Returns the parts of a name that may be written. Agents send no others. */
function partsOf(name: string, only: string): string[] {
  const parts = name.split("/").filter((p) => p !== "" && p !== ".");
  if (name === "" || name.startsWith("/") || parts.includes("..") || name.includes("\0"))
    throw bad("has a name that leads out of the folder");
  if (process.platform === "win32" && /[\\:]/.test(name))
    throw bad("has a name that is none on Windows");
  if (parts.length > maxDepth) throw bad("has a folder that is nested too deeply");
  if (utf8(name).length > maxName || parts.some((p) => utf8(p).length > maxPart))
    throw bad("has a name that is too long");
  if (only !== "" && parts[0] !== only) throw bad("has a name beside what was asked for");
  return parts;
}

async function extract(
  reader: ByteReader,
  root: string,
  e: Entry,
  only: string,
): Promise<boolean> {
  const parts = partsOf(e.name, only);
  const kind = e.type === "\0" || e.type === "7" ? "0" : e.type;
  if (parts.length === 0 || (kind !== "0" && kind !== "2" && kind !== "5")) {
    await skip(reader, e.size);
    return parts.length === 0 && kind === "5";
  }
  await folders(root, kind === "5" ? parts : parts.slice(0, -1));
  const path = join(root, ...parts);
  if (kind === "5") return true;
  if (kind === "2") {
    await skip(reader, e.size);
    return link(parts, path, e.link);
  }
  return file(reader, path, e);
}

async function skip(reader: ByteReader, size: number): Promise<void> {
  for (let left = padded(size); left > 0; ) {
    const part = await reader.take(Math.min(left, 64 << 10));
    if (part.length === 0) throw bad("is truncated");
    left -= part.length;
  }
}

/** Makes the folders of a path, none of which may be a link. */
async function folders(root: string, parts: string[]): Promise<void> {
  let path = root;
  for (const p of parts) {
    path = join(path, p);
    await mkdir(path).catch((err: NodeJS.ErrnoException) => {
      if (err.code !== "EEXIST") throw err;
    });
    if (!(await lstat(path)).isDirectory())
      throw bad("has a name below a link or a file in the place of a folder");
  }
}

/** Makes a link, unless it leads out of its top-level name, now or when others replace what it passes. */
async function link(parts: string[], path: string, target: string): Promise<boolean> {
  let depth = parts.length - 2; // folders between the link and its top-level name
  let named = false;
  if (target === "" || target.startsWith("/") || depth < 0) return false;
  for (const p of target.split("/")) {
    if (p === "" || p === ".") continue;
    if (p !== "..") named = true;
    else if (named || --depth < 0) return false;
  }
  return symlink(target, path).then(
    () => true,
    () => false,
  );
}

async function file(reader: ByteReader, path: string, e: Entry): Promise<boolean> {
  const flags =
    constants.O_WRONLY |
    constants.O_CREAT |
    constants.O_TRUNC |
    constants.O_NOFOLLOW |
    constants.O_NONBLOCK;
  const out = await open(path, flags, e.mode & 0o777).catch(() => undefined);
  if (!out || !(await out.stat()).isFile()) {
    await out?.close();
    await skip(reader, e.size);
    return false;
  }
  try {
    for (let left = e.size; left > 0; ) {
      const part = await reader.take(Math.min(left, 64 << 10));
      if (part.length === 0) throw bad("is truncated");
      await out.writeFile(part);
      left -= part.length;
    }
  } finally {
    await out.close();
  }
  await reader.take(padded(e.size) - e.size);
  return true;
}
