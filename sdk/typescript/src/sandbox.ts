import { create } from "@bufbuild/protobuf";
import { durationFromMs, timestampDate } from "@bufbuild/protobuf/wkt";
import { options, type Server } from "./control/server.js";
import { randomName } from "./bytes.js";
import { fail } from "./errors.js";
import { Executor, ExecStream, type Command, type ExecOptions, type ExecResult } from "./exec.js";
import { Files, type CallOptions, type LocalFiles } from "./files.js";
import { MachineSchema, NetworkMode, NetworkSchema } from "./gen/turnstone/v1/common_pb.js";
import {
  CreateSandboxRequestSchema,
  SandboxReason,
  SandboxState,
  type CreateSandboxRequest,
  type Sandbox as Described,
} from "./gen/turnstone/v1/sandbox_pb.js";
import { NodeLink, parseReport } from "./node-link.js";
import { Receipt } from "./receipt.js";

/** What a new sandbox is like. What is not given is the template's. */
export interface SandboxOptions extends CallOptions {
  /** A template, such as "python", or an image, such as "python:3.12". */
  image?: string;
  /** A snapshot of snapshot(), in place of an image. */
  snapshot?: string;
  name?: string;
  cpus?: number;
  /** MiB. */
  memory?: number;
  /** MiB. */
  disk?: number;
  env?: Record<string, string>;
  /** Secret variables of all commands: they go through the channel, and no server sees them. */
  secrets?: Record<string, string>;
  cwd?: string;
  /** false: none; true: the template's; or which addresses. */
  network?: boolean | { allow?: string[]; deny?: string[] };
  /** Milliseconds to its stop; default: an hour. */
  lifetime?: number;
  metadata?: Record<string, string>;
  /** false: a sandbox of no session. A name: another session than the client's. */
  session?: string | false;
  branch?: string;
  substrate?: string;
  /** Gets a line when the sandbox waits for the build of its template; default: console.warn. */
  onProgress?: (text: string) => void;
}

/** What a server says about a sandbox. */
export interface SandboxInfo {
  id: string;
  name: string;
  state: "creating" | "ready" | "running" | "stopped" | "failed";
  /** Why it is stopped or failed; "": it is not. */
  reason: string;
  paused: boolean;
  session: string;
  image: string;
  substrate: string;
  node: string;
  cpus: number;
  /** MiB. */
  memory: number;
  network: boolean;
  metadata: Record<string, string>;
  created: Date | undefined;
  expires: Date | undefined;
}

const states: Record<number, SandboxInfo["state"]> = {
  [SandboxState.CREATING]: "creating",
  [SandboxState.READY]: "ready",
  [SandboxState.RUNNING]: "running",
  [SandboxState.STOPPED]: "stopped",
  [SandboxState.FAILED]: "failed",
};

const reasons: Record<number, string> = {
  [SandboxReason.STOP_REQUESTED]: "on request",
  [SandboxReason.TIME_UP]: "its time was up",
  [SandboxReason.CREATE_FAILED]: "it could not be created",
  [SandboxReason.MACHINE_DIED]: "its machine died",
  [SandboxReason.HOLDER_DIED]: "its holder died",
  [SandboxReason.NODE_LOST]: "the node lost it",
};

/** Returns what a server says about a sandbox. */
export function infoOf(s: Described): SandboxInfo {
  return {
    id: s.sandboxId,
    name: s.name,
    state: states[s.state] ?? "running",
    reason: reasons[s.reason] ?? "",
    paused: s.paused,
    session: s.contextId,
    image: s.template,
    substrate: s.substrate,
    node: s.node,
    cpus: s.machine?.cpus ?? 0,
    memory: Number(s.machine?.memory ?? 0n) / 2 ** 20,
    network: s.network,
    metadata: s.metadata,
    created: s.created ? timestampDate(s.created) : undefined,
    expires: s.expires ? timestampDate(s.expires) : undefined,
  };
}

const hour = 3600_000;
const mebi = 1n << 20n;

/** Returns the request for a new sandbox. */
export function requestOf(
  server: Server,
  o: SandboxOptions,
  session: string | undefined,
): CreateSandboxRequest {
  const r = create(CreateSandboxRequestSchema, {
    idempotencyKey: randomName(26),
    name: o.name ?? "",
    contextId: session ?? "",
    branch: session ? (o.branch ?? "") : "",
    env: o.env ?? {},
    cwd: o.cwd ?? "",
    metadata: o.metadata ?? {},
    substrate: o.substrate ?? "",
    timeout: durationFromMs(Math.max(1000, o.lifetime ?? hour)),
    client: server.asker(),
  });
  if (o.snapshot) r.source = { case: "snapshotId", value: o.snapshot };
  else if (o.image) {
    const template = /^[a-z0-9][a-z0-9._-]{0,62}$/.test(o.image);
    r.source = { case: template ? "template" : "image", value: o.image };
  }
  if (o.cpus || o.memory || o.disk) {
    r.machine = create(MachineSchema, {
      cpus: o.cpus ?? 0,
      memory: BigInt(o.memory ?? 0) * mebi,
      disk: BigInt(o.disk ?? 0) * mebi,
    });
  }
  if (o.network === false) r.network = create(NetworkSchema, { mode: NetworkMode.OFF });
  else if (typeof o.network === "object") {
    r.network = create(NetworkSchema, {
      mode: NetworkMode.ON,
      allow: o.network.allow ?? [],
      deny: o.network.deny ?? [],
    });
  }
  return r;
}

/** A process that runs without its caller. */
export interface BackgroundProcess {
  id: string;
  /** Waits for its end. */
  wait(o?: CallOptions): Promise<{ exitCode: number; signal: string }>;
  kill(signal?: string): Promise<void>;
}

/** What a sandbox needs of its client. */
export interface SandboxHost {
  server(): Promise<Server>;
  local?: LocalFiles;
  opened(s: Sandbox): void;
  closed(s: Sandbox): void;
}

/**
 * A sandbox. Closing it ends it; a sandbox of a session leaves a turn first, on which the next one
 * begins.
 */
export class Sandbox implements AsyncDisposable {
  readonly id: string;
  /** The session that it belongs to; "": none. */
  readonly session: string;
  readonly files: Files;
  #host: SandboxHost;
  #link: NodeLink;
  #executor: Executor;
  #ended = false;

  constructor(host: SandboxHost, id: string, session: string) {
    this.#host = host;
    this.id = id;
    this.session = session;
    this.#link = new NodeLink(async (signal) => (await host.server()).sandbox(id, signal));
    const connect = (signal?: AbortSignal): ReturnType<NodeLink["connect"]> =>
      this.#link.connect(signal);
    this.files = new Files(connect, host.local);
    this.#executor = new Executor(connect);
    host.opened(this);
  }

  /**
   * Runs a program with its arguments, or a script in the sandbox's shell session, whose directory and
   * variables the next script finds.
   */
  exec(command: Command, o: ExecOptions & { stream: true }): ExecStream;
  exec(command: Command, o: ExecOptions & { background: true }): Promise<BackgroundProcess>;
  exec(
    command: Command,
    o?: ExecOptions & { stream?: false; background?: false },
  ): Promise<ExecResult>;
  exec(
    command: Command,
    o: ExecOptions & { stream?: boolean; background?: boolean } = {},
  ): Promise<ExecResult> | Promise<BackgroundProcess> | ExecStream {
    if (command.length === 0) {
      throw fail("invalid", "is empty", { op: "sandbox.exec", subject: "the command" });
    }
    if (o.stream) return new ExecStream(this.#executor, command, o);
    if (o.background) return this.#background(command, o);
    return this.#executor.run(command, o);
  }

  async #background(command: Command, o: ExecOptions): Promise<BackgroundProcess> {
    const id = await this.#executor.background(command, o);
    return {
      id,
      wait: async (w = {}) => {
        const { exit } = await this.#link.call("Process.wait", { processId: id }, w.signal);
        return { exitCode: exit.exitCode, signal: exit.signal ?? "" };
      },
      kill: async (signal = "KILL") => {
        await this.#link.call("Process.signal", { processId: id, signal });
      },
    };
  }

  /** Returns what the server says about the sandbox. */
  async info(o: CallOptions = {}): Promise<SandboxInfo> {
    const server = await this.#host.server();
    const a = await server.sandboxes.getSandbox({ sandboxId: this.id }, options(o.signal));
    if (!a.sandbox || a.sandbox.removed) {
      throw fail("not_found", "does not exist", {
        op: "sandbox.get",
        subject: `sandbox ${this.id}`,
      });
    }
    return infoOf(a.sandbox);
  }

  /** Keeps what was done as a turn of the session; the sandbox continues on it. undefined: nothing was done. */
  async commit(o: CallOptions = {}): Promise<Receipt | undefined> {
    const server = await this.#host.server();
    const { node } = await this.info(o);
    const link = new NodeLink((signal) => server.node(node, signal));
    try {
      const { bytes } = await link.receive(
        "Session.commitSandbox",
        (report) => ({ sandbox: this.id, report }),
        o.signal,
      );
      const report = parseReport(bytes) as Record<string, unknown> | null;
      return report ? new Receipt(report) : undefined;
    } finally {
      link.close();
    }
  }

  /** Clones the sandbox with its processes. */
  async clone(
    o: CallOptions & { name?: string; lifetime?: number; secrets?: boolean } = {},
  ): Promise<Sandbox> {
    const { name, ...rest } = o;
    const [one] = await this.#fork(1, rest, name ? [name] : []);
    return one!;
  }

  /** Clones the sandbox several times, all from one moment. */
  fork(
    n: number,
    o: CallOptions & { prefix?: string; lifetime?: number; secrets?: boolean } = {},
  ): Promise<Sandbox[]> {
    const names = o.prefix ? Array.from({ length: n }, (_, i) => `${o.prefix}-${i + 1}`) : [];
    return this.#fork(n, o, names);
  }

  async #fork(
    n: number,
    o: CallOptions & { lifetime?: number; secrets?: boolean },
    names: string[],
  ): Promise<Sandbox[]> {
    if (!Number.isInteger(n) || n < 1 || n > 40) {
      throw fail("invalid", `a server makes 1 to 40 clones at once, not ${n}`, {
        op: "sandbox.fork",
        subject: this.id,
      });
    }
    const server = await this.#host.server();
    const clients = Array.from({ length: n }, () => server.asker());
    const a = await server.sandboxes.forkSandbox(
      {
        sandboxId: this.id,
        idempotencyKey: randomName(26),
        clients,
        names,
        secrets: o.secrets ?? false,
        timeout: durationFromMs(Math.max(1000, o.lifetime ?? hour)),
      },
      options(o.signal),
    );
    const all = a.clones.map(
      (c) => new Sandbox(this.#host, c.sandbox?.sandboxId ?? "", this.session),
    );
    if (all.length < n) {
      throw fail("unavailable", `the server made ${all.length} of ${n} clones`, {
        op: "sandbox.fork",
        subject: this.id,
      });
    }
    return all;
  }

  /** Pauses the machine; its connections end. */
  async pause(o: CallOptions = {}): Promise<void> {
    await (
      await this.#host.server()
    ).sandboxes.pauseSandbox({ sandboxId: this.id }, options(o.signal));
  }

  /** Resumes a paused machine. */
  async resume(o: CallOptions = {}): Promise<void> {
    await (
      await this.#host.server()
    ).sandboxes.resumeSandbox({ sandboxId: this.id }, options(o.signal));
  }

  /** Keeps the machine, and returns the snapshot's ID, from which others start. */
  async snapshot(o: CallOptions & { secrets?: boolean } = {}): Promise<string> {
    const server = await this.#host.server();
    const r = { sandboxId: this.id, idempotencyKey: randomName(26), secrets: o.secrets ?? false };
    return (
      (await server.sandboxes.snapshotSandbox(r, options(o.signal))).snapshot?.snapshotId ?? ""
    );
  }

  /** Sets the time to the sandbox's stop, from now, in milliseconds. */
  async setLifetime(ms: number, o: CallOptions = {}): Promise<void> {
    const server = await this.#host.server();
    await server.sandboxes.setSandboxTimeout(
      { sandboxId: this.id, timeout: durationFromMs(ms) },
      options(o.signal),
    );
  }

  /** Makes a port reachable through the server, which sees its traffic, and returns the URL. */
  async expose(
    port: number,
    o: CallOptions & { ttl?: number } = {},
  ): Promise<{ url: string; expires: Date | undefined }> {
    const server = await this.#host.server();
    const a = await server.sandboxes.exposePort(
      { sandboxId: this.id, port, ...(o.ttl ? { ttl: durationFromMs(o.ttl) } : {}) },
      options(o.signal),
    );
    return { url: a.url, expires: a.expires ? timestampDate(a.expires) : undefined };
  }

  /** Gives the sandbox secrets, through its channel. */
  async addSecrets(secrets: Record<string, string>, o: CallOptions = {}): Promise<void> {
    const all = Object.entries(secrets).map(([k, v]) => `${k}=${v}`);
    await this.#link.call("Sandbox.addSecrets", { secrets: all }, o.signal);
  }

  /** Ends the sandbox; what was done in one of a session is a turn afterwards, unless it is discarded. */
  async close(o: CallOptions & { discard?: boolean } = {}): Promise<void> {
    if (this.#ended) return;
    const server = await this.#host.server();
    if (o.discard && this.session) {
      const { node } = await this.info(o);
      const link = new NodeLink((signal) => server.node(node, signal));
      try {
        await link.call("Session.discardSandbox", { sandbox: this.id }, o.signal);
      } finally {
        link.close();
      }
    }
    try {
      await server.sandboxes.deleteSandbox({ sandboxId: this.id }, options(o.signal));
    } catch (err) {
      if ((err as { kind?: string }).kind !== "not_found") throw err;
    }
    this.#ended = true;
    this.detach();
    await server.forget(this.id);
  }

  /** Ends the connection to the sandbox, which continues until its lifetime ends. */
  detach(): void {
    this.#link.close();
    this.#host.closed(this);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
