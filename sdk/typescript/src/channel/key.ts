import { x25519 } from "@noble/curves/ed25519.js";
import { fromBase64, random, toBase64 } from "../bytes.js";
import { fail, faultError } from "../errors.js";

/** Size of an X25519 key in bytes. */
export const keySize = 32;

/** An X25519 key pair. Nothing prints its private part. */
export class KeyPair {
  readonly public: Uint8Array;
  readonly #private: Uint8Array;

  private constructor(secret: Uint8Array) {
    this.#private = secret;
    this.public = x25519.getPublicKey(secret);
  }

  /** Makes a pair from the platform's random numbers. */
  static generate(): KeyPair {
    return new KeyPair(random(keySize));
  }

  /** Returns the pair of a private key of 32 bytes, which it copies. */
  static fromPrivate(secret: Uint8Array): KeyPair {
    if (secret.length !== keySize) {
      throw fail("invalid", `has ${secret.length} bytes, not ${keySize}`, {
        op: "channel.key",
        subject: "the private key",
      });
    }
    return new KeyPair(Uint8Array.from(secret));
  }

  /** Returns a copy of the private key, to store it. */
  exportPrivate(): Uint8Array {
    return Uint8Array.from(this.#private);
  }

  /** Diffie-Hellman. It throws WeakKey if the result is zero. */
  shared(other: Uint8Array): Uint8Array {
    try {
      return x25519.getSharedSecret(this.#private, other);
    } catch (err) {
      throw new WeakKey(err);
    }
  }

  toJSON(): string {
    return toBase64(this.public);
  }
}

/** X25519 gave zero: the other key is a point of low order. */
export class WeakKey extends Error {
  constructor(cause: unknown) {
    super("X25519 gives zero", { cause });
  }
}

const anyKey = (() => {
  const scalar = new Uint8Array(keySize);
  scalar[0] = 8;
  scalar[keySize - 1] = 64;
  return KeyPair.fromPrivate(scalar);
})();

/** Throws for a public key with which everybody knows the secret. */
export function checkKey(key: Uint8Array): void {
  try {
    if (key.length === keySize) {
      anyKey.shared(key);
      return;
    }
  } catch {
    // reported below
  }
  throw faultError("weak_key", "is a point of low order", {
    op: "channel.key",
    subject: "the key",
  });
}

/** Decodes the only spelling of a public key in base64. */
export function parseKey(text: unknown): Uint8Array {
  const key = typeof text === "string" ? fromBase64(text) : undefined;
  if (key?.length !== keySize) {
    throw fail("invalid", "is not base64 of 32 bytes", { op: "channel.key", subject: "the key" });
  }
  return key;
}
