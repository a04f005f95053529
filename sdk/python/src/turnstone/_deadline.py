"""Times until which an operation may take."""

from __future__ import annotations

import time

from .errors import TimeoutError


class Deadline:
    """A point in time, or never."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds that are left, at least 0; None: no bound."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and one in that many seconds."""
        left = self.left()
        return Deadline(seconds if left is None else min(left, seconds))

    def error(self, op: str, subject: str = "") -> TimeoutError:
        return TimeoutError(op, subject, f"it took longer than {self.seconds:g} seconds" if self.seconds else "")


NEVER = Deadline()
