import { fromUtf8, utf8 } from "../bytes.js";
import { faultError, textOf, TurnstoneError, type Fault } from "../errors.js";
import { digestOf, skew } from "./attest.js";
import {
  checkSpelling,
  Damaged,
  decodeStatement,
  isName,
  parseTime,
  textIn,
  unseal,
  verify,
} from "./envelope.js";
import { SignerKey } from "./ssh.js";

// docs/decisions/0023-operators-root.md

const certificateType = "https://turnstone.dev/attestations/node-certificate/v1";
const successionType = "https://turnstone.dev/attestations/root-succession/v1";
const maxValidity = 366 * 24 * 3600_000;
const maxEpoch = 1_000_000_000;
const maxSuccessions = 8;
const maxChain = 16 << 10;

/** What an operator's root says about a node's key. */
export interface Certificate {
  node: string;
  key: string;
  epoch: number;
  time: number;
  expires: number;
  signer: string;
}

/** What an operator's root says about the root that takes its place. */
export interface Succession {
  next: string;
  epoch: number;
  signer: string;
}

/** A node's certificate and the successions of roots that lead to the one which signed it. */
export interface Chain extends Certificate {
  successions: Succession[];
}

/** What a client knows of an operator's root. */
export interface Root {
  key: string;
  epoch: number;
}

const hints: Partial<Record<Fault, string>> = {
  uncertified:
    "ask the server's operator to certify the node: turn host root sign, and node.certificate of the node",
  other_root:
    "compare the root with the server's operator; turn host add --root FINGERPRINT trusts another one",
  certificate_expired:
    "ask the server's operator for a new certificate of the node, and compare the clocks of this machine and of the node",
  certificate_not_yet_valid: "compare the clocks of this machine and of the node",
  old_epoch:
    "ask the server's operator for a new certificate of the node: later ones of the same root are in use",
  other_node: "ask the server's operator which key the node has: turn host root show",
  root_revoked: "do not rely on nodes that this root certified",
};

/** Returns the error about a node's certificate. */
export function refused(fault: Fault, text: string): TurnstoneError {
  const hint = hints[fault];
  return faultError(fault, text, {
    op: "root.verify",
    subject: "the node's certificate",
    ...(hint ? { hint } : {}),
  });
}

function epochOf(value: unknown): number {
  if (typeof value !== "number" || !Number.isInteger(value) || value < 1 || value > maxEpoch) {
    throw new Damaged(`its epoch is not between 1 and ${maxEpoch}`);
  }
  return value;
}

/** Opens one envelope; decode returns its fields in the order of their spelling, and what they mean. */
function openOne<T extends { signer: string }>(
  line: string,
  type: string,
  decode: (p: Record<string, unknown>) => { fields: object; value: T; name: string; about: string },
): T {
  const sealed = unseal(utf8(line));
  const s = decodeStatement(sealed.payload, type);
  const { fields, value, name, about } = decode(s.predicate);
  checkSpelling(sealed.payload, s, type, fields);
  if (s.subject !== name || `sha256:${s.digest}` !== digestOf(utf8(about))) {
    throw new Damaged("its subject is not the key of its predicate");
  }
  verify(sealed, SignerKey.parse(value.signer));
  return value;
}

function decodeCertificate(p: Record<string, unknown>): {
  fields: object;
  value: Certificate;
  name: string;
  about: string;
} {
  const node = p["node"] === undefined ? "" : textIn(p["node"], "node");
  const value: Certificate = {
    node,
    key: SignerKey.parse(p["key"]).text,
    epoch: epochOf(p["epoch"]),
    time: parseTime(p["time"]),
    expires: parseTime(p["expires"]),
    signer: SignerKey.parse(p["signer"]).text,
  };
  if (!isName(node)) throw new Damaged("it names no node");
  if (value.key === value.signer) throw new Damaged("it is about the root's own key");
  if (value.expires <= value.time || value.expires - value.time > maxValidity) {
    throw new Damaged("it is not valid for a time up to 366 days");
  }
  const { key, epoch, signer } = value;
  const fields = {
    ...(node !== "" ? { node } : {}),
    key,
    epoch,
    time: p["time"],
    expires: p["expires"],
    signer,
  };
  return { fields, value, name: `node:${node}`, about: key };
}

function decodeSuccession(p: Record<string, unknown>): {
  fields: object;
  value: Succession;
  name: string;
  about: string;
} {
  const next = SignerKey.parse(p["next"]).text;
  const epoch = epochOf(p["epoch"]);
  const signer = SignerKey.parse(p["signer"]).text;
  parseTime(p["time"]);
  if (next === signer) throw new Damaged("the root follows itself");
  return {
    fields: { next, epoch, time: p["time"], signer },
    value: { next, epoch, signer },
    name: "root",
    about: next,
  };
}

/**
 * Decodes an untrusted chain, which has one spelling, and checks that the keys that it names have
 * signed it, and that each root follows from the one before. Errors have the fault "forged".
 */
export function openChain(bytes: Uint8Array): Chain {
  try {
    return decodeChain(bytes);
  } catch (err) {
    throw faultError("forged", textOf(err), { op: "root.verify", subject: "the certificate" });
  }
}

function decodeChain(bytes: Uint8Array): Chain {
  if (bytes.length > maxChain)
    throw new Damaged(`it has ${bytes.length} bytes; the limit is ${maxChain}`);
  const text = fromUtf8(bytes);
  const lines = text.slice(0, -1).split("\n");
  if (!text.endsWith("\n") || lines.length > 1 + maxSuccessions) {
    throw new Damaged(`it is not 1 to ${1 + maxSuccessions} lines`);
  }
  const chain: Chain = {
    ...openOne(lines[0]!, certificateType, decodeCertificate),
    successions: lines.slice(1).map((l) => openOne(l, successionType, decodeSuccession)),
  };
  const seen = new Set([chain.signer]);
  chain.successions.forEach((s, i) => {
    const after = chain.successions[i + 1];
    if (s.next !== (after ? after.signer : chain.signer)) {
      throw new Damaged("its successions do not lead to the root that signed it");
    }
    if (s.epoch >= (after ? after.epoch : chain.epoch + 1)) throw new Damaged("its epochs go back");
    if (seen.has(s.signer)) throw new Damaged("a root follows itself");
    seen.add(s.signer);
  });
  return chain;
}

/** Returns the roots of a chain, the oldest first. */
export function rootsOf(c: Chain): string[] {
  return [...c.successions.map((s) => s.signer), c.signer];
}

function fingerprint(key: string): string {
  try {
    return SignerKey.parse(key).id;
  } catch {
    return "an unknown key";
  }
}

/** Returns what the client knows after it has seen the chain, or throws why it does not believe it. */
export function checkChain(c: Chain, r: Root, now: number): Root {
  const at = rootsOf(c).indexOf(r.key);
  if (at < 0) {
    throw refused(
      "other_root",
      `is signed by the root ${fingerprint(c.signer)}, and this client trusts ${fingerprint(r.key)}`,
    );
  }
  const next = c.successions[at];
  if (next && next.epoch <= r.epoch) {
    throw refused(
      "old_epoch",
      `has a succession of epoch ${next.epoch}, and this client has seen epoch ${r.epoch}`,
    );
  }
  if (c.epoch < r.epoch) {
    throw refused("old_epoch", `has epoch ${c.epoch}, and this client has seen epoch ${r.epoch}`);
  }
  if (c.time > now + skew) {
    throw refused(
      "certificate_not_yet_valid",
      `is valid from ${new Date(c.time).toISOString()} only`,
    );
  }
  if (now >= c.expires) {
    throw refused("certificate_expired", `expired at ${new Date(c.expires).toISOString()}`);
  }
  return { key: c.signer, epoch: c.epoch };
}

/** Throws if the certificate is not about the node with this name and key. */
export function checkNode(c: Chain, node: string, key: SignerKey): void {
  if (c.key !== key.text) {
    throw refused(
      "other_node",
      `is about the key ${fingerprint(c.key)}, and the node has ${key.id}`,
    );
  }
  if (node !== "" && c.node !== "" && c.node !== node) {
    throw refused("other_node", `is about the node ${c.node}, and not about ${node.slice(0, 80)}`);
  }
}

/** Returns the error about a node that shows no certificate of the root that a client pins. */
export function uncertified(root: string): TurnstoneError {
  return refused(
    "uncertified",
    `is missing, and this client trusts nodes of the root ${fingerprint(root)} only`,
  );
}

/** Returns the error about a certificate of a root that another one has replaced. */
export function replaced(root: string, by: string): TurnstoneError {
  return refused(
    "other_root",
    `is signed by the root ${fingerprint(root)}, which this client has seen replaced by ${fingerprint(by)}`,
  );
}
