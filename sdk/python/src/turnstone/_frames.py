"""Messages of the wire without I/O: frames of RFC 6455 over a byte stream, and binary chunks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ._json import is_dict
from .errors import DeadError, IntegrityError, TurnstoneError

MAX_MESSAGE = 16 << 20
MAX_CHUNK = 64 << 10
SEND_CHUNK = 60 << 10
HEAD = 17
WINDOW = 1 << 20
_MAX_PARTS = 1 << 16
_MAX_DEPTH = 64

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
DATA, END, CREDIT, RESET = range(4)


def protocol_error(cause: str) -> TurnstoneError:
    return IntegrityError(
        "wire.read", "the connection", cause,
        hint="another program may act as the other side; do not trust it")  # fmt: skip


def encode(opcode: int, payload: bytes) -> bytes:
    """Return a frame, not masked: there is no proxy that reads it."""
    n = len(payload)
    if n < 126:
        head = bytes([0x80 | opcode, n])
    elif n < 1 << 16:
        head = bytes([0x80 | opcode, 126]) + n.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 127]) + n.to_bytes(8, "big")
    return head + payload


class Parser:
    """Reads the other side's frames, which are untrusted."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._kind = 0  # of the message that has begun
        self._message = bytearray()
        self._parts = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return whole messages: text, binary, ping and close."""
        self._buffer += data
        out: list[tuple[int, bytes]] = []
        while (one := self._frame()) is not None:
            self._take(*one, out)
        return out

    def _frame(self) -> tuple[int, bool, bytes] | None:
        b = self._buffer
        if len(b) < 2:
            return None
        if b[0] & 0x70:
            raise protocol_error("a frame uses an extension that was not negotiated")
        opcode, fin, masked, n = b[0] & 15, bool(b[0] & 0x80), bool(b[1] & 0x80), b[1] & 0x7F
        at = 2
        if n >= 126:
            size = 2 if n == 126 else 8
            if len(b) < at + size:
                return None
            n = int.from_bytes(b[at : at + size], "big")
            at += size
        kind = self._kind if opcode == CONTINUATION else opcode
        limit = MAX_MESSAGE if kind == TEXT else HEAD + MAX_CHUNK
        if opcode >= CLOSE and (not fin or n > 125):
            raise protocol_error("a control frame is fragmented or longer than 125 bytes")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise protocol_error(f"a frame has the unknown opcode {opcode}")
        if opcode < CLOSE and n > limit - len(self._message):
            raise protocol_error(f"a message is longer than {limit} bytes")
        mask = b""
        if masked:
            if len(b) < at + 4:
                return None
            mask = bytes(b[at : at + 4])
            at += 4
        if len(b) < at + n:
            return None
        payload = bytes(b[at : at + n])
        del b[: at + n]
        if masked:
            payload = bytes(c ^ mask[i & 3] for i, c in enumerate(payload))
        return opcode, fin, payload

    def _take(self, opcode: int, fin: bool, payload: bytes, out: list[tuple[int, bytes]]) -> None:
        if opcode >= CLOSE:
            if opcode != PONG:
                out.append((opcode, payload))
            return
        if (opcode == CONTINUATION) != bool(self._kind):
            raise protocol_error("a message begins inside another one, or a part without one")
        self._kind = self._kind or opcode
        self._message += payload
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise protocol_error(f"a message has more than {_MAX_PARTS} frames")
        if fin:
            out.append((self._kind, bytes(self._message)))
            self._kind, self._parts = 0, 0
            self._message.clear()


def closed(payload: bytes) -> TurnstoneError:
    """Return the error of a closing frame."""
    reason = payload[2:].decode("utf-8", "replace")[:123]
    reason = "".join(c for c in reason if c.isprintable())
    return DeadError(
        "wire.read", "the connection", "the other side closed it" + (f": {reason}" if reason else ""),
        hint="try again")  # fmt: skip


def parse_message(payload: bytes) -> dict[str, Any]:
    """Decode an untrusted JSON message."""
    level = deepest = 0
    if payload.count(b"[") + payload.count(b"{") > _MAX_DEPTH:
        quoted = skip = False
        for c in payload:
            if skip:
                skip = False
            elif quoted:
                skip, quoted = c == 0x5C, c != 0x22
            elif c == 0x22:
                quoted = True
            elif c in b"[{":
                level += 1
                deepest = max(deepest, level)
            elif c in b"]}":
                level -= 1
    if deepest > _MAX_DEPTH:
        raise protocol_error("a message is nested too deep")
    try:
        m = json.loads(payload)
    except (ValueError, RecursionError):
        raise protocol_error("a message is not JSON") from None
    if not is_dict(m):
        raise protocol_error("a message is no object")
    return m


@dataclass(frozen=True)
class Chunk:
    """A binary message: a part of a stream, or about a stream."""

    kind: int
    stream: int
    offset: int
    data: bytes = b""

    def encode(self) -> bytes:
        head = bytes([self.kind]) + bytes(4) + self.stream.to_bytes(4, "big")
        return head + self.offset.to_bytes(8, "big") + self.data

    @classmethod
    def parse(cls, payload: bytes) -> Chunk:
        if len(payload) < HEAD:
            raise protocol_error("a binary frame is too short")
        kind, channel = payload[0], int.from_bytes(payload[1:5], "big")
        c = cls(kind, int.from_bytes(payload[5:9], "big"), int.from_bytes(payload[9:17], "big"), payload[17:])
        if kind > RESET or channel != 0 or c.stream == 0 or c.offset > 1 << 62:
            raise protocol_error("a binary frame has no meaning here")
        if kind in (END, CREDIT) and c.data:
            raise protocol_error(f"a binary frame of kind {kind} carries data")
        return c
