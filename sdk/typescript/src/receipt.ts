import type { TurnstoneError } from "./errors.js";
import type { CommandInfo } from "./exec.js";

/** Returns a report of a node with the names that JavaScript uses: exit_code is exitCode. */
export function camel(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(camel);
  if (typeof value !== "object" || value === null) return value;
  const out: Record<string, unknown> = {};
  for (const [k, v] of Object.entries(value)) {
    out[k.replace(/_([a-z0-9])/g, (_, c: string) => c.toUpperCase())] = camel(v);
  }
  return out;
}

/** A whole output of a step. */
export interface OutputInfo {
  bytes: number;
  digest: string;
  truncated: boolean;
  file?: string;
}

/** The position of a command in the document. */
export interface Place {
  line: number;
  column: number;
  endLine: number;
  endColumn: number;
}

/** One command that ran in a step. */
export interface StepCommand extends Omit<CommandInfo, "span" | "embedded"> {
  id: number;
  parent: number;
  /** In the document; undefined: the command is not in it. */
  place?: Place;
  /** The bytes of the step's script. */
  span?: { from: number; to: number };
  stage?: number;
  flags?: string[];
}

/** A command that failed, with the message that explains the failure. */
export interface StepFailure {
  place?: Place;
  text: string;
  exitCode: number;
  tool?: string;
  message?: string;
  fault?: Place;
}

/** The result of one step. */
export interface Step {
  name: string;
  line: number;
  status: string;
  /** null: the step did not run, or did not end by itself. */
  exitCode: number | null;
  /** Milliseconds. */
  duration: number;
  note: string;
  stdout: string;
  stderr: string;
  stdoutInfo: OutputInfo;
  stderrInfo: OutputInfo;
  commands: StepCommand[];
  commandCount: number;
  failures: StepFailure[];
  network?: Record<string, unknown>;
}

/** The result of a turn. */
export class Receipt {
  /** The receipt: the document, with the results below its steps. */
  readonly markdown: string;
  readonly passed: boolean;
  /** "passed", "failed", "timeout" or "error". */
  readonly result: string;
  readonly id: string;
  readonly session: string;
  /** The turn's number in its session; 0: it is in none. */
  readonly number: number;
  readonly branch: string;
  readonly fsHash: string;
  readonly steps: Step[];
  /** Milliseconds. */
  readonly duration: number;
  /** Why the result is "error". */
  readonly error: string;
  readonly hint: string;
  /** All that the node reports, as --json of the turn command prints it. */
  readonly report: Record<string, unknown>;

  constructor(report: Record<string, unknown>, failed?: TurnstoneError) {
    const r = camel(report) as Record<string, unknown>;
    const text = (key: string): string => (typeof r[key] === "string" ? r[key] : "");
    this.report = report;
    this.markdown = text("receipt");
    this.result = text("result");
    this.passed = this.result === "passed";
    this.id = text("id");
    this.session = text("session");
    this.number = typeof r["number"] === "number" ? r["number"] : 0;
    this.branch = text("branch");
    this.fsHash = text("fsHash");
    this.duration = Number(r["durationMs"] ?? 0);
    this.error = text("error") || (failed?.message ?? "");
    this.hint = text("hint") || (failed?.hint ?? "");
    this.steps = (Array.isArray(r["steps"]) ? r["steps"] : []).map((s) =>
      stepOf(s as Record<string, unknown>),
    );
  }

  /** Returns the receipt's text. */
  toString(): string {
    return this.markdown;
  }
}

/** Returns a step of a report whose names are converted already. */
export function stepOf(s: Record<string, unknown>): Step {
  const { durationMs, commands, ...rest } = s;
  return {
    ...({ note: "", failures: [], ...rest } as unknown as Step),
    duration: Number(durationMs ?? 0),
    commands: (Array.isArray(commands) ? commands : []).map((c) => {
      const { durationMs: took, startMs: _, exitCode, ...other } = c as Record<string, unknown>;
      return {
        ...(other as unknown as StepCommand),
        exitCode: typeof exitCode === "number" ? exitCode : undefined,
        duration: Number(took ?? 0),
      };
    }),
  };
}
