"""Errors. Each has a kind for programs, and a hint that says what to do."""

from __future__ import annotations

import builtins
from enum import Enum


class Kind(str, Enum):
    """Classifies an error: docs/api.md has the meanings."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    UNAVAILABLE = "unavailable"
    EXHAUSTED = "exhausted"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    INTEGRITY = "integrity"
    DEAD = "dead"
    DENIED = "denied"
    INTERNAL = "internal"


class TurnstoneError(Exception):
    """The base of all errors of this package.

    fault names a manipulation of the connection ("forged", "key_swapped", ...), or is empty.
    retryable says that the same request may succeed later.
    """

    kind: Kind = Kind.INTERNAL

    def __init__(
        self,
        op: str,
        subject: str = "",
        cause: str = "",
        *,
        hint: str = "",
        retryable: bool | None = None,
        retry_after: float = 0.0,
        reason: str = "",
        fault: str = "",
    ) -> None:
        self.op = op
        self.subject = subject
        self.cause = cause
        self.hint = hint
        self.retry_after = retry_after
        self.reason = reason
        self.fault = fault
        if retryable is None:
            retryable = self.kind in _RETRYABLE or (self.kind == Kind.EXHAUSTED and retry_after > 0)
        self.retryable = retryable
        super().__init__(subject, cause)

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.subject, self.cause) if part)
        text = text or self.kind.value.replace("_", " ")
        return f"{text} ({self.hint})" if self.hint else text


_RETRYABLE = frozenset({Kind.UNAVAILABLE, Kind.TIMEOUT, Kind.DEAD})


class InvalidError(TurnstoneError):
    """The request is wrong: a retry does not help."""

    kind = Kind.INVALID


class NotFoundError(TurnstoneError):
    """The object does not exist, or belongs to another tenant."""

    kind = Kind.NOT_FOUND


class UnavailableError(TurnstoneError):
    """The server or the node cannot do it now."""

    kind = Kind.UNAVAILABLE


class ExhaustedError(TurnstoneError):
    """A disk, memory, a quota or a rate limit is exhausted."""

    kind = Kind.EXHAUSTED


class CanceledError(TurnstoneError):
    """The caller gave up."""

    kind = Kind.CANCELED


class TimeoutError(TurnstoneError, builtins.TimeoutError):
    """It took longer than allowed. Of a command, result has what it printed until then."""

    kind = Kind.TIMEOUT
    result: object = None


class IntegrityError(TurnstoneError):
    """Data or a connection is not what it claims to be: see fault. Do not try again silently."""

    kind = Kind.INTEGRITY


class DeadError(TurnstoneError):
    """The sandbox or its connection is gone."""

    kind = Kind.DEAD


class DeniedError(TurnstoneError):
    """The token was refused, or does not grant it."""

    kind = Kind.DENIED


class InternalError(TurnstoneError):
    """A fault of the server, or of this package."""

    kind = Kind.INTERNAL


class CommandError(TurnstoneError):
    """A command of exec(check=True) has failed; result has its output."""

    kind = Kind.INVALID
    result: object = None


_CLASSES: dict[Kind, type[TurnstoneError]] = {
    c.kind: c
    for c in (
        InvalidError, NotFoundError, UnavailableError, ExhaustedError, CanceledError, TimeoutError,
        IntegrityError, DeadError, DeniedError, InternalError,
    )
}  # fmt: skip


def error_of(
    kind: str | Kind,
    op: str,
    subject: str = "",
    cause: str = "",
    *,
    hint: str = "",
    retryable: bool | None = None,
    retry_after: float = 0.0,
    reason: str = "",
    fault: str = "",
) -> TurnstoneError:
    """Return the error of a kind, which may be one that this package does not know."""
    try:
        cls = _CLASSES[Kind(kind)]
    except ValueError:
        cls = InternalError
    return cls(
        op, subject, cause, hint=hint, retryable=retryable, retry_after=retry_after, reason=reason,
        fault=fault,
    )  # fmt: skip


def fault_error(op: str, fault: str, subject: str, cause: str, hint: str = "") -> TurnstoneError:
    """Return an error with the name of a manipulation.

    Its kind is dead for "truncated", which a failing network causes too, and integrity for all
    others: nobody should try again silently.
    """
    if fault == "truncated":
        return DeadError(op, subject, f"{fault}: {cause}", hint=hint or "connect again", fault=fault)
    if not hint:
        hint = "do not trust the server or a proxy between you and the node before you know the cause"
        if fault == "expired":
            hint = "request a new attestation, and compare the clocks of this machine and the node"
    return IntegrityError(op, subject, f"{fault}: {cause}", hint=hint, fault=fault)


def clean(text: str, most: int) -> str:
    """Return text of a server for a terminal: bounded, without control characters."""
    text = text if len(text) <= 4 * most else text[: 4 * most]
    text = "".join(c if c.isprintable() or c == " " else "\ufffd" for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"
