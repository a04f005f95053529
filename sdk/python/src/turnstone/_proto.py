"""Messages of the control API: their JSON, their digest, and the binary form of errors.

A request is a dictionary with the keys of JSON. Bytes are bytes, durations are seconds, and
enumerations are the names of their values.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from ._generated.control import ENUMS, MESSAGES, Field

_DURATION = "google.protobuf.Duration"
_NANO = 1_000_000_000


def to_json(name: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as Connect's JSON."""
    fields = MESSAGES[name]
    out: dict[str, Any] = {}
    for key, value in message.items():
        f = fields[key]
        if value is None:
            continue
        if f.label == "list":
            out[key] = [_value_json(f, v) for v in value]
        elif f.label == "map":
            out[key] = {k: _value_json(f, v) for k, v in value.items()}
        else:
            out[key] = _value_json(f, value)
    return out


def _value_json(f: Field, value: Any) -> Any:
    if f.kind == "message":
        if f.type == _DURATION:
            seconds, nanos = _duration(value)
            return f"{seconds}.{nanos:09d}s"
        return to_json(f.type, value)
    if f.kind == "bytes":
        return base64.b64encode(value).decode()
    return value


def _duration(seconds: float) -> tuple[int, int]:
    return divmod(round(seconds * _NANO), _NANO)


def proof_digest(name: str, message: Mapping[str, Any]) -> bytes:
    """Return the digest of a whole request, which a proof of possession is about.

    It covers all fields except the proofs, and begins with the message's name, which only one
    procedure has.
    """
    h = hashlib.sha256()
    _text(h.update, name.encode())
    _message(h.update, name, message)
    return h.digest()


Update = Callable[[bytes], None]


def _number(update: Update, n: int) -> None:
    update((n & (2**64 - 1)).to_bytes(8, "big"))


def _text(update: Update, value: bytes) -> None:
    _number(update, len(value))
    update(value)


def _message(update: Update, name: str, message: Mapping[str, Any]) -> None:
    if name == _DURATION:
        raise TypeError("a duration is a number of seconds")
    present = [(f, message[key]) for key, f in MESSAGES[name].items() if _is_set(f, message.get(key))]
    present = [(f, v) for f, v in present if not (name == _CLIENT and f.number == _PROOFS)]
    present.sort(key=lambda pair: pair[0].number)
    _number(update, len(present))
    for f, value in present:
        _number(update, f.number)
        if f.label == "list":
            _number(update, len(value))
            for v in value:
                _one(update, f, v)
        elif f.label == "map":
            _number(update, len(value))
            for k in sorted(value):
                _text(update, k.encode())
                _one(update, f, value[k])
        else:
            _one(update, f, value)


_CLIENT = "turnstone.v1.ChannelClient"
_PROOFS = MESSAGES[_CLIENT]["proofs"].number


def _is_set(f: Field, value: Any) -> bool:
    if value is None:
        return False
    if f.label == "one" and f.kind == "message":
        return True
    if f.kind == "enum" and f.label == "one":
        return ENUMS[f.type][value] != 0
    return bool(value)


def _one(update: Update, f: Field, value: Any) -> None:
    if f.kind == "message" and f.type == _DURATION:
        parts = [(n, v) for n, v in enumerate(_duration(value), 1) if v]
        _number(update, len(parts))
        for n, v in parts:
            _number(update, n)
            _number(update, v)
    elif f.kind == "message":
        _message(update, f.type, value)
    elif f.kind == "string":
        _text(update, value.encode())
    elif f.kind == "bytes":
        _text(update, value)
    elif f.kind == "enum":
        _number(update, ENUMS[f.type][value])
    elif f.kind == "bool":
        _number(update, 1 if value else 0)
    else:
        _number(update, value)


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Decode an untrusted message of one level: text, bytes, numbers, and messages as bytes.

    Unknown fields are left out. The error is a ValueError.
    """
    fields = {f.number: (key, f) for key, f in MESSAGES[name].items()}
    out: dict[str, Any] = {}
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value: Any
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 2:
            size, at = varint(data, at)
            if size > len(data) - at:
                raise ValueError("a field is longer than its message")
            value, at = data[at : at + size], at + size
        elif tag & 7 in (1, 5):
            size = 8 if tag & 7 == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError("a field has an unknown form")
        if tag >> 3 not in fields:
            continue
        key, f = fields[tag >> 3]
        if isinstance(value, bytes) != (f.kind in ("string", "bytes", "message")):
            raise ValueError("a field has another form than its type")
        if f.kind == "string":
            value = value.decode("utf-8", "replace")
        if f.label == "list":
            out.setdefault(key, []).append(value)
        else:
            out[key] = value
    return out


def varint(data: bytes, at: int) -> tuple[int, int]:
    n = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        c = data[at]
        at += 1
        n |= (c & 0x7F) << shift
        if c < 0x80:
            return n, at
    raise ValueError("a number is malformed")
