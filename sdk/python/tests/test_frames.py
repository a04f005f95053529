"""The wire's frames, which come from a guest that may be hostile."""

from __future__ import annotations

import json
import random

import pytest

from turnstone import TurnstoneError
from turnstone._frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    CREDIT,
    DATA,
    MAX_CHUNK,
    PING,
    TEXT,
    Chunk,
    Parser,
    closed,
    encode,
    parse_message,
)


def test_messages_of_all_sizes() -> None:
    for n in (0, 1, 125, 126, 65535, 65536, 200_000):
        assert Parser().feed(encode(TEXT, b"x" * n)) == [(TEXT, b"x" * n)]


def test_parts_and_control_frames_between() -> None:
    first = bytes([TEXT, 2]) + b"ab"
    assert Parser().feed(first + encode(PING, b"p") + encode(CONTINUATION, b"c")) == [
        (PING, b"p"), (TEXT, b"abc")]  # fmt: skip


@pytest.mark.parametrize("raw", [
    bytes([0xC1, 0]), bytes([0x83, 0]), bytes([0x80, 0]), bytes([0x09, 0]), bytes([0x89, 126, 0, 200]),
    bytes([TEXT, 1]) + b"a" + encode(TEXT, b"b"), encode(BINARY, b"x" * (MAX_CHUNK + 18)),
    bytes([0x81, 127]) + (1 << 62).to_bytes(8, "big"), bytes([0x82, 127, 0xFF]) + bytes(7),
])  # fmt: skip
def test_violations(raw: bytes) -> None:
    with pytest.raises(TurnstoneError):
        Parser().feed(raw)


def test_endless_parts_end() -> None:
    p = Parser()
    with pytest.raises(TurnstoneError):
        p.feed(bytes([TEXT, 0]) + bytes([CONTINUATION, 0]) * (1 << 16))


def test_messages_that_are_no_objects() -> None:
    for text in (b"[1]", b"x", b"\xff", b'{"a":', b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70):
        with pytest.raises(TurnstoneError):
            parse_message(text)
    assert parse_message(json.dumps({"a": "[" * 200}).encode())["a"] == "[" * 200


def test_chunks() -> None:
    c = Chunk(DATA, 7, 1 << 40, b"data")
    assert Chunk.parse(c.encode()) == c
    for raw in (b"", bytes(16), Chunk(9, 1, 0).encode(), Chunk(DATA, 0, 0).encode(),
                Chunk(CREDIT, 1, 0, b"x").encode(), Chunk(DATA, 1, (1 << 62) + 1).encode(),
                b"\0\0\0\0\1" + Chunk(DATA, 1, 0).encode()[5:]):  # fmt: skip
        with pytest.raises(TurnstoneError):
            Chunk.parse(raw)


def test_reasons_are_fit_for_a_terminal() -> None:
    assert "\x1b" not in str(closed(b"\x03\xe8\x1b[31mred"))
    assert Parser().feed(encode(CLOSE, b"")) == [(CLOSE, b"")]


def test_random_bytes_never_crash() -> None:
    rng = random.Random(11)
    for _ in range(2000):
        raw = bytearray(encode(rng.choice([TEXT, BINARY, PING, CONTINUATION]), rng.randbytes(rng.randrange(300))))
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            for kind, payload in Parser().feed(bytes(raw) + rng.randbytes(40)):
                if kind == BINARY:
                    Chunk.parse(payload)
                elif kind == TEXT:
                    parse_message(payload)
        except TurnstoneError:
            pass
