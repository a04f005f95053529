import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { randomName, utf8 } from "./bytes.js";
import { options, sleep, type Server } from "./control/server.js";
import { aborted, fail, TurnstoneError } from "./errors.js";
import { feed, type CallOptions } from "./files.js";
import { MachineSchema } from "./gen/turnstone/v1/common_pb.js";
import { Journal, type Tell } from "./journal.js";
import { Receipt } from "./receipt.js";
import { holding } from "./stream.js";
import type { TurnSettings } from "./wire/protocol.js";
import type { Wire } from "./wire/wire.js";

/** Options of a turn. What is not given is the document's. */
export interface RunOptions extends CallOptions {
  /** The session; false: a turn in none. */
  session?: string | false;
  branch?: string;
  image?: string;
  env?: Record<string, string>;
  /** Secret variables: masked, and not stored. */
  secrets?: Record<string, string>;
  /** Milliseconds: the time limit of the turn. */
  timeout?: number;
  cpus?: number;
  /** MiB. */
  memory?: number;
  /** MiB. */
  disk?: number;
  network?: boolean | { allow?: string[]; deny?: string[] };
  /** List all commands of each step in the receipt. */
  commands?: boolean;
  deterministic?: boolean;
  lifetime?: "turn" | "session";
  snapshot?: "none" | "vm";
  checkpoint?: "none" | "step";
  /** Files for the sandbox, by their paths there. */
  files?: Record<string, string | Uint8Array>;
  /** The document's name, for messages. */
  name?: string;
  onProgress?: Tell;
  /** The same key starts one turn, however often it is said. */
  idempotencyKey?: string;
}

const patience = 3600_000;
const firstPause = 100;
const lastPause = 5_000;
const startTries = 5;
const mebi = 2 ** 20;

function settingsOf(o: RunOptions, session: string): TurnSettings {
  const pairs = (r: Record<string, string> | undefined): string[] =>
    Object.entries(r ?? {}).map(([k, v]) => `${k}=${v}`);
  const [env, secrets] = [pairs(o.env), pairs(o.secrets)];
  const rules = typeof o.network === "object" ? o.network : undefined;
  const add = Object.keys(o.files ?? {}).map((dest, i) => ({ name: nameIn(dest, i), dest }));
  return {
    ...(session ? { session } : {}),
    ...(o.branch ? { branch: o.branch } : {}),
    ...(o.image ? { image: o.image } : {}),
    ...(env.length > 0 ? { env } : {}),
    ...(secrets.length > 0 ? { secrets } : {}),
    ...(o.timeout ? { timeout: Math.round(o.timeout * 1e6) } : {}),
    ...(o.cpus ? { cpus: o.cpus } : {}),
    ...(o.memory ? { memory: o.memory * mebi } : {}),
    ...(o.disk ? { disk: o.disk * mebi } : {}),
    ...(o.network !== undefined ? { network: o.network !== false } : {}),
    ...(rules ? { rules: { allow: rules.allow ?? [], deny: rules.deny ?? [] } } : {}),
    ...(o.commands ? { commands: true } : {}),
    ...(o.deterministic !== undefined ? { deterministic: o.deterministic } : {}),
    ...(o.lifetime ? { lifetime: o.lifetime } : {}),
    ...(o.snapshot ? { snapshot: o.snapshot } : {}),
    ...(o.checkpoint ? { checkpoint: o.checkpoint } : {}),
    ...(add.length > 0 ? { add } : {}),
    filesSent: true,
  };
}

function nameIn(dest: string, i: number): string {
  return `${i}/${dest.split("/").filter(Boolean).at(-1) ?? "file"}`;
}

/** Returns the files of a turn as a tar archive. */
function archive(files: Record<string, string | Uint8Array>): Uint8Array[] {
  const parts: Uint8Array[] = [];
  Object.entries(files).forEach(([dest, data], i) => {
    const bytes = typeof data === "string" ? utf8(data) : data;
    parts.push(
      tarHeader(nameIn(dest, i), bytes.length),
      bytes,
      new Uint8Array((512 - (bytes.length % 512)) % 512),
    );
  });
  parts.push(new Uint8Array(1024));
  return parts;
}

/** Returns the header of a file in a tar archive (POSIX ustar). */
export function tarHeader(
  name: string,
  size: number,
  mode = 0o644,
  type = "0",
  link = "",
  mtime = 0,
): Uint8Array {
  const head = new Uint8Array(512);
  const put = (text: string, at: number, most: number): void =>
    head.set(utf8(text).subarray(0, most), at);
  const octal = (n: number, at: number, width: number): void =>
    put(n.toString(8).padStart(width - 1, "0"), at, width - 1);
  put(name, 0, 100);
  octal(mode & 0o7777, 100, 8);
  octal(0, 108, 8);
  octal(0, 116, 8);
  octal(size, 124, 12);
  octal(Math.max(0, Math.floor(mtime)), 136, 12);
  put("        ", 148, 8);
  put(type, 156, 1);
  put(link, 157, 100);
  put("ustar\0", 257, 6);
  put("00", 263, 2);
  let sum = 0;
  for (const b of head) sum += b;
  put(sum.toString(8).padStart(6, "0") + "\0 ", 148, 8);
  return head;
}

/** A turn that a client follows over as many connections as it takes; it runs once. */
class Following {
  #journal: Journal;
  #ticket = "";
  #node = "";
  #first: (() => Promise<Wire>) | undefined;
  #tried = false;
  #started = false;

  constructor(
    readonly server: Server,
    readonly document: Uint8Array,
    readonly session: string,
    readonly o: RunOptions,
    readonly placed: (node: string) => void,
  ) {
    this.#journal = new Journal(o.onProgress);
  }

  async run(): Promise<Receipt> {
    await this.#reserve();
    let pause = firstPause;
    let since = Date.now();
    for (;;) {
      const before = this.#journal.offset;
      let why: unknown;
      try {
        await this.#connected();
        why = fail("dead", "ended without the turn's result", {
          op: "turn.attach",
          subject: "the journal",
        });
      } catch (err) {
        why = err;
      }
      if (this.#journal.ended) {
        const { report, error } = this.#journal.result<Record<string, unknown>>();
        if (this.o.signal?.aborted) throw aborted(this.o.signal, "turn.run");
        return new Receipt(report, error);
      }
      if (this.o.signal?.aborted) {
        await this.#cancel();
        throw aborted(this.o.signal, "turn.run");
      }
      if (!lost(why)) throw why;
      if (this.#journal.offset > before) {
        pause = firstPause;
        since = Date.now();
      }
      if (Date.now() - since + pause > patience) throw why;
      await sleep(pause, this.o.signal).catch(() => undefined);
      pause = Math.min(2 * pause, lastPause);
    }
  }

  /** Reserves the turn; a node that was restarted has forgotten its ticket. */
  async #reserve(): Promise<void> {
    const { o, server } = this;
    for (let n = 1; ; n++) {
      const client = server.asker();
      try {
        const a = await server.turns.startTurn(
          {
            idempotencyKey: o.idempotencyKey ?? randomName(26),
            session: this.session,
            template: o.image ?? "",
            client,
            ...(o.cpus || o.memory || o.disk
              ? {
                  machine: create(MachineSchema, {
                    cpus: o.cpus ?? 0,
                    memory: BigInt((o.memory ?? 0) * mebi),
                    disk: BigInt((o.disk ?? 0) * mebi),
                  }),
                }
              : {}),
            ...(o.timeout ? { timeout: durationFromMs(Math.max(1000, o.timeout)) } : {}),
          },
          options(o.signal),
        );
        this.#ticket = a.turn?.ticketId ?? "";
        this.#node = a.turn?.node ?? "";
        this.placed(this.#node);
        this.#first = () => server.openNode(a.channel, this.#node, client);
        return;
      } catch (err) {
        const forgotten =
          err instanceof TurnstoneError &&
          err.kind === "dead" &&
          (err.cause as { code?: Code } | undefined)?.code === Code.FailedPrecondition;
        if (!forgotten || n === startTries || o.idempotencyKey) throw err;
      }
    }
  }

  async #dial(): Promise<Wire> {
    const first = this.#first;
    this.#first = undefined;
    if (first) return first();
    const client = this.server.asker();
    const a = await this.server.turns.connectTurn({ ticketId: this.#ticket, client });
    return this.server.openNode(a.channel, this.#node || (a.turn?.node ?? ""), client);
  }

  async #connected(): Promise<void> {
    const wire = await this.#dial();
    const stop = (): void => wire.post("Turn.cancel", { ticket: this.#ticket });
    this.o.signal?.addEventListener("abort", stop, { once: true });
    try {
      if (this.#tried && !this.#started) {
        // a turn whose start had no answer may run; its ticket starts no second one
        const absent = await this.#follow(wire).then(
          () => false,
          (err: unknown) => {
            if (err instanceof TurnstoneError && err.kind === "not_found") return true;
            throw err;
          },
        );
        if (!absent) return;
      }
      if (!this.#started) {
        this.#tried = true;
        await this.#start(wire);
        this.#started = true;
      }
      if (this.o.signal?.aborted) stop();
      await this.#follow(wire);
    } finally {
      this.o.signal?.removeEventListener("abort", stop);
      wire.close();
    }
  }

  async #start(wire: Wire): Promise<void> {
    const document = wire.sender();
    const files = this.o.files && Object.keys(this.o.files).length > 0 ? wire.sender() : undefined;
    const answer = wire.call("Turn.start", {
      ticket: this.#ticket,
      name: this.o.name ?? "document.md",
      document: document.id,
      ...(files ? { files: files.id } : {}),
      settings: settingsOf(this.o, this.session),
    });
    const sent = [feed(document, [this.document], answer)];
    if (files) sent.push(feed(files, archive(this.o.files!), answer));
    await Promise.all(sent);
  }

  async #follow(wire: Wire): Promise<void> {
    const from = wire.receiver();
    const answer = wire.call("Turn.attach", {
      ticket: this.#ticket,
      offset: this.#journal.offset,
      journal: from.id,
    });
    answer.catch(() => from.close());
    try {
      await this.#journal.read(from);
      if (this.#journal.ended) {
        answer.catch(() => undefined);
        return;
      }
      await answer;
    } finally {
      from.close();
    }
  }

  /** Ends the turn by a control call, because its channel is gone. */
  async #cancel(): Promise<void> {
    await this.server.turns.cancelTurn({ ticketId: this.#ticket }).catch(() => undefined);
  }
}

/** Reports whether another connection may help: a manipulated one is not tried again. */
function lost(err: unknown): boolean {
  if (!(err instanceof TurnstoneError)) return false;
  if (err.fault && err.fault !== "truncated") return false;
  return err.retryable || err.kind === "dead" || err.kind === "unavailable";
}

/** Runs a document as a turn of a session, or of none. */
export function runDocument(
  server: Server,
  markdown: string,
  session: string,
  o: RunOptions,
  placed: (node: string) => void,
): Promise<Receipt> {
  return holding(new Following(server, utf8(markdown), session, o, placed).run());
}
