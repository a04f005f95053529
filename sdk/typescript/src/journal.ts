import { fromBase64, fromUtf8 } from "./bytes.js";
import { fail, kindOf, textOf, type TurnstoneError } from "./errors.js";
import type { Receiver } from "./wire/streams.js";

const maxLine = 64 << 20;
const maxReport = 1 << 30;

/** What happens while documents run. */
export type Progress =
  | { type: "preparing"; text: string }
  | { type: "started"; step: number }
  | { type: "output"; step: number; stream: "stdout" | "stderr"; data: Uint8Array; omitted: number }
  | { type: "finished"; step: number; report: Record<string, unknown> }
  | { type: "item"; value: unknown };

/** Tells what happens. */
export type Tell = (p: Progress) => void;

/** Reads the journal of a turn or of another operation, which is untrusted, over several streams. */
export class Journal {
  /** Bytes of whole lines that were read: where a next reading starts. */
  offset = 0;
  /** The end has arrived. */
  ended = false;
  #tell: Tell | undefined;
  #report: Uint8Array[] = [];
  #size = 0;
  #error: TurnstoneError | undefined;

  constructor(tell?: Tell) {
    this.#tell = tell;
  }

  /** Reads lines until the journal's end, or the end of the stream, which may be within a line. */
  async read(from: Receiver): Promise<void> {
    let parts: Uint8Array[] = [];
    let size = 0;
    while (!this.ended) {
      const bytes = await from.read();
      if (bytes === null) return;
      let at = 0;
      while (at < bytes.length && !this.ended) {
        const end = bytes.indexOf(10, at);
        const part = bytes.subarray(at, end < 0 ? bytes.length : end + 1);
        parts.push(part);
        size += part.length;
        if (size > maxLine) throw broken(`a line is longer than ${maxLine} bytes`);
        at += part.length;
        if (end < 0) break;
        this.#line(join(parts, size));
        this.offset += size;
        parts = [];
        size = 0;
      }
    }
  }

  #line(bytes: Uint8Array): void {
    let l: Record<string, unknown>;
    try {
      l = JSON.parse(fromUtf8(bytes)) as Record<string, unknown>;
    } catch (err) {
      throw broken(textOf(err));
    }
    if (typeof l !== "object" || l === null) throw broken("a line is no object");
    const of = (key: string): Record<string, unknown> | undefined => {
      const v = l[key];
      return typeof v === "object" && v !== null ? (v as Record<string, unknown>) : undefined;
    };
    const [output, finished, end, item] = [of("output"), of("finished"), of("end"), of("item")];
    if (typeof l["preparing"] === "string")
      this.#tell?.({ type: "preparing", text: l["preparing"] });
    else if (typeof l["started"] === "number")
      this.#tell?.({ type: "started", step: l["started"] });
    else if (output) this.#output(output);
    else if (finished) {
      const report = (finished["report"] ?? {}) as Record<string, unknown>;
      this.#tell?.({ type: "finished", step: Number(finished["step"]), report });
    } else if (typeof l["report"] === "string") this.#part(l["report"]);
    else if (item) this.#tell?.({ type: "item", value: item["value"] });
    else if (end) this.#end(end);
    else if (!of("step")) throw broken("a line has no meaning");
  }

  #output(o: Record<string, unknown>): void {
    const data = fromBase64(String(o["data"] ?? ""));
    if (!data) throw broken("output is not base64");
    const stream = o["stream"] === 2 ? "stderr" : "stdout";
    this.#tell?.({
      type: "output",
      step: Number(o["step"]),
      stream,
      data,
      omitted: Number(o["omitted"] ?? 0),
    });
  }

  #part(text: string): void {
    const bytes = fromBase64(text);
    this.#size += bytes?.length ?? 0;
    if (!bytes || this.#size > maxReport)
      throw broken("a part of the report is malformed, or it is too large");
    this.#report.push(bytes);
  }

  #end(end: Record<string, unknown>): void {
    this.ended = true;
    const e = end["error"] as Record<string, unknown> | undefined;
    if (!e) return;
    const text = (key: string): string => (typeof e[key] === "string" ? e[key].slice(0, 4000) : "");
    this.#error = fail(kindOf(e["kind"]), text("cause") || "it failed", {
      op: text("op"),
      subject: text("subject"),
      hint: text("hint"),
    });
  }

  /** Returns the report, or throws the operation's error if there is none. */
  result<T>(): { report: T; error: TurnstoneError | undefined } {
    if (this.#report.length === 0) {
      throw this.#error ?? broken("there is neither a report nor an error");
    }
    try {
      return {
        report: JSON.parse(fromUtf8(join(this.#report, this.#size))) as T,
        error: this.#error,
      };
    } catch (err) {
      throw broken(`the report: ${textOf(err)}`);
    }
  }
}

function join(parts: Uint8Array[], size: number): Uint8Array {
  if (parts.length === 1) return parts[0]!;
  const all = new Uint8Array(size);
  let at = 0;
  for (const p of parts) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}

function broken(why: string): TurnstoneError {
  return fail("integrity", `is none of a node: ${why}`, {
    op: "turn.journal",
    subject: "the journal",
    hint: "use a client and a server of the same version",
  });
}
