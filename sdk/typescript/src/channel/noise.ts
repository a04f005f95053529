import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { concat, utf8 } from "../bytes.js";
import { aead } from "./aead.js";
import { KeyPair, keySize } from "./key.js";

// Noise Protocol Framework, revision 34, with 25519, ChaChaPoly and SHA256.

const tagSize = 16;
const maxNonce = 2n ** 64n - 1n;
const empty = new Uint8Array(0);

function nonce(n: bigint): Uint8Array {
  const bytes = new Uint8Array(12);
  new DataView(bytes.buffer).setBigUint64(4, n, true);
  return bytes;
}

/** Encrypts with a key and a number. */
export function seal(
  key: Uint8Array,
  n: bigint,
  plain: Uint8Array,
  ad: Uint8Array = empty,
): Uint8Array {
  return aead.seal(key, nonce(n), [plain], ad);
}

/** Encrypts the joined parts behind a header of head bytes, which are zero. */
export function sealBehind(
  head: number,
  key: Uint8Array,
  n: bigint,
  ...parts: Uint8Array[]
): Uint8Array {
  return aead.seal(key, nonce(n), parts, empty, head);
}

/** Decrypts; it throws if the ciphertext is not authentic. */
export function open(
  key: Uint8Array,
  n: bigint,
  sealed: Uint8Array,
  ad: Uint8Array = empty,
): Uint8Array {
  return aead.open(key, nonce(n), sealed, ad);
}

/** Returns the key that follows a key (11.3). */
export function rekey(key: Uint8Array): Uint8Array {
  return seal(key, maxNonce, new Uint8Array(keySize)).subarray(0, keySize);
}

function hkdf2(chaining: Uint8Array, material: Uint8Array): [Uint8Array, Uint8Array] {
  const temp = hmac(sha256, chaining, material);
  const one = hmac(sha256, temp, Uint8Array.of(1));
  return [one, hmac(sha256, temp, concat(one, Uint8Array.of(2)))];
}

class Symmetric {
  #chaining: Uint8Array;
  #hash: Uint8Array;
  #key: Uint8Array | undefined;
  #n = 0n;

  constructor(name: string) {
    const bytes = utf8(name);
    this.#hash =
      bytes.length <= 32 ? concat(bytes, new Uint8Array(32 - bytes.length)) : sha256(bytes);
    this.#chaining = this.#hash;
  }

  get hash(): Uint8Array {
    return this.#hash;
  }

  mixHash(data: Uint8Array): void {
    this.#hash = sha256(concat(this.#hash, data));
  }

  mixKey(material: Uint8Array): void {
    [this.#chaining, this.#key] = hkdf2(this.#chaining, material);
    this.#n = 0n;
  }

  encrypt(plain: Uint8Array): Uint8Array {
    const out = this.#key ? seal(this.#key, this.#n++, plain, this.#hash) : plain;
    this.mixHash(out);
    return out;
  }

  decrypt(sealed: Uint8Array): Uint8Array {
    const plain = this.#key ? open(this.#key, this.#n, sealed, this.#hash) : sealed;
    if (this.#key) this.#n++;
    this.mixHash(sealed);
    return plain;
  }

  split(): [Uint8Array, Uint8Array] {
    return hkdf2(this.#chaining, empty);
  }
}

/** The keys of the two directions. */
export interface Split {
  send: Uint8Array;
  receive: Uint8Array;
  hash: Uint8Array;
}

/** What a side of a handshake knows. */
export interface HandshakeConfig {
  prologue: Uint8Array;
  key: KeyPair;
  /** For tests: a fixed ephemeral key. */
  ephemeral?: KeyPair;
}

/** The initiator of Noise_IK. */
export class Initiator {
  #state: Symmetric;
  #key: KeyPair;
  #ephemeral: KeyPair;
  #server: Uint8Array;

  constructor(config: HandshakeConfig & { server: Uint8Array }) {
    this.#state = new Symmetric("Noise_IK_25519_ChaChaPoly_SHA256");
    this.#key = config.key;
    this.#ephemeral = config.ephemeral ?? KeyPair.generate();
    this.#server = config.server;
    this.#state.mixHash(config.prologue);
    this.#state.mixHash(config.server);
  }

  /** Returns message 1: e, es, s, ss. */
  first(payload: Uint8Array = empty): Uint8Array {
    const s = this.#state;
    s.mixHash(this.#ephemeral.public);
    s.mixKey(this.#ephemeral.shared(this.#server));
    const sealed = s.encrypt(this.#key.public);
    s.mixKey(this.#key.shared(this.#server));
    return concat(this.#ephemeral.public, sealed, s.encrypt(payload));
  }

  /** Reads message 2: e, ee, se. */
  second(message: Uint8Array): Split & { payload: Uint8Array } {
    const s = this.#state;
    const e = message.subarray(0, keySize);
    s.mixHash(e);
    s.mixKey(this.#ephemeral.shared(e));
    s.mixKey(this.#key.shared(e));
    const payload = s.decrypt(message.subarray(keySize));
    const [send, receive] = s.split();
    return { send, receive, hash: s.hash, payload };
  }
}

/** The responder of Noise_IK: for tests of the client. */
export class Responder {
  #state: Symmetric;
  #key: KeyPair;
  #ephemeral: KeyPair;
  #client: Uint8Array = empty;
  #clientEphemeral: Uint8Array = empty;

  constructor(config: HandshakeConfig) {
    this.#state = new Symmetric("Noise_IK_25519_ChaChaPoly_SHA256");
    this.#key = config.key;
    this.#ephemeral = config.ephemeral ?? KeyPair.generate();
    this.#state.mixHash(config.prologue);
    this.#state.mixHash(config.key.public);
  }

  /** Reads message 1, and returns the client's key and payload. */
  first(message: Uint8Array): { client: Uint8Array; payload: Uint8Array } {
    const s = this.#state;
    this.#clientEphemeral = message.slice(0, keySize);
    s.mixHash(this.#clientEphemeral);
    s.mixKey(this.#key.shared(this.#clientEphemeral));
    this.#client = s.decrypt(message.subarray(keySize, 2 * keySize + tagSize));
    s.mixKey(this.#key.shared(this.#client));
    return { client: this.#client, payload: s.decrypt(message.subarray(2 * keySize + tagSize)) };
  }

  /** Returns message 2. */
  second(payload: Uint8Array = empty): Split & { message: Uint8Array } {
    const s = this.#state;
    s.mixHash(this.#ephemeral.public);
    s.mixKey(this.#ephemeral.shared(this.#clientEphemeral));
    s.mixKey(this.#ephemeral.shared(this.#client));
    const message = concat(this.#ephemeral.public, s.encrypt(payload));
    const [receive, send] = s.split();
    return { send, receive, hash: s.hash, message };
  }
}

/** Returns the one message of Noise_X from a key to a server's. */
export function oneWay(
  config: HandshakeConfig & { server: Uint8Array },
  payload: Uint8Array,
): Uint8Array {
  const s = new Symmetric("Noise_X_25519_ChaChaPoly_SHA256");
  const e = config.ephemeral ?? KeyPair.generate();
  s.mixHash(config.prologue);
  s.mixHash(config.server);
  s.mixHash(e.public);
  s.mixKey(e.shared(config.server));
  const sealed = s.encrypt(config.key.public);
  s.mixKey(config.key.shared(config.server));
  return concat(e.public, sealed, s.encrypt(payload));
}
