"""Signed statements: in-toto in an envelope of DSSE, each with one spelling."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

from ._json import is_dict, is_list
from ._sshkey import PublicKey, strict_base64

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_MAX_ENVELOPE = 512 << 10
_MAX_PAYLOAD = 256 << 10
_MAX_DEPTH = 16


def pae(payload: bytes) -> bytes:
    """The bytes that are signed (DSSE, pre-authentication encoding)."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def compact(value: object) -> bytes:
    """Encode JSON as the nodes do: one line, without the escapes for HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode("utf-8")


def depth(text: bytes) -> int:
    """Return the deepest nesting of brackets outside of strings."""
    deepest = level = 0
    quoted = skip = False
    for c in text:
        if skip:
            skip = False
        elif quoted:
            skip = c == 0x5C
            quoted = c != 0x22
        elif c == 0x22:
            quoted = True
        elif c in b"{[":
            level += 1
            deepest = max(deepest, level)
        elif c in b"}]":
            level -= 1
    return deepest


def decode_json(text: bytes) -> Any:
    """Decode untrusted JSON of bounded nesting. The error is a ValueError."""
    if depth(text) > _MAX_DEPTH:
        raise ValueError(f"is nested deeper than {_MAX_DEPTH} levels")
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise ValueError("is not JSON") from e


class Envelope:
    """An untrusted envelope with one signature. Verify before the payload is believed."""

    def __init__(self, text: bytes) -> None:
        """Decode an envelope. The error is a ValueError."""
        if len(text) > _MAX_ENVELOPE:
            raise ValueError(f"the envelope has {len(text)} bytes; the limit is {_MAX_ENVELOPE}")
        e = decode_json(text)
        if not is_dict(e) or set(e) != {"payloadType", "payload", "signatures"}:
            raise ValueError("the envelope is not JSON of an envelope")
        signatures = e["signatures"]
        if not is_list(signatures) or len(signatures) != 1:
            raise ValueError("the envelope does not have one signature")
        s = signatures[0]
        if not is_dict(s) or set(s) != {"keyid", "sig"}:
            raise ValueError("the envelope's signature is not one")
        parts = (e["payloadType"], e["payload"], s["keyid"], s["sig"])
        if not all(isinstance(p, str) for p in parts):
            raise ValueError("the envelope is not JSON of an envelope")
        again = {
            "payloadType": parts[0],
            "payload": parts[1],
            "signatures": [{"keyid": parts[2], "sig": parts[3]}],
        }
        if compact(again) != text:
            raise ValueError("the envelope is not spelled as turn writes it")
        if parts[0] != PAYLOAD_TYPE:
            raise ValueError(f"the envelope has a payload of type {parts[0][:100]!r}")
        self.payload = strict_base64(parts[1])
        self._keyid, self._sig = parts[2], strict_base64(parts[3])

    def statement(self, predicate_type: str, about: str) -> dict[str, Any]:
        """Return the payload as an in-toto statement about a predicate of this type."""
        if len(self.payload) > _MAX_PAYLOAD:
            raise ValueError(f"has {len(self.payload)} bytes; the limit is {_MAX_PAYLOAD}")
        s = decode_json(self.payload)
        if not is_dict(s) or list(s) != ["_type", "subject", "predicateType", "predicate"]:
            raise ValueError("is no in-toto statement as turn writes it")
        if s["_type"] != STATEMENT_TYPE:
            raise ValueError("is no in-toto statement")
        if s["predicateType"] != predicate_type:
            raise ValueError(f"is about {str(s['predicateType'])[:200]!r}, not about {about}")
        if not is_dict(s["predicate"]) or not is_list(s["subject"]):
            raise ValueError("is no valid in-toto statement")
        return s

    def verify(self, signer: PublicKey) -> None:
        if self._keyid != signer.fingerprint:
            raise ValueError(
                f"its signature is by the key {self._keyid[:80]!r}, and the statement names "
                f"{signer.fingerprint}")  # fmt: skip
        if not signer.verifies(pae(self.payload), self._sig):
            raise ValueError(f"its signature does not verify: the key {signer.fingerprint} did not sign this")


def field_of(values: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Return a field of a decoded predicate, of exactly this type."""
    if name not in values:
        if default is None:
            raise ValueError(f"it has no {name}")
        return default
    value = values[name]
    if type(value) is not kind:
        raise ValueError(f"its {name} is of another type")
    return value


def parse_time(text: str) -> datetime.datetime:
    """Parse a time in UTC and whole seconds, of the years 1970 to 2100."""
    try:
        t = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise ValueError("a time is not in UTC and whole seconds") from None
    if not 1970 <= t.year <= 2100:
        raise ValueError("the clock says a time that is not between 1970 and 2100")
    return t.replace(tzinfo=datetime.timezone.utc)


def format_time(t: datetime.datetime) -> str:
    return t.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
