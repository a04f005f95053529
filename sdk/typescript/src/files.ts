import { fromUtf8, toBase64, utf8 } from "./bytes.js";
import { aborted, checkSignal, fail, TurnstoneError } from "./errors.js";
import type { Connect } from "./process.js";
import { holding, Queue } from "./stream.js";
import type { FileSystemChange, FileSystemFileInfo } from "./wire/protocol.js";

/** What is known of a file. */
export type FileInfo = FileSystemFileInfo;

/** A change of a file. `overflow`: there were more changes than the sandbox keeps. */
export interface FileChange {
  path: string;
  kind: string;
  overflow: boolean;
}

/** Options of all calls. */
export interface CallOptions {
  signal?: AbortSignal;
}

/** Packs and unpacks folders of this machine: only of Node.js. */
export interface LocalFiles {
  pack(path: string, signal?: AbortSignal): AsyncIterable<Uint8Array>;
  unpack(
    tar: AsyncIterable<Uint8Array>,
    dest: string,
    limits: { bytes: number },
    only: string,
  ): Promise<string[]>;
}

const maxInline = 256 << 10;
const maxText = 1 << 30;
/** Bytes of a folder that is copied out of a sandbox. */
const maxFolder = 64 * 2 ** 30;

/** The files of a sandbox. Paths are absolute. */
export class Files {
  #connect: Connect;
  #local: LocalFiles | undefined;

  constructor(connect: Connect, local?: LocalFiles) {
    this.#connect = connect;
    this.#local = local;
  }

  /** Returns the bytes of a file. */
  async readBytes(path: string, o: CallOptions = {}): Promise<Uint8Array> {
    const wire = await this.#connect(o.signal);
    const from = wire.receiver();
    const answer = wire.call("FileSystem.read", { path, stream: from.id }, o.signal);
    answer.catch(() => from.close());
    const bytes = await preferred(
      within(from.readAll(maxText), () => from.close(), o.signal),
      answer,
    );
    await answer;
    return bytes;
  }

  /** Returns the text of a file, which is UTF-8. */
  async read(path: string, o: CallOptions = {}): Promise<string> {
    const bytes = await this.readBytes(path, o);
    try {
      return fromUtf8(bytes);
    } catch {
      throw fail("invalid", "is not UTF-8", {
        op: "files.read",
        subject: path,
        hint: "read it with readBytes",
      });
    }
  }

  /** Returns the parts of a file as they arrive. */
  async *readStream(path: string, o: CallOptions = {}): AsyncIterable<Uint8Array> {
    const wire = await this.#connect(o.signal);
    const from = wire.receiver();
    const answer = wire.call("FileSystem.read", { path, stream: from.id }, o.signal);
    answer.catch(() => from.close());
    try {
      for (;;) {
        const bytes = await preferred(
          within(from.read(), () => from.close(), o.signal),
          answer,
        );
        if (bytes === null) break;
        yield bytes;
      }
      await answer;
    } finally {
      from.close();
    }
  }

  /** Writes a whole file at once: at any time it has its old or its new content. */
  async write(
    path: string,
    data: string | Uint8Array | AsyncIterable<Uint8Array>,
    o: CallOptions & { mode?: number; parents?: boolean } = {},
  ): Promise<void> {
    const wire = await this.#connect(o.signal);
    const rest = { ...(o.mode !== undefined ? { mode: o.mode } : {}), parents: o.parents ?? true };
    const bytes = typeof data === "string" ? utf8(data) : data;
    if (bytes instanceof Uint8Array && bytes.length <= maxInline) {
      await wire.call("FileSystem.write", { path, data: toBase64(bytes), ...rest }, o.signal);
      return;
    }
    const to = wire.sender();
    const answer = wire.call("FileSystem.write", { path, stream: to.id, ...rest }, o.signal);
    await feed(to, bytes instanceof Uint8Array ? [bytes] : bytes, answer);
  }

  async stat(path: string, o: CallOptions & { follow?: boolean } = {}): Promise<FileInfo> {
    const wire = await this.#connect(o.signal);
    return (
      await wire.call("FileSystem.stat", { path, ...(o.follow ? { follow: true } : {}) }, o.signal)
    ).file;
  }

  /** Reports whether there is a file at a path. */
  async exists(path: string, o: CallOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, o);
      return true;
    } catch (err) {
      if ((err as { kind?: string }).kind === "not_found") return false;
      throw err;
    }
  }

  /** Lists a directory, sorted by name. */
  async list(path: string, o: CallOptions = {}): Promise<FileInfo[]> {
    const wire = await this.#connect(o.signal);
    const all: FileInfo[] = [];
    for (let after = ""; ; ) {
      const r = await wire.call("FileSystem.list", { path, ...(after ? { after } : {}) }, o.signal);
      all.push(...r.entries);
      const last = r.entries.at(-1)?.name;
      if (!r.more || last === undefined || last === after) return all;
      after = last;
    }
  }

  async mkdir(
    path: string,
    o: CallOptions & { parents?: boolean; mode?: number } = {},
  ): Promise<void> {
    const wire = await this.#connect(o.signal);
    const p = {
      path,
      parents: o.parents ?? true,
      ...(o.mode !== undefined ? { mode: o.mode } : {}),
    };
    await wire.call("FileSystem.mkdir", p, o.signal);
  }

  async move(
    from: string,
    to: string,
    o: CallOptions & { overwrite?: boolean } = {},
  ): Promise<void> {
    const wire = await this.#connect(o.signal);
    await wire.call(
      "FileSystem.move",
      { from, to, ...(o.overwrite ? { overwrite: true } : {}) },
      o.signal,
    );
  }

  async remove(path: string, o: CallOptions & { recursive?: boolean } = {}): Promise<void> {
    const wire = await this.#connect(o.signal);
    await wire.call(
      "FileSystem.remove",
      { path, ...(o.recursive ? { recursive: true } : {}) },
      o.signal,
    );
  }

  /** Watches a file or a directory; leave the loop, or end the signal, to stop. */
  async *watch(
    path: string,
    o: CallOptions & { recursive?: boolean } = {},
  ): AsyncIterable<FileChange> {
    const wire = await this.#connect(o.signal);
    const queue = new Queue<FileChange>();
    let id: string | undefined;
    const early: { watchId: string; changes: FileSystemChange[]; overflow?: boolean }[] = [];
    const take = (e: { changes: FileSystemChange[]; overflow?: boolean }): void => {
      for (const c of e.changes) queue.push({ path: c.path, kind: c.kind, overflow: false });
      if (e.overflow) queue.push({ path, kind: "overflow", overflow: true });
    };
    const off = wire.on("FileSystem.changed", (e) => {
      if (id === undefined) early.push(e);
      else if (e.watchId === id) take(e);
    });
    const stop = (): void => queue.end();
    o.signal?.addEventListener("abort", stop, { once: true });
    try {
      const params = { path, ...(o.recursive ? { recursive: true } : {}) };
      id = (await wire.call("FileSystem.watch", params, o.signal)).watchId;
      for (const e of early) if (e.watchId === id) take(e);
      void wire.closed.then((why) => queue.end(why));
      for (;;) {
        const next = await holding(queue.next());
        if (next === null) break;
        yield next;
      }
    } finally {
      off();
      o.signal?.removeEventListener("abort", stop);
      if (id !== undefined) wire.post("FileSystem.unwatch", { watchId: id });
    }
  }

  /** Returns a file or a directory as a tar stream, whose names are untrusted. */
  async *pack(path: string, o: CallOptions = {}): AsyncIterable<Uint8Array> {
    const wire = await this.#connect(o.signal);
    const from = wire.receiver();
    const answer = wire.call("FileSystem.pack", { path, stream: from.id }, o.signal);
    answer.catch(() => from.close());
    try {
      for (;;) {
        const bytes = await preferred(
          within(from.read(), () => from.close(), o.signal),
          answer,
        );
        if (bytes === null) break;
        yield bytes;
      }
      await answer;
    } finally {
      from.close();
    }
  }

  /** Unpacks a tar stream in a directory of the sandbox. */
  async unpack(dest: string, tar: AsyncIterable<Uint8Array>, o: CallOptions = {}): Promise<void> {
    const wire = await this.#connect(o.signal);
    const to = wire.sender();
    const answer = wire.call("FileSystem.unpack", { dest, stream: to.id }, o.signal);
    await feed(to, tar, answer);
  }

  /**
   * Copies a file or a folder of this machine into the sandbox: into dest if it is a folder there or
   * ends in a slash, otherwise under dest's name. Only in Node.js.
   */
  async upload(local: string, dest: string, o: CallOptions = {}): Promise<void> {
    await this.unpack(dest, this.#folders().pack(local, o.signal), o);
  }

  /**
   * Copies a file or a folder of the sandbox into a folder of this machine, and returns the names of
   * what was left out: devices, sockets, and links that lead out of it. Only in Node.js.
   */
  async download(path: string, localFolder: string, o: CallOptions = {}): Promise<string[]> {
    const name = path.split("/").filter((p) => p !== "").pop() ?? "";
    if (name === "" || name === "." || name === "..")
      throw fail("invalid", "the path has no name of its own", {
        op: "files.download",
        subject: path,
        hint: "name the file or folder itself",
      });
    return this.#folders().unpack(this.pack(path, o), localFolder, { bytes: maxFolder }, name);
  }

  #folders(): LocalFiles {
    if (!this.#local) {
      throw fail("invalid", "a browser has no folders", {
        op: "files.copy",
        hint: "use read and write",
      });
    }
    return this.#local;
  }
}

/** Feeds a stream of a command; the command's error takes precedence over the stream's. */
export async function feed(
  to: { write(b: Uint8Array): Promise<void>; end(): Promise<void>; abort(why?: string): void },
  data: Iterable<Uint8Array> | AsyncIterable<Uint8Array>,
  answer: Promise<unknown>,
): Promise<void> {
  let own: unknown;
  let refused = false;
  answer.catch(() => {
    refused = true;
    to.abort();
  });
  try {
    for await (const part of data) {
      if (refused) break;
      await to.write(part).catch((err: unknown) => {
        refused = true;
        void err;
      });
    }
    if (!refused) await to.end();
  } catch (err) {
    own = err;
    to.abort(err instanceof Error ? err.message : "");
  }
  if (own !== undefined) {
    await answer.catch(() => undefined);
    throw own as Error;
  }
  await answer;
}

/** Waits for data; the command's error takes precedence over the stream's, which is a consequence. */
export async function preferred<T>(data: Promise<T>, answer: Promise<unknown>): Promise<T> {
  try {
    return await data;
  } catch (err) {
    if (err instanceof TurnstoneError && err.op === "wire.stream" && err.kind === "canceled")
      await answer;
    throw err;
  }
}

/** Waits, or throws when the signal ends. */
export async function within<T>(p: Promise<T>, stop: () => void, signal?: AbortSignal): Promise<T> {
  if (!signal) return p;
  checkSignal(signal, "wire.stream");
  let off = (): void => undefined;
  const ended = new Promise<never>((_, reject) => {
    const end = (): void => {
      reject(aborted(signal, "wire.stream"));
      stop();
    };
    signal.addEventListener("abort", end, { once: true });
    off = () => signal.removeEventListener("abort", end);
  });
  try {
    return await Promise.race([p, ended]);
  } finally {
    off();
  }
}
