import {
  clone,
  create,
  type DescMessage,
  type DescService,
  type Message,
} from "@bufbuild/protobuf";
import {
  Code,
  createClient,
  type Client,
  type Interceptor,
  type Transport,
} from "@connectrpc/connect";
import {
  checkAttestation,
  openAttestation,
  type Attestation,
  type Pins,
} from "../attest/attest.js";
import { equal, random, toBase64 } from "../bytes.js";
import { Channel } from "../channel/channel.js";
import type { KeyPair } from "../channel/key.js";
import { prove } from "../channel/possession.js";
import { fail, faultError, TurnstoneError } from "../errors.js";
import {
  ChannelClientSchema,
  ChannelSchema,
  KeyProofSchema,
  type Channel as Offered,
  type ChannelClient,
} from "../gen/turnstone/v1/channel_pb.js";
import { SandboxService } from "../gen/turnstone/v1/sandbox_pb.js";
import { ServerService } from "../gen/turnstone/v1/server_pb.js";
import { SessionService } from "../gen/turnstone/v1/session_pb.js";
import { TemplateService } from "../gen/turnstone/v1/template_pb.js";
import { TurnService } from "../gen/turnstone/v1/turn_pb.js";
import { holding, type ByteStream } from "../stream.js";
import { Wire } from "../wire/wire.js";
import { proofDigest } from "./digest.js";
import { explain, type Refusal } from "./explain.js";

/** The key of a node's channels, to which a client proves its own. */
export interface NodeKey {
  node: string;
  key: Uint8Array;
  tenant: string;
}

/** A statement about a sandbox that this client asked for. It is no secret. */
export interface KeptStatement {
  envelope: Uint8Array;
  nonce: Uint8Array;
  path: string;
  certificate: Uint8Array;
}

/** What a client needs of its platform to reach a server. */
export interface Platform {
  address: string;
  key: KeyPair;
  /** The other end of each connection was shown to be this user's: every node behind it is trusted. */
  own: boolean;
  transport(interceptors: Interceptor[]): Transport;
  /** Returns the token; "": none. */
  token(): Promise<string>;
  /** Runs before a token or a name is sent: it throws if the port is not what its address says. */
  greet(): Promise<void>;
  /** Opens the WebSocket at a path that the server answered. */
  dial(path: string, token: string, signal?: AbortSignal): Promise<ByteStream>;
  /** Returns who may sign statements about a node, or, with "", about a sandbox of any node. */
  pins(node: string, certificate: Uint8Array): Promise<Pins>;
  /** Remembers keys of nodes for later processes. */
  nodes?: { load(): Promise<NodeKey[]>; save(all: NodeKey[]): Promise<void> };
  /** Keeps statements about sandboxes for later connections. */
  statements?: {
    load(id: string): Promise<KeptStatement | undefined>;
    save(id: string, k: KeptStatement): Promise<void>;
    drop(id: string): Promise<void>;
  };
}

const maxNodes = 6;
const maxMeets = 4;
const maxTries = 4;
const retryPause = 100;
const maxWait = 10_000;
const channelPath = /^\/turnstone\/v1\/[A-Za-z0-9._/-]+$/;

const asks: ReadonlySet<string> = new Set([
  "ConnectTurn",
  "ConnectNode",
  "ConnectSession",
  "ConnectSandbox",
  "ConnectTemplates",
]);

interface Named {
  client?: ChannelClient;
  clients?: ChannelClient[];
  idempotencyKey?: string;
}

/** What a server answers about a channel. It is not believed before it was checked. */
interface Offer {
  channel: Offered | undefined;
  node: string;
  about: string;
  nonce: Uint8Array;
}

/** A client's view of a server, which is not trusted with content: its services, and channels behind it. */
export class Server {
  readonly sandboxes: Client<typeof SandboxService>;
  readonly turns: Client<typeof TurnService>;
  readonly sessions: Client<typeof SessionService>;
  readonly templates: Client<typeof TemplateService>;
  readonly server: Client<typeof ServerService>;
  readonly platform: Platform;
  #known: NodeKey[] | undefined;

  constructor(platform: Platform) {
    this.platform = platform;
    const transport = platform.transport([this.#interceptor()]);
    const of = <S extends DescService>(s: S): Client<S> =>
      explained(createClient(s, transport), platform.address);
    this.sandboxes = of(SandboxService);
    this.turns = of(TurnService);
    this.sessions = of(SessionService);
    this.templates = of(TemplateService);
    this.server = of(ServerService);
  }

  /** Returns the client's part of a new statement. */
  asker(): ChannelClient {
    return create(ChannelClientSchema, {
      clientPublicKey: this.platform.key.public,
      nonce: random(32),
    });
  }

  /** Adds the token and proofs to calls, repeats what is safe to repeat, and explains errors. */
  #interceptor(): Interceptor {
    return (next) => async (req) => {
      const authorize = async (): Promise<void> => {
        await this.platform.greet();
        const token = await this.#token();
        if (token) req.header.set("Authorization", `Bearer ${token}`);
      };
      if (req.stream) {
        try {
          await authorize();
          return await next(req);
        } catch (err) {
          throw explain(err, this.platform.address).error;
        }
      }
      let pause = retryPause;
      let met = 0;
      for (let tries = 1; ; ) {
        const message = await this.#proved(req.method.input, req.message);
        try {
          await authorize();
          return await next({ ...req, message });
        } catch (err) {
          const refusal = explain(err, this.platform.address);
          if (req.signal.aborted) throw refusal.error;
          if (met < maxMeets && (await this.#meet(message as Named, refusal))) {
            met++;
            continue;
          }
          const wait = Math.max(pause, refusal.error.retryAfter);
          const safe =
            req.method.idempotency === 1 ||
            asks.has(req.method.name) ||
            !!(message as Named).idempotencyKey;
          if (tries === maxTries || !safe || !mayRepeat(refusal) || wait > maxWait)
            throw refusal.error;
          await sleep(wait, req.signal);
          tries++;
          pause *= 2;
        }
      }
    };
  }

  async #token(): Promise<string> {
    const token = await this.platform.token();
    if (token.length > 16 << 10 || !/^[!-~]*$/.test(token)) {
      throw fail("invalid", "is too long, or has characters that no token has", {
        op: "host.token",
        subject: "the token",
        hint: "set TURN_TOKEN to what turn token create printed",
      });
    }
    return token;
  }

  /** Returns the request with what shows each known node that this client has its key. */
  async #proved(schema: DescMessage, request: Message): Promise<Message> {
    const m = clone(schema, request) as Message & Named;
    const hasClient = schema.fields.some(
      (f) => f.localName === "client" && f.fieldKind === "message",
    );
    if (hasClient && !m.client) m.client = this.asker();
    const clients = m.clients ?? (m.client ? [m.client] : []);
    if (clients.length === 0) return m;
    const digest = proofDigest(schema, m);
    const now = Date.now();
    const known = await this.#nodes();
    for (const c of clients) {
      c.proofs = known.map((n) =>
        create(KeyProofSchema, {
          node: n.node,
          message: prove(this.platform.key, n.key, { tenant: n.tenant, request: digest }, now),
        }),
      );
    }
    return m;
  }

  async #nodes(): Promise<NodeKey[]> {
    this.#known ??= ((await this.platform.nodes?.load().catch(() => [])) ?? []).slice(0, maxNodes);
    return this.#known;
  }

  /** Notes the key of a node whose statement was verified, and reports whether it is new. */
  async #remember(k: NodeKey): Promise<boolean> {
    const known = await this.#nodes();
    if (k.node === "" || k.tenant === "") return false;
    if (known.some((o) => o.node === k.node && o.tenant === k.tenant && equal(o.key, k.key)))
      return false;
    this.#known = [k, ...known.filter((o) => o.node !== k.node)].slice(0, maxNodes);
    await this.platform.nodes?.save(this.#known).catch(() => undefined);
    return true;
  }

  /** Learns the key of a node that refused a call because it has no proof for it. */
  async #meet(message: Named, r: Refusal): Promise<boolean> {
    if (r.error.reason !== "proof" || r.introduction.length === 0) return false;
    const a = openAttestation(r.introduction);
    const pins = await this.platform.pins(a.node, r.certificate);
    const clients = message.clients ?? (message.client ? [message.client] : []);
    let why: unknown = faultError("replayed", "is the answer to a call that asked for none", {
      op: "channel.verify",
      subject: `the attestation of ${a.about}`,
    });
    for (const c of clients) {
      try {
        checkAttestation(
          a,
          { pins, about: `node:${a.node}`, client: this.platform.key.public, nonce: c.nonce },
          Date.now(),
        );
        why = undefined;
        break;
      } catch (err) {
        why = err;
      }
    }
    if (why !== undefined) throw why as Error;
    await this.#checkTenant(a.tenant);
    return this.#remember({ node: a.node, key: a.serverKey, tenant: a.tenant });
  }

  /** Throws for a server that works for the caller in the name of another tenant than its token's. */
  async #checkTenant(tenant: string): Promise<void> {
    const parts = (await this.platform.token()).split(".");
    if (parts.length !== 3) return;
    let claimed: unknown;
    try {
      const text = atob(parts[1]!.replaceAll("-", "+").replaceAll("_", "/"));
      claimed = (JSON.parse(text) as { tenant?: unknown }).tenant;
    } catch {
      return; // some tokens do not say their tenant
    }
    if (typeof claimed === "string" && claimed !== "" && claimed !== tenant) {
      throw faultError("spliced", "is for another tenant than the token", {
        op: "host.call",
        subject: "the node's statement",
      });
    }
  }

  async #believe(o: Offer): Promise<Attestation> {
    const channel = o.channel ?? create(ChannelSchema);
    const pins = await this.platform.pins(o.node, channel.certificate);
    const a = openAttestation(channel.attestation);
    checkAttestation(
      a,
      { pins, about: o.about, client: this.platform.key.public, nonce: o.nonce },
      Date.now(),
    );
    if (a.node !== "" && !this.platform.own)
      await this.#remember({ node: a.node, key: a.serverKey, tenant: a.tenant });
    return a;
  }

  async #enter(a: Attestation, path: string, signal?: AbortSignal): Promise<Channel> {
    if (!channelPath.test(path) || path.includes("..")) {
      throw fail(
        "integrity",
        `answers ${JSON.stringify(path.slice(0, 100))}, which is no path of a channel`,
        {
          op: "host.channel",
          subject: "the server",
        },
      );
    }
    await this.platform.greet();
    const stream = await this.platform.dial(path, await this.#token(), signal);
    return Channel.connect(stream, {
      key: this.platform.key,
      server: a.serverKey,
      statement: a.digest,
      ...(signal ? { signal } : {}),
    });
  }

  async #open(o: Offer, signal?: AbortSignal): Promise<Wire> {
    const a = await this.#believe(o);
    return new Wire(await this.#enter(a, o.channel?.path ?? "", signal));
  }

  /** Opens a channel of an offer about a node. */
  openNode(
    channel: Offered | undefined,
    node: string,
    client: ChannelClient,
    signal?: AbortSignal,
  ): Promise<Wire> {
    return this.#open({ channel, node, about: `node:${node}`, nonce: client.nonce }, signal);
  }

  /** Opens a channel to a node; without a name, the server selects it. */
  async node(name: string, signal?: AbortSignal): Promise<Wire> {
    const client = this.asker();
    const a = await this.sessions.connectNode({ node: name, client }, options(signal));
    return this.openNode(a.channel, name || a.node, client, signal);
  }

  /** Opens a channel to the node of a session. */
  async session(session: string, signal?: AbortSignal): Promise<Wire> {
    const client = this.asker();
    const a = await this.sessions.connectSession({ session, client }, options(signal));
    return this.openNode(a.channel, a.session?.node ?? "", client, signal);
  }

  /** Opens a channel to a sandbox. The statement about it may be one of an earlier channel. */
  async sandbox(id: string, signal?: AbortSignal): Promise<Wire> {
    const kept = await this.#openKept(id, signal);
    if (kept) return kept;
    const client = this.asker();
    const a = await this.sandboxes.connectSandbox({ sandboxId: id, client }, options(signal));
    const wire = await this.#open(
      { channel: a.channel, node: "", about: id, nonce: client.nonce },
      signal,
    );
    await this.keep(id, a.channel, client);
    return wire;
  }

  async #openKept(id: string, signal?: AbortSignal): Promise<Wire | undefined> {
    const k = await this.platform.statements?.load(id).catch(() => undefined);
    if (!k) return undefined;
    const channel = create(ChannelSchema, {
      attestation: k.envelope,
      path: k.path,
      certificate: k.certificate,
    });
    try {
      return await this.#open({ channel, node: "", about: id, nonce: k.nonce }, signal);
    } catch (err) {
      if (signal?.aborted) throw err;
      const old =
        err instanceof TurnstoneError && (err.fault === "expired" || err.kind !== "integrity");
      await this.forget(id);
      if (old) return undefined;
      throw err;
    }
  }

  /** Keeps the statement of a sandbox for later connections. */
  async keep(id: string, c: Offered | undefined, client: ChannelClient): Promise<void> {
    if (!c) return;
    await this.platform.statements
      ?.save(id, {
        envelope: c.attestation,
        nonce: client.nonce,
        path: c.path,
        certificate: c.certificate,
      })
      .catch(() => undefined);
  }

  /** Forgets the statement of a sandbox that ends, or whose key is new. */
  async forget(id: string): Promise<void> {
    await this.platform.statements?.drop(id).catch(() => undefined);
  }

  toJSON(): object {
    return { address: this.platform.address, key: toBase64(this.platform.key.public) };
  }
}

/** Returns a client whose errors are of this package: Connect wraps what interceptors throw. */
function explained<T extends object>(client: T, address: string): T {
  const rethrow = (err: unknown): never => {
    throw explain(err, address).error;
  };
  async function* each(all: AsyncIterable<unknown>): AsyncIterable<unknown> {
    try {
      yield* all;
    } catch (err) {
      rethrow(err);
    }
  }
  return new Proxy(client, {
    get(target, name) {
      const method: unknown = Reflect.get(target, name);
      if (typeof method !== "function") return method;
      return (...args: unknown[]): unknown => {
        const answer: unknown = Reflect.apply(method, target, args);
        return answer instanceof Promise
          ? holding(answer).catch(rethrow)
          : each(answer as AsyncIterable<unknown>);
      };
    },
  });
}

/** Returns the options of a call. */
export function options(signal?: AbortSignal): { signal?: AbortSignal } {
  return signal ? { signal } : {};
}

function mayRepeat(r: Refusal): boolean {
  return r.error.retryable || r.code === Code.Unavailable || r.code === Code.Aborted;
}

/** Waits, or throws when the signal ends. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(fail("canceled", "canceled by the caller", { cause: signal?.reason }));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
