/** Kinds of errors, as in the control API and the wire. */
export type Kind =
  | "invalid"
  | "not_found"
  | "unavailable"
  | "exhausted"
  | "canceled"
  | "timeout"
  | "integrity"
  | "dead"
  | "denied"
  | "internal";

/** Names of manipulations that the attestation or the channel reveals. */
export type Fault =
  | "forged"
  | "untrusted"
  | "replayed"
  | "expired"
  | "spliced"
  | "widened"
  | "key_swapped"
  | "weak_key"
  | "altered"
  | "repeated"
  | "reordered"
  | "reflected"
  | "truncated"
  | "uncertified"
  | "other_root"
  | "certificate_expired"
  | "certificate_not_yet_valid"
  | "old_epoch"
  | "other_node"
  | "root_revoked";

/** Parts of an error beside its kind and its text. */
export interface ErrorParts {
  op?: string;
  subject?: string;
  hint?: string;
  fault?: Fault;
  /** Why a token or a proof was refused, such as "expired". */
  reason?: string;
  /** When a repetition may succeed, in milliseconds. */
  retryAfter?: number;
  retryable?: boolean;
  cause?: unknown;
}

const retryableKinds: ReadonlySet<Kind> = new Set<Kind>(["unavailable", "timeout", "dead"]);

/**
 * An error of Turnstone. `kind` says what went wrong, `hint` what to do, and `retryable` whether the
 * same call may succeed later. `fault` names a manipulation.
 */
export class TurnstoneError extends Error {
  readonly kind: Kind;
  readonly op: string;
  readonly subject: string;
  readonly hint: string;
  readonly fault: Fault | undefined;
  readonly reason: string;
  readonly retryAfter: number;
  readonly retryable: boolean;

  constructor(kind: Kind, text: string, parts: ErrorParts = {}) {
    const subject = parts.subject ? `${parts.subject}: ` : "";
    const fault = parts.fault ? `${parts.fault.replaceAll("_", " ")}: ` : "";
    super(subject + fault + text, parts.cause === undefined ? undefined : { cause: parts.cause });
    this.name = new.target.name;
    this.kind = kind;
    this.op = parts.op ?? "";
    this.subject = parts.subject ?? "";
    this.hint = parts.hint ?? "";
    this.fault = parts.fault;
    this.reason = parts.reason ?? "";
    this.retryAfter = parts.retryAfter ?? 0;
    this.retryable =
      parts.retryable ??
      (retryableKinds.has(kind) || (kind === "exhausted" && this.retryAfter > 0));
  }
}

export class InvalidError extends TurnstoneError {}
export class NotFoundError extends TurnstoneError {}
export class UnavailableError extends TurnstoneError {}
export class ExhaustedError extends TurnstoneError {}
export class CanceledError extends TurnstoneError {}
export class TimeoutError extends TurnstoneError {}
export class IntegrityError extends TurnstoneError {}
export class DeadError extends TurnstoneError {}
export class DeniedError extends TurnstoneError {}
export class InternalError extends TurnstoneError {}

const classes: Record<Kind, typeof TurnstoneError> = {
  invalid: InvalidError,
  not_found: NotFoundError,
  unavailable: UnavailableError,
  exhausted: ExhaustedError,
  canceled: CanceledError,
  timeout: TimeoutError,
  integrity: IntegrityError,
  dead: DeadError,
  denied: DeniedError,
  internal: InternalError,
};

/** Returns the kind that a text names; an unknown one is internal. */
export function kindOf(text: unknown): Kind {
  return typeof text === "string" && Object.hasOwn(classes, text) ? (text as Kind) : "internal";
}

/** Returns an error of the class of its kind. */
export function fail(kind: Kind, text: string, parts: ErrorParts = {}): TurnstoneError {
  return new classes[kind](kind, text, parts);
}

const distrust =
  "do not trust the server or a proxy between you and the node before you know the cause";

/**
 * Returns an error with the name of a manipulation. Its kind is dead for "truncated", which a failing
 * network causes too, and integrity for all others: nobody should try again silently.
 */
export function faultError(fault: Fault, text: string, parts: ErrorParts = {}): TurnstoneError {
  if (fault === "truncated") {
    return fail("dead", text, { hint: "connect again", ...parts, fault });
  }
  let hint = distrust;
  if (fault === "expired") {
    hint = "request a new attestation, and compare the clocks of this machine and the node";
  } else if (fault === "untrusted") {
    hint =
      "compare the node's key with the server's operator; turn host add --pin FINGERPRINT trusts it";
  }
  return fail("integrity", text, { hint, ...parts, fault });
}

/** Returns the error of an AbortSignal. */
export function aborted(signal: AbortSignal, op: string): TurnstoneError {
  const why: unknown = signal.reason;
  if (why instanceof TurnstoneError) {
    return why;
  }
  const timeout = why instanceof Error && why.name === "TimeoutError";
  return fail(
    timeout ? "timeout" : "canceled",
    timeout ? "the time is up" : "canceled by the caller",
    {
      op,
      retryable: false,
      cause: why,
    },
  );
}

/** Throws if the signal has ended. */
export function checkSignal(signal: AbortSignal | undefined, op: string): void {
  if (signal?.aborted) {
    throw aborted(signal, op);
  }
}

/** Returns the text of anything that was thrown. */
export function textOf(err: unknown): string {
  return err instanceof Error ? err.message : String(err);
}
