import { timestampDate } from "@bufbuild/protobuf/wkt";
import { randomName } from "./bytes.js";
import { options, Server, type Platform } from "./control/server.js";
import { fail } from "./errors.js";
import type { CallOptions, LocalFiles } from "./files.js";
import { runDocument, type RunOptions } from "./run.js";
import {
  infoOf,
  requestOf,
  Sandbox,
  type SandboxHost,
  type SandboxInfo,
  type SandboxOptions,
} from "./sandbox.js";
import { defaultImage, sayIfBuilt, warn } from "./building.js";
import { Session } from "./session.js";
import type { Receipt } from "./receipt.js";

/** Options of all clients. */
export interface ContextOptions {
  /** The session that this client works in; default: a new one, which is made when it is first needed. */
  session?: string;
  /** The same as `session`. */
  contextId?: string;
  /** The branch of the session; default: main. */
  branch?: string;
}

/** What was used. */
export interface Usage {
  since: Date | undefined;
  until: Date | undefined;
  turns: number;
  sandboxes: number;
  /** Seconds that machines existed, times their CPUs. */
  cpuTime: number;
  /** MiB times seconds. */
  memoryMiBSeconds: number;
  activeSandboxes: number;
  activeTurns: number;
  storedBytes: number;
}

/** What a client needs of where it runs. */
export interface Surroundings {
  connect(): Promise<Platform>;
  close(): void;
  /** Keys that the client trusts to sign turns; none: the node's own list. */
  trust(): Promise<string[]>;
  local?: LocalFiles;
}

/** A client of a server: one client is one context, whose turns and sandboxes continue each other. */
export class TurnstoneClient implements AsyncDisposable {
  /** The session of this client, which exists when it was first used. */
  readonly contextId: string;
  readonly branch: string;
  #where: Surroundings;
  #server: Promise<Server> | undefined;
  #host: SandboxHost;
  #open = new Set<Sandbox>();
  #sessions = new Map<string, Session>();
  /** The nodes of sessions that this client has used. */
  #nodes = new Map<string, string>();
  /** Templates that were built when a sandbox of them was made. */
  #built = new Set<string>();
  /** The caller has named the session or an image: the session may have another template than the default. */
  #named: boolean;

  constructor(where: Surroundings, o: ContextOptions) {
    if (o.session && o.contextId && o.session !== o.contextId) {
      throw fail("invalid", "session and contextId name two sessions", { op: "client.new" });
    }
    this.#where = where;
    this.#named = (o.session ?? o.contextId) !== undefined;
    this.contextId = o.session ?? o.contextId ?? `sdk-${randomName(16)}`;
    this.branch = o.branch ?? "";
    this.#host = {
      server: () => this.server(),
      opened: (s) => this.#open.add(s),
      closed: (s) => this.#open.delete(s),
      ...(where.local ? { local: where.local } : {}),
    };
  }

  /** Returns the server, for calls of the control API that this client has no word for. */
  server(): Promise<Server> {
    this.#server ??= this.#where.connect().then((p) => new Server(p));
    this.#server.catch(() => {
      this.#server = undefined; // the next call tries again
    });
    return this.#server;
  }

  /** Makes a sandbox on the newest turn of the session. */
  async sandbox(o: SandboxOptions = {}): Promise<Sandbox> {
    const server = await this.server();
    const session = o.session === false || o.snapshot ? undefined : (o.session ?? this.contextId);
    const branch = session === this.contextId ? { branch: this.branch } : {};
    const r = requestOf(server, { ...branch, ...o }, session);
    const image = o.image ?? (this.#named || o.snapshot || o.session ? "" : defaultImage);
    this.#named ||= o.image !== undefined;
    const asked = sayIfBuilt(server, image, o.onProgress ?? warn, this.#built);
    const a = await server.sandboxes.createSandbox(r, options(o.signal)).finally(asked);
    const id = a.sandbox?.sandboxId ?? "";
    await server.keep(id, a.channel, r.client!);
    if (session && a.sandbox?.node) this.#nodes.set(session, a.sandbox.node);
    const sandbox = new Sandbox(this.#host, id, session ?? "");
    if (o.secrets && Object.keys(o.secrets).length > 0) {
      await sandbox.addSecrets(o.secrets, o).catch(async (err: unknown) => {
        await sandbox.close().catch(() => undefined); // without its secrets it is of no use
        throw err;
      });
    }
    return sandbox;
  }

  /** Returns a sandbox that was made before, by its ID or its name. */
  async connect(idOrName: string, o: CallOptions = {}): Promise<Sandbox> {
    const all = await this.sandboxes({
      ...o,
      ...(idOrName.startsWith("sb_") ? { id: idOrName } : { name: idOrName }),
    });
    const one = all.find((s) => s.state !== "stopped" && s.state !== "failed") ?? all[0];
    if (!one) {
      throw fail("not_found", "no such sandbox", {
        op: "sandbox.find",
        subject: `sandbox ${idOrName.slice(0, 80)}`,
        hint: "list the sandboxes with turn sandbox ls",
      });
    }
    return new Sandbox(this.#host, one.id, one.session);
  }

  /** Lists sandboxes, the newest first. */
  async sandboxes(
    o: CallOptions & { id?: string; name?: string; metadata?: Record<string, string> } = {},
  ): Promise<SandboxInfo[]> {
    const server = await this.server();
    const filter = {
      ...(o.name ? { name: o.name } : {}),
      metadata: o.metadata ?? {},
      ...(o.id ? { sandboxIds: [o.id] } : {}),
    };
    const all: SandboxInfo[] = [];
    for (let token = ""; ; ) {
      const a = await server.sandboxes.listSandboxes(
        { page: { size: 100, token }, filter },
        options(o.signal),
      );
      all.push(...a.sandboxes.filter((s) => !s.removed).map(infoOf));
      token = a.nextPageToken;
      if (!token || all.length >= 10_000) return all;
    }
  }

  /** Runs a document as a turn, and returns its receipt. */
  async run(markdown: string, o: RunOptions = {}): Promise<Receipt> {
    const server = await this.server();
    const session = o.session === false ? "" : (o.session ?? this.contextId);
    const placed = (node: string): void => {
      if (session && node) this.#nodes.set(session, node);
    };
    const branch =
      session && this.branch && session === this.contextId ? { branch: this.branch } : {};
    return runDocument(server, markdown, session, { ...branch, ...o }, placed);
  }

  /** Returns a session: by default that of this client. */
  session(name = this.contextId): Session {
    let s = this.#sessions.get(name);
    if (!s)
      this.#sessions.set(
        name,
        (s = new Session(
          () => this.server(),
          name,
          (n) => this.#nodes.get(n),
          () => this.#where.trust(),
        )),
      );
    return s;
  }

  /** Returns what the tenant used, by default since the beginning of the month. */
  async usage(o: CallOptions & { session?: string } = {}): Promise<Usage> {
    const server = await this.server();
    const u = await server.turns.getUsage({ session: o.session ?? "" }, options(o.signal));
    return {
      since: u.since ? timestampDate(u.since) : undefined,
      until: u.until ? timestampDate(u.until) : undefined,
      turns: Number(u.turns),
      sandboxes: Number(u.sandboxes),
      cpuTime: u.cpuTime ? Number(u.cpuTime.seconds) + u.cpuTime.nanos / 1e9 : 0,
      memoryMiBSeconds: Number(u.memoryMibSeconds),
      activeSandboxes: u.activeSandboxes,
      activeTurns: u.activeTurns,
      storedBytes: Number(u.storedBytes),
    };
  }

  /** Ends all connections. Sandboxes that were not closed continue until their lifetimes end. */
  async close(): Promise<void> {
    for (const s of [...this.#open]) s.detach();
    for (const s of this.#sessions.values()) s.close();
    this.#sessions.clear();
    this.#where.close();
    await Promise.resolve();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
