import { randomName, utf8 } from "./bytes.js";
import { sleep } from "./control/server.js";
import { aborted, fail, TurnstoneError } from "./errors.js";
import { holding } from "./stream.js";
import type { ProcessExit, ProcessStartParams } from "./wire/protocol.js";
import type { Receiver } from "./wire/streams.js";
import type { Wire } from "./wire/wire.js";

/** How long a command and its client wait for each other after a lost connection, in milliseconds. */
export const lingerTime = 10 * 60_000;
const retryDelay = 200;
const longestDelay = 5_000;
const killTime = 5_000;
/** Bytes of standard input that are kept because they may not have arrived. */
const inputWindow = 2 << 20;

/** Names of the two outputs. */
export type StreamName = "stdout" | "stderr";

/** Takes output; a promise holds the output back until it resolves. */
export type Sink = (stream: StreamName, bytes: Uint8Array) => void | Promise<void>;

/** What may be given as standard input. */
export type InputSource =
  | string
  | Uint8Array
  | AsyncIterable<string | Uint8Array>
  | Iterable<string | Uint8Array>;

/** Opens or reuses a connection to a sandbox. */
export type Connect = (signal?: AbortSignal) => Promise<Wire>;

/** Standard input that can continue on another connection at the first byte that has not arrived. */
export class Input {
  #parts: { at: number; bytes: Uint8Array }[] = [];
  #size = 0;
  #begin = 0;
  #ended = false;
  #waiting: (() => void)[] = [];

  /** Feeds a source. */
  static of(source: InputSource): Input {
    const input = new Input();
    if (typeof source === "string" || source instanceof Uint8Array) {
      void input.write(source).then(() => input.end());
    } else {
      void (async () => {
        for await (const p of source) await input.write(p);
      })().then(
        () => input.end(),
        () => input.end(),
      );
    }
    return input;
  }

  #wake(): void {
    for (const w of this.#waiting.splice(0)) w();
  }

  #changed(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Adds bytes, and waits while too many have not arrived. */
  async write(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? utf8(data) : data.slice();
    if (this.#ended)
      throw fail("invalid", "is closed", { op: "process.write", subject: "standard input" });
    if (bytes.length === 0) return;
    this.#parts.push({ at: this.#size, bytes });
    this.#size += bytes.length;
    this.#wake();
    while (!this.#ended && this.#size - this.#begin > inputWindow) await this.#changed();
  }

  end(): void {
    this.#ended = true;
    this.#wake();
  }

  /** Forgets bytes before an offset: they have arrived. */
  arrived(offset: number): void {
    if (offset <= this.#begin) return;
    this.#begin = offset;
    while (this.#parts[0] && this.#parts[0].at + this.#parts[0].bytes.length <= offset)
      this.#parts.shift();
    this.#wake();
  }

  /** Copies from an offset on to a stream until the end, or until stopped says so. */
  async copy(
    from: number,
    to: { write(b: Uint8Array): Promise<void>; end(): Promise<void> },
    stopped: () => boolean,
  ): Promise<void> {
    this.arrived(from);
    for (let at = from; !stopped(); ) {
      const part = this.#parts.find((p) => p.at + p.bytes.length > at);
      if (part) {
        await to.write(part.bytes.subarray(at - part.at));
        at = part.at + part.bytes.length;
        // what is beyond a stream's window has been taken by the other side
        this.arrived(at - (1 << 20));
      } else if (this.#ended) {
        await to.end();
        return;
      } else {
        await this.#changed();
      }
    }
  }

  /** Wakes a copy so that it sees that it was stopped. */
  poke(): void {
    this.#wake();
  }
}

/** What to start. */
export interface StartSpec {
  params: Omit<ProcessStartParams, "stdinStream" | "stdoutStream" | "stderrStream" | "linger">;
  input?: Input;
  sink: Sink;
  signal?: AbortSignal;
  connect: Connect;
  /** Called when the sandbox knows the process. */
  started?: (wire: Wire) => void;
}

/** A process that this client started, over as many connections as it takes. */
export class Running {
  readonly id: string;
  #spec: StartSpec;
  #got = { stdout: 0, stderr: 0 };
  #tried = false;
  #known = false;
  #wire: Wire | undefined;
  #signals: string[] = [];
  #lost = 0;

  constructor(spec: StartSpec) {
    this.#spec = spec;
    this.id = spec.params.processId ?? newProcessId();
  }

  /** Runs the process to its end. When the signal ends, the process is killed. */
  run(): Promise<ProcessExit> {
    return holding(this.#run());
  }

  async #run(): Promise<ProcessExit> {
    const { signal } = this.#spec;
    let delay = retryDelay;
    let since = Date.now();
    for (;;) {
      const before = this.#got.stdout + this.#got.stderr;
      try {
        const exit = await this.#once();
        if (signal?.aborted) throw aborted(signal, "sandbox.exec");
        if (this.#lost > 0) {
          throw fail("integrity", `${this.#lost} bytes of its output were lost with a connection`, {
            op: "sandbox.exec",
            subject: this.#spec.params.argv[0] ?? "",
          });
        }
        return exit;
      } catch (err) {
        if (signal?.aborted) throw aborted(signal, "sandbox.exec");
        if (!this.#again(err)) throw err;
        if (this.#got.stdout + this.#got.stderr > before) {
          delay = retryDelay;
          since = Date.now();
        }
        if (Date.now() - since + delay > lingerTime) throw err;
        await sleep(delay, signal).catch(() => undefined);
        delay = Math.min(2 * delay, longestDelay);
      }
    }
  }

  #again(err: unknown): boolean {
    if (!(err instanceof TurnstoneError) || !this.#tried) return false;
    return err.kind === "dead" || err.kind === "unavailable" || err.kind === "timeout";
  }

  async #once(): Promise<ProcessExit> {
    const spec = this.#spec;
    const wire = await spec.connect(spec.signal);
    this.#wire = wire;
    let over = false;
    const kill = (): void => void this.#kill(wire);
    spec.signal?.addEventListener("abort", kill, { once: true });
    if (spec.signal?.aborted && this.#tried) kill();
    try {
      const first = !this.#tried;
      this.#tried = true;
      if (first) return await this.#first(wire, () => over);
      return await this.#attach(wire, () => over).catch((err: unknown) => {
        const absent = err instanceof TurnstoneError && err.kind === "not_found";
        if (absent && !this.#known) return this.#first(wire, () => over); // its start did not arrive
        throw err;
      });
    } finally {
      over = true;
      spec.input?.poke();
      spec.signal?.removeEventListener("abort", kill);
      this.#wire = undefined;
    }
  }

  async #kill(wire: Wire): Promise<void> {
    const late = setTimeout(() => wire.close(), killTime);
    await wire
      .call("Process.signal", { processId: this.id, signal: "KILL" })
      .catch(() => undefined);
    await Promise.race([this.#done, wire.closed]);
    clearTimeout(late);
  }

  #finish: () => void = () => undefined;
  #done = new Promise<void>((resolve) => {
    this.#finish = resolve;
  });

  async #first(wire: Wire, stopped: () => boolean): Promise<ProcessExit> {
    const { params, input } = this.#spec;
    const [out, err] = [wire.receiver(), wire.receiver()];
    const feed = input ? wire.sender() : undefined;
    let off = (): void => undefined;
    const exited = new Promise<{ exit: ProcessExit; stdoutEnd: number; stderrEnd: number }>(
      (resolve) => {
        off = wire.on("Process.exited", (e) => {
          if (e.processId === this.id) resolve(e);
        });
      },
    );
    try {
      const started = wire.call("Process.start", {
        ...params,
        processId: this.id,
        stdoutStream: out.id,
        stderrStream: err.id,
        ...(feed ? { stdinStream: feed.id } : {}),
        linger: lingerTime,
      });
      if (feed && input) void input.copy(0, feed, stopped).catch(() => undefined);
      const pumps = this.#pumps(out, err);
      pumps.catch(() => undefined);
      try {
        await started;
      } catch (failed) {
        out.close();
        err.close();
        throw failed;
      }
      this.#begun(wire);
      const ended = await Promise.race([exited, failing(wire), pumps.then(() => exited)]);
      await pumps;
      const missing = ended.stdoutEnd - this.#got.stdout + (ended.stderrEnd - this.#got.stderr);
      if (missing > 0) {
        throw fail("integrity", `${missing} bytes of its output were lost`, {
          op: "process.wait",
          hint: "use only one client of the sandbox for this process",
        });
      }
      wire.post("Process.release", { processId: this.id });
      return ended.exit;
    } finally {
      off();
      this.#finish();
      feed?.abort();
    }
  }

  async #attach(wire: Wire, stopped: () => boolean): Promise<ProcessExit> {
    const { input } = this.#spec;
    const [out, err] = [wire.receiver(), wire.receiver()];
    const feed = input ? wire.sender() : undefined;
    try {
      const r = await wire.call("Process.attach", {
        processId: this.id,
        stdoutOffset: this.#got.stdout,
        stderrOffset: this.#got.stderr,
        stdoutStream: out.id,
        stderrStream: err.id,
        takeOver: true,
        ...(feed ? { stdinStream: feed.id } : {}),
      });
      this.#begun(wire);
      this.#lost +=
        Math.max(0, r.stdoutOffset - this.#got.stdout) +
        Math.max(0, r.stderrOffset - this.#got.stderr);
      this.#got = { stdout: r.stdoutOffset, stderr: r.stderrOffset };
      if (feed && input) void input.copy(r.stdinOffset ?? 0, feed, stopped).catch(() => undefined);
      await this.#pumps(out, err);
      const { exit } = await wire.call("Process.wait", { processId: this.id });
      wire.post("Process.release", { processId: this.id });
      return exit;
    } finally {
      out.close();
      err.close();
      feed?.abort();
    }
  }

  #begun(wire: Wire): void {
    this.#known = true;
    if (this.#spec.signal?.aborted) void this.#kill(wire);
    for (const name of this.#signals.splice(0))
      wire.post("Process.signal", { processId: this.id, signal: name });
    this.#spec.started?.(wire);
  }

  async #pumps(out: Receiver, err: Receiver): Promise<void> {
    const pump = async (from: Receiver, name: StreamName): Promise<void> => {
      for (;;) {
        const bytes = await from.read();
        if (bytes === null) return;
        await this.#spec.sink(name, bytes);
        this.#got[name] += bytes.length;
      }
    };
    await Promise.all([pump(out, "stdout"), pump(err, "stderr")]);
  }

  /** Sends a signal to the process tree, such as "INT"; before its start, afterwards. */
  async signal(name: string): Promise<void> {
    if (!this.#wire || !this.#known) {
      if (this.#signals.length < 4) this.#signals.push(name);
      return;
    }
    await this.#wire.call("Process.signal", { processId: this.id, signal: name });
  }

  /** Sets the size of the terminal. */
  async resize(columns: number, rows: number): Promise<void> {
    if (this.#wire && this.#known) {
      await this.#wire.call("Process.resize", { processId: this.id, columns, rows });
    }
  }
}

/** Returns a name that no other connection chooses. */
export function newProcessId(): string {
  return `p${randomName(12)}`;
}

/** Rejects when the connection ends. */
export async function failing(wire: Wire): Promise<never> {
  throw await wire.closed;
}
