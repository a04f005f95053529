import { languageOf } from "./language.js";
import { utf8 } from "./bytes.js";
import { aborted, fail, TurnstoneError } from "./errors.js";
import {
  failing,
  Input,
  newProcessId,
  Running,
  type Connect,
  type InputSource,
  type Sink,
  type StreamName,
} from "./process.js";
import { holding, Queue } from "./stream.js";
import type {
  ProcessExit,
  ShellCommand,
  ShellFinishedEvent,
  ShellRecord,
  ShellSpan,
} from "./wire/protocol.js";
import type { Wire } from "./wire/wire.js";

/** Options of a command. */
export interface ExecOptions {
  env?: Record<string, string>;
  /** Secret variables: masked in what a session keeps of the command. */
  secrets?: Record<string, string>;
  cwd?: string;
  user?: string;
  stdin?: InputSource;
  /** Run on a terminal: its output is all on "stdout", and its input stays open. */
  pty?: boolean | { columns: number; rows: number };
  /** Milliseconds; the command is killed afterwards. */
  timeout?: number;
  /** Kills the command. */
  signal?: AbortSignal;
  /** Throw CommandError if the exit code is not 0. */
  check?: boolean;
  /** Called with output as it arrives. */
  onOutput?: (chunk: OutputChunk) => void;
  /** Of a script: the shell that reads it. */
  language?: "bash" | "sh";
}

/** A part of the output. */
export interface OutputChunk {
  stream: StreamName;
  data: Uint8Array;
}

/** One command that ran, or that a command line consists of. */
export interface CommandInfo {
  text: string;
  kind: string;
  language: string;
  /** Of the script, or of the command line. */
  span: ShellSpan | undefined;
  /** Undefined: unknown. */
  exitCode: number | undefined;
  /** Milliseconds; undefined: unknown. */
  duration: number | undefined;
  /** Code in other languages in it, such as of python -c. */
  embedded: { language: string; span: ShellSpan }[];
}

/** How a command ended. */
export interface ExecResult {
  exitCode: number;
  /** The signal that ended it; "": none. */
  signal: string;
  stdout: string;
  stderr: string;
  stdoutBytes: Uint8Array;
  stderrBytes: Uint8Array;
  /** Milliseconds. */
  duration: number;
  oomKilled: boolean;
  diskFull: boolean;
  language: string;
  commands: CommandInfo[];
}

/** A command ended with another exit code than 0, and `check` was set. */
export class CommandError extends TurnstoneError {
  constructor(readonly result: ExecResult) {
    const last = result.stderr.trimEnd().split("\n").at(-1) ?? "";
    super("invalid", `exit code ${result.exitCode}${last ? `: ${last.slice(0, 500)}` : ""}`, {
      op: "sandbox.exec",
      subject: result.commands[0]?.text.slice(0, 200) ?? "the command",
      retryable: false,
    });
  }
}

/** What runs: a program with its arguments, or a script for the sandbox's shell session. */
export type Command = readonly string[] | string;

interface Outcome {
  exit: ProcessExit;
  commands: CommandInfo[];
  language: string;
}

/** Runs commands in one sandbox. */
export class Executor {
  #connect: Connect;

  constructor(connect: Connect) {
    this.#connect = connect;
  }

  /** Runs a command and collects its output. */
  async run(command: Command, o: ExecOptions): Promise<ExecResult> {
    const parts = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
    const outcome = await this.start(command, o, (stream, data) => {
      parts[stream].push(data);
      o.onOutput?.({ stream, data });
    }).done;
    return resultOf(outcome, join(parts.stdout), join(parts.stderr), o);
  }

  /** Starts a command whose output goes to a sink. */
  start(
    command: Command,
    o: ExecOptions,
    sink: Sink,
  ): { done: Promise<Outcome>; input: Input | undefined; running: Running | undefined } {
    const limit = deadline(o);
    if (typeof command === "string") {
      const done = holding(this.#script(command, o, sink, limit.signal)).finally(limit.clear);
      done.catch(() => undefined);
      return { done, input: undefined, running: undefined };
    }
    const terminal = o.pty ? (o.pty === true ? { columns: 80, rows: 24 } : o.pty) : undefined;
    const input = o.stdin !== undefined ? Input.of(o.stdin) : terminal ? new Input() : undefined;
    let parsed: Promise<{ commands: ShellCommand[] } | undefined> = Promise.resolve(undefined);
    const line = quote(command);
    const running = new Running({
      params: {
        processId: newProcessId(),
        argv: [...command],
        ...variables(o),
        ...(o.cwd ? { cwd: o.cwd } : {}),
        ...(o.user ? { user: o.user } : {}),
        ...(terminal ? { terminal } : {}),
      },
      ...(input ? { input } : {}),
      sink,
      ...(limit.signal ? { signal: limit.signal } : {}),
      connect: async (signal) => {
        const wire = await this.#connect(signal);
        // sent with the start of the command, so that it costs no round trip; words that need no
        // quotes have no code to parse
        if (line.length <= maxParsed && line !== command.join(" ")) {
          parsed = Promise.resolve().then(() =>
            wire.call("Shell.parse", { script: line }).catch(() => undefined),
          );
        }
        return wire;
      },
    });
    const done = running
      .run()
      .finally(limit.clear)
      .then(async (exit): Promise<Outcome> => {
        const commands = describe((await parsed)?.commands ?? [], line, exit, languageOf(command));
        return { exit, commands, language: commands[0]?.language ?? "bash" };
      });
    done.catch(() => undefined);
    return { done, input, running };
  }

  /** Starts a command that nobody waits for, and returns the name of its process. */
  async background(command: Command, o: ExecOptions): Promise<string> {
    const argv = typeof command === "string" ? ["bash", "-c", command] : [...command];
    const wire = await this.#connect(o.signal);
    const r = await wire.call(
      "Process.start",
      {
        processId: newProcessId(),
        argv,
        ...variables(o),
        ...(o.cwd ? { cwd: o.cwd } : {}),
        ...(o.user ? { user: o.user } : {}),
        detach: true,
      },
      o.signal,
    );
    return r.processId;
  }

  /** Runs a script as a step of the sandbox's shell session. */
  async #script(
    script: string,
    o: ExecOptions,
    sink: Sink,
    signal: AbortSignal | undefined,
  ): Promise<Outcome> {
    if (o.stdin !== undefined || o.pty) {
      throw fail("invalid", "a script has no standard input and no terminal", {
        op: "sandbox.exec",
        hint: 'run a program, such as ["bash", "-c", script]',
      });
    }
    const wire = await this.#connect(signal);
    const id = newProcessId();
    const [out, err] = [wire.receiver(), wire.receiver()];
    const feed = script.length > maxInline ? wire.sender() : undefined;
    const records: ShellRecord[] = [];
    const offs: (() => void)[] = [];
    const finished = new Promise<ShellFinishedEvent>((resolve) => {
      offs.push(
        wire.on("Shell.finished", (e) => {
          if (e.processId === id) resolve(e);
        }),
        wire.on("Shell.commands", (e) => {
          if (e.processId === id && records.length < maxRecords) records.push(...e.records);
        }),
      );
    });
    try {
      const started = wire.call("Shell.execute", {
        processId: id,
        ...(feed ? { scriptStream: feed.id } : { script }),
        ...(o.language ? { language: o.language } : {}),
        ...variables(o),
        ...(o.cwd ? { cwd: o.cwd } : {}),
        ...(o.user ? { user: o.user } : {}),
        stdoutStream: out.id,
        stderrStream: err.id,
        killOnDisconnect: true,
      });
      if (feed)
        void feed
          .write(utf8(script))
          .then(() => feed.end())
          .catch(() => undefined);
      const pumps = Promise.all([drain(out, "stdout", sink), drain(err, "stderr", sink)]);
      pumps.catch(() => undefined);
      await started;
      if (signal?.aborted) killOnce(wire, id);
      const stop = (): void => killOnce(wire, id);
      signal?.addEventListener("abort", stop, { once: true });
      offs.push(() => signal?.removeEventListener("abort", stop));
      const end = await Promise.race([finished, failing(wire)]);
      await pumps;
      if (signal?.aborted) throw aborted(signal, "sandbox.exec");
      return { exit: end.exit, commands: records.map(recorded), language: o.language ?? "bash" };
    } catch (failed) {
      out.close();
      err.close();
      if (signal?.aborted) throw aborted(signal, "sandbox.exec");
      throw failed;
    } finally {
      for (const off of offs) off();
      feed?.abort();
    }
  }
}

const maxParsed = 64 << 10;
const maxInline = 256 << 10;
const maxRecords = 100_000;

function killOnce(wire: Wire, id: string): void {
  wire.post("Process.signal", { processId: id, signal: "KILL" });
}

async function drain(
  from: { read(): Promise<Uint8Array | null> },
  name: StreamName,
  sink: Sink,
): Promise<void> {
  for (;;) {
    const bytes = await from.read();
    if (bytes === null) return;
    await sink(name, bytes);
  }
}

/** A command whose output is read while it runs. Iterate it, or wait for its result. */
export class ExecStream implements AsyncIterable<OutputChunk> {
  #queue = new Queue<OutputChunk & { taken(): void }>();
  #iterated = false;
  #outcome: Promise<Outcome>;
  #input: Input | undefined;
  #running: Running | undefined;
  #abort = new AbortController();
  #options: ExecOptions;
  #parts = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
  #result: Promise<ExecResult> | undefined;

  constructor(executor: Executor, command: Command, o: ExecOptions) {
    const signal = o.signal ? AbortSignal.any([o.signal, this.#abort.signal]) : this.#abort.signal;
    this.#options = o;
    const begun = executor.start(command, { ...o, signal }, (stream, data) => {
      o.onOutput?.({ stream, data });
      return new Promise<void>((taken) => this.#queue.push({ stream, data, taken }));
    });
    this.#input = begun.input;
    this.#running = begun.running;
    this.#outcome = begun.done;
    this.#outcome.then(
      () => this.#queue.end(),
      (err: unknown) => this.#queue.end(err),
    );
  }

  async *[Symbol.asyncIterator](): AsyncIterator<OutputChunk> {
    if (this.#iterated) throw fail("invalid", "the output is read already", { op: "sandbox.exec" });
    this.#iterated = true;
    let whole = false;
    try {
      for (;;) {
        const next = await this.#queue.next();
        if (next === null) break;
        next.taken();
        yield { stream: next.stream, data: next.data };
      }
      whole = true;
    } finally {
      if (!whole)
        this.#abort.abort(
          fail("canceled", "the output is not read to its end", { op: "sandbox.exec" }),
        );
    }
  }

  /** Resolves when the command has ended. Its outputs are empty if the stream was iterated. */
  get result(): Promise<ExecResult> {
    this.#result ??= this.#end();
    return this.#result;
  }

  async #end(): Promise<ExecResult> {
    if (!this.#iterated) {
      for await (const c of this) this.#parts[c.stream].push(c.data);
    }
    return resultOf(
      await this.#outcome,
      join(this.#parts.stdout),
      join(this.#parts.stderr),
      this.#options,
    );
  }

  /** Writes to standard input: of a terminal, or of a command with `stdin`. */
  async write(data: string | Uint8Array): Promise<void> {
    if (!this.#input) {
      throw fail("invalid", "the command has no standard input", {
        op: "sandbox.exec",
        hint: "set pty, or give stdin",
      });
    }
    await this.#input.write(data);
  }

  closeStdin(): void {
    this.#input?.end();
  }

  /** Sends a signal to the process tree, such as "INT". */
  async kill(signal = "KILL"): Promise<void> {
    if (this.#running) await this.#running.signal(signal);
    else this.#abort.abort(fail("canceled", "killed by the caller", { op: "sandbox.exec" }));
  }

  async resize(columns: number, rows: number): Promise<void> {
    await this.#running?.resize(columns, rows);
  }
}

/** Joins the caller's signal with the time limit. */
function deadline(o: ExecOptions): { signal: AbortSignal | undefined; clear(): void } {
  if (o.timeout === undefined) return { signal: o.signal, clear: () => undefined };
  const c = new AbortController();
  const timer = setTimeout(
    () =>
      c.abort(
        fail("timeout", `still runs after ${o.timeout} ms`, {
          op: "sandbox.exec",
          subject: "the command",
          retryable: false,
        }),
      ),
    o.timeout,
  );
  const signal = o.signal ? AbortSignal.any([o.signal, c.signal]) : c.signal;
  return { signal, clear: () => clearTimeout(timer) };
}

function variables(o: ExecOptions): { env?: string[]; secrets?: string[] } {
  const pairs = (r: Record<string, string> | undefined): string[] =>
    Object.entries(r ?? {}).map(([k, v]) => `${k}=${v}`);
  const env = [...pairs(o.env), ...pairs(o.secrets)];
  const names = Object.keys(o.secrets ?? {});
  return { ...(env.length > 0 ? { env } : {}), ...(names.length > 0 ? { secrets: names } : {}) };
}

/** Returns a command line that a shell reads as these words. */
export function quote(argv: readonly string[]): string {
  return argv
    .map((w) => (/^[A-Za-z0-9_./:=@%+,-]+$/.test(w) ? w : `'${w.replaceAll("'", `'\\''`)}'`))
    .join(" ");
}

function describe(
  all: ShellCommand[],
  line: string,
  exit: ProcessExit,
  language: string,
): CommandInfo[] {
  const bytes = utf8(line);
  const decoder = new TextDecoder();
  const commands = all.map((c) => ({
    text: decoder.decode(bytes.subarray(c.span.start, c.span.end)),
    kind: c.kind,
    language: c.language,
    span: c.span,
    exitCode: c.parent < 0 ? exit.exitCode : undefined,
    duration: c.parent < 0 ? exit.duration / 1e6 : undefined,
    embedded: (c.embedded ?? []).map((e) => ({ language: e.language, span: e.span })),
  }));
  if (commands.length > 0) return commands;
  return [
    {
      text: line,
      kind: "simple",
      language,
      span: {
        start: 0,
        end: bytes.length,
        line: 1,
        column: 1,
        endLine: 1,
        endColumn: bytes.length + 1,
      },
      exitCode: exit.exitCode,
      duration: exit.duration / 1e6,
      embedded: [],
    },
  ];
}

function recorded(r: ShellRecord): CommandInfo {
  return {
    text: r.text,
    kind: r.kind,
    language: r.language,
    span: r.span,
    exitCode: r.exitCode,
    duration: r.duration / 1e6,
    embedded: [],
  };
}

function join(parts: Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of parts) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}

function resultOf(e: Outcome, stdout: Uint8Array, stderr: Uint8Array, o: ExecOptions): ExecResult {
  const decoder = new TextDecoder();
  const result: ExecResult = {
    exitCode: e.exit.exitCode,
    signal: e.exit.signal ?? "",
    stdout: decoder.decode(stdout),
    stderr: decoder.decode(stderr),
    stdoutBytes: stdout,
    stderrBytes: stderr,
    duration: e.exit.duration / 1e6,
    oomKilled: e.exit.oomKilled ?? false,
    diskFull: e.exit.diskFull ?? false,
    language: e.language,
    commands: e.commands,
  };
  if (o.check && result.exitCode !== 0) throw new CommandError(result);
  return result;
}
