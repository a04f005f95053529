import { concat, equal, fromBase64, fromUtf8, utf8 } from "../bytes.js";
import { SignerKey } from "./ssh.js";

const maxEnvelope = 512 << 10;
const maxPayload = 256 << 10;
const maxDepth = 16;
const payloadType = "application/vnd.in-toto+json";
const statementType = "https://in-toto.io/Statement/v1";

/** Why an envelope or a statement is not believed. */
export class Damaged extends Error {}

/** A decoded envelope with one signature (DSSE). Its payload is untrusted until it is verified. */
export interface Sealed {
  payload: Uint8Array;
  keyid: string;
  signature: Uint8Array;
}

function depth(text: string): number {
  let level = 0;
  let deepest = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted && c === "\\") i++;
    else if (c === '"') quoted = !quoted;
    else if (quoted) continue;
    else if (c === "{" || c === "[") deepest = Math.max(deepest, ++level);
    else if (c === "}" || c === "]") level--;
  }
  return deepest;
}

function parse(bytes: Uint8Array, limit: number, what: string): unknown {
  if (bytes.length > limit)
    throw new Damaged(`${what} has ${bytes.length} bytes; the limit is ${limit}`);
  let text: string;
  try {
    text = fromUtf8(bytes);
  } catch {
    throw new Damaged(`${what} is not UTF-8`);
  }
  if (depth(text) > maxDepth) throw new Damaged(`${what} is nested deeper than ${maxDepth} levels`);
  try {
    return JSON.parse(text);
  } catch {
    throw new Damaged(`${what} is not JSON`);
  }
}

/** Returns the value as an object of JSON. */
export function objectOf(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Damaged(`${what} is no object`);
  }
  return value as Record<string, unknown>;
}

/** Returns the value as a text. */
export function textIn(value: unknown, what: string): string {
  if (typeof value !== "string") throw new Damaged(`${what} is no text`);
  return value;
}

const spelling =
  "is not spelled as turn writes it: white space, order, an unknown key, or a key that is there twice";

/** Throws if the bytes are not the one spelling of a value, whose keys are in the order of Go's type. */
export function sameSpelling(bytes: Uint8Array, value: unknown, what: string): void {
  if (!equal(utf8(JSON.stringify(value)), bytes)) throw new Damaged(`${what} ${spelling}`);
}

/** Decodes an untrusted envelope, which has one spelling and one signature. */
export function unseal(envelope: Uint8Array): Sealed {
  const e = objectOf(parse(envelope, maxEnvelope, "the envelope"), "the envelope");
  if (!Array.isArray(e["signatures"]) || e["signatures"].length !== 1) {
    throw new Damaged("the envelope does not have one signature");
  }
  const s = objectOf(e["signatures"][0], "the signature");
  const fields = {
    payloadType: textIn(e["payloadType"], "the payload's type"),
    payload: textIn(e["payload"], "the payload"),
    signatures: [
      { keyid: textIn(s["keyid"], "the key's ID"), sig: textIn(s["sig"], "the signature") },
    ],
  };
  sameSpelling(envelope, fields, "the envelope");
  if (fields.payloadType !== payloadType)
    throw new Damaged("the envelope has a payload of another type");
  const payload = fromBase64(fields.payload);
  const signature = fromBase64(fields.signatures[0]!.sig);
  if (!payload || !signature) throw new Damaged("the envelope has base64 in another spelling");
  return { payload, keyid: fields.signatures[0]!.keyid, signature };
}

/** Returns what is signed of a payload (DSSE's PAE). */
export function preAuthEncoding(payload: Uint8Array): Uint8Array {
  return concat(utf8(`DSSEv1 ${payloadType.length} ${payloadType} ${payload.length} `), payload);
}

/** Throws if the key has not signed the envelope. */
export function verify(sealed: Sealed, key: SignerKey): void {
  if (sealed.keyid !== key.id)
    throw new Damaged("the signature is by another key than the statement names");
  if (!key.verify(sealed.signature, preAuthEncoding(sealed.payload))) {
    throw new Damaged(`the key ${key.id} did not sign this`);
  }
}

/** An in-toto statement about one subject. */
export interface Statement {
  subject: string;
  digest: string;
  predicate: Record<string, unknown>;
}

/** Decodes an untrusted payload as an in-toto statement with this type of predicate. */
export function decodeStatement(payload: Uint8Array, predicateType: string): Statement {
  const s = objectOf(parse(payload, maxPayload, "the statement"), "the statement");
  if (s["_type"] !== statementType) throw new Damaged("it is no in-toto statement");
  if (s["predicateType"] !== predicateType) throw new Damaged("it is about something else");
  if (!Array.isArray(s["subject"]) || s["subject"].length !== 1)
    throw new Damaged("it does not have one subject");
  const subject = objectOf(s["subject"][0], "the subject");
  const digest = objectOf(subject["digest"], "the subject's digest");
  return {
    subject: textIn(subject["name"], "the subject's name"),
    digest: textIn(digest["sha256"], "the subject's digest"),
    predicate: objectOf(s["predicate"], "the predicate"),
  };
}

/** Throws if the payload is not the one spelling of the statement with this predicate. */
export function checkSpelling(
  payload: Uint8Array,
  s: Statement,
  predicateType: string,
  predicate: object,
): void {
  const whole = {
    _type: statementType,
    subject: [{ name: s.subject, digest: { sha256: s.digest } }],
    predicateType,
    predicate,
  };
  sameSpelling(payload, whole, "the statement");
}

const firstTime = Date.UTC(1970, 0, 1);
const lastTime = Date.UTC(2101, 0, 1);

/** Parses a time in UTC and whole seconds; the result is in milliseconds. */
export function parseTime(value: unknown): number {
  const text = textIn(value, "a time");
  const at = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(text) ? Date.parse(text) : NaN;
  if (Number.isNaN(at) || new Date(at).toISOString().replace(".000Z", "Z") !== text) {
    throw new Damaged("a time is not in UTC and whole seconds");
  }
  if (at < firstTime || at >= lastTime) throw new Damaged("a time is not between 1970 and 2100");
  return at;
}

/** Reports whether a text can be the name of a node, a sandbox or a tenant. */
export function isName(text: string): boolean {
  return text.length <= 253 && /^[A-Za-z0-9._-]*$/.test(text);
}
