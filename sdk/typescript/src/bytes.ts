const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Returns the UTF-8 bytes of a text. */
export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Returns the text of UTF-8 bytes; throws on malformed ones. */
export function fromUtf8(bytes: Uint8Array): string {
  return strict.decode(bytes);
}

/** Joins byte strings. */
export function concat(...parts: Uint8Array[]): Uint8Array {
  let size = 0;
  for (const p of parts) size += p.length;
  const all = new Uint8Array(size);
  let at = 0;
  for (const p of parts) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}

/** Compares byte strings in constant time, if their lengths are equal. */
export function equal(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  let different = 0;
  for (let i = 0; i < a.length; i++) different |= a[i]! ^ b[i]!;
  return different === 0;
}

/** Returns base64 with padding. */
export function toBase64(bytes: Uint8Array): string {
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  }
  return btoa(text);
}

/** Decodes the only spelling of base64 with padding; undefined if the text is another. */
export function fromBase64(text: string): Uint8Array | undefined {
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4 !== 0) return undefined;
  let raw: string;
  try {
    raw = atob(text);
  } catch {
    return undefined;
  }
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return toBase64(bytes) === text ? bytes : undefined;
}

/** Returns lower-case hexadecimal. */
export function toHex(bytes: Uint8Array): string {
  let text = "";
  for (const b of bytes) text += b.toString(16).padStart(2, "0");
  return text;
}

/** Decodes hexadecimal; throws on other texts. */
export function fromHex(text: string): Uint8Array {
  if (!/^([0-9a-f]{2})*$/.test(text)) throw new Error("not hexadecimal");
  const bytes = new Uint8Array(text.length / 2);
  for (let i = 0; i < bytes.length; i++) bytes[i] = parseInt(text.slice(2 * i, 2 * i + 2), 16);
  return bytes;
}

/** Returns random bytes of the platform. */
export function random(size: number): Uint8Array {
  return crypto.getRandomValues(new Uint8Array(size));
}

const letters = "abcdefghijklmnopqrstuvwxyz234567";

/** Returns a random name of letters and digits, with five bits in each. */
export function randomName(length: number): string {
  let text = "";
  for (const b of random(length)) text += letters[b & 31];
  return text;
}
