import { fail, faultError, TurnstoneError } from "../errors.js";
import type { Pins } from "./attest.js";
import {
  checkChain,
  checkNode,
  openChain,
  replaced,
  refused,
  rootsOf,
  uncertified,
  type Chain,
} from "./certificate.js";
import { SignerKey } from "./ssh.js";

/** Every node is trusted: the connection has shown whose the server is. */
export const anyNode: Pins = { vouch: () => undefined };

/** Trusts nodes with one of some keys: their lines "ssh-ed25519 BASE64", or their fingerprints. */
export class KeyPins implements Pins {
  constructor(
    readonly keys: readonly string[],
    readonly revoked: ReadonlySet<string> = new Set(),
  ) {}

  vouch(key: SignerKey): void {
    if (this.revoked.has(key.id)) {
      throw faultError("untrusted", `the node's key ${key.id} is revoked`, {
        op: "channel.verify",
        hint: "ask the node's operator for its new key, and trust that: this client's list revokes the old one",
      });
    }
    if (this.keys.includes(key.text) || this.keys.includes(key.id)) return;
    throw faultError("untrusted", `the node's key ${key.id} is not trusted`, {
      op: "channel.verify",
    });
  }
}

/** What a client knows of the root that it trusts about the nodes of a host. */
export interface KnownRoot {
  key: string;
  epoch: number;
  /** Roots that key has followed. None of them is believed again. */
  former: string[];
}

/** Returns what the client knows of a root after it has seen a chain, or throws why it does not believe it. */
export function believe(
  root: KnownRoot,
  chain: Chain,
  now: number,
  revoked: ReadonlySet<string>,
  idOf: (key: string) => string,
): KnownRoot {
  const roots = rootsOf(chain);
  const at = roots.indexOf(root.key);
  for (const key of [...roots.slice(Math.max(at, 0)), root.key]) {
    if (revoked.has(idOf(key)))
      throw refused("root_revoked", `is of the root ${idOf(key)}, which is revoked here`);
  }
  if (root.former.includes(chain.signer)) throw replaced(chain.signer, root.key);
  const next = checkChain(chain, root, now);
  if (next.key === root.key) return { ...root, epoch: next.epoch };
  const followed = roots.slice(at, -1);
  const former = [...root.former.filter((o) => !followed.includes(o)), ...followed].slice(-64);
  return { key: next.key, epoch: next.epoch, former };
}

/** Trusts the keys of pins, and the node whose certificate a root vouches for. */
export class RootPins implements Pins {
  #chain: Chain | undefined;
  #why: unknown;

  constructor(
    readonly pins: KeyPins,
    readonly node: string,
    root: KnownRoot,
    certificate: Uint8Array,
    learn: (chain: Chain) => void,
  ) {
    if (certificate.length === 0) {
      this.#why = uncertified(root.key);
      return;
    }
    try {
      this.#chain = openChain(certificate);
      learn(this.#chain);
    } catch (err) {
      if (!(err instanceof TurnstoneError) || !err.fault) throw err;
      this.#why = err;
    }
  }

  vouch(key: SignerKey): void {
    try {
      this.pins.vouch(key);
      return;
    } catch (err) {
      if (this.pins.revoked.has(key.id)) throw err;
    }
    if (this.#why !== undefined) throw this.#why as Error;
    checkNode(this.#chain!, this.node, key);
  }
}

/** Returns pins that the program names; what a root's certificates show is remembered for its life. */
export function givenPins(
  pins: string[],
  root: string | undefined,
  revoked: () => Promise<ReadonlySet<string>>,
): (node: string, certificate: Uint8Array) => Promise<Pins> {
  for (const p of pins) {
    if (!/^SHA256:[A-Za-z0-9+/]{43}$/.test(p)) SignerKey.parse(p);
  }
  if (pins.length > 0 && root) {
    throw fail("invalid", "pins and root exclude each other", { op: "client.new" });
  }
  let known = root
    ? { key: SignerKey.parse(root).text, epoch: 0, former: [] as string[] }
    : undefined;
  return async (node, certificate) => {
    const gone = await revoked();
    const keys = new KeyPins(pins, gone);
    if (!known) return keys;
    return new RootPins(keys, node, known, certificate, (chain) => {
      known = believe(known!, chain, Date.now(), gone, (k) => SignerKey.parse(k).id);
    });
  };
}
