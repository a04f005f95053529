import { Code, ConnectError } from "@connectrpc/connect";
import { fail, TurnstoneError, type Kind } from "../errors.js";
import { ErrorKind, ErrorSchema, type Error as Detail } from "../gen/turnstone/v1/error_pb.js";

const kinds: Record<ErrorKind, Kind> = {
  [ErrorKind.UNSPECIFIED]: "internal",
  [ErrorKind.INVALID]: "invalid",
  [ErrorKind.NOT_FOUND]: "not_found",
  [ErrorKind.UNAVAILABLE]: "unavailable",
  [ErrorKind.EXHAUSTED]: "exhausted",
  [ErrorKind.CANCELED]: "canceled",
  [ErrorKind.TIMEOUT]: "timeout",
  [ErrorKind.INTEGRITY]: "integrity",
  [ErrorKind.DEAD]: "dead",
  [ErrorKind.INTERNAL]: "internal",
  [ErrorKind.DENIED]: "denied",
};

const kindsOfCodes: Partial<Record<Code, Kind>> = {
  [Code.InvalidArgument]: "invalid",
  [Code.NotFound]: "not_found",
  [Code.Unavailable]: "unavailable",
  [Code.ResourceExhausted]: "exhausted",
  [Code.Canceled]: "canceled",
  [Code.DeadlineExceeded]: "timeout",
  [Code.DataLoss]: "integrity",
  [Code.Aborted]: "dead",
  [Code.PermissionDenied]: "denied",
  [Code.Unauthenticated]: "denied",
  [Code.AlreadyExists]: "invalid",
  [Code.FailedPrecondition]: "invalid",
  [Code.OutOfRange]: "invalid",
  [Code.Unimplemented]: "unavailable",
};

function tokenHint(reason: string): string {
  switch (reason) {
    case "expired":
    case "revoked":
      return "set TURN_TOKEN to a new token";
    case "not_yet_valid":
      return "compare the clocks of this machine and of the server";
  }
  return "set TURN_TOKEN to a token of this server, or store one with turn host add --token-file";
}

/** What a control call was answered, beside the error. */
export interface Refusal {
  error: TurnstoneError;
  code: Code;
  /** The node's statement about the key to prove to; empty: none. */
  introduction: Uint8Array;
  certificate: Uint8Array;
}

/** Returns the error of a control call as a TurnstoneError that says what to do. */
export function explain(err: unknown, address: string): Refusal {
  const none = { introduction: new Uint8Array(0), certificate: new Uint8Array(0) };
  if (err instanceof TurnstoneError) return { error: err, code: Code.Unknown, ...none };
  const sent = ConnectError.from(err);
  if (sent.cause instanceof TurnstoneError) return { error: sent.cause, code: sent.code, ...none };
  const detail = sent.findDetails(ErrorSchema)[0];
  if (!detail) return { error: withoutDetail(sent, address), code: sent.code, ...none };
  return {
    error: ofDetail(sent, detail, address),
    code: sent.code,
    introduction: detail.introduction.slice(0, 64 << 10),
    certificate: detail.certificate.slice(0, 64 << 10),
  };
}

function ofDetail(sent: ConnectError, d: Detail, address: string): TurnstoneError {
  const kind = kinds[d.kind] ?? "internal";
  const retryAfter = d.retryAfter
    ? Number(d.retryAfter.seconds) * 1000 + d.retryAfter.nanos / 1e6
    : 0;
  let hint = d.hint.slice(0, 1000);
  if (sent.code === Code.Unauthenticated) hint = tokenHint(d.reason);
  if (sent.code === Code.PermissionDenied && !hint) {
    hint = "use a token with the right that is missing: turn token create --scope";
  }
  const text =
    d.cause || d.violations.map((v) => `${v.field}: ${v.message}`).join("; ") || sent.rawMessage;
  return fail(kind, text.slice(0, 4000), {
    op: d.op.slice(0, 200),
    subject: d.subject.slice(0, 1000) || (sent.code === Code.Unauthenticated ? address : ""),
    hint,
    reason: d.reason.slice(0, 100),
    retryAfter: Math.min(retryAfter, 24 * 3600_000),
    retryable: d.retryable,
    cause: sent,
  });
}

function withoutDetail(sent: ConnectError, address: string): TurnstoneError {
  const kind = kindsOfCodes[sent.code] ?? "internal";
  const text = sent.rawMessage.slice(0, 1000);
  if (kind === "denied") {
    return fail("denied", text || "the token is refused", {
      subject: address,
      hint: tokenHint(""),
      cause: sent,
    });
  }
  return fail(kind, text, {
    op: "host.call",
    subject: address,
    hint: kind === "unavailable" ? "check the address, and that turn serve runs there" : "",
    cause: sent,
  });
}
