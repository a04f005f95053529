import { concat, fromHex, utf8 } from "../bytes.js";
import { faultError } from "../errors.js";
import type { KeyPair } from "./key.js";
import { oneWay } from "./noise.js";

const prologue = utf8("turnstone proof of possession 1\0");

/** What a proof of possession is about: one call. */
export interface Claim {
  tenant: string;
  /** The digest of the whole request, "sha256:" and hexadecimal. */
  request: string;
}

/**
 * Returns a proof, for the node with a known key, that the caller has a private key and makes a claim
 * now: docs/decisions/0021-proof-of-possession.md.
 */
export function prove(
  key: KeyPair,
  server: Uint8Array,
  claim: Claim,
  now: number,
  ephemeral?: KeyPair,
): Uint8Array {
  const payload = new Uint8Array(8);
  new DataView(payload.buffer).setBigUint64(0, BigInt(now));
  const digest = fromHex(claim.request.replace(/^sha256:/, ""));
  try {
    return oneWay(
      {
        prologue: concat(prologue, digest, utf8(claim.tenant)),
        key,
        server,
        ...(ephemeral ? { ephemeral } : {}),
      },
      payload,
    );
  } catch (err) {
    throw faultError("weak_key", "the server's key is a point of low order", {
      op: "channel.prove",
      cause: err,
    });
  }
}
