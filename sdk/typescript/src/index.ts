import type { Pins } from "./attest/attest.js";
import { anyNode, givenPins } from "./attest/pins.js";
import { KeyPair } from "./channel/key.js";
import { TurnstoneClient, type ContextOptions } from "./client.js";
import type { Platform } from "./control/server.js";
import { parseAddress, type Address } from "./node/address.js";
import { findHost, Hosts, unknownHost, type Host } from "./node/hosts.js";
import { Http } from "./node/http.js";
import { localServer } from "./node/local.js";
import { locate, readToken, StateDir } from "./node/state.js";
import { pack, unpack } from "./node/tar.js";
import { dialWebSocket } from "./node/websocket.js";

export * from "./common.js";

/** Options of a client in Node.js. Without any, it uses what the turn command uses. */
export interface TurnstoneOptions extends ContextOptions {
  /**
   * The server: https://…, http:// on this machine, unix:PATH, the name of a host of hosts.toml, or
   * "local". Default: TURN_HOST, the host that `turn host use` selected, or this machine.
   */
  host?: string;
  /** The token; default: TURN_TOKEN, or the file of the host. */
  token?: string;
  /** Keys of nodes to trust, "SHA256:…" or "ssh-ed25519 …", in place of the pins of hosts.toml. */
  pins?: string[];
  /** The operator's root to trust, "ssh-ed25519 …", in place of pins. */
  root?: string;
  /** The X25519 private key of this client, of 32 bytes; default: client/key in the state directory. */
  key?: Uint8Array;
  /** The state directory; default: TURN_HOME, or the user's. */
  home?: string;
  /** The turn command, which serves this machine if no server does; default: turn in PATH. */
  program?: string;
}

/** A client: one client is one context, whose turns and sandboxes continue each other. */
export class Turnstone extends TurnstoneClient {
  constructor(o: TurnstoneOptions = {}) {
    const state = new StateDir(locate(o.home));
    const hosts = new Hosts(state);
    let http: Http | undefined;
    let known: Host | undefined;
    super(
      {
        connect: async () => {
          const target = await select(o, state, hosts);
          http = target.http;
          known = target.host;
          return platformOf(o, state, hosts, target);
        },
        close: () => http?.close(),
        trust: async () => (known && Object.keys(known.nodes).length > 0 ? trustLines(known) : []),
        local: { pack, unpack },
      },
      o,
    );
  }
}

/** Returns the keys of a host's nodes as lines of whom to trust. */
function trustLines(h: Host): string[] {
  return Object.values(h.nodes)
    .flat()
    .map((k) => `node=${k}`);
}

interface Target {
  address: Address;
  host: Host;
  http: Http;
  /** The socket of this user, whose other end was checked. */
  own: boolean;
}

function noHost(url: string): Host {
  return { name: "", url, tokenFile: "", nodes: {}, root: undefined };
}

/** Selects the server, as the turn command does. */
async function select(o: TurnstoneOptions, state: StateDir, hosts: Hosts): Promise<Target> {
  const list = await hosts.load();
  const named = o.host || process.env["TURN_HOST"] || list.current || (await hosts.configured());
  if (named === "" || named === "local" || named === "auto") {
    const socket = await localServer(state, o.program ?? "turn");
    const address = parseAddress(`unix:${socket}`);
    return { address, host: noHost(address.text), http: new Http(address, true), own: true };
  }
  let host = findHost(list, named);
  if (!host && !named.includes(":")) throw unknownHost(named);
  const address = parseAddress(host ? host.url : named);
  host ??= findHost(list, address.text);
  const trusted = (o.pins?.length ?? 0) > 0 || !!o.root;
  if (!host && !address.loopback && !trusted) throw unknownHost(named);
  host ??= noHost(address.text);
  const pinned = trusted || Object.keys(host.nodes).length > 0 || !!host.root;
  const own = address.socket !== "" && !pinned;
  return { address, host, http: new Http(address, own), own };
}

async function platformOf(
  o: TurnstoneOptions,
  state: StateDir,
  hosts: Hosts,
  t: Target,
): Promise<Platform> {
  const key = o.key ? KeyPair.fromPrivate(o.key) : await state.clientKey();
  const token = async (): Promise<string> => {
    if (t.own) return "";
    const given = o.token ?? process.env["TURN_TOKEN"];
    if (given) return given.trim();
    return t.host.tokenFile ? readToken(t.host.tokenFile) : "";
  };
  let greeted: Promise<void> | undefined;
  return {
    address: t.address.text,
    key,
    own: t.own,
    transport: (interceptors) => t.http.transport(interceptors),
    token,
    greet: () => {
      greeted ??= t.http.greet();
      greeted.catch(() => {
        greeted = undefined;
      });
      return greeted;
    },
    dial: (path, secret, signal) => dialWebSocket(t.http, path, secret, signal),
    pins: pinsOf(o, hosts, t),
    ...(o.key ? {} : { statements: state.statementBook(t.address.text) }),
    ...(o.key || t.own ? {} : { nodes: state.nodeBook(t.address.text) }),
  };
}

function pinsOf(o: TurnstoneOptions, hosts: Hosts, t: Target): Platform["pins"] {
  if (t.own) return async (): Promise<Pins> => anyNode;
  if (!o.pins?.length && !o.root) {
    return (node, certificate) => hosts.pins(t.host, t.address, node, certificate);
  }
  return givenPins(o.pins ?? [], o.root, () => hosts.revoked());
}
