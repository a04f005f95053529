import type { Server } from "./control/server.js";
import { fromUtf8 } from "./bytes.js";
import type { CallOptions } from "./files.js";
import type { Tell } from "./journal.js";
import { type NodeLink, sessionLink } from "./node-link.js";
import { camel, Receipt } from "./receipt.js";

/** A turn of a session. */
export interface Turn {
  id: string;
  session: string;
  number: number;
  branch: string;
  parents: string[];
  kind: "run" | "merge";
  title?: string;
  status: "running" | "done";
  result?: string;
  record?: string;
  state?: string;
  started: string;
  ended?: string;
}

export interface Branch {
  session: string;
  name: string;
  head?: string;
  created: string;
}

export interface Tag {
  session: string;
  name: string;
  turn: string;
  created: string;
}

/** A session with its turns, the newest first. */
export interface Log {
  session: { id: string; name?: string; created: string };
  turns: Turn[];
  branches: Branch[];
  tags: Tag[];
}

/** A path that differs between two states. */
export interface FileDifference {
  path: string;
  status: "A" | "M" | "D" | "T" | "R";
  oldPath?: string;
  old?: Record<string, unknown>;
  new?: Record<string, unknown>;
  what?: string[];
  plus?: number;
  minus?: number;
  binary?: boolean;
  patch?: string;
}

/** The difference of two states. */
export interface Diff {
  from: { turn?: string; number?: number; fsHash: string };
  to: { turn?: string; number?: number; fsHash: string };
  files: FileDifference[];
  env: Record<string, unknown>[];
  cwd?: Record<string, unknown>;
  results?: Record<string, unknown>;
}

/** The result of a merge. */
export interface Merge {
  outcome: string;
  dryRun: boolean;
  id?: string;
  number?: number;
  branch?: string;
  conflicts: Record<string, unknown>[];
  resolved: Record<string, unknown>[];
  merged: string[];
  [key: string]: unknown;
}

/** A comparison of a turn's new run with its first one. */
export interface Replay {
  of: string;
  number: number;
  same: boolean;
  steps: Record<string, unknown>[];
  files: { path: string; what: string }[];
  turn: Receipt | undefined;
  [key: string]: unknown;
}

/** Whose turns were verified, and what does not verify. */
export interface Verified {
  ok: boolean;
  signed: boolean;
  turns: Record<string, unknown>[];
  problems: Record<string, unknown>[];
}

/** A session at a node. References are "NAME@3", "NAME@branch", a turn's ID, or without the name. */
export class Session {
  readonly name: string;
  #link: NodeLink;
  #trust: () => Promise<string[]>;

  constructor(
    server: () => Promise<Server>,
    name: string,
    nodeOf: (session: string) => string | undefined,
    trust: () => Promise<string[]>,
  ) {
    this.name = name;
    this.#link = sessionLink(server, name, nodeOf);
    this.#trust = trust;
  }

  /** Returns a whole reference: @3, 3 and a name of a branch mean this session's. */
  #ref(ref: string | number | undefined): string {
    if (ref === undefined || ref === "") return this.name;
    const text = String(ref);
    if (text.startsWith("@") || text.startsWith("~")) return this.name + text;
    if (/^\d+$/.test(text)) return `${this.name}@${text}`;
    if (text.startsWith("t_") || text.includes("@") || text.includes("~") || text === this.name)
      return text;
    return `${this.name}@${text}`;
  }

  /** Returns the turns, the newest first. */
  log(o: CallOptions & { ref?: string | number; limit?: number } = {}): Promise<Log> {
    return this.#link.report(
      "Session.log",
      (report) => ({ ref: this.#ref(o.ref), ...(o.limit ? { limit: o.limit } : {}), report }),
      o.signal,
    );
  }

  /** Returns all that is kept of a turn. */
  show(ref?: string | number, o: CallOptions = {}): Promise<Record<string, unknown>> {
    return this.#link.report(
      "Session.show",
      (report) => ({ ref: this.#ref(ref), report }),
      o.signal,
    );
  }

  /** Returns the receipt of a turn as text. */
  async receipt(ref?: string | number, o: CallOptions = {}): Promise<string> {
    const { bytes } = await this.#link.receive(
      "Session.receipt",
      (receipt) => ({ ref: this.#ref(ref), receipt }),
      o.signal,
    );
    return fromUtf8(bytes);
  }

  /** Returns the bytes of a file in the state of a turn. */
  async readFile(
    ref: string | number | undefined,
    path: string,
    o: CallOptions = {},
  ): Promise<Uint8Array> {
    return (
      await this.#link.receive(
        "Session.readFile",
        (data) => ({ ref: this.#ref(ref), path, data }),
        o.signal,
      )
    ).bytes;
  }

  /** Makes a branch at a turn; `live` also clones the machine that the branch keeps. */
  async fork(
    name: string,
    o: CallOptions & { from?: string | number; live?: boolean } = {},
  ): Promise<Branch> {
    const method = o.live ? "Session.forkLive" : "Session.fork";
    return (await this.#link.call(method, { ref: this.#ref(o.from), name }, o.signal))
      .branch as unknown as Branch;
  }

  /** Compares the states of two turns; without `to`, a turn with its parent. */
  diff(
    from?: string | number,
    to?: string | number,
    o: CallOptions & { stat?: boolean; text?: boolean; results?: boolean } = {},
  ): Promise<Diff> {
    return this.#link.report(
      "Session.diff",
      (report) => ({
        from: this.#ref(from),
        ...(to !== undefined ? { to: this.#ref(to) } : {}),
        ...(o.stat ? { stat: true } : {}),
        ...(o.text ? { text: true } : {}),
        ...(o.results ? { results: true } : {}),
        report,
      }),
      o.signal,
    );
  }

  /** Compares the results of several turns. */
  compare(refs: (string | number)[], o: CallOptions = {}): Promise<Record<string, unknown>> {
    return this.#link.report(
      "Session.compare",
      (report) => ({ refs: refs.map((r) => this.#ref(r)), report }),
      o.signal,
    );
  }

  /** Merges a branch into another, by default into main. */
  merge(
    from: string,
    o: CallOptions & {
      into?: string;
      side?: "ours" | "theirs";
      markers?: boolean;
      noFF?: boolean;
      dryRun?: boolean;
      message?: string;
      paths?: Record<string, "ours" | "theirs">;
    } = {},
  ): Promise<Merge> {
    const paths = Object.entries(o.paths ?? {}).map(([path, side]) => ({ path, side }));
    return this.#link.report(
      "Session.merge",
      (report) => ({
        from: this.#ref(from),
        session: this.name,
        ...(o.into ? { into: o.into } : {}),
        ...(o.side ? { side: o.side } : {}),
        ...(paths.length > 0 ? { paths } : {}),
        ...(o.markers ? { markers: true } : {}),
        ...(o.noFF ? { noFF: true } : {}),
        ...(o.dryRun ? { dryRun: true } : {}),
        ...(o.message ? { message: o.message } : {}),
        report,
      }),
      o.signal,
    );
  }

  /** Runs a turn again, and compares. */
  async replay(
    ref?: string | number,
    o: CallOptions & { onProgress?: Tell; secrets?: Record<string, string> } = {},
  ): Promise<Replay> {
    const secrets = Object.entries(o.secrets ?? {}).map(([k, v]) => `${k}=${v}`);
    const raw = await this.#link.job(
      "Session.replay",
      (journal, hold) => ({
        ref: this.#ref(ref),
        ...(secrets.length > 0 ? { options: { secrets } } : {}),
        journal,
        hold,
      }),
      o.onProgress,
      o.signal,
    );
    const turn = raw["turn"] as Record<string, unknown> | null;
    return { ...(camel(raw) as Replay), turn: turn ? new Receipt(turn) : undefined };
  }

  /** Gives a turn a permanent name. */
  async tag(name: string, ref?: string | number, o: CallOptions = {}): Promise<Tag> {
    return (await this.#link.call("Session.tag", { ref: this.#ref(ref), name }, o.signal))
      .tag as unknown as Tag;
  }

  async untag(tag: string, o: CallOptions = {}): Promise<void> {
    await this.#link.call("Session.untag", { session: this.name, tag }, o.signal);
  }

  async removeBranch(branch: string, o: CallOptions = {}): Promise<void> {
    await this.#link.call("Session.removeBranch", { session: this.name, branch }, o.signal);
  }

  /** Returns the session as one file, which the turn command imports. */
  async export(o: CallOptions & { full?: boolean } = {}): Promise<Uint8Array> {
    const { bytes } = await this.#link.receive(
      "Session.export",
      (data) => ({ session: this.name, ...(o.full ? { full: true } : {}), data }),
      o.signal,
    );
    return bytes;
  }

  /** Verifies a turn and all before it, at the node, with the keys that this client trusts. */
  async verify(
    ref?: string | number,
    o: CallOptions & { all?: boolean; trust?: string[] } = {},
  ): Promise<Verified> {
    const trust = o.trust ?? (await this.#trust());
    return this.#link.report(
      "Session.verify",
      (report) => ({
        ref: this.#ref(ref),
        ...(o.all ? { all: true } : {}),
        ...(trust.length > 0 ? { trust } : {}),
        report,
      }),
      o.signal,
    );
  }

  /** Removes the session with its turns. */
  async remove(o: CallOptions & { shred?: boolean } = {}): Promise<void> {
    await this.#link.call(
      "Session.remove",
      { session: this.name, ...(o.shred ? { shred: true } : {}) },
      o.signal,
    );
  }

  /** Closes the connection to the node. */
  close(): void {
    this.#link.close();
  }
}
