import { ed25519 } from "@noble/curves/ed25519.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { concat, equal, fromBase64, toBase64, utf8 } from "../bytes.js";
import { fail } from "../errors.js";

const type = "ssh-ed25519";
const prefix = concat(Uint8Array.of(0, 0, 0, type.length), utf8(type), Uint8Array.of(0, 0, 0, 32));

/** An Ed25519 key that signs statements, as OpenSSH spells it. */
export class SignerKey {
  private constructor(
    /** "ssh-ed25519 BASE64" */
    readonly text: string,
    /** The fingerprint, "SHA256:" and base64 without padding. */
    readonly id: string,
    readonly raw: Uint8Array,
  ) {}

  /** Parses exactly "ssh-ed25519 BASE64". */
  static parse(text: unknown): SignerKey {
    const bad = (why: string): never => {
      throw fail("invalid", why, { op: "key.parse", subject: "the key" });
    };
    if (typeof text !== "string" || text.length > 4096) return bad("is no text");
    const [kind, encoded, ...rest] = text.split(" ");
    if (kind !== type || encoded === undefined || rest.length > 0) {
      return bad(`does not have the form ${type} BASE64`);
    }
    const blob = fromBase64(encoded);
    if (
      !blob ||
      blob.length !== prefix.length + 32 ||
      !equal(blob.subarray(0, prefix.length), prefix)
    ) {
      return bad("is no Ed25519 key in its only spelling");
    }
    const id = "SHA256:" + toBase64(sha256(blob)).replace(/=+$/, "");
    return new SignerKey(text, id, blob.subarray(prefix.length));
  }

  /** Parses a line of a .pub file: a key and a comment. */
  static parseLine(line: string): SignerKey {
    return SignerKey.parse(line.trim().split(/\s+/).slice(0, 2).join(" "));
  }

  /** Returns the key with these 32 bytes. */
  static fromRaw(raw: Uint8Array): SignerKey {
    return SignerKey.parse(`${type} ${toBase64(concat(prefix, raw))}`);
  }

  /** Reports whether the key has signed the message. */
  verify(signature: Uint8Array, message: Uint8Array): boolean {
    if (signature.length !== 64) return false;
    try {
      return ed25519.verify(signature, message, this.raw, { zip215: false });
    } catch {
      return false;
    }
  }
}
