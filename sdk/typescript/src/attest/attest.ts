import { sha256 } from "@noble/hashes/sha2.js";
import { equal, fromBase64, toHex } from "../bytes.js";
import { checkKey, parseKey } from "../channel/key.js";
import { faultError, textOf, TurnstoneError, type Fault } from "../errors.js";
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

const predicateType = "https://turnstone.dev/attestations/channel/v1";
const maxValidity = 24 * 3600_000;
const maxClients = 16;
/** How much the clocks of a client and a node may differ, in milliseconds. */
export const skew = 60_000;

/** What a node vouches for: who has a channel's key, and who may connect. */
export interface Attestation {
  /** "node:" and a name, or a sandbox's ID. */
  about: string;
  node: string;
  serverKey: Uint8Array;
  clients: Uint8Array[];
  owner: string;
  nonce: Uint8Array;
  tenant: string;
  template: string;
  agent: string;
  substrate: string;
  time: number;
  expires: number;
  signer: SignerKey;
  /** The digest of the statement: the prologue of the handshake. */
  digest: string;
}

/** Knows which nodes a client trusts: it throws why it does not trust a key. */
export interface Pins {
  vouch(key: SignerKey): void;
}

/** What a client knows about the statement that it asked for. */
export interface Expected {
  pins: Pins;
  about: string;
  client: Uint8Array;
  nonce: Uint8Array;
  owner?: string;
  template?: string;
  agent?: string;
  substrate?: string;
}

/** Returns "sha256:" and the hexadecimal digest of bytes. */
export function digestOf(bytes: Uint8Array): string {
  return "sha256:" + toHex(sha256(bytes));
}

function forged(err: unknown): TurnstoneError {
  return faultError("forged", textOf(err), { op: "channel.verify", subject: "the attestation" });
}

function optional(p: Record<string, unknown>, key: string): string {
  return p[key] === undefined ? "" : textIn(p[key], key);
}

/**
 * Decodes an untrusted envelope, which has one spelling, and checks that the key that its statement
 * names has signed it. `check` says whether to believe it. Errors have the fault "forged".
 */
export function openAttestation(envelope: Uint8Array): Attestation {
  try {
    return decode(envelope);
  } catch (err) {
    throw forged(err);
  }
}

function decode(envelope: Uint8Array): Attestation {
  const sealed = unseal(envelope);
  const s = decodeStatement(sealed.payload, predicateType);
  const p = s.predicate;
  const fields: Record<string, unknown> = {};
  const put = (key: string, text: string): void => {
    if (text !== "") fields[key] = text;
  };
  const sandbox = optional(p, "sandbox");
  const node = optional(p, "node");
  put("sandbox", sandbox);
  put("node", node);
  fields["serverKey"] = textIn(p["serverKey"], "serverKey");
  if (!Array.isArray(p["clients"])) throw new Damaged("it has no list of clients");
  fields["clients"] = p["clients"].map((c) => textIn(c, "a client"));
  put("owner", optional(p, "owner"));
  fields["nonce"] = textIn(p["nonce"], "the nonce");
  for (const key of ["tenant", "template", "agent", "substrate"]) put(key, optional(p, key));
  for (const key of ["time", "expires", "signer"]) fields[key] = textIn(p[key], key);
  checkSpelling(sealed.payload, s, predicateType, fields);
  const a: Attestation = {
    about: node !== "" ? `node:${node}` : sandbox,
    node,
    serverKey: parseKey(fields["serverKey"]),
    clients: (fields["clients"] as string[]).map(parseKey),
    owner: optional(p, "owner"),
    nonce: nonceOf(fields["nonce"] as string),
    tenant: optional(p, "tenant"),
    template: optional(p, "template"),
    agent: optional(p, "agent"),
    substrate: optional(p, "substrate"),
    time: parseTime(p["time"]),
    expires: parseTime(p["expires"]),
    signer: SignerKey.parse(p["signer"]),
    digest: digestOf(sealed.payload),
  };
  checkFields(a, sandbox);
  if (s.subject !== a.about || `sha256:${s.digest}` !== digestOf(a.serverKey)) {
    throw new Damaged("its subject is not the key of its predicate");
  }
  verify(sealed, a.signer);
  return a;
}

function nonceOf(text: string): Uint8Array {
  const nonce = fromBase64(text);
  if (nonce?.length !== 32) throw new Damaged("the nonce is not base64 of 32 bytes");
  return nonce;
}

/** Throws if a statement means nothing. */
function checkFields(a: Attestation, sandbox: string): void {
  if ((sandbox === "") === (a.node === "")) {
    throw new Damaged("it is about neither or both of a sandbox and a node");
  }
  if (!isName(sandbox + a.node) || a.about.length > 253 || !isName(a.tenant)) {
    throw new Damaged("a name is none of a sandbox, a node or a tenant");
  }
  if (a.clients.length === 0 || a.clients.length > maxClients) {
    throw new Damaged(`it admits ${a.clients.length} clients, not 1 to ${maxClients}`);
  }
  if (a.nonce.every((b) => b === 0)) throw new Damaged("it has no nonce");
  if (a.expires <= a.time || a.expires - a.time > maxValidity) {
    throw new Damaged("it is not valid for a time up to 24 hours");
  }
  checkKey(a.serverKey);
  a.clients.forEach((k, i) => {
    checkKey(k);
    if (a.clients.slice(0, i).some((o) => equal(o, k)))
      throw new Damaged("it admits a client twice");
  });
  for (const d of [a.template, a.agent, a.substrate]) {
    if (d !== "" && !/^sha256:[0-9a-f]{64}$/.test(d)) throw new Damaged("a digest is malformed");
  }
  if (a.owner !== "") SignerKey.parse(a.owner);
}

/** Throws why a client must not use the statement. Each error has a fault. */
export function checkAttestation(a: Attestation, e: Expected, now: number): void {
  const refuse = (fault: Fault, text: string): never => {
    throw faultError(fault, text, {
      op: "channel.verify",
      subject: `the attestation of ${a.about}`,
    });
  };
  try {
    e.pins.vouch(a.signer);
  } catch (err) {
    if (err instanceof TurnstoneError && err.fault) throw err;
    refuse("untrusted", textOf(err));
  }
  if (a.time > now + skew)
    refuse("expired", `is valid from ${new Date(a.time).toISOString()} only`);
  if (now >= a.expires) refuse("expired", `expired at ${new Date(a.expires).toISOString()}`);
  if (!equal(a.nonce, e.nonce)) refuse("replayed", "is the answer to another request");
  if (a.about !== e.about) refuse("spliced", `is not about ${e.about.slice(0, 200)}`);
  if (!a.clients.some((k) => equal(k, e.client)))
    refuse("spliced", "does not admit this client's key");
  if (!a.clients.every((k) => equal(k, e.client))) {
    refuse("widened", "admits a key that this client did not name");
  }
  if (a.owner !== (e.owner ?? ""))
    refuse("widened", "lets another key admit others than this client named");
  for (const what of ["template", "agent", "substrate"] as const) {
    const want = e[what];
    if (want && want !== a[what]) refuse("spliced", `has another ${what} than ${want}`);
  }
}
