import { parse, stringify, TomlDate } from "smol-toml";
import { SignerKey } from "../attest/ssh.js";
import type { Chain } from "../attest/certificate.js";
import { believe, KeyPins, RootPins, type KnownRoot } from "../attest/pins.js";
import type { Pins } from "../attest/attest.js";
import { fail, textOf, TurnstoneError } from "../errors.js";
import { parseAddress, type Address } from "./address.js";
import { readIfThere, readOwn, StateDir, writeOwn } from "./state.js";

// hosts.toml of the turn command: docs/hosts.md

type Table = Record<string, unknown>;

/** A server that the client knows. */
export interface Host {
  name: string;
  url: string;
  tokenFile: string;
  /** Keys that sign the statements of each node. */
  nodes: Record<string, string[]>;
  root: KnownRoot | undefined;
}

/** The content of hosts.toml. */
export interface HostList {
  current: string;
  hosts: Record<string, Host>;
}

function table(value: unknown, what: string): Table {
  if (value === undefined) return {};
  if (
    typeof value !== "object" ||
    value === null ||
    Array.isArray(value) ||
    value instanceof Date
  ) {
    throw new Error(`${what} is no table`);
  }
  return value as Table;
}

function text(value: unknown, what: string): string {
  if (value === undefined) return "";
  if (typeof value !== "string") throw new Error(`${what} is no text`);
  return value;
}

function texts(value: unknown, what: string): string[] {
  if (value === undefined) return [];
  if (!Array.isArray(value)) throw new Error(`${what} is no list`);
  return value.map((v) => text(v, what));
}

function known(t: Table, keys: string[], what: string): void {
  for (const k of Object.keys(t))
    if (!keys.includes(k)) throw new Error(`${what}: the key ${k.slice(0, 80)} is not known`);
}

/** Parses hosts.toml, which may be damaged. */
export function parseHosts(source: string): HostList {
  const top = parse(source) as Table;
  known(top, ["current", "hosts"], "the file");
  const list: HostList = {
    current: text(top["current"], "current"),
    hosts: Object.create(null) as Record<string, Host>,
  };
  for (const [name, value] of Object.entries(table(top["hosts"], "hosts"))) {
    list.hosts[name] = parseHost(name, table(value, `hosts.${name}`));
  }
  return list;
}

function parseHost(name: string, t: Table): Host {
  const what = `hosts.${name}`;
  known(t, ["url", "token_file", "seal_file", "nodes", "root"], what);
  const host: Host = {
    name,
    url: parseAddress(text(t["url"], `${what}.url`)).text,
    tokenFile: text(t["token_file"], `${what}.token_file`),
    nodes: Object.create(null) as Record<string, string[]>,
    root: undefined,
  };
  for (const [node, keys] of Object.entries(table(t["nodes"], `${what}.nodes`))) {
    host.nodes[node] = texts(keys, `${what}.nodes.${node}`).map((k) => SignerKey.parse(k).text);
  }
  if (t["root"] !== undefined) {
    const r = table(t["root"], `${what}.root`);
    const epoch = r["epoch"] ?? 0;
    if (typeof epoch !== "number" || !Number.isInteger(epoch) || epoch < 0)
      throw new Error(`${what}.root.epoch is no epoch`);
    host.root = {
      key: SignerKey.parse(r["key"]).text,
      epoch,
      former: texts(r["former"], `${what}.root.former`).map((k) => SignerKey.parse(k).text),
    };
    if (Object.keys(host.nodes).length > 0)
      throw new Error(`${what}.nodes: they count beside the root`);
  }
  return host;
}

/** The hosts of a state directory. */
export class Hosts {
  constructor(readonly dir: StateDir) {}

  get #path(): string {
    return this.dir.path("hosts.toml");
  }

  async load(): Promise<HostList> {
    const source = await readOwn(this.#path);
    try {
      return parseHosts(source ?? "");
    } catch (err) {
      throw fail("invalid", textOf(err), {
        op: "host.load",
        subject: this.#path,
        hint: "correct the file, or remove it and add the hosts again",
        cause: err,
      });
    }
  }

  /** Returns what config.toml says about the host: "auto", "local" or "". */
  async configured(): Promise<string> {
    const source = await readIfThere(this.dir.path("config.toml"));
    if (!source) return "";
    try {
      return text((parse(source) as Table)["host"], "host");
    } catch {
      return ""; // the server says what is wrong with it
    }
  }

  /** Returns the fingerprints of keys that the user has revoked. */
  async revoked(): Promise<Set<string>> {
    const path = this.dir.path("revoked");
    const all = new Set<string>();
    for (const line of ((await readIfThere(path)) ?? "").split("\n")) {
      const first = line.trim().split(/\s+/)[0] ?? "";
      if (first === "" || first.startsWith("#")) continue;
      if (/^SHA256:[A-Za-z0-9+/]{43}$/.test(first)) {
        all.add(first);
        continue;
      }
      if (first.startsWith("sk-")) continue; // such keys sign nothing that this client believes
      try {
        all.add(SignerKey.parseLine(line).id);
      } catch (err) {
        throw fail("invalid", `has a line that is no key: ${textOf(err)}`, {
          op: "key.trust",
          subject: path,
        });
      }
    }
    return all;
  }

  /** Returns the key of this state directory's own node, if it has one. */
  async ownNode(): Promise<string[]> {
    const line = await readOwn(this.dir.path("keys", "node.pub"));
    return line ? [SignerKey.parseLine(line).text] : [];
  }

  /** Returns who may sign statements about a node of a host. The certificate is untrusted. */
  async pins(host: Host, address: Address, node: string, certificate: Uint8Array): Promise<Pins> {
    const list = await this.load();
    const now = list.hosts[host.name] ?? host;
    const keys = Object.entries(now.nodes)
      .filter(([name]) => node === "" || name === node)
      .flatMap(([, k]) => k);
    const own = address.loopback ? await this.ownNode() : [];
    const revoked = await this.revoked();
    const pins = new KeyPins([...keys, ...own], revoked);
    if (!now.root) return pins;
    let learned: Chain | undefined;
    const rooted = new RootPins(pins, node, now.root, certificate, (chain) => {
      learn(list, now, chain, revoked);
      learned = chain;
    });
    if (learned) await this.#store(now.name, learned, revoked);
    return rooted;
  }

  /**
   * Notes what a believed chain showed, before the connection is used. Node.js has no lock on files
   * that the turn command knows, so the file is read again directly before it is replaced.
   */
  async #store(name: string, chain: Chain, revoked: ReadonlySet<string>): Promise<void> {
    for (let tries = 0; tries < 10; tries++) {
      const source = (await readOwn(this.#path)) ?? "";
      const list = parseHosts(source);
      const host = list.hosts[name];
      if (!host?.root) return;
      learn(list, host, chain, revoked);
      const top = parse(source) as Table;
      const hosts = table(top["hosts"], "hosts");
      let changed = false;
      for (const h of Object.values(list.hosts)) {
        if (h.root)
          changed =
            writeRoot(
              table(table(hosts[h.name], h.name)["root"], "root"),
              h.root,
              chain,
              h.name === name,
            ) || changed;
      }
      if (!changed) return;
      const next = "# Servers that turn knows: see turn host --help.\n" + stringify(top);
      if ((await readOwn(this.#path)) !== source) continue; // another process was faster
      await writeOwn(this.#path, next);
      return;
    }
    throw fail("unavailable", "changes all the time", { op: "host.save", subject: this.#path });
  }
}

/** Updates the roots of a list by a chain that a node of a host has shown; throws why it is not believed. */
export function learn(
  list: HostList,
  host: Host,
  chain: Chain,
  revoked: ReadonlySet<string>,
): void {
  const idOf = (key: string): string => SignerKey.parse(key).id;
  const all = Object.values(list.hosts);
  const root = host.root!;
  for (let i = 0; i <= all.length; i++) {
    for (const o of all) {
      if (!o.root) continue;
      if (o.root.key === root.key) root.epoch = Math.max(root.epoch, o.root.epoch);
      else if (o.root.former.includes(root.key) && !root.former.includes(o.root.key)) {
        const followed = o.root.former.slice(o.root.former.indexOf(root.key));
        root.former = [...root.former.filter((k) => !followed.includes(k)), ...followed].slice(-64);
        root.key = o.root.key;
        root.epoch = Math.max(root.epoch, o.root.epoch);
      }
    }
  }
  const chained = [...chain.successions.map((s) => s.signer), chain.signer];
  const moved = [host, ...all.filter((o) => o !== host && o.root && chained.includes(o.root.key))];
  const next = moved.map((o) => believe(o.root!, chain, Date.now(), revoked, idOf));
  moved.forEach((o, i) => (o.root = next[i]));
}

/** Writes what is known of a root into its table; reports whether that changed it. */
function writeRoot(t: Table, root: KnownRoot, chain: Chain, shown: boolean): boolean {
  const before = JSON.stringify(t);
  t["key"] = root.key;
  t["epoch"] = root.epoch;
  if (root.former.length > 0) t["former"] = root.former;
  if (shown) {
    const nodes = (Array.isArray(t["nodes"]) ? t["nodes"] : []) as Table[];
    const same = (n: Table): boolean => n["key"] === chain.key && (n["name"] ?? "") === chain.node;
    const old = nodes.find(same);
    const after = Math.min(chain.time, old ? timeOf(old["after"], chain.time) : chain.time);
    const until = Math.max(
      chain.expires,
      old ? timeOf(old["before"], chain.expires) : chain.expires,
    );
    const one: Table = {
      ...(chain.node ? { name: chain.node } : {}),
      key: chain.key,
      epoch: chain.epoch,
      after: new TomlDate(new Date(after)),
      before: new TomlDate(new Date(until)),
    };
    t["nodes"] = [...nodes.filter((n) => !same(n)), one].slice(-256);
  }
  return JSON.stringify(t) !== before;
}

function timeOf(value: unknown, otherwise: number): number {
  return value instanceof Date ? value.getTime() : otherwise;
}

/** Returns the host with a name or an address; undefined if the list has none. */
export function findHost(list: HostList, nameOrURL: string): Host | undefined {
  if (Object.hasOwn(list.hosts, nameOrURL)) return list.hosts[nameOrURL];
  return Object.values(list.hosts).find((h) => h.url === nameOrURL);
}

/** Returns the error about a host that is not known. */
export function unknownHost(nameOrURL: string): TurnstoneError {
  const url = nameOrURL.includes(":");
  return fail("not_found", "is not known", {
    op: "host.find",
    subject: `host ${nameOrURL}`,
    hint: url
      ? `add it with turn host add NAME ${nameOrURL}`
      : "list the hosts with turn host ls, or add one with turn host add NAME URL",
  });
}
