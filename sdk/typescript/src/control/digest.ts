import type { DescField, DescMessage, Message, MessageShape } from "@bufbuild/protobuf";
import {
  reflect,
  type ReflectList,
  type ReflectMap,
  type ReflectMessage,
} from "@bufbuild/protobuf/reflect";
import { sha256 } from "@noble/hashes/sha2.js";
import { toHex, utf8 } from "../bytes.js";

// The digest of a request that a proof of possession is about: api.ProofDigest of the server. Each
// part has a length or a number before it, so that no two messages of a type give the same bytes.

const clientType = "turnstone.v1.ChannelClient";

class Digester {
  #hash = sha256.create();

  number(n: number | bigint): void {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setBigUint64(0, BigInt.asUintN(64, BigInt(n)));
    this.#hash.update(bytes);
  }

  bytes(b: Uint8Array): void {
    this.number(b.length);
    this.#hash.update(b);
  }

  text(s: string): void {
    this.bytes(utf8(s));
  }

  message(m: ReflectMessage): void {
    const set = m.sortedFields.filter((f) => m.isSet(f) && !left(m, f));
    set.sort((a, b) => a.number - b.number);
    this.number(set.length);
    for (const f of set) {
      this.number(f.number);
      this.field(f, m.get(f));
    }
  }

  field(f: DescField, value: unknown): void {
    if (f.fieldKind === "list") {
      const list = value as ReflectList;
      this.number(list.size);
      for (const v of list) this.one(v);
    } else if (f.fieldKind === "map") {
      const map = [...(value as ReflectMap)].map(([k, v]) => [String(k), v] as const);
      map.sort(([a], [b]) => compareBytes(utf8(a), utf8(b)));
      this.number(map.length);
      for (const [k, v] of map) {
        this.text(k);
        this.one(v);
      }
    } else {
      this.one(value);
    }
  }

  one(v: unknown): void {
    switch (typeof v) {
      case "string":
        this.text(v);
        return;
      case "boolean":
        this.number(v ? 1 : 0);
        return;
      case "bigint":
        this.number(v);
        return;
      case "number":
        if (!Number.isInteger(v)) throw new Error("a request has a fraction");
        this.number(v);
        return;
    }
    if (v instanceof Uint8Array) this.bytes(v);
    else this.message(v as ReflectMessage);
  }

  end(): string {
    return "sha256:" + toHex(this.#hash.digest());
  }
}

function left(m: ReflectMessage, f: DescField): boolean {
  return f.name === "proofs" && m.desc.typeName === clientType;
}

function compareBytes(a: Uint8Array, b: Uint8Array): number {
  for (let i = 0; i < Math.min(a.length, b.length); i++) {
    if (a[i] !== b[i]) return a[i]! - b[i]!;
  }
  return a.length - b.length;
}

/** Returns the digest of a whole request without its proofs. */
export function proofDigest<D extends DescMessage>(
  schema: D,
  message: MessageShape<D> | Message,
): string {
  const d = new Digester();
  d.text(schema.typeName);
  d.message(reflect(schema, message as MessageShape<D>));
  return d.end();
}
